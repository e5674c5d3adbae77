"""Runs a thread of the driver that passes on rank 0's records, and asks the workers to stop when the driver wants to stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.cluster.runs.records import AttemptRecords, Record, RecordReader
from graphmill.core.daemon_threads import beside
from graphmill.core.errors import StageError

_END_S = 20.0  # longest wait at the end for records that are not passed on yet


@contextmanager
def followed(
    reports: AttemptRecords,
    consume: Callable[[Record], None],
    is_stopping: Callable[[], bool] = lambda: False,
    end_now: Callable[[], None] = interrupt_main,
    settle: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Passes all records to `consume`, from a thread, until the block ends. Then calls `settle`, which returns when the records are saved, and removes
    the files of the records.

    Asks the workers to stop when `is_stopping` returns true. An error in `consume` ends the block by `end_now`, and is raised as StageError after the block.
    """
    reader = RecordReader(reports)

    def follow(ended: threading.Event) -> None:
        is_asked = is_last = False
        while not is_last:
            is_last = ended.wait(reports.look_s)
            if is_stopping() and not is_asked:
                reports.ask_to_stop()
                is_asked = True
            for record in reader.fresh():
                consume(record)

    # Training without records is useless. Therefore an error ends the main thread's wait, as Ctrl-C does, and is shown.
    try:
        with beside(follow, "records", _END_S, end_now) as following:
            yield
    finally:
        if following.done():
            if error := following.exception():
                raise StageError(f"{type(error).__name__}: {error}").at("recording metrics") from error
            settle()
            reports.remove()
