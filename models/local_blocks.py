"""Local blocks: convolutions over a node's in-neighbors, the layer that "Classic GNNs are Strong Baselines" makes of them, and a gate.

    L(H) = Drop(ReLU(Norm(Conv(H) + Res(H))))              arXiv:2406.08993, equation 5

    LCB        (arXiv:2406.12059)   Conv(H) = [H, ÂH, …, Â^hops H] W + b; in GECO's own layer without W and b
    GraphSAGE  (arXiv:1706.02216)   Conv(H)_i = W h_i + b + W' mean_{j → i} h_j
    GCN        (arXiv:1609.02907)   Conv(H) = D̂^-½ (A + I) D̂^-½ H W + b
    GAT        (arXiv:1710.10903)   Conv(H)_i = ‖_heads Σ_{j → i or j = i} α_ij W h_j + b,   α_ij = softmax_j LeakyReLU(s·W h_j + d·W h_i)
    APPNP      (arXiv:1810.05997)   Conv(H) = Z_K,   Z_0 = H W + b,   Z_k+1 = (1 − α) D̂^-½ (A + I) D̂^-½ Z_k + α Z_0
    GatedGCN   (arXiv:1711.07553)   Conv(H)_i = A h_i + Σ_{j → i} σ_ij ⊙ B h_j / (Σ_j σ_ij + 10⁻⁶),   σ_ij = sigmoid(D h_i + E h_j)

The baselines (models/message_passing.py) are these layers alone; beside a global block they join it by a gate, L(H) + g ⊙ Global(L(H)), or
stand in front of it. Sums run over sorted lists, without atomics.

Shapes: n nodes, E edges, F input channels, D width, K heads of C = D / K channels.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from models.batch_norm import RowBatchNorm
from models.dropout import Dropout, MaskRows
from models.layer_norm import LayerNorm
from models.options.choices import Normalisation
from models.options.local import LocalOptions
from models.propagation import Propagation
from models.segments import Grouping


class EdgeLists(Propagation, Protocol):
    """Also lists the edges, for blocks that weigh each of them."""

    @property
    def by_source(self) -> Grouping: ...

    @property
    def by_destination(self) -> Grouping: ...


class LocalBlock(nn.Module):
    """LCB: [X, ÂX] (or [X, ÂX, …, Â^hops X]); no parameters, and equivariant to renumbering the nodes."""

    def __init__(self, propagation: Normalisation, hops: int = 1) -> None:
        super().__init__()
        self.propagation, self.hops = propagation, hops

    def forward(self, x_nD: Tensor, adjacency: Propagation) -> Tensor:
        """Returns [n, (hops + 1) D]."""
        hops = [x_nD]
        for _ in range(self.hops):
            hops.append(adjacency.propagate(hops[-1], self.propagation))
        return torch.cat(hops, dim=1)


class HopConvolution(nn.Module):
    """The LCB and a linear map, [n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int, propagation: Normalisation, hops: int) -> None:
        super().__init__()
        self.block = LocalBlock(propagation, hops)
        self.linear = nn.Linear((hops + 1) * in_dim, width)

    def forward(self, x_nF: Tensor, adjacency: Propagation) -> Tensor:
        return self.linear(self.block(x_nF, adjacency))


