"""Work in a thread that nobody waits for at the process's end."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


def begin(work: Callable[[], Result], name: str) -> "Future[Result]":
    """Calls `work` in a thread of this name; what it returns or raises is the future's."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  whatever it is, whoever asks for the result must hear of it
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
    """Calls `work` in a thread of this name during the block, with an event that the block's end sets; then waits for it, for at most `end_s`.

    What it raises is the future's. While the block goes on, an error ends it, by `end_now`. `wake`: called at the end, after the event.
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
