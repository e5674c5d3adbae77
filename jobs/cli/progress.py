"""The output of long work: progress as a bar on a terminal, as one line in a notebook, else as a line every few seconds; with `--quiet` the result alone.

Errors and warnings are printed on standard error in any case.
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
# The commands that print more than their result.
_LONG = (
    *("train", "train_nodes", "train_graphs", "train_links", "products_geco", "pcqm4m_tokengt"),
    *("ingest", "encode", "predict", "sweep"),
)
_results: list[TextIO] = []  # streams of results while other output is dropped
_LINE_EVERY_S = 5.0
_NOTEBOOK_EVERY_S = 0.5
_WHOLE: "ContextVar[Progress | None]" = ContextVar("whole", default=None)  # that this thread's work is part of


class Progress:
    """One task's progress; `update` may be called from any thread."""

    def __init__(self, title: str, bar: Any = None, notebook: Any = None) -> None:
        self._bar, self._title, self._notebook = bar, title, notebook
        self._task = None if bar is None else bar.add_task(title, total=None, note="")
        self._every_s = _LINE_EVERY_S if notebook is None else _NOTEBOOK_EVERY_S
        self._out = sys.stdout
        self._started_s = time.monotonic()
        self._printed_s = -_LINE_EVERY_S  # the first line is printed at once
        self._updates, self._first = 0, (0.0, 0.0)  # (done, time) of the start
        self._part = (0, 0, "")

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Shows how far the task is, in its own units."""
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
        """`update` as ingestion, encoding and prediction call it. A total is a hint: some sources know their number of edges only roughly."""
        self.update(done, None if total is None else max(done, total), name)

    @contextmanager
    def part(self, number: int, parts: int, name: str) -> Iterator[None]:
        """Progress inside the block is shown as progress of part `number` of so many, from 0."""
        self._part = number, parts, name
        token = _WHOLE.set(self)
        try:
            yield
        finally:
            _WHOLE.reset(token)

    def _left(self, done: float, total: float | None, now: float) -> str:
        """The time left, at the mean rate so far."""
        self._updates += 1
        if self._updates <= 2:  # the first update announces the start, the second says where it is
            self._first = done, now
        first_done, first_s = self._first
        if total is None or done <= first_done or done >= total:
            return ""
        return f", about {(now - first_s) / (done - first_done) * (total - done):.0f} s left"


def _is_notebook() -> bool:
    return not _results and "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel")


@contextmanager
def quiet(*, keeps_results: bool = False) -> Iterator[None]:
    """Drops what is printed on standard output in the block, except, with `keeps_results`, the output of `results`."""
    with open(os.devnull, "w") as nothing:
        _results.append(sys.stdout if keeps_results else nothing)
        try:
            with redirect_stdout(nothing):
                yield
        finally:
            _results.pop()


@contextmanager
def quiet_where_asked() -> Iterator[None]:
    """Takes `--quiet` out of the command line; with it, the block prints its results alone."""
    is_asked = QUIET in sys.argv[1:]
    sys.argv = [word for word in sys.argv if word != QUIET]
    if (
        not is_asked or program_name() not in _LONG or {"--help", "-h", "--plan"} & set(sys.argv)
    ):  # all output is result
        yield
        return
    with quiet(keeps_results=True):
        yield


@contextmanager
def results() -> Iterator[None]:
    """The output of the block is a result, which `--quiet` keeps."""
    with redirect_stdout(_results[-1] if _results else sys.stdout):
        yield


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress display for the length of the context; inside of a `part`, the whole's display."""
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
