"""Messages between processes as bytes, and back.

A message is its head and its arrays. The head is four bytes, its length, and JSON: the message's name, the types and shapes of its arrays, and its
other fields. The arrays follow as they lie in memory, integers in the narrowest type that holds them (`samplers.travel`). An array is copied only
where its type changes: it is sent from where it lies, and received where it will lie.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from cluster.table_messages import TableReply, TableRequest
from samplers.array_pool import ArrayPool
from samplers.messages import Reply, Request
from samplers.travel import travel_dtype
from storage.errors import StageError

# What both sides refuse.
HEAD_BYTES = 1 << 20
MESSAGE_BYTES = 1 << 34


@dataclass(frozen=True)
class Failure:
    """Reply: why there is none."""

    kind: str
    """Name of the error's class."""
    text: str
    trace: str = ""
    """The server's process and traceback."""


Message = Request | Reply | TableRequest | TableReply | Failure
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
_LENGTH_BYTES = 4
_ROOM = ArrayPool(1 << 28)  # of replies: faulting their pages in takes as long as receiving them
_SAME = "is Graphmill the same on all nodes?"


def pack(message: Message) -> list[memoryview]:
    """The bytes of a message, to be sent one after another. Raises StageError where they are more than the bound."""
    arrays, described, others = list[np.ndarray](), {}, {}
    for name, value in vars(message).items():
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value, travel_dtype(value))
            described[name] = value.dtype.str, array.dtype.str, value.shape
            arrays.append(array)
        else:
            others[name] = value
    _check_bytes(type(message).__name__, sum(array.nbytes for array in arrays))
    head = json.dumps([type(message).__name__, described, others], default=int).encode()
    parts = [memoryview(len(head).to_bytes(_LENGTH_BYTES, "little") + head)]
    return parts + [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]


def unpack(fill: Callable[[memoryview], None]) -> Message:
    """The message that comes next; `fill` fills memory with the next bytes. Raises StageError for bytes that are no message."""
    length = bytearray(_LENGTH_BYTES)
    fill(memoryview(length))
    told = int.from_bytes(length, "little")
    if told > HEAD_BYTES:
        raise StageError(f"expected a message's head of at most {HEAD_BYTES} bytes, got {told}; {_SAME}")
    head = bytearray(told)
    fill(memoryview(head))
    name, described, others = _head(head)
    arrays: dict[str, tuple[np.dtype, np.dtype, tuple[int, ...]]] = {
        field: (_number_type(own), _number_type(sent_as), tuple(shape))
        for field, (own, sent_as, shape) in described.items()
    }
    _check_bytes(name, sum(math.prod(shape) * sent_as.itemsize for _, sent_as, shape in arrays.values()))
    values: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value for field, value in others.items()
    }
    for field, (own, sent_as, shape) in arrays.items():
        array = _room(shape, sent_as)
        if array.nbytes:
            fill(array.reshape(-1).view(np.uint8).data)
        values[field] = array.astype(own, copy=False)
    try:
        return _KINDS[name](**values)
    except TypeError as error:
        raise StageError(f"expected the fields of {name}: {error}; {_SAME}") from None


def _head(head: bytearray) -> tuple[str, dict[str, tuple[str, str, list[int]]], dict[str, Any]]:
    """Name, arrays and other fields. Raises StageError where they are not there."""
    try:
        name, described, others = json.loads(head)
        sizes = [size for _, _, shape in described.values() for size in shape]
        is_one = isinstance(others, dict) and all(type(size) is int and size >= 0 for size in sizes)
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise StageError(f"expected a message, got {bytes(head[:80])!r}; {_SAME}") from None
    if not is_one:
        raise StageError(f"expected a message, got {bytes(head[:80])!r}; {_SAME}")
    if not isinstance(name, str) or name not in _KINDS:
        raise StageError(f"expected one of {', '.join(_KINDS)}, got {name!r}; {_SAME}")
    return name, described, others


def _check_bytes(name: str, num_bytes: int) -> None:
    if num_bytes > MESSAGE_BYTES:
        raise StageError(
            f"expected at most {MESSAGE_BYTES} bytes of {name}, got {num_bytes}; ask for fewer nodes at once"
        )


def _room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return _ROOM.empty(shape, dtype)
    except (MemoryError, ValueError, OverflowError) as error:
        raise StageError(f"expected an array that fits in memory, got one of the shape {shape}: {error}") from None


def _number_type(name: str) -> np.dtype:
    """Raises StageError where the type is not one of numbers."""
    if not isinstance(name, str) or not re.fullmatch("<[iu][248]|<f[248]|[|][iu]1", name):
        raise StageError(f"expected arrays of numbers, got {name!r}; {_SAME}")
    return np.dtype(name)
