"""Compiled loops for string ids (`graphmill.storage.ingestion.string_ids`). They search a hash table of numbers, and copy strings into another order.

Strings are stored as in Arrow: string i is data[offsets[i] : offsets[i + 1]], in UTF-8. A free cell of the table is 0. Any other cell has the string's
number + 1 in its low 40 bits, and 24 bits of the string's hash above them. The hash bits distinguish most strings without reading their bytes.
"""

import numba
import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.core.counter_kernels import mix64

_NUMBER_BITS = np.uint64(40)
_NUMBER = np.uint64((1 << 40) - 1)
_ONE, _BYTE = np.uint64(1), np.uint64(8)


@numba.njit(inline="always")
def _hash(data, start, stop):
    """Returns a uint64 hash of the number of bytes and of the bytes. It reads eight bytes at a time."""
    state, word = mix64(np.uint64(stop - start)), np.uint64(0)
    for i in range(start, stop):
        word = (word << _BYTE) | np.uint64(data[i])
        if (i - start) % 8 == 7:
            state, word = mix64(state ^ word), np.uint64(0)
    return mix64(state ^ word)


@numba.njit(inline="always")
def _equal(data, start, stop, others, other_start, other_stop):
    if stop - start != other_stop - other_start:
        return False
    same = 0
    while same < stop - start and data[start + same] == others[other_start + same]:
        same += 1
    return same == stop - start


@compiled
def find_strings(offsets, data, cells, known_offsets, known_data, number):
    """Looks up each string in the table, and writes its number to `number` (int64 [k]); -1 for unknown strings.

    cells: uint64 [a power of two], at least one cell is 0.
    """
    last = np.uint64(len(cells) - 1)
    for i in range(len(number)):
        start, stop = offsets[i], offsets[i + 1]
        state = _hash(data, start, stop)
        place, mark = state & last, state >> _NUMBER_BITS
        number[i] = -1
        while cells[place] != 0:
            cell = cells[place]
            if cell >> _NUMBER_BITS == mark:
                known = np.int64(cell & _NUMBER) - 1
                if _equal(data, start, stop, known_data, known_offsets[known], known_offsets[known + 1]):
                    number[i] = known
                    break
            place = (place + _ONE) & last


@compiled
def insert_strings(offsets, data, first, cells):
    """Adds strings, which get the numbers first, first + 1 …. The strings must be different from each other and from the strings in the table."""
    last = np.uint64(len(cells) - 1)
    for i in range(len(offsets) - 1):
        state = _hash(data, offsets[i], offsets[i + 1])
        place = state & last
        while cells[place] != 0:
            place = (place + _ONE) & last
        cells[place] = ((state >> _NUMBER_BITS) << _NUMBER_BITS) | np.uint64(first + i + 1)


@compiled
def gather_strings(offsets, data, row, out_offsets, out_data):
    """Copies the strings at the rows `row`, one after another, to `out_data`. Writes their offsets to `out_offsets` (int64 [k + 1])."""
    for i in range(len(row)):
        start, place = offsets[row[i]], out_offsets[i]
        for byte in range(out_offsets[i + 1] - place):
            out_data[place + byte] = data[start + byte]
