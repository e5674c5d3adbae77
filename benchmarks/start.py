"""Measures the CPU time from the command to the first step of `jobs/products_geco.py`, by process: `python -m benchmarks start --checkouts . ../before`.

Each checkout runs in a new folder, by turns, with this Python. All descendants of the command are counted, also processes that end before the step. When rank 0
reports the first step, the command gets Ctrl-C. With `--launcher process` the job is `jobs/train_nodes.py` in one process, which ends itself at its first
step; `import torch` of the same process is printed beside it.
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
from typing import Literal

import psutil

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.config.reader import parse

_LOOK_S = 0.05
_TIMEOUT_S = 900.0

# Prints the process's CPU seconds after the import of torch, and after the first step of the training loop. Baselines have steps too.
_ONE_PROCESS = """
import os, runpy, sys, time, traceback, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
imported = time.process_time()
def step(*_):
    if any(frame.filename.endswith("train_loop.py") for frame in traceback.extract_stack()):
        print("CPU", imported, time.process_time(), flush=True)
        os._exit(0)
register_optimizer_step_post_hook(step)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class StartConfig:
    """Measure the start of a run on Ray."""

    checkouts: tuple[str, ...] = (".",)
    """Checkouts to measure by turns."""
    rounds: Count = 2
    """Number of starts of each checkout, after one that compiles loops and makes the graph."""
    launcher: Literal["ray", "process"] = "ray"
    """Job to measure: products_geco on Ray, or train_nodes in one process."""
    nodes: Count | None = None
    """Nodes of the embedded graph; 2708 is Cora's size. Default: the job's."""

    def __post_init__(self) -> None:
        check_fields(self)


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    scripts = [Path(word).stem for word in words[:4] if word.endswith(".py") or "warm_process" in word]
    return words[0].split(".")[0] if words[:1] and words[0].startswith("ray::") else (scripts or [process.name()])[0]


def _environment(checkout: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}


def cpu_in_one_process(checkout: str, folder: Path, options: list[str]) -> Counter[str]:
    """Returns the CPU seconds of `import torch`, and from then to the first step. Raises ConfigError if the command ends before it."""
    job = [f"{Path(checkout).resolve()}/jobs/train_nodes.py", "--workers.launcher", "process", *options]
    command = [sys.executable, "-c", _ONE_PROCESS, *job]
    done = subprocess.run(
        command, cwd=folder, env=_environment(checkout), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("CPU ")]
    if not lines:
        raise ConfigError(f"expected a first step of {job[0]}, got none: {done.stderr.strip()[-400:]}")
    imported, stepped = map(float, lines[0][1:])
    return Counter({"import torch": imported, "from then to the first step": stepped - imported})  # type: ignore[dict-item]


def cpu_of_start(checkout: str, folder: Path, options: list[str]) -> Counter[str]:
    """Returns the CPU seconds of each kind of process until the first step. Raises ConfigError if the command ends before it."""
    command = [sys.executable, f"{Path(checkout).resolve()}/jobs/products_geco.py", *options]
    environment = _environment(checkout)
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
    measure = cpu_of_start if config.launcher == "ray" else cpu_in_one_process
    options = [] if config.nodes is None else ["--data.nodes", str(config.nodes)]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(config.rounds + 1):
            for checkout in config.checkouts:
                seconds_of = measure(checkout, Path(folder), options)
                print(f"{checkout}: {sum(seconds_of.values()):.2f} CPU s{'' if turn else ' (not counted)'}", flush=True)
                print("; ".join(f"{name} {spent:.2f}" for name, spent in seconds_of.most_common(12)), flush=True)
                totals[checkout] += [sum(seconds_of.values())] if turn else []
    for checkout, measured in totals.items():
        print(f"{checkout}: median {statistics.median(measured):.2f} CPU s to the first step")
    return 0
