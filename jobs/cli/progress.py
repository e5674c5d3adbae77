"""Progress on long work: a bar on a terminal, a line every few seconds elsewhere (a job's log)."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LINE_EVERY_S = 5.0


class Progress:
    """One task's progress; `update` may be called from any thread."""

    def __init__(self, bar: Any, title: str) -> None:
        self._bar, self._title = bar, title
        self._task = None if bar is None else bar.add_task(title, total=None, note="")
        self._started_s = time.monotonic()
        self._printed_s = -_LINE_EVERY_S  # the first line is printed at once

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Says how far the task is, in its own units."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
            return
        now = time.monotonic()
        finished = total is not None and done >= total
        if now - self._printed_s >= _LINE_EVERY_S or finished:
            self._printed_s = now
            share = f"{int(done):,}" if total is None else f"{int(done):,}/{int(total):,}"
            print(f"{self._title}: {share} {note} ({now - self._started_s:.0f} s)", flush=True)


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress display for the length of the context."""
    if not sys.stdout.isatty():
        yield Progress(None, title)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns) as bar:
        yield Progress(bar, title)
