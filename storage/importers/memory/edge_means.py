"""Gives nodes without features the means of their edges' features. This is the usual input for ogbn-proteins (Hu et al., NeurIPS 2020, section 4.1)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.storage.format.source import EdgeChunk, GraphSource, NodeChunk, SourceInfo

_CHUNK = 1 << 20


@dataclass(frozen=True)
class EdgeMeans:
    """A `GraphSource` in which a node's features are the means of its in-edges' features (with `both_ends`: of all its edges), or 0 if it has no such edge.

    Memory: 8 bytes for each number. Raises ConfigError if edges have no features, or if nodes already have features.
    """

    source: GraphSource
    both_ends: bool = False

    def __post_init__(self) -> None:
        info = self.source.info
        if not info.edge_feature_dim or info.relations or info.feature_dim:
            got = "nodes with some" if info.feature_dim else "relations" if info.relations else "edges without"
            raise ConfigError(
                f"{info.name}: node_features: expected features of edges, and none of nodes, got {got}; leave --node-features out"
            )

    @property
    def info(self) -> SourceInfo:
        return replace(self.source.info, feature_dim=self.source.info.edge_feature_dim)

    @cached_property
    def _means(self) -> np.ndarray:
        """Computes the means, float32 [num_nodes, edge_feature_dim]."""
        info = self.source.info
        sums, counts = np.zeros((info.num_nodes, info.edge_feature_dim)), np.zeros(info.num_nodes, np.int64)
        for chunk in self.source.edges(_CHUNK):
            assert chunk.feature is not None
            for ends in (chunk.dst, chunk.src) if self.both_ends else (chunk.dst,):
                counts += np.bincount(ends, minlength=info.num_nodes)
                for column in range(info.edge_feature_dim):
                    sums[:, column] += np.bincount(ends, chunk.feature[:, column], info.num_nodes)
        return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        return self.source.edges(chunk_edges)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        row = 0
        for chunk in self.source.nodes(chunk_nodes):
            columns = [column for column in vars(chunk).values() if column is not None]
            stop = (
                row + len(columns[0]) if columns else self.info.num_nodes
            )  # if nodes have no columns, the source yields one empty chunk
            yield replace(chunk, feature=self._means[row:stop])
            row = stop
