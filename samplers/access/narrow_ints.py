"""Integers travel between processes in the narrowest type that holds all their values. The receiver converts them back to their original type."""

import numpy as np

from graphmill.core.compile_cache import compiled

_TYPES = [(np.dtype(name), np.iinfo(name).min, np.iinfo(name).max) for name in ("u1", "i1", "u2", "i2", "u4", "i4")]


def narrow_dtype(array: np.ndarray) -> np.dtype:
    """The type in which this array travels. For integers it is the narrowest type that holds all values; other arrays keep their type."""
    if array.dtype.kind not in "iu" or array.itemsize == 1 or not array.size:
        return array.dtype
    # One pass in place of two: the highest bit of all values together decides the type, unless a value is negative.
    joined = int(np.bitwise_or.reduce(array, axis=None))
    return _narrowest(array.dtype, *((0, joined) if joined >= 0 else (int(array.min()), int(array.max()))))


def narrow_bytes(array: np.ndarray, position: np.ndarray | None = None) -> int:
    """Bytes that this array, or array[position], takes when it travels."""
    if position is None:
        return array.size * narrow_dtype(array).itemsize
    dtype = array.dtype
    if array.ndim == 1 and dtype.kind in "iu" and array.itemsize > 1 and len(position):
        dtype = _narrowest(dtype, *map(int, _bounds_at(array, position)))
    return len(position) * (array.size // max(len(array), 1)) * dtype.itemsize


def _narrowest(own: np.dtype, least: int, largest: int) -> np.dtype:
    for dtype, low, high in _TYPES:
        if low <= least and largest <= high:
            return dtype if dtype.itemsize < own.itemsize else own
    return own


@compiled
def _bounds_at(column, position):
    least = largest = column[position[0]]
    for i in range(1, len(position)):
        value = column[position[i]]
        least, largest = min(least, value), max(largest, value)
    return least, largest
