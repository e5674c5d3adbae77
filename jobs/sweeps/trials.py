"""Runs trials, several at the same time. Each trial is a training command in a separate process, with a separate Ray."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from graphmill.cluster.runs.run_directory import RunDirectory, write_atomic
from graphmill.core.errors import GraphmillError
from graphmill.jobs.cli.child_process import cause_of, end_tagged, kill_tagged, start
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import KINDS, find_kind, stored_encoding
from graphmill.jobs.sweeps.design import Slot, SweepDesign, lower_is_better
from graphmill.jobs.sweeps.search import Search, status_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_LOOK_EVERY_S = 0.25
_STOP_TIMEOUT_S = 40.0  # seconds for a run to save a checkpoint and stop its Ray
_SUMMARY_RATES = ("nodes_per_s", "edges_per_s", "roots_per_s", "wait_share")

OnEnd = Callable[[dict[str, Any]], None]  # called with the record of each trial that ends
_prepared: set[tuple[Any, ...]] = set()  # data that this process has already prepared


@dataclass
class _Running:
    """A running trial. `reported`: the epochs that the pruner has received."""

    slot: Slot
    trial: "Trial"
    config: RunConfig
    process: "subprocess.Popen[bytes]"
    deadline: float
    lane: int
    reported: int = 0


@dataclass
class TrialRunner:
    """Runs trials, `at_once` at the same time. When `run` returns or raises, none of their processes is left."""

    plan: SweepDesign
    search: Search
    out: Path
    metric: str
    at_once: int
    tag: str
    """Prefix of the tags of all trials' processes. A continued sweep uses the tags to end processes that a killed sweep left behind."""
    on_look: Callable[[int, int], None] = lambda number, pid: None
    """Called with each running trial a few times per second."""
    _running: list[_Running] = field(default_factory=list)

    def run(self, missing: Iterator[Slot], on_end: OnEnd) -> None:
        try:
            while True:
                while len(self._running) < self.at_once and (slot := next(missing, None)) is not None:
                    record = self._start(slot)
                    if record is not None:
                        on_end(record)
                if not self._running:
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._running[0].process.wait(timeout=_LOOK_EVERY_S)
                for running in list(self._running):
                    record = self._look(running)
                    if record is not None:
                        on_end(record)
        finally:
            self._stop_all()

    def _start(self, slot: Slot) -> dict[str, Any] | None:
        """Begins a trial or continues its run. Returns the trial's record if the trial has already ended."""
        trial = self.search.begin(slot)
        if trial is None:
            return None
        run, recipe, log = self.out / slot.name, self.out / f"{slot.name}.yaml", self.out / f"{slot.name}.log"
        try:
            config = self.plan.config(trial.params, slot.seed)
            prepare(config)
        except GraphmillError as error:
            return self._ended(slot, trial, str(error))
        write_atomic(recipe, yaml.safe_dump(config.tree(), sort_keys=False))
        if (run / "summary.json").exists():  # the sweep was killed before it recorded the end of the trial
            return self._ended(slot, trial, None)
        begun = (run / "config.json").exists()
        # The sweep has already decided which code its trials may import.
        where = [
            *([] if begun else [str(recipe)]),
            "--allow_import",
            "--run.resume" if begun else "--run.dir",
            str(run),
        ]
        lane = min(set(range(self.at_once)) - {one.lane for one in self._running})
        process = start([*command_of(config), *where], log, self._tag(slot), self._environment(lane))
        deadline = time.monotonic() + self.plan.options.trial_timeout_s
        self._running.append(_Running(slot, trial, config, process, deadline, lane))
        return None

    def _tag(self, slot: Slot) -> str:
        return f"{self.tag}.{slot.number:06d}"

    def _environment(self, lane: int) -> Mapping[str, str]:
        """Environment variables of a trial. Trials that run at the same time get separate GPUs and a share of the cores' threads."""
        if self.at_once == 1:
            return os.environ
        import torch

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
        gpus = [one for one in visible.split(",") if one]
        share = len(gpus) // self.at_once
        threads = max(1, (self.plan.options.cpus or os.cpu_count() or 1) // self.at_once)
        return {"OMP_NUM_THREADS": str(threads), **os.environ} | {
            "CUDA_VISIBLE_DEVICES": ",".join(gpus[lane * share : (lane + 1) * share])
        }

    def _look(self, running: _Running) -> dict[str, Any] | None:
        """The record of the trial if the trial has ended."""
        self.on_look(running.slot.number, running.process.pid)
        status = running.process.poll()
        behind = self._is_behind(running)
        if status is None and behind:
            self._stop(running)
            return self._ended(running.slot, running.trial, None, pruned=True)
        if status is None and time.monotonic() > running.deadline:
            self._stop(running)
            return self._ended(
                running.slot,
                running.trial,
                f"not finished within {self.plan.options.trial_timeout_s:g} s (--trial_timeout_s)",
            )
        if status is None:
            return None
        self._running.remove(running)
        if status != 0:
            kill_tagged(self._tag(running.slot))  # a killed run leaves its Ray behind
        # With --run.require_baselines, status 1 may mean a score below the baselines. If a summary exists, the run worked.
        failed = not (self.out / running.slot.name / "summary.json").exists()
        return self._ended(
            running.slot, running.trial, cause_of(self.out / f"{running.slot.name}.log", status) if failed else None
        )

    def _is_behind(self, running: _Running) -> bool:
        """Whether to stop the trial. Reports its new epochs to the pruner, even after the trial's end, because other trials are compared with it."""
        if not self.plan.options.prune:
            return False
        new = scores(self.out / running.slot.name, self.metric)[running.reported :]
        for epoch, score in new:
            running.trial.report(score, epoch)
        running.reported += len(new)
        return bool(new) and running.trial.should_prune()

    def _ended(self, slot: Slot, trial: "Trial", cause: str | None, pruned: bool = False) -> dict[str, Any]:
        run = self.out / slot.name
        scored = scores(run, self.metric)
        if cause is None and not scored:
            names = {name for line in RunDirectory(run).metrics() for name in line}
            known = sorted(name for name in names if name.startswith(("valid_", "train_loss")))
            cause = f"metric: expected one of {', '.join(known)}, got {self.metric}; set --metric"
        best = (min if lower_is_better(self.metric) else max)((score for _, score in scored), default=None)
        self.search.end(trial, best, cause, pruned)
        return trial_record(slot, self.search.trials()[slot.number], run, self.metric)

    def _stop(self, running: _Running) -> None:
        end_tagged(self._tag(running.slot), _STOP_TIMEOUT_S)
        running.process.wait(_STOP_TIMEOUT_S)  # the process is dead: this call fetches its exit status
        self._running.remove(running)

    def _stop_all(self) -> None:
        end_tagged(self.tag, _STOP_TIMEOUT_S)
        for running in self._running:
            running.process.wait(_STOP_TIMEOUT_S)
            self.search.forget(running.trial)
        self._running.clear()


def put_aside(run: Path) -> None:
    """Renames the run of a failed trial to `trial-003.failed-1`: the run may hold files that the user wants.

    A folder without a config.json was not made by a training command and stays unchanged.
    """
    if (run / "config.json").is_file():
        number = next(n for n in itertools.count(1) if not run.with_name(f"{run.name}.failed-{n}").exists())
        run.rename(run.with_name(f"{run.name}.failed-{number}"))


def prepare(config: RunConfig) -> None:
    """Makes the data of a trial if it does not exist. Otherwise, trials that start at the same time would make it twice. Raises the run's errors."""
    from graphmill.jobs.data.prepare_graph import prepare_graph, store_encoding
    from graphmill.jobs.subjects.subject import subject_class

    encoding = stored_encoding(config.model.options) if find_kind(config.kind).is_one_graph else None
    key = (config.kind, config.data, encoding, config.target)
    if key in _prepared:
        return
    subject_class(config).open(config)
    if encoding is not None:
        store_encoding(prepare_graph(config.data), encoding)
    _prepared.add(key)


def command_of(config: RunConfig) -> list[str]:
    """The training command of this run. A recipe names its kind."""
    kind = config.kind if config.kind in KINDS else "nodes"
    return [sys.executable, str(Path(__file__).resolve().parents[1] / f"train_{kind}.py")]


def scores(run: Path, metric: str) -> list[tuple[int, float]]:
    """(epoch counted from 1, score) of the epochs of the run that have a score."""
    return [(line["epoch"] + 1, line[metric]) for line in RunDirectory(run).metrics() if metric in line]


def trial_record(slot: Slot, trial: "FrozenTrial", run: Path, metric: str) -> dict[str, Any]:
    """The values of a trial for reports: its best score with the epoch, and its final scores if the trial finished."""
    status = status_of(trial)
    epochs = RunDirectory(run).metrics()
    if status == "stopped":  # the trial may have trained for a moment after the decision to stop it
        epochs = [line for line in epochs if line["epoch"] < max(trial.intermediate_values, default=0)]
    scored = [(line[metric], line["epoch"] + 1) for line in epochs if metric in line]
    best = (min if lower_is_better(metric) else max)(scored, key=lambda one: one[0], default=(None, None))
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text()) if status == "finished" else {}
    seed = {} if slot.seed is None else {"fit.seed": str(slot.seed)}
    return {
        "number": slot.number,
        "options": {path: str(value) for path, value in trial.params.items()} | seed,
        "status": status,
        "cause": trial.user_attrs.get("cause"),
        "score": best[0] if status != "failed" else None,
        "best_epoch": best[1] if status != "failed" else None,
        "epochs": len(epochs),
        "scores": summary.get("scores")
        or {f"{split}_estimate": score for split, score in summary.get("estimates", {}).items()},
        "num_parameters": summary.get("num_parameters"),
        "peak_bytes": summary.get("peak_bytes"),
        "train_s": sum(line.get("train_s", 0.0) for line in epochs),
        **{name: summary[name] for name in _SUMMARY_RATES if name in summary},
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
