"""Parts of a stored file, read in few requests: ranges are sorted, joined where little lies between them, and asked for at once.

A request to a disk or a store costs as much as some bytes read in vain, so near ranges are read as one.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import fsspec
import numpy as np

from storage.arrow_files import is_local
from storage.errors import FormatError
from storage.patience import DEADLINE_S, patiently

_DISK_THREADS = 8  # reads under way at once: a disk answers several in the time of one


@dataclass(frozen=True)
class RangeCost:
    """What decides which ranges are read as one; the defaults are an object store's."""

    gap_bytes: int = 256 << 10
    """What is read in vain rather than asked for separately."""
    most_bytes: int = 8 << 20
    """Of one request, where ranges are joined."""


DISK = RangeCost(gap_bytes=4 << 10, most_bytes=1 << 20)


def join_ranges(start: np.ndarray, stop: np.ndarray, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """(start, stop) of the ranges that cover all of these, joined where at most `gap` lies between two; ascending. int64 [n], n above 0."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(stop[order])
    first = np.flatnonzero(np.append(True, start[1:] - reach[:-1] > gap))
    return start[first], reach[np.append(first[1:], len(start)) - 1]


def split_ranges(start: np.ndarray, stop: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranges, those longer than `most` in parts."""
    parts = -(-(stop - start) // most)
    which = np.repeat(np.arange(len(start)), parts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = start[which] + number * most
    return first, np.minimum(first + most, stop[which])


def read_ranges(
    filesystem: fsspec.AbstractFileSystem,
    path: str,
    start: np.ndarray,
    stop: np.ndarray,
    deadline_s: float = DEADLINE_S,
) -> list[bytes]:
    """The bytes [start, stop) of a file, a request each, all at once. Raises DeadlineError where they do not come in time; FormatError for
    a file that ends before, or is not there."""
    wanted = (stop - start).tolist()

    def read() -> list[bytes]:
        if is_local(filesystem):
            return _from_disk(path, start.tolist(), wanted)
        content: Sequence[bytes] = filesystem.cat_ranges(
            [path] * len(start), start.tolist(), stop.tolist(), on_error="raise"
        )
        return list(content)

    try:
        pieces = patiently(read, path, "read parts of this file", deadline_s)
    except FileNotFoundError:
        raise FormatError(f"{path}: expected a file to read parts of, found none") from None
    for piece, begin, num_bytes in zip(pieces, start.tolist(), wanted, strict=True):
        if len(piece) != num_bytes:
            raise FormatError(
                f"{path}: expected {num_bytes} bytes from {begin} on, found {len(piece)}; the file is truncated or replaced"
            )
    return pieces


def read_rows(
    filesystem: fsspec.AbstractFileSystem,
    path: str,
    offset: int,
    row_bytes: int,
    row: np.ndarray,
    cost: RangeCost | None = None,
    deadline_s: float = DEADLINE_S,
) -> np.ndarray:
    """uint8 [len(row), row_bytes]: these rows of a table that begins at `offset` of a file. int64 [n], in any order, with repeats.

    Near rows are read as one (`cost`: by default a disk's for local files, else a store's). Raises as `read_ranges`.
    """
    out = np.empty((len(row), row_bytes), np.uint8)
    if not len(row) or not row_bytes:
        return out
    cost = cost or (DISK if is_local(filesystem) else RangeCost())
    once, place = np.unique(row, return_inverse=True)
    gap, most = cost.gap_bytes // row_bytes, max(1, cost.most_bytes // row_bytes)
    first, last = split_ranges(*join_ranges(once, once + 1, gap), most)
    pieces = read_ranges(filesystem, path, offset + first * row_bytes, offset + last * row_bytes, deadline_s)
    which = np.searchsorted(first, once, side="right") - 1
    bound = np.searchsorted(which, np.arange(len(first) + 1))
    rows = np.empty((len(once), row_bytes), np.uint8)
    for i, content in enumerate(pieces):
        own = slice(bound[i], bound[i + 1])
        rows[own] = np.frombuffer(content, np.uint8).reshape(-1, row_bytes)[once[own] - first[i]]
    np.take(rows, place, axis=0, out=out)
    return out


def _from_disk(path: str, start: list[int], num_bytes: list[int]) -> list[bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if len(start) == 1:
            return [os.pread(descriptor, num_bytes[0], start[0])]
        with ThreadPoolExecutor(min(_DISK_THREADS, len(start))) as pool:
            return list(pool.map(lambda size, begin: os.pread(descriptor, size, begin), num_bytes, start))
    finally:
        os.close(descriptor)
