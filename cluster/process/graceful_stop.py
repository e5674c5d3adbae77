"""Handles Ctrl-C and SIGTERM during training. The first signal asks the workers to save and end. The second signal ends the process immediately.

SIGUSR1 is the signal that Slurm and other schedulers send ahead of SIGTERM. It counts as SIGTERM, without a grace time, because the time until the
end is the scheduler's.

A scheduler that takes a machine back (preemption) sends SIGTERM and waits: 30 s on Kubernetes, 3 s for `ray job stop`. Therefore SIGTERM has a
grace time: after it, one SIGTERM counts as two. Ctrl-C has no grace time, because the user sees how long saving takes and can press Ctrl-C again.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from graphmill.core.errors import Terminated

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def interrupt_main() -> None:
    """Has the effect of Ctrl-C, from any thread. Python's `_thread.interrupt_main` would not wake the main thread from a system call."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class GracefulStop:
    """The stop of one run by a signal. The first signal sets `asked` and `error`. The run raises `error` after it has saved."""

    def __init__(self, grace_s: float) -> None:
        self.asked = threading.Event()
        self.error: BaseException = KeyboardInterrupt()
        self._grace_s = grace_s
        self._ends_now = False

    def end_now(self) -> None:
        """Makes the main thread raise KeyboardInterrupt and so end a wait that has become useless. Any thread may call this method."""
        self._ends_now = True
        interrupt_main()

    @contextmanager
    def on_signals(self, can_save: Callable[[], bool], tell: Callable[[int], None]) -> Iterator[None]:
        """Handles the signals inside the block. The first signal sets `asked` and calls `tell`. The second signal, or the first if `can_save` returns false,
        raises KeyboardInterrupt or Terminated. `tell` must not wait, because it runs inside a signal handler.

        A signal that the parent process has set to be ignored stays ignored. Python allows handlers only in the main thread; in other threads nothing changes.
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
            if raised:  # `ray.get` may have replaced the exception by another exception
                raise _end(raised[-1]) from None
            raise
        finally:
            timer.cancel()
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _end(signum: int, *told: str) -> BaseException:
    return KeyboardInterrupt(*told) if signum == signal.SIGINT else Terminated(*told)
