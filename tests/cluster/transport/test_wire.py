"""Messages are packed into bytes and read back bit for bit. Bytes that are not a message are refused with one line."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.transport.wire import HEAD_BYTES, MESSAGE_BYTES, Failure, Message, pack, unpack
from graphmill.core.errors import StageError
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    ForParts,
    NodeList,
    NodeRows,
    PartReplies,
    PartReply,
    PartRequest,
    SampleNeighbors,
)

KINDS = (*get_args(PartRequest), *get_args(PartReply), Failure)
DTYPES = (np.int8, np.int32, np.int64, np.float16, np.float32)
VALUES: dict[Any, st.SearchStrategy] = {
    int: st.integers(-(2**63), 2**64 - 1),
    bool: st.booleans(),
    str: st.text(),
    type(None): st.none(),
    tuple: st.lists(st.text(min_size=1), max_size=3).map(tuple),
}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    length, width = draw(st.integers(0, 40)), draw(st.none() | st.integers(1, 5))
    shape = (length,) if width is None else (length, width)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    array = rng.integers(-100, 100, shape).astype(draw(st.sampled_from(DTYPES)))
    return array[::-1] if draw(st.booleans()) else array  # not contiguous


def value_of(hint: Any) -> st.SearchStrategy:
    if hint is np.ndarray:
        return arrays()
    if hint in VALUES:
        return VALUES[hint]
    if getattr(hint, "__origin__", None) is tuple:
        return VALUES[tuple]
    choices = get_args(hint)
    if all(isinstance(choice, str) for choice in choices):
        return st.sampled_from(choices)
    return st.one_of(*(value_of(choice) for choice in choices))


def same(found: Message, expected: Message) -> None:
    assert type(found) is type(expected)
    for field in fields(expected):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, np.ndarray):
            assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
            assert ours.flags.aligned
            assert ours.flags.c_contiguous
        else:
            assert (type(ours), ours) == (type(theirs), theirs)


def reader(sent: bytes) -> Callable[[memoryview], None]:
    """Returns a function that copies the next bytes of `sent` into the given memory."""
    left = memoryview(sent)

    def fill(memory: memoryview) -> None:
        nonlocal left
        if len(memory) > len(left):
            raise EOFError
        memory[:], left = left[: len(memory)], left[len(memory) :]

    return fill


def through_bytes(message: Message) -> Message:
    return unpack(reader(b"".join(pack(message))))


def test_messages_within_a_message_arrive_as_they_were() -> None:
    requests = (
        SampleNeighbors(np.arange(5), 3, 2**64 - 1),
        FetchRows(np.empty(0, np.int32), False, 1),
        FetchRows(np.arange(3)),
    )
    replies = (
        NodeList(np.arange(3), np.arange(3) * 2**40),
        NodeRows(np.arange(2), np.ones((2, 3), np.float32), None, np.zeros(2, np.int8)),
    )
    asked = through_bytes(ForParts(("a--b--c", "paper", "author"), requests))
    told = through_bytes(PartReplies(replies))
    assert isinstance(asked, ForParts)
    assert isinstance(told, PartReplies)
    assert asked.parts == ("a--b--c", "paper", "author")
    for found, expected in zip((*asked.requests, *told.replies), (*requests, *replies), strict=True):
        same(found, expected)
    assert through_bytes(ForParts((), ())) == ForParts((), ())


@pytest.mark.parametrize(
    ("within", "message"),
    [
        ('{"requests": 3}', "expected"),
        ('{"requests": [["FetchRows", {}]]}', "expected"),
        ("[]", "expected"),
        ('{"requests": [["Nothing", {}, {}]]}', "expected"),
        ('{"requests": [["ForParts", {}, {"parts": []}, {"requests": []}]]}', "expected a message"),  # nested
    ],
)
def test_what_is_no_message_within_one_is_refused(within: str, message: str) -> None:
    head = f'["ForParts", {{}}, {{"parts": ["a"]}}, {within}]'.encode()
    with pytest.raises(StageError, match=message):
        unpack(reader(len(head).to_bytes(4, "little") + head))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_message_arrives_as_it_was(kind: type, data: st.DataObject) -> None:
    hints = get_type_hints(kind)
    message = kind(**{field.name: data.draw(value_of(hints[field.name])) for field in fields(kind)})
    same(through_bytes(message), message)


def test_messages_follow_each_other() -> None:
    messages = [SampleNeighbors(np.arange(3), 2, 0), NodeList(np.arange(0), np.arange(0)), FetchRows(np.arange(9))]
    fill = reader(b"".join(part for message in messages for part in pack(message)))
    for message in messages:
        same(unpack(fill), message)


def test_arrays_are_sent_from_where_they_lie() -> None:
    rows = NodeRows(np.arange(1000), np.zeros((1000, 3), np.float32), None, None)
    _, _, feature = pack(rows)
    assert np.shares_memory(np.asarray(feature), rows.feature)


def test_integers_travel_in_the_narrowest_type() -> None:
    rng = np.random.default_rng(0)
    rows = NodeRows(
        original_id=rng.integers(0, 2**31, 1000),
        feature=rng.random((1000, 3), np.float32),
        label=rng.integers(-1, 47, 1000),
        split=rng.integers(0, 4, 1000).astype(np.int8),
    )
    head, *arrays = pack(rows)
    assert [len(array) for array in arrays] == [4000, 12_000, 1000, 1000]
    assert len(head) < 300
    same(through_bytes(rows), rows)


def retold(message: Message, old: str, new: str) -> bytes:
    """The bytes of the message, with `old` replaced by `new` in its header."""
    head, *arrays = pack(message)
    told = bytes(head[4:])
    assert old.encode() in told
    told = told.replace(old.encode(), new.encode())
    return b"".join([len(told).to_bytes(4, "little"), told, *arrays])


@pytest.mark.parametrize("dtype", ["|O", "O", "<M8[s]", "float", ""])
def test_arrays_of_no_numbers_are_refused(dtype: str) -> None:
    with pytest.raises(StageError, match="expected arrays of numbers, got"):
        unpack(reader(retold(FetchRows(np.arange(3)), "<i8", dtype)))


def told(head: bytes) -> bytes:
    return len(head).to_bytes(4, "little") + head


def test_what_is_no_message() -> None:
    sample, rows = SampleNeighbors(np.arange(3), 2, 0), NodeRows(np.arange(4), np.zeros((4, 2)), None, None)
    for sent, words in (
        (told(b""), "expected a message, got b''; is Graphmill the same on all nodes"),
        (told(b"[1, 2]"), "expected a message, got"),
        (told(b"7"), "expected a message, got"),
        (told(b"[" * 20_000), "expected a message, got"),
        (told(b'["FetchRows", {"node": ["<i8", "<i8", [-1]]}, {}]'), "expected a message, got"),
        (told(b'["FetchRows", {"node": ["<i8", "<i8", [1e9]]}, {}]'), "expected a message, got"),
        (told(b'["FetchRows", {}, []]'), "expected a message, got"),
        (b"\xff\xff\xff\xff", f"expected a message's head of at most {HEAD_BYTES} bytes, got 4294967295"),
        (retold(sample, "SampleNeighbors", "os.system"), "expected one of SampleNeighbors, .*, got 'os.system'; is"),
        (retold(sample, "SampleNeighbors", "FetchRows"), "expected the fields of FetchRows: .*'fanout'"),
        (retold(sample, '"node"', '"edge"'), "expected the fields of SampleNeighbors: .*'edge'"),
        (retold(rows, "[4, 2]", f"[{MESSAGE_BYTES}, 1]"), f"expected at most {MESSAGE_BYTES} bytes of NodeRows, got"),
        (retold(rows, "[4, 2]", f"[0, {2**70}]"), "expected an array that fits in memory, got one of the shape"),
    ):
        with pytest.raises(StageError, match=words) as refused:
            unpack(reader(sent))
        assert "\n" not in str(refused.value)
