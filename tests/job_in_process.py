"""Runs a job in this process and returns what `python jobs/….py` would: several jobs then share one Ray and one set of imports."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.reporting.plot import Plot


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As a Ray worker of one CPU has: sums depend on the number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_job(
    main: Callable[[], int | None], arguments: Sequence[str], cwd: Path = Path(".")
) -> subprocess.CompletedProcess[str]:
    """Runs `main` with this command line in `cwd`; returns its exit status and what it printed.

    Reports have no drawings, which would take a third of a small run's time: tests/jobs/test_report.py draws.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(Plot, "svg", lambda _: None)
        patch.setattr(sys, "argv", ["job.py", *arguments])
        with pytest.raises(SystemExit) as end:
            run(main)
    code = end.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["job.py", *arguments], code, out.getvalue(), err.getvalue())
