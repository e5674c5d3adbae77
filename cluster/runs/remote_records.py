"""What rank 0 tells the driver where the run's directory is on an object store: the rules of `graphmill.cluster.runs.local_records`, with objects for files.

    attempts/20261123-201530-123456/records-000001    what was told until then, one JSON object a line; never changed, numbered without gaps
    attempts/20261123-201530-123456/step              the latest step, overwritten
    attempts/20261123-201530-123456/request           "stop" once the driver asks the workers to save and end

A store cannot append, and a request takes tens of milliseconds. So a thread of rank 0 writes what has been told since, at most every two seconds, and
training waits for it before a checkpoint counts alone (`flush`).
"""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from graphmill.cluster.runs.local_records import Record
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import StageError
from graphmill.storage.filesystem.remote_folder import StoredFolder

ATTEMPTS = "attempts"
_PERIOD_S = 2.0
_STOP = b"stop"
_END_S = 150.0  # longest wait for what is still to be written: more than one request's deadline
_NAME = re.compile(r"\d{8}-\d{6}-\d{6}")
_FILE = re.compile(r"records-\d{6,}|step|request")


@dataclass(frozen=True)
class StoredRecords:
    """One attempt's."""

    look_s: ClassVar = 1.0
    run: StoredFolder
    name: str

    @classmethod
    def create(cls, run: StoredFolder) -> "StoredRecords":
        """Those of a new attempt."""
        return cls(run, datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"))

    @classmethod
    def left(cls, run: StoredFolder) -> "list[StoredRecords]":
        """Those of attempts whose driver was killed, oldest first."""
        names = [name for name in run.names(ATTEMPTS) if _NAME.fullmatch(name)]
        return [
            cls(run, name) for name in names if run.names(f"{ATTEMPTS}/{name}")
        ]  # a file system keeps empty folders

    def reporter(self) -> "StoredRecorder":
        return StoredRecorder(self)

    def reader(self) -> "StoredReader":
        return StoredReader(self)

    def ask_to_stop(self) -> None:
        self.run.write(self.path("request"), _STOP)

    def remove(self) -> None:
        where = f"{ATTEMPTS}/{self.name}"
        self.run.remove([f"{where}/{file}" for file in self.run.names(where) if _FILE.fullmatch(file)])

    def path(self, file: str) -> str:
        return f"{ATTEMPTS}/{self.name}/{file}"

    def piece(self, number: int) -> str:
        return self.path(f"records-{number:06d}")


class StoredRecorder:
    """Rank 0's end. What goes wrong in its thread is raised by the next call."""

    def __init__(self, reports: StoredRecords) -> None:
        self._reports = reports
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._step = b""
        self._told = self._written = 0  # records
        self._stop = self._hurry = self._closed = False
        self._work: Future[None] | None = None  # the thread, from the first record on: other ranks have none to tell

    def push(self, record: Record) -> None:
        self._check()
        line = json.dumps(record).encode() + b"\n"
        with self._changed:
            if self._work is None:
                self._work = begin(self._follow, "reports")
                self._work.add_done_callback(self._wake)  # not before it is done, or who waits looks too early
            if record["kind"] == "step":
                self._step = line
            else:
                self._waiting.append(line)
                self._told += 1

    def stop_asked(self) -> bool:
        return self._stop

    def flush(self) -> None:
        """Raises DeadlineError where the store cannot be reached in time."""
        with self._changed:
            told, self._hurry = self._told, True
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._written >= told or self._is_over, _END_S)
        self._check()
        if not in_time:
            raise StageError(f"{self._reports.run.url}: what was told is not written after {_END_S:g} s")

    def close(self) -> None:
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
        number, shown = 0, b""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._closed, _PERIOD_S)
                self._hurry, lines, step = False, self._waiting, self._step
                self._waiting = []
                closed = self._closed
            if lines:
                number += 1
                self._reports.run.write(self._reports.piece(number), b"".join(lines))
                with self._changed:
                    self._written += len(lines)
                    self._changed.notify_all()
            if closed:
                return
            if step != shown:
                self._reports.run.write(self._reports.path("step"), step)
                shown = step
            if not self._stop:
                self._stop = self._reports.run.read(self._reports.path("request")) == _STOP

    def _wake(self, _: Future[None]) -> None:
        with self._changed:
            self._changed.notify_all()


class StoredReader:
    """The driver's end."""

    def __init__(self, reports: StoredRecords) -> None:
        self._reports = reports
        self._number = 0
        self._step, self._last_epoch = b"", -1

    def fresh(self) -> Iterator[Record]:
        step = self._reports.run.read(
            self._reports.path("step")
        )  # before the records: if its epoch ends there, it is old
        yield from self.records()
        if step and step != self._step:
            self._step = step
            with suppress(ValueError):
                record = json.loads(step)
                if record["epoch"] > self._last_epoch:
                    yield record

    def records(self) -> Iterator[Record]:
        while (piece := self._reports.run.read(self._reports.piece(self._number + 1))) is not None:
            self._number += 1
            for line in piece.splitlines():
                record = json.loads(line)
                if record["kind"] == "epoch":
                    self._last_epoch = record["epoch"]
                yield record
