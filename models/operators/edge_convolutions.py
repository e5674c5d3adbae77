"""Implements convolutions over edges with states, for the GPS hybrid and for GNN+ (arXiv:2502.09263).

    GINE   (arXiv:1905.12265)   x'_i = FC(ReLU(FC(x_i + Σ_j ReLU(x_j + e_ij))))
    GCNE   (GNN+'s GCN)         x'_i = Σ_j ReLU(W x_j + e_ij) + b

Sums run over the edges j → i; an edge of weight w counts as w parallel edges. GCNE is the released code's: the paper's equation also has degrees, a self-loop
and a map of e. Sums run over sorted lists, without atomics.

Shapes: n nodes, E edges, D width.
"""

import torch
from torch import Tensor, nn

from graphmill.models.operators.local_blocks import times
from graphmill.models.primitives.graphs import Graphs


def message_sum(x_nD: Tensor, e_ED: Tensor, graphs: Graphs) -> Tensor:
    """Σ_j ReLU(x_j + e_ij), [n, D]."""
    message_ED = torch.relu(graphs.by_source.spread(x_nD) + e_ED.to(x_nD.dtype))
    return graphs.by_destination.sum(times(message_ED, graphs.edge_coefficient))


class GINE(nn.Module):
    """Maps x [n, D] and e [E, D] to x' [n, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x_nD: Tensor, e_ED: Tensor, graphs: Graphs) -> Tensor:
        return self.mlp(x_nD + message_sum(x_nD, e_ED, graphs))


class GCNE(nn.Module):
    """Maps x [n, D] and e [E, D] to x' [n, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_nD: Tensor, e_ED: Tensor, graphs: Graphs) -> Tensor:
        return message_sum(self.linear(x_nD), e_ED, graphs) + self.bias
