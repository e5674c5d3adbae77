"""Messages between processes as Arrow record batches, and back.

A message is one row. A column holds the bytes of an array; the schema's metadata are JSON: the message's name, the types and shapes of its arrays,
its other fields, and how many batches it has. Integers travel in the narrowest type that holds them (`samplers.travel`). Of a message
with more than PIECE_BYTES each batch holds the next piece of every array. Other arrays are not copied on the way out, nor on the way in where one
batch holds all and its memory is aligned; of several batches each is copied to its place while the next one is on its way.

Few Arrow objects are made, because each takes 10 to 20 µs in a thread that has just been woken.
"""

import json
import math
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
_HEAD = b"message"
_SAME = "is Graphmill the same on all nodes?"
_BYTES = pa.binary()


def pack(message: Message) -> Iterator[pa.RecordBatch]:
    """The batches of a message, at least one."""
    arrays, described, others = list[np.ndarray](), {}, {}
    for name, value in vars(message).items():
        if isinstance(value, np.ndarray):
            arrays.append(np.ascontiguousarray(value, travel_dtype(value)))
            described[name] = value.dtype.str, arrays[-1].dtype.str, value.shape
        else:
            others[name] = value
    num_pieces = max(1, -(-sum(array.nbytes for array in arrays) // PIECE_BYTES))
    head = json.dumps([type(message).__name__, described, others, num_pieces], default=int)
    schema = pa.schema([(name, _BYTES) for name in described], {_HEAD: head.encode()})
    for piece in range(num_pieces):
        parts = [array[_rows(len(array), piece, num_pieces)].reshape(-1) for array in arrays]
        ends = (pa.py_buffer(np.array([0, part.nbytes], np.int32)) for part in parts)
        columns = [
            pa.Array.from_buffers(_BYTES, 1, [None, end, pa.py_buffer(part)])
            for end, part in zip(ends, parts, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows(length: int, piece: int, num_pieces: int) -> slice:
    """Of an array: those in this piece."""
    return slice(length * piece // num_pieces, length * (piece + 1) // num_pieces)


def unpack(batches: Iterable[pa.RecordBatch]) -> Message:
    """The message of these batches. Raises StageError where they hold none, or a part of one."""
    pieces = iter(batches)
    first = next(pieces, None)
    if first is None:
        raise StageError("expected a message, got an empty stream")
    name, described, others, num_pieces = _head(first)
    values: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value for field, value in others.items()
    }
    dtypes = {field: (_number_type(own), _number_type(sent_as)) for field, (own, sent_as, _) in described.items()}
    shapes = {field: tuple(shape) for field, (_, _, shape) in described.items()}
    if num_pieces == 1:
        for index, (field, (own, sent_as)) in enumerate(dtypes.items()):
            array = _part(first, index, sent_as, shapes[field], name)
            # gRPC puts a message anywhere; compiled loops want arrays as numpy allocates them.
            values[field] = array if own == sent_as and array.flags.aligned else array.astype(own)
    else:
        values |= {field: np.empty(shape, dtypes[field][0]) for field, shape in shapes.items()}
        batch: pa.RecordBatch | None = first
        for piece in range(num_pieces):
            if batch is None:
                raise StageError(f"expected a {name} in {num_pieces} pieces, got {piece}")
            for index, (field, (_, sent_as)) in enumerate(dtypes.items()):
                rows = _rows(len(values[field]), piece, num_pieces)
                shape = (rows.stop - rows.start, *shapes[field][1:])
                values[field][rows] = _part(batch, index, sent_as, shape, name)
            batch = next(pieces, None) if piece + 1 < num_pieces else None
    try:
        return _KINDS[name](**values)
    except TypeError as error:
        raise StageError(f"expected the fields of {name}: {error}; {_SAME}") from None


def _head(batch: pa.RecordBatch) -> tuple[str, dict[str, Any], dict[str, Any], int]:
    """Name, arrays, other fields and number of pieces. Raises StageError where they are not there."""
    told = (batch.schema.metadata or {}).get(_HEAD, b"")
    try:
        name, described, others, num_pieces = json.loads(told)
    except (TypeError, ValueError):
        raise StageError(f"expected a message, got {told[:80]!r}; {_SAME}") from None
    if name not in _KINDS:
        raise StageError(f"expected one of {', '.join(_KINDS)}, got {name!r}; {_SAME}")
    return name, described, others, num_pieces


def _number_type(name: str) -> np.dtype:
    """Raises StageError where the type is not one of numbers."""
    if not re.fullmatch("[<|][iuf][1248]", name):
        raise StageError(f"expected arrays of numbers, got {name!r}; {_SAME}")
    return np.dtype(name)


def _part(batch: pa.RecordBatch, index: int, dtype: np.dtype, shape: tuple[int, ...], name: str) -> np.ndarray:
    """A column's array of this shape, as a view. Raises StageError where it holds another number of bytes."""
    count, (_, ends, data) = math.prod(shape), batch.column(index).buffers()
    sent = int(np.frombuffer(ends, np.int32, 2)[1])
    if sent != count * dtype.itemsize:
        what = f"{name}'s {batch.schema.names[index]}"
        raise StageError(f"expected {count * dtype.itemsize} bytes of {what}, got {sent}; {_SAME}")
    return np.frombuffer(data if count else b"", dtype, count).reshape(shape)
