"""Compares the loops that group nodes by owner and place rows with numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.samplers.kernels.rows import group_by_owner, own_rows, place_rows, take_rows


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compiles the loops, so that the times that hypothesis measures do not include compilation."""
    group_by_owner(np.array([0]), np.array([0, 1]))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(0, 10**6), max_size=50))
def test_groups_are_those_of_searchsorted(sizes, picks):
    offsets = np.cumsum([0, *sizes])
    if offsets[-1] == 0:
        return
    node = np.array(picks, np.int64) % offsets[-1]
    order, ends = group_by_owner(node, offsets)
    owner = np.searchsorted(offsets, node, side="right") - 1
    for p in range(len(sizes)):
        start = ends[p - 1] if p else 0
        assert np.array_equal(order[start : ends[p]], np.flatnonzero(owner == p))


@pytest.mark.parametrize(("bad", "dtype"), [(-1, np.int64), (30, np.int32), (2**40, np.int64)])
def test_an_id_of_no_one_is_told(bad, dtype):
    node = np.array([0, 29, 5, bad], dtype)
    with pytest.raises(IndexError) as told:
        group_by_owner(node, np.array([0, 10, 10, 30]))
    assert told.value.args == (3,)
    with pytest.raises(IndexError) as told:
        own_rows(node, 0, 30)
    assert told.value.args == (3,)
    assert own_rows(node[:3], -5, 40).tolist() == [5, 34, 10]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.int64])
@pytest.mark.parametrize("width", [None, 0, 1, 3, 8])
def test_rows_are_placed(dtype, width):
    rng = np.random.default_rng(0)
    shape = (50,) if width is None else (50, width)
    table = rng.integers(-100, 100, shape).astype(dtype)
    table.flags.writeable = False
    row, position = rng.integers(0, 50, 20), rng.permutation(40)[:20]
    out, want = np.zeros((40, *shape[1:]), dtype), np.zeros((40, *shape[1:]), dtype)
    place_rows(table, row, position, out)
    want[position] = table[row]
    assert np.array_equal(out, want)
    in_order = np.zeros((20, *shape[1:]), dtype)
    place_rows(table, row, None, in_order)
    assert np.array_equal(in_order, table[row])
    if width is not None:
        taken = np.zeros((20, width), dtype)
        take_rows(table, row, taken)
        assert np.array_equal(taken, table[row])
