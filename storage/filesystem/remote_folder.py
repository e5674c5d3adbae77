"""A folder on an object store, or on any fsspec filesystem: small files written and read whole, large ones copied, all with retries.

Every request is tried again until a deadline (`graphmill.storage.filesystem.retry`). A file appears whole or not at all.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec

from graphmill.storage.filesystem.object_stores import check_bucket, is_object_store, list_names
from graphmill.storage.filesystem.retry import retried
from graphmill.storage.filesystem.urls import split_url

DEADLINE_S = 120.0  # a store that is away for a minute is waited for
_SLOWEST_BYTES_PER_S = 1e6  # of a copy under way
_MOST_AT_ONCE = 500  # names of one request to remove them


@dataclass(frozen=True)
class StoredFolder:
    """Names are paths below the URL."""

    url: str
    deadline_s: float = DEADLINE_S

    @functools.cached_property
    def _where(self) -> tuple[fsspec.AbstractFileSystem, str]:
        return split_url(self.url)

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        return self._where[0]

    @property
    def path(self) -> str:
        return self._where[1]

    def check_bucket(self) -> None:
        """Raises ConfigError where the bucket does not exist: none is ever created."""
        retried(
            lambda: check_bucket(self.filesystem, self.path, self.url), self.url, "look for the bucket", self.deadline_s
        )

    def names(self, below: str = "") -> list[str]:
        """Of files and folders in this folder, or in one below it; ascending, none where there is no such folder."""
        where = f"{self.path}/{below}".rstrip("/")
        return retried(
            lambda: list_names(self.filesystem, where), self._url(below), "list this folder", self.deadline_s
        )

    def read(self, name: str, deadline_s: float | None = None) -> bytes | None:
        """A file's content; None where there is none."""
        try:
            content: bytes = retried(
                lambda: self.filesystem.cat_file(self._path(name)),
                self._url(name),
                "read this file",
                deadline_s or self.deadline_s,
            )
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return content

    def write(self, name: str, content: bytes, deadline_s: float | None = None) -> None:
        """Writes or replaces a file."""

        def put() -> None:
            self._make_folder(name)
            self.filesystem.pipe_file(self._path(name), content)

        retried(put, self._url(name), "write this file", deadline_s or self.deadline_s)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file where there is none; False where there is one. Of several writers one succeeds, where the store can tell."""

        def put() -> bool:
            self._make_folder(name)
            try:
                self.filesystem.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                # An answer that was lost, and a request that was sent again, are this writer's too.
                return bool(self.filesystem.cat_file(self._path(name)) == content)
            return True

        return retried(put, self._url(name), "create this file", self.deadline_s)

    def put(self, source: Path, name: str) -> None:
        """Copies a local file here."""
        longest = self.deadline_s + os.path.getsize(source) / _SLOWEST_BYTES_PER_S

        def copy() -> None:
            self._make_folder(name)
            self.filesystem.put_file(str(source), self._path(name))

        retried(copy, self._url(name), "write this file", longest, longest)

    def get(self, name: str, target: Path, num_bytes: int = 1 << 30) -> None:
        """Copies a file from here. Raises FileNotFoundError where there is none. `num_bytes`: about its size, for the deadline."""
        longest = self.deadline_s + num_bytes / _SLOWEST_BYTES_PER_S
        retried(
            lambda: self.filesystem.get_file(self._path(name), str(target)),
            self._url(name),
            "copy this file",
            longest,
            longest,
        )

    def remove(self, names: Sequence[str]) -> None:
        """Removes these files; those that are not there are no error."""
        for start in range(0, len(names), _MOST_AT_ONCE):
            some = [self._path(name) for name in names[start : start + _MOST_AT_ONCE]]

            def remove(some: list[str] = some) -> None:
                if is_object_store(self.filesystem):  # one request
                    self.filesystem.rm(some)
                    return
                for path in some:
                    with contextlib.suppress(FileNotFoundError):
                        self.filesystem.rm_file(path)

            with contextlib.suppress(FileNotFoundError):
                retried(remove, self._url(names[start]), "remove this file", self.deadline_s)

    def _make_folder(self, name: str) -> None:
        if not is_object_store(self.filesystem):
            self.filesystem.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _url(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}".rstrip("/")
