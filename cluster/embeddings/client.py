"""A worker's access to an embedding table: reads rows, sends gradients, and logs the requests in case an owner dies.

An owner holds its rows in memory only. A worker logs its requests since the second newest checkpoint. Each reply carries an owner's `life`, an id of
its process. If the `life` has changed, the owner was restarted. Then the worker names the checkpoint to load and sends all logged requests again, in
order. Every worker does this. A thread of the worker does it while the worker itself is busy, because other workers may wait for an owner that needs this
worker's requests. `docs/decisions/0073` has the protocol.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

import numpy as np

from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import SparseRows, TableConfig, most_rows, owner_of
from graphmill.cluster.reduction.position_tree import Node, Seat
from graphmill.cluster.transport.embedding_messages import (
    FIRST_LIFE,
    KEEP_BEST,
    PUSH,
    SAVE,
    BeginTable,
    MarkTable,
    PushRows,
    ReadRows,
    TableReply,
    TableRequest,
    TableRows,
    TableStatus,
    event_number,
)
from graphmill.core.errors import DeadlineError, GraphmillError, StageError

_LOOK_S = 1.0  # time between two checks of the owners by the thread
_ID_BYTES = 8 + 32  # memory for a pushed row: its id, and the search for its place
READ_BYTES = 1 << 20  # size of an owner's reply to one worker; larger batches are read in several requests


class PendingReply(Protocol):
    """A reply that may not have arrived yet."""

    def result(self) -> TableReply:
        """Waits for the reply. Raises the owner's error, or DeadlineError."""
        ...


class AsksOwner(Protocol):
    """A worker's access to an owner in this process or in another process."""

    def submit(self, request: TableRequest) -> PendingReply: ...


@dataclass(frozen=True)
class _Answered:
    reply: TableReply

    def result(self) -> TableReply:
        return self.reply


class OwnerHere:
    """An owner in this process."""

    def __init__(self, owner: TableOwner) -> None:
        self._owner = owner

    def submit(self, request: TableRequest) -> PendingReply:
        return _Answered(self._owner.answer(request))


@dataclass(frozen=True)
class SavedAt:
    """The position and folder of a checkpoint of the table."""

    step: int
    folder: str  # empty: no checkpoint yet


class OwnerLink:
    """Access to one owner, with a log of the requests to this owner. A caller must hold this object's lock."""

    def __init__(self, owner: AsksOwner, attempt: int, base: SavedAt) -> None:
        self.lock = threading.Lock()
        self._owner, self._attempt, self._base = owner, attempt, base
        self._life = FIRST_LIFE
        # (event number, request), in ascending order of event numbers
        self._log: list[tuple[int, PushRows | MarkTable]] = []

    def keep(self, number: int, request: PushRows | MarkTable) -> None:
        """Logs a request, in case the owner dies."""
        self._log.append((number, request))

    def forget(self, base: SavedAt) -> None:
        """Removes all requests before this published checkpoint from the log."""
        self._base = base
        self._log = [entry for entry in self._log if entry[0] > event_number(base.step, SAVE)]

    def forget_folder(self, number: int) -> None:
        """Marks the SAVE with this event number as written. A restarted owner must not write the files again: they may be moving into the checkpoint."""
        self._log = [
            (n, replace(request, folder="") if n == number and isinstance(request, MarkTable) else request)
            for n, request in self._log
        ]

    def submit(self, request: TableRequest) -> PendingReply:
        return self._owner.submit(self._addressed(request))

    def accept(self, reply: TableReply) -> TableReply | None:
        """Returns the reply if it is final; None if the request must be sent again."""
        if not isinstance(reply, TableStatus) or reply.is_done:
            return reply
        if (reply.attempt, reply.life) != (self._attempt, self._life):
            self.look()
        return None

    def look(self) -> None:
        """Sends the logged requests again if the owner was restarted."""
        status = self._owner.submit(BeginTable(self._attempt, self._base.step, self._base.folder)).result()
        assert isinstance(status, TableStatus)
        if status.life == self._life:
            return
        self._life = status.life
        for number, request in list(self._log):
            if number >= event_number(status.step, KEEP_BEST):
                reply = self.submit(request).result()
                if isinstance(reply, TableStatus) and reply.life != self._life:
                    return  # the owner died again: its next reply has a new `life`

    def _addressed(self, request: TableRequest) -> TableRequest:
        return request if isinstance(request, BeginTable) else replace(request, life=self._life)