class SAGEConvolution(nn.Module):
    """[n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, width)
        self.neighbors = nn.Linear(in_dim, width, bias=False)

    def forward(self, x_nF: Tensor, adjacency: Propagation) -> Tensor:
        return self.own(x_nF) + adjacency.propagate(self.neighbors(x_nF), "mean")


class GCNConvolution(nn.Module):
    """[n, F] → [n, D]; the self-loop is added here."""

    def __init__(self, in_dim: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_nF: Tensor, adjacency: Propagation) -> Tensor:
        return adjacency.propagate(self.linear(x_nF), "gcn") + self.bias


class PageRankConvolution(nn.Module):
    """APPNP, [n, F] → [n, D]: personalised PageRank of H W + b, with restart α, by K steps."""

    def __init__(self, in_dim: int, width: int, steps: int, restart: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, width)
        self.steps, self.restart = steps, restart

    def forward(self, x_nF: Tensor, adjacency: Propagation) -> Tensor:
        start_nD = z_nD = self.linear(x_nF)
        for _ in range(self.steps):
            z_nD = torch.lerp(adjacency.propagate(z_nD, "gcn"), start_nD, self.restart)
        return z_nD


class GATConvolution(nn.Module):
    """[n, F] → [n, D]; every node also attends to itself."""

    def __init__(self, in_dim: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linear = nn.Linear(in_dim, width, bias=False)
        self.source = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.destination = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.bias = nn.Parameter(torch.zeros(width))
        for weight in (self.linear.weight, self.source, self.destination):
            nn.init.xavier_uniform_(weight)

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        h_nKC = self.linear(x_nF).unflatten(1, (self.num_heads, -1))
        from_nK, to_nK = (h_nKC * self.source).sum(-1), (h_nKC * self.destination).sum(-1)
        by_source, by_destination = adjacency.by_source, adjacency.by_destination
        logit_EK = nn.functional.leaky_relu(by_source.spread(from_nK) + by_destination.spread(to_nK), 0.2)
        own_nK = nn.functional.leaky_relu(from_nK + to_nK, 0.2)
        # The largest logit of each node: subtracted, it changes no weight, and no exponential overflows.
        index_EK = by_destination.group_E.unsqueeze(1).expand_as(logit_EK)
        largest_nK = own_nK.detach().scatter_reduce(0, index_EK, logit_EK.detach(), "amax")
        weight_EK = (logit_EK - by_destination.spread(largest_nK)).exp()
        own_nK = (own_nK - largest_nK).exp()
        total_nKC = by_destination.sum(weight_EK.unsqueeze(2) * by_source.spread(h_nKC)) + own_nK.unsqueeze(2) * h_nKC
        return (total_nKC / (by_destination.sum(weight_EK) + own_nK).unsqueeze(2)).flatten(1) + self.bias


class GatedConvolution(nn.Module):
    """GatedGCN without edge states, [n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.node = nn.Linear(in_dim, 4 * width)  # A, D at the destination; B, E at the source

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        own_nD, to_nD, from_n2D = self.node(x_nF).split([self.width, self.width, 2 * self.width], dim=1)
        message_ED, at_source_ED = adjacency.by_source.spread(from_n2D).chunk(2, dim=1)
        sigma_ED = torch.sigmoid(adjacency.by_destination.spread(to_nD) + at_source_ED)
        return own_nD + gated_mean(sigma_ED, message_ED, adjacency.by_destination)


def gated_mean(sigma_ED: Tensor, message_ED: Tensor, by_destination: Grouping) -> Tensor:
    """Σ_j σ_ij ⊙ m_ij / (Σ_j σ_ij + 10⁻⁶) over the edges j → i, [n, D]."""
    return by_destination.sum(sigma_ED * message_ED) / (by_destination.sum(sigma_ED) + 1e-6)


def make_convolution(
    options: LocalOptions, in_dim: int, width: int, propagation: Normalisation = "mean", hops: int = 1
) -> nn.Module:
    """Conv, [n, F] → [n, D]; `propagation` and `hops` are the LCB's."""
    if options.block == "lcb":
        return HopConvolution(in_dim, width, propagation, hops)
    if options.block == "gat":
        return GATConvolution(in_dim, width, options.num_heads)
    if options.block == "appnp":
        return PageRankConvolution(in_dim, width, options.steps, options.restart)
    kinds = {"sage": SAGEConvolution, "gcn": GCNConvolution, "gated-gcn": GatedConvolution}
    return kinds[options.block](in_dim, width)


def make_norm(name: str, width: int) -> nn.Module:
    """Over rows [n, width]: "batch", "layer" or "none"."""
    if name == "batch":
        return RowBatchNorm(width)
    return LayerNorm(width) if name == "layer" else nn.Identity()


class LocalLayer(nn.Module):
    """L(H) of the module's docstring, [n, F] → [n, D]."""

    def __init__(
        self, options: LocalOptions, in_dim: int, width: int, propagation: Normalisation = "mean", hops: int = 1
    ) -> None:
        super().__init__()
        self.convolution = make_convolution(options, in_dim, width, propagation, hops)
        self.residual: nn.Module | None = None
        if options.residual == "linear":
            self.residual = nn.Linear(in_dim, width)
        elif options.residual == "identity" and in_dim == width:
            self.residual = nn.Identity()
        self.norm = make_norm(options.norm, width)
        self.dropout = Dropout(options.dropout)

    def forward(self, x_nF: Tensor, adjacency: Propagation, rows: MaskRows | None = None) -> Tensor:
        h_nD = self.convolution(x_nF, adjacency)
        if self.residual is not None:
            h_nD = h_nD + self.residual(x_nF)
        return self.dropout(torch.relu(self.norm(h_nD)), rows)


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.scale_D = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_D


class LocalLayers(nn.Module):
    """Local layers of a model whose stem makes node states [n, D], with a gate g each where they are joined by one. None with join "serial"."""

    def __init__(self, options: LocalOptions, width: int, num_layers: int) -> None:
        super().__init__()
        count = 0 if options.is_paper else num_layers
        self.layers = nn.ModuleList(LocalLayer(options, width, width) for _ in range(count))
        gates = count if options.join == "gate" else 0
        self.gates = nn.ModuleList(LayerScale(width, options.gate_start) for _ in range(gates))

    def in_front(self, x_nD: Tensor, adjacency: Propagation) -> Tensor:
        """All local layers one after another where the global ones are on top; else x."""
        for layer in () if self.gates else self.layers:
            x_nD = layer(x_nD, adjacency)
        return x_nD
