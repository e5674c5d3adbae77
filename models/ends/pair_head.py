"""Scores pairs of nodes within graphs with GraphGym's inductive edge head (decoding "dot"), and ranks a pair by the number of pairs with a higher score.

Legend: n nodes, B graphs, N places, D width, P pairs.
"""

import torch
from torch import Tensor, nn

from graphmill.models.ends.heads import link_scores
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.segments import at_least_float32


class PairHead(nn.Module):
    """Computes z = W x + b, and z_u · z_v for a pair, like the released code of the Long Range Graph Benchmark (arXiv:2206.08164)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x_nD: Tensor, graphs: Graphs, pair_2P: Tensor) -> Tensor:
        """In training returns [P, 1], the logits of the pairs (u, v), which are given as positions in the batch. In evaluation returns [P, 3]. Column 0 is the
        logit. Column 1 counts the graph's nodes w ≠ v (u included) with z_u · z_w > z_u · z_v. Column 2 counts the nodes w ≠ v with z_u · z_w = z_u · z_v.
        """
        z_nD = self.linear(x_nD)
        logit_P1 = link_scores(z_nD, pair_2P).unsqueeze(1)
        if self.training:
            return logit_P1
        padding = graphs.padding
        z_BND = padding.pad(at_least_float32(z_nD))
        scores_BNN = z_BND @ z_BND.transpose(1, 2)
        u_P, v_P = padding.slot_n[pair_2P[0]], padding.place_n[pair_2P[1]]
        scores_PN = scores_BNN.flatten(0, 1)[u_P]
        others_PN = padding.mask_BN[padding.graph_n[pair_2P[0]]].scatter(1, v_P.unsqueeze(1), False)
        own_P1 = scores_PN.gather(1, v_P.unsqueeze(1))
        counts = [(others_PN & rivals).sum(1, keepdim=True) for rivals in (scores_PN > own_P1, scores_PN == own_P1)]
        return torch.cat([logit_P1.float(), *(count.float() for count in counts)], dim=1)
