"""Lets a worker's process be asked to leave by a signal: SIGTERM, or the SIGUSR1 that schedulers send ahead. All ranks then save at the next step.

The process is one of Ray's, whose own handler ends it at once. It still ends if no step follows within the grace time, or at a second signal.
"""

import os
import signal
import threading
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_asked = threading.Event()  # of this process, because a signal is


def take_notice(grace_s: float) -> None:
    """Installs the handlers. Called in the main thread of a worker's process."""

    def handle(signum: int, frame: FrameType | None) -> None:
        if _asked.is_set():
            os._exit(128 + signum)
        _asked.set()
        timer = threading.Timer(grace_s, os._exit, args=(128 + signum,))
        timer.daemon = True
        timer.start()

    for signum in _SIGNALS:
        signal.signal(signum, handle)


def is_leaving() -> bool:
    """Returns whether this process was asked to leave."""
    return _asked.is_set()
