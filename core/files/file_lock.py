"""A lock between the processes of a host, with a deadline. The lock is held on a file, and is released when the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphmill.core.errors import DeadlineError

_LOOK_S = 0.05


@contextmanager
def locked(path: Path, within_s: float) -> Iterator[None]:
    """Holds an exclusive lock during the block. Raises DeadlineError if another process holds it for too long, OSError if the filesystem has no locks."""
    descriptor, until = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + within_s
    try:
        while not try_alone(descriptor):
            if time.monotonic() > until:
                raise DeadlineError(f"{path}: another process holds this lock for more than {within_s:,.0f} s")
            time.sleep(_LOOK_S)  # flock has no timeout
        try:
            yield
        finally:
            # closing is not enough because a forked child may also have the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def try_alone(descriptor: int) -> bool:
    """Takes the exclusive lock of this open file. Returns False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
