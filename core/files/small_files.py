"""Reads a whole file, after a check that it is a regular file: reading a pipe or a device might never end."""

import os
import stat
from pathlib import Path

from graphmill.core.errors import FormatError

MOST_BYTES = 64 * 2**20  # largest size of a manifest or of another small file of Graphmill


def check_regular(path: str | Path) -> int:
    """The file's size. Raises FormatError if the path is not a regular file, OSError if it does not exist."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise FormatError(
            f"{path}: expected a file, found a folder, a pipe or a device; remove it, or give another path"
        )
    return about.st_size


def read_small(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The file's content. Raises FormatError if the file is not a regular file or has more than `most` bytes, OSError if it cannot be read."""
    size = check_regular(path)
    with open(path, "rb") as stream:
        content = stream.read(min(size, most) + 1)  # read(n) allocates n bytes
    if len(content) > most:
        raise FormatError(f"{path}: expected at most {most} bytes, found more; give another file")
    return content
