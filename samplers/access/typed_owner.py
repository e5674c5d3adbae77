"""The owner of a partition of a typed graph: all its types and relations, each answered for as a plain graph's partition, in one message where
several are asked."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from graphmill.core.compile_cache import one_compiles_for_all
from graphmill.core.errors import ConfigError, StageError
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Owner, Pending
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    ForParts,
    InducedSubgraphs,
    ListNeighbors,
    PartReplies,
    PartReply,
    PartRequest,
    Reply,
    Request,
    SampleNeighbors,
    messages_in,
)
from graphmill.storage.typed_graph import TypedGraph


class PartsOwner:
    """Stateless, read-only and thread-safe, as the owners of its parts are."""

    def __init__(self, parts: Mapping[str, PartitionOwner]) -> None:
        self._parts = dict(parts)

    def answer(self, request: Request) -> PartReplies:
        """The replies of the parts that are asked. Raises ConfigError where there is no such part, and what an owner raises."""
        if not isinstance(request, ForParts) or len(request.parts) != len(request.requests):
            raise ConfigError(f"expected requests to parts of a typed graph, got {type(request).__name__}")
        replies: list[PartReply] = []
        for name, one in zip(request.parts, request.requests, strict=True):
            if name not in self._parts:
                raise ConfigError(f"expected a type or a relation, one of {', '.join(self._parts)}, got {name!r}")
            reply = self._parts[name].answer(one)
            assert not isinstance(reply, PartReplies)
            replies.append(reply)
        return PartReplies(tuple(replies))


def open_parts(graph: TypedGraph, index: int, *, verify: bool = False) -> PartsOwner:
    """The owner of a partition of a stored typed graph. Raises FormatError for damaged files."""
    nodes = {name: graph.nodes(name) for name in graph.node_types}
    stored = nodes | {str(relation): graph.relation(relation) for relation in graph.relations}
    return PartsOwner(
        {
            name: PartitionOwner(part.partition(index, verify=verify), part.manifest.num_nodes)
            for name, part in stored.items()
        }
    )


@one_compiles_for_all()
def warm_up_parts(owner: PartsOwner, graph: TypedGraph) -> None:
    """Compiles the loops behind the answers, as `graphmill.samplers.access.warm_up` does for plain graphs."""
    node = np.empty(0, np.int64)
    for relation in graph.relations:
        part, dtype = str(relation), graph.relation(relation).manifest.index_dtype
        none = (node.astype(dtype), np.zeros(1, np.int64))
        for request in (
            SampleNeighbors(node, fanout=1, key=0),
            ListNeighbors(node),
            InducedSubgraphs(*none, (), *none),
        ):
            owner.answer(ForParts((part,), (request,)))
    for name in graph.node_types:
        owner.answer(ForParts((name,), (FetchRows(node),)))


class PartOfOwner:
    """A part of a typed graph, as an owner of its own, of a partition that one owner elsewhere has with all parts."""

    def __init__(self, whole: Owner, part: str) -> None:
        self.whole, self.part = whole, part

    def submit(self, request: Request) -> Pending:
        assert not isinstance(request, ForParts)
        return submit_together([(self, request)])[0]


def submit_together(requests: Sequence[tuple[Owner, PartRequest]]) -> list[Pending]:
    """Sends all requests: those to parts that one owner has as one message. Owners elsewhere are asked first, and answer meanwhile."""
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
