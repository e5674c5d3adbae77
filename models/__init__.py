"""Defines networks as plain `nn.Module`s, and their options. A public name loads at its first use. Imports only torch and, from Graphmill, `core`."""

from typing import Any

from graphmill.core.public_names import load_public

_PUBLIC = {
    "GECO": "graphmill.models.geco.network:GECO",
    "GECOConfig": "graphmill.models.geco.options:GECOConfig",
    "GECOGraphs": "graphmill.models.geco.graphs:GECOGraphs",
    "GECOGraphsConfig": "graphmill.models.geco.options:GECOGraphsConfig",
    "GRIT": "graphmill.models.grit.network:GRIT",
    "GRITConfig": "graphmill.models.grit.options:GRITConfig",
    "PPGT": "graphmill.models.ppgt.network:PPGT",
    "PPGTConfig": "graphmill.models.ppgt.options:PPGTConfig",
    "Primphormer": "graphmill.models.primphormer.network:Primphormer",
    "PrimphormerConfig": "graphmill.models.primphormer.options:PrimphormerConfig",
    "Polynormer": "graphmill.models.polynormer.network:Polynormer",
    "PolynormerConfig": "graphmill.models.polynormer.options:PolynormerConfig",
    "SGFormer": "graphmill.models.sgformer.network:SGFormer",
    "SGFormerConfig": "graphmill.models.sgformer.options:SGFormerConfig",
    "TokenGT": "graphmill.models.tokengt.network:TokenGT",
    "TokenGTConfig": "graphmill.models.tokengt.options:TokenGTConfig",
    "MessagePassing": "graphmill.models.message_passing.network:MessagePassing",
    "SAGEConfig": "graphmill.models.message_passing.options:SAGEConfig",
    "GCNConfig": "graphmill.models.message_passing.options:GCNConfig",
    "GATConfig": "graphmill.models.message_passing.options:GATConfig",
    "RSAGE": "graphmill.models.relational.network:RSAGE",
    "RSAGEConfig": "graphmill.models.relational.options:RSAGEConfig",
    "OverTypes": "graphmill.models.relational.network:OverTypes",
    "RelationalConfig": "graphmill.models.relational.options:RelationalConfig",
    "NodeGECO": "graphmill.models.geco.network:NodeGECO",
    "Graphs": "graphmill.models.primitives.graphs:Graphs",
}


def __getattr__(name: str) -> Any:
    return load_public(__name__, _PUBLIC, name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)


__all__ = [*_PUBLIC]  # noqa: PLE0604  # what help() lists
