"""Stored rows are decoded to float32 at their positions, with the result of `FeatureRows.decode`. A damaged row does not write elsewhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.kernels.features import decode_rows
from graphmill.storage.format.feature_rows import FeatureRows

DIM = 21
FORMS = [
    FeatureRows(DIM),
    FeatureRows(DIM, "float16"),
    FeatureRows(DIM, "int8"),
    FeatureRows(DIM, "float32", "bits"),
    FeatureRows(DIM, "float32", "indices", DIM),
    FeatureRows(DIM, "float32", "entries", DIM),
    FeatureRows(DIM, "float16", "entries", DIM),
]


def numbers_of(rows: FeatureRows, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((count, DIM)).astype(np.float32) * (rng.random((count, DIM)) < rng.random((count, 1)))
    return (numbers != 0).astype(np.float32) if rows.layout in ("bits", "indices") else numbers.astype(np.float32)


@pytest.mark.parametrize("rows", FORMS, ids=lambda rows: f"{rows.dtype}-{rows.layout}")
@given(seed=st.integers(0, 99), count=st.integers(0, 40))
def test_rows_are_placed(rows, seed, count):
    rng = np.random.default_rng(seed)
    table = rows.encode(numbers_of(rows, 50, seed))
    table.flags.writeable = False
    row, position = rng.integers(0, 50, count), rng.permutation(60)[:count]
    for some_row in (row, None):
        wanted = rows.decode(np.ascontiguousarray(table[row]))
        source = table if some_row is not None else np.ascontiguousarray(table[row])
        out = np.full((60, DIM), -9, np.float32)
        expected = out.copy()
        expected[position] = wanted
        decode_rows(rows, source, out, some_row, position)
        assert out.tobytes() == expected.tobytes()
        in_order = np.full((count, DIM), -9, np.float32)
        decode_rows(rows, source, in_order, some_row)
        assert in_order.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_every_float16():
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 16)
    found = np.empty(half.shape, np.float32)
    decode_rows(FeatureRows(16, "float16"), half, found)
    wanted = half.astype(np.float32)
    is_nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(found), is_nan)
    assert np.array_equal(found.view(np.uint32)[~is_nan], wanted.view(np.uint32)[~is_nan])


@pytest.mark.parametrize("rows", FORMS[4:], ids=lambda rows: f"{rows.dtype}-{rows.layout}")
def test_damage_writes_nowhere_else(rows):
    table = np.full((4, rows.stored_width), 255, np.uint8)
    out = np.full((6, DIM), 7, np.float32)
    decode_rows(rows, table, out[1:5])
    assert (out[0] == 7).all()
    assert (out[5] == 7).all()
    assert (out[1:5] == 0).all()


def test_rows_of_another_form_are_refused():
    with pytest.raises(ConfigError, match="expected feature rows of 25 uint8, got float32 of shape"):
        decode_rows(FORMS[2], np.zeros((3, DIM), np.float32), np.zeros((3, DIM), np.float32))
