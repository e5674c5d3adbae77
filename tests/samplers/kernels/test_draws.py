"""All ways to draw without replacement give the same draw, and it is uniform."""

from decimal import Decimal, localcontext

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from graphmill.samplers.kernels import draws as draw_kernels
from graphmill.samplers.kernels.random_streams import hash_ids
from tests import reference_sampler as reference

WAYS = ("word", "bitmap", "scan", "hashed")


@numba.njit
def draw_word(key, degree, take, first, position):
    draw_kernels._draw_word(key, degree, take, first, position, 0)


def draw(way: str, key: int, degree: int, take: int, first: int = 0) -> list[int]:
    position = np.full(take, -1, np.int64)
    if way == "word":
        draw_word(np.uint64(key), degree, take, first, position)
    elif way == "bitmap":
        bitmap = np.zeros(degree // 64 + 1, np.uint64)
        draw_kernels._draw_bitmap(np.uint64(key), degree, take, bitmap, first, position, 0)
        assert not bitmap.any()  # all bits are 0 again for the next list
    elif way == "scan":
        draw_kernels._draw_scan(np.uint64(key), degree, take, first, position)
    else:
        draw_kernels._draw_hashed(np.uint64(key), degree, take, first, position)
    return position.tolist()


@given(
    key=st.integers(0, 2**64 - 1),
    degree=st.integers(1, 128) | st.integers(1, 400),
    share=st.floats(0, 1),
    first=st.integers(0, 2**40),
)
def test_every_way_draws_what_the_reference_draws(key: int, degree: int, share: float, first: int) -> None:
    take = int(share * degree)
    expected = [first + position for position in reference.floyd(key, degree, take)]
    assert all(draw(way, key, degree, take, first) == expected for way in WAYS[degree > 64 :])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("take", [1, 5, 11])
def test_every_entry_is_as_likely_as_any_other(way: str, take: int) -> None:
    degree, draws = 12, 6000
    counts = np.zeros(degree)
    for key in range(draws):
        counts[draw(way, key, degree, take)] += 1
    expected = draws * take / degree
    # Draws are without replacement, so the statistic must be scaled by this factor to have a chi-square distribution with degree - 1 degrees of freedom.
    statistic = ((counts - expected) ** 2 / expected).sum() * (degree - 1) / (degree - take)
    assert counts.sum() == draws * take
    assert chi2.sf(statistic, degree - 1) > 1e-4


@pytest.mark.parametrize("fanout", [0, 1, 47, 48, 49, 63, 64, 2047, 2048, 2049, 5000, -1])
def test_lists_of_every_length_side_by_side(fanout: int) -> None:
    """Lengths around the limits of these ways, with empty lists in between."""
    degree = np.array([0, 1, 48, 49, 63, 64, 65, 0, 2047, 2048, 2049, 4097, 10_000, 0])
    first = np.cumsum(degree) - degree
    keys = hash_ids(np.uint64(5), np.arange(len(degree)))
    count, position = draw_kernels.draw_uniform(first, degree, keys, fanout)
    end = 0
    for i in range(len(degree)):
        take = int(degree[i] if fanout < 0 else min(degree[i], fanout))
        whole = take == degree[i]
        chosen = list(range(take)) if whole else reference.floyd(reference.hash64(5, i), int(degree[i]), take)
        assert count[i] == take
        assert (position[end : end + take] - first[i]).tolist() == chosen
        end += take
    assert end == len(position)


@given(
    hashed=st.integers(0, 2**64 - 1)
    | st.integers(0, 63).map(lambda k: 2**k)
    | st.integers(0, 63).map(lambda k: 2**64 - 2**k)
)
def test_waiting_times_are_logarithms_that_every_machine_finds(hashed: int) -> None:
    """Results are close to the true logarithm. They are bit for bit the results of single IEEE operations, which are not fused or reordered and need no
    library."""
    number = (hashed >> 11) + 1
    bits = number.bit_length() - 1
    x = number / (1 << bits)
    if x > 1.4142135623730951:
        x, bits = 0.5 * x, bits + 1
    s = (x - 1.0) / (x + 1.0)
    total = 0.0
    for odd in range(21, 1, -2):
        total = (total + 1.0 / odd) * (s * s)
    found = draw_kernels.waiting_time(np.uint64(hashed))
    assert found == (53 - bits) * 0.6931471805599453 - 2.0 * (s + s * total)
    if number == 1 << 53:
        assert found == 0.0
    else:
        with localcontext(prec=60):
            true = -Decimal(number).ln() + 53 * Decimal(2).ln()
            assert abs(Decimal(float(found)) - true) <= Decimal("4e-16") * true
