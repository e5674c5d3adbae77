"""Represents one worker's rows of a graph that is spread over workers, in place of a `graphmill.models.primitives.graphs.Graphs`.

A model that reads other nodes only through `adjacency`, `by_source`, `by_destination` and `by_graph` runs on a ShardedGraph unchanged, and predicts the roots
of this worker. Features, encodings and ids belong to single nodes or edges. Calls that reach other workers are collective: a model makes them in the same
order on every worker.

Shapes: n rows here, N nodes, E edges into the rows here, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.global_terms import ShardedNodes
from graphmill.models.parallel.halo import HaloGrouping, ShardedAdjacency
from graphmill.models.parallel.sequences import ShardedLayout
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.segments import Grouping


@dataclass(frozen=True)
class ShardedGraph:
    """Is a batch of one graph; this worker has a range of the rows."""

    shards: Shards
    peers: Peers
    adjacency: ShardedAdjacency
    node_id: Tensor  # int64 [n], permanent ids
    x: Tensor | None = None  # [n, F]
    root_index: Tensor | None = None  # int64 [r]: rows whose outputs are computed; None: all rows
    encodings: Mapping[str, Tensor] = field(default_factory=dict)  # [n, k] each
    num_graphs: int = 1

    @property
    def num_nodes(self) -> int:
        """n."""
        return self.adjacency.num_nodes

    @property
    def edge_attr(self) -> Tensor | None:
        """[E, F'], of the edges into the rows here."""
        return self.adjacency.edge_feature

    @property
    def edge_coefficient(self) -> Tensor | None:
        """[E], of the edges into the rows here."""
        return self.adjacency.edge_weight

    @cached_property
    def layout(self) -> ShardedLayout:
        """The layout that GECO's convolutions use to reach all nodes."""
        return ShardedLayout(self.shards, self.peers)

    @cached_property
    def all_node_ids(self) -> Tensor:
        """int64 [N]: permanent ids of all nodes; a collective call."""
        return self.peers.gather(self.node_id, self.shards.sizes)

    @cached_property
    def by_graph(self) -> ShardedNodes:
        """The nodes of all workers, as one group."""
        return ShardedNodes(self.shards, self.peers, self.node_id.device)

    @property
    def size_B(self) -> Tensor:
        """int64 [1]: N."""
        return self.by_graph.size_B

    @property
    def by_source(self) -> HaloGrouping:
        """The edges, grouped by source node."""
        return self.adjacency.by_source

    @property
    def by_destination(self) -> Grouping:
        """The edges, grouped by destination node."""
        return self.adjacency.by_destination

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, E]: row 0 has the sources, as indices into own rows and halo rows; row 1 has the destinations, as indices into own rows."""
        return torch.stack([self.by_source.group_E.long(), self.by_destination.group_E])
