"""Divides an epoch among ranks. The functions are pure, so every rank gets the same result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from graphmill.core.errors import ConfigError

Whole = TypeVar("Whole", int, np.ndarray)


def even_split(count: Whole, parts: Whole, part: Whole) -> tuple[Whole, Whole]:
    """Divides `count` items, in order, into `parts` shares, and returns the bounds [start, stop) of share `part`. Sizes differ by at most one.

    If arguments are arrays, divides many counts at once.
    """
    return count * part // parts, count * (part + 1) // parts


def own_positions(rank: int, num_ranks: int, num_positions: int) -> range:
    """The positions of a step that this rank computes. They are consecutive. The numbers of positions of two ranks differ by at most one."""
    return range(*even_split(num_positions, num_ranks, rank))


def num_root_batches(num_roots: int, batch_size: int, num_ranks: int) -> int:
    """The number of batches in an epoch. It is a multiple of the number of ranks, so all ranks take the same number of steps. A batch has at most about
    `batch_size` roots.

    Raises ConfigError if a rank would have no root in a step.
    """
    if num_roots < num_ranks:
        raise ConfigError(
            f"expected at least one training root per rank, got {num_roots} roots for {num_ranks} ranks; "
            "lower --fit.micro_batches (or, where it is auto, --workers) or check the graph's split"
        )
    steps = -(-num_roots // (batch_size * num_ranks))
    return min(steps, num_roots // num_ranks) * num_ranks


_NEAR = 0.05  # a shard's end may move to a partition's end by this fraction of the shard


def shard_bounds(num_nodes: int, num_ranks: int, offsets: Sequence[int], num_blocks: int) -> tuple[int, ...]:
    """Divides the stored nodes into about even ranges, one for each rank, and returns their bounds.

    First, a bound that is near the end of a stored partition (`offsets`) moves there. Then each bound moves to the nearest end of one of `num_blocks` even
    blocks, if the ranges stay about even.
    """
    ends = np.array([even_split(num_nodes, num_ranks, rank)[0] for rank in range(num_ranks + 1)])
    stored = np.asarray(offsets)
    near = stored[np.abs(stored[:, None] - ends).argmin(axis=0)]
    ends = np.where(np.abs(near - ends) <= _NEAR * num_nodes / num_ranks, near, ends)
    if num_blocks >= 8 * num_ranks or num_blocks % num_ranks == 0:
        block = np.array([even_split(num_nodes, num_blocks, part)[0] for part in range(num_blocks + 1)])
        ends = block[np.abs(block[:, None] - ends).argmin(axis=0)]
    return (0, *map(int, ends[1:-1]), num_nodes)


@dataclass(frozen=True)
class ChunkShare:
    """One rank's part of a step. The roots of `chunk` are divided into `parts` shares, and the rank has share `part`."""

    chunk: int
    part: int
    parts: int


def num_chunk_batches(num_chunks: int, num_ranks: int) -> int:
    """The number of batches in an epoch of `num_chunks` chunks. Every rank takes ceil(num_chunks / num_ranks) steps."""
    return -(-num_chunks // num_ranks) * num_ranks


def chunk_share(batch: int, num_chunks: int, num_ranks: int) -> ChunkShare:
    """The share of the roots for batch `batch` (= step · num_ranks + rank).

    A step takes the next `num_ranks` chunks. If fewer chunks are left, several ranks share a chunk and divide its roots. So every rank takes part in every
    step, and no root is lost or repeated.
    """
    step, rank = divmod(batch, num_ranks)
    left = min(num_ranks, num_chunks - step * num_ranks)
    offset = rank * left // num_ranks
    sharers = [r for r in range(num_ranks) if r * left // num_ranks == offset]
    return ChunkShare(chunk=step * num_ranks + offset, part=rank - sharers[0], parts=len(sharers))
