"""Global terms that are sums over all nodes, with the nodes spread over workers: each worker adds up its own rows, then the workers' sums are added.

Primphormer's attention reads the graph through means and sums over nodes (`Graphs.by_graph`): `ShardedNodes` takes the place of a
`Graphs` of one graph, and `graphmill.models.primphormer.attention.PrimalAttention` runs on it unchanged. Per layer, X̄ is a sum of D numbers
and J's energy a sum of single numbers. Performer's attention needs only two sums over all keys, φ(K)ᵀ V and φ(K)ᵀ 1, sent as one, after
a maximum per head: the exponents' common shift.

Sums are taken block by block of rows (`graphmill.models.parallel.shards.NUM_BLOCKS`), and the blocks' sums added in their order: if shards are
whole blocks, any number of workers gets the same bits.

A quantity that every worker computes in full, like J, enters one worker's loss, or divided by W each worker's.

Shapes: n rows here, N nodes, D channels, b blocks here; B, H, T, R, E as in `graphmill.models.operators.favor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphmill.models.operators.favor import KeySummary, KeySums
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.shards import Shards


class ShardedNodes:
    """One graph whose nodes are spread over workers, for an attention over graphs; also the grouping of its nodes by graph."""

    def __init__(self, shards: Shards, peers: Peers, device: torch.device | str = "cpu") -> None:
        self._shards, self._peers, self._device = shards, peers, device
        self.num_graphs = 1

    @property
    def total(self) -> int:
        """N."""
        return self._shards.total

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
        blocks = [self._shards.blocks(worker) for worker in range(self._peers.size)]
        here = blocks[self._peers.rank]
        # A worker without rows takes part in the backward pass too.
        rows_bD = torch.stack([part.sum(0) for part in x_nD.split(here)]) if here else x_nD[:0]
        return self._peers.sum_blocks(rows_bD, [len(lengths) for lengths in blocks])

    def mean(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [1, D]; 0 for a graph without nodes."""
        return self.sum(x_nD) / max(self._shards.total, 1)


@dataclass(frozen=True)
class ShardedKeys:
    """The `graphmill.models.operators.favor.KeyLayout` of tokens that are spread over workers."""

    peers: Peers
    runs: Sequence[Sequence[int]]
    """[run][block]: numbers of tokens. The tokens here are runs, one after another; each run has tokens of all b blocks here."""
    blocks: Sequence[int]
    """b of each worker."""

    def max(self, x: Tensor) -> Tensor:
        return self.peers.max(x)

    def sum(self, k_BHTD: Tensor, v_BHTE: Tensor, mask_BT: Tensor | None, summarise: KeySums) -> KeySummary:
        """The summary of all workers' keys."""
        lengths = [length for run in self.runs for length in run]
        masks = [None] * len(lengths) if mask_BT is None else mask_BT.split(lengths, dim=1)
        parts = [
            summarise(k, v, mask)
            for k, v, mask in zip(k_BHTD.split(lengths, dim=2), v_BHTE.split(lengths, dim=2), masks, strict=True)
        ]
        here = self.blocks[self.peers.rank]
        like = summarise(k_BHTD[:, :, :0], v_BHTE[:, :, :0], None if mask_BT is None else mask_BT[:, :0])
        rows = [torch.cat([part.values_BHRE.flatten(), part.weight_BHR.flatten()]) for part in parts or [like]]
        rows_bS = torch.stack(rows)[: len(parts)].view(len(self.runs), here, -1).sum(0)
        flat = self.peers.sum_blocks(rows_bS, self.blocks).squeeze(0)
        values, weight = flat.split([like.values_BHRE.numel(), like.weight_BHR.numel()])
        return KeySummary(values.view_as(like.values_BHRE), weight.view_as(like.weight_BHR))
