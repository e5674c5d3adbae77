"""Implements local blocks: convolutions over a node's in-neighbors, the layer of "Classic GNNs are Strong Baselines" around them, and a gate.

    L(H) = Drop(ReLU(Norm(Conv(H) + Res(H))))              arXiv:2406.08993, equation 5

    LCB        (arXiv:2406.12059)   Conv(H) = [H, ÂH, …, Â^hops H] W + b; in GECO's own layer without W and b
    GraphSAGE  (arXiv:1706.02216)   Conv(H)_i = W h_i + b + W' mean_{j → i} h_j
    GCN        (arXiv:1609.02907)   Conv(H) = D̂^-½ (A + I) D̂^-½ H W + b
    GAT        (arXiv:1710.10903)   Conv(H)_i = ‖_heads Σ_{j → i or j = i} α_ij W h_j + b,   α_ij = softmax_j LeakyReLU(s·W h_j + d·W h_i)
    GATv2      (arXiv:2105.14491)   Conv(H)_i = ‖_heads Σ_{j → i or j = i} α_ij W h_j + b,   α_ij = softmax_j a·LeakyReLU(W h_j + W' h_i)
    GIN        (arXiv:1810.00826)   Conv(H)_i = FC(ReLU(FC(h_i + Σ_{j → i} h_j)))
    APPNP      (arXiv:1810.05997)   Conv(H) = Z_K,   Z_0 = H W + b,   Z_k+1 = (1 − α) D̂^-½ (A + I) D̂^-½ Z_k + α Z_0
    GatedGCN   (arXiv:1711.07553)   Conv(H)_i = A h_i + Σ_{j → i} σ_ij ⊙ B h_j / (Σ_j σ_ij + 10⁻⁶),   σ_ij = sigmoid(D h_i + E h_j)

With features e_ij of the edges (`edge_dim`), each layer has a linear map U of e_ij, without bias:

    GraphSAGE  … + mean_{j → i} ReLU(W' h_j + U e_ij)      like GINE's messages (arXiv:1905.12265)
    GCN        Conv(H)_i = ReLU(W h_i) / d̂_i + Σ_{j → i} ReLU(W h_j + U e_ij) / √(d̂_i d̂_j) + b,   d̂ = in-degree + 1     OGB's for molecules (arXiv:2005.00687)
    GAT        W h_j + U e_ij in place of W h_j in the sum, and + t·U e_ij in the LeakyReLU; U e = 0 in a node's attention to itself
    GATv2      W h_j + U e_ij in place of W h_j in both; U e = 0 in a node's attention to itself
    GIN        … + Σ_{j → i} ReLU(h_j + U e_ij)
    GatedGCN   σ_ij = sigmoid(D h_i + E h_j + U e_ij)

The other blocks propagate only by Â, which reads no features of edges.

In every block an edge of weight w counts as w parallel edges: each sum over j → i has a factor w_ij, and d̂ is 1 + the sum of the in-edges' weights.

The baselines (models/message_passing/network.py) consist only of these layers. A global block is joined by a gate, L(H) + g ⊙ Global(L(H)),
or follows the local layers. Sums run over sorted lists, without atomics.

Shapes: n nodes, E edges, F input channels, P features of an edge, D width, K heads of C = D / K channels.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from graphmill.models.options.features import Normalisation
from graphmill.models.options.local import LocalOptions
from graphmill.models.primitives.batch_norm import AllRows, LayerNorm, RowBatchNorm, normalise
from graphmill.models.primitives.dropout import Dropout, MaskRows
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.propagation import Propagation, power_or_zero
from graphmill.models.primitives.segments import Grouping


class EdgeLists(Propagation, Protocol):
    """Is a propagation that also lists the edges, for blocks that weight each edge."""

    @property
    def by_source(self) -> Grouping: ...

    @property
    def by_destination(self) -> Grouping: ...

    @property
    def edge_feature(self) -> Tensor | None: ...

    @property
    def edge_weight(self) -> Tensor | None: ...


@dataclass(frozen=True)
class EdgeStates:
    """Holds the edges of graphs, or of a worker's rows of one graph, with a model's edge states [E, P] in the order of `edge_index`."""

    graphs: Graphs
    edge_feature: Tensor | None

    @property
    def num_nodes(self) -> int:
        return self.graphs.num_nodes

    @property
    def all_rows(self) -> AllRows | None:
        return self.graphs.adjacency.all_rows

    @property
    def by_source(self) -> Grouping:
        return self.graphs.by_source

    @property
    def by_destination(self) -> Grouping:
        return self.graphs.by_destination

    @property
    def edge_weight(self) -> Tensor | None:
        return self.graphs.edge_coefficient

    def propagate(self, x_nD: Tensor, normalisation: Normalisation = "mean") -> Tensor:
        """Propagates without the edge states."""
        return self.graphs.adjacency.propagate(x_nD, normalisation)


class EdgeMap(nn.Module):
    """Computes U e of the adjacency's edges, [E, D]."""

    def __init__(self, edge_dim: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(edge_dim, width, bias=False)

    def forward(self, adjacency: EdgeLists) -> Tensor:
        """Raises ValueError if the edges have no features of the expected width."""
        e_EP = adjacency.edge_feature
        if e_EP is None or e_EP.shape[1] != self.linear.in_features:
            got = "none" if e_EP is None else e_EP.shape[1]
            raise ValueError(f"features of edges must have {self.linear.in_features} columns, got {got}; set edge_dim")
        return self.linear(e_EP.to(self.linear.weight.dtype))


def make_edge_map(edge_dim: int, width: int) -> EdgeMap | None:
    """Returns None if edges have no features."""
    return EdgeMap(edge_dim, width) if edge_dim else None


class LocalBlock(nn.Module):
    """Is the LCB: [X, ÂX] (or [X, ÂX, …, Â^hops X]). It has no parameters and is equivariant to a renumbering of the nodes."""

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

    def __init__(self, in_dim: int, width: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, width)
        self.neighbors = nn.Linear(in_dim, width, bias=False)
        self.edge = make_edge_map(edge_dim, width)

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        h_nD = self.neighbors(x_nF)
        if self.edge is None:
            return self.own(x_nF) + adjacency.propagate(h_nD, "mean")
        message_ED = torch.relu(adjacency.by_source.spread(h_nD) + self.edge(adjacency))
        if adjacency.edge_weight is None:
            return self.own(x_nF) + adjacency.by_destination.mean(message_ED)
        total_nD = adjacency.by_destination.sum(times(message_ED, adjacency.edge_weight))
        return self.own(x_nF) + total_nD * power_or_zero(_weighted_degree(adjacency), -1.0).to(total_nD.dtype)


class GCNConvolution(nn.Module):
    """[n, F] → [n, D]; the self-loop is added here."""

    def __init__(self, in_dim: int, width: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        self.edge = make_edge_map(edge_dim, width)

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        h_nD = self.linear(x_nF)
        if self.edge is None:
            return adjacency.propagate(h_nD, "gcn") + self.bias
        by_destination = adjacency.by_destination
        weight_E = adjacency.edge_weight
        degree_n1 = by_destination.size_S.unsqueeze(1) if weight_E is None else _weighted_degree(adjacency)
        factor_n1 = (degree_n1 + 1).to(h_nD.dtype).rsqrt()
        h_ED, factor_E1 = adjacency.by_source.spread(torch.cat([h_nD, factor_n1], dim=1)).tensor_split([-1], dim=1)
        total_nD = by_destination.sum(times(torch.relu(h_ED + self.edge(adjacency)) * factor_E1, weight_E))
        return factor_n1 * (total_nD + factor_n1 * torch.relu(h_nD)) + self.bias


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

    kept_weights: list[Tensor] | None = None  # each call appends its α [1, K, n, n]; None: α is not kept

    def __init__(self, in_dim: int, width: int, num_heads: int, edge_dim: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.edge = make_edge_map(edge_dim, width)
        self.of_edge = nn.Parameter(torch.empty(num_heads, width // num_heads)) if edge_dim else None
        self.linear = nn.Linear(in_dim, width, bias=False)
        self.source = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.destination = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        for weight in (self.linear.weight, self.source, self.destination):
            nn.init.xavier_uniform_(weight)
        if self.of_edge is not None:
            nn.init.xavier_uniform_(self.of_edge)

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        h_nKC = self.linear(x_nF).unflatten(1, (self.num_heads, -1))
        from_nK, to_nK = (h_nKC * self.source).sum(-1), (h_nKC * self.destination).sum(-1)
        by_source, by_destination = adjacency.by_source, adjacency.by_destination
        logit_EK = by_source.spread(from_nK) + by_destination.spread(to_nK)
        if self.edge is not None:
            e_EKC = self.edge(adjacency).unflatten(1, (self.num_heads, -1))
            logit_EK = logit_EK + (e_EKC * self.of_edge).sum(-1)
        logit_EK = nn.functional.leaky_relu(logit_EK, 0.2)
        if adjacency.edge_weight is not None:
            logit_EK = logit_EK + adjacency.edge_weight.log().to(logit_EK.dtype).unsqueeze(1)
        own_nK = nn.functional.leaky_relu(from_nK + to_nK, 0.2)
        # The largest logit of each node is subtracted: this changes no attention weight, and no exponential overflows.
        index_EK = by_destination.group_E.unsqueeze(1).expand_as(logit_EK)
        largest_nK = own_nK.detach().scatter_reduce(0, index_EK, logit_EK.detach(), "amax")
        weight_EK = (logit_EK - by_destination.spread(largest_nK)).exp()
        own_nK = (own_nK - largest_nK).exp()
        total_nKC = by_source.carry(h_nKC, weight_EK, by_destination) + own_nK.unsqueeze(2) * h_nKC
        if self.edge is not None:
            total_nKC = total_nKC + by_destination.sum(weight_EK.unsqueeze(2) * e_EKC)
        sum_nK = by_destination.sum(weight_EK) + own_nK
        if self.kept_weights is not None:
            pair_nnK = torch.diag_embed(own_nK.t()).permute(1, 2, 0).contiguous()
            places = by_destination.group_E, by_source.group_E
            pair_nnK.index_put_(places, weight_EK.to(pair_nnK.dtype), accumulate=True)
            self.kept_weights.append((pair_nnK / sum_nK.unsqueeze(1)).permute(2, 0, 1).unsqueeze(0))
        out_nD = (total_nKC / sum_nK.unsqueeze(2)).flatten(1)
        return out_nD if self.bias is None else out_nD + self.bias


class GATv2Convolution(nn.Module):
    """[n, F] → [n, D]; every node also attends to itself."""

    def __init__(self, in_dim: int, width: int, num_heads: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.edge = make_edge_map(edge_dim, width)
        self.source, self.destination = nn.Linear(in_dim, width), nn.Linear(in_dim, width)
        self.score = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_heads, width // num_heads)))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        by_source, by_destination = adjacency.by_source, adjacency.by_destination
        source_nKC, destination_nKC = (
            each(x_nF).unflatten(1, (self.num_heads, -1)) for each in (self.source, self.destination)
        )
        value_EKC = by_source.spread(source_nKC)
        if self.edge is not None:
            value_EKC = value_EKC + self.edge(adjacency).unflatten(1, (self.num_heads, -1))
        logit_EK = self._logit(value_EKC + by_destination.spread(destination_nKC))
        if adjacency.edge_weight is not None:
            logit_EK = logit_EK + adjacency.edge_weight.log().to(logit_EK.dtype).unsqueeze(1)
        own_nK = self._logit(source_nKC + destination_nKC)
        # The largest logit of each node is subtracted: this changes no attention weight, and no exponential overflows.
        index_EK = by_destination.group_E.unsqueeze(1).expand_as(logit_EK)
        largest_nK = own_nK.detach().scatter_reduce(0, index_EK, logit_EK.detach(), "amax")
        weight_EK = (logit_EK - by_destination.spread(largest_nK)).exp()
        own_nK = (own_nK - largest_nK).exp()
        total_nKC = by_destination.sum(weight_EK.unsqueeze(2) * value_EKC) + own_nK.unsqueeze(2) * source_nKC
        return (total_nKC / (by_destination.sum(weight_EK) + own_nK).unsqueeze(2)).flatten(1) + self.bias

    def _logit(self, sum_KC: Tensor) -> Tensor:
        return (nn.functional.leaky_relu(sum_KC, 0.2) * self.score).sum(-1)


class GINConvolution(nn.Module):
    """[n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.edge = make_edge_map(edge_dim, in_dim)
        self.mlp = nn.Sequential(nn.Linear(in_dim, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        if self.edge is None:
            return self.mlp(x_nF + adjacency.propagate(x_nF, "sum"))
        message_EF = torch.relu(adjacency.by_source.spread(x_nF) + self.edge(adjacency))
        return self.mlp(x_nF + adjacency.by_destination.sum(times(message_EF, adjacency.edge_weight)))


class GatedConvolution(nn.Module):
    """GatedGCN without edge states, [n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int, edge_dim: int = 0) -> None:
        super().__init__()
        self.edge = make_edge_map(edge_dim, width)
        self.width = width
        self.node = nn.Linear(in_dim, 4 * width)  # A, D read the destination; B, E read the source

    def forward(self, x_nF: Tensor, adjacency: EdgeLists) -> Tensor:
        own_nD, to_nD, from_n2D = self.node(x_nF).split([self.width, self.width, 2 * self.width], dim=1)
        message_ED, at_source_ED = adjacency.by_source.spread(from_n2D).chunk(2, dim=1)
        gate_ED = adjacency.by_destination.spread(to_nD) + at_source_ED
        sigma_ED = torch.sigmoid(gate_ED if self.edge is None else gate_ED + self.edge(adjacency))
        return own_nD + gated_mean(times(sigma_ED, adjacency.edge_weight), message_ED, adjacency.by_destination)


def times(x_ED: Tensor, weight_E: Tensor | None) -> Tensor:
    """Multiplies each edge's row by the edge's weight; None: edges have no weights."""
    return x_ED if weight_E is None else x_ED * weight_E.to(x_ED.dtype).unsqueeze(1)


def _weighted_degree(adjacency: EdgeLists) -> Tensor:
    """[n, 1]: the sum of the in-edges' weights."""
    assert adjacency.edge_weight is not None
    return adjacency.by_destination.sum(adjacency.edge_weight.unsqueeze(1))


def gated_mean(sigma_ED: Tensor, message_ED: Tensor, by_destination: Grouping) -> Tensor:
    """Σ_j σ_ij ⊙ m_ij / (Σ_j σ_ij + 10⁻⁶) over the edges j → i, [n, D]."""
    return by_destination.sum(sigma_ED * message_ED) / (by_destination.sum(sigma_ED) + 1e-6)


def make_convolution(
    options: LocalOptions,
    in_dim: int,
    width: int,
    propagation: Normalisation = "mean",
    hops: int = 1,
    edge_dim: int = 0,
) -> nn.Module:
    """Makes Conv, [n, F] → [n, D]. Only the LCB uses `propagation` and `hops`. `edge_dim` is P, for blocks that read features of edges."""
    if options.block == "lcb":
        return HopConvolution(in_dim, width, propagation, hops)
    if options.block == "gat":
        return GATConvolution(in_dim, width, options.num_heads, edge_dim)
    if options.block == "appnp":
        return PageRankConvolution(in_dim, width, options.steps, options.restart)
    if options.block == "gatv2":
        return GATv2Convolution(in_dim, width, options.num_heads, edge_dim)
    kinds = {"gin": GINConvolution, "sage": SAGEConvolution, "gcn": GCNConvolution, "gated-gcn": GatedConvolution}
    return kinds[options.block](in_dim, width, edge_dim)


def make_norm(name: str, width: int) -> nn.Module:
    """Makes a norm of rows [n, width]: "batch", "layer" or "none"."""
    if name == "batch":
        return RowBatchNorm(width)
    return LayerNorm(width) if name == "layer" else nn.Identity()


class LocalLayer(nn.Module):
    """Is L(H) of the module's docstring, [n, F] → [n, D]."""

    def __init__(
        self,
        options: LocalOptions,
        in_dim: int,
        width: int,
        propagation: Normalisation = "mean",
        hops: int = 1,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.convolution = make_convolution(options, in_dim, width, propagation, hops, edge_dim)
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
        return self.dropout(torch.relu(normalise(self.norm, h_nD, adjacency.all_rows)), rows)


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.scale_D = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_D


class LocalLayers(nn.Module):
    """Holds the local layers of a model with a stem that makes node states [n, D]. With join "gate" each layer has a gate g. With "serial" there are no local
    layers.
    """

    def __init__(self, options: LocalOptions, width: int, num_layers: int, edge_dim: int = 0) -> None:
        super().__init__()
        count = 0 if options.is_paper else num_layers
        self.layers = nn.ModuleList(LocalLayer(options, width, width, edge_dim=edge_dim) for _ in range(count))
        gates = count if options.join == "gate" else 0
        self.gates = nn.ModuleList(LayerScale(width, options.gate_start) for _ in range(gates))

    def in_front(self, x_nD: Tensor, adjacency: Propagation) -> Tensor:
        """Returns x after all local layers if global layers follow the local ones; else returns x itself."""
        for layer in () if self.gates else self.layers:
            x_nD = layer(x_nD, adjacency)
        return x_nD
