"""Work in a thread of its own that nobody waits for at the process's end."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
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
