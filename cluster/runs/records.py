"""Rank 0's records for the driver: files in the run's directory, which all nodes share (Ray Train checks that before workers start).

    attempts/20261123-201530-123456.records   one start of the workers: epochs, traffic …, one JSON object a line; rank 0 alone appends
    attempts/20261123-201530-123456.step      the latest step, overwritten: progress that nobody needs afterwards
    attempts/20261123-201530-123456.request   "stop" once the driver asks the workers to save and end

An object store cannot append, so an attempt has a folder there: `…/records-000001`, `…/records-000002` … hold the records, without gaps in the numbers, next to
`…/step` and `…/request`.

Each file has one writer, and each attempt has separate files, so a worker that outlives its attempt disturbs nobody. A thread of rank 0 writes the records.
Training waits for it only before a checkpoint counts (`flush`). Records that a killed driver did not take are read here by the next one. Files are opened for each use,
so that network file systems show what others have written (close-to-open consistency).
"""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import StageError

Record = Mapping[str, Any]

ATTEMPTS = "attempts"
_STOP = b"stop"
_END_S = 150.0  # longest wait for unwritten records: more than the deadline of a request
_NAME = re.compile(r"(\d{8}-\d{6}-\d{6})(\.(records|step|request))?")
_FILE = re.compile(r"records(-\d{6,})?|step|request")


_TOLD_SHARE = 16  # the next report comes after 1 / 16 of the epochs so far


@dataclass(frozen=True)
class AttemptRecords:
    """The files of one attempt; small, and safe to send to workers."""

    run: RunStore
    name: str

    @classmethod
    def create(cls, run: RunStore) -> "AttemptRecords":
        """The files of a new attempt; a name is never used twice."""
        return cls(RunStore(run.absolute), datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"))

    @classmethod
    def left(cls, run: RunStore) -> "list[AttemptRecords]":
        """The files of attempts whose driver was killed, oldest first."""
        names = {match[1] for name in run.names(ATTEMPTS) if (match := _NAME.fullmatch(name))}
        return [each for name in sorted(names) if (each := cls(RunStore(run.absolute), name))._files()]

    @property
    def look_s(self) -> float:
        """Seconds between two looks of the driver."""
        return 0.1 if self.run.is_local else 1.0

    @property
    def period_s(self) -> float:
        """Least seconds between two looks of rank 0, at which it writes records and reads the request."""
        return 0.1 if self.run.is_local else 2.0

    def path(self, file: str) -> str:
        """The path of a file: "records", "step" or "request"."""
        return f"{ATTEMPTS}/{self.name}{'.' if self.run.is_local else '/'}{file}"

    def ask_to_stop(self) -> None:
        self.run.write(self.path("request"), _STOP)

    def remove(self) -> None:
        self.run.remove(self._files())

    def _files(self) -> list[str]:
        """Paths of the attempt's files that exist."""
        if self.run.is_local:
            names, files = set(self.run.names(ATTEMPTS)), ("records", "step", "request")
            return [path for file in files if (path := self.path(file)).rpartition("/")[2] in names]
        return [self.path(file) for file in self.run.names(f"{ATTEMPTS}/{self.name}") if _FILE.fullmatch(file)]


class Recorder:
    """Rank 0's end. An error in its thread is raised by the next call."""

    def __init__(self, records: AttemptRecords) -> None:
        self._records = records
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._step = b""
        self._told = self._written = 0  # records
        self._stop = self._hurry = self._closed = False
        self._work: Future[None] | None = None  # the thread, from the first record on: other ranks have none

    def push(self, record: Record) -> None:
        """Adds a record for the driver; does not wait."""
        self._check()
        line = json.dumps(record).encode() + b"\n"
        with self._changed:
            if self._work is None:
                self._work = begin(self._follow, "records")
                self._work.add_done_callback(self._wake)  # called once it is done: a waiter must not look earlier
            if record["kind"] == "step":
                self._step = line
            else:
                self._waiting.append(line)
                self._told += 1
                self._changed.notify_all()

    def stop_asked(self) -> bool:
        """Whether the driver had asked the workers to save and end at the last look."""
        return self._stop

    def flush(self) -> None:
        """Returns when all records are on disk or on the store. Raises StageError if they are not written in time."""
        with self._changed:
            last, self._hurry = self._told, True
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._written >= last or self._is_over, _END_S)
        self._check()
        if not in_time:
            raise StageError(f"{self._records.run}: what was told is not written after {_END_S:g} s")

    def close(self) -> None:
        """Flushes and ends the thread."""
        if self._closed or self._work is None:
            return
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._work is not None and self._work.done()

    def _check(self) -> None:
        if self._work is not None and self._work.done():
            self._work.result()

    def _follow(self) -> None:
        run, path, period_s = self._records.run, self._records.path, self._records.period_s
        number, written_step, due = 0, b"", 0.0

        def is_due() -> bool:
            return self._hurry or self._closed or (bool(self._waiting) and time.monotonic() >= due)

        while True:
            with self._changed:
                self._changed.wait_for(is_due, period_s)
                self._hurry, lines, step = False, self._waiting, self._step
                self._waiting = []
                closed = self._closed
            due = time.monotonic() + period_s
            if lines:
                number += 1
                run.extend(path("records"), b"".join(lines), number)
                with self._changed:
                    self._written += len(lines)
                    self._changed.notify_all()
            if closed:
                return
            if step != written_step:
                run.overwrite(path("step"), step)
                written_step = step
            if not self._stop:
                self._stop = run.read(path("request")) == _STOP

    def _wake(self, _: Future[None]) -> None:
        with self._changed:
            self._changed.notify_all()


class RecordReader:
    """The driver's end."""

    def __init__(self, records: AttemptRecords) -> None:
        self._records = records
        self._place = 0
        self._step, self._last_epoch = b"", -1

    def fresh(self) -> Iterator[Record]:
        """The records since the last call, in order; of steps only the latest."""
        # Read before the records: if they end its epoch, the step is old.
        step = self._records.run.read(self._records.path("step"))
        yield from self.records()
        if step and step != self._step:
            with suppress(ValueError):  # it is being written
                record = json.loads(step)
                self._step = step
                if record["epoch"] > self._last_epoch:
                    yield record

    def records(self) -> Iterator[Record]:
        """The records since the last call, without steps."""
        while True:
            lines, self._place = self._records.run.tail(self._records.path("records"), self._place)
            if not lines:
                return
            for line in lines.splitlines():
                record = json.loads(line)
                if record["kind"] == "epoch":
                    self._last_epoch = record["epoch"]
                yield record


def is_recorded(epoch: int) -> bool:
    """Whether workers report traffic and ranks (whose size grows with partitions and ranks) after this epoch, counted from 0: after each of the first
    32, then ever more rarely.

    A run of n epochs reports about 16 ln(n / 32) + 32 times: 160 times in 100,000 epochs. Reports are sums since the last one, so nothing is left out;
    a fault loses at most the last sixteenth of the epochs. The same on all ranks, and after a resume.
    """
    recorded = 1
    while recorded <= epoch:
        recorded += max(1, recorded // _TOLD_SHARE)
    return recorded == epoch + 1
