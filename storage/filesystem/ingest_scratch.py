"""Temporary folders of ingestions, `.<name>.ingest-xxxxxxxx`: removed at the end, or by the next ingestion after a killed one."""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem import temporary_folder as owned_folder
from graphmill.storage.filesystem.filesystem_errors import one_line


@contextlib.contextmanager
def scratch_directory(parent: Path | None, name: str) -> Iterator[Path]:
    """A new directory in `parent` (None: the system's), removed after the block. Raises ConfigError if it cannot be made."""
    where = str(parent) if parent else tempfile.gettempdir()
    try:
        made = tempfile.TemporaryDirectory(prefix=f".{name}.ingest-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot make a temporary directory there ({one_line(error)}); choose another --scratch"
        ) from error
    with made as folder, owned_folder.owned(Path(folder)):
        yield Path(folder)


def remove_orphans(parent: Path | None, name: str) -> None:
    """Removes scratch directories for `name` in `parent` that killed processes left."""
    owned_folder.remove_orphans(parent or Path(tempfile.gettempdir()), f".{name}.ingest-")


def scratch_array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A mapped array of zeros in a new file. Raises OSError, and removes the file, if the disk has no room.

    The room is allocated at once: writing to a mapped file on a full disk kills the process.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not num_bytes:
        return np.zeros(shape, dtype)
    try:
        with open(path, "wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, num_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return np.memmap(path, dtype, "r+", shape=shape)
