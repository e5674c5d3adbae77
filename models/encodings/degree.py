"""Computes degrees of nodes and sizes of graphs as model inputs: log(1 + deg), log(1 + n), 1/deg, 1/n (used by PPGT's stems and GRIT's scaler).

A node's degree is the number of its listed out-edges. An undirected graph lists both directions of an edge, which gives the usual degree.
Each parallel edge counts here, but parallel edges count once in walks and adjacency; `graphmill.storage.ingestion.ingest` can drop them.
"""

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs


@torch.no_grad()
def degrees(graphs: Graphs, *, undirected: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n]: out-degrees. They are counted in integers, so the order of the edges does not change them.

    `undirected`: a node's degree is the number of nodes that an edge, in either direction, connects to it.
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
    """[n]: 1/deg; 0 for a node without out-edges, like the node's row of D⁻¹A."""
    degree = degrees(graphs, undirected=undirected, dtype=dtype)
    return (degree > 0) / degree.clamp(min=1)


def inverse_orders(graphs: Graphs, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B]: 1/n, 0 for a graph without nodes."""
    size_B = graphs.size_B.to(dtype)
    return (size_B > 0) / size_B.clamp(min=1)
