"""Compares a training command on a small graph to a plain PyTorch script: `python -m benchmarks script --graphs graphs/cora graphs/computers`.

The command and the script run alternately, each in a new process that is timed from start to end. The command is `jobs/train_nodes.py` with its
defaults for the graph. The script is `benchmarks/plain_script.py` with the same model, steps, evaluations and threads. results.md and results.json
are written to --out.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.config.reader import parse

REPOSITORY = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 3600.0
_ALLOWED_S = 6.0  # a command may take this much longer than the script, for any training
COLUMNS = {
    "graph": "",
    "steps": ",d",
    "command, s": ".1f",
    "script, s": ".1f",
    "(command less 6 s) / script": ".2f",
    "test, command": ".4f",
    "test, script": ".4f",
}


@dataclass(frozen=True)
class ScriptConfig:
    """Time a command against a script."""

    graphs: tuple[str, ...] = ()
    """Stored graphs with labels and splits."""
    steps: Count = 200
    rounds: Count = 3
    """Number of runs of the command and of the script. The table has medians over the runs."""
    out: Path = Path("runs/bench-script")

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.graphs:
            raise ConfigError("graphs: expected at least one stored graph, got none; set --graphs")


def _timed(words: list[str], folder: Path) -> tuple[float, str]:
    """Runs a process. Returns its seconds and its stdout. If it fails, raises ConfigError with the last line of stderr."""
    started_s = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, *words]
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{' '.join(words)}: not finished within {_TIMEOUT_S:g} s; lower --steps") from None
    if done.returncode != 0:
        raise ConfigError(f"{' '.join(words)}: {(done.stderr.strip() or 'nothing on stderr').splitlines()[-1]}")
    return time.monotonic() - started_s, done.stdout


def measure(graph: str, config: ScriptConfig) -> dict[str, Any]:
    """Runs command and script alternately, and the command first."""
    command_s, script_s = list[float](), list[float]()
    ours: dict[str, Any] = {}
    plain: dict[str, float] = {}
    url = str(Path(graph).resolve()) if "://" not in graph else graph
    for number in range(config.rounds):
        with tempfile.TemporaryDirectory() as temporary:
            folder, run = Path(temporary), Path(temporary) / "run"
            words = [str(REPOSITORY / "jobs/train_nodes.py"), "--data", url, "--workers", "1", "--run.dir", str(run)]
            seconds, _ = _timed([*words, "--fit.steps", str(config.steps), "--fit.patience", "none"], folder)
            command_s.append(seconds)
            chosen, ours = json.loads((run / "config.json").read_text()), json.loads((run / "summary.json").read_text())
            if chosen["sampler"]["num_chunks"] != 1 or ours["metric"] != "accuracy":
                raise ConfigError(f"{graph}: expected a graph that is one batch, scored by accuracy; choose another")
            chosen["model"].pop("name")
            (folder / "model.json").write_text(json.dumps(chosen["model"]))
            fit = [str(chosen["fit"][name]) for name in ("eval_every", "learning_rate", "weight_decay")]
            words = ["-m", "benchmarks.plain_script", url, "model.json", str(config.steps), *fit]
            seconds, text = _timed(words, folder)
            script_s.append(seconds)
            plain = json.loads(text)
        print(f"{graph}, round {number + 1}: command {command_s[-1]:.1f} s, script {script_s[-1]:.1f} s", flush=True)
    ours_s, plain_s = statistics.median(command_s), statistics.median(script_s)
    return {
        "graph": Path(graph).name,
        "steps": config.steps,
        "command, s": ours_s,
        "script, s": plain_s,
        "(command less 6 s) / script": (ours_s - _ALLOWED_S) / plain_s,
        "test, command": ours["scores"]["test"],
        "test, script": plain["test"],
    }


def main() -> int:
    config = parse(ScriptConfig, __doc__ or "")
    check_results(config.out)
    rows = [measure(graph, config) for graph in config.graphs]
    text = "\n".join([f"{machine()}, {torch.get_num_threads()} threads", "", *table(COLUMNS, rows)])
    print(text)
    keep(config.out, config, text, rows=rows)
    return 0
