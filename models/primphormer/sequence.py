"""Implements primal attention of sequences (Prim-Atten: arXiv:2305.19798), which Primphormer is compared with.

With φ_q and φ_k as in `graphmill.models.primphormer.attention` and X' the rows of m nodes at even steps of a graph's own order, per head:

    e = W_eᵀ X' φ_q(x),  r = W_rᵀ X' φ_k(x)         W_e, W_r ∈ R^{m×s};  in place of Primphormer's f_X W_e
    o = W_c [e; r]
    J = ½ Σ_i e_iᵀ Λ e_i + ½ Σ_j r_jᵀ Λ r_j − Tr((X'ᵀ W_e)ᵀ (X'ᵀ W_r))

m is ten times s, or the number of nodes of a smaller graph, which then uses the first rows of W_e and W_r. J's terms are means over nodes and heads. The output
depends on the order of the nodes, as in the paper, which is about sequences.

Shapes: n nodes of B graphs, N places, D width, H heads, p = D / H, S = s scores, M sampled places.
"""

import torch
from torch import Tensor, nn

from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.attention import unit
from graphmill.models.primphormer.options import PrimalOptions

_SAMPLED = 10  # sampled nodes for each score


class SequenceAttention(nn.Module):
    """Is primal attention whose projections come from sampled nodes; see the module's docstring."""

    def __init__(self, width: int, num_heads: int, options: PrimalOptions) -> None:
        super().__init__()
        self.num_heads, scores = num_heads, options.scores
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        sampled = _SAMPLED * scores
        self.weight_e_HMS, self.weight_r_HMS = (
            nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(sampled, scores)) for _ in range(num_heads)]))
            for _ in range(2)
        )
        self.multiplier_HS = nn.Parameter(torch.rand(num_heads, scores))
        self.out = nn.Linear(2 * scores, width // num_heads)
        self.dropout = Dropout(options.dropout)

    def forward(self, x_nD: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
        """Returns [n, D] and J, a scalar: the mean over the batch's graphs."""
        padding, heads = graphs.padding, self.num_heads
        place_BM, is_there_BM = self._sampled(graphs)
        x_nHP = x_nD.unflatten(1, (heads, -1)).to(torch.promote_types(x_nD.dtype, torch.float32))
        sampled_BMHP = x_nHP[place_BM] * is_there_BM[..., None, None]
        scores, maps = [], []
        for linear, weight_HMS in ((self.query, self.weight_e_HMS), (self.key, self.weight_r_HMS)):
            map_BHPS = torch.einsum("bmhp,hms->bhps", sampled_BMHP, weight_HMS[:, : place_BM.shape[1]])
            phi_BNHP = padding.pad(unit(linear(x_nD).unflatten(1, (heads, -1))))
            scores.append(padding.unpad(torch.einsum("bnhp,bhps->bnhs", phi_BNHP, map_BHPS)))
            maps.append(map_BHPS)
        energy_nH = 0.5 * (sum(each.square() for each in scores) * self.multiplier_HS.square()).sum(2)
        trace_B = (maps[0] * maps[1]).sum((2, 3)).mean(1)
        loss_B = graphs.by_graph.mean(energy_nH.mean(1)) - trace_B
        out_nHP = self.out(self.dropout(torch.cat(scores, 2)).to(x_nD.dtype))
        return out_nHP.flatten(1), loss_B.sum() / (graphs.size_B > 0).sum().clamp_min(1)

    def _sampled(self, graphs: Graphs) -> tuple[Tensor, Tensor]:
        """The sampled nodes of every graph [B, M], and which of these places exist."""
        most = min(self.weight_e_HMS.shape[1], graphs.padding.num_places)
        size_B1 = graphs.size_B.unsqueeze(1)
        count_B1 = size_B1.clamp_max(most)
        number_M = torch.arange(most, device=size_B1.device)
        # As evenly spaced whole numbers from the first to the last place of a graph.
        step_BM = number_M * (size_B1 - 1).clamp_min(0) // (count_B1 - 1).clamp_min(1)
        is_there_BM = number_M < count_B1
        return torch.where(is_there_BM, graphs.node_ptr[:-1].unsqueeze(1) + step_BM, 0), is_there_BM