class Exchange:
    """Requests to several owners. Each request is sent until its owner replies."""

    def __init__(self, links: Sequence[OwnerLink], requests: Mapping[int, TableRequest]) -> None:
        self._links, self._left = links, dict(requests)
        self.replies: dict[int, TableReply] = {}

    def poll(self) -> bool:
        """Sends all unanswered requests at the same time. Returns whether every request now has a reply. Raises an owner's error."""
        held = [self._links[number] for number in sorted(self._left)]
        for link in held:
            link.lock.acquire()
        try:
            pending = {number: self._links[number].submit(request) for number, request in self._left.items()}
            for number, reply_to in pending.items():
                reply = self._links[number].accept(reply_to.result())
                if reply is not None:
                    self.replies[number] = reply
                    del self._left[number]
        finally:
            for link in held:
                link.lock.release()
        return not self._left

    def finish(self, deadline_s: float) -> dict[int, TableReply]:
        """Waits for all replies and returns them by owner. Raises DeadlineError if a reply is missing after the deadline."""
        until = time.monotonic() + deadline_s
        while not self.poll():
            if time.monotonic() > until:
                raise DeadlineError(
                    f"embedding table: owners {sorted(self._left)} have not what they need within {deadline_s:g} s; see `ray list actors`"
                )
        return self.replies


