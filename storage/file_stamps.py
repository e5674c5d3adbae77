"""Whether a store's files are still the ones that were verified: their sizes and times of change, which cost no reading.

Local files only: those of other filesystems are read into memory once, by their one owner.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from storage.arrow_files import file_digest, is_local, split_url
from storage.errors import FormatError
from storage.manifest import FileEntry


@dataclass(frozen=True)
class Stamp:
    """What one file looked like, and what it holds."""

    name: str  # below the store's path
    num_bytes: int
    changed_ns: int
    sha256: str


@dataclass(frozen=True)
class FileStamps:
    """The files of one store."""

    path: str
    stamps: tuple[Stamp, ...]

    def check(self, names: Collection[str] | None = None) -> None:
        """Raises FormatError naming the first file (of `names`) that holds other bytes than its manifest says.

        Only files that look different are read: a copy of the same bytes is as good.
        """
        for stamp in self.stamps:
            if names is not None and stamp.name not in names:
                continue
            path = f"{self.path}/{stamp.name}"
            try:
                found = os.stat(path)
                if (found.st_size, found.st_mtime_ns) == (stamp.num_bytes, stamp.changed_ns):
                    continue
                digest = file_digest(path)
            except OSError as error:
                raise FormatError(f"{path}: expected the file that the run began with, got: {error.strerror}") from None
            if digest != stamp.sha256:
                raise FormatError(
                    f"{path}: expected the bytes that the run began with (sha256 {stamp.sha256[:12]}), found others "
                    f"({digest[:12]}); put the file back, then continue with --resume"
                )


def take_stamps(url: str, entries: Mapping[str, FileEntry]) -> FileStamps:
    """The stamps of a store's files. Raises FormatError where one is missing."""
    filesystem, path = split_url(url)
    if not is_local(filesystem):
        return FileStamps(path, ())
    stamps = []
    for name, entry in entries.items():
        try:
            found = os.stat(f"{path}/{name}")
        except OSError as error:
            raise FormatError(f"{path}/{name}: expected a file of the store, got: {error.strerror}") from None
        stamps.append(Stamp(name, found.st_size, found.st_mtime_ns, entry.sha256))
    return FileStamps(path, tuple(stamps))
