"""Implements the parts that PPGT's ablations put in place of its own (arXiv:2504.12588, figure 4): batch normalisation, GRIT's attention and degree scaler.

    NodeBatchNorm         BatchNorm over the nodes of a batch
    PerceptronAttention   GRIT's conditional attention over the pairs p, which do not change (models/grit/attention.py)
    DegreeScaler          h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂

Legend: B graphs, N places, D width, E channels of a pair.
"""

import torch
from torch import Tensor, nn

from graphmill.models.encodings.degree import log_degrees
from graphmill.models.grit.attention import ConditionalAttention, Pairs
from graphmill.models.grit.options import GRITConfig
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs


class NodeBatchNorm(RowBatchNorm):
    """Is batch normalisation of padded rows [B, N, D] over the places that hold nodes. Packed rows [n, D] are normalised as they are."""

    def of_places(self, x_BND: Tensor, graphs: Graphs) -> Tensor:
        padding = graphs.padding
        return padding.pad(self(padding.unpad(x_BND)))


def normalise_places(norm: nn.Module, x_BND: Tensor, graphs: Graphs) -> Tensor:
    """Applies `norm` to padded rows [B, N, D]."""
    return norm.of_places(x_BND, graphs) if isinstance(norm, NodeBatchNorm) else norm(x_BND)


class PerceptronAttention(nn.Module):
    """Is GRIT's attention with PPGT's pair states and output map; the pairs need the nodes' width."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.attention = ConditionalAttention(
            GRITConfig(width=config.width, num_heads=config.num_heads, attention_dropout=config.attention_dropout)
        )
        self.out = nn.Linear(config.width, config.width)
        self.attention.edge_out.requires_grad_(False)  # as in GRIT's last layer, the pairs are not updated
        self.attention.edge_norm.requires_grad_(False)

    def forward(self, x_BND: Tensor, p_BNNE: Tensor, graphs: Graphs) -> Tensor:
        """Returns [B, N, D]."""
        padding = graphs.padding
        h_nD, _ = self.attention(padding.unpad(x_BND), Pairs(p_BNNE), padding, update_edges=False)
        return padding.pad(self.out(h_nD))


class DegreeScaler(nn.Module):
    """Maps [B, N, D] to h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.undirected = config.undirected_walks
        self.scale_1D2 = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, config.width, 2)))

    def forward(self, h_BND: Tensor, graphs: Graphs) -> Tensor:
        log_degree_n1 = log_degrees(graphs, undirected=self.undirected, dtype=h_BND.dtype)
        degree_BN1 = graphs.padding.pad(log_degree_n1)
        return h_BND * (self.scale_1D2[..., 0] + degree_BN1 * self.scale_1D2[..., 1])
