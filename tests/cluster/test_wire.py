"""Messages as record batches and back: the same to the bit, in one piece or several; what is none is refused in one line."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster.wire
from cluster.wire import MESSAGE_BYTES, PIECE_BYTES, Failure, Message, pack, unpack
from samplers.messages import FetchRows, InducedEdges, NodeList, NodeRows, Reply, Request, SampleNeighbors
from storage.errors import StageError

KINDS = (*get_args(Request), *get_args(Reply), Failure)
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


def through_bytes(batches: Any, offset: int = 0) -> list[pa.RecordBatch]:
    """What a reader in another process has: its memory begins anywhere."""
    first, *others = batches
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema) as stream:
        for batch in (first, *others):
            stream.write_batch(batch)
    moved = bytearray(offset) + sink.getvalue().to_pybytes()
    return list(pa.ipc.open_stream(pa.py_buffer(moved).slice(offset)))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_message_arrives_as_it_was(kind: type, data: st.DataObject) -> None:
    hints = get_type_hints(kind)
    message = kind(**{field.name: data.draw(value_of(hints[field.name])) for field in fields(kind)})
    assert len(list(pack(message))) == 1
    same(unpack(through_bytes(pack(message), offset=data.draw(st.integers(0, 7)))), message)


@given(piece_bytes=st.integers(1, 5000), length=st.integers(0, 300))
def test_pieces_are_put_together(piece_bytes: int, length: int) -> None:
    rng = np.random.default_rng(length)
    rows = NodeRows(rng.integers(0, 9, length), rng.random((length, 3), np.float32), None, np.ones(2 * length, np.int8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.wire, "PIECE_BYTES", piece_bytes)
        pieces = through_bytes(pack(rows))
    assert len(pieces) == max(1, -(-15 * length // piece_bytes))
    same(unpack(pieces), rows)


def test_pieces_fit_the_bound() -> None:
    node = np.arange(3 * MESSAGE_BYTES // 8)
    pieces = list(pack(InducedEdges(node.astype(np.float64), columns=("id", "weight", "feature"))))
    assert len(pieces) == 3 * MESSAGE_BYTES // PIECE_BYTES
    assert max(piece.nbytes for piece in pieces) < MESSAGE_BYTES
    same(unpack(pieces), InducedEdges(node.astype(np.float64), columns=("id", "weight", "feature")))


def test_one_batch_is_read_where_it_lies() -> None:
    rows = NodeRows(np.arange(1000), np.zeros((1000, 3), np.float32), None, None)
    (batch,) = pack(rows)
    found = unpack([batch])
    assert isinstance(found, NodeRows)
    assert np.shares_memory(found.feature, rows.feature)


def test_integers_travel_in_the_narrowest_type() -> None:
    rng = np.random.default_rng(0)
    rows = NodeRows(
        original_id=rng.integers(0, 2**31, 1000),
        feature=rng.random((1000, 3), np.float32),
        label=rng.integers(-1, 47, 1000),
        split=rng.integers(0, 4, 1000).astype(np.int8),
    )
    (batch,) = pack(rows)
    assert batch.nbytes - 1000 * (4 + 12 + 1 + 1) < 100
    same(unpack([batch]), rows)


def retold(batch: pa.RecordBatch, old: str, new: str) -> pa.RecordBatch:
    """With other words about what it holds."""
    told = batch.schema.metadata[b"message"]
    assert old.encode() in told
    return batch.replace_schema_metadata({b"message": told.replace(old.encode(), new.encode())})


@pytest.mark.parametrize("dtype", ["|O", "O", "<M8[s]", "float", ""])
def test_arrays_of_no_numbers_are_refused(dtype: str) -> None:
    (batch,) = pack(FetchRows(np.arange(3)))
    with pytest.raises(StageError, match="expected arrays of numbers, got"):
        unpack([retold(batch, "<i8", dtype)])


def test_what_is_no_message() -> None:
    (batch,) = pack(SampleNeighbors(np.arange(3), 2, 0))
    wide = np.zeros((2 * PIECE_BYTES // 8, 1))
    first, second = pack(NodeList(wide[: len(wide) // 2], wide[: len(wide) // 2]))
    for batches, words in (
        ([], "expected a message, got an empty stream"),
        ([batch.replace_schema_metadata({})], "expected a message, got b''; is Graphmill the same on all nodes"),
        ([batch.replace_schema_metadata({b"message": b"[1, 2]"})], "expected a message, got"),
        ([batch.replace_schema_metadata({b"message": b"7"})], "expected a message, got"),
        ([retold(batch, "SampleNeighbors", "os.system")], "expected one of SampleNeighbors, .*, got 'os.system'; is"),
        ([retold(batch, "SampleNeighbors", "FetchRows")], "expected the fields of FetchRows: .*'fanout'"),
        ([retold(batch, "[3]", "[4]")], "expected 4 bytes of SampleNeighbors's node, got 3"),
        ([retold(batch, '"node"', '"edge"'), second], "expected the fields of SampleNeighbors: .*'edge'"),
        ([first], "expected a NodeList in 2 pieces, got 1"),
        ([first, batch], "expected .* bytes of NodeList's node, got 3"),
    ):
        with pytest.raises(StageError, match=words) as refused:
            unpack(batches)
        assert "\n" not in str(refused.value)
