"""Messages between processes as Arrow record batches, and back.

A message is one row: a field is a column, an array a list (a matrix a list of fixed-size lists), and the schema's metadata name the
message and the lengths and types of its arrays. Integers travel in the narrowest type that holds them (`samplers.travel`). Of a message with more than PIECE_BYTES each batch holds the next piece of every array, and the
other fields again. Other arrays are not copied on the way out, nor on the way in where one batch holds all and its memory is aligned; of several
batches each is copied to its place while the next one is on its way.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from samplers.messages import Reply, Request
from samplers.travel import travel_dtype
from storage.errors import StageError

PIECE_BYTES = 1 << 21  # docs/decisions/0031-answers-travel-by-arrow-flight.md
MESSAGE_BYTES = 1 << 22  # what both sides refuse: gRPC's own default


@dataclass(frozen=True)
class Failure:
    """Reply: why there is none."""

    kind: str
    """Name of the error's class."""
    text: str
    trace: str = ""
    """The server's process and traceback."""


Message = Request | Reply | Failure
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Request), *get_args(Reply), Failure)}
_KIND, _ARRAYS = b"message", b"arrays"


def pack(message: Message) -> Iterator[pa.RecordBatch]:
    """The batches of a message, at least one."""
    fields = {
        name: value.astype(travel_dtype(value), copy=False) if isinstance(value, np.ndarray) else value
        for name, value in vars(message).items()
    }
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    num_pieces = max(1, -(-sum(array.nbytes for array in arrays.values()) // PIECE_BYTES))
    described = {name: [len(array), getattr(message, name).dtype.str] for name, array in arrays.items()}
    metadata = {_KIND: type(message).__name__.encode(), _ARRAYS: json.dumps(described).encode()}
    for piece in range(num_pieces):
        columns = [_column(value, piece, num_pieces) for value in fields.values()]
        schema = pa.schema(list(zip(fields, (column.type for column in columns), strict=True)), metadata)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(value: Any, piece: int, num_pieces: int) -> pa.Array:
    if not isinstance(value, np.ndarray):
        # A key has 64 bits without a sign.
        is_large = isinstance(value, int | np.integer) and value >= 1 << 63
        return pa.array([value], pa.uint64() if is_large else None)
    part = value[len(value) * piece // num_pieces : len(value) * (piece + 1) // num_pieces]
    flat = pa.array(np.ascontiguousarray(part).reshape(-1))
    if value.ndim > 1:
        flat = pa.FixedSizeListArray.from_arrays(flat, value.shape[1])
    return pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat)


def unpack(batches: Iterable[pa.RecordBatch]) -> Message:
    """The message of these batches. Raises StageError where they hold none, or a part of one."""
    pieces = iter(batches)
    first = next(pieces, None)
    if first is None:
        raise StageError("expected a message, got an empty stream")
    metadata = first.schema.metadata or {}
    name = metadata.get(_KIND, b"").decode(errors="replace")
    if name not in _KINDS:
        raise StageError(f"expected one of {', '.join(_KINDS)}, got {name!r}; is Graphmill the same on all nodes?")
    described = json.loads(metadata.get(_ARRAYS, b"{}"))
    lengths: dict[str, int] = {field: length for field, (length, _) in described.items()}
    dtypes = {field: _number_type(dtype) for field, (_, dtype) in described.items()}
    values = {field.name: _value(first.column(index)) for index, field in enumerate(first.schema)}
    filled = {field: len(values[field]) for field in lengths}
    if filled == lengths:
        # gRPC puts a message anywhere; compiled loops want arrays as numpy allocates them.
        values |= {
            field: values[field].astype(dtype)
            for field, dtype in dtypes.items()
            if values[field].dtype != dtype or not values[field].flags.aligned
        }
    else:
        whole = {field: np.empty((lengths[field], *values[field].shape[1:]), dtypes[field]) for field in lengths}
        for field, start in filled.items():
            whole[field][:start] = values[field]
        for piece in pieces:
            for field in lengths:
                part = _value(piece.column(field))
                start, filled[field] = filled[field], filled[field] + len(part)
                whole[field][start : filled[field]] = part
        if filled != lengths:
            raise StageError(f"expected a {name} of {lengths} entries, got {filled}")
        values |= whole
    try:
        return _KINDS[name](**values)
    except TypeError as error:
        raise StageError(f"expected the fields of {name}: {error}; is Graphmill the same on all nodes?") from None


def _number_type(name: str) -> np.dtype:
    """Raises StageError where the type is not one of numbers."""
    if not re.fullmatch("[<|][iuf][1248]", name):
        raise StageError(f"expected arrays of numbers, got {name!r}; is Graphmill the same on all nodes?")
    return np.dtype(name)


def _value(column: pa.Array) -> Any:
    """A field's value; an array as a view."""
    if not pa.types.is_list(column.type):
        return column[0].as_py()
    values = column.values
    if pa.types.is_fixed_size_list(values.type):
        return values.values.to_numpy().reshape(-1, values.type.list_size)
    if pa.types.is_primitive(values.type):
        return values.to_numpy()
    return tuple(column[0].as_py())  # names
