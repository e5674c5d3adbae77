"""Passes rank 0's records to the driver, by files in the run's directory. All nodes share this directory (Ray Train checks this before workers start).

    attempts/20261123-201530-123456.records   one start of the workers: epochs, traffic …, one JSON object a line; rank 0 alone appends
    attempts/20261123-201530-123456.step      the latest step only; each step overwrites the file
    attempts/20261123-201530-123456.request   "stop" when the driver asks the workers to save and end

An object store cannot append. Therefore an attempt has a folder there: the records are in the files `…/records-000001`, `…/records-000002` …, without gaps in
the numbers. `…/step` and `…/request` are in the same folder.

Each file has one writer, and each attempt has separate files. Therefore a worker that survives its attempt does not disturb a later attempt. A thread of
rank 0 writes the records; training waits for it only before a checkpoint becomes valid (`flush`). If a driver is killed, the next driver reads the remaining
records. Files are opened for each use, because a network file system then shows the changes of other hosts (close-to-open consistency).
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
_END_S = 150.0  # longest wait for records to be written; more than the deadline of a request
_NAME = re.compile(r"(\d{8}-\d{6}-\d{6})(\.(records|step|request))?")
_FILE = re.compile(r"records(-\d{6,})?|step|request")


_TOLD_SHARE = 16  # the epochs until the next report are 1 / 16 of the epochs so far


@dataclass(frozen=True)
class AttemptRecords:
    """The files of one attempt. The object is small and can be sent to workers."""

    run: RunStore
    name: str

    @classmethod
    def create(cls, run: RunStore) -> "AttemptRecords":
        """Returns the files of a new attempt. A name is never used twice."""
        return cls(RunStore(run.absolute), datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"))

    @classmethod
    def left(cls, run: RunStore) -> "list[AttemptRecords]":
        """Returns the files of earlier attempts, oldest first. They exist because the driver of these attempts was killed."""
        names = {match[1] for name in run.names(ATTEMPTS) if (match := _NAME.fullmatch(name))}
        return [each for name in sorted(names) if (each := cls(RunStore(run.absolute), name))._files()]

    @property
    def look_s(self) -> float:
        """Seconds between two checks for new records by the driver."""
        return 0.1 if self.run.is_local else 1.0

    @property
    def period_s(self) -> float:
        """Least time in seconds after which rank 0 writes records and reads the request again."""
        return 0.1 if self.run.is_local else 2.0

    def path(self, file: str) -> str:
        """Returns the path of a file of the attempt: "records", "step" or "request"."""
        return f"{ATTEMPTS}/{self.name}{'.' if self.run.is_local else '/'}{file}"

    def ask_to_stop(self) -> None:
        self.run.write(self.path("request"), _STOP)

    def remove(self) -> None:
        self.run.remove(self._files())

    def _files(self) -> list[str]:
        """Returns the paths of those files of the attempt that exist."""
        if self.run.is_local:
            names, files = set(self.run.names(ATTEMPTS)), ("records", "step", "request")
            return [path for file in files if (path := self.path(file)).rpartition("/")[2] in names]
        return [self.path(file) for file in self.run.names(f"{ATTEMPTS}/{self.name}") if _FILE.fullmatch(file)]


class Recorder:
    """Writes the records; used by rank 0. An error in its thread is raised by the next call."""

    def __init__(self, records: AttemptRecords) -> None:
        self._records = records
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._step = b""
        self._told = self._written = 0  # counts of records
        self._stop = self._hurry = self._closed = False
        # The result of the writing thread. The thread starts with the first record, so only rank 0 has one
        self._work: Future[None] | None = None

    def push(self, record: Record) -> None:
        """Adds a record for the driver, without waiting."""
        self._check()
        line = json.dumps(record).encode() + b"\n"
        with self._changed:
            if self._work is None:
                self._work = begin(self._follow, "records")
                self._work.add_done_callback(self._wake)  # wakes waiting threads only after the work is done
            if record["kind"] == "step":
                self._step = line
            else:
                self._waiting.append(line)
                self._told += 1
                self._changed.notify_all()

    def stop_asked(self) -> bool:
        """Returns whether the driver had asked the workers to save and end when the request was last read."""
        return self._stop

    def flush(self) -> None:
        """Waits until all records are on disk or on the store. Raises StageError if they are not written in time."""
        with self._changed:
            last, self._hurry = self._told, True
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._written >= last or self._is_over, _END_S)
        self._check()
        if not in_time:
            raise StageError(f"{self._records.run}: records of the run are still not written after {_END_S:g} s")

    def close(self) -> None:
        """Waits until all records are written, and ends the thread."""
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
    """Reads the records; used by the driver."""

    def __init__(self, records: AttemptRecords) -> None:
        self._records = records
        self._place = 0
        self._step, self._last_epoch = b"", -1

    def fresh(self) -> Iterator[Record]:
        """Yields the records since the last call, in order, and then the latest step if its epoch has not ended."""
        # The step is read before the records: if the records show the end of the step's epoch, the step is outdated.
        step = self._records.run.read(self._records.path("step"))
        yield from self.records()
        if step and step != self._step:
            with suppress(ValueError):  # the file is incomplete: rank 0 is writing it
                record = json.loads(step)
                self._step = step
                if record["epoch"] > self._last_epoch:
                    yield record

    def records(self) -> Iterator[Record]:
        """Yields the records since the last call, without steps."""
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
    """Returns whether workers report traffic and ranks after this epoch (counted from 0): after each of the first 32 epochs, then more and more rarely.

    Reports are rare because their size grows with partitions and ranks. A run of n epochs reports about 16 ln(n / 32) + 32 times: 160 times in 100,000
    epochs. A report holds the sums over all epochs since the last report. A fault loses at most the sums of the last sixteenth of the epochs. The result is
    the same on all ranks and after a resume.
    """
    recorded = 1
    while recorded <= epoch:
        recorded += max(1, recorded // _TOLD_SHARE)
    return recorded == epoch + 1
