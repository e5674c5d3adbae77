"""Networks as plain `nn.Module`s, and their options. The public names load when they are first used. Imports: torch; nothing of ours."""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "GECO": "graphmill.models.geco:GECO",
    "GECOConfig": "graphmill.models.options.geco:GECOConfig",
    "GECOGraphs": "graphmill.models.geco_graphs:GECOGraphs",
    "GECOGraphsConfig": "graphmill.models.options.geco_graphs:GECOGraphsConfig",
    "GRIT": "graphmill.models.grit:GRIT",
    "GRITConfig": "graphmill.models.options.grit:GRITConfig",
    "PPGT": "graphmill.models.ppgt:PPGT",
    "PPGTConfig": "graphmill.models.options.ppgt:PPGTConfig",
    "Primphormer": "graphmill.models.primphormer:Primphormer",
    "PrimphormerConfig": "graphmill.models.options.primphormer:PrimphormerConfig",
    "TokenGT": "graphmill.models.tokengt:TokenGT",
    "TokenGTConfig": "graphmill.models.options.tokengt:TokenGTConfig",
    "MessagePassing": "graphmill.models.message_passing:MessagePassing",
    "SAGEConfig": "graphmill.models.options.message_passing:SAGEConfig",
    "GCNConfig": "graphmill.models.options.message_passing:GCNConfig",
    "GATConfig": "graphmill.models.options.message_passing:GATConfig",
    "RSAGE": "graphmill.models.relational:RSAGE",
    "RSAGEConfig": "graphmill.models.options.relational:RSAGEConfig",
    "OverTypes": "graphmill.models.relational:OverTypes",
    "RelationalConfig": "graphmill.models.options.relational:RelationalConfig",
    "NodeGECO": "graphmill.models.geco:NodeGECO",
    "Graphs": "graphmill.models.primitives.graphs:Graphs",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _PUBLIC:
        raise AttributeError(f"expected one of {', '.join(sorted(_PUBLIC))}, got {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
