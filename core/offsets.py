"""Where pieces of an array begin."""

import numpy as np


def pointers(counts: np.ndarray) -> np.ndarray:
    """int64 [n + 1]: where each of n pieces of these lengths begins, and the end of the last."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends
