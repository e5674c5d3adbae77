"""Temporary folders of ingestions, `.<name>.ingest-xxxxxxxx`: removed at the end, or by the next ingestion after a killed one."""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.filesystem.temporary_folder import owned, remove_orphans


@contextlib.contextmanager
def scratch_directory(parent: Path | None, name: str) -> Iterator[Path]:
    """A new directory in `parent` (None: the system's), removed after the block; first removes directories that killed processes left for this name. Raises
    ConfigError if it cannot be made."""
    where, prefix = str(parent) if parent else tempfile.gettempdir(), f".{name}.ingest-"
    remove_orphans(Path(where), prefix)
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot make a temporary directory there ({one_line(error)}); choose another --scratch"
        ) from error
    with made as folder, owned(Path(folder)):
        yield Path(folder)


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
