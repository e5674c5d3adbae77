"""GraphSAGE, GCN and GAT with the recipe of "Classic GNNs are Strong Baselines" (arXiv:2406.08993, equation 5): residual, norm, dropout.

    H ← Drop(ReLU(Norm(Conv(H) + Res(H))))     L times, H = Drop(X) at first
    Y = Linear(H) at the roots

    GraphSAGE (arXiv:1706.02216)   Conv(H)_i = W h_i + b + W' mean_{j → i} h_j
    GCN       (arXiv:1609.02907)   Conv(H) = D̂^-½ (A + I) D̂^-½ H W + b
    GAT       (arXiv:1710.10903)   Conv(H)_i = ‖_heads Σ_{j → i or j = i} α_ij W h_j + b,   α_ij = softmax_j LeakyReLU(s·W h_j + d·W h_i)

Sums run over sorted lists, without atomics (models/segments.py).

Shapes: n nodes, E edges, D width, K heads of C = D / K channels.
"""

import torch
from torch import Tensor, nn

from models.dropout import Dropout
from models.gated_gcn import GCN
from models.gps import make_norm
from models.graphs import Graphs
from models.options.message_passing import GATConfig, MessagePassingConfig


class SAGEConvolution(nn.Module):
    """[n, in] → [n, D]."""

    def __init__(self, in_dim: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, width)
        self.neighbors = nn.Linear(in_dim, width, bias=False)

    def forward(self, x_nF: Tensor, graphs: Graphs) -> Tensor:
        return self.own(x_nF) + graphs.adjacency.propagate(self.neighbors(x_nF), "mean")


class GCNConvolution(nn.Module):
    """[n, in] → [n, D]."""

    def __init__(self, in_dim: int, width: int) -> None:
        super().__init__()
        self.gcn = GCN(width, in_dim)

    def forward(self, x_nF: Tensor, graphs: Graphs) -> Tensor:
        return self.gcn(x_nF, None, graphs)[0]


class GATConvolution(nn.Module):
    """[n, in] → [n, D]; every node also attends to itself."""

    def __init__(self, in_dim: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linear = nn.Linear(in_dim, width, bias=False)
        self.source = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.destination = nn.Parameter(torch.empty(num_heads, width // num_heads))
        self.bias = nn.Parameter(torch.zeros(width))
        for weight in (self.linear.weight, self.source, self.destination):
            nn.init.xavier_uniform_(weight)

    def forward(self, x_nF: Tensor, graphs: Graphs) -> Tensor:
        h_nKC = self.linear(x_nF).unflatten(1, (self.num_heads, -1))
        from_nK, to_nK = (h_nKC * self.source).sum(-1), (h_nKC * self.destination).sum(-1)
        by_source, by_destination = graphs.by_source, graphs.by_destination
        logit_EK = nn.functional.leaky_relu(by_source.spread(from_nK) + by_destination.spread(to_nK), 0.2)
        own_nK = nn.functional.leaky_relu(from_nK + to_nK, 0.2)
        # The largest logit of each node: subtracted, it changes no weight, and no exponential overflows.
        index_EK = graphs.edge_index[1].unsqueeze(1).expand_as(logit_EK)
        largest_nK = own_nK.detach().scatter_reduce(0, index_EK, logit_EK.detach(), "amax")
        weight_EK = (logit_EK - by_destination.spread(largest_nK)).exp()
        own_nK = (own_nK - largest_nK).exp()
        total_nKC = by_destination.sum(weight_EK.unsqueeze(2) * by_source.spread(h_nKC)) + own_nK.unsqueeze(2) * h_nKC
        return (total_nKC / (by_destination.sum(weight_EK) + own_nK).unsqueeze(2)).flatten(1) + self.bias


class Layer(nn.Module):
    """ReLU(Norm(Conv(H) + Res(H))), [n, in] → [n, D]."""

    def __init__(self, config: MessagePassingConfig, in_dim: int) -> None:
        super().__init__()
        self.convolution = _convolution(config, in_dim)
        self.residual: nn.Module | None = None
        if config.residual == "linear":
            self.residual = nn.Linear(in_dim, config.width)
        elif config.residual == "identity" and in_dim == config.width:
            self.residual = nn.Identity()
        self.norm = make_norm(config.norm, config.width)

    def forward(self, x_nF: Tensor, graphs: Graphs) -> Tensor:
        h_nD = self.convolution(x_nF, graphs)
        if self.residual is not None:
            h_nD = h_nD + self.residual(x_nF)
        return torch.relu(self.norm(h_nD))


def _convolution(config: MessagePassingConfig, in_dim: int) -> nn.Module:
    if isinstance(config, GATConfig):
        return GATConvolution(in_dim, config.width, config.num_heads)
    return {"sage": SAGEConvolution, "gcn": GCNConvolution}[config.convolution](in_dim, config.width)


class MessagePassing(nn.Module):
    """GraphSAGE, GCN or GAT over packed graphs; see the module's docstring."""

    def __init__(self, config: MessagePassingConfig) -> None:
        super().__init__()
        self.config = config
        in_dims = [config.in_dim, *[config.width] * (config.num_layers - 1)]
        self.layers = nn.ModuleList(Layer(config, in_dim) for in_dim in in_dims)
        self.dropout, self.input_dropout = Dropout(config.dropout), Dropout(config.input_dropout)
        self.head = nn.Linear(config.width, config.out_dim)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim], the predictions of the roots (of all n nodes without roots). Raises ValueError for other features."""
        if graphs.x is None or graphs.x.shape[1] != self.config.in_dim:
            got = "none" if graphs.x is None else graphs.x.shape[1]
            raise ValueError(f"features must have {self.config.in_dim} columns, got {got}; set in_dim")
        x_nD = self.input_dropout(graphs.x.to(self.head.weight.dtype))
        for layer in self.layers:
            x_nD = self.dropout(layer(x_nD, graphs))
        return self.head(x_nD if graphs.root_index is None else x_nD[graphs.root_index])
