"""Fetches the remote rows of batches by plan. A fetched row is kept while a known batch needs it again, within a budget of bytes.

Threads draw batches in advance, without their rows, within another budget of bytes; they continue across the ends of epochs. These are the known batches.
For one batch after another, the plan (`graphmill.samplers.loading.row_schedule`) decides which rows are already in this process, which rows to fetch, and
which fetched rows to keep. The plan only decides where rows are read from, so a batch is bit for bit the same as without a plan.

Each type of nodes has a separate plan and room. The types share the budget in proportion to the bytes that the first batches need of each. Room that a type
cannot use goes to the other types.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphmill.core.errors import DeadlineError, StageError
from graphmill.samplers.access.owners import PendingRows
from graphmill.samplers.access.router import Wanted, ask_rows
from graphmill.samplers.drawing.pending_batch import DrawingSampler, PendingBatch
from graphmill.samplers.kernels.rows import place_rows
from graphmill.samplers.loading.ordered_stream import Bounds, OrderedStream
from graphmill.samplers.loading.row_schedule import RowSchedule, Step
from graphmill.samplers.vocabulary.messages import NodeRows
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.samplers.vocabulary.stage_clock import credit, stage

# Number of batches whose requests are joined. It is small at the start of an epoch, so that the first batch arrives soon, and then doubles each time.
_FIRST_JOINED, _MOST_JOINED = 4, 16
_AHEAD_SHARE = 16  # rows fetched in advance take up to 1 / 16 of the slots


@dataclass
class ScheduleStats:
    """Totals since the loader was constructed."""

    needed: int = 0  # number of rows in the batches that other machines have
    fetched: int = 0  # number of requested rows
    fetched_ahead: int = 0  # number of rows that were requested before their batch
    requests: int = 0  # number of requests for rows
    most_known: int = 0  # largest number of batches known at the same time
    peak_bytes: int = 0  # largest total size of kept rows, including rows fetched in advance
    plan_cpu_s: float = 0.0  # CPU time of planning


@dataclass(frozen=True)
class SharedRows:
    """Rows of one type from other machines. They stay in memory that the processes of a host share (`graphmill.cluster.serving.shared_rows`)."""

    node: np.ndarray  # stored ids, distinct
    rows: NodeRows  # the row of each entry of `node`; features in their stored form


@dataclass(frozen=True)
class _Asked:
    """A batch whose rows are requested but not yet complete."""

    drawn: PendingBatch
    steps: list[Step]  # one per type
    # For each type, the replies. A position counts through the rows fetched for this batch and then the rows fetched in advance.
    replies: list[list[tuple[PendingRows, np.ndarray]]]


class _KeptRows:
    """The kept rows of one type, and their plan."""

    def __init__(self, wanted: Wanted, row_bytes: int, num_bytes: int, shared: SharedRows | None) -> None:
        """`wanted`: the entry of any batch for this type; only its router and columns are used. `num_bytes`: size of the room for rows."""
        self.router, _, columns = wanted
        self.columns, self.row_bytes, self.shared = vars(columns), row_bytes, shared
        num_slots = num_bytes // row_bytes
        self.rows = self.router.empty_rows(num_slots, **self.columns, stored=True)  # row i is slot i
        self.plan = RowSchedule(np.asarray(self.router.manifest.partition_offsets), self.router.is_near, num_slots)
        if shared is not None:
            self.plan.share(shared.node)

    def put(self, rows: NodeRows, step: Step, near: list[Any], replies: list[tuple[NodeRows, np.ndarray]]) -> None:
        """Writes the rows of a batch that come from this process, from shared memory and from replies. `exchange` writes the kept rows, when it is the batch's
        turn."""
        for place, group in near:
            place(rows, step.near[group])
        if self.shared is not None and len(step.shared):
            self.router.put_rows(self.shared.rows, step.shared_row, rows, step.shared)
        for reply, group in replies:
            row = np.flatnonzero(group < len(step.absent))
            self.router.put_rows(reply, row, rows, step.absent[group[row]])

    def exchange(self, rows: NodeRows, step: Step, replies: list[tuple[NodeRows, np.ndarray]]) -> None:
        """Copies to the batch the rows that earlier batches have kept. Then keeps the fetched rows that later batches need."""
        self.router.put_rows(self.rows, step.slot, rows, step.hit)
        slot = np.concatenate([step.keep, step.ahead_slot])
        for reply, group in replies:
            to = slot[group]
            row = np.flatnonzero(to >= 0)
            copy_rows(reply, row, self.rows, to[row])


class _Turns:
    """Makes threads take turns, in the order of their batches' numbers."""

    def __init__(self, first: int, timeout_s: float) -> None:
        self._changed, self._timeout_s = threading.Condition(), timeout_s
        self.next = first
        self._error: BaseException | None = None

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for the turn of batch `number`. Raises the error that `fail` received, or DeadlineError."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self.next == number, self._timeout_s)
            if self._error is not None:
                raise self._error
            if self.next != number:
                raise DeadlineError(f"planned rows: batch {self.next} not done within {self._timeout_s:g} s")
        yield
        with self._changed:
            self.next += 1
            self._changed.notify_all()

    @property
    def is_failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raises the error that `fail` received, if there is one."""
        with self._changed:
            if self._error is not None:
                raise self._error

    def fail(self, error: BaseException) -> None:
        """Makes all threads that wait for a turn raise this error. Only the first error is kept."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


