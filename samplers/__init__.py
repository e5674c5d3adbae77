"""Neighbor sampling, random partitioning, and the loader that turns roots into a stream of minibatches. No Ray. Imports: storage, core."""

from typing import Any

from graphmill.core.public_names import load_public
from graphmill.samplers.methods.registry import SAMPLERS

_PATHS = (
    *(path for paths in SAMPLERS.values() for path in reversed(paths)),
    "graphmill.samplers.methods.graph_batches:GraphBatchSampler",
    "graphmill.samplers.vocabulary.options:GraphBatchOptions",
    "graphmill.samplers.loading.loader:Loader",
    "graphmill.samplers.vocabulary.options:LoaderOptions",
    "graphmill.samplers.peers.loaders:NeighborLoader",
    "graphmill.samplers.peers.loaders:BatchDataset",
    "graphmill.samplers.peers.loaders:lightning_data",
)
_PUBLIC = {path.partition(":")[2]: path for path in _PATHS}


def __getattr__(name: str) -> Any:
    return load_public(__name__, _PUBLIC, name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)


__all__ = [*_PUBLIC]  # noqa: PLE0604  # what help() lists
