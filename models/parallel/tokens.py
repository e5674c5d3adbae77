"""Lays out TokenGT's tokens of one graph whose nodes are spread over workers. A worker has the tokens of its nodes and of the edges into its nodes.

Performer's attention reads the other workers' tokens only through sums over keys. The sparse equivariant basis sums over a node's
out-edges; each edge belongs to the worker that has the edge's destination node.

Shapes: n nodes and E edges here, T = n + E tokens here, D channels, P identifier width.
"""

from functools import cached_property

import torch
from torch import Tensor

from graphmill.models.parallel.global_terms import ShardedKeys
from graphmill.models.parallel.graph import ShardedGraph


class ShardedTokens:
    """Is the `graphmill.models.tokengt.network.TokenView` of a worker: its nodes in row order, then the edges into these nodes. It has no special tokens."""

    num_graphs = 1
    key_mask_BT = None
    order_E = slice(None)

    def __init__(self, graphs: ShardedGraph) -> None:
        self.graphs = graphs
        self.num_nodes, self.num_edges = graphs.num_nodes, graphs.adjacency.num_edges

    @cached_property
    def keys(self) -> ShardedKeys:
        """The layout that attention uses to reach the tokens of all workers."""
        shards, peers = self.graphs.shards, self.graphs.peers
        blocks = [shards.blocks(worker) for worker in range(peers.size)]
        nodes = blocks[peers.rank]
        ends = torch.tensor([0, *nodes]).cumsum(0)
        edges = self.graphs.by_destination.lists[0][ends.to(self.graphs.node_id.device)].diff().tolist()
        return ShardedKeys(peers, [nodes, edges], [len(lengths) for lengths in blocks])

    @cached_property
    def is_loop_E(self) -> Tensor:
        """bool [E]: True for self-loops."""
        source_E, destination_E = self.graphs.edge_index
        return source_E == destination_E

    def at_ends(self, x_nP: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows [E, P] of each edge's source and the rows [E, P] of each edge's destination; a collective call."""
        return self.graphs.by_source.spread(x_nP), self.graphs.by_destination.spread(x_nP)

    def assemble(self, special_SD: Tensor, node_nD: Tensor, edge_ED: Tensor) -> Tensor:
        """[1, T, D]; `special` has no rows."""
        return torch.cat([node_nD, edge_ED]).unsqueeze(0)

    def nodes(self, x_1TD: Tensor) -> Tensor:
        """[n, D]: the node tokens."""
        return x_1TD[0, : self.num_nodes]

    def with_nodes(self, x_1TD: Tensor, node_nD: Tensor) -> Tensor:
        """Returns the same tokens with new node tokens."""
        return torch.cat([node_nD.to(x_1TD.dtype), x_1TD[0, self.num_nodes :]]).unsqueeze(0)

    def add_edges_to_nodes(self, x_1TD: Tensor, reduction: str = "sum") -> Tensor:
        """Applies SEB: x_(i,i) + Σ_{j≠i} x_(i,j); "mean" divides the sum by the number of edges j ≠ i. A collective call."""
        node_nD, edge_ED = x_1TD[0].split([self.num_nodes, self.num_edges])
        sum_nD = self.graphs.by_source.sum(edge_ED * (~self.is_loop_E).unsqueeze(1).to(edge_ED.dtype))
        if reduction == "mean":
            sum_nD = sum_nD / self.degree_n1.clamp(min=1).to(sum_nD.dtype)
        return torch.cat([node_nD + sum_nD, edge_ED]).unsqueeze(0)

    @cached_property
    def degree_n1(self) -> Tensor:
        """float32 [n, 1]: number of a node's out-edges without self-loops; a collective call."""
        return self.graphs.by_source.sum((~self.is_loop_E).float().unsqueeze(1))
