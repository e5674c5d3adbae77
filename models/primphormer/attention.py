"""Implements Primphormer's attention: the primal form of an asymmetric kernel SVD, without scores for pairs of nodes.

With φ_q(x) = W_q x / |W_q x|₂ and φ_k alike (Primphormer, ICML 2025, columns are nodes):

    f_X = F + V X̄ 1ᵀ  ∈ R^{s×N_s}          the virtual node of the graph, shared by the heads
    e   = f_X W_e φ_q(x),  r = f_X W_r φ_k(x)     W_e, W_r ∈ R^{N_s×p} per head
    o   = W_c [e; r]                              per head 2s → D/H
    J   = ½ Σ_i e_iᵀ Λ e_i + ½ Σ_j r_jᵀ Λ r_j − Tr(W_eᵀ W_r)

The training objective adds η Σ_l J_l². f_X differs from F by a rank-one term, so no tensor with f_X for every node
is formed: e = (F W_e) φ_q + (V X̄) (1ᵀ W_e φ_q), O(N p s) time and O(N s) memory on packed rows. Two forms need less (docs/decisions/0112): one graph
with p ≤ s and no dropout needs no scores, and on a GPU the scores of a large graph exist for one tile of rows at a time.

By default X̄ is the mean over the graph's nodes, J's terms are means over nodes and heads, and Λ is a square, as in the appendix's
pseudo-code. The pseudo-code takes J's means over all nodes of a batch (`score_terms="batch"`), not per graph. `pool="sum"`,
`score_terms="sum"` and `multiplier="plain"` give the paper's equations. A sum in J only rescales Λ by N. A sum in X̄ grows with the graph, so
the model would differ between a chunk of a graph and the whole graph. `virtual_nodes="running"` is the pseudo-code's f_X^l = f_X^{l-1} + V X̄;
"per_layer" is the equations' F in each layer. `heads="shared"` is the pseudo-code's choice: one W_c for all heads, and one Λ per head.

Shapes: n nodes of B graphs, D width, H heads, p = D / H, S = s scores per head and direction, M = N_s.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphmill.models.operators.favor import recomputed
from graphmill.models.primitives.dropout import dropout_factors
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.random_numbers import draw_key
from graphmill.models.primitives.segments import Grouping
from graphmill.models.primphormer.options import PrimalOptions

# On a GPU: rows whose scores exist at once, since the backward pass computes each tile of rows again; rows of a block of `per_head`. On a CPU, computing
# the scores again took 1.5 times the time.
_TILE_ROWS = {"cuda": 1 << 17}
_BLOCK_ROWS = {"cuda": 1 << 10}


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

    def forward(self, x_nD: Tensor, graphs: Graphs, virtual: VirtualNode | None = None) -> Primal:
        """Returns [n, D], J and f_X; `virtual` is the previous layer's f_X and is read only if f_X is a running state."""
        virtual = self.virtual_node(x_nD, graphs, virtual)
        wide = torch.promote_types(x_nD.dtype, torch.float32)
        virtual = VirtualNode(virtual.common_SM, virtual.shift_BS.to(wide))
        drop_key = draw_key() if self.training and self.options.dropout else None
        # One graph has one matrix per head for all nodes. A product with it needs no scores, which pays if the matrix is not larger.
        if graphs.num_graphs == 1 and drop_key is None and self.head_width <= self.options.scores:
            tile: Callable[..., tuple[Tensor, Tensor]] = partial(self._read_folded, self._fold(virtual))
        else:
            tile = partial(self._read_scores, virtual, drop_key)
        size = _TILE_ROWS.get(x_nD.device.type, max(len(x_nD), 1))
        if len(x_nD) <= size:
            out_nD, energy_nH = tile(x_nD, graphs.by_graph, 0)
        else:
            graph_n = graphs.graph_of_node if graphs.num_graphs > 1 else torch.zeros_like(x_nD[:, 0], dtype=torch.int64)
            bounds = torch.arange(graphs.num_graphs + 1, device=x_nD.device)
            parts = [
                recomputed(tile, x_tD, Grouping(graph_t, graphs.num_graphs, torch.searchsorted(graph_t, bounds)), first)
                for first, x_tD, graph_t in zip(
                    range(0, len(x_nD), size), x_nD.split(size), graph_n.split(size), strict=True
                )
            ]
            out_nD, energy_nH = (torch.cat(column) for column in zip(*parts, strict=True))
        return Primal(out_nD, self.ksvd_loss(energy_nH, graphs), virtual)

    def _units(self, x_tD: Tensor) -> tuple[Tensor, Tensor]:
        """Returns φ_q and φ_k, [t, H, P] each."""
        query_tHP, key_tHP = (unit(f(x_tD).unflatten(1, (self.num_heads, -1))) for f in (self.query, self.key))
        return query_tHP, key_tHP

    def _read_scores(
        self, virtual: VirtualNode, drop_key: int | None, x_tD: Tensor, by_graph: Grouping, first: int
    ) -> tuple[Tensor, Tensor]:
        """Returns [t, D] and each node's energy per head [t, H] for a tile of rows from row `first` on, through the scores e and r."""
        query_tHP, key_tHP = self._units(x_tD)
        # Unit vectors and J need float32 under autocast; the linear maps around them do not.
        with torch.autocast(x_tD.device.type, enabled=False):
            e_tHS = primal_scores(query_tHP, self.weight_e_HMP, virtual, by_graph)
            r_tHS = primal_scores(key_tHP, self.weight_r_HMP, virtual, by_graph)
            energy_tH = 0.5 * ((e_tHS.square() + r_tHS.square()) * self.multiplier()).sum(2)
        scores_tHT = torch.cat([e_tHS, r_tHS], dim=2)
        if drop_key is not None:
            start = first * self.num_heads * scores_tHT.shape[2]
            scores_tHT = scores_tHT * dropout_factors(self.options.dropout, drop_key, start, scores_tHT)
        weight_HPT = self.out_weight_HPT.to(x_tD.dtype).expand(self.num_heads, -1, -1)
        return self._with_bias(per_head(scores_tHT.to(x_tD.dtype), weight_HPT), x_tD), energy_tH

    def _read_folded(self, maps: list[Tensor], x_tD: Tensor, by_graph: Grouping, first: int) -> tuple[Tensor, Tensor]:
        """Returns what `_read_scores` returns. With C = f_X W per head the scores are C φ, so W_c e = (W_c C) φ and eᵀΛe = φᵀ (Cᵀ Λ C) φ."""
        units = self._units(x_tD)
        with torch.autocast(x_tD.device.type, enabled=False):
            read = [per_head(*pair).chunk(2, dim=2) for pair in zip(units, maps, strict=True)]
            out_tHP = read[0][0] + read[1][0]
            energy_tH = 0.5 * (units[0] * read[0][1] + units[1] * read[1][1]).sum(2)
        return self._with_bias(out_tHP.to(x_tD.dtype), x_tD), energy_tH

    def _fold(self, virtual: VirtualNode) -> list[Tensor]:
        """Returns [W_c C; Cᵀ Λ C] of e and of r, [H, 2 P, P] each."""
        maps = []
        with torch.autocast(self.out_weight_HPT.device.type, enabled=False):
            outs = self.out_weight_HPT.expand(self.num_heads, -1, -1).chunk(2, dim=2)
            for weight_HMP, out_HPS in zip((self.weight_e_HMP, self.weight_r_HMP), outs, strict=True):
                common_HSP = torch.einsum("sm,hmp->hsp", virtual.common_SM, weight_HMP)
                score_HSP = common_HSP + virtual.shift_BS.t() * weight_HMP.sum(1, keepdim=True)
                scaled_HSP = self.multiplier().unsqueeze(-1) * score_HSP
                maps.append(torch.cat([out_HPS @ score_HSP, score_HSP.mT @ scaled_HSP], dim=1))
        return maps

    def _with_bias(self, out_tHP: Tensor, x_tD: Tensor) -> Tensor:
        return (out_tHP + self.out_bias.to(x_tD.dtype).view(-1, self.head_width)).flatten(1)

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

    def ksvd_loss(self, energy_nH: Tensor, graphs: Graphs) -> Tensor:
        """Returns J, a scalar: reduced per graph over nodes and heads, then averaged over the graphs that have nodes; "batch": over all nodes and heads."""
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


