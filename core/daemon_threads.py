"""Work in daemon threads: the process does not wait for them at its end."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


def begin(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Calls `work` in a thread of this name; the future gets its result or error."""
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
    """Calls `work` in a thread of this name during the block, with an event that is set when the block ends; then waits for it for at most `end_s`.

    The future gets its error; an error before the block ends also calls `end_now`. `wake`: called after the event is set.
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
