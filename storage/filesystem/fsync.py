"""Files and folders that survive a loss of power: they are synced to disk before anything names them."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from graphmill.storage.filesystem.file_entry import FileEntry


def sync_file(path: Path | str) -> None:
    """Returns when the file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced_entry(path: Path) -> FileEntry:
    """Size and checksum of a local file, once it is on disk."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        os.fsync(stream.fileno())
        return FileEntry(num_bytes=stream.tell(), sha256=digest)


@contextlib.contextmanager
def replaced_durably(path: Path) -> Iterator[BinaryIO]:
    """A stream for the file's new content. The file has the old content until the block ends, then the new; if the block raises, it keeps the old."""
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
    """Writes or replaces a small file; a reader finds either the old content or the new."""
    with replaced_durably(Path(path)) as stream:
        stream.write(content)


def link_exclusively(source: Path, target: Path) -> bool:
    """Gives the file a second name, and syncs it; False if that name is taken.

    On a filesystem without hard links, the exclusive creation of a file `<name>.claim` decides, and the file is renamed.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samefile(source, target):  # the same file: a network filesystem repeated a successful request
            return False
    except FileNotFoundError:
        raise
    except OSError:  # EPERM, EOPNOTSUPP …: no hard links here
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
