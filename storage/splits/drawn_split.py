"""Divides rows into parts with given shares: at random, at random within each class, in whole groups such as scaffolds, or by time."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.splits.split_options import SplitOptions

_SPLIT = 0x73706C74  # "splt": makes these draws independent of other draws with the same seed
_BINS = 1 << 16

# a function that yields the times, int64, in pieces; each call yields the same times
Times = Callable[[], Iterator[np.ndarray]]


@runtime_checkable
class SplitSource(Protocol):
    """A source of nodes whose features depend on the training rows. Therefore ingestion must give the source the split that it draws."""

    def with_split(self, split: SplitOptions) -> Any:
        """Returns a copy of the source with this split."""
        ...


def draw_split(name: str, options: SplitOptions, chosen: np.ndarray, label: np.ndarray | None) -> np.ndarray:
    """Divides the rows that are `chosen` (bool [n]) by the shares in the options. Other rows are in no part. Returns SPLIT_* codes, int8 [n].

    `label` [n]: the classes for a split by label, or the groups for a split by scaffold. The result depends only on the seed and the positions of the rows.
    Raises DataError if there are fewer than two rows, or groups, to divide.
    """
    rows, key, whole = np.flatnonzero(chosen), derive_key(options.seed, _SPLIT), options.by == "scaffold"
    group = np.zeros(len(rows), np.int64) if label is None else np.unique(label[rows], return_inverse=True)[1]
    if len(np.unique(group) if whole else rows) < 2:
        noun = "scaffolds" if whole else "rows with a label or target"
        raise DataError(f"{name}: split shares: expected two {noun} at least, got {len(rows)} rows; leave --split out")
    codes, sizes = np.zeros(len(chosen), np.int8), part_sizes(len(rows), options.shares)
    codes[rows] = _whole_groups(group, sizes, key) if whole else _of_each_class(group, sizes, hash_counters(key, rows))
    return codes


def split_of_nodes(
    name: str, options: SplitOptions, num_nodes: int, label: np.ndarray | None, time: np.ndarray | None
) -> np.ndarray:
    """Splits the labelled nodes, or all nodes if none has a label. Returns the codes, int8 [num_nodes]. Raises ConfigError if the nodes lack the column by
    which the options split."""
    chosen = np.ones(num_nodes, bool)
    if label is not None:
        rows = label.reshape(num_nodes, -1)
        chosen = np.any(rows >= 0 if rows.dtype.kind == "i" else ~np.isnan(rows), axis=1)
    if time is not None and options.time_shares:
        ends = times_at(lambda: iter([time[chosen]]), options.time_shares)
        return np.where(chosen, split_of_times(time, ends), 0).astype(np.int8)
    is_class = label is not None and label.ndim == 1 and label.dtype == np.int64
    if options.by != "random" and not (options.by == "label" and is_class):
        needed = {"label": "nodes of one class each", "time": "nodes with times (--edge-list.time-column)"}.get(
            options.by, "molecules"
        )
        raise ConfigError(f"{name}: split by {options.by}: expected {needed}; set --split.by random")
    return draw_split(name, options, chosen, label if options.by == "label" else None)


def part_sizes(count: int, shares: tuple[float, ...]) -> list[int]:
    """Returns how many of `count` rows train, validate and test. As in scikit-learn, the last two numbers are rounded up. At least one row trains."""
    valid = min(ceil(shares[1] * count), count - 1)
    test = min(ceil(shares[2] * count), count - 1 - valid) if len(shares) > 2 else 0
    return [count - valid - test, valid, test]


def _of_each_class(group: np.ndarray, sizes: list[int], order: np.ndarray) -> np.ndarray:
    count = np.bincount(group)
    kept = _stratified(count, sizes[0] + sizes[1])
    # for each class: the number of rows that train, and the number that train or validate
    ends = np.stack([_stratified(kept, sizes[0]), kept])
    by_group, codes = np.lexsort((order, group)), np.empty(len(group), np.int8)
    place = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)  # the row's place within its class
    codes[by_group] = SPLIT_TRAIN + (place >= ends[:, group[by_group]]).sum(axis=0)
    return codes


def _stratified(count: np.ndarray, size: int) -> np.ndarray:
    """Returns the number of rows of each class in a sample of `size` rows. Numbers are proportional, with the largest remainders rounded up (scikit-learn)."""
    share = count * (size / count.sum())
    taken = np.floor(share).astype(np.int64)
    taken[np.argsort(taken - share, kind="stable")[: size - taken.sum()]] += 1
    return taken


def _whole_groups(group: np.ndarray, sizes: list[int], key: int) -> np.ndarray:
    """Puts whole groups into parts, the largest group first. A group goes into the first part with enough room, or else into the part that lacks most rows. No
    part that should have rows stays empty."""
    count = np.bincount(group)
    groups_of: list[list[int]] = [[], [], []]
    room = list(sizes)
    for number in np.lexsort((hash_counters(key, np.arange(len(count))), -count)).tolist():
        part = next((i for i in range(3) if count[number] <= room[i]), int(np.argmax(room)))
        groups_of[part].append(number)
        room[part] -= count[number]
    for part in range(3):  # the test part may give away even its last group
        givers = [of_part for i, of_part in enumerate(groups_of) if len(of_part) > (i < 2 or part == 2)]
        if sizes[part] and not groups_of[part] and givers:
            # an empty part takes the smallest group of the part with most groups
            groups_of[part].append(max(givers, key=len).pop())
    codes = np.empty(len(count), np.int8)
    for code, of_part in zip((SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST), groups_of, strict=True):
        codes[of_part] = code
    return codes[group]


def split_of_times(time: np.ndarray, ends: tuple[int, ...]) -> np.ndarray:
    """Returns the code of each time (int8): SPLIT_TRAIN up to ends[0], SPLIT_VALID up to ends[1], SPLIT_TEST after that."""
    codes = np.array([SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST], np.int8)
    return codes[np.searchsorted(np.asarray(ends, np.int64), time, side="left")]


def times_at(times: Times, shares: tuple[float, ...]) -> tuple[int, ...]:
    """Returns quantiles: for each share s, the smallest time t such that at least the share s of all times is <= t. Returns () if there are no times.

    The result is exact, and memory is bounded. The times are read once for their range, and then once for each 16 bits of the range.
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
    """Returns the time with this rank (from 1) among the times from `low` to `high`."""
    while low < high:
        width = (high - low) // _BINS + 1
        counts = np.zeros(_BINS, np.int64)
        for piece in times():
            inside = piece[(piece >= low) & (piece <= high)]
            # Differences are unsigned, because a range may be wider than int64.
            place = (inside.view(np.uint64) - np.uint64(low & (2**64 - 1))) // np.uint64(width)
            counts += np.bincount(place.astype(np.int64), minlength=_BINS)
        ends = np.cumsum(counts)
        place_ = int(np.searchsorted(ends, rank))
        rank -= int(ends[place_ - 1]) if place_ else 0
        low, high = low + place_ * width, min(high, low + (place_ + 1) * width - 1)
    return low
