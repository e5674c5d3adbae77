"""Defines shards: contiguous ranges of rows or channels, one for each worker, with sizes as equal as possible."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

# Rows are divided into this many blocks; the blocks depend only on the number of rows. A sum over all rows is the sum of the blocks' sums. If every shard ends
# at the end of a block, the sums have the same bits for any number of workers. 240 has many divisors, so for many numbers of workers all shards have the same
# size.
NUM_BLOCKS = 240


@dataclass(frozen=True)
class Shards:
    """Worker w owns [bounds[w], bounds[w + 1]); a range may be empty."""

    bounds: tuple[int, ...]
    block_bounds: tuple[int, ...] | None = None  # bounds of the blocks of rows; None: equal blocks

    def __post_init__(self) -> None:
        if len(self.bounds) < 2 or self.bounds[0] != 0 or any(b < a for a, b in zip(self.bounds, self.bounds[1:])):
            raise ValueError(f"shards need bounds that rise from 0, one more than workers, got {self.bounds}")

    @classmethod
    def even(cls, total: int, num_workers: int) -> "Shards":
        """Returns ranges of ⌊total / workers⌋ rows or one row more; the longer ranges come first."""
        if total < 0 or num_workers < 1:
            raise ValueError(f"shards need a total of at least 0 and a worker, got {total} and {num_workers}")
        least, longer = divmod(total, num_workers)
        return cls(tuple(w * least + min(w, longer) for w in range(num_workers + 1)))

    @property
    def num_workers(self) -> int:
        return len(self.bounds) - 1

    @property
    def total(self) -> int:
        return self.bounds[-1]

    @property
    def sizes(self) -> list[int]:
        return [b - a for a, b in zip(self.bounds, self.bounds[1:])]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.bounds, self.bounds[1:]))

    def range(self, worker: int) -> tuple[int, int]:
        return self.bounds[worker], self.bounds[worker + 1]

    def blocks(self, worker: int) -> list[int]:
        """Returns, in order, how many rows of each block the worker has. If shards end at the ends of blocks, these are the lengths of whole blocks."""
        start, stop = self.range(worker)
        bounds = self.block_bounds or even_blocks(self.total)
        inner = sorted(set(bounds[bisect_right(bounds, start) : bisect_left(bounds, stop)]))
        ends = [start, *inner, stop]
        return [b - a for a, b in pairwise(ends) if b > a]


def even_blocks(total: int) -> list[int]:
    """Returns the ascending bounds of the blocks of `total` rows."""
    return [total * block // NUM_BLOCKS for block in range(NUM_BLOCKS + 1)]
