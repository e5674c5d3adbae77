"""What rank 0 tells the driver, by files in the run's directory, which all nodes share (Ray Train checks that before workers start).

    attempts/20261123-201530-123456.records   one start of the workers: epochs, traffic …, one JSON object a line; rank 0 alone appends
    attempts/20261123-201530-123456.step      the latest step, overwritten: progress that nobody needs afterwards
    attempts/20261123-201530-123456.request   empty; "stop" once the driver asks the workers to save and end

Each file has one writer, and each attempt has files of its own: a worker that outlives its attempt disturbs nobody. Nobody waits for
anybody: a checkpoint counts once the records before it are on the disk (`flush`), and what a killed driver has not recorded the next one reads
here. Files are opened for each use, so that network file systems show what others have written (close-to-open consistency).
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

from graphmill.storage.filesystem.fsync import sync_file

Record = Mapping[str, Any]

_REQUEST_LOOK_S = 0.1  # at most this often rank 0 looks whether it is to stop
_STOP = b"stop"


class Records(Protocol):
    """What rank 0 of one attempt tells the driver; small, and safe to send to workers. `AttemptFiles`, or on a store
    `graphmill.cluster.runs.remote_records.StoredRecords`."""

    look_s: ClassVar[float]
    """Between two looks of the driver."""

    def reporter(self) -> "RecorderEnd":
        """For rank 0, once."""
        ...

    def reader(self) -> "ReaderEnd": ...

    def ask_to_stop(self) -> None: ...

    def remove(self) -> None: ...


class RecorderEnd(Protocol):
    """Rank 0's."""

    def push(self, record: Record) -> None:
        """Tells the driver; waits for nobody."""
        ...

    def stop_asked(self) -> bool:
        """Whether the driver has asked the workers to save and end."""
        ...

    def flush(self) -> None:
        """Returns when all that was told would outlive every process and machine."""
        ...

    def close(self) -> None:
        """Flushes, at the end."""
        ...


class ReaderEnd(Protocol):
    """The driver's."""

    def fresh(self) -> Iterator[Record]:
        """What was told since the last call, in order; of steps the latest."""
        ...

    def records(self) -> Iterator[Record]:
        """What was told since the last call, but for steps."""
        ...


@dataclass(frozen=True)
class AttemptFiles:
    """The files of one attempt."""

    look_s: ClassVar = 0.1
    stem: Path

    @classmethod
    def create(cls, run: Path) -> "AttemptFiles":
        """Those of a new attempt in a run's directory; no name is given twice."""
        folder = (run / "attempts").resolve()
        folder.mkdir(exist_ok=True)
        files = cls(folder / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"))
        for path in files.all:
            path.touch(exist_ok=False)
        sync_file(folder)
        return files

    @classmethod
    def left(cls, run: Path) -> "list[AttemptFiles]":
        """Those of attempts whose driver was killed, oldest first."""
        return [cls(path.with_suffix("")) for path in sorted((run / "attempts").glob("*.records"))]

    @property
    def all(self) -> tuple[Path, Path, Path]:
        return self.records, self.step, self.request

    @property
    def records(self) -> Path:
        return self.stem.with_suffix(".records")

    @property
    def step(self) -> Path:
        return self.stem.with_suffix(".step")

    @property
    def request(self) -> Path:
        return self.stem.with_suffix(".request")

    def ask_to_stop(self) -> None:
        self.request.write_bytes(_STOP)

    def reporter(self) -> "Recorder":
        return Recorder(self)

    def reader(self) -> "RecordReader":
        return RecordReader(self)

    def remove(self) -> None:
        for path in self.all:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # other attempts' files are there
            self.stem.parent.rmdir()


class Recorder:
    """Rank 0's end."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files
        self._looked, self._stop = -_REQUEST_LOOK_S, False

    def push(self, record: Record) -> None:
        """Tells the driver, which looks a few times a second."""
        line = json.dumps(record).encode() + b"\n"
        if record["kind"] == "step":
            self._files.step.write_bytes(line)
            return
        with open(self._files.records, "ab", buffering=0) as stream:
            stream.write(line)

    def stop_asked(self) -> bool:
        """Whether the driver has asked the workers to save and end."""
        now = time.monotonic()
        if not self._stop and now - self._looked >= _REQUEST_LOOK_S:
            self._looked, self._stop = now, self._files.request.read_bytes() == _STOP
        return self._stop

    def flush(self) -> None:
        """All that was told survives a loss of power."""
        sync_file(self._files.records)

    def close(self) -> None:
        """Nothing waits to be told."""


class RecordReader:
    """The driver's end."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files
        self._offset = 0
        self._step, self._last_epoch = b"", -1

    def fresh(self) -> Iterator[Record]:
        """What was told since the last call, in order; of steps the latest."""
        step = self._files.step.read_bytes()  # before the records: if its epoch ends there, it is old
        yield from self.records()
        if step != self._step and step.endswith(b"\n"):
            self._step, record = step, json.loads(step)
            if record["epoch"] > self._last_epoch:
                yield record

    def records(self) -> Iterator[Record]:
        """What was told since the last call, but for steps."""
        with open(self._files.records, "rb") as stream:
            stream.seek(self._offset)
            lines = stream.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):  # it is being written, or its writer was killed
                break
            self._offset += len(line)
            record = json.loads(line)
            if record["kind"] == "epoch":
                self._last_epoch = record["epoch"]
            yield record
