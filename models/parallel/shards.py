"""Who owns which rows, and which channels: contiguous ranges, as even as integers allow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shards:
    """Worker w owns [bounds[w], bounds[w + 1]); a range may be empty."""

    bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.bounds) < 2 or self.bounds[0] != 0 or any(b < a for a, b in zip(self.bounds, self.bounds[1:])):
            raise ValueError(f"shards need bounds that rise from 0, one more than workers, got {self.bounds}")

    @classmethod
    def even(cls, total: int, num_workers: int) -> "Shards":
        """Ranges of ⌊total / workers⌋ or one more; the first ones are the longer ones."""
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

    def range(self, worker: int) -> tuple[int, int]:
        return self.bounds[worker], self.bounds[worker + 1]
