"""A helper that waits for another thread or process, up to a time limit."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # polls, because there is no event to wait for
