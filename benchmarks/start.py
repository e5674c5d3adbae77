"""Measures the CPU time from the command to the first step of `jobs/products_geco.py`, by process: `python -m benchmarks start --checkouts . ../before`.

Each checkout runs in a new folder, by turns, with this Python. All descendants of the command are counted, also processes that end before the step. When rank 0
reports the first step, the command gets Ctrl-C.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.config.reader import parse

_LOOK_S = 0.05
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class StartConfig:
    """Measure the start of a run on Ray."""

    checkouts: tuple[str, ...] = (".",)
    """Checkouts to measure by turns."""
    rounds: Count = 2
    """Number of starts of each checkout, after one that compiles loops and makes the graph."""

    def __post_init__(self) -> None:
        check_fields(self)


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    scripts = [Path(word).stem for word in words[:4] if word.endswith(".py") or "warm_process" in word]
    return words[0].split(".")[0] if words[:1] and words[0].startswith("ray::") else (scripts or [process.name()])[0]


def cpu_of_start(checkout: str, folder: Path) -> Counter[str]:
    """Returns the CPU seconds of each kind of process until the first step. Raises ConfigError if the command ends before it."""
    command = [sys.executable, f"{Path(checkout).resolve()}/jobs/products_geco.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}
    seconds: dict[psutil.Process, tuple[str, float]] = {}
    runs, until = set(folder.glob("runs/*")), time.monotonic() + _TIMEOUT_S
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as started:
        try:
            job = psutil.Process(started.pid)
            while not [run for run in set(folder.glob("runs/*")) - runs if list(run.glob("attempts/*.step"))]:
                if started.poll() is not None or time.monotonic() > until:
                    raise ConfigError(f"expected a first step of {command[1]} within {_TIMEOUT_S:g} s, got none")
                with suppress(psutil.NoSuchProcess):
                    for process in (job, *job.children(recursive=True)):
                        with suppress(psutil.NoSuchProcess):
                            times = process.cpu_times()
                            seconds[process] = _name(process), times.user + times.system
                time.sleep(_LOOK_S)  # there is nothing to wait on
        finally:
            started.send_signal(signal.SIGINT)
    total: Counter[str] = Counter()
    for name, spent in seconds.values():
        total[name] += spent  # type: ignore[assignment]  # a Counter of float
    return total


def main() -> int:
    config = parse(StartConfig, __doc__)
    totals: dict[str, list[float]] = {checkout: [] for checkout in config.checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(config.rounds + 1):
            for checkout in config.checkouts:
                seconds_of = cpu_of_start(checkout, Path(folder))
                print(f"{checkout}: {sum(seconds_of.values()):.1f} CPU s{'' if turn else ' (not counted)'}", flush=True)
                print("; ".join(f"{name} {spent:.1f}" for name, spent in seconds_of.most_common(12)), flush=True)
                totals[checkout] += [sum(seconds_of.values())] if turn else []
    for checkout, measured in totals.items():
        print(f"{checkout}: median {statistics.median(measured):.1f} CPU s to the first step")
    return 0
