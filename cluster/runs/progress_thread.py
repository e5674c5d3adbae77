"""Shows progress from a thread of its own, so that a blocked terminal or pipe delays no record of the run."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.cluster.runs.records import Record

_MAX_WAITING = 100  # beyond that a step's progress is not shown
_END_S = 5.0  # longest wait at the end for what is not shown yet


@contextmanager
def progress_thread(
    show: Callable[[Record], None], end_now: Callable[[], None] = interrupt_main
) -> Iterator[Callable[[Record], None]]:
    """Yields a function that passes records on to `show` and does not wait.

    An error in `show` ends the body, by `end_now`, and is raised.
    """
    waiting: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
    ended = threading.Event()
    failures: list[Exception] = []

    def tell(record: Record) -> None:
        if record["kind"] != "step" or waiting.qsize() < _MAX_WAITING:
            waiting.put(record)

    def run() -> None:
        try:
            while (record := waiting.get()) is not None:
                show(record)
        except Exception as error:  # noqa: BLE001  whatever it is, the main thread must hear of it: among others, that nobody reads on
            failures.append(error)
            if not ended.is_set():
                end_now()

    thread = threading.Thread(target=run, name="graphmill-progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        waiting.put(None)
        thread.join(timeout=_END_S)
        if failures:
            raise failures[0]