def primal_scores(phi_tHP: Tensor, weight_HMP: Tensor, virtual: VirtualNode, by_graph: Grouping) -> Tensor:
    """Returns f_X W φ for every node, [t, H, S], with F and the shift of the node's graph; O(t D s)."""
    common_HSP = torch.einsum("sm,hmp->hsp", virtual.common_SM, weight_HMP)
    total_H1P = weight_HMP.sum(1, keepdim=True)  # 1ᵀ W
    mixed_tHT = per_head(phi_tHP, torch.cat([common_HSP, total_H1P], dim=1))
    shift_t1S = by_graph.spread(virtual.shift_BS).unsqueeze(1)
    return mixed_tHT[..., :-1] + mixed_tHT[..., -1:] * shift_t1S


def per_head(x_tHP: Tensor, weight_HQP: Tensor) -> Tensor:
    """Returns W x for each head's W, [t, H, Q]. Many rows are multiplied in blocks, so W's gradient is a sum over blocks: a GPU computes a single
    product of few columns over millions of rows on few of its processors."""
    block = _BLOCK_ROWS.get(x_tHP.device.type, len(x_tHP))
    if len(x_tHP) <= block:
        return torch.einsum("thp,hqp->thq", x_tHP, weight_HQP)
    missing = -len(x_tHP) % block
    padded_tHP = nn.functional.pad(x_tHP, (0, 0, 0, 0, 0, missing)) if missing else x_tHP
    x_bHrP = padded_tHP.unflatten(0, (-1, block)).transpose(1, 2)
    return (x_bHrP @ weight_HQP.mT).transpose(1, 2).flatten(0, 1)[: len(x_tHP)]


def _orthogonal(num_heads: int, rows: int, columns: int, together: bool) -> Tensor:
    """Returns [H, rows, columns]: an orthogonal matrix for each head, or with `together` one orthogonal matrix that is cut into heads."""
    if together:
        whole = nn.init.orthogonal_(torch.empty(rows, num_heads * columns))
        return whole.view(rows, num_heads, columns).transpose(0, 1).contiguous()
    return torch.stack([nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(num_heads)])
