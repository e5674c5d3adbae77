import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.counter_random import Permutation, derive_key, hash_counters, unit_interval


def test_is_splitmix64():
    # The first outputs of Vigna's splitmix64.c for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hash_counters(1234567, np.arange(5)).tolist() == expected


def test_keys_of_purposes_and_seeds_differ():
    keys = {derive_key(seed, *path) for seed in (0, 1, -1) for path in ((), (0,), (1,), (0, 1), (1, 0))}
    assert len(keys) == 15


def test_unit_interval_is_uniform():
    values = unit_interval(hash_counters(3, np.arange(100_000)))
    assert 0 <= values.min() < values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45  # chi-square, 19 degrees of freedom: p < 0.001


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_permutation_is_a_bijection_and_inverts(size, key):
    permutation = Permutation(size, key)
    image = permutation.forward(np.arange(size))
    assert np.array_equal(np.sort(image), np.arange(size))
    assert np.array_equal(permutation.backward(image), np.arange(size))


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 2**40 - 1])
def test_permutation_of_large_sizes_inverts(size):
    values = np.linspace(0, size - 1, 1000).astype(np.int64)
    permutation = Permutation(size, 9)
    image = permutation.forward(values)
    assert 0 <= image.min() <= image.max() < size
    assert np.array_equal(permutation.backward(image), values)


def test_permutation_scatters():
    image = Permutation(100_000, 4).forward(np.arange(100_000))
    # Neighboring inputs are mapped far from each other. Each tenth of the output range gets about a tenth of the first
    # tenth of the inputs.
    assert np.median(np.abs(np.diff(image))) > 10_000
    counts = np.bincount(image[:10_000] // 10_000, minlength=10)
    assert np.all(np.abs(counts - 1000) < 150)
