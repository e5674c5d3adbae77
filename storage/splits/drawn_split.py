"""Splits with given shares: drawn at random, drawn from each class, or of whole groups such as scaffolds."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.splits.split_options import SplitOptions

_SPLIT = 0x73706C74  # "splt": keeps these draws apart from others of the seed
_BINS = 1 << 16

Times = Callable[[], Iterator[np.ndarray]]  # int64, in pieces, the same at each call


@runtime_checkable
class SplitSource(Protocol):
    """Nodes whose features are learnt of their training rows: the split that ingestion draws is theirs as well."""

    def with_split(self, split: SplitOptions) -> Any:
        """The same source with this split in place of its own."""
        ...


def draw_split(name: str, options: SplitOptions, chosen: np.ndarray, label: np.ndarray | None) -> np.ndarray:
    """int8 [n], SPLIT_*: the rows that are `chosen` (bool [n]) by the options' shares, the others in none.

    `label`: [n], the classes of a split by label, the groups of one by scaffold. A function of the seed and a row's place. Raises DataError where there are
    fewer than two rows, or groups, to divide.
    """
    rows, key, whole = np.flatnonzero(chosen), derive_key(options.seed, _SPLIT), options.by == "scaffold"
    group = np.zeros(len(rows), np.int64) if label is None else np.unique(label[rows], return_inverse=True)[1]
    if len(np.unique(group) if whole else rows) < 2:
        what = "scaffolds" if whole else "rows with a label or target"
        raise DataError(f"{name}: split shares: expected two {what} at least, got {len(rows)} rows; leave --split out")
    codes, sizes = np.zeros(len(chosen), np.int8), part_sizes(len(rows), options.shares)
    codes[rows] = _whole_groups(group, sizes, key) if whole else _of_each_class(group, sizes, hash_counters(key, rows))
    return codes


def split_of_nodes(
    name: str, options: SplitOptions, num_nodes: int, label: np.ndarray | None, time: np.ndarray | None
) -> np.ndarray:
    """int8 [num_nodes]: the split of nodes that have a label, or of all where there are none. Raises ConfigError where the nodes have not what it is drawn by."""
    chosen = np.ones(num_nodes, bool)
    if label is not None:
        rows = label.reshape(num_nodes, -1)
        chosen = np.any(rows >= 0 if rows.dtype.kind == "i" else ~np.isnan(rows), axis=1)
    if time is not None and options.time_shares:
        ends = times_at(lambda: iter([time[chosen]]), options.time_shares)
        return np.where(chosen, split_of_times(time, ends), 0).astype(np.int8)
    is_class = label is not None and label.ndim == 1 and label.dtype == np.int64
    if options.by != "random" and not (options.by == "label" and is_class):
        wanted = {"label": "nodes of one class each", "time": "nodes with times (--edge-list.time-column)"}.get(
            options.by, "molecules"
        )
        raise ConfigError(f"{name}: split by {options.by}: expected {wanted}; set --split.by random")
    return draw_split(name, options, chosen, label if options.by == "label" else None)


def part_sizes(count: int, shares: tuple[float, ...]) -> list[int]:
    """How many of `count` rows train, validate and test: shares of the latter are rounded up, as scikit-learn does, while one row trains."""
    valid = min(ceil(shares[1] * count), count - 1)
    test = min(ceil(shares[2] * count), count - 1 - valid) if len(shares) > 2 else 0
    return [count - valid - test, valid, test]


def _of_each_class(group: np.ndarray, sizes: list[int], order: np.ndarray) -> np.ndarray:
    count = np.bincount(group)
    kept = _stratified(count, sizes[0] + sizes[1])
    ends = np.stack([_stratified(kept, sizes[0]), kept])  # of each class, how many train, and train or validate
    by_group, codes = np.lexsort((order, group)), np.empty(len(group), np.int8)
    place = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)  # within its class
    codes[by_group] = SPLIT_TRAIN + (place >= ends[:, group[by_group]]).sum(axis=0)
    return codes


def _stratified(count: np.ndarray, size: int) -> np.ndarray:
    """How many of each class are among `size` of all: its share, the largest remainders rounded up, as scikit-learn has it."""
    share = count * (size / count.sum())
    taken = np.floor(share).astype(np.int64)
    taken[np.argsort(taken - share, kind="stable")[: size - taken.sum()]] += 1
    return taken


def _whole_groups(group: np.ndarray, sizes: list[int], key: int) -> np.ndarray:
    """The largest group first, each into the first part that has room, else into the one that lacks most; no part that should have rows stays empty."""
    count = np.bincount(group)
    groups_of: list[list[int]] = [[], [], []]
    room = list(sizes)
    for each in np.lexsort((hash_counters(key, np.arange(len(count))), -count)).tolist():
        part = next((i for i in range(3) if count[each] <= room[i]), int(np.argmax(room)))
        groups_of[part].append(each)
        room[part] -= count[each]
    for part in range(3):  # the test part may give its last group
        givers = [of_part for i, of_part in enumerate(groups_of) if len(of_part) > (i < 2 or part == 2)]
        if sizes[part] and not groups_of[part] and givers:  # the smallest of the part with most of them
            groups_of[part].append(max(givers, key=len).pop())
    codes = np.empty(len(count), np.int8)
    for code, of_part in zip((SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST), groups_of, strict=True):
        codes[of_part] = code
    return codes[group]


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
