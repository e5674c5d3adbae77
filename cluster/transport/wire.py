"""Converts messages between processes to bytes, and bytes to messages.

A message is a head and then arrays. The head is the length of the JSON in four bytes, then the JSON: the message's name, the types and shapes of its arrays,
its other fields, and the heads of inner messages. The arrays of inner messages come after the message's own arrays. Integers are sent in the narrowest type
that holds them (`graphmill.samplers.access.narrow_ints`), all other arrays as they are in memory. An array is copied only if its type changes. Otherwise it is
sent directly from its memory, and received directly into its final memory.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from graphmill.cluster.transport.embedding_messages import TableReply, TableRequest
from graphmill.core.errors import StageError
from graphmill.samplers.access.array_pool import ArrayPool
from graphmill.samplers.access.narrow_ints import narrow_dtype
from graphmill.samplers.vocabulary.messages import ForParts, PartReplies, Reply, Request

# Largest head, and largest total size of arrays. Both sides refuse larger messages.
HEAD_BYTES = 1 << 20
MESSAGE_BYTES = 1 << 34


@dataclass(frozen=True)
class Failure:
    """Reply: the error that a request raised."""

    kind: str
    """Name of the class of the error."""
    text: str
    trace: str = ""
    """The process id and the traceback of the server."""


Message = Request | Reply | TableRequest | TableReply | Failure
_WITHIN = {ForParts: "requests", PartReplies: "replies"}  # message class: the field that holds inner messages
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
_LENGTH_BYTES = 4
# Memory for replies is reused, because page faults of new memory take as long as receiving the bytes
ROOM = ArrayPool(1 << 28)
_SAME = "is Graphmill the same on all nodes?"


def pack(message: Message) -> list[memoryview]:
    """Returns the bytes of a message, in order. Raises StageError if there are more than `MESSAGE_BYTES`."""
    described, arrays = _described(message)
    _check_bytes(type(message).__name__, sum(array.nbytes for array in arrays))
    head = json.dumps(described, default=int).encode()
    parts = [memoryview(len(head).to_bytes(_LENGTH_BYTES, "little") + head)]
    return parts + [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]


def _described(message: Message) -> tuple[list[Any], list[np.ndarray]]:
    """Returns (a message's head as plain values, the message's arrays in the types in which they are sent)."""
    arrays, described, others, within = list[np.ndarray](), {}, {}, {}
    for name, value in vars(message).items():
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value, narrow_dtype(value))
            described[name] = value.dtype.str, array.dtype.str, value.shape
            arrays.append(array)
        elif name == _WITHIN.get(type(message)):
            inner = [_described(message_within) for message_within in value]
            within[name] = [head for head, _ in inner]
            arrays += [array for _, own in inner for array in own]
        else:
            others[name] = value
    return [type(message).__name__, described, others, *([within] if within else [])], arrays


def unpack(fill: Callable[[memoryview], None], room: ArrayPool = ROOM) -> Message:
    """Returns the next message. `fill` fills memory with the next bytes; arrays take memory from `room`. Raises StageError if the bytes are not a message."""
    length = bytearray(_LENGTH_BYTES)
    fill(memoryview(length))
    length_of_head = int.from_bytes(length, "little")
    if length_of_head > HEAD_BYTES:
        raise StageError(f"expected a message's head of at most {HEAD_BYTES} bytes, got {length_of_head}; {_SAME}")
    head = bytearray(length_of_head)
    fill(memoryview(head))
    try:
        parsed = json.loads(head)
    except (ValueError, RecursionError):
        raise _no_message(bytes(head)) from None
    expected = _head(parsed)
    _check_bytes(expected.name, expected.num_bytes)
    return expected.read(fill, room)


@dataclass(frozen=True)
class _Head:
    """The parsed head of a message."""

    name: str
    arrays: dict[str, tuple[np.dtype, np.dtype, tuple[int, ...]]]  # type, sent type, shape
    others: dict[str, Any]
    within: "dict[str, tuple[_Head, ...]]"

    @property
    def num_bytes(self) -> int:
        """Size of all arrays, including the arrays of inner messages."""
        own = sum(math.prod(shape) * sent_as.itemsize for _, sent_as, shape in self.arrays.values())
        return own + sum(one.num_bytes for heads in self.within.values() for one in heads)

    def read(self, fill: Callable[[memoryview], None], room: ArrayPool) -> Message:
        """Reads the arrays that come next and returns the message. Raises StageError if the fields do not fit the message's class."""
        values: dict[str, Any] = {
            field: tuple(value) if isinstance(value, list) else value for field, value in self.others.items()
        }
        for field, (own, sent_as, shape) in self.arrays.items():
            array = _array(room, shape, sent_as)
            if array.nbytes:
                fill(array.reshape(-1).view(np.uint8).data)
            values[field] = array.astype(own, copy=False)
        for field, heads in self.within.items():
            values[field] = tuple(one.read(fill, room) for one in heads)
        try:
            return _KINDS[self.name](**values)
        except TypeError as error:
            raise StageError(f"expected the fields of {self.name}: {error}; {_SAME}") from None


def _head(parsed: Any, *, is_within: bool = False) -> _Head:
    """Makes a head from plain values. Raises StageError if the values are not a head."""
    try:
        name, described, others, *more = parsed
        sizes = [size for _, _, shape in described.values() for size in shape]
        is_one = isinstance(others, dict) and all(type(size) is int and size >= 0 for size in sizes)
        inner = {field: list(heads) for field, heads in more[0].items()} if more else {}
        is_one = is_one and len(more) <= (0 if is_within else 1)
    except (TypeError, ValueError, AttributeError):
        raise _no_message(parsed) from None
    if not is_one:
        raise _no_message(parsed)
    if not isinstance(name, str) or name not in _KINDS:
        raise StageError(f"expected one of {', '.join(_KINDS)}, got {name!r}; {_SAME}")
    arrays = {
        field: (_number_type(own), _number_type(sent_as), tuple(shape))
        for field, (own, sent_as, shape) in described.items()
    }
    within = {field: tuple(_head(one, is_within=True) for one in heads) for field, heads in inner.items()}
    return _Head(name, arrays, others, within)


def _no_message(got: Any) -> StageError:
    text = got[:80] if isinstance(got, bytes) else json.dumps(got)[:80].encode()
    return StageError(f"expected a message, got {text!r}; {_SAME}")


def _check_bytes(name: str, num_bytes: int) -> None:
    if num_bytes > MESSAGE_BYTES:
        raise StageError(
            f"expected at most {MESSAGE_BYTES} bytes of {name}, got {num_bytes}; ask for fewer nodes at once"
        )


def _array(room: ArrayPool, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return room.empty(shape, dtype)
    except (MemoryError, ValueError, OverflowError) as error:
        raise StageError(f"expected an array that fits in memory, got one of the shape {shape}: {error}") from None


def _number_type(name: str) -> np.dtype:
    """Raises StageError if the type is not numeric."""
    if not isinstance(name, str) or not re.fullmatch("<[iu][248]|<f[248]|[|][iu]1", name):
        raise StageError(f"expected arrays of numbers, got {name!r}; {_SAME}")
    return np.dtype(name)