class TableClient:
    """One worker's access to the table within one attempt. `step` counts the steps for which the worker has sent gradients."""

    def __init__(
        self,
        owners: Sequence[AsksOwner],
        config: TableConfig,
        attempt: int,
        base: SavedAt,
        deadline_s: float,
        *,
        keeps_log: bool,
    ) -> None:
        """`keeps_log`: log the requests, because an owner may die while this worker lives."""
        self._config, self._deadline_s, self._attempt, self._keeps_log = config, deadline_s, attempt, keeps_log
        self._links = [OwnerLink(owner, attempt, base) for owner in owners]
        self._newest = base
        self._last_mark = event_number(base.step, SAVE)
        self.step = base.step
        self.log_bytes = 0
        """Size of the gradients sent since the newest checkpoint."""

    def read(self, ids: np.ndarray, *, best: bool = False) -> np.ndarray:
        """float32 [n, width]: the rows with these ids, as they are after `step` steps. The ids are distinct and ascending."""
        rows, most = np.empty((len(ids), self._config.width), np.float32), self._rows_at_once
        for first in range(0, len(ids), most):
            block = ids[first : first + most]
            exchange, at = self.reading(block, best=best)
            exchange.finish(self._deadline_s)
            rows[first : first + most] = self.joined(exchange, at, len(block))
        return rows

    @property
    def _rows_at_once(self) -> int:
        """Returns the number of rows in one read. Ids are spread evenly over the owners, so each owner's reply has about `READ_BYTES`."""
        return len(self._links) * max(1, READ_BYTES // (4 * self._config.width))

    def reading(self, ids: np.ndarray, *, best: bool = False) -> tuple[Exchange, Mapping[int, np.ndarray]]:
        """Prepares a `read`. Returns its requests, and for each owner the positions of the owner's rows in `ids`."""
        at = self._split(ids)
        at = {number: rows for number, rows in at.items() if len(rows)}
        ask: Callable[[np.ndarray], ReadRows] = lambda rows: ReadRows(  # noqa: E731
            self._attempt, FIRST_LIFE, self.step, best, ids[rows]
        )
        return Exchange(self._links, {number: ask(rows) for number, rows in at.items()}), at

    def joined(self, exchange: Exchange, at: Mapping[int, np.ndarray], num_rows: int) -> np.ndarray:
        """Joins the replies of a finished `reading`: returns the rows in the order of the requested ids."""
        rows = np.empty((num_rows, self._config.width), np.float32)
        for number, reply in exchange.replies.items():
            if not isinstance(reply, TableRows):
                raise StageError(f"embedding table: expected rows of owner {number}, got {type(reply).__name__}")
            rows[at[number]] = reply.rows
        return rows

    def push(self, rate: float, nodes: Sequence[Node[SparseRows]]) -> None:
        """Ends a step: sends this worker's partial sums of the step's gradients (its nodes of the reduction tree)."""
        self.pushing(rate, nodes).finish(self._deadline_s)

    def pushing(self, rate: float, nodes: Sequence[Node[SparseRows]]) -> Exchange:
        owners = [self._split(node.value.ids) for node in nodes]
        requests: dict[int, TableRequest] = {}
        for number, link in enumerate(self._links):
            parts = [node.value.take(at[number]) for node, at in zip(nodes, owners, strict=True)]
            request = PushRows(
                attempt=self._attempt,
                life=FIRST_LIFE,
                step=self.step,
                after=self._last_mark,
                rate=rate,
                start=tuple(node.start for node in nodes),
                stop=tuple(node.stop for node in nodes),
                count=tuple(len(part.ids) for part in parts),
                ids=np.concatenate([part.ids for part in parts]),
                gradient=np.concatenate([part.values for part in parts]),
            )
            requests[number] = request
            self._keep(link, event_number(self.step, PUSH), request)
        self.step += 1
        return Exchange(self._links, requests)

    def keep_best(self) -> None:
        """Lets every owner keep its current weights as the best weights."""
        self.marking(KEEP_BEST).finish(self._deadline_s)

    def save(self, folder: str) -> None:
        """Lets every owner write its files to `folder`. All workers call this method with the same folder."""
        self.marking(SAVE, folder).finish(self._deadline_s)
        self.written()

    def marking(self, kind: int, folder: str = "") -> Exchange:
        mark = MarkTable(self._attempt, FIRST_LIFE, self.step, kind, self._last_mark, folder)
        self._last_mark = event_number(self.step, kind)
        for link in self._links:
            self._keep(link, self._last_mark, mark)
        return Exchange(self._links, dict.fromkeys(range(len(self._links)), mark))

    def written(self) -> None:
        """Records that all owners have written the files of the last SAVE."""
        for link in self._links:
            with link.lock:
                link.forget_folder(self._last_mark)

    def saved(self, folder: str) -> None:
        """Records that this step's checkpoint will be published in `folder`. The previous checkpoint is already published, so the log before that checkpoint
        is removed.
        """
        for link in self._links:
            with link.lock:
                link.forget(self._newest)
        self._newest, self.log_bytes = SavedAt(self.step, folder), 0

    def look(self) -> None:
        """Sends the logged requests to owners that were restarted."""
        for link in self._links:
            with link.lock:
                link.look()

    def watch(self, ended: threading.Event) -> None:
        """Checks the owners until `ended` is set, because this worker may wait for another worker that waits for an owner."""
        while not ended.wait(_LOOK_S):
            with suppress(GraphmillError):  # the worker's next request raises the same error
                self.look()

    def _keep(self, link: OwnerLink, number: int, request: PushRows | MarkTable) -> None:
        if not self._keeps_log:
            return
        with link.lock:
            link.keep(number, request)
        if isinstance(request, PushRows):
            self.log_bytes += request.gradient.nbytes + request.ids.nbytes

    def _split(self, ids: np.ndarray) -> dict[int, np.ndarray]:
        """Returns for each owner the positions in `ids` of the ids that belong to the owner, in ascending order."""
        if len(self._links) == 1:
            return {0: np.arange(len(ids))}
        owner = owner_of(ids, len(self._links))
        return {number: np.flatnonzero(owner == number) for number in range(len(self._links))}


def next_attempt(owners: Sequence[AsksOwner]) -> int:
    """Returns a number for a new attempt. It is larger than the number of any attempt that an owner has served, and than any number that this method returned
    earlier by this host's clock.
    """
    known = [owner.submit(ReadRows(1 << 62, FIRST_LIFE, 0, False, np.empty(0, np.int64))).result() for owner in owners]
    return max([int(1000 * time.time())] + [reply.attempt + 1 for reply in known if isinstance(reply, TableStatus)])


def message_bytes(
    width: int, num_nodes: int, num_owners: int, num_workers: int, num_positions: int, batch_rows: float
) -> int:
    """Returns the peak memory in a step with `num_positions` micro-batches of `batch_rows` distinct rows each.

    An owner keeps the gradients that all workers push until the step is applied. A worker pushes one partial sum for each of its nodes of the step's tree.
    A partial sum has the rows of all its micro-batches, at most `num_nodes`. Applying the gradients takes memory only for blocks of rows. In the reads before
    the step, the owner holds one reply per worker.
    """
    seat = Seat(0, num_workers, num_positions)
    pushed = sum(min((node.stop - node.start) * batch_rows, num_nodes) for own in seat.nodes_of_ranks for node in own)
    applied = most_rows(ceil(pushed), num_owners) * (4 * width + _ID_BYTES)
    replied = num_workers * min(READ_BYTES, 4 * width * most_rows(num_nodes, num_owners))
    return max(applied, replied)
