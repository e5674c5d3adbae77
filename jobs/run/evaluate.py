"""Scores a finished run, a saved model or a converted checkpoint, without training:

    graphmill evaluate runs/my-run                       on its own data: the scores of its summary
    graphmill evaluate runs/my-run --data graphs/new     on other data with the same features and labels
    graphmill evaluate converted --data graphs/zinc      a folder written by convert_checkpoint, on a stored set

You should see every score of every split, after about the time of one validation. The scores are computed in this process, and nothing is written. `predict`
writes the predictions and can use several workers. The command prints one line and exits with 1 if the data does not fit the model, if the data has no labels,
or if the run is on links.
"""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import build, parse
from graphmill.samplers.methods.registry import load

if TYPE_CHECKING:
    from graphmill.jobs.records.run_record import Run


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a model."""

    run: str
    """A finished run's directory, a model saved by `Run.save_model` (folder or `hf://owner/name`), or a folder written by convert_checkpoint."""
    data: str | None = None
    """The graph or set to score on. none: the run's own data."""
    split: str = "all"
    """Splits to score: all, train, valid, test (or another name that the set's splits have), or none. none: nodes or graphs that are in no split."""
    task: Literal["regression", "binary", "classes"] = "regression"
    """Task of a converted checkpoint on graphs. With regression, the model's outputs are in the units of the targets."""
    device: Literal["cpu", "gpu"] = "cpu"
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the run names."""


def main() -> None:
    config = parse(EvaluateConfig, __doc__, ("run",))
    for split, scores in _evaluate(config).items():
        plain = {name: value for name, value in scores.items() if isinstance(value, int | float)}
        print(f"{split:<8}" + ", ".join(f"{name} {value:.6g}" for name, value in plain.items()))


def evaluate(run: "str | Path | Run", data: Any = None, **options: Any) -> dict[str, dict[str, float]]:
    """Returns the scores by split that `graphmill evaluate` prints. `data`: a stored graph or set, or its path or URL. Raises the errors that the command
    prints."""
    place = None if data is None else str(getattr(data, "url", data))
    return _evaluate(build(EvaluateConfig, {"run": str(getattr(run, "path", run)), "data": place, **options}))


def _evaluate(config: EvaluateConfig) -> dict[str, dict[str, float]]:
    from graphmill.cluster.prediction.prediction import split_scores
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.run.saved_model import at_hand

    place, data = at_hand(config.run), config.data
    run = read_run(place)
    if isinstance(run.config.get("task"), dict) and run.config["task"].get("name") == "links":
        trained_scores = ", ".join(f"{split} {run.metric} {score:.4g}" for split, score in run.scores.items())
        raise ConfigError(
            f"{config.run}: expected a run on nodes or graphs, got one on links, which is scored when it is trained: {trained_scores or 'it is not finished'}"
        )
    with ExitStack() as stack:
        if "from" in run.config:
            place = _adopted(Path(place), config, stack.enter_context(tempfile.TemporaryDirectory()))
        spec, pieces, tables = load("graphmill.jobs.predict:predicted")(
            PredictConfig(
                place,
                "",
                graph=data,
                other_graph=data is not None,
                split=config.split,
                device=config.device,
                allow_import=config.allow_import,
            )
        )
    scores = split_scores(tables, spec, pieces)
    if not scores:
        raise ConfigError(f"{data or place}: expected labels to score by, found none; `predict` needs none")
    return scores


def _adopted(converted: Path, config: EvaluateConfig, scratch: str) -> str:
    """Turns a converted checkpoint into a saved model for this set."""
    from safetensors.torch import save_file

    from graphmill.cluster.checkpoints.checkpoint import TrainState, write_state
    from graphmill.cluster.options import NodesOptions, NumberOptions
    from graphmill.cluster.training.initial_weights import load_start
    from graphmill.jobs.config.config import config_tree, read_config
    from graphmill.jobs.config.registry import Component
    from graphmill.jobs.convert_checkpoint import load_converted
    from graphmill.jobs.subjects.subject import subject_class
    from graphmill.storage.graph_sets.graph_set import open_graphs

    if config.data is None:
        raise ConfigError(f"{converted}: expected --data of a converted checkpoint, which has none; set --data")
    options: Any = load_converted(converted).config
    stored = open_graphs(config.data)
    task = {None: config.task, "nodes": "nodes", "pairs": "pairs"}[stored.manifest.labelled]
    tree: dict[str, Any] = {"model": type(options).__name__.removesuffix("Config").lower(), "task": task}
    tree["data"] = {"path": config.data, "standardise": "no"}  # the checkpoint reads raw features
    asked = read_config(config_tree("graphs", tree, {"run": {"defaults": "recipe"}}))
    asked = replace(asked, model=Component(asked.model.name, options))
    if isinstance(asked.task.options, NumberOptions):
        own_units = replace(asked.task.options, standardise=False)
        asked = replace(asked, task=Component(task, own_units))
    if isinstance(asked.task.options, NodesOptions) and options.out_dim == 1:
        asked = replace(asked, task=Component(task, replace(asked.task.options, one_logit=True)))
    kind: Any = subject_class(asked)
    subject = kind(stored)
    resolved = subject.resolve(asked, None)
    model = resolved.build_model()
    load_start(model, str(converted))
    folder, manifest = Path(scratch), stored.manifest
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(resolved.tree(), default=str))
    summary = {
        "job": "evaluate",
        "workers": 1,
        "device": "cpu",
        "scores": {},
        "graphs": stored.url,
        "graphs_hash": manifest.content_hash,
        "snapshot": manifest.snapshot,
        "task": vars(subject.task(resolved)),
    }
    (folder / "summary.json").write_text(json.dumps(summary, default=str))
    write_state(folder, TrainState(0, 0, None, resolved.identity, resolved.architecture))
    return scratch
