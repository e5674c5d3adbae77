"""Degrees and sizes of graphs as numbers for a model: log(1 + deg), log(1 + n), 1/deg, 1/n (PPGT's stems, GRIT's scaler).

A node's degree is the number of its out-edges as listed: both directions of an undirected graph give the usual degree. Parallel
edges count each time here but once in walks and adjacency; `graphmill.storage.ingestion.ingest` can drop them.
"""

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs


@torch.no_grad()
def degrees(graphs: Graphs, *, undirected: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n]: out-degrees. Counted in integers, so the same in any order of edges.

    `undirected`: the number of nodes with an edge to or from a node.
    """
    if undirected:
        return graphs.padding.unpad(graphs.padding.adjacency(dtype, undirected=True).sum(2))
    start = graphs.edge_index[0]
    count = torch.zeros(graphs.num_nodes, dtype=torch.int64, device=start.device)
    return count.index_add_(0, start, torch.ones_like(start)).to(dtype)


def log_degrees(graphs: Graphs, *, undirected: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n, 1]: log(1 + deg)."""
    return degrees(graphs, undirected=undirected, dtype=dtype).log1p().unsqueeze(1)


def log_orders(graphs: Graphs, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n, 1]: log(1 + the number of nodes of the node's graph)."""
    return graphs.size_B.to(dtype).log1p()[graphs.graph_of_node].unsqueeze(1)


def inverse_degrees(graphs: Graphs, *, undirected: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n]: 1/deg, 0 for a node without edges (as its row of D⁻¹A is)."""
    degree = degrees(graphs, undirected=undirected, dtype=dtype)
    return (degree > 0) / degree.clamp(min=1)


def inverse_orders(graphs: Graphs, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B]: 1/n, 0 for a graph without nodes."""
    size_B = graphs.size_B.to(dtype)
    return (size_B > 0) / size_B.clamp(min=1)
