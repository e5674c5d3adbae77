"""Global terms that are sums over all nodes, with the nodes over workers: each worker adds up its own, and one all-reduce adds the parts.

Primphormer's attention reads the graph through means and sums over nodes (`Graphs.by_graph`): `ShardedNodes` takes the place of a
`Graphs` of one graph, and `models.primal_attention.PrimalAttention` runs on it as it is. Per layer, X̄ is one all-reduce of D numbers
and J's energy one of a single number. Performer's attention needs of all keys only φ(K)ᵀ V and φ(K)ᵀ 1: one all-reduce of both, after
one of a number per head, the exponents' common shift.

A quantity that every worker computes in full, like J, belongs into one worker's loss, or as a W-th into each.

Shapes: n rows here, N nodes, D channels; B, H, T, R, E as in `models.favor`.
"""

from functools import cached_property

import torch
from torch import Tensor

from models.favor import KeySummary, key_peak, map_queries, sum_keys
from models.parallel.collectives import Peers
from models.parallel.shards import Shards


class ShardedNodes:
    """One graph whose nodes are spread over workers, as an attention over graphs sees it; its own grouping by graph."""

    def __init__(self, shards: Shards, peers: Peers, device: torch.device | str = "cpu") -> None:
        self._shards, self._peers, self._device = shards, peers, device
        self.num_graphs = 1

    @cached_property
    def size_B(self) -> Tensor:
        """int64 [1]: N."""
        return torch.tensor([self._shards.total], device=self._device)

    @property
    def by_graph(self) -> "ShardedNodes":
        return self

    def spread(self, x_1D: Tensor) -> Tensor:
        """[1, D] → [n, D]: each row gets the graph's value, which all workers have."""
        return x_1D.expand(self._shards.sizes[self._peers.rank], *x_1D.shape[1:])

    def sum(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [1, D]: over the rows of all workers."""
        return self._peers.sum(x_nD.sum(0, keepdim=True))

    def mean(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [1, D]; 0 for a graph without nodes."""
        return self.sum(x_nD) / max(self._shards.total, 1)


def sharded_favor_attention(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTE: Tensor,
    projection_RD: Tensor,
    peers: Peers,
    mask_BT: Tensor | None = None,
    epsilon: float = 1e-4,
) -> Tensor:
    """`models.favor.favor_attention` over the tokens of all workers, for the queries here; tokens here may be none."""
    peak_BH11 = peers.max(key_peak(k_BHTD, projection_RD, mask_BT))
    shift_BH11 = peak_BH11.masked_fill(peak_BH11 == -torch.inf, 0)
    sums = sum_keys(k_BHTD, v_BHTE, projection_RD, shift_BH11, mask_BT, epsilon)
    flat = peers.sum(torch.cat([sums.values_BHRE.flatten(), sums.weight_BHR.flatten()]))
    values, weight = flat.split([sums.values_BHRE.numel(), sums.weight_BHR.numel()])
    total = KeySummary(values.view_as(sums.values_BHRE), weight.view_as(sums.weight_BHR))
    return map_queries(q_BHTD, projection_RD, total, epsilon)
