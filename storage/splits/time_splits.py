"""Splits by time: what is early trains, what comes next validates, the last tests. All of one time are in one split."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil

import numpy as np

from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_BINS = 1 << 16

Times = Callable[[], Iterator[np.ndarray]]  # int64, in pieces, each time the same


def split_of_times(time: np.ndarray, ends: tuple[int, ...]) -> np.ndarray:
    """int8: SPLIT_TRAIN for times up to the first of two ends, that included, SPLIT_VALID up to the second, else SPLIT_TEST."""
    codes = np.array([SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST], np.int8)
    return codes[np.searchsorted(np.asarray(ends, np.int64), time, side="left")]


def times_at(times: Times, shares: tuple[float, ...]) -> tuple[int, ...]:
    """For each share, the earliest of the times that at least this share of all is no later than.

    Exact, in bounded memory: the times are read once for their range, then once for each 16 bits of it. () where there are none.
    """
    count, low, high = 0, 0, -1
    for piece in times():
        if len(piece):
            first, last = int(piece.min()), int(piece.max())
            low, high = (first, last) if not count else (min(low, first), max(high, last))
            count += len(piece)
    if not count:
        return ()
    return tuple(_ranked(times, ceil(Fraction(str(share)) * count), low, high) for share in shares)


def _ranked(times: Times, rank: int, low: int, high: int) -> int:
    """The time of this rank, from 1, among those from `low` to `high`."""
    while low < high:
        width = (high - low) // _BINS + 1
        counts = np.zeros(_BINS, np.int64)
        for piece in times():
            inside = piece[(piece >= low) & (piece <= high)]
            # Differences as unsigned: a range may be wider than int64.
            place = (inside.view(np.uint64) - np.uint64(low & (2**64 - 1))) // np.uint64(width)
            counts += np.bincount(place.astype(np.int64), minlength=_BINS)
        ends = np.cumsum(counts)
        found = int(np.searchsorted(ends, rank))
        rank -= int(ends[found - 1]) if found else 0
        low, high = low + found * width, min(high, low + (found + 1) * width - 1)
    return low
