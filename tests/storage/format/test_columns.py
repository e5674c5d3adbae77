"""Columns of Arrow as numpy views, with the parts of Arrow's layout that a slice has."""

import numpy as np
import pyarrow as pa
import pytest

from graphmill.core.errors import FormatError
from graphmill.storage.format.arrow_files import array_view, numpy_column


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64, np.float16, np.float32, np.float64])
def test_a_view_is_what_arrow_converts_to_and_cannot_be_written(dtype: type) -> None:
    array = pa.array(np.arange(9).astype(dtype))
    for part in (array, array[2:5], array[9:], pa.array([], array.type)):
        view = array_view(part)
        assert view.dtype == dtype
        assert view.tolist() == part.to_pylist()
        assert len(view) == 0 or not view.flags.writeable


def test_rows_of_a_slice_are_its_own() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    batch = pa.record_batch({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3)})
    assert numpy_column(batch, "x", "float32", "file", 3).tolist() == rows.tolist()
    assert numpy_column(batch.slice(1, 2), "x", "float32", "file", 3).tolist() == rows[1:3].tolist()
    holes = pa.FixedSizeListArray.from_arrays(pa.array([1.0, None, 3.0], pa.float32()), 3)
    with pytest.raises(FormatError, match="expected no nulls, found 1"):
        numpy_column(pa.record_batch({"x": holes}), "x", "float32", "file", 3)
