"""Where a run is kept: a folder, or a URL on an object store, of which the driver has a working folder on its own disk.

Everything that is written by the driver is written to `folder`. On a store it is a copy: `graphmill.cluster.runs.run_upload` brings what has changed to the store.
What workers write (checkpoints, reports) goes to the store itself.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from graphmill.cluster.runs.local_records import AttemptFiles, Records
from graphmill.cluster.runs.run_lease import RunLease
from graphmill.core.errors import ConflictError, GraphmillError
from graphmill.core.files.small_files import read_small
from graphmill.storage.filesystem.remote_folder import StoredFolder
from graphmill.storage.filesystem.temporary_folder import disown, own, owned, remove_orphans
from graphmill.storage.filesystem.urls import is_local, split_url

CONFIG = "config.json"
FILES = (  # that the driver writes, whole; besides them event files, the best weights and what workers write
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "events.jsonl",
    "failure.log",
    "tracking.json",
    "summary.json",
    "report.html",
)
_WORKING = "graphmill-run-"  # begins the names of working folders
BASELINES = "baselines"  # of a run: the classic models beside it


@dataclass(frozen=True)
class RunUrl:
    """Named by a path or an fsspec URL."""

    url: str

    @classmethod
    def of(cls, run: "str | Path | RunUrl") -> "RunUrl":
        return run if isinstance(run, RunUrl) else cls(str(run))

    def __str__(self) -> str:
        return self.url

    @cached_property
    def store(self) -> StoredFolder | None:
        """None: it is a folder."""
        if "://" not in self.url or is_local(split_url(self.url)[0]):
            return None
        return StoredFolder(self.url.rstrip("/"))

    @cached_property
    def folder(self) -> Path:
        """The run's directory, or the driver's working folder, of the run's name, made when it is first asked for."""
        if self.store is None:
            return Path(split_url(self.url)[1]) if "://" in self.url else Path(self.url)
        remove_orphans(Path(tempfile.gettempdir()), _WORKING)  # of drivers that were killed: the stores have the runs
        folder = Path(tempfile.mkdtemp(prefix=_WORKING)) / self.name
        own(folder.parent)
        folder.mkdir()
        return folder

    @property
    def name(self) -> str:
        return self.store.url.rsplit("/", 1)[-1] if self.store else self.folder.resolve().name

    @property
    def absolute(self) -> str:
        return self.store.url if self.store else str(self.folder.resolve())

    def below(self, *names: str) -> str:
        """The path or URL of what is in it."""
        return "/".join((self.store.url, *names)) if self.store else str(self.folder.joinpath(*names))

    def child(self, *names: str) -> "RunUrl":
        return RunUrl(self.below(*names))

    def read(self, name: str) -> bytes | None:
        """A small file as it is kept; None where there is none."""
        if self.store:
            return self.store.read(name)
        try:
            return read_small(self.folder / name, sys.maxsize - 1)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @property
    def holds_run(self) -> bool:
        return self.read(CONFIG) is not None

    def names(self) -> list[str]:
        """Of what is in it; none where there is no such folder."""
        if self.store:
            return self.store.names()
        return sorted(entry.name for entry in self.folder.iterdir()) if self.folder.is_dir() else []

    def new_reports(self) -> Records:
        """For an attempt that begins."""
        if self.store:
            from graphmill.cluster.runs.remote_records import StoredRecords

            return StoredRecords.create(self.store)
        return AttemptFiles.create(self.folder)

    def left_reports(self) -> list[Records]:
        """Of attempts whose driver was killed, oldest first."""
        if self.store:
            from graphmill.cluster.runs.remote_records import StoredRecords

            return [*StoredRecords.left(self.store)]
        return [*AttemptFiles.left(self.folder)]

    @contextmanager
    def at_hand(self, *parts: str) -> Iterator[Path]:
        """A folder with these of its files and of its folders' files, to be read: the run's directory, or copies of them. Errors name the URL."""
        if self.store is None:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix=_WORKING) as scratch, owned(Path(scratch)):
            folder = Path(scratch, self.name)
            folder.mkdir()
            fetch(self.store, folder, parts)
            try:
                yield folder
            except GraphmillError as error:
                raise type(error)(str(error).replace(str(folder), self.store.url)) from None

    def leave_working_folder(self) -> None:
        """To the user, where the store lacks some of it."""
        disown(self.folder.parent)

    def remove_working_folder(self) -> None:
        """Of a run on a store, once the store has all of it."""
        if self.store and "folder" in vars(self):
            shutil.rmtree(self.folder.parent, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[RunLease | None]:
        """No other driver trains this run meanwhile. Raises ConflictError where one does. Of a run on a store it gives the lease, which another
        driver may take over."""
        if self.store:
            with RunLease(self.store) as hold:
                yield hold
            return
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(
                    descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # of the folder: it adds no file, and ends with the process
            except BlockingIOError:
                raise ConflictError(
                    f"{self.url}: expected a run that nobody trains now, found a process that does; wait for its end, or choose another --run.dir"
                ) from None
            except OSError:  # a network filesystem without locks of folders
                pass
            yield None  # the lock ends with the process
        finally:
            os.close(descriptor)


def fetch(store: StoredFolder, folder: Path, parts: tuple[str, ...]) -> None:
    """Copies files of these names from the store, and those in folders of these names; what is not there is left out."""
    present = set(store.names())
    for part in parts:
        if part not in present:
            continue
        inside = store.names(part)
        inside = [f"{part}/{name}" for name in inside if name != part]
        for name in inside or [part]:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            store.get(name, target)
