"""Checks by size and time of change, without reading, that the verified files of a graph are unchanged.

Local files only: files of other filesystems are read into memory once, by their one owner.
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

    name: str  # below the store's path
    num_bytes: int
    changed_ns: int
    sha256: str


@dataclass(frozen=True)
class FileStamps:
    """The files of one store."""

    path: str
    stamps: tuple[Stamp, ...]

    def renewed(self, verified: Collection[str] = ()) -> "FileStamps":
        """Current stamps, if the files still hold the same bytes.

        A file with another stamp is read, unless it is in `verified`; the same bytes are accepted. Raises FormatError with the name of the first file with other
        bytes.
        """
        stamps = [(stamp, self._now(stamp)) for stamp in self.stamps]
        for before, now in stamps:
            if now != before and now.name not in verified:
                self._compare(before)
        return FileStamps(self.path, tuple(now for _, now in stamps))

    def verify(self) -> None:
        """Reads every file. Raises FormatError with the name of the first file that does not fit its manifest."""
        for stamp in self.stamps:
            self._compare(stamp)

    def check_untouched(self) -> None:
        """Raises FormatError with the name of a file that was changed at all, since data read meanwhile may be wrong."""
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
    """The current stamps of a store's files; none if they are not local. Raises FormatError if a file is missing."""
    unseen = unseen_stamps(url, entries)
    return replace(unseen, stamps=tuple(unseen._now(stamp) for stamp in unseen.stamps))


def unseen_stamps(url: str, entries: Iterable[FileEntry]) -> FileStamps:
    """Stamps that fit no file, so that the first `renewed` reads all files; none if they are not local."""
    filesystem, path = split_url(url)
    stamps = [Stamp(entry.path, -1, -1, entry.sha256) for entry in entries] if is_local(filesystem) else []
    return FileStamps(path, tuple(stamps))
