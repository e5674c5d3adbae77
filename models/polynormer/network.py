"""Implements Polynormer: local attention, then linear global attention, with layers that are polynomials of the features (arXiv:2403.01232).

    x⁰ = Drop(FC(Drop(features)))
    local layer:    y = Drop(ReLU(GAT(x) + FC(x)));  x' = (1 − β) ⊙ LN(ReLU(FC(x)) ⊙ y) + β ⊙ y        x_local = Σ of all x'
    global layer:   q = k = σ(FC(x));  x' = Drop(ReLU(FC(LN(A x) ⊙ (FC(x) + β)))),  A x = Σ_j (q_i·k_j) v_j / Σ_j q_i·k_j;  x = LN(x_local) at first
    Y = FC_local(x_local) for `local_epochs` epochs of training, then FC_global(x)

β is σ of a learned vector per layer, or a constant. Attention's weights are over the nodes of a graph; GAT's self-loop is the one that the released code adds.
Whether the prediction is global is a stored buffer, so an evaluation uses what its weights were trained for. The released code begins the global epochs with the
best weights of the local ones; here training goes on with the last ones.

Shapes: n nodes, D width, H heads of C channels.
"""

import torch
from torch import Tensor, nn

from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.ends.heads import read_out
from graphmill.models.operators.kernel_attention import kernel_sums
from graphmill.models.operators.local_blocks import GATConvolution
from graphmill.models.polynormer.options import PolynormerConfig
from graphmill.models.primitives.batch_norm import LayerNorm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs


class Beta(nn.Module):
    """Is β [D] of one layer."""

    def __init__(self, config: PolynormerConfig, drawn_D: Tensor) -> None:
        super().__init__()
        self.raw_D = nn.Parameter(drawn_D.clone()) if config.beta is None else None
        self.constant = config.beta

    def forward(self) -> Tensor | float:
        if self.raw_D is not None:
            return torch.sigmoid(self.raw_D)
        assert self.constant is not None
        return self.constant


def _betas(config: PolynormerConfig, count: int) -> nn.ModuleList:
    """The layers' β, drawn as one Xavier-normal matrix [layers, D], as released."""
    drawn = nn.init.xavier_normal_(torch.empty(count, config.width)) if count else torch.empty(0, config.width)
    return nn.ModuleList(Beta(config, row_D) for row_D in drawn)


class LocalPolynomial(nn.Module):
    """Is one local layer, [n, D] → [n, D]."""

    def __init__(self, config: PolynormerConfig, beta: nn.Module) -> None:
        super().__init__()
        width = config.width
        self.attention = GATConvolution(width, width, config.num_heads, bias=False)
        self.gate, self.own = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.beta, self.dropout = LayerNorm(width), beta, Dropout(config.dropout)

    def forward(self, x_nD: Tensor, graphs: Graphs) -> Tensor:
        gate_nD = torch.relu(self.gate(x_nD))
        y_nD = self.dropout(torch.relu(self.attention(x_nD, graphs.adjacency) + self.own(x_nD)))
        beta_D = self.beta()
        return (1 - beta_D) * self.norm(gate_nD * y_nD) + beta_D * y_nD


class GlobalPolynomial(nn.Module):
    """Is one layer of global attention, [n, D] → [n, D]."""

    def __init__(self, config: PolynormerConfig, beta: nn.Module, out: nn.Module) -> None:
        """`out`: a linear map that all layers share."""
        super().__init__()
        width, self.num_heads = config.width, config.num_heads
        self.gate, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.beta, self.dropout = LayerNorm(width), beta, Dropout(config.global_dropout)
        self.out = out

    def forward(self, x_nD: Tensor, graphs: Graphs) -> Tensor:
        key_nHC = torch.sigmoid(self.key(x_nD)).unflatten(1, (self.num_heads, -1))
        value_nHC = self.value(x_nD).unflatten(1, (self.num_heads, -1))
        sum_nHC, total_nH = kernel_sums(key_nHC, key_nHC, value_nHC, graphs)
        mixed_nD = (sum_nHC / total_nH.unsqueeze(2)).flatten(1).to(x_nD.dtype)
        x_nD = self.norm(mixed_nD) * (self.gate(x_nD) + self.beta())
        return self.dropout(torch.relu(self.out(x_nD)))


class Polynormer(nn.Module):
    """Applies Polynormer to packed graphs; see the module's docstring."""

    is_global: Tensor

    def __init__(self, config: PolynormerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=True)
        self.encoder = FeatureEncoder(config.node, width)
        self.dropout = Dropout(config.dropout)
        self.local_layers = nn.ModuleList(LocalPolynomial(config, beta) for beta in _betas(config, config.num_layers))
        self.norm, self.out = LayerNorm(width), nn.Linear(width, width)
        self.global_layers = nn.ModuleList(
            GlobalPolynomial(config, beta, self.out) for beta in _betas(config, config.global_layers)
        )
        self.heads = nn.ModuleList(nn.Linear(width, config.out_dim) for _ in range(0 if config.task == "link" else 2))
        self.register_buffer("is_global", torch.tensor(False))
        if not config.global_layers:
            for unused in (self.norm, self.out, *self.heads[1:]):
                unused.requires_grad_(False)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim] (node; without roots all n nodes), [B, out_dim] (graph) or states [n, D] (link)."""
        rows = None if graphs.x is None else self.input(graphs.x)
        x_nD = self.dropout(self.encoder(rows))
        local_nD = torch.zeros_like(x_nD)
        for layer in self.local_layers:
            x_nD = layer(x_nD, graphs)
            local_nD = local_nD + x_nD
        if self.training:  # only the prediction that counts
            is_global = self._is_global_in(epoch)
            self.is_global.fill_(is_global)
            return self._global(local_nD, graphs) if is_global else self._read_out(0, local_nD, graphs)
        local = self._read_out(0, local_nD, graphs)
        return torch.where(self.is_global, self._global(local_nD, graphs), local) if self.global_layers else local

    def parameters_without_gradient(self, epoch: int) -> list[nn.Parameter]:
        """The parameters that the prediction of an epoch of training does not read. They have no gradient then, so weight decay does not shrink them, as in the
        released code."""
        parts = [*self.heads[:1]] if self._is_global_in(epoch) else [*self.heads[1:], self.norm, self.global_layers]
        # `out` is a part of every global layer. Without global layers the parts in their place are frozen.
        return [each for part in parts for each in part.parameters()]

    def _is_global_in(self, epoch: int) -> bool:
        return bool(self.global_layers) and epoch >= self.config.local_epochs

    def _global(self, local_nD: Tensor, graphs: Graphs) -> Tensor:
        x_nD = self.norm(local_nD)
        for layer in self.global_layers:
            x_nD = layer(x_nD, graphs)
        return self._read_out(1, x_nD, graphs)

    def _read_out(self, place: int, x_nD: Tensor, graphs: Graphs) -> Tensor:
        return read_out(x_nD, graphs, self.heads[place] if self.heads else None, self.config.task, self.config.pool)
