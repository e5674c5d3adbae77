"""Makes temporary folders that are locked while their process lives. If the process dies, the next process removes its folders.

The process holds a lock (flock) on the file `owner` in the folder. The lock ends with the process, so a folder whose lock is free is an orphan. A
folder without the file `owner`, or of another user, is never touched. Do not use a filesystem whose locks are visible to one machine only, such as NFS with
local locks. On such a filesystem the folder of another machine looks like an orphan.
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
_MADE = "[a-z0-9_]{8}"  # the random letters that tempfile appends to a name


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder during the block, so that the folder is not an orphan. The block may remove the folder."""
    lock = own(folder)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def own(folder: Path) -> int | None:
    """Locks a folder until the returned file descriptor is closed or this process ends. Returns None if the filesystem has no locks; no process removes
    the folder then."""
    lock = os.open(folder / "new-owner", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    # other processes see the file from now on, and the file is already locked
    (folder / "new-owner").rename(folder / _OWNER)
    return lock


def disown(folder: Path) -> None:
    """Keeps the folder for the user: it does not become an orphan when this process ends."""
    (folder / _OWNER).unlink(missing_ok=True)


def remove_orphans(parent: Path, prefix: str) -> None:
    """Removes folders in `parent` that `tempfile` made with this prefix and whose processes have ended."""
    for folder in _orphans(parent, prefix):
        shutil.rmtree(folder, ignore_errors=True)


def _orphans(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields the orphans. Each orphan is locked until the consumer takes the next."""
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
    """Opens the file `owner` of a folder. Raises OSError unless the path is a folder, `owner` is a regular file, and both belong to this user."""
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
