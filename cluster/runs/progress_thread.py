"""Shows progress from a separate thread, so that a blocked terminal or pipe does not delay the records of the run."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.cluster.runs.records import Record
from graphmill.core.daemon_threads import beside

_MAX_WAITING = 100  # if more records than this wait, the progress of a step is not shown
_END_S = 5.0  # longest wait at the end for records that are not shown yet


@contextmanager
def progress_thread(
    show: Callable[[Record], None], end_now: Callable[[], None] = interrupt_main
) -> Iterator[Callable[[Record], None]]:
    """Yields a function that passes records to `show` without waiting. An error in `show` ends the block by `end_now`, and is raised after the block."""
    waiting: queue.SimpleQueue[Record | None] = queue.SimpleQueue()

    def tell(record: Record) -> None:
        if record["kind"] != "step" or waiting.qsize() < _MAX_WAITING:
            waiting.put(record)

    def show_all(_: threading.Event) -> None:
        while (record := waiting.get()) is not None:
            show(record)

    try:
        with beside(show_all, "progress", _END_S, end_now, wake=lambda: waiting.put(None)) as showing:
            yield tell
    finally:
        if showing.done():
            showing.result()
