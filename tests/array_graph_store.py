"""Many small graphs in arrays, for tests. `graphmill.samplers.methods.graph_batches` can draw from them as from a store, without files."""

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from graphmill.samplers.kernels.lists import all_positions
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs


@dataclass(frozen=True)
class ArrayGraphStore:
    """Graphs that are packed into arrays (in memory or mapped from files).

    Graph i has the nodes [node_ptr[i], node_ptr[i + 1]) and the edges [edge_ptr[i], edge_ptr[i + 1]).
    """

    node_ptr: np.ndarray  # int64 [num_graphs + 1]
    edge_ptr: np.ndarray  # int64 [num_graphs + 1]
    edge_index: np.ndarray  # int32 [2, m]: positions of source and target within their graph
    node_feature: np.ndarray | None = None
    edge_feature: np.ndarray | None = None
    target: np.ndarray | None = None

    @cached_property
    def content_hash(self) -> str:
        """Hash of all arrays. The first call reads them; later calls do not."""
        found = hashlib.sha256()
        for field in fields(self):
            array = getattr(self, field.name)
            found.update(f"{field.name} {None if array is None else (array.dtype.str, array.shape)}\n".encode())
            if array is not None:
                found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    @cached_property
    def num_nodes(self) -> np.ndarray:
        return np.diff(self.node_ptr)

    @cached_property
    def num_edges(self) -> np.ndarray:
        return np.diff(self.edge_ptr)

    def fetch(self, graph: np.ndarray) -> PackedGraphs:
        num_nodes, num_edges = self.num_nodes[graph], self.num_edges[graph]
        node, edge = all_positions(self.node_ptr[graph], num_nodes), all_positions(self.edge_ptr[graph], num_edges)
        return PackedGraphs(
            num_nodes=num_nodes,
            num_edges=num_edges,
            edge_index=np.take(self.edge_index, edge, axis=1),
            node_feature=None if self.node_feature is None else np.take(self.node_feature, node, axis=0),
            edge_feature=None if self.edge_feature is None else np.take(self.edge_feature, edge, axis=0),
            target=None if self.target is None else self.target[graph],
        )
