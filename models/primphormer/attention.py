"""Implements Primphormer's attention: the primal form of an asymmetric kernel SVD, without scores for pairs of nodes.

With φ_q(x) = W_q x / |W_q x|₂ and φ_k alike (Primphormer, ICML 2025, columns are nodes):

    f_X = F + V X̄ 1ᵀ  ∈ R^{s×N_s}          the virtual node of the graph, shared by the heads
    e   = f_X W_e φ_q(x),  r = f_X W_r φ_k(x)     W_e, W_r ∈ R^{N_s×p} per head
    o   = W_c [e; r]                              per head 2s → D/H
    J   = ½ Σ_i e_iᵀ Λ e_i + ½ Σ_j r_jᵀ Λ r_j − Tr(W_eᵀ W_r)

The training objective adds η Σ_l J_l². f_X differs from F by a rank-one term, so no tensor with f_X for every node
is formed: e = (F W_e) φ_q + (V X̄) (1ᵀ W_e φ_q), O(N p s) time and O(N s) memory on packed rows.

By default X̄ is the mean over the graph's nodes, J's terms are means over nodes and heads, and Λ is a square, as in the appendix's
pseudo-code. The pseudo-code takes J's means over all nodes of a batch (`score_terms="batch"`), not per graph. `pool="sum"`,
`score_terms="sum"` and `multiplier="plain"` give the paper's equations. A sum in J only rescales Λ by N. A sum in X̄ grows with the graph, so
the model would differ between a chunk of a graph and the whole graph. `virtual_nodes="running"` is the pseudo-code's f_X^l = f_X^{l-1} + V X̄;
"per_layer" is the equations' F in each layer. `heads="shared"` is the pseudo-code's choice: one W_c for all heads, and one Λ per head.

Shapes: n nodes of B graphs, D width, H heads, p = D / H, S = s scores per head and direction, M = N_s.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.options import PrimalOptions


class VirtualNode(NamedTuple):
    """Holds f_X of every graph of a batch: F + v 1ᵀ. As a running state it is passed from layer to layer."""

    common_SM: Tensor  # F
    shift_BS: Tensor  # v = V X̄


class Primal(NamedTuple):
    """Holds the result of one attention."""

    x_nD: Tensor
    loss: Tensor  # J, a scalar: the mean over the batch's graphs
    virtual: VirtualNode


class PrimalAttention(nn.Module):
    """Is Primphormer's attention over all nodes of each graph; see the module's docstring for the equations."""

    def __init__(self, width: int, num_heads: int, options: PrimalOptions, first: bool = True) -> None:
        """`first`: this is the first layer, which owns F if virtual nodes are a running state."""
        super().__init__()
        self.options, self.num_heads, self.head_width = options, num_heads, width // num_heads
        virtual, scores = options.num_virtual, options.scores
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        shared = options.heads == "shared"
        self.weight_e_HMP = nn.Parameter(_orthogonal(num_heads, virtual, self.head_width, together=shared))
        self.weight_r_HMP = nn.Parameter(_orthogonal(num_heads, virtual, self.head_width, together=shared))
        # Initial values are U(0, 1), as published. The shape is [H, S] if each head has its own Λ
        self.multiplier_S = nn.Parameter(torch.rand(num_heads, scores) if shared else torch.rand(scores))
        # The paper does not specify F's initial value; orthogonal rows give every score the same scale at the start.
        owns_common = first or options.virtual_nodes != "running"
        self.common_SM = nn.Parameter(nn.init.orthogonal_(torch.empty(scores, virtual))) if owns_common else None
        self.shift = nn.Linear(width, scores, bias=shared) if options.virtual_nodes != "none" else None
        self.out_weight_HPT = nn.Parameter(torch.empty(1 if shared else num_heads, self.head_width, 2 * scores))
        self.out_bias = nn.Parameter(torch.zeros(self.head_width if shared else width))
        bound = (2 * scores) ** -0.5
        nn.init.uniform_(self.out_weight_HPT, -bound, bound)
        self.dropout = Dropout(options.dropout)

    def forward(self, x_nD: Tensor, graphs: Graphs, virtual: VirtualNode | None = None) -> Primal:
        """Returns [n, D], J and f_X; `virtual` is the previous layer's f_X and is read only if f_X is a running state."""
        virtual = self.virtual_node(x_nD, graphs, virtual)
        # Unit vectors and J need float32 under autocast; the linear maps around them do not.
        query_nHP, key_nHP = (unit(f(x_nD).unflatten(1, (self.num_heads, -1))) for f in (self.query, self.key))
        with torch.autocast(x_nD.device.type, enabled=False):
            virtual = VirtualNode(virtual.common_SM, virtual.shift_BS.to(query_nHP.dtype))
            e_nHS = primal_scores(query_nHP, self.weight_e_HMP, virtual, graphs)
            r_nHS = primal_scores(key_nHP, self.weight_r_HMP, virtual, graphs)
            loss = self.ksvd_loss(e_nHS, r_nHS, graphs)
        scores_nHT = self.dropout(torch.cat([e_nHS, r_nHS], dim=2))
        weight_HPT = self.out_weight_HPT.to(x_nD.dtype).expand(self.num_heads, -1, -1)
        out_nHP = torch.einsum("nht,hpt->nhp", scores_nHT.to(x_nD.dtype), weight_HPT)
        bias_HP = self.out_bias.to(x_nD.dtype).view(-1, self.head_width)
        return Primal((out_nHP + bias_HP).flatten(1), loss, virtual)

    def virtual_node(self, x_nD: Tensor, graphs: Graphs, previous: VirtualNode | None = None) -> VirtualNode:
        """Returns f_X of every graph; the order of a graph's nodes does not change f_X."""
        running = self.options.virtual_nodes == "running"
        common_SM = self.common_SM if previous is None or not running else previous.common_SM
        assert common_SM is not None
        if self.shift is None:
            return VirtualNode(common_SM, x_nD.new_zeros(graphs.num_graphs, self.options.scores))
        wide_nD = x_nD.to(common_SM.dtype)
        pooled_BD = graphs.by_graph.mean(wide_nD) if self.options.pool == "mean" else graphs.by_graph.sum(wide_nD)
        shift_BS = self.shift(pooled_BD)
        if running and previous is not None:
            shift_BS = previous.shift_BS + shift_BS
        return VirtualNode(common_SM, shift_BS)

    def multiplier(self) -> Tensor:
        """[S], or [H, S] if each head has its own Λ: the diagonal of the effective Λ."""
        if self.options.multiplier == "square":
            return self.multiplier_S.square()
        return nn.functional.softplus(self.multiplier_S) if self.options.multiplier == "softplus" else self.multiplier_S

    def ksvd_loss(self, e_nHS: Tensor, r_nHS: Tensor, graphs: Graphs) -> Tensor:
        """Returns J, a scalar: reduced per graph over nodes and heads, then averaged over the graphs that have nodes; "batch": over all nodes and heads."""
        energy_nH = 0.5 * ((e_nHS.square() + r_nHS.square()) * self.multiplier()).sum(2)
        trace_H = (self.weight_e_HMP * self.weight_r_HMP).sum((1, 2))
        if self.options.score_terms == "sum":
            energy_B, trace = graphs.by_graph.sum(energy_nH.sum(1)), trace_H.sum()
        else:
            over_nodes = graphs.by_graph.sum if self.options.score_terms == "batch" else graphs.by_graph.mean
            energy_B, trace = over_nodes(energy_nH.mean(1)), trace_H.mean()
        if self.options.score_terms == "batch":
            return energy_B.sum() / graphs.size_B.sum().clamp_min(1) - trace
        num_graphs = (graphs.size_B > 0).sum().clamp_min(1)
        return energy_B.sum() / num_graphs - trace


