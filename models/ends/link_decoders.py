"""Scores links from the states of their two nodes, and scores one node against many nodes.

    dot       z_u · z_v
    distmult  z_u · (r ∘ z_v)                 arXiv:1412.6575
    transe    b − ‖z_u + r − z_v‖₂            Bordes et al., NeurIPS 2013; b, which is learnt, makes it a logit
    mlp       MLP(z_u ∘ r ∘ z_v)              `LinkPredictor` of OGB's examples: Linear, ReLU, dropout, …, Linear; r only in knowledge graphs

r is a learnt vector. Each relation of links has its own r; links without relations share one r.

Legend: B links, N nodes, D width, R relations (0: links have none), … any axes; `relation` int64, one for each u, or None.
"""

import torch
from torch import Tensor, nn

from graphmill.models.options.links import LinkDecoderOptions
from graphmill.models.primitives.dropout import Dropout


class Dot(nn.Module):
    """z_u · z_v."""

    def forward(self, u: Tensor, v: Tensor, relation: Tensor | None = None) -> Tensor:
        """[…, D], [… , D] → […]: the scores of pairs."""
        return (u * v).sum(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor, relation: Tensor | None = None) -> Tensor:
        """[B, N]: the score of each u with each z."""
        return u_BD @ z_ND.T


class Relations(nn.Module):
    """Holds a vector for each relation, [R, D], or one vector for all links, [D]."""

    def __init__(self, num_relations: int, width: int, mean: float) -> None:
        """A single vector starts at `mean`; vectors of relations start at N(mean, 1 / 4)."""
        super().__init__()
        first = torch.full((num_relations, width) if num_relations else (width,), mean)
        self.vectors = nn.Parameter(first + 0.5 * torch.randn(first.shape) if num_relations else first)

    def forward(self, relation: Tensor | None) -> Tensor:
        """[…] → […, D]. The gradient of `index_select` is a sum in the order of the rows."""
        if relation is None:
            return self.vectors
        return self.vectors.index_select(0, relation.reshape(-1)).reshape(*relation.shape, -1)


class DistMult(nn.Module):
    """z_u · (r ∘ z_v)."""

    def __init__(self, width: int, num_relations: int = 0) -> None:
        super().__init__()
        self.relation = Relations(num_relations, width, 1.0)

    def forward(self, u: Tensor, v: Tensor, relation: Tensor | None = None) -> Tensor:
        return (u * self.relation(relation) * v).sum(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor, relation: Tensor | None = None) -> Tensor:
        return (u_BD * self.relation(relation)) @ z_ND.T


class TransE(nn.Module):
    """b − ‖z_u + r − z_v‖₂."""

    def __init__(self, width: int, num_relations: int = 0) -> None:
        super().__init__()
        self.relation = Relations(num_relations, width, 0.0)
        self.offset = nn.Parameter(torch.ones(()))

    def forward(self, u: Tensor, v: Tensor, relation: Tensor | None = None) -> Tensor:
        return self.offset - _length(u + self.relation(relation) - v)

    def against(self, u_BD: Tensor, z_ND: Tensor, relation: Tensor | None = None) -> Tensor:
        return self.offset - _length((u_BD + self.relation(relation))[:, None] - z_ND)


class ProductMLP(nn.Module):
    """MLP(z_u ∘ z_v), or with relations MLP(z_u ∘ r ∘ z_v)."""

    def __init__(self, width: int, num_layers: int, dropout: float, num_relations: int = 0) -> None:
        super().__init__()
        self.relation = Relations(num_relations, width, 1.0) if num_relations else None
        steps: list[nn.Module] = []
        for _ in range(num_layers - 1):
            steps += [nn.Linear(width, width), nn.ReLU(), Dropout(dropout)]
        self.layers = nn.Sequential(*steps, nn.Linear(width, 1))

    def forward(self, u: Tensor, v: Tensor, relation: Tensor | None = None) -> Tensor:
        u = u if self.relation is None else u * self.relation(relation)
        return self.layers(u * v).squeeze(-1)

    def against(self, u_BD: Tensor, z_ND: Tensor, relation: Tensor | None = None) -> Tensor:
        return self(u_BD[:, None], z_ND, None if relation is None else relation[:, None])


LinkDecoder = Dot | DistMult | TransE | ProductMLP


def build_link_decoder(options: LinkDecoderOptions, num_relations: int = 0) -> LinkDecoder:
    """Raises ValueError if the links have relations that the decoder does not distinguish."""
    if options.kind == "dot":
        if num_relations:
            raise ValueError("decoder: expected one that tells relations apart, got dot; set distmult, transe or mlp")
        return Dot()
    if options.kind == "distmult":
        return DistMult(options.width, num_relations)
    if options.kind == "transe":
        return TransE(options.width, num_relations)
    return ProductMLP(options.width, options.num_layers, options.dropout, num_relations)


def _length(x: Tensor) -> Tensor:
    """Returns the L2 norm of the last axis; the gradient at 0 is 0, not NaN."""
    square = (x * x).sum(-1)
    is_zero = square == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, square).sqrt())
