"""A typed source as one plain graph, for partitioners: the rows of all types one after another, the edges of all relations."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo, TypedSource


@dataclass(frozen=True)
class TypesTogether:
    """A `graphmill.storage.format.source.GraphSource` without columns."""

    source: TypedSource

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [num_types + 1]: where the rows of each type begin."""
        return np.cumsum([0, *(nodes.info.num_nodes for nodes in self.source.nodes.values())])

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(name=self.source.name, num_nodes=int(self.offsets[-1]))

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        yield NodeChunk()

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Relation after relation. Raises DataError for an id that its type has not."""
        first = dict(zip(self.source.nodes, self.offsets.tolist(), strict=False))
        for relation, edges in self.source.relations.items():
            ends = relation.source, relation.target
            counts = [self.source.nodes[end].info.num_nodes for end in ends]
            for chunk in edges.edges(chunk_edges):
                check_ends(chunk, edges.info.name, *counts)
                yield EdgeChunk(chunk.src + first[ends[0]], chunk.dst + first[ends[1]])


def check_ends(chunk: EdgeChunk, name: str, num_sources: int, num_targets: int) -> None:
    """Raises DataError where the ends of a source's edges are not rows of so many nodes."""
    if len(chunk.src) != len(chunk.dst):  # the compiled loops read both by one index
        raise DataError(f"{name}: expected as many sources as destinations, got {len(chunk.src)} and {len(chunk.dst)}")
    for ids, count in ((chunk.src, num_sources), (chunk.dst, num_targets)):
        if len(ids) and (ids.min() < 0 or ids.max() >= count):
            bad = ids[int(np.argmax((ids < 0) | (ids >= count)))]
            raise DataError(f"{name}: edge ids must be 0 to {count - 1} (num_nodes = {count}), got {bad}")
