"""One trial of a sweep, as Ray Tune runs it: an actor that starts the training job as a process and reports its epochs.

The process is the job as it would run alone: the same program, options, environment and working directory, and a run directory of its own.
It joins the sweep's Ray, from which it gets its workers' CPUs and GPUs; the actor itself asks for none. The actor reads the run's
metrics.jsonl, so an epoch is reported as it was recorded; Tune's decision to stop the trial ends the process by SIGTERM, at which a job
saves a checkpoint. What the job says of a failure travels as a result, not as an exception, which Tune would store as a pickle.
"""

import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from cluster.run_directory import RunDirectory
from jobs.run.child_process import cause_of, end, start

_LOOK_EVERY_S = 0.2
_STOP_TIMEOUT_S = 8.0  # Tune kills an actor that takes ten seconds to stop at the end of a sweep


@dataclass(frozen=True)
class TrialPlan:
    """What a trial runs, and what of it is reported."""

    number: int
    command: tuple[str, ...]  # but for where the run is kept, and where Ray is
    run: Path
    log: Path
    epochs: int


@dataclass(frozen=True)
class SweepPlan:
    """What all trials of a sweep share, besides each one's own plan."""

    trials: Mapping[int, TrialPlan]
    metric: str
    folder: Path  # where the sweep was started: relative paths mean the same in its trials
    address: str  # of the sweep's Ray
    environment: Mapping[str, str]
    tag: str
    timeout_s: float


def recorded(run: Path, metric: str, planned: int | None = None) -> list[dict[str, Any]]:
    """The run's epochs that have the metric, as {"epoch" from 1, "score"}, ascending; at most as many as were planned."""
    found = [{"epoch": one["epoch"] + 1, "score": one[metric]} for one in RunDirectory(run).metrics() if metric in one]
    return [one for one in found if planned is None or one["epoch"] <= planned]


class JobTrial(tune.Trainable):
    """A trial; `plan` comes through `tune.with_parameters`, so that no environment is written to Tune's files."""

    def setup(self, config: dict[str, Any], plan: SweepPlan | None = None) -> None:
        assert plan is not None
        self._plan, self._trial = plan, plan.trials[config["trial"]]
        self._reported = 0  # epochs
        self._deadline = time.monotonic() + plan.timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        if not (self._trial.run / "summary.json").exists():  # the sweep was killed before it could note a trial's end
            self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        run = self._trial.run
        if (run / "config.json").exists():
            where = ("--resume", str(run))
        else:
            shutil.rmtree(run, ignore_errors=True)
            where = ("--run-dir", str(run))
        command = (*self._trial.command, *where, "--address", self._plan.address)
        return start(command, self._trial.log, self._plan.tag, self._plan.environment, self._plan.folder)

    def step(self) -> dict[str, Any]:
        """The next epoch; the last one once the process has ended, with how it ended."""
        while True:
            status = self._wait()
            ended = status is not None or self._process is None
            new = [one for one in self._recorded() if one["epoch"] > self._reported]
            if new and (len(new) > 1 or not (ended or new[0]["epoch"] >= self._trial.epochs)):
                self._reported = new[0]["epoch"]
                return new[0]
            if ended:
                return {**(new[0] if new else {}), "done": True, "cause": self._cause(status)}
            if time.monotonic() > self._deadline:
                self.cleanup()
                limit = f"not finished within {self._plan.timeout_s:g} s (--trial-timeout-s)"
                return {"done": True, "cause": limit}

    def _wait(self) -> int | None:
        """The process's exit status, where it ends within the time between two looks."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout=_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            return None

    def _recorded(self) -> list[dict[str, Any]]:
        return recorded(self._trial.run, self._plan.metric)

    def _cause(self, status: int | None) -> str | None:
        """Why there is no score, in one line. A job that wrote its summary has worked: with --require-baselines its status may be 1 all the same."""
        if not (self._trial.run / "summary.json").exists():
            return cause_of(self._trial.log, status or 0)
        if self._recorded():
            return None
        lines = RunDirectory(self._trial.run).metrics()
        known = sorted({name for line in lines for name in line if name.startswith(("valid_", "train_loss"))})
        return f"metric: expected one of {', '.join(known)}, got {self._plan.metric}; set --metric"

    def cleanup(self) -> None:
        """Ends the process, where Tune stops the trial before its time."""
        if self._process is not None and self._process.poll() is None:
            end(self._process, _STOP_TIMEOUT_S)
