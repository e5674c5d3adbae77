"""Temporary directories that show whose they are: held by a lock while their process lives, removed by the next one if it died.

A directory `.<name>.ingest-xxxxxxxx` holds a file `owner` on which its process has a lock (flock). The lock goes with the process,
however that ends; so a directory whose lock is free is an orphan. One without that file is never touched: its owner may be
about to make it, or its filesystem may know no locks.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from storage.errors import ConfigError
from storage.filesystem_errors import one_line

_OWNER = "owner"
REPLACED = (
    "replaced"  # inside a scratch directory: the graph that was at the destination, while the new one takes its place
)


@contextlib.contextmanager
def scratch_directory(parent: Path | None, name: str) -> Iterator[Path]:
    """A new directory in `parent` (None: the system's), removed with the block. ConfigError where none can be made."""
    where = str(parent) if parent else tempfile.gettempdir()
    try:
        made = tempfile.TemporaryDirectory(prefix=f".{name}.ingest-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot make a temporary directory there ({one_line(error)}); choose another url or --scratch"
        ) from error
    with made as folder, _held(Path(folder)):
        yield Path(folder)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    with open(folder / "new-owner", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a filesystem without locks: nobody will take this directory for an orphan
            yield
            return
        (folder / "new-owner").rename(folder / _OWNER)  # from here on it can be seen, and it is locked
        yield


def remove_orphans(parent: Path | None, name: str, target: Path | None = None) -> None:
    """Removes what killed processes left of scratch directories for `name` in `parent`.

    `target`: the local destination; a graph that such a process had moved aside is put back there where nothing took its place.
    """
    where = parent or Path(tempfile.gettempdir())
    pattern = re.compile(re.escape(f".{name}.ingest-") + r"[a-z0-9_]{8}")
    try:
        folders = [Path(entry.path) for entry in os.scandir(where) if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for folder in folders:
        if folder.is_symlink():
            continue
        with contextlib.suppress(OSError), open(folder / _OWNER, "r+b") as lock:  # another user's cannot be opened
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if target is not None and (folder / REPLACED).exists() and not target.exists():
                (folder / REPLACED).rename(target)
            shutil.rmtree(folder, ignore_errors=True)