def unit(x: Tensor) -> Tensor:
    """x / |x|₂ over the last axis, in at least float32; a zero row stays zero and takes a zero gradient."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    square = x.square().sum(-1, keepdim=True)
    positive = square > torch.finfo(x.dtype).tiny
    return torch.where(positive, torch.where(positive, square, 1.0).rsqrt(), 0.0) * x


def primal_scores(phi_nHP: Tensor, weight_HMP: Tensor, virtual: VirtualNode, graphs: Graphs) -> Tensor:
    """Returns f_X W φ for every node, [n, H, S], with the f_X of the node's graph; O(n D s)."""
    common_HSP = torch.einsum("sm,hmp->hsp", virtual.common_SM, weight_HMP)
    total_H1P = weight_HMP.sum(1, keepdim=True)  # 1ᵀ W
    mixed_nHT = torch.einsum("nhp,htp->nht", phi_nHP, torch.cat([common_HSP, total_H1P], dim=1))
    shift_n1S = graphs.by_graph.spread(virtual.shift_BS).unsqueeze(1)
    return mixed_nHT[..., :-1] + mixed_nHT[..., -1:] * shift_n1S


def _orthogonal(num_heads: int, rows: int, columns: int, together: bool) -> Tensor:
    """Returns [H, rows, columns]: an orthogonal matrix for each head, or with `together` one orthogonal matrix that is cut into heads."""
    if together:
        whole = nn.init.orthogonal_(torch.empty(rows, num_heads * columns))
        return whole.view(rows, num_heads, columns).transpose(0, 1).contiguous()
    return torch.stack([nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(num_heads)])
