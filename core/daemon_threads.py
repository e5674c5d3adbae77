"""Runs work in daemon threads: the process does not wait for these threads when it ends."""

import atexit
import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")
_EXIT_S = 5.0  # longest wait at the process's end, for one operation of torch


class _Ended(BaseException):
    """Ends a thread that computes while the process ends."""


def begin(work: Callable[[], Result], name: str, *, computes: bool = False) -> "Future[Result]":
    """Calls `work` in a thread of this name. The future gets the result or the error of `work`.

    `computes`: the thread calls torch. At the process's end it is ended between two calls. Python would end it inside a call, and torch's C++ code would abort the process.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  the future's reader must get every error
            future.set_exception(error)

    thread = threading.Thread(target=run, name=f"graphmill-{name}", daemon=True)
    thread.start()
    if computes:
        atexit.register(_end, thread)
    return future


def _end(thread: threading.Thread) -> None:
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Ended))
        thread.join(_EXIT_S)


@contextmanager
def beside(
    work: Callable[[threading.Event], None],
    name: str,
    end_s: float,
    end_now: Callable[[], None] = lambda: None,
    wake: Callable[[], None] = lambda: None,
) -> "Iterator[Future[None]]":
    """During the block, calls `work(event)` in a thread with this name. When the block ends, the event is set. Then the caller waits at most `end_s` seconds
    for the thread.

    The future gets the error that `work` raises. If `work` raises before the block ends, the thread also calls `end_now`. `wake` is called after the event is
    set.
    """
    ended = threading.Event()

    def run() -> None:
        try:
            work(ended)
        except Exception:
            if not ended.is_set():
                end_now()
            raise

    future = begin(run, name)
    try:
        yield future
    finally:
        ended.set()
        wake()
        wait([future], end_s)
