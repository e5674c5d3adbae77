"""Scores of links from the states of their two nodes, and of one node against many.

    dot       z_u · z_v
    distmult  z_u · (r ∘ z_v)                 arXiv:1412.6575, of one relation
    transe    b − ‖z_u + r − z_v‖₂            Bordes et al., NeurIPS 2013, of one relation; b, which is learnt, makes it a logit
    mlp       MLP(z_u ∘ z_v)                  `LinkPredictor` of OGB's examples: Linear, ReLU, dropout, …, Linear

Legend: B links, N nodes, D width, … any axes.
"""

import torch
from torch import Tensor, nn

from models.dropout import Dropout
from models.options.links import LinkDecoderOptions


class Dot(nn.Module):
    """z_u · z_v."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """[…, D], [… , D] → […]: the scores of pairs."""
        return (u * v).sum(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor) -> Tensor:
        """[B, N]: the scores of each u with every z."""
        return u_BD @ z_ND.T


class DistMult(nn.Module):
    """z_u · (r ∘ z_v)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(width))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return (u * self.relation * v).sum(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor) -> Tensor:
        return (u_BD * self.relation) @ z_ND.T


class TransE(nn.Module):
    """b − ‖z_u + r − z_v‖₂."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.zeros(width))
        self.offset = nn.Parameter(torch.ones(()))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.offset - _length(u + self.relation - v)

    def against(self, u_BD: Tensor, z_ND: Tensor) -> Tensor:
        return self(u_BD[:, None], z_ND)


class ProductMLP(nn.Module):
    """MLP(z_u ∘ z_v)."""

    def __init__(self, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for _ in range(num_layers - 1):
            steps += [nn.Linear(width, width), nn.ReLU(), Dropout(dropout)]
        self.layers = nn.Sequential(*steps, nn.Linear(width, 1))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.layers(u * v).squeeze(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor) -> Tensor:
        return self(u_BD[:, None], z_ND)


LinkDecoder = Dot | DistMult | TransE | ProductMLP


def build_link_decoder(options: LinkDecoderOptions) -> LinkDecoder:
    if options.kind == "dot":
        return Dot()
    if options.kind == "distmult":
        return DistMult(options.width)
    if options.kind == "transe":
        return TransE(options.width)
    return ProductMLP(options.width, options.num_layers, options.dropout)


def _length(x: Tensor) -> Tensor:
    """The L2 norm of the last axis; its gradient at 0 is 0, not NaN."""
    square = (x * x).sum(-1)
    is_zero = square == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, square).sqrt())
