"""Checks that the verified files of a graph are unchanged. Compares size and time of change, without reading the files.

Only local files are checked. A file on another filesystem is read into memory once, by the one process that owns it.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from graphmill.core.errors import DamageError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.format.arrow_files import file_digest


@dataclass(frozen=True)
class Stamp:
    """Size, time of change and checksum of one file."""

    name: str  # path relative to the graph's folder
    num_bytes: int
    changed_ns: int
    sha256: str


@dataclass(frozen=True)
class FileStamps:
    """The stamps of the files of one graph."""

    path: str
    stamps: tuple[Stamp, ...]

    def renewed(self, verified: Collection[str] = ()) -> "FileStamps":
        """Returns the current stamps, if the files still have the same content.

        A file whose stamp has changed is read, unless the file is in `verified`. It is accepted if its content is the same. If the content differs, raises a
        FormatError with the name of the first such file.
        """
        stamps = [(stamp, self._now(stamp)) for stamp in self.stamps]
        for before, now in stamps:
            if now != before and now.name not in verified:
                self._compare(before)
        return FileStamps(self.path, tuple(now for _, now in stamps))

    def verify(self) -> None:
        """Reads every file. Raises a FormatError with the name of the first file whose checksum differs from the manifest."""
        for stamp in self.stamps:
            self._compare(stamp)

    def check_untouched(self) -> None:
        """If a file was changed in any way, raises a FormatError with its name, because data that was read in the meantime may be wrong."""
        for stamp in self.stamps:
            if self._now(stamp) != stamp:
                self._compare(stamp)
                raise FormatError(
                    f"{self.path}/{stamp.name}: expected the file that the run reads to stay untouched, it was changed meanwhile "
                    "(and holds the same bytes again); the run goes back to its latest checkpoint"
                )

    def _now(self, stamp: Stamp) -> Stamp:
        path = f"{self.path}/{stamp.name}"
        try:
            status = os.stat(path)
        except OSError as error:
            raise FormatError(f"{path}: expected the file that the run began with, got: {error.strerror}") from None
        return replace(stamp, num_bytes=status.st_size, changed_ns=status.st_mtime_ns)

    def _compare(self, stamp: Stamp) -> None:
        path = f"{self.path}/{stamp.name}"
        try:
            digest = file_digest(path)
        except OSError as error:
            raise FormatError(f"{path}: expected a file of the store, got: {error.strerror}") from None
        if digest != stamp.sha256:
            raise DamageError(
                f"{path}: expected the bytes that its manifest names (sha256 {stamp.sha256[:12]}), found others "
                f"({digest[:12]}); put the file back; a run goes on with --run.resume"
            )


def take_stamps(url: str, entries: Iterable[FileEntry]) -> FileStamps:
    """Takes the current stamps of files. Returns no stamps if the files are not local. Raises FormatError if a file is missing."""
    unseen = unseen_stamps(url, entries)
    return replace(unseen, stamps=tuple(unseen._now(stamp) for stamp in unseen.stamps))


def unseen_stamps(url: str, entries: Iterable[FileEntry]) -> FileStamps:
    """Makes stamps that match no file, so that the first call of `renewed` reads all files. Returns no stamps if the files are not local."""
    filesystem, path = split_url(url)
    stamps = [Stamp(entry.path, -1, -1, entry.sha256) for entry in entries] if is_local(filesystem) else []
    return FileStamps(path, tuple(stamps))
