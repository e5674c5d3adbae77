"""Writes files and folders that survive a power failure. A file or folder is synced to disk before another file refers to it."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from graphmill.storage.filesystem.file_entry import FileEntry


def sync_file(path: Path | str) -> None:
    """Syncs the content of a file, or the names in a folder. Returns when the data is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced_entry(path: Path) -> FileEntry:
    """Syncs a local file to disk, and returns its size and checksum."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        os.fsync(stream.fileno())
        return FileEntry(num_bytes=stream.tell(), sha256=digest)


@contextlib.contextmanager
def replaced_durably(path: Path) -> Iterator[BinaryIO]:
    """Yields a stream for the new content of a file. The file keeps its old content until the block ends, or for good if the block raises."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(beside, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_file(path.parent)


def write_durably(path: Path | str, content: bytes) -> None:
    """Writes or replaces a small file. A reader finds either the whole old content or the whole new content."""
    with replaced_durably(Path(path)) as stream:
        stream.write(content)


def link_exclusively(source: Path, target: Path) -> bool:
    """Gives the file a second name and syncs that name. Returns False if the name already exists.

    On a filesystem without hard links, a process first creates the file `<name>.claim` exclusively, and then renames its file to the name.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        # both names are the same file, so a network filesystem repeated a request that had succeeded
        if not os.path.samefile(source, target):
            return False
    except FileNotFoundError:
        raise
    except OSError:  # EPERM, EOPNOTSUPP …: this filesystem has no hard links
        try:
            os.close(os.open(target.with_suffix(".claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        if target.exists():
            return False
        source.rename(target)
    sync_file(target.parent)
    return True


def remove_if_empty(folder: Path | str) -> None:
    """Removes a folder if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
