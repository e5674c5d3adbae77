"""From roots to minibatches: neighbor sampling, random partitioning, and the loader that streams them. No Ray.

Imports: storage, core.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "NeighborSampler": "graphmill.samplers.methods.neighbor:NeighborSampler",
    "Node2SubgraphSampler": "graphmill.samplers.methods.node2subgraph:Node2SubgraphSampler",
    "RandomPartitionSampler": "graphmill.samplers.methods.random_partition:RandomPartitionSampler",
    "PprSampler": "graphmill.samplers.methods.ppr:PprSampler",
    "SaintSampler": "graphmill.samplers.methods.saint:SaintSampler",
    "TypedNeighborSampler": "graphmill.samplers.methods.typed_neighbor:TypedNeighborSampler",
    "TypedNode2SubgraphSampler": "graphmill.samplers.methods.typed_subgraphs:TypedNode2SubgraphSampler",
    "TypedPprSampler": "graphmill.samplers.methods.typed_subgraphs:TypedPprSampler",
    "GraphBatchSampler": "graphmill.samplers.methods.graph_batches:GraphBatchSampler",
    "Loader": "graphmill.samplers.loading.loader:Loader",
    **{
        name: f"graphmill.samplers.vocabulary.options:{name}"
        for name in (
            "NeighborOptions",
            "Node2SubgraphOptions",
            "RandomPartitionOptions",
            "PprOptions",
            "SaintOptions",
            "TypedNeighborOptions",
            "TypedNode2SubgraphOptions",
            "TypedPprOptions",
            "GraphBatchOptions",
            "LoaderOptions",
        )
    },
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _PUBLIC:
        raise AttributeError(f"expected one of {', '.join(sorted(_PUBLIC))}, got {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
