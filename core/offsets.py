"""Computes the offsets of consecutive pieces of an array."""

import numpy as np


def pointers(counts: np.ndarray) -> np.ndarray:
    """int64 [n + 1]: the start of each piece, for n pieces with these lengths, and then the end of the last piece."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends
