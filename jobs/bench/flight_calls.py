"""What `jobs.bench transport` compares with: requests for rows by Arrow Flight's `do_exchange`, in a call that stays open or a new one each.

All batches of a call have one schema: a column of bytes for each array that a message may have. What they hold is told beside them, in JSON. Large messages travel in
pieces of 2 MiB, which took a fifth of the time of one (docs/decisions/0031-answers-travel-by-arrow-flight.md).
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from samplers.messages import FetchRows, NodeRows
from samplers.partition_owner import PartitionOwner
from samplers.travel import travel_dtype

_PIECE_BYTES = 1 << 21
_BYTES, _COLUMNS = pa.binary(), 2
_NONE = pa.array([b""], _BYTES)
_SCHEMA = pa.schema([(f"array {index}", _BYTES) for index in range(_COLUMNS)])


class FlightServer(flight.FlightServerBase):
    """Answers as many requests in a call as come."""

    def __init__(self, owner: PartitionOwner, host: str) -> None:
        self._owner = owner
        super().__init__(f"grpc://{host}:0")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(_SCHEMA)
        while (arrays := _read(reader)) is not None:
            reply = self._owner.answer(FetchRows(arrays["node"]))
            assert isinstance(reply, NodeRows) and reply.feature is not None  # noqa: PT018
            _write(writer, {"original_id": reply.original_id, "feature": reply.feature})


class FlightCalls:
    """Asks a `FlightServer`."""

    def __init__(self, host: str, port: int) -> None:
        self._client = flight.FlightClient(f"grpc://{host}:{port}")
        self._open = self._begin()

    def _begin(self) -> tuple[Any, Any]:
        writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(b""))
        writer.begin(_SCHEMA)
        return writer, reader

    def ask(self, request: FetchRows) -> NodeRows:
        writer, reader = self._open
        return self._asked(writer, reader, request)

    def ask_anew(self, request: FetchRows) -> NodeRows:
        writer, reader = self._begin()
        with writer:
            return self._asked(writer, reader, request, is_last=True)

    def _asked(self, writer: Any, reader: Any, request: FetchRows, is_last: bool = False) -> NodeRows:
        _write(writer, {"node": request.node})
        if is_last:
            writer.done_writing()
        reply = _read(reader)
        assert reply is not None
        return NodeRows(reply["original_id"], reply["feature"], None, None)


def _write(writer: Any, arrays: dict[str, np.ndarray]) -> None:
    sent = [np.ascontiguousarray(array, travel_dtype(array)) for array in arrays.values()]
    num_pieces = max(1, -(-sum(array.nbytes for array in sent) // _PIECE_BYTES))
    shapes = zip(arrays.items(), sent, strict=True)
    told = [[name, own.dtype.str, array.dtype.str, own.shape] for (name, own), array in shapes]
    head = pa.py_buffer(json.dumps([told, num_pieces]).encode())
    for piece in range(num_pieces):
        columns = [_NONE] * _COLUMNS
        for index, array in enumerate(sent):
            part = array[_rows(len(array), piece, num_pieces)].reshape(-1)
            ends = pa.py_buffer(np.array([0, part.nbytes], np.int32))
            columns[index] = pa.Array.from_buffers(_BYTES, 1, [None, ends, pa.py_buffer(part)])
        writer.write_with_metadata(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), head)


def _read(reader: Any) -> dict[str, np.ndarray] | None:
    """The arrays of the next message; None after the last one."""
    pieces = _pieces(reader)
    first = next(pieces, None)
    if first is None:
        return None
    told, num_pieces = json.loads(first.app_metadata.to_pybytes())
    arrays = {name: np.empty(shape, own) for name, own, _, shape in told}
    for piece in range(num_pieces):
        batch = (first if piece == 0 else next(pieces)).data
        for index, (name, _, sent_as, shape) in enumerate(told):
            rows = _rows(shape[0], piece, num_pieces)
            bytes_ = batch.column(index).buffers()[2]
            arrays[name][rows] = np.frombuffer(bytes_, sent_as).reshape(rows.stop - rows.start, *shape[1:])
    return arrays


def _pieces(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return


def _rows(length: int, piece: int, num_pieces: int) -> slice:
    return slice(length * piece // num_pieces, length * (piece + 1) // num_pieces)
