"""Owners of partitions: in this process, as a server elsewhere, or as one part of what a server elsewhere has.

`submit_together` sends several requests at once. Requests to parts of the same owner travel as one message.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from threading import Lock
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import StageError
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.vocabulary.messages import (
    DegreeLists,
    FetchRows,
    ForParts,
    LinkRows,
    NeighborLists,
    NodeGroups,
    NodeList,
    NodeRows,
    PartReply,
    PartRequest,
    Reply,
    Request,
    messages_in,
)

# Bounds of one message. A message is larger only if it has a single request.
_MOST_PARTS, _MOST_IDS = 512, 1 << 20

ReplyKind = TypeVar("ReplyKind", NeighborLists, NodeRows, NodeList, NodeGroups, DegreeLists, LinkRows)


class Pending(Protocol):
    """A reply that has not arrived yet."""

    def result(self) -> Reply:
        """Waits for the reply, up to the owner's deadline. Raises the owner's error, or DeadlineError."""
        ...


class Owner(Protocol):
    """Answers requests about one partition, in this process or elsewhere, or about all parts that a server has."""

    def submit(self, request: Request) -> Pending: ...


@runtime_checkable
class PlacesRows(Protocol):
    """An owner that reads its partition in this process and writes rows directly to their places."""

    def place_rows(self, request: FetchRows, into: NodeRows, position: np.ndarray | slice) -> None:
        """Writes the requested rows to the positions `position` of every column of `into`. A slice means all positions, in order."""
        ...


PlaceRows = Callable[[NodeRows, np.ndarray | slice], None]


class _Answered:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def result(self) -> Reply:
        return self._reply


class PendingRows:
    """Requested rows of one partition that have not arrived yet."""

    def __init__(self, pending: Pending, partition: int, num_rows: int) -> None:
        self._pending, self._partition, self._num_rows = pending, partition, num_rows

    def result(self) -> NodeRows:
        """The requested rows. Raises StageError if a column has a different number of rows, and any error of the owner."""
        rows = expect(self._pending.result(), NodeRows)
        for name, column in vars(rows).items():
            if column is not None and len(column) != self._num_rows:
                raise StageError(
                    f"partition {self._partition}: expected {self._num_rows} rows of {name}, got {len(column)}; run the same version of "
                    "Graphmill on all hosts"
                )
        return rows


class LocalOwner:
    """Answers immediately, in this process."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner

    def submit(self, request: Request) -> Pending:
        return _Answered(self._owner.answer(request))

    def place_rows(self, request: FetchRows, into: NodeRows, position: np.ndarray | slice) -> None:
        self._owner.place_rows(request, into, position)

    @property
    def feature_bytes(self) -> int:
        """Number of bytes of one stored row of features."""
        return self._owner.feature_bytes


class StoreOwner:
    """Answers in this process, but reads features from an object store. It fetches rows in the background, as for owners in other processes."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner

    def submit(self, request: Request) -> Pending:
        if isinstance(request, FetchRows):
            return begin(partial(self._owner.answer, request), "rows")
        return _Answered(self._owner.answer(request))


class PartOfOwner:
    """One part of a server: a partition, or a type or relation of a partition. `whole` is the server; one server has all partitions of its host."""

    def __init__(self, whole: Owner, part: str) -> None:
        self.whole, self.part = whole, part

    def submit(self, request: Request) -> Pending:
        assert not isinstance(request, ForParts)
        return submit_together([(self, request)])[0]


def submit_together(requests: Sequence[tuple[Owner, PartRequest]]) -> list[Pending]:
    """Sends all requests; requests to parts of one owner are one message, or several if they are large. Owners elsewhere receive their requests first and
    work while owners in this process answer."""
    if not any(isinstance(owner, PartOfOwner) for owner, _ in requests):
        return [owner.submit(request) for owner, request in requests]
    pending: dict[int, Pending] = {}
    together: dict[int, Asked] = {}
    for number, (owner, request) in enumerate(requests):
        if isinstance(owner, PartOfOwner):
            together.setdefault(id(owner.whole), []).append((number, owner, request))
    for asked in chain.from_iterable(map(_messages, together.values())):
        message = ForParts(tuple(owner.part for _, owner, _ in asked), tuple(request for *_, request in asked))
        shared = _SharedReply(asked[0][1].whole.submit(message), len(asked))
        pending |= {number: _PartReply(shared, place) for place, (number, *_) in enumerate(asked)}
    for number, (owner, request) in enumerate(requests):
        if number not in pending:
            pending[number] = owner.submit(request)
    return [pending[number] for number in range(len(requests))]


Asked = list[tuple[int, PartOfOwner, PartRequest]]


def _messages(asked: Asked) -> Iterator[Asked]:
    """Cuts the requests to one owner into messages, because both sides bound the bytes of a message and of its head."""
    start, num_ids = 0, 0
    for place, (*_, request) in enumerate(asked):
        of_request = max((len(value) for value in vars(request).values() if isinstance(value, np.ndarray)), default=0)
        if place > start and (place - start == _MOST_PARTS or num_ids + of_request > _MOST_IDS):
            yield asked[start:place]
            start, num_ids = place, 0
        num_ids += of_request
    yield asked[start:]


class _SharedReply:
    """The reply to several requests that were sent as one message."""

    def __init__(self, pending: Pending, count: int) -> None:
        self._pending, self._count = pending, count
        self._lock = Lock()  # a reply is received once, whichever thread asks first
        self._replies: tuple[PartReply, ...] | None = None

    def replies(self) -> tuple[PartReply, ...]:
        with self._lock:
            if self._replies is None:
                self._replies = self._receive()
            return self._replies

    def _receive(self) -> tuple[PartReply, ...]:
        replies = messages_in(self._pending.result())
        if len(replies) != self._count:
            raise StageError(
                f"expected {self._count} replies in one message, got {len(replies)}; run the same version of Graphmill on all hosts"
            )
        return replies  # type: ignore[return-value]  # a reply holds replies


class _PartReply:
    def __init__(self, shared: _SharedReply, place: int) -> None:
        self._shared, self._place = shared, place

    def result(self) -> Reply:
        return self._shared.replies()[self._place]


def expect(reply: Reply, kind: type[ReplyKind]) -> ReplyKind:
    """Returns the reply and asserts that it has this type."""
    assert isinstance(reply, kind), f"expected {kind.__name__}, got {type(reply).__name__}"
    return reply
