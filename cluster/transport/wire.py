"""Converts messages between processes to bytes, and bytes to messages.

A message is a head and then arrays. The head is the length of the JSON in four bytes, then the JSON: the message's name, the types and shapes of its arrays,
its other fields, and the heads of inner messages. The arrays of inner messages come after the message's own arrays. Arrays are sent as they are in memory, but
integers in the narrowest type that holds them (`graphmill.samplers.access.narrow_ints`). An array is copied only if its type changes. Otherwise it is sent
directly from its memory, and received directly into its final memory. Small arrays that follow each other are received together and then copied, because a
message for many partitions has hundreds of them, and receiving each by itself takes longer than the copies.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
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


@dataclass(frozen=True)
class Compiling:
    """Sent before a reply, again and again: the server compiles its loops, and the reply comes later. It extends the deadline of the request."""


Message = Request | Reply | TableRequest | TableReply | Failure | Compiling
_WITHIN = {ForParts: "requests", PartReplies: "replies"}  # message class: the field that holds inner messages
_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Message)}
_LENGTH_BYTES = 4
_SMALL_BYTES, _SMALL_DIMENSIONS = 1 << 15, 2
_NUMBER_TYPES = {
    name: np.dtype(name) for name in ["<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "|i1", "|u1"]
}
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
    sizes = list(expected.sizes())
    _check_bytes(expected.name, sum(num_bytes for num_bytes, _ in sizes))
    return expected.read(_Arriving(fill, room, sizes))


class _Arriving:
    """The arrays of a message, which arrive one after another."""

    def __init__(self, fill: Callable[[memoryview], None], room: ArrayPool, sizes: list[tuple[int, bool]]) -> None:
        self._fill, self._room, self._sizes = fill, room, sizes
        self._next = self._read = 0  # number of the next array; bytes of `_together` that are read
        self._together = bytearray()  # the bytes of small arrays that follow each other

    def next_array(self, own: np.dtype, sent_as: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """The next array, in its own type."""
        num_bytes, is_small = self._sizes[self._next]
        if not is_small:
            self._next += 1
            array = _array(self._room, shape, sent_as)
            if num_bytes:
                self._fill(array.reshape(-1).view(np.uint8).data)
            return array.astype(own, copy=False)
        if self._read == len(self._together):
            small = takewhile(lambda each: each[1], self._sizes[self._next :])
            self._together, self._read = bytearray(sum(size for size, _ in small)), 0
            self._fill(memoryview(self._together))
        self._next, start = self._next + 1, self._read
        self._read += num_bytes
        received = np.frombuffer(self._together, sent_as, math.prod(shape), start)
        return received.reshape(shape).astype(own)


@dataclass(frozen=True)
class _Head:
    """The parsed head of a message."""

    name: str
    arrays: dict[str, tuple[np.dtype, np.dtype, tuple[int, ...]]]  # type, sent type, shape
    others: dict[str, Any]
    within: "dict[str, tuple[_Head, ...]]"

    def sizes(self) -> Iterator[tuple[int, bool]]:
        """(bytes, whether the array is small) of each array, in the order in which they are sent."""
        for _, sent_as, shape in self.arrays.values():
            num_bytes = math.prod(shape) * sent_as.itemsize
            yield num_bytes, 0 < num_bytes <= _SMALL_BYTES and len(shape) <= _SMALL_DIMENSIONS
        for heads in self.within.values():
            yield from chain.from_iterable(one.sizes() for one in heads)

    def read(self, arriving: "_Arriving") -> Message:
        """Reads the arrays that come next and returns the message. Raises StageError if the fields do not fit the message's class."""
        values: dict[str, Any] = {
            field: tuple(value) if isinstance(value, list) else value for field, value in self.others.items()
        }
        for field, (own, sent_as, shape) in self.arrays.items():
            values[field] = arriving.next_array(own, sent_as, shape)
        for field, heads in self.within.items():
            values[field] = tuple(one.read(arriving) for one in heads)
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


def _number_type(name: Any) -> np.dtype:
    """Raises StageError if the type is not numeric."""
    if isinstance(name, str) and name in _NUMBER_TYPES:
        return _NUMBER_TYPES[name]
    raise StageError(f"expected arrays of numbers, got {name!r}; {_SAME}")
