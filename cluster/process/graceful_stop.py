"""Ctrl-C and SIGTERM while training: the first asks the workers to save and end, a second one ends the process as it is.

A scheduler that takes a machine back (preemption) sends SIGTERM and waits: 30 s on Kubernetes, 3 s for `ray job stop`. So SIGTERM has a
grace time, after which it counts as sent twice. Whoever presses Ctrl-C sees how long it takes, and presses it again.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from graphmill.core.errors import Terminated

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupt_main() -> None:
    """As a real Ctrl-C, from any thread. Python's own `_thread.interrupt_main` wakes no system call that the main thread waits in."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class GracefulStop:
    """One run's. `asked` is set by the first signal; `error` is then what the run raises once it has saved."""

    def __init__(self, grace_s: float) -> None:
        self.asked = threading.Event()
        self.error: BaseException = KeyboardInterrupt()
        self._grace_s = grace_s
        self._ends_now = False

    def end_now(self) -> None:
        """Makes the main thread raise KeyboardInterrupt, from any thread: what it waits for is of no use any more."""
        self._ends_now = True
        interrupt_main()

    @contextmanager
    def on_signals(self, can_save: Callable[[], bool], tell: Callable[[int], None]) -> Iterator[None]:
        """Handles the signals inside the block. The first one is told, and sets `asked`; the second, and the first where there is nothing
        that could be saved, raises KeyboardInterrupt or Terminated. `tell` must not wait: it is called inside a signal handler.

        A signal that the parent has this process ignore stays ignored. Outside the main thread, where Python allows no handlers, nothing
        changes.
        """
        before: dict[int, Any] = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        timer = threading.Timer(self._grace_s, os.kill, args=(os.getpid(), signal.SIGTERM))
        timer.daemon = True
        raised: list[int] = []

        def handle(signum: int, frame: FrameType | None) -> None:
            if before[signum] is signal.SIG_IGN and not self._ends_now:
                return
            if self._ends_now or self.asked.is_set() or not can_save():
                raised.append(signum)
                raise _end(signum)
            self.error = _end(signum, "saved, and ended on request")
            self.asked.set()
            if signum == signal.SIGTERM:
                timer.start()
            tell(signum)

        for signum in before:
            signal.signal(signum, handle)
        try:
            yield
        except KeyboardInterrupt:
            if raised:  # on its way through `ray.get` it has become another
                raise _end(raised[-1]) from None
            raise
        finally:
            timer.cancel()
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _end(signum: int, *told: str) -> BaseException:
    return KeyboardInterrupt(*told) if signum == signal.SIGINT else Terminated(*told)
