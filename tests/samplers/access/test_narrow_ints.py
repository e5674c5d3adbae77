"""Integers travel in the narrowest type that holds all values. Counts of bytes use the same type."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.samplers.access.narrow_ints import narrow_bytes, narrow_dtype

TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 70_000), min_size=1), st.data())
def test_the_narrowest_type(values, data):
    array = np.array(values, np.int64)
    fitting = [t for t in TYPES if np.iinfo(t).min <= min(values) and max(values) <= np.iinfo(t).max]
    dtype = narrow_dtype(array)
    assert dtype.itemsize == min(np.dtype(t).itemsize for t in fitting)
    assert array.astype(dtype).astype(np.int64).tolist() == values
    assert narrow_bytes(array) == len(values) * dtype.itemsize
    position = np.array(data.draw(st.lists(st.integers(0, len(values) - 1))), np.int64)
    assert narrow_bytes(array, position) == narrow_bytes(array[position])


@pytest.mark.parametrize(
    "array", [np.ones(3, np.float32), np.ones(3, np.float16), np.zeros(0, np.int64), np.ones((2, 3), np.uint8)]
)
def test_others_stay(array):
    assert narrow_dtype(array) == array.dtype
    assert narrow_bytes(array) == array.nbytes


def test_a_stored_id_is_never_widened():
    assert (
        narrow_dtype(np.array([2**31 - 1], np.int32)) == np.int32
        or narrow_dtype(np.array([2**31 - 1], np.int32)) == np.uint32
    )
    assert narrow_bytes(np.array([2**63], np.uint64)) == 8
