"""For each partition, counts the messages between a router and the partition's owner.

A message to several partitions of a server counts as one request, at the first partition that it names; its bytes count at each partition.
Bytes are the bytes of the arrays in requests and replies when they travel (`graphmill.samplers.access.narrow_ints`), without the transport's overhead.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from graphmill.samplers.access.narrow_ints import narrow_bytes
from graphmill.samplers.vocabulary.messages import ForParts, messages_in, partition_of

if TYPE_CHECKING:  # these modules import compiled loops; a report needs only the names of columns
    from graphmill.samplers.access.owners import LocalOwner, Owner, Pending
    from graphmill.samplers.vocabulary.messages import FetchRows, NodeRows, Reply, Request

COLUMNS = (
    "remote_requests",
    "sent_bytes",  # in requests to other processes
    "received_bytes",  # in replies of other processes
    "local_requests",  # requests answered in this process
    "local_bytes",  # size of local requests and replies, if they were sent
)
_REMOTE_REQUESTS, _SENT, _RECEIVED, _LOCAL_REQUESTS, _LOCAL = range(len(COLUMNS))


class Traffic:
    """Totals since construction. Thread-safe."""

    def __init__(self, num_partitions: int) -> None:
        self._counts = np.zeros((num_partitions, len(COLUMNS)), np.int64)
        self._lock = threading.Lock()

    def add(self, partition: int, requests_column: int, bytes_column: int, num_requests: int, num_bytes: int) -> None:
        with self._lock:
            self._counts[partition, requests_column] += num_requests
            self._counts[partition, bytes_column] += num_bytes

    def by_partition(self) -> np.ndarray:
        """int64 [partitions, len(COLUMNS)]: a copy of the totals."""
        with self._lock:
            return self._counts.copy()

    def columns(self) -> dict[str, list[int]]:
        """The totals by partition for each column name."""
        return dict(zip(COLUMNS, self.by_partition().T.tolist(), strict=True))

    def watch(self, owner: "Owner", partition: int) -> "Owner":
        """Wraps the owner so that its messages are counted. Messages to an owner in this process count as local."""
        from graphmill.samplers.access.owners import LocalOwner, StoreOwner

        if isinstance(owner, StoreOwner):
            return WatchedRemote(owner, partition, self, is_here=True)
        if isinstance(owner, LocalOwner):
            return WatchedLocal(owner, partition, self)
        return WatchedRemote(owner, partition, self)


def array_bytes(message: "Request | Reply") -> int:
    """Bytes of all arrays in a message, as they travel. Arrays in nested messages count too."""
    own = sum(narrow_bytes(value) for value in vars(message).values() if isinstance(value, np.ndarray))
    return own + sum(array_bytes(part) for part in messages_in(message))


class WatchedRemote:
    """Counts the messages of an owner whose replies arrive later. The owner is in this process or elsewhere."""

    def __init__(self, owner: "Owner", partition: int, traffic: Traffic, *, is_here: bool = False) -> None:
        """`partition`: the only or first partition of the owner."""
        self._owner, self._partition, self._traffic = owner, partition, traffic
        self._requests, self._sent, self._received = (
            (_LOCAL_REQUESTS, _LOCAL, _LOCAL) if is_here else (_REMOTE_REQUESTS, _SENT, _RECEIVED)
        )

    def submit(self, request: "Request") -> "Pending":
        partitions = [self._partition]
        if isinstance(request, ForParts):
            partitions = [partition_of(part) for part in request.parts]
        self._count(partitions, self._sent, request)
        self._traffic.add(partitions[0], self._requests, self._sent, 1, 0)
        return _WatchedReply(self._owner.submit(request), partial(self._count, partitions, self._received))

    def _count(self, partitions: list[int], column: int, message: "Request | Reply") -> None:
        for partition, part in zip(partitions, messages_in(message) or (message,), strict=False):
            self._traffic.add(partition, self._requests, column, 0, array_bytes(part))


class _WatchedReply:
    def __init__(self, pending: "Pending", count: Callable[["Reply"], None]) -> None:
        self._pending, self._count = pending, count

    def result(self) -> "Reply":
        reply = self._pending.result()
        self._count(reply)
        return reply


class WatchedLocal:
    """Counts the messages of an owner that answers immediately in this process, and the rows that it places."""

    def __init__(self, owner: "LocalOwner", partition: int, traffic: Traffic) -> None:
        self._owner, self._partition, self._traffic = owner, partition, traffic

    def submit(self, request: "Request") -> "Pending":
        pending = self._owner.submit(request)  # already has the reply
        num_bytes = array_bytes(request) + array_bytes(pending.result())
        self._traffic.add(self._partition, _LOCAL_REQUESTS, _LOCAL, 1, num_bytes)
        return pending

    def place_rows(self, request: "FetchRows", into: "NodeRows", position: np.ndarray | slice) -> None:
        self._owner.place_rows(request, into, position)
        columns = [column for name, column in vars(into).items() if column is not None and name != "feature"]
        at = None if isinstance(position, slice) else position
        num_bytes = array_bytes(request) + sum(narrow_bytes(column, at) for column in columns)
        if into.feature is not None:
            num_bytes += self._owner.feature_bytes * len(request.node)
        self._traffic.add(self._partition, _LOCAL_REQUESTS, _LOCAL, 1, num_bytes)
