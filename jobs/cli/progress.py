"""Progress output: a bar on a terminal, one line in a notebook, otherwise a line every few seconds. With `--quiet` only the result is printed.

Errors and warnings always go to standard error.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TextIO

from graphmill.jobs.cli.typed_commands import program_name

QUIET = "--quiet"
# Commands that print more than a result.
_LONG = (
    *("train", "train_nodes", "train_graphs", "train_links", "products_geco", "pcqm4m_tokengt"),
    *("ingest", "encode", "predict", "sweep"),
)
_results: list[TextIO] = []  # streams that print results while all other output is dropped
_LINE_EVERY_S = 5.0
_NOTEBOOK_EVERY_S = 0.5
_WHOLE: "ContextVar[Progress | None]" = ContextVar("whole", default=None)  # the task of the enclosing `part`


class Progress:
    """Progress of one task. Any thread may call `update`."""

    def __init__(self, title: str, bar: Any = None, notebook: Any = None) -> None:
        self._bar, self._title, self._notebook = bar, title, notebook
        self._task = None if bar is None else bar.add_task(title, total=None, note="")
        self._every_s = _LINE_EVERY_S if notebook is None else _NOTEBOOK_EVERY_S
        self._out = sys.stdout
        self._started_s = time.monotonic()
        self._printed_s = -_LINE_EVERY_S  # the first line is printed at once
        self._updates, self._first = 0, (0.0, 0.0)  # (units done, time) at the start
        self._part = (0, 0, "")

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Shows how many units of the task are done."""
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

    def stage(self, name: str, done: float, total: float | None) -> None:
        """Calls `update` with the name of a stage; for ingestion, encoding and prediction. `total` may be an estimate, for example of the number of edges of a
        source."""
        self.update(done, None if total is None else max(done, total), name)

    @contextmanager
    def part(self, number: int, parts: int, name: str) -> Iterator[None]:
        """Inside the block, progress counts as progress of part `number` (from 0) of `parts`."""
        self._part = number, parts, name
        token = _WHOLE.set(self)
        try:
            yield
        finally:
            _WHOLE.reset(token)

    def _left(self, done: float, total: float | None, now: float) -> str:
        """The time left, estimated from the mean rate so far."""
        self._updates += 1
        if self._updates <= 2:  # the first update marks the start, and the second update gives the first position
            self._first = done, now
        first_done, first_s = self._first
        if total is None or done <= first_done or done >= total:
            return ""
        return f", about {(now - first_s) / (done - first_done) * (total - done):.0f} s left"


def _is_notebook() -> bool:
    return not _results and "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel")


@contextmanager
def quiet(*, keeps_results: bool = False) -> Iterator[None]:
    """Drops standard output inside the block. With `keeps_results`, the output of `results` is kept."""
    with open(os.devnull, "w") as nothing:
        _results.append(sys.stdout if keeps_results else nothing)
        try:
            with redirect_stdout(nothing):
                yield
        finally:
            _results.pop()


@contextmanager
def quiet_where_asked() -> Iterator[None]:
    """Removes `--quiet` from the command line. If it was there, the block prints only its results."""
    is_asked = QUIET in sys.argv[1:]
    sys.argv = [word for word in sys.argv if word != QUIET]
    if (
        not is_asked or program_name() not in _LONG or {"--help", "-h", "--plan"} & set(sys.argv)
    ):  # nothing to drop: no `--quiet`, or the whole output is a result
        yield
        return
    with quiet(keeps_results=True):
        yield


@contextmanager
def results() -> Iterator[None]:
    """Marks the output of the block as a result, which `--quiet` keeps."""
    with redirect_stdout(_results[-1] if _results else sys.stdout):
        yield


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress display that is closed at the end of the context. Inside a `part`: the display of the whole task."""
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
