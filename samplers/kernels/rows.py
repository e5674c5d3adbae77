"""Compiled loops that find the owners of rows and copy rows to their places. They release the GIL."""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch


@compiled
def _group(node, offsets, owner, num_of):
    """Writes the owner of each node to `owner` and the count per owner to `num_of`. Returns the index of a node beyond the offsets, or -1."""
    last = len(offsets) - 1
    for i in range(len(node)):
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) >> 1
            is_right = node[i] >= offsets[middle]
            low = middle if is_right else low
            high = high if is_right else middle
        if node[i] < offsets[0] or node[i] >= offsets[last]:
            return i
        owner[i] = low
        num_of[low] += 1
    return -1


@compiled
def _place_by_group(owner, start, order):
    for i in range(len(owner)):
        order[start[owner[i]]] = i
        start[owner[i]] += 1


def group_by_owner(node: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order int64 [n], ends int64 [owners]). The positions of owner p's nodes, ascending, are order[ends[p - 1]:ends[p]].

    Owner p has the ids [offsets[p], offsets[p + 1]). Raises IndexError with the position of an id that has no owner.
    """
    owner, num_of = np.empty(len(node), np.int32), np.zeros(len(offsets) - 1, np.int64)
    bad = _group(node, offsets, owner, num_of)
    if bad >= 0:
        raise IndexError(bad)
    ends = np.cumsum(num_of)
    order = np.empty(len(node), np.int64)
    _place_by_group(owner, ends - num_of, order)
    return order, ends


@compiled
def _own_rows(node, start, num_rows, row):
    signs = np.int64(0)  # negative if a row is outside; without a branch the loop is vectorised
    for i in range(len(node)):
        row[i] = node[i] - start
        signs |= row[i] | (num_rows - 1 - row[i])
    if signs < 0:
        for i in range(len(row)):
            if row[i] < 0 or row[i] >= num_rows:
                return i
    return -1


def own_rows(node: np.ndarray, start: int, num_rows: int) -> np.ndarray:
    """int64 [n]: rows of ids in [start, start + num_rows). Raises IndexError with the position of an id outside this range."""
    row = np.empty(len(node), np.int64)
    bad = _own_rows(node, start, num_rows, row)
    if bad >= 0:
        raise IndexError(bad)
    return row


AHEAD = 8  # rows between a prefetch and its read: enough to hide a cache miss, few enough for the nearest cache
_IN_ORDER = np.empty(0, np.int64)
_VALUES_AHEAD = 32  # the same for single values
_LINE_WORDS = 8  # 8-byte words in a cache line; narrower words prefetch a line more than once at little cost


@compiled
def _take_rows(table, row, position, out):
    """Copies table[row] to out[position]; if `position` is empty, in order. The copy in order reads no positions and takes 5 % less time."""
    in_order = len(position) == 0
    width, flat = table.shape[1], table.reshape(-1)
    for i in range(len(row)):
        if i + AHEAD < len(row):
            ahead = row[i + AHEAD] * width
            for k in range(0, width, _LINE_WORDS):
                prefetch(flat, ahead + k)  # type: ignore[call-arg]  # the compiler passes the context
        source, target = table[row[i]], out[i if in_order else position[i]]
        for k in range(width):
            target[k] = source[k]


@compiled
def _take_values(column, row, position, out):
    last = len(row) - 1
    if len(position) == 0:  # a separate loop without positions; it is a third faster
        for i in range(len(row)):
            prefetch(column, row[min(i + _VALUES_AHEAD, last)])  # type: ignore[call-arg]  # the compiler passes the context
            out[i] = column[row[i]]
    else:
        for i in range(len(row)):
            prefetch(column, row[min(i + _VALUES_AHEAD, last)])  # type: ignore[call-arg]
            out[position[i]] = column[row[i]]


def take_rows(table: np.ndarray, row: np.ndarray, out: np.ndarray) -> None:
    """out[:] = table[row] for a table [·, width] with the dtype of `out`. Rows must be in the table."""
    if len(row) and table.shape[1]:
        _take_rows(_as_words(table), row, _IN_ORDER, _as_words(out))


def place_rows(table: np.ndarray, row: np.ndarray, position: np.ndarray | None, out: np.ndarray) -> None:
    """out[position] = table[row] (None: in order), without intermediate rows. Rows must be in the table; `out` has the table's width and dtype."""
    at = _IN_ORDER if position is None else position
    if table.ndim == 1:
        _take_values(_as_words(table), row, at, _as_words(out))
    elif len(row) and table.shape[1]:
        _take_rows(_as_words(table), row, at, _as_words(out))


def _as_words(rows: np.ndarray) -> np.ndarray:
    """A view of the same memory with the widest words that divide a row. This means fewer copies per row, for any dtype (numba has no float16)."""
    num_bytes = rows.itemsize * (rows.shape[1] if rows.ndim == 2 else 1)
    return rows.view(f"u{next(size for size in (8, 4, 2, 1) if num_bytes % size == 0)}")
