"""Implements SGFormer: one layer of linear global attention beside a GCN (arXiv:2306.10759).

    attention:  x⁰ = Drop(ReLU(LN(FC(features))))
                q = FC(x) / |Q|_F,  k = FC(x) / |K|_F,  v = FC(x);   A x = (N v_i + Σ_j (q_i·k_j) v_j) / (N + Σ_j q_i·k_j), the heads' mean
                x' = Drop(LN((A x + x) / 2))
    GCN:        h⁰ = Drop(ReLU(BN(FC(features))));  h' = Drop(ReLU(BN(FC(Â h)))) + h⁰,  Â = D̂^-½ (A + I) D̂^-½;  with `initial` FC reads [Â h, h⁰]
    Y = FC(g h + (1 − g) x)

|Q|_F is the norm of the whole matrix of a graph's queries, and N its number of nodes. The residual of every GCN layer is h⁰, as released.

Shapes: n nodes, D width, H heads.
"""

import torch
from torch import Tensor, nn

from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.ends.heads import read_out
from graphmill.models.operators.kernel_attention import kernel_sums
from graphmill.models.primitives.batch_norm import LayerNorm, RowBatchNorm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.sgformer.options import SGFormerConfig


class GlobalAttention(nn.Module):
    """Is A x, [n, D] → [n, D]."""

    def __init__(self, config: SGFormerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.query, self.key, self.value = (nn.Linear(config.width, config.num_heads * config.width) for _ in range(3))

    def forward(self, x_nD: Tensor, graphs: Graphs) -> Tensor:
        q_nHD, k_nHD, v_nHD = (
            each(x_nD).unflatten(1, (self.num_heads, -1)) for each in (self.query, self.key, self.value)
        )
        sum_nHD, total_nH = kernel_sums(_scaled(q_nHD, graphs), _scaled(k_nHD, graphs), v_nHD, graphs)
        nodes_n11 = graphs.size_B[graphs.graph_of_node].to(sum_nHD.dtype).view(-1, 1, 1)
        mixed_nHD = (sum_nHD + nodes_n11 * v_nHD) / (total_nH.unsqueeze(2) + nodes_n11)
        return mixed_nHD.mean(1).to(x_nD.dtype)


def _scaled(rows_nHD: Tensor, graphs: Graphs) -> Tensor:
    """Divides the rows by the norm of all rows of their graph."""
    wide_nHD = rows_nHD.to(torch.promote_types(rows_nHD.dtype, torch.float32))
    square_B1 = graphs.by_graph.sum(wide_nHD.square().sum((1, 2)).unsqueeze(1))
    return wide_nHD * graphs.by_graph.spread(square_B1.clamp_min(torch.finfo(wide_nHD.dtype).tiny).rsqrt()).unsqueeze(2)


class SGFormer(nn.Module):
    """Applies SGFormer to packed graphs; see the module's docstring."""

    def __init__(self, config: SGFormerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.input = NodeInput(0.0, config.scale_rows, linear=True)
        self.attention_encoder, self.graph_encoder = (FeatureEncoder(config.node, width) for _ in range(2))
        self.attentions = nn.ModuleList(GlobalAttention(config) for _ in range(config.attention_layers))
        self.layer_norms = nn.ModuleList(LayerNorm(width) for _ in range(config.attention_layers + 1))
        self.linears = nn.ModuleList(nn.Linear((1 + config.initial) * width, width) for _ in range(config.num_layers))
        self.batch_norms = nn.ModuleList(RowBatchNorm(width) for _ in range(config.num_layers + 1))
        self.dropout, self.attention_dropout = Dropout(config.dropout), Dropout(config.attention_dropout)
        self.head = None if config.task == "link" else nn.Linear(width, config.out_dim)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim] (node; without roots all n nodes), [B, out_dim] (graph) or states [n, D] (link). `epoch` is not used."""
        rows = None if graphs.x is None else self.input(graphs.x)
        g = self.config.graph_weight
        x_nD = g * self._convolved(rows, graphs) + (1 - g) * self._attended(rows, graphs)
        return read_out(x_nD, graphs, self.head, self.config.task, self.config.pool)

    def _attended(self, rows: Tensor | None, graphs: Graphs) -> Tensor:
        x_nD = self._active(self.layer_norms[0](self.attention_encoder(rows)), self.attention_dropout)
        for attention, norm in zip(self.attentions, self.layer_norms[1:], strict=True):
            x_nD = self.attention_dropout(norm((attention(x_nD, graphs) + x_nD) / 2))
        return x_nD

    def _convolved(self, rows: Tensor | None, graphs: Graphs) -> Tensor:
        first_nD = h_nD = self._active(self.batch_norms[0](self.graph_encoder(rows)), self.dropout)
        for linear, norm in zip(self.linears, self.batch_norms[1:], strict=True):
            h_nD = graphs.adjacency.propagate(h_nD, "gcn")
            h_nD = linear(torch.cat([h_nD, first_nD], 1) if self.config.initial else h_nD)
            h_nD = self._active(norm(h_nD), self.dropout) + first_nD
        return h_nD

    @staticmethod
    def _active(x_nD: Tensor, dropout: nn.Module) -> Tensor:
        return dropout(torch.relu(x_nD))
