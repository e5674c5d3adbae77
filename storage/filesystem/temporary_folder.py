"""Temporary folders with an owner: locked while their process lives, removed by the next process if it died.

The process holds a lock (flock) on the folder's file `owner`, and the lock ends with the process: a folder with a free lock is an orphan. A
folder without that file, or of another user, is never touched. Do not use a filesystem whose locks only one machine sees (NFS with local locks): there,
another machine's folder looks like an orphan.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_OWNER = "owner"
_MADE = "[a-z0-9_]{8}"  # what tempfile appends


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder during the block, so that it is no orphan; the block may remove the folder."""
    lock = own(folder)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def own(folder: Path) -> int | None:
    """Locks a folder until the file descriptor is closed or this process ends. None if the filesystem has no locks: then nobody removes the folder."""
    lock = os.open(folder / "new-owner", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    (folder / "new-owner").rename(folder / _OWNER)  # visible from here on, and already locked
    return lock


def disown(folder: Path) -> None:
    """Leaves the folder to the user: it does not become an orphan when this process ends."""
    (folder / _OWNER).unlink(missing_ok=True)


def remove_orphans(parent: Path, prefix: str) -> None:
    """Removes folders in `parent` that `tempfile` made with this prefix for processes that are gone."""
    for folder in _orphans(parent, prefix):
        shutil.rmtree(folder, ignore_errors=True)


def _orphans(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields orphans; each is locked until the next is taken."""
    pattern = re.compile(re.escape(prefix) + _MADE)
    try:
        folders = [Path(entry.path) for entry in os.scandir(parent) if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError), _opened(folder) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The owner file of a folder, opened. Raises OSError unless both belong to this user and are a folder and a regular file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock = os.open(_OWNER, flags, dir_fd=held)
        try:
            for each, is_kind in ((held, stat.S_ISDIR), (lock, stat.S_ISREG)):
                status = os.fstat(each)
                if status.st_uid != os.geteuid() or not is_kind(status.st_mode):
                    raise PermissionError(f"{folder} is another user's")
            yield lock
        finally:
            os.close(lock)
    finally:
        os.close(held)
