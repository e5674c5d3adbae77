"""Converts columns of Python libraries (numpy, torch, lists, pandas, polars, Arrow) to numpy arrays. Refuses other values with a one-line error."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.ingestion.string_ids import is_text_type

NUMBERS, TIMES = "biuf", "iufM"  # kinds of numpy dtypes; NUMBERS: truth values and numbers, TIMES: numbers and dates
_REFUSALS = (TypeError, ValueError, RuntimeError, OverflowError, pa.ArrowException)


def as_array(values: Any, noun: str, kinds: str = NUMBERS) -> np.ndarray:
    """Converts a column or matrix of any library to numpy. Rows keep their order. Missing values (None, null, pandas' NA) become NaN.

    Numpy arrays are returned unchanged; mapped arrays are not read. torch's short floats (bfloat16, float16, float8) become float32. A table becomes a matrix
    with its columns; a column of lists of equal length becomes a matrix with a row for each list. For sparse tensors, lists of different lengths, text
    and objects, raises a DataError whose message begins with `noun`.
    """
    expected = "numbers or dates" if kinds == TIMES else "numbers"
    try:
        array = _converted(values)
    except _REFUSALS as error:
        raise DataError(f"{noun}: expected {expected}, got {type(values).__name__}: {one_line(error)[:160]}") from None
    if not array.ndim or (array.dtype.kind not in kinds and array.size):
        raise DataError(f"{noun}: expected {expected}, got {array.dtype} of {type(values).__name__}; convert them")
    return array


def as_text(values: Any) -> pa.LargeStringArray | None:
    """Converts a column of words of any library to Arrow. Missing words become nulls. Returns None if `values` is not a column of words."""
    if hasattr(values, "detach") or getattr(getattr(values, "dtype", None), "kind", "O") not in "OU":
        return None
    try:
        column = values.to_arrow() if hasattr(values, "to_arrow") else values
        column = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
    except _REFUSALS:
        return None
    return (
        pa.concat_arrays(pa.chunked_array(column.cast(pa.large_string())).chunks) if is_text_type(column.type) else None
    )


def _converted(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        if str(getattr(values, "layout", "no layout")) != "torch.strided":
            raise ValueError(f"a dense tensor is needed, not {getattr(values, 'layout', 'a sparse one')}")
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    if isinstance(values, np.ma.MaskedArray):
        values = np.where(values.mask, np.nan, values.data) if values.mask.any() else values.data
    if hasattr(values, "iloc"):  # from pandas
        values = pa.array(values, from_pandas=True) if values.ndim == 1 else pa.Table.from_pandas(values, None, False)
    elif hasattr(values, "to_arrow"):  # from polars
        values = values.to_arrow()
    if isinstance(values, pa.Table | pa.RecordBatch):
        return np.stack([_of_arrow(column) for column in values.columns], axis=1)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _of_arrow(values)
    if isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        values = [_converted(value) for value in values]
    array = np.asarray(values)
    if array.dtype != object:
        return array
    rows = _of_arrow(pa.array(array.ravel().tolist(), from_pandas=True))
    return rows.reshape(array.shape + rows.shape[1:])


def _of_arrow(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if hasattr(column.type, "value_type"):  # a column of lists
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1 or lengths == [None]:
            raise ValueError(f"lists of one length are needed, got lengths {', '.join(map(str, lengths[:3]))}")
        return _of_arrow(pc.list_flatten(column)).reshape(len(column), *lengths or [0])
    unlike = pa.types.is_decimal(column.type) or pa.types.is_null(column.type)
    if unlike or (pa.types.is_boolean(column.type) and column.null_count):
        column = column.cast(pa.float64())
    return np.asarray(column)
