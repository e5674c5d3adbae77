"""Reads and writes a run's files, in a folder or on an object store. The methods are the same for both and use fsspec.

A file appears whole or not at all. In a folder a file is synced and then renamed to its final name. On a store every request is repeated until a deadline
(`graphmill.storage.filesystem.retry`). For a run on a store the driver writes to a working folder on its own disk, and
`graphmill.cluster.runs.run_upload` copies the changes to the store. Workers write checkpoints and records directly to the store.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeVar

import fsspec

from graphmill.core.errors import GraphmillError
from graphmill.core.files.small_files import read_small
from graphmill.storage.filesystem.fsync import sync_file
from graphmill.storage.filesystem.object_stores import check_bucket, is_object_store, list_names, put_file
from graphmill.storage.filesystem.outputs import remove_empty_folder
from graphmill.storage.filesystem.retry import retried
from graphmill.storage.filesystem.temporary_folder import disown, own, owned, remove_orphans
from graphmill.storage.filesystem.urls import is_local, split_url

CONFIG = "config.json"
FILES = (  # the driver writes these files whole; it also writes event files and the best weights
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "receipt.jsonl",
    "events.jsonl",
    "failure.log",
    "tracking.json",
    "summary.json",
    "report.html",
)
BASELINES = "baselines"  # the folder in a run for runs of classic models
GRAPH = "graph"  # the folder in a run for a snapshot of data that was given in memory
DEADLINE_S = 120.0  # long enough for a store that is unavailable for a minute
_SLOWEST_BYTES_PER_S = 1e6  # assumed speed of the slowest copy, for the deadline of a copy
_MOST_AT_ONCE = 500  # names in one request that removes files
_SCRATCH = "graphmill-run-"  # prefix of the names of folders on this host's disk
_ANY_SIZE = sys.maxsize - 1

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunStore:
    """A run at a path or fsspec URL. The name of a file is its path inside the run. `deadline_s`: the deadline of a request to a store.

    On a store all methods raise DeadlineError if the store does not answer in time, and FormatError for failures that another try would not cure. In a
    folder they raise OSError.
    """

    url: str
    deadline_s: float = DEADLINE_S

    @classmethod
    def of(cls, run: "str | Path | RunStore") -> "RunStore":
        return run if isinstance(run, RunStore) else cls(str(run))

    def __str__(self) -> str:
        return self.url

    @cached_property
    def _where(self) -> tuple[fsspec.AbstractFileSystem, str]:
        return split_url(self.url) if "://" in self.url else (split_url("/")[0], os.path.abspath(self.url))

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        return self._where[0]

    @property
    def path(self) -> str:
        """The run's path in its file system."""
        return self._where[1]

    @property
    def is_local(self) -> bool:
        """Whether the run is in a local folder. Raises FormatError for a URL of an unknown kind."""
        return is_local(self.filesystem)

    @cached_property
    def folder(self) -> Path:
        """The run's directory. For a run on a store: the driver's working folder, which is made at first use."""
        if self.is_local:
            return Path(self.path if "://" in self.url else self.url)
        # Removes working folders of killed drivers; the stores have the runs
        remove_orphans(Path(tempfile.gettempdir()), _SCRATCH)
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH)) / self.name
        own(folder.parent)
        folder.mkdir()
        return folder

    @property
    def name(self) -> str:
        return self.absolute.rsplit("/", 1)[-1]

    @property
    def absolute(self) -> str:
        return str(self.folder.resolve()) if self.is_local else self.url.rstrip("/")

    def below(self, *names: str) -> str:
        """Returns the path or URL of a file or folder in the run."""
        return str(self.folder.joinpath(*names)) if self.is_local else "/".join((self.url.rstrip("/"), *names))

    def child(self, *names: str) -> "RunStore":
        return replace(self, url=self.below(*names))

    @property
    def holds_run(self) -> bool:
        return self.read(CONFIG) is not None

    def check_bucket(self) -> None:
        """Raises ConfigError if the store's bucket does not exist. Buckets are never created."""
        self._request(lambda: check_bucket(self.filesystem, self.path, self.url), "", "look for the bucket")

    def names(self, below: str = "") -> list[str]:
        """Returns the names of the files and folders in the run, or in its folder `below`, in ascending order. Empty if the folder does not exist."""
        return self._request(lambda: list_names(self.filesystem, self._path(below)), below, "list this folder")

    def read(self, name: str) -> bytes | None:
        """Returns a file's content, or None if the file does not exist. Raises FormatError for a local pipe or device."""

        def get() -> bytes:
            return read_small(self.folder / name, _ANY_SIZE) if self.is_local else self._cat(name)

        try:
            return self._request(get, name, "read this file")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes or replaces a file. The file survives a loss of power."""
        self._request(lambda: put_file(self.filesystem, self._path(name), content), name, "write this file")

    def overwrite(self, name: str, content: bytes) -> None:
        """Writes a file that is not needed after a loss of power. In a folder a reader may see an incomplete file."""
        if not self.is_local:
            self.write(name, content)
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a new file to a store. Returns False if the file exists. If several writers try at once, only one succeeds, provided that the store supports
        exclusive creation.
        """

        def put() -> bool:
            self._make_folder(name)
            try:
                self.filesystem.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                # If the answer to a request was lost, the request is sent again. Then the existing file may be this writer's file.
                return self._cat(name) == content
            return True

        return self._request(put, name, "create this file")

    def extend(self, name: str, content: bytes, number: int) -> None:
        """Appends whole lines to a log. `number` counts the calls from 1. A store cannot append, so there the lines become an object with this number."""
        if not self.is_local:
            self.write(f"{name}-{number:06d}", content)
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as stream:
            stream.write(content)
            os.fsync(stream.fileno())
        if number == 1:
            sync_file(path.parent)

    def tail(self, name: str, place: int) -> tuple[bytes, int]:
        """Returns (the whole lines of a log from `place` on, the place after these lines). Place 0 is the beginning of the log. Without further lines the
        bytes are empty.
        """
        if not self.is_local:
            piece = self.read(f"{name}-{place + 1:06d}")
            return (b"", place) if piece is None else (piece, place + 1)
        with suppress(FileNotFoundError), open(self.folder / name, "rb") as stream:
            stream.seek(place)
            content = stream.read()
            # The last line may be incomplete: still being written, or its writer was killed
            lines = content[: content.rfind(b"\n") + 1]
            return lines, place + len(lines)
        return b"", place

    def put(self, source: Path, name: str) -> None:
        """Copies a file of this host to a store."""

        def copy() -> None:
            self._make_folder(name)
            self.filesystem.put_file(str(source), self._path(name))

        self._request(copy, name, "write this file", os.path.getsize(source))

    def get(self, name: str, target: Path) -> None:
        """Copies a file from a store to this host. Raises FileNotFoundError if the file does not exist."""
        self._request(
            lambda: self.filesystem.get_file(self._path(name), str(target)), name, "copy this file", num_bytes=1 << 30
        )

    def remove(self, names: Sequence[str]) -> None:
        """Removes these files, and then their folders if the folders are empty. Missing files are no error."""
        for start in range(0, len(names), _MOST_AT_ONCE):
            paths = [self._path(name) for name in names[start : start + _MOST_AT_ONCE]]

            def remove(paths: list[str] = paths) -> None:
                if is_object_store(self.filesystem):  # one request
                    self.filesystem.rm(paths)
                    return
                for path in paths:
                    with suppress(FileNotFoundError):
                        self.filesystem.rm_file(path)
                for folder in {path.rsplit("/", 1)[0] for path in paths}:
                    remove_empty_folder(self.filesystem, folder)

            with suppress(FileNotFoundError):
                # One call may take the whole time: a second one beside it could remove what was written anew.
                self._request(remove, names[start], "remove this file", num_bytes=0)

    @contextmanager
    def at_hand(self, *parts: str) -> Iterator[Path]:
        """Yields a folder with these files and folders: the run's directory, or, for a run on a store, a folder with copies. Errors name the URL."""
        if self.is_local:
            yield self.folder
            return
        with self.scratch() as folder:
            self.fetch(folder, parts)
            try:
                yield folder
            except GraphmillError as error:
                error.args = tuple(str(text).replace(str(folder), self.url.rstrip("/")) for text in error.args)
                raise

    def fetch(self, folder: Path, parts: Sequence[str]) -> None:
        """Copies the files with these names, and the files in folders with these names, from a store. Missing files are left out."""
        present = set(self.names())
        for part in present.intersection(parts):
            inside = [] if PurePath(part).suffix else [f"{part}/{name}" for name in self.names(part)]
            for name in inside or [part]:
                (folder / name).parent.mkdir(exist_ok=True)
                self.get(name, folder / name)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yields a folder with the run's name on this host's disk, and removes it after the block. Folders of killed processes are removed first."""
        remove_orphans(Path(tempfile.gettempdir()), _SCRATCH)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as made, owned(Path(made)):
            folder = Path(made, self.name)
            folder.mkdir()
            yield folder

    def leave_working_folder(self) -> None:
        """Keeps the working folder for the user, because some of its files are missing on the store."""
        disown(self.folder.parent)

    def remove_working_folder(self) -> None:
        """Removes the working folder of a run on a store. Call it when the store has all files."""
        if not self.is_local and "folder" in vars(self):
            shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _request(self, action: Callable[[], Result], name: str, purpose: str, num_bytes: int | None = None) -> Result:
        """Returns the result of `action`; on a store with retries. `purpose`: words for an error message, such as "copy this file". `num_bytes`: size of a
        copy, which extends the deadline; one call may then take all of the time.
        """
        if self.is_local:
            return action()
        where = self.below(name).rstrip("/")
        if num_bytes is None:
            return retried(action, where, purpose, self.deadline_s)
        longest = self.deadline_s + num_bytes / _SLOWEST_BYTES_PER_S
        return retried(action, where, purpose, longest, longest)

    def _cat(self, name: str) -> bytes:
        content: bytes = self.filesystem.cat_file(self._path(name))
        return content

    def _make_folder(self, name: str) -> None:
        if not is_object_store(self.filesystem):
            self.filesystem.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}".rstrip("/")
