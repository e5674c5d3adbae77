"""Runs work in daemon threads: the process does not wait for these threads when it ends."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


def begin(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Calls `work` in a thread of this name. The future gets the result or the error of `work`."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  the future's reader must get every error
            future.set_exception(error)

    threading.Thread(target=run, name=f"graphmill-{name}", daemon=True).start()
    return future


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