class ScheduledBatches:
    """A rank's batches, epoch after epoch. Call `begin`, then `batch` for every step. Any thread may call it; the steps should be roughly in order.

    The plan continues across epochs, up to `num_epochs`. A sampler's columns are the same in every batch.
    """

    def __init__(
        self,
        sampler: DrawingSampler,
        options: LoaderOptions,
        batches: Sequence[int],
        num_epochs: int = 0,
        shared: Sequence[SharedRows] = (),
    ) -> None:
        """`batches`: the sampler's numbers of the rank's batches in an epoch, in order. `shared`: one entry per type, or empty."""
        self._shared = shared
        self._sampler, self._options = sampler, options
        self._batches, self._num_epochs = batches, num_epochs
        self._kept: list[_KeptRows] = []  # one per type; empty before the first batch is known
        self._draws: OrderedStream[list[PendingBatch]] | None = None
        self._turns = _Turns(0, options.timeout_s)
        self._asking = threading.Lock()  # only the thread that holds this lock plans batches
        self._first = self._planned = self._stop = 0
        self.stats = ScheduleStats()

    def begin(self, epoch: int, step: int) -> None:
        """Makes step `step` of an epoch the next batch. If the plan does not continue with this batch anyway, ends the running work and starts again."""
        length, options = len(self._batches), self._options
        self._first = epoch * length
        first, stop = self._first + step, max(self._num_epochs, epoch + 1) * length
        is_next = self._turns.next == self._planned == first
        if self._draws is not None and is_next and stop == self._stop and not self._turns.is_failed:
            return
        self.close(options.close_timeout_s)
        bounds = self._bounds = _joined(first, stop, length)

        def draw(part: int) -> list[PendingBatch]:
            of_epoch, start = divmod(bounds[part], length)
            drawn = self._sampler.draw(of_epoch, self._batches[start : start + bounds[part + 1] - bounds[part]])
            return [replace(each, wanted=tuple(map(_as_stored, each.wanted))) for each in drawn]

        for kept in self._kept:
            if self._turns.next != kept.plan.next_taken:  # a batch was dropped: its rows may be missing
                kept.plan.forget()
            kept.plan.begin(first, stop)
        self._turns, self._planned, self._stop = _Turns(first, options.timeout_s), first, stop
        self._asked: dict[int, _Asked] = {}
        self._known: deque[PendingBatch] = deque()
        self._parts_known = self._parts_taken = 0
        self._draws = OrderedStream(
            draw,
            lambda drawn: sum(each.num_bytes for each in drawn),
            0,
            len(bounds) - 1,
            Bounds(options.threads, len(bounds), options.plan_bytes, options.timeout_s),
        )
        self._draws.begin()

    def cancel(self) -> None:
        """Ends the running work. Does not wait."""
        if self._draws is not None:
            self._draws.cancel()
        self._turns.fail(StageError("cancelled"))

    def close(self, timeout_s: float) -> None:
        """Cancels and waits for the threads to end. Raises DeadlineError with the name of a thread that does not end in time."""
        if self._draws is not None:
            self.cancel()
            self._draws.close(timeout_s)

    def batch(self, step: int) -> Any:
        """Returns the batch of a step in the current epoch. If a stage of this batch or of an earlier batch failed, raises its error."""
        number = self._first + step
        with self._or_nobody():
            asked = self._ask_until(number)
            rows = self._rows(number, asked)
        return asked.drawn.complete(*rows)

    @contextmanager
    def _or_nobody(self) -> Iterator[None]:
        """If the block fails, passes the error to all threads that wait for their turn."""
        try:
            yield
        except BaseException as error:
            self._turns.fail(error)
            raise

    def _ask_until(self, number: int) -> _Asked:
        """Plans the batches up to `number` that are not yet planned, and requests their rows. Returns batch `number`."""
        timeout_s = self._options.timeout_s
        if not self._asking.acquire(timeout=timeout_s):
            raise DeadlineError(f"planned rows: batch {self._planned} not asked for within {timeout_s:g} s")
        try:
            while self._planned <= number:
                self._turns.check()
                self._asked[self._planned] = self._ask()
                self._planned += 1
            return self._asked.pop(number)
        finally:
            self._asking.release()

    def _ask(self) -> _Asked:
        """Plans the next batch and requests its rows."""
        self._look_ahead()
        with stage("plan"):
            began = time.thread_time()
            drawn, stats = self._known.popleft(), self.stats
            steps = [kept.plan.take(kept.plan.num_slots // _AHEAD_SHARE) for kept in self._kept]
            wanted = []
            for (router, node, columns), step in zip(drawn.wanted, steps, strict=True):
                stats.needed += len(node) - len(step.near)
                stats.fetched += len(step.absent) + len(step.ahead)
                stats.fetched_ahead += len(step.ahead)
                wanted.append((router, np.concatenate([node[step.absent], step.ahead.astype(node.dtype)]), columns))
            stats.peak_bytes = max(stats.peak_bytes, sum(kept.plan.num_used * kept.row_bytes for kept in self._kept))
            stats.plan_cpu_s += time.thread_time() - began
        with stage("fetch"):
            replies = [far for _, far in ask_rows(wanted)]
        stats.requests += sum(map(len, replies))
        return _Asked(drawn, steps, replies)

    def _look_ahead(self) -> None:
        """Adds to the plan all batches that are already drawn. If the next batch is not drawn yet, waits for it."""
        draws = self._draws
        assert draws is not None
        if self._planned == self._bounds[self._parts_taken]:
            _, delivery = draws.take()
            if delivery.error is not None:
                with stage(delivery.clock.stage):
                    raise delivery.error
            credit(delivery.clock.seconds)
            if self._parts_taken == self._parts_known:
                assert delivery.result is not None
                self._admit(delivery.result)
            self._parts_taken += 1
        for part in draws.finished_from(self._parts_known):
            self._admit(part)

    def _admit(self, part: list[PendingBatch]) -> None:
        with stage("plan"):
            began = time.thread_time()
            self._kept = self._kept or self._open(part)
            for drawn in part:
                for kept, (_, node, _) in zip(self._kept, drawn.wanted, strict=True):
                    kept.plan.admit(node)
            self._known.extend(part)
            self._parts_known += 1
            self.stats.most_known = max(self.stats.most_known, len(self._known))
            self.stats.plan_cpu_s += time.thread_time() - began

    def _open(self, part: list[PendingBatch]) -> list[_KeptRows]:
        """Makes the plan and the room for rows of each type. The first batches determine the columns and sizes."""
        row_bytes, needed, most = [], [], []
        for place, (router, _, columns) in enumerate(part[0].wanted):
            row = router.empty_rows(1, **vars(columns), stored=True)
            row_bytes.append(sum(column.nbytes for column in vars(row).values() if column is not None))
            offsets, is_far = np.asarray(router.manifest.partition_offsets), ~router.is_near
            owners = [np.searchsorted(offsets, drawn.wanted[place][1], side="right") - 1 for drawn in part]
            needed.append(1 + row_bytes[-1] * int(is_far[np.concatenate(owners)].sum()))
            num_shared = len(self._shared[place].node) if self._shared else 0
            most.append(row_bytes[-1] * (int(np.diff(offsets)[is_far].sum()) - num_shared))
        rooms = _dealt(self._options.cache_bytes, needed, most)
        shared: Sequence[SharedRows | None] = self._shared or [None] * len(rooms)
        opened = [_KeptRows(*of_type) for of_type in zip(part[0].wanted, row_bytes, rooms, shared, strict=True)]
        for kept in opened:
            kept.plan.begin(self._planned, self._stop)
        return opened

    def _rows(self, number: int, asked: _Asked) -> list[NodeRows]:
        """Returns the batch's rows of each type. They come from this process, from kept rows, and from replies of other owners."""
        wanted, steps = asked.drawn.wanted, asked.steps
        with stage("fetch"):
            rows = [router.empty_rows(len(node), **vars(columns)) for router, node, columns in wanted]
            near = ask_rows(
                [(router, node[own.near], columns) for (router, node, columns), own in zip(wanted, steps, strict=True)]
            )
            replies = [[(pending.result(), group) for pending, group in far] for far in asked.replies]
            for kept, into, step, (places, _), far in zip(self._kept, rows, steps, near, replies, strict=True):
                kept.put(into, step, places, far)
            with self._turns.turn(number):  # after all earlier batches, before all later ones
                for kept, into, step, far in zip(self._kept, rows, steps, replies, strict=True):
                    kept.exchange(into, step, far)
        return rows


def _as_stored(wanted: Wanted) -> Wanted:
    """The same request, with node ids in the dtype of the graph's ids."""
    router, node, columns = wanted
    return router, node.astype(router.manifest.index_dtype, copy=False), columns


def _dealt(room: int, needed: list[int], most: list[int]) -> list[int]:
    """Divides `room` bytes in proportion to `needed`. Entry i gets at most most[i]; what it cannot use is divided among the other entries."""
    rooms, left = [0] * len(needed), sum(needed)
    for place in sorted(range(len(needed)), key=lambda place: most[place] / needed[place]):
        rooms[place] = min(room * needed[place] // left, most[place])
        room, left = room - rooms[place], left - needed[place]
    return rooms


def _joined(first: int, stop: int, length: int) -> list[int]:
    """Divides the batches first … stop - 1 into parts, and returns the bounds. All batches of a part share their requests. No part spans two epochs."""
    bounds, size = [first], _FIRST_JOINED
    while bounds[-1] < stop:
        end_of_epoch = (bounds[-1] // length + 1) * length
        bounds.append(min(bounds[-1] + size, end_of_epoch, stop))
        size = min(2 * size, _MOST_JOINED)
    return bounds


def copy_rows(source: NodeRows, row: np.ndarray, target: NodeRows, position: np.ndarray) -> None:
    """Sets target[position] = source[row] in every column. Features keep their stored form."""
    for name, column in vars(target).items():
        if column is not None:
            place_rows(getattr(source, name), row, position, column)
