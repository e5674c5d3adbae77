"""The compiled generator, the plain generator and SplitMix64 give the same numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.counter_random import hash_counters
from graphmill.samplers.kernels.random_streams import Purpose, below, hash64, hash_ids, stream_key
from tests import reference_sampler as reference

WORDS = st.integers(0, 2**64 - 1)


def test_the_first_outputs_of_splitmix64() -> None:
    # Outputs of Vigna's splitmix64.c for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hash_ids(np.uint64(1234567), np.arange(5)).tolist() == expected


@given(key=WORDS, counters=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_compiled_plain_and_reference_hashes_agree(key: int, counters: list[int]) -> None:
    expected = [reference.hash64(key, counter) for counter in counters]
    assert hash_ids(np.uint64(key), np.asarray(counters)).tolist() == expected
    assert hash_counters(key, np.asarray(counters)).tolist() == expected
    assert int(hash64(np.uint64(key), np.uint64(counters[0]))) == expected[0]


@given(seed=st.integers(-(2**63), 2**64 - 1), path=st.lists(st.integers(0, 2**40), max_size=4))
def test_keys_of_streams(seed: int, path: list[int]) -> None:
    assert int(stream_key(seed, Purpose.CHUNKS, *path)) == reference.stream_key(seed, reference.CHUNKS, *path)


@given(hashed=WORDS, bound=st.integers(1, 2**53))
def test_below_its_bound_always(hashed: int, bound: int) -> None:
    assert 0 <= below(np.uint64(hashed), bound) == reference.below(hashed, bound) < bound


def test_the_largest_hash_stays_below_every_bound() -> None:
    bounds = [*range(1, 1000), *(2**k + d for k in range(10, 53) for d in (-1, 0, 1))]
    assert all(below(np.uint64(2**64 - 1), bound) == bound - 1 for bound in bounds)


def test_positions_and_purposes_do_not_share_streams() -> None:
    keys = {
        int(stream_key(seed, purpose, epoch, batch))
        for seed in range(5)
        for purpose in Purpose
        for epoch in range(10)
        for batch in range(10)
    }
    assert len(keys) == 5 * len(Purpose) * 100
    assert stream_key(0, Purpose.CHUNKS, 1, 2) != stream_key(0, Purpose.CHUNKS, 2, 1)
    assert stream_key(0, Purpose.CHUNKS, 0) != stream_key(0, Purpose.CHUNKS, 0, 0)


def test_purposes_keep_their_numbers() -> None:
    assert (Purpose.ROOT_ORDER, Purpose.NEIGHBORS, Purpose.CHUNKS) == (1, 2, 3)
