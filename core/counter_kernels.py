"""Compiled loops: the hash and the permutation of `graphmill.core.counter_random`."""

import numba
import numpy as np

from graphmill.core.compile_cache import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@numba.njit(inline="always")
def mix64(x):
    """SplitMix64's finaliser: a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@numba.njit(inline="always")
def hash64(key, counter):
    """SplitMix64 output of stream `key` at `counter`, both uint64."""
    return mix64(key + (counter + np.uint64(1)) * GOLDEN)


@compiled
def permuted(value, rounds, mask, shift, size):
    """`Permutation.forward` of one value."""
    x = np.uint64(value)
    while True:
        for i in range(rounds.shape[0]):
            x = (x * rounds[i, 0] + rounds[i, 1]) & mask
            x ^= x >> shift
        if x < size:
            return np.int64(x)


@compiled
def shuffled_shares(permutation, num_shares, share):
    """Shuffles the rows, cuts the shuffle into `num_shares` equal shares, and writes the share of each row: `Permutation.forward(row) * num_shares // size`.

    permutation: `Permutation.compiled_form`; share: int32 [size].
    """
    rounds, mask, shift, size = permutation
    for row in range(len(share)):
        share[row] = permuted(row, rounds, mask, shift, size) * num_shares // np.int64(size)
