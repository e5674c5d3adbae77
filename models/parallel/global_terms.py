"""Computes sums over all nodes of a graph whose nodes are spread over workers. Each worker sums its own rows; then the workers' sums are added.

Primphormer's attention reads the graph through means and sums over nodes (`Graphs.by_graph`): `ShardedNodes` takes the place of a
`Graphs` of one graph, and `graphmill.models.primphormer.attention.PrimalAttention` runs on it unchanged. Per layer, workers exchange D numbers for X̄
and one number for J's energy. Performer's attention needs a maximum per head, which is the exponents' common shift, and then two sums over
all keys, φ(K)ᵀ V and φ(K)ᵀ 1. The two sums are sent together.

Each block of rows (`graphmill.models.parallel.shards.NUM_BLOCKS`) is summed, and the blocks' sums are added in the order of the blocks. If every shard
consists of whole blocks, the result has the same bits for any number of workers.

A quantity that every worker computes in full, like J, is added to one worker's loss, or divided by W and added to each worker's loss.

Shapes: n rows here, N nodes, D channels, b blocks here; B, H, T, R, E as in `graphmill.models.operators.favor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.shards import Shards

if TYPE_CHECKING:  # FAVOR+ imports torch's compiler, which takes as long as torch itself
    from graphmill.models.operators.favor import KeySummary, KeySums


class ShardedNodes:
    """Represents one graph whose nodes are spread over workers, for attention over graphs. The object is also used as the grouping of nodes by graph."""

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
        """[1, D] → [n, D]: each row gets the graph's value; all workers have this value."""
        return x_1D.expand(self._shards.sizes[self._peers.rank], *x_1D.shape[1:])

    def sum(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [1, D]: the sum over the rows of all workers."""
        blocks = [self._shards.blocks(worker) for worker in range(self._peers.size)]
        here = blocks[self._peers.rank]
        # A worker without rows takes part in the backward pass too.
        rows_bD = torch.stack([part.sum(0) for part in x_nD.split(here)]) if here else x_nD[:0]
        return self._peers.sum_blocks(rows_bD, [len(lengths) for lengths in blocks])

    def mean(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [1, D]: the mean over the rows of all workers; 0 for a graph without nodes."""
        return self.sum(x_nD) / max(self._shards.total, 1)


@dataclass(frozen=True)
class ShardedKeys:
    """Is the `graphmill.models.operators.favor.KeyLayout` for tokens that are spread over workers."""

    peers: Peers
    runs: Sequence[Sequence[int]]
    """[run][block]: counts of tokens. This worker's tokens are a sequence of runs; each run has tokens of all b blocks of this worker."""
    blocks: Sequence[int]
    """b (count of blocks) of each worker."""

    def max(self, x: Tensor) -> Tensor:
        return self.peers.max(x)

    def sum(self, k_BHTD: Tensor, v_BHTE: Tensor, mask_BT: Tensor | None, summarise: "KeySums") -> "KeySummary":
        """Returns the summary of all workers' keys."""
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
        return like._replace(values_BHRE=values.view_as(like.values_BHRE), weight_BHR=weight.view_as(like.weight_BHR))
