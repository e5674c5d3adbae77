"""Runs a job in this process, with the same result as `python jobs/….py`. Several jobs then share one Ray, and modules are imported once."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphmill.jobs import train_links, train_nodes
from graphmill.jobs.cli.exit_codes import run as run_main
from graphmill.jobs.reporting.plot import Plot
from graphmill.jobs.run import python_words


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Makes torch use one thread, like a Ray worker with one CPU. The last digits of sums depend on the number of threads."""
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
    """Runs `main` with this command line in the folder `cwd`. Returns its exit status and its output.

    Reports are made without drawings, which would take a third of the time of a small run. tests/jobs/test_report.py
    tests the drawings.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(Plot, "svg", lambda _: None)
        patch.setattr(sys, "argv", ["job.py", *arguments])
        patch.setattr(python_words, "is_command", lambda: True)
        with pytest.raises(SystemExit) as end:
            run_main(main)
    code = end.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["job.py", *arguments], code, out.getvalue(), err.getvalue())


def run_on_one_thread(main: Callable[[], int | None], words: Sequence[str], folder: Path) -> str:
    """Runs a job in this folder, on one thread. Checks that it succeeds and returns its output."""
    with one_thread():
        done = run_job(main, words, folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def train_in(folder: Path, *words: str, main: Callable[[], int | None] = train_links.main) -> str:
    """Runs a training command by `run_on_one_thread`. The default command trains on links."""
    return run_on_one_thread(main, words, folder)


def trained(url: str, run: Path, *words: object, job: Any = train_nodes) -> tuple[dict[str, Any], list[float], str]:
    """Trains, and returns (summary, loss of each epoch, output)."""
    with one_thread():
        said = output_of(job.main, "--data", url, *words, "--run.dir", run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train_loss"] for line in lines if "train_loss" in line]
    assert losses
    return json.loads((run / "summary.json").read_text()), losses, said


def output_of(main: Callable[[], int | None], *words: object, cwd: Path = Path(".")) -> str:
    """Runs a job, checks that it succeeds, and returns its output."""
    done = run_job(main, [*map(str, words)], cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout
