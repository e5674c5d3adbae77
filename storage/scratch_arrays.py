"""Arrays in scratch files, whose room on disk is taken when they are made: writing to a mapped file on a full disk kills the process."""

import math
import os
from pathlib import Path

import numpy as np


def scratch_array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A mapped array of zeros in a new file. Raises OSError where the disk lacks the room; the file is removed then."""
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
