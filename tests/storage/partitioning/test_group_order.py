"""Tests the order of locality groups, and the ranges into which groups are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.storage.partitioning.group_order import even_ranges, order_groups


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.data())
def test_ranges_are_about_even_and_none_is_empty(size, data):
    num_ranges = data.draw(st.integers(1, len(size)))
    bounds = even_ranges(np.array(size), num_ranges)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(size), num_ranges + 1)
    assert (np.diff(bounds) >= 1).all()
    if max(size) == 1:
        held = np.diff(np.concatenate([[0], np.cumsum(size)])[bounds])
        assert held.max() - held.min() <= 1


def test_ranges_end_nearest_to_the_even_ends():
    assert even_ranges(np.array([3, 3, 3, 3]), 2).tolist() == [0, 2, 4]
    assert even_ranges(np.array([10, 1, 1, 1, 1]), 2).tolist() == [0, 1, 5]
    assert even_ranges(np.array([1, 1, 1, 1, 10]), 2).tolist() == [0, 4, 5]
    assert even_ranges(np.array([1, 1, 10]), 3).tolist() == [0, 1, 2, 3]


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.integers(0, 4), min_size=n * n, max_size=n * n)), st.data())
def test_every_group_has_one_place(links, data):
    num_groups = int(len(links) ** 0.5)
    size = data.draw(st.lists(st.integers(1, 9), min_size=num_groups, max_size=num_groups))
    order = order_groups(np.array(links).reshape(num_groups, num_groups), np.array(size))
    assert sorted(order) == list(range(num_groups))


def line(num_groups: int, reach: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes groups along a line, with shuffled numbers. Each group is linked to the groups within `reach`. Returns links and the groups' places on the line."""
    place = np.random.default_rng(seed).permutation(num_groups)
    distance = abs(place[:, None] - place)
    return np.where(distance <= reach, 10, 0), place


@pytest.mark.parametrize("seed", range(3))
def test_halves_and_quarters_of_a_line_are_found(seed):
    links, place = line(64, 3, seed)
    found = place[order_groups(links, np.full(64, 7))]
    for parts in (2, 4):
        for piece in np.split(found, parts):
            assert np.ptp(piece) == len(piece) - 1  # the groups of a piece have consecutive places


def test_blocks_of_uneven_size_stay_together():
    block = np.repeat(np.arange(5), [16, 8, 4, 2, 2])
    order = np.random.default_rng(0).permutation(32)
    block = block[order]
    links = np.where(block[:, None] == block, 100, 1)
    found = block[order_groups(links, np.full(32, 9))]
    assert np.count_nonzero(np.diff(found)) == 4
