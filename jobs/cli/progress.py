"""Progress on long work: a bar on a terminal, a line that is replaced in a notebook, a line every few seconds elsewhere (a job's log)."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

_LINE_EVERY_S = 5.0
_NOTEBOOK_EVERY_S = 0.5
_WHOLE: "ContextVar[Progress | None]" = ContextVar("whole", default=None)  # what the work of this thread is a part of


class Progress:
    """One task's progress; `update` may be called from any thread."""

    def __init__(self, title: str, bar: Any = None, notebook: Any = None) -> None:
        self._bar, self._title, self._notebook = bar, title, notebook
        self._task = None if bar is None else bar.add_task(title, total=None, note="")
        self._every_s = _LINE_EVERY_S if notebook is None else _NOTEBOOK_EVERY_S
        self._out = sys.stdout
        self._started_s = time.monotonic()
        self._printed_s = -_LINE_EVERY_S  # the first line is printed at once
        self._updates, self._first = 0, (0.0, 0.0)  # how far the task was as it began, and when
        self._part = (0, 0, "")

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Says how far the task is, in its own units."""
        number, parts, name = self._part
        if parts:
            note = f"configurations, {name}: {done:.0f}{'' if total is None else f'/{total:.0f}'} {note}"
            done, total = number + (done / total if total else 0), parts
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
            return
        now = time.monotonic()
        left = self._left(done, total, now)
        finished = total is not None and done >= total
        if now - self._printed_s >= self._every_s or finished:
            self._printed_s = now
            share = f"{int(done):,}" if total is None else f"{int(done):,}/{int(total):,}"
            line = f"{self._title}: {share} {note} ({now - self._started_s:.0f} s{left})"
            if self._notebook is None:
                print(line, file=self._out, flush=True)
            else:
                self._notebook.update({"text/plain": line}, raw=True)

    @contextmanager
    def part(self, number: int, parts: int, name: str) -> Iterator[None]:
        """What shows progress inside the block shows it as that of part `number` of so many, from 0."""
        self._part = number, parts, name
        token = _WHOLE.set(self)
        try:
            yield
        finally:
            _WHOLE.reset(token)

    def _left(self, done: float, total: float | None, now: float) -> str:
        """The time left, at the mean rate so far."""
        self._updates += 1
        if self._updates <= 2:  # the first says that the work starts, the second from where
            self._first = done, now
        first_done, first_s = self._first
        if total is None or done <= first_done or done >= total:
            return ""
        return f", about {(now - first_s) / (done - first_done) * (total - done):.0f} s left"


def _is_notebook() -> bool:
    return "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel")


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress display for the length of the context; inside of a `part`, that of the whole."""
    if (whole := _WHOLE.get()) is not None:
        yield whole
    elif _is_notebook():
        show = import_module("IPython.display").display
        yield Progress(title, notebook=show({"text/plain": title}, raw=True, display_id=True))
    elif not sys.stdout.isatty():
        yield Progress(title)
    else:
        from rich.console import Console
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
        with RichProgress(*columns, console=Console(file=sys.stdout)) as bar:
            yield Progress(title, bar)
