"""Whether a store's files are still the ones that were verified: their sizes and times of change, which cost no reading.

Local files only: those of other filesystems are read into memory once, by their one owner.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

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

    def renewed(self, names: Collection[str] | None = None) -> "FileStamps":
        """Today's stamps, where the files hold the same bytes still; of `names` only, where they are given.

        Files that look different are read: a copy of the same bytes is as good. Raises FormatError naming the first that holds others.
        """
        found = [self._renew(stamp) for stamp in self.stamps if names is None or stamp.name in names]
        return FileStamps(self.path, tuple(found))

    def verify(self, names: Collection[str] | None = None) -> None:
        """Reads every file (of `names`). Raises FormatError naming the first that is not as its manifest says."""
        for stamp in self.stamps:
            if names is None or stamp.name in names:
                self._compare(stamp)

    def check_untouched(self) -> None:
        """Raises FormatError naming a file that has been touched at all: what was read from it meanwhile may be anything."""
        for stamp in self.stamps:
            if self._look(stamp) != (stamp.num_bytes, stamp.changed_ns):
                self._compare(stamp)
                raise FormatError(
                    f"{self.path}/{stamp.name}: expected the file that the run reads to stay untouched, it was changed meanwhile "
                    "(and holds the same bytes again); the run goes back to its latest checkpoint"
                )

    def _renew(self, stamp: Stamp) -> Stamp:
        num_bytes, changed_ns = self._look(stamp)
        if (num_bytes, changed_ns) == (stamp.num_bytes, stamp.changed_ns):
            return stamp
        self._compare(stamp)
        return replace(stamp, num_bytes=num_bytes, changed_ns=changed_ns)

    def _look(self, stamp: Stamp) -> tuple[int, int]:
        path = f"{self.path}/{stamp.name}"
        try:
            found = os.stat(path)
        except OSError as error:
            raise FormatError(f"{path}: expected the file that the run began with, got: {error.strerror}") from None
        return found.st_size, found.st_mtime_ns

    def _compare(self, stamp: Stamp) -> None:
        path = f"{self.path}/{stamp.name}"
        try:
            digest = file_digest(path)
        except OSError as error:
            raise FormatError(f"{path}: expected a file of the store, got: {error.strerror}") from None
        if digest != stamp.sha256:
            raise FormatError(
                f"{path}: expected the bytes that its manifest names (sha256 {stamp.sha256[:12]}), found others "
                f"({digest[:12]}); put the file back; a run goes on with --run.resume"
            )


def take_stamps(url: str, entries: Iterable[FileEntry]) -> FileStamps:
    """How a store's files look now; none where they are not local. Raises FormatError where one is missing."""
    filesystem, path = split_url(url)
    if not is_local(filesystem):
        return FileStamps(path, ())
    missing = FileStamps(path, tuple(Stamp(entry.path, -1, -1, entry.sha256) for entry in entries))
    looks = [missing._look(stamp) for stamp in missing.stamps]
    return FileStamps(
        path,
        tuple(
            replace(stamp, num_bytes=look[0], changed_ns=look[1])
            for stamp, look in zip(missing.stamps, looks, strict=True)
        ),
    )
