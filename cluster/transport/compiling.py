"""Tells whether this process compiles a loop, or waits for another process that compiles it. Such a process answers late, although nothing is wrong."""

import threading
from typing import Any

from numba.core import event


class _CompilerLock(event.Listener):
    """Counts the threads that hold numba's compiler lock or wait for it. numba takes this lock to load or compile a loop."""

    def __init__(self) -> None:
        self._lock, self.num_threads = threading.Lock(), 0

    def on_start(self, _: Any) -> None:
        with self._lock:
            self.num_threads += 1

    def on_end(self, _: Any) -> None:
        with self._lock:
            self.num_threads -= 1


_LOCK = _CompilerLock()
event.register("numba:compiler_lock", _LOCK)


def is_compiling() -> bool:
    return _LOCK.num_threads > 0
