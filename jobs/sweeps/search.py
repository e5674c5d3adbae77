"""Searches the values of a sweep's trials. The state of the search is an Optuna study in OUT/sweep.sqlite; a killed sweep continues from this file.

A trial of the sweep may have several entries in the study: one for each time that the trial was begun. The latest entry counts. Draws depend on (seed,
index of the draw). Draws of TPE also depend on the scores known at the time of the draw.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from graphmill.core.errors import FormatError
from graphmill.jobs.sweeps.design import Range, Slot, SweepDesign

FILE = "sweep.sqlite"
_STUDY = "sweep"
optuna.logging.set_verbosity(optuna.logging.ERROR)


def saved_attributes(out: Path) -> dict[str, Any]:
    """Attributes that an earlier part of the sweep stored. Raises FormatError if the directory has no sweep."""
    try:
        if not (out / FILE).is_file():
            raise KeyError(FILE)
        return optuna.load_study(study_name=_STUDY, storage=_url(out)).user_attrs
    except KeyError:
        raise FormatError(
            f"{out}: expected a sweep's directory ({FILE}), found none; start one without --resume"
        ) from None
    except (optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        why = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{out / FILE}: expected the database of a sweep, cannot read it ({why}); start another sweep"
        ) from None


def _url(out: Path) -> str:
    return f"sqlite:///{out / FILE}"


class Search:
    """Stores the values of the trials, and how each trial ended."""

    def __init__(self, out: Path, plan: SweepDesign, lower: bool, attributes: Mapping[str, Any]) -> None:
        self._plan = plan
        options = plan.options
        median = optuna.pruners.MedianPruner(n_warmup_steps=options.prune_after)
        self._study = optuna.create_study(
            study_name=_STUDY,
            storage=_url(out),
            pruner=median if options.prune else optuna.pruners.NopPruner(),
            direction="minimize" if lower else "maximize",
            load_if_exists=True,
        )
        for name, value in attributes.items():
            self._study.set_user_attr(name, value)
        self._distributions = {path: CategoricalDistribution(values) for path, values in plan.axes.items()} | {
            one.path: _distribution(one) for one in plan.ranges
        }
        self._forget_running()

    def _forget_running(self) -> None:
        """Marks the trials that were running when the sweep was killed. They begin again, and their runs continue from checkpoints."""
        for _ in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._study.tell(self._study.ask(), state=TrialState.FAIL)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)

    def trials(self) -> dict[int, FrozenTrial]:
        """Index of a begun trial -> the trial's latest entry."""
        return {t.user_attrs["slot"]: t for t in self._study.get_trials(deepcopy=False) if "slot" in t.user_attrs}

    def begin(self, slot: Slot) -> Trial | None:
        """Draws the values of a trial. Returns None if an earlier trial has the same values and seed: the new trial is then skipped."""
        fixed: dict[str, Any] = dict(slot.values)
        drawn = self.trials().get(slot.first)
        if drawn is not None:
            fixed |= {each.path: drawn.params[each.path] for each in self._plan.ranges}
        seed = self._plan.options.seed + slot.draw
        if self._plan.options.search == "tpe":
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        else:
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        self._study.enqueue_trial(fixed, user_attrs={"slot": slot.number, "seed": slot.seed})
        trial = self._study.ask(self._distributions)
        same = [
            number
            for number, other in self.trials().items()
            if number < slot.number and other.params == trial.params and other.user_attrs["seed"] == slot.seed
        ]
        if not same:
            return trial
        trial.set_user_attr("repeats", same[0])
        self._study.tell(trial, state=TrialState.FAIL)
        return None

    def end(self, trial: Trial, score: float | None, cause: str | None, pruned: bool = False) -> None:
        """Stores how a trial ended. `cause`: the cause of a failure."""
        if cause is not None:
            trial.set_user_attr("cause", cause)
            self._study.tell(trial, state=TrialState.FAIL)
        elif pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, score)

    def forget(self, trial: Trial) -> None:
        """Marks a trial as interrupted: a resumed sweep continues it."""
        self._study.tell(trial, state=TrialState.FAIL)


def status_of(trial: FrozenTrial) -> str:
    """Status of a trial: finished, stopped (by the pruner), failed, repeats (has the values of an earlier trial), or not ended."""
    names = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped"}
    if trial.state in names:
        return names[trial.state]
    return next(
        (status for name, status in (("cause", "failed"), ("repeats", "repeats")) if name in trial.user_attrs),
        "not ended",
    )


def _distribution(one: Range) -> optuna.distributions.BaseDistribution:
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)
