"""Trains classic models as baselines of a run. They use frozen recipes, the same code, and the run's graph, splits and seed.

    recipes/baselines/gcn.yaml, gat.yaml, sage.yaml     models and their training
    recipes/baselines/search.yaml                       the configurations to try, in order

Each configuration is a separate run in RUN/baselines. The configuration with the best validation score counts. On a typed graph, a linear layer for each
type of nodes comes first, and the classic model then reads the graph without types.
"""

import contextlib
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from graphmill.cluster.runs.run_directory import load_config
from graphmill.cluster.runs.run_store import BASELINES, RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.config import RECIPES, RunConfig, config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import shown, to_tree

Train = Callable[[str, RunConfig], int]


@dataclass(frozen=True)
class Try:
    """The run of one configuration of a classic model."""

    name: str
    options: Mapping[str, Any]
    config: RunConfig

    @property
    def text(self) -> str:
        return ", ".join(f"{path} {shown(value)}" for path, value in self.options.items())

    @property
    def place(self) -> RunStore:
        return RunStore(str(self.config.run.dir))

    @property
    def folder(self) -> Path:
        return self.place.folder


@cache
def search() -> tuple[Mapping[str, Any], ...]:
    """All configurations of the frozen search, in the order of the search."""
    axes = yaml.safe_load((RECIPES / "baselines" / "search.yaml").read_text())
    # The first list in search.yaml varies fastest.
    return tuple(
        {path: value for options in reversed(chosen) for path, value in options.items()}
        for chosen in itertools.product(*reversed(axes))
    )


def tries(config: RunConfig, run: RunStore, *, is_typed: bool = False) -> list[Try]:
    """The trials that `config.baseline` asks for. A trial has the model of a recipe, and the run's data, splits, seed, metric and machine options."""
    return [
        Try(model, options, _config_of(config, model, options, run.child(BASELINES, f"{model}-{number}"), is_typed))
        for model in config.baseline.networks
        for number, options in enumerate(search()[: config.baseline.configurations])
    ]


def _config_of(config: RunConfig, name: str, options: Mapping[str, Any], place: RunStore, is_typed: bool) -> RunConfig:
    recipe = read_config(config_tree("nodes", read_recipe(f"baselines/{name}.yaml")))
    same_task = config.task.name == recipe.task.name
    metric = [("task.metric", config.task.options.metric)] if config.metric and same_task else []
    metric += [("task.node_type", config.node_type)] if config.node_type and same_task else []
    no_layers = [("relational.num_layers", 0)] if is_typed else []
    tuned = recipe.changed(*options.items(), *metric, *no_layers, ("fit.seed", config.fit.seed), ("run.dir", place.url))
    evaluation = config.evaluation if config.evaluation.how == "full" else tuned.evaluation
    return replace(
        tuned,
        data=config.data,
        task=tuned.task if same_task else config.task,
        evaluation=evaluation,
        loader=config.loader,
        servers=config.servers,
        workers=config.workers,
        ray=config.ray,
    )


def train_classic(
    job: str, config: RunConfig, run_dir: RunStore, train: Train, *, is_typed: bool = False
) -> dict[str, dict[str, float]]:
    """Scores by classic model and split. Trains all trials of the run that have not finished yet."""
    scores: dict[str, dict[str, float]] = {}
    planned = tries(config, run_dir, is_typed=is_typed)
    started_s = time.monotonic()
    with progress("baselines") as bar:
        for number, attempt in enumerate(planned):
            try:
                with bar.part(number, len(planned), f"{attempt.name} {attempt.text}"):
                    _train(job, attempt, train)
            except KeyboardInterrupt:
                print(f"the run itself goes on from here by the same command with --run.dir {run_dir}", flush=True)
                raise
    for name in config.baseline.networks:
        best, scores[name] = best_of([attempt for attempt in planned if attempt.name == name])
        described = ", ".join(f"{split} {score:.4f}" for split, score in scores[name].items())
        print(f"baseline {name}: {described} ({best.text})", flush=True)
    print(f"{len(planned)} configurations of baselines took {time.monotonic() - started_s:.0f} s", flush=True)
    return scores


def best_of(attempts: Sequence[Try]) -> tuple[Try, dict[str, float]]:
    """The finished trial with the best validation score (the first if scores are equal), and the trial's scores by split."""
    ranked = []
    for attempt in attempts:
        summary = json.loads(attempt.place.read("summary.json") or b"{}")
        sign = 1 if summary.get("higher_is_better", True) else -1
        scores = summary.get("scores") or summary["estimates"]
        ranked.append((sign * scores.get("valid", -math.inf), attempt, scores))
    _, best, scores = max(ranked, key=lambda entry: entry[0])
    return best, scores


def _train(job: str, attempt: Try, train: Train) -> None:
    """Trains or resumes a trial; does nothing if the trial has finished."""
    config, place = attempt.config, attempt.place
    if place.holds_run:
        saved = load_config(place)
        if (saved.get("data"), saved.get("fit", {}).get("seed")) != (to_tree(config.data), config.fit.seed):
            raise ConfigError(
                f"{place}: expected a baseline of this run, found one of another graph or seed; remove it"
            )
        config = replace(config, run=replace(config.run, dir=None, resume=place.url))
    if place.read("summary.json") is None:
        with contextlib.redirect_stdout(io.StringIO()):  # the trial's folder keeps the output of the trial
            train(job, config)
