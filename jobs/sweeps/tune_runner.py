"""Ray Tune as a sweep uses it: which trials run, how many at once, and which of them stop early. The sweep's own files are its memory.

Tune keeps its state as pickles, which nothing here reads again: they go to a directory that ends with the sweep. Trials are listed by
the sweep, and what earlier parts of it found is told to the scheduler before the first trial starts.
"""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from jobs.sweeps.tune_environment import tune_environment
from jobs.sweeps.tune_trial import JobTrial, SweepPlan

# A trial's end: its number, epochs that it reported, whether the scheduler stopped it, and the cause of its failure.
OnEnd = Callable[[int, int, bool, str | None], None]


def make_scheduler(kind: str, lower: bool, epochs: int, grace: int, reduction: int) -> TrialScheduler:
    """ "asha" (arXiv:1810.05934, one bracket) on the score at each epoch, or "none"."""
    if kind == "none":
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="epoch",
        metric="score",
        mode="min" if lower else "max",
        max_t=epochs,
        grace_period=min(grace, epochs),
        reduction_factor=reduction,
        stop_last_trials=False,
    )


def recall(scheduler: TrialScheduler, histories: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
    """Tells a scheduler the scores of trials that will not run again, as if they had just been reported."""
    for number, history in histories.items():
        trial: Any = SimpleNamespace(trial_id=f"earlier-{number}")
        controller: Any = None
        scheduler.on_trial_add(controller, trial)
        for result in history:
            scheduler.on_trial_result(controller, trial, dict(result))


def run_trials(plan: SweepPlan, scheduler: TrialScheduler, at_once: int, on_end: OnEnd) -> None:
    """Runs all trials of the plan in a Ray that is up; returns when each has ended."""
    trainable = tune.with_resources(tune.with_parameters(JobTrial, plan=plan), _on_this_node())
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what fails is told by `on_end`, in one line
    with tempfile.TemporaryDirectory(prefix="graphmill-tune-") as storage, tune_environment():
        tune.Tuner(
            trainable,
            param_space={"trial": tune.grid_search(sorted(plan.trials))},
            tune_config=tune.TuneConfig(scheduler=scheduler, max_concurrent_trials=at_once),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=storage,
                verbose=0,
                callbacks=[_Ends(on_end)],
                failure_config=tune.FailureConfig(max_failures=0, fail_fast=False),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs keep their own
            ),
        ).fit()


class _Ends(tune.Callback):
    """Hears of every trial's end."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._epochs: dict[int, int] = {}  # reported

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "epoch" in result:
            self._epochs[trial.config["trial"]] = result["epoch"]

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number, last = trial.config["trial"], trial.last_result
        self._on_end(number, self._epochs.get(number, 0), "cause" not in last, last.get("cause"))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The actor died: a failure of the job is a result."""
        number = trial.config["trial"]
        said = [line.strip() for line in str(trial.get_error() or "").splitlines() if line.strip()]
        cause = f"the trial's actor failed: {said[-1][:400] if said else 'no cause recorded'}"
        self._on_end(number, self._epochs.get(number, 0), False, cause)


def _on_this_node() -> tune.PlacementGroupFactory:
    """Where a trial's actor runs: on the node of the sweep, whose files it reads. The job's workers may run on any."""
    here = ray.get_runtime_context().get_node_id()
    address = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return tune.PlacementGroupFactory([{"CPU": 0, f"node:{address}": 0.001}])
