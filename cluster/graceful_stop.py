"""SIGTERM while training: the first asks the workers to save and end; a second one, or a grace time later, ends the process as it is.

A scheduler that takes a machine back (preemption) sends SIGTERM and waits: 30 s on Kubernetes, 3 s for `ray job stop`.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 128 + signal.SIGTERM  # exit status


@contextmanager
def stopping_on_sigterm(grace_s: float) -> Iterator[threading.Event]:
    """Yields an event that the first SIGTERM sets; SystemExit(143) comes with the second, or `grace_s` after the first.

    Outside the main thread, where Python allows no handlers, the event is never set.
    """
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    timer = threading.Timer(grace_s, os.kill, args=(os.getpid(), signal.SIGTERM))
    timer.daemon = True

    is_over = False

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal is_over
        if stopping.is_set():
            is_over = True
            raise SystemExit(TERMINATED)
        stopping.set()
        timer.start()

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield stopping
    except SystemExit:
        if is_over:  # on its way through `ray.get` it has become SystemExit(1)
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
