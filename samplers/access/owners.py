"""Who answers for a partition: an owner in this process, a server elsewhere, or, of a typed graph, a part of what one owner elsewhere has.

Several requests may be sent together (`submit_together`): those to parts of one owner travel as one message.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
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

ReplyKind = TypeVar("ReplyKind", NeighborLists, NodeRows, NodeList, NodeGroups, DegreeLists, LinkRows)


class Pending(Protocol):
    """An answer under way."""

    def result(self) -> Reply:
        """Waits for the reply, up to the owner's deadline. Raises what the owner raised, or DeadlineError."""
        ...


class Owner(Protocol):
    """Whoever answers for one partition: in this process, or a server elsewhere."""

    def submit(self, request: Request) -> Pending: ...


@runtime_checkable
class PlacesRows(Protocol):
    """An owner that reads its partition in this process, and can write rows where they belong at once."""

    def place_rows(self, request: FetchRows, into: NodeRows, position: np.ndarray | slice) -> None:
        """Writes the rows asked for to `position` (a slice: to all, in order) of the columns that `into` has."""
        ...


PlaceRows = Callable[[NodeRows, np.ndarray | slice], None]


class _Answered:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def result(self) -> Reply:
        return self._reply


class PendingRows:
    """Rows of one partition under way."""

    def __init__(self, pending: Pending, partition: int, num_rows: int) -> None:
        self._pending, self._partition, self._num_rows = pending, partition, num_rows

    def result(self) -> NodeRows:
        """As many as were asked for, in every column. Raises StageError for another number, and what the owner raised."""
        rows = expect(self._pending.result(), NodeRows)
        for name, column in vars(rows).items():
            if column is not None and len(column) != self._num_rows:
                raise StageError(
                    f"partition {self._partition}: expected {self._num_rows} rows of {name}, got {len(column)}; run the same version of "
                    "Graphmill on all hosts"
                )
        return rows


class LocalOwner:
    """Answers in this process, at once."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner

    def submit(self, request: Request) -> Pending:
        return _Answered(self._owner.answer(request))

    def place_rows(self, request: FetchRows, into: NodeRows, position: np.ndarray | slice) -> None:
        self._owner.place_rows(request, into, position)

    @property
    def feature_bytes(self) -> int:
        """Of a stored row of features."""
        return self._owner.feature_bytes


class StoreOwner:
    """Answers in this process, where features stay on a store: requests for rows are under way meanwhile, as those to other processes."""

    def __init__(self, owner: PartitionOwner) -> None:
        self._owner = owner

    def submit(self, request: Request) -> Pending:
        if isinstance(request, FetchRows):
            return begin(partial(self._owner.answer, request), "rows")
        return _Answered(self._owner.answer(request))


class PartOfOwner:
    """A part of a typed graph, as an owner of its own, of a partition that one owner elsewhere has with all parts."""

    def __init__(self, whole: Owner, part: str) -> None:
        self.whole, self.part = whole, part

    def submit(self, request: Request) -> Pending:
        assert not isinstance(request, ForParts)
        return submit_together([(self, request)])[0]


def submit_together(requests: Sequence[tuple[Owner, PartRequest]]) -> list[Pending]:
    """Sends all requests: those to parts that one owner has as one message. Owners elsewhere are asked first, and answer meanwhile."""
    if not any(isinstance(owner, PartOfOwner) for owner, _ in requests):
        return [owner.submit(request) for owner, request in requests]
    pending: dict[int, Pending] = {}
    together: dict[int, list[tuple[int, PartOfOwner, PartRequest]]] = {}
    for number, (owner, request) in enumerate(requests):
        if isinstance(owner, PartOfOwner):
            together.setdefault(id(owner.whole), []).append((number, owner, request))
    for asked in together.values():
        message = ForParts(tuple(owner.part for _, owner, _ in asked), tuple(request for *_, request in asked))
        shared = _SharedReply(asked[0][1].whole.submit(message), len(asked))
        pending |= {number: _PartReply(shared, place) for place, (number, *_) in enumerate(asked)}
    for number, (owner, request) in enumerate(requests):
        if number not in pending:
            pending[number] = owner.submit(request)
    return [pending[number] for number in range(len(requests))]


class _SharedReply:
    """The reply to requests that were sent as one message."""

    def __init__(self, pending: Pending, count: int) -> None:
        self._pending, self._count = pending, count

    @cached_property
    def replies(self) -> tuple[PartReply, ...]:
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
        return self._shared.replies[self._place]


def expect(reply: Reply, kind: type[ReplyKind]) -> ReplyKind:
    """The reply, which is of this kind."""
    assert isinstance(reply, kind), f"expected {kind.__name__}, got {type(reply).__name__}"
    return reply
