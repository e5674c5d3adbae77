"""A thread of the driver passes on what rank 0 records, and asks the workers to stop once the driver wants it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.cluster.runs.records import AttemptRecords, Record, RecordReader
from graphmill.core.errors import StageError

_END_S = 20.0  # longest wait at the end for what is not recorded yet


@contextmanager
def followed(
    reports: AttemptRecords,
    consume: Callable[[Record], None],
    stopping: threading.Event | None = None,
    end_now: Callable[[], None] = interrupt_main,
    settle: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Passes all records to `consume`, from a thread, until the context ends; then calls `settle`, which returns when they are kept, and removes
    the reports.

    Asks the workers to stop once `stopping` is set. An error in `consume` ends the body, by `end_now`, and is raised as StageError.
    """
    reader, ended, failures = RecordReader(reports), threading.Event(), list[Exception]()

    def follow() -> None:
        is_asked = is_last = False
        try:
            while not is_last:
                is_last = ended.wait(reports.look_s)
                if stopping is not None and stopping.is_set() and not is_asked:
                    reports.ask_to_stop()
                    is_asked = True
                for record in reader.fresh():
                    consume(record)
        except Exception as error:  # noqa: BLE001  whatever it is, the main thread must hear of it
            failures.append(error)
            if not ended.is_set():
                # Training without a record is worth nothing: what waits in the main thread ends as by Ctrl-C, and the error is shown.
                end_now()

    thread = threading.Thread(target=follow, name="graphmill-records", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_END_S)
        if failures:
            raise StageError(f"{type(failures[0]).__name__}: {failures[0]}").at("recording metrics") from failures[0]
        if not thread.is_alive():
            settle()
            reports.remove()
