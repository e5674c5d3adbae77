"""The owner of a part of an embedding table's rows. It handles requests in any order of arrival.

The events of a table form a sequence. In each step the owner may keep the best weights, then may save, then applies the step's gradients. An owner stores
each event and performs it once, after all earlier events. Therefore its rows depend only on the sequence. `docs/decisions/0073` describes the state of
owners and workers.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphmill.cluster.embeddings.rows import SparseRows, TableConfig, TableShard, add_rows, blocks_of, in_blocks
from graphmill.cluster.reduction.position_tree import Node, fold
from graphmill.cluster.transport.embedding_messages import (
    KEEP_BEST,
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
from graphmill.core.errors import ConfigError, StageError

# Longest time in which a request waits for requests of other workers. After this time the sender gets a status reply, and then checks the owner
WAIT_S = 2.0


@dataclass(frozen=True)
class _Pushed:
    """Gradients of a part of a step. They wait until the gradients of the whole step have arrived."""

    rate: float
    after: int
    node: Node[SparseRows]


class TableOwner:
    """One owner; thread-safe. Rows are in memory only. A restarted owner has a new `life`, loads a checkpoint, and receives later requests again."""

    def __init__(self, config: TableConfig, number: int = 0, num_owners: int = 1, life: int | None = None) -> None:
        self._config, self._place = config, (number, num_owners)
        self._life = life or secrets.randbits(48) + 1
        self._attempt = self._step = 0
        self._shard = TableShard(config, number, num_owners)
        self._pushed: dict[int, dict[int, _Pushed]] = {}  # gradients by step and first position
        self._marks: dict[int, MarkTable] = {}  # marks that are not done yet, by event number
        self._last_mark = -1  # event number of the last mark that is done
        self._failure: str | None = None
        self._changed = threading.Condition()

    def answer(self, request: TableRequest) -> TableReply:
        """Returns the reply. Waits up to `WAIT_S` for missing requests of other workers.

        Raises StageError for a request of an earlier attempt, and if the table cannot go on.
        """
        until = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                before = self._step, self._last_mark
                reply = self.handle(request)
                if before != (self._step, self._last_mark) or isinstance(request, BeginTable):
                    self._changed.notify_all()
                is_known = isinstance(reply, TableStatus) and not reply.is_done and self._is_ours(request)
                left_s = until - time.monotonic()
                if not is_known or left_s <= 0:
                    return reply
                self._changed.wait(left_s)

    def handle(self, request: TableRequest) -> TableReply:
        """Returns the reply without waiting."""
        if request.attempt < self._attempt:
            raise StageError(f"embedding table: attempt {request.attempt} has ended, {self._attempt} has begun")
        if isinstance(request, BeginTable):
            self._begin(request)
            return self._status(is_done=True)
        if not self._is_ours(request):
            return self._status(is_done=False)
        if self._failure is not None:
            raise StageError(self._failure)
        if isinstance(request, PushRows):
            self._take(request)
            return self._status(is_done=True)
        if isinstance(request, MarkTable):
            number = event_number(request.step, request.kind)
            if number > self._last_mark:
                self._marks[number] = request
                self._advance()
            return self._status(is_done=number <= self._last_mark)
        if not isinstance(request, ReadRows):
            raise ConfigError(
                f"expected a request of graphmill.cluster.transport.embedding_messages, got {type(request).__name__}"
            )
        if self._config.is_exact and request.step > self._step:
            return self._status(is_done=False)
        if self._config.is_exact and request.step < self._step:
            raise StageError(f"embedding table: expected reads of step {self._step}, got one of step {request.step}")
        return TableRows(self._shard.read(request.ids, best=request.is_best))

    def _is_ours(self, request: TableRequest) -> bool:
        return request.attempt == self._attempt and getattr(request, "life", self._life) == self._life

    def _status(self, *, is_done: bool) -> TableStatus:
        return TableStatus(is_done, self._attempt, self._life, self._step)

    def _begin(self, request: BeginTable) -> None:
        is_new = request.attempt > self._attempt
        if not is_new and request.step <= self._step:
            return
        shard = TableShard(self._config, *self._place)
        if request.folder:
            shard.load(Path(request.folder))
        self._shard, self._attempt, self._step, self._failure = shard, request.attempt, request.step, None
        # Requests that other workers sent in this attempt are kept, because these workers do not send them again.
        self._last_mark = event_number(request.step, SAVE)
        self._pushed = {} if is_new else {s: nodes for s, nodes in self._pushed.items() if s >= request.step}
        self._marks = {} if is_new else {n: mark for n, mark in self._marks.items() if n > self._last_mark}
        if not self._config.is_exact:  # asynchronous gradients were applied on arrival, to rows that are now replaced
            for step in sorted(self._pushed):
                for pushed in self._pushed[step].values():
                    self._update(step, pushed.rate, [pushed.node])
        self._advance()

    def _take(self, request: PushRows) -> None:
        if request.step < self._step:
            return
        for block in blocks_of(*request.gradient.shape):
            is_finite = np.isfinite(request.gradient[block]).all(axis=1)
            if not is_finite.all():
                bad = request.ids[block][~is_finite][0]
                self._fail(f"the gradient of the row of node {bad} is not finite at step {request.step}")
        of_step = self._pushed.setdefault(request.step, {})
        first = 0
        for start, stop, count in zip(request.start, request.stop, request.count, strict=True):
            rows = SparseRows(request.ids[first : first + count], request.gradient[first : first + count])
            first += count
            if start not in of_step:
                if not self._config.is_exact:
                    self._update(request.step, request.rate, [Node(start, stop, rows)])
                of_step[start] = _Pushed(request.rate, request.after, Node(start, stop, rows))
        self._advance()

    def _advance(self) -> None:
        """Performs, in order, all events for which all earlier events are done."""
        while self._mark() or self._apply():
            pass

    def _mark(self) -> bool:
        number = min(self._marks, default=-1)
        if number < 0 or self._marks[number].step > self._step or self._marks[number].after > self._last_mark:
            return False
        mark = self._marks.pop(number)
        if mark.kind == KEEP_BEST:
            self._shard.keep_best()
        elif mark.kind == SAVE and mark.folder:
            self._or_fail(lambda: self._shard.save(Path(mark.folder)))
        self._last_mark = number
        return True

    def _apply(self) -> bool:
        of_step = self._pushed.get(self._step, {})
        nodes = [of_step[start].node for start in sorted(of_step)]
        if sum(node.stop - node.start for node in nodes) < self._config.num_positions:
            return False
        first = next(iter(of_step.values()))  # all parts of a step agree in rate and mark
        if first.after > self._last_mark:
            return False
        if self._config.is_exact:  # in an asynchronous table the gradients were applied on arrival
            self._update(self._step, first.rate, nodes)
        del self._pushed[self._step]
        self._step += 1
        return True

    def _update(self, step: int, rate: float, nodes: Sequence[Node[SparseRows]]) -> None:
        """Makes an optimizer step with the sum of these nodes. It works on one block of ids at a time, so that the whole sum is never in memory."""
        ids = np.unique(np.concatenate([node.value.ids for node in nodes]))
        self._shard.add(ids)
        for block in in_blocks([node.value for node in nodes], ids, self._config.width):
            parts = [Node(node.start, node.stop, rows) for node, rows in zip(nodes, block, strict=True)]
            (total,) = fold(parts, self._config.num_positions, add_rows)
            self._shard.update(step, rate, total.value)

    def _or_fail(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._fail(" ".join(str(error).split()))

    def _fail(self, why: str) -> None:
        """Raises a StageError with this reason, now and for every later request of this attempt."""
        self._failure = f"embedding table: {why}"
        raise StageError(self._failure)
