"""A lock among the processes of a host, with a deadline. It lies in a file, and ends with the process."""

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
    """Holds a lock alone. Raises DeadlineError if another process holds it for too long, OSError if the filesystem has no locks."""
    descriptor, until = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + within_s
    try:
        while not try_alone(descriptor):
            if time.monotonic() > until:
                raise DeadlineError(f"{path}: another process holds this lock for more than {within_s:,.0f} s")
            time.sleep(_LOOK_S)  # flock has no timeout
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a forked child may have the descriptor, too
    finally:
        os.close(descriptor)


def try_alone(descriptor: int) -> bool:
    """Takes the lock of this open file; False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
