"""Compiled counter-based random numbers for kernels: the SplitMix64 of `graphmill.core.counter_random`.

Every draw is hash(key, counter). `derive_key` makes keys from (seed, purpose, epoch, batch, hop); counters are made from permanent node ids. A draw therefore
does not depend on partitions, threads, workers or order.
"""

from enum import IntEnum

import numba
import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.core.counter_kernels import hash64
from graphmill.core.counter_random import derive_key


class Purpose(IntEnum):
    """The purpose of a stream of random numbers. It is a part of the stream's key, so two purposes never share draws."""

    ROOT_ORDER = 1
    NEIGHBORS = 2
    CHUNKS = 3
    SUBGRAPHS = 20
    WALKS = 22
    PRESAMPLED_WALKS = 23
    GRAPH_ORDER = 24
    GRAPH_STEPS = 25
    LINK_ORDER = 26
    LINK_ENDS = 27
    NEGATIVES = 28


def stream_key(seed: int, purpose: Purpose, *position: int) -> np.uint64:
    """Key of a stream at a position such as (epoch, batch, hop)."""
    return np.uint64(derive_key(seed, int(purpose), *position))


@numba.njit(inline="always")
def below(hashed, bound):
    """int64 uniform in [0, bound) from one hash; biased by less than bound / 2^53."""
    # Below 2^53 a signed conversion gives the same number; processors without AVX-512 have no unsigned one.
    return np.int64(np.float64(np.int64(hashed >> np.uint64(11))) * (1.0 / 9007199254740992.0) * bound)


@compiled
def hash_again(hashed, numbers):
    """uint64 [n]: hash64(hashed[i], numbers[i]), for draws that depend on two integers."""
    again = np.empty(len(hashed), np.uint64)
    for i in range(len(hashed)):
        again[i] = hash64(hashed[i], np.uint64(numbers[i]))
    return again


@compiled
def hash_ids(key, ids):
    """uint64 [n]: hash64(key, id) for every id."""
    hashed = np.empty(len(ids), np.uint64)
    for i in range(len(ids)):
        hashed[i] = hash64(key, np.uint64(ids[i]))
    return hashed
