"""Implements attention whose weights are a plain product of features, Σ_j (q_i·k_j) v_j and Σ_j q_i·k_j over a graph's nodes, in O(n).

Polynormer's and SGFormer's global attention read these two sums.

Shapes: n nodes of B graphs, H heads, C channels of a query, E channels of a value.
"""

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs


def kernel_sums(q_nHC: Tensor, k_nHC: Tensor, v_nHE: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
    """Returns (Σ_j (q_i·k_j) v_j [n, H, E], Σ_j q_i·k_j [n, H]) over the nodes j of i's graph."""
    with torch.autocast(q_nHC.device.type, enabled=False):
        wide = torch.promote_types(q_nHC.dtype, torch.float32)
        q_nHC, k_nHC, v_nHE = q_nHC.to(wide), k_nHC.to(wide), v_nHE.to(wide)
        total_nH = (q_nHC * graphs.by_graph.spread(graphs.by_graph.sum(k_nHC))).sum(2)
        if graphs.num_graphs == 1:
            return torch.einsum("nhc,hce->nhe", q_nHC, torch.einsum("nhc,nhe->hce", k_nHC, v_nHE)), total_nH
        padding = graphs.padding
        product_BHCE = torch.einsum("bnhc,bnhe->bhce", padding.pad(k_nHC), padding.pad(v_nHE))
        return padding.unpad(torch.einsum("bnhc,bhce->bnhe", padding.pad(q_nHC), product_BHCE)), total_nH
