"""Trains classic models as baselines of a sweep, one at a time, after all trials have ended: for each graph, split, seed and metric of the trials."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from graphmill.cluster.runs.run_directory import write_atomic
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError, StageError
from graphmill.jobs.baselines.tuned_baselines import Try, best_of, tries
from graphmill.jobs.cli.child_process import cause_of, end_tagged, start
from graphmill.jobs.config.config import BaselineOptions, RunConfig
from graphmill.jobs.data.prepare_graph import prepare_graph
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.jobs.sweeps.trials import command_of

_STOP_TIMEOUT_S = 40.0


@dataclass(frozen=True)
class Classic:
    """The scores of a classic model on the sweep's graphs, splits and seeds."""

    name: str
    scores: Sequence[Mapping[str, float]]
    """For each graph, split and seed: the scores (by split) of the configuration with the best validation score."""

    def __str__(self) -> str:
        splits = [split for split in ("valid", "test") if all(split in one for one in self.scores)]
        means = ", ".join(f"{split} {spread([one[split] for one in self.scores])}" for split in splits)
        return f"{means} ({len(self.scores)} runs)" if len(self.scores) > 1 else means

    def mean(self, split: str) -> float:
        return statistics.fmean(one[split] for one in self.scores)


def spread(values: Sequence[float]) -> str:
    """Formats mean ± standard deviation; a dash if there are no values."""
    if not values:
        return "–"
    return f"{statistics.fmean(values):.4f}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


def why_impossible(configs: Iterable[RunConfig], baseline: BaselineOptions) -> str | None:
    """Why classic models cannot be trained on the data of these trials; None if they can."""
    opened = cache(prepare_graph)
    for config in configs:
        try:
            Nodes(opened(config.data)).resolve(replace(config, baseline=baseline), None)
        except ConfigError as error:
            return str(error)
    return None


def train_classics(
    configs: Iterable[RunConfig], baseline: BaselineOptions, out: Path, tag: str, timeout_s: float
) -> list[Classic]:
    """Trains the classic models whose scores are missing, each in a separate process. Raises StageError with the cause if one of them fails."""
    tries_by_key: dict[str, list[Try]] = {}
    for config in configs:
        is_typed = prepare_graph(config.data).manifest.is_typed
        place = RunStore(str(out / f"beside-{len(tries_by_key):03d}"))
        planned = tries(replace(config, baseline=baseline), place, is_typed=is_typed)
        key = json.dumps([_what_is_trained(attempt.config) for attempt in planned], default=str)
        tries_by_key.setdefault(key, planned)
    every = [attempt for planned in tries_by_key.values() for attempt in planned]
    missing = [attempt for attempt in every if not (attempt.folder / "summary.json").is_file()]
    started_s = time.monotonic()
    for number, attempt in enumerate(missing):
        left = (
            f", about {(time.monotonic() - started_s) / number * (len(missing) - number):.0f} s left" if number else ""
        )
        print(f"baseline {attempt.name}, {number + 1} of {len(missing)}{left}: {attempt.text}", flush=True)
        _train(attempt, tag, timeout_s)
    return [
        Classic(name, [best_of([one for one in planned if one.name == name])[1] for planned in tries_by_key.values()])
        for name in baseline.models
    ]


def _what_is_trained(config: RunConfig) -> dict[str, object]:
    """The options on which the scores depend."""
    apart = ("loader", "servers", "workers", "ray", "run")
    return {name: value for name, value in config.tree().items() if name not in apart}


def _train(attempt: Try, tag: str, timeout_s: float) -> None:
    attempt.folder.parent.mkdir(parents=True, exist_ok=True)
    recipe, log = attempt.folder.with_suffix(".yaml"), attempt.folder.with_suffix(".log")
    arguments = ["--run.resume", str(attempt.folder)]
    if not (attempt.folder / "config.json").is_file():
        write_atomic(recipe, yaml.safe_dump(attempt.config.tree(), sort_keys=False))
        arguments = [str(recipe), "--run.dir", str(attempt.folder)]
    process = start([*command_of(attempt.config), *arguments], log, f"{tag}.classic", os.environ)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise StageError(f"baseline {attempt.name}: not finished within {timeout_s:g} s (--trial_timeout_s)") from None
    finally:
        end_tagged(f"{tag}.classic", _STOP_TIMEOUT_S)
    if not (attempt.folder / "summary.json").is_file():
        raise StageError(f"baseline {attempt.name}: {cause_of(log, status)}; log: {log}")
