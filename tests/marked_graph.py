"""A tiny graph whose files all carry its number, so that a mixture of two graphs is detected."""

from collections.abc import Callable, Iterator

import numpy as np

from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.graph import StoredGraph

NUM_NODES, NUM_PARTITIONS = 8, 2


class MarkedGraph:
    """Graph number `mark`: its name, features, labels and the ends of its edges tell the number."""

    def __init__(self, mark: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.mark, self._meanwhile = mark, meanwhile
        self.info = SourceInfo(
            name=f"mark-{mark}",
            num_nodes=NUM_NODES,
            num_edges=NUM_NODES,
            feature_dim=1,
            has_label=True,
            has_edge_weight=True,
        )

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        feature = np.full((NUM_NODES, 1), self.mark, np.float32)
        yield NodeChunk(feature=feature, label=np.full(NUM_NODES, self.mark, np.float32))

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        self._meanwhile()
        source = np.arange(NUM_NODES)
        yield EdgeChunk(source, (source + 1) % NUM_NODES, weight=np.full(NUM_NODES, self.mark, np.float32))


def check_mark(graph: StoredGraph) -> int:
    """Reads every byte of the graph, and returns its number. Raises AssertionError for a mixture, FormatError for damage."""
    mark = int(graph.manifest.name.removeprefix("mark-"))
    for partition in graph.partitions(verify=True):
        for values in (partition.feature_numbers(), partition.label, partition.edge_weight):
            assert values is not None
            assert (values == mark).all(), (mark, values)
    return mark
