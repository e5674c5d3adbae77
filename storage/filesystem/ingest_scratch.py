"""Makes temporary folders for ingestions, with names like `.<name>.ingest-xxxxxxxx`.

An ingestion removes its folder at its end. If an ingestion is killed, the next ingestion removes the folder.
"""

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
    """Makes a directory in `parent` (None: the system's temporary directory) and removes it after the block. First removes the directories of this name that
    killed processes left. Raises ConfigError if the directory cannot be made."""
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
    """Makes a new file, and maps it as an array of zeros. If the disk has no room, removes the file and raises OSError.

    The disk space is allocated at once, because writing to a mapped file on a full disk would kill the process.
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
