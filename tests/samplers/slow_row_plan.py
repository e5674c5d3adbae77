"""Slow references for `graphmill.samplers.loading.row_schedule`: Belady's algorithm with sets, and the smallest number of rows that a plan can fetch."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

NEVER = 1 << 60


def next_use(batches: Sequence[set[int]], node: int, after: int, known: int) -> int:
    """The number of the first batch after `after` and before `known` that has the node."""
    return next((number for number in range(after + 1, known) if node in batches[number]), NEVER)


def belady(batches: Sequence[set[int]], room: int, window: int | None = None) -> Iterator[tuple[set[int], set[int]]]:
    """Yields (rows fetched, rows kept afterwards) for each batch. The next `window` batches are known (None: all)."""
    kept: set[int] = set()
    for number, batch in enumerate(batches):
        fetched = batch - kept
        known = len(batches) if window is None else min(number + 1 + window, len(batches))
        order = sorted(kept | fetched, key=lambda node: (next_use(batches, node, number, known), node))
        kept = set(order[:room])
        yield fetched, kept


def least_fetched(batches: Sequence[set[int]], room: int) -> int:
    """The smallest number of fetched rows. Tries every set of rows that a plan could keep after each batch."""

    @cache
    def least(number: int, kept: frozenset[int]) -> int:
        if number == len(batches):
            return 0
        fetched = len(batches[number] - kept)
        have = sorted(kept | batches[number])
        choices = (frozenset(some) for size in range(min(room, len(have)) + 1) for some in combinations(have, size))
        return fetched + min(least(number + 1, some) for some in choices)

    return least(0, frozenset())
