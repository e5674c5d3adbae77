"""Plans a sweep: reads its options and the values to try, and checks the configuration of every trial before any trial starts.

An option has the same path as on the line of a training command. A grid is `model.num_layers=2,3`. A range to draw from is
`fit.learning_rate=1e-4..1e-2:log`. For each draw, every combination of the grid runs once with each seed.
"""

import itertools
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.ray.placement import resolve as resolve_workers
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.config.config import RunConfig, check_code, config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import Tree, UsageError, option_names, read_words
from graphmill.jobs.config.registry import Component, find_kind
from graphmill.jobs.resolve.resolve import Facts, resolve

_METRICS = {  # metrics in addition to the task's metric
    "classification": ("accuracy",),
    "regression": ("mae", "rmse", "r2"),
    "classes": ("accuracy",),
    "nodes": ("accuracy",),
    "pairs": ("mrr",),
}
_BINARY_METRICS = {"rocauc": ("ap",), "ap": ("rocauc",), "micro_f1": ("macro_f1",), "macro_f1": ("micro_f1",)}
_LOWER_IS_BETTER = ("loss", "mae", "rmse")
# A key of the grid that is no option of a run: how the batch grows with the number of workers.
SCALING = "scaling"
ARM = "arm"  # another key of the grid that is no option of a run: the arm of a study


@dataclass(frozen=True)
class SweepOptions:
    """Options, seeds, worker counts and graph sizes to try."""

    recipe: str | None = None
    """A recipe file from which every trial begins. The default: no recipe, only the model's defaults."""
    study: str | None = None
    """A study: a file with a recipe and with arms to compare, each with its options. recipes/studies has the papers' studies. --recipe replaces the study's recipe."""
    arms: tuple[str, ...] = ()
    """The arms of the study that run, by name. The default is all of them."""
    kind: str = "nodes"
    """Train on the nodes of one graph, or on many graphs. If a recipe is named, the recipe's kind counts."""
    grid: tuple[str, ...] = ()
    """OPTION=A,B …: values of options. Every combination of the values runs. If an option takes several values: "sampler.fanouts=10 5,5 5"."""
    draw: tuple[str, ...] = ()
    """OPTION=LOW..HIGH or OPTION=LOW..HIGH:log …: ranges from which values are drawn."""
    trials: Count | None = None
    """Number of draws. Each draw runs with every combination of the grid and every seed."""
    search: Literal["tpe", "random"] = "tpe"
    """How to draw. "tpe": near values with good scores (Optuna's TPE; the first ten draws are random). "random": without regard to scores."""
    seeds: tuple[int, ...] = ()
    """Training seeds (fit.seed). Each combination runs once with each seed; the table shows mean and standard deviation."""
    workers: tuple[int, ...] = ()
    """Worker counts, to measure scaling: shorthand for --grid workers.num_workers=…"""
    nodes: tuple[int, ...] = ()
    """Sizes of the synthetic graph, to measure scaling: shorthand for --grid data.nodes=…"""
    scaling: tuple[Literal["weak", "strong"], ...] = ()
    """weak: the batch of one worker keeps its size. strong: the batch of all workers together keeps its size."""
    metric: str | None = None
    """Metric by which trials are compared: valid_accuracy, valid_mae, valid_loss …; the default is the metric that selects a run's best epoch."""
    prune: bool = False
    """Stop a trial if its best validation score is worse than the median of the other trials at the same epoch. The first trial can be stopped when five trials
    have ended."""
    prune_after: Count = 1
    """Number of epochs that every trial runs before it may be stopped."""
    baseline: tuple[Literal["gcn", "gat", "sage"], ...] | None = ("gcn",)
    """Classic models to train after the trials, by their frozen recipes (recipes/baselines), once for each graph, split and seed. After the --, --baseline.configurations sets the number of configurations of each model. none: no classic models."""
    at_once: Count | None = None
    """Number of trials that run at the same time. The default is the largest number for which cores and GPUs are enough, or one if scaling is measured."""
    cpus: Count | None = None
    """Number of cores for all trials in total. The default is all cores of this machine."""
    trial_timeout_s: Positive = 86_400.0
    """Time limit of a trial, in seconds."""
    seed: int = 0
    """Seed of the draws."""
    out: str | None = None
    """Directory of the sweep; the default is runs/sweep-<time>."""
    resume: str | None = None
    """Directory of a sweep that is to be continued."""
    retry: bool = False
    """With --resume: run failed trials again from the start. Their old runs are kept under another name."""
    allow_import: bool = False
    """Import the user's own model, sampler or task, if a recipe, study or resumed sweep outside this folder names one."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.draw and self.trials is None:
            raise ConfigError(f"draw {self.draw[0]}: expected how often to draw; set trials")
        if self.trials is not None and not self.draw and self.resume is None:
            raise ConfigError("trials: nothing is drawn; set draw, or leave trials out")
        if self.arms and self.study is None:
            raise ConfigError(f"arms {self.arms[0]}: expected a study that has them; set study, or leave arms out")
        if "strong" in self.scaling and not self.workers:
            raise ConfigError("scaling: expected worker counts to compare; set workers")


@dataclass(frozen=True)
class Range:
    """Values between two bounds (included), spread evenly or evenly in the logarithm. The values are whole if the option takes only whole numbers."""

    path: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, bound: str) -> float | int:
        value: float = getattr(self, bound)
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Slot:
    """The place of a trial in the sweep."""

    number: int
    draw: int
    first: int
    """Index of the first trial that has the same drawn values."""
    values: Mapping[str, str]
    """The trial's values of the options in the grid."""
    seed: int | None

    @property
    def name(self) -> str:
        return f"trial-{self.number:03d}"


@dataclass(frozen=True)
class SweepDesign:
    """A sweep whose options have been checked."""

    options: SweepOptions
    recipe: Tree
    words: tuple[str, ...]
    """Flags for all trials, from the command line after `--`."""
    axes: Mapping[str, tuple[str, ...]]
    """Option of the grid -> its values."""
    ranges: tuple[Range, ...]
    arms: Mapping[str, Tree] = field(default_factory=dict)
    """Name of a study's arm -> its options."""

    def slots(self) -> Iterator[Slot]:
        """The slots of all trials. More draws add trials at the end and change no earlier trial."""
        combinations = [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]
        seeds: tuple[int | None, ...] = self.options.seeds or (None,)
        for draw in range(self.options.trials or 1 if self.ranges else 1):
            first = draw * len(combinations) * len(seeds)
            # Combinations vary fastest: a slow moment of the machine then affects different combinations.
            for place, (seed, values) in enumerate(itertools.product(seeds, combinations)):
                yield Slot(first + place, draw, first, values, seed)

    def config(self, values: Mapping[str, Any], seed: int | None) -> RunConfig:
        """The configuration with these values, as a training command with the same flags would have it. Raises ConfigError if a training command would refuse
        the run."""
        try:
            options = {path: value for path, value in values.items() if path not in (SCALING, ARM)}
            if ARM in values:
                options |= self.arms[values[ARM]]
            options |= {} if seed is None else {"fit.seed": seed}
            tree = _read_flags(options, self.words)
            if self.options.resume:  # the sweep may have been started by another user
                check_code(tree, self.options.resume, allow_import=self.options.allow_import)
            # The points of a scaling sweep must differ only in the measured options, so the size of the graph must not choose any option.
            under = {"run": {"defaults": "recipe"}} if self.measures_scaling else {}
            config = read_config(config_tree(self.options.kind, under, self.recipe, tree))
            if config.run.dir is not None or config.run.resume is not None:
                raise ConfigError("the sweep sets --run.dir and --run.resume of every trial itself; leave them out")
            if config.baseline.models:
                raise ConfigError(
                    "baseline: the sweep trains classic models once, beside its trials; set --baseline before the --"
                )
            if values.get(SCALING) == "strong":
                config = _shared_batch(config)
            if self.measures_scaling:
                config = self._measured(config)
            resolve(config, Facts(find_kind(config.kind).inputs, {}, None))
        except ConfigError as error:
            prefix = f"trial with {say(values)}: " if values else ""
            raise type(error)(f"{prefix}{error}") from None
        return config

    def configs(self) -> list[RunConfig]:
        """Configurations for every combination and seed, with both bounds of each range, after all checks."""
        first = replace(self, options=replace(self.options, trials=1 if self.ranges else None))
        return [
            self.config({**slot.values, **{one.path: one.at(bound) for one in self.ranges}}, slot.seed)
            for bound in ("low", "high")[: 1 + bool(self.ranges)]
            for slot in first.slots()
        ]

    def _measured(self, config: RunConfig) -> RunConfig:
        """The run on Ray's workers, even with one worker. The run validates only at its end, unless options say otherwise: the messages of a validation would
        count as messages of a batch.
        """
        fit = config.fit
        if not any("eval_every" in (tree.get("fit") or {}) for tree in (self.recipe, read_words(self.words)[1])):
            fit = replace(fit, eval_every=fit.epochs)
        if not any((epoch + 1) % fit.eval_every for epoch in range(1, fit.epochs - 1)):
            raise ConfigError(
                f"scaling: expected an epoch without validation between the first and the last, got {fit.epochs} epochs, validated every "
                f"{fit.eval_every}; set --fit.epochs to 3 or more, --fit.eval_every to as many"
            )
        return replace(config, fit=fit, workers=replace(config.workers, launcher="ray"))

    @property
    def measures_scaling(self) -> bool:
        return bool(self.options.workers or self.options.nodes)


def design_sweep(options: SweepOptions, words: Sequence[str]) -> SweepDesign:
    """Plans and checks the sweep. `words`: flags after `--`. Raises ConfigError if there is nothing to try or a trial would be refused."""
    stray = read_words(words)[0]
    if stray:
        raise UsageError(f"after --: unexpected {' '.join(stray)!r}: options are written --name value")
    recipe, arms = read_study(options.study, allow_import=options.allow_import) if options.study else ({}, {})
    if options.recipe:
        recipe = read_recipe(options.recipe, allow_import=options.allow_import)
    if strange := [name for name in options.arms if name not in arms]:
        raise ConfigError(f"--arms: expected some of {options.study}'s {', '.join(arms)}, got {strange[0]}; set --arms")
    arms = {name: arm for name, arm in arms.items() if not options.arms or name in options.arms}
    grid = [_axis(text) for text in options.grid]
    if arms:
        grid.insert(0, (ARM, tuple(arms)))
    short = {"workers.num_workers": options.workers, "data.nodes": options.nodes, SCALING: options.scaling}
    grid += [(path, tuple(dict.fromkeys(map(str, values)))) for path, values in short.items() if values]
    plan = SweepDesign(options, recipe, tuple(words), dict(grid), (), arms)
    if not grid and not options.draw and not options.seeds:
        raise ConfigError("nothing is tried: give --grid option=a,b, --draw option=low..high --trials n, or --seeds")
    first = {path: values[0] for path, values in grid}
    plan = replace(plan, ranges=tuple(_range(text, plan, first) for text in options.draw))
    paths = [path for path, _ in grid] + sorted({path for arm in arms.values() for path in arm})
    paths += [one.path for one in plan.ranges] + ["fit.seed"] * bool(options.seeds)
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"--{path} is tried twice; give one --grid, --draw or shorthand for it")
        if any(word.partition("=")[0].replace("-", "_") == f"__{path}" for word in words):
            raise ConfigError(f"--{path} is tried, and stands after --; leave one out")
    plan.configs()
    return plan


def read_study(path: str, *, allow_import: bool = False) -> tuple[Tree, dict[str, Tree]]:
    """(recipe, arm -> options) from the file of a study. Raises ConfigError if the file is not a study, and the errors of `check_code`."""
    tree = read_recipe(path, allow_import=allow_import)
    arms, recipe = tree.get("arms"), tree.get("recipe")
    if not (
        tree.keys() == {"recipe", "arms"}
        and isinstance(recipe, str)
        and isinstance(arms, dict)
        and arms
        and all(isinstance(name, str) and isinstance(options, dict) for name, options in arms.items())
    ):
        raise ConfigError(
            f"{path}: expected a study: recipe, the name of one, and arms, options by name; recipes/studies has some"
        )
    said = {name: {path: _said(value) for path, value in arm.items()} for name, arm in arms.items()}
    for arm in said.values():
        check_code(_read_flags(arm), path, allow_import=allow_import)
    return read_recipe(recipe, allow_import=allow_import), said


def _said(value: Any) -> str:
    """A YAML value as a word of the command line."""
    if isinstance(value, list):
        return " ".join(map(_said, value))
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _read_flags(options: Mapping[str, Any], before: Sequence[str] = ()) -> Tree:
    """The tree of options that flags set: first the words `before`, then `options` by path."""
    flags = [
        [f"--{path}", *(value.split() if isinstance(value, str) else [repr(value)])] for path, value in options.items()
    ]
    return read_words([*before, *itertools.chain(*flags)])[1]


def _shared_batch(config: RunConfig) -> RunConfig:
    """Strong scaling: divides the roots of a batch by the number of workers, or multiplies the chunks of a random partition by the number of workers."""
    workers = config.workers.num_workers
    assert workers is not None
    for name in ("batch_size", "max_graphs", "num_chunks"):
        value = getattr(config.sampler.options, name, None)
        if value is None:
            continue
        if name != "num_chunks" and value < workers:
            raise ConfigError(
                f"{name}: expected at least one per worker ({workers}), got {value}; set --sampler.{name}"
            )
        shared = value * workers if name == "num_chunks" else value // workers
        return replace(
            config, sampler=Component(config.sampler.name, replace(config.sampler.options, **{name: shared}))
        )
    raise ConfigError(
        f"scaling strong: {config.sampler.name} has no batch to share over workers; leave out strong, or set --sampler.num_chunks"
    )


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    path, values = _split(text, "--grid", "a list, such as fit.learning_rate=1e-3,3e-3")
    choices = tuple(value.strip() for value in values.split(","))
    if not all(choices):
        raise ConfigError(f"--grid {text}: expected a value between commas, got an empty one; leave the comma out")
    if len(set(choices)) < len(choices):
        raise ConfigError(f"--grid {text}: expected each value once; leave out what is repeated")
    return path, choices


def _range(text: str, plan: SweepDesign, grid: Mapping[str, str]) -> Range:
    path, values = _split(text, "--draw", "a range, such as fit.learning_rate=1e-4..1e-2:log")
    bounds, colon, form = values.partition(":")
    low_text, dots, high_text = bounds.partition("..")
    if not dots or (colon and form != "log"):
        raise ConfigError(f"--draw {text}: expected LOW..HIGH or LOW..HIGH:log, got {values!r}")
    low, high = _number(low_text, text), _number(high_text, text)
    kinds = _types(plan.config({**grid, path: low_text.strip()}, None), path)
    whole = int in kinds and float not in kinds
    if not whole and float not in kinds:
        raise ConfigError(f"--draw {text}: --{path} takes no numbers of a range; give its values by --grid")
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--draw {text}: --{path} takes whole numbers; give whole bounds")
    if low > high:
        raise ConfigError(f"--draw {text}: expected the lower bound first, got {low_text} > {high_text}; swap them")
    if form == "log" and low <= 0:
        raise ConfigError(f"--draw {text}: a logarithmic range begins above 0, got {low_text}; leave out :log")
    return Range(path, low, high, form == "log", whole)


def _split(text: str, flag: str, example: str) -> tuple[str, str]:
    path, equals, values = text.partition("=")
    path = path.strip().lstrip("-").replace("-", "_")
    if not equals or not path or not values.strip():
        raise ConfigError(f"{flag} {text}: expected an option and {example}")
    return path, values.strip()


def _number(text: str, whole_text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--draw {whole_text}: expected numbers, got {text.strip()!r}")
    return value


def _types(config: RunConfig, path: str) -> tuple[Any, ...]:
    """The types that the option at this path accepts."""
    group, *names = path.split(".")
    part = getattr(config, group)
    kinds: tuple[Any, ...] = (type(part.options if isinstance(part, Component) else part),)
    for name in names or option_names(kinds[0])[:1]:
        owner = next(kind for kind in kinds if is_dataclass(kind) and name in option_names(kind))  # type: ignore[arg-type]
        hint = get_type_hints(owner)[name]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return kinds


def metric_of(plan: SweepDesign, configs: Iterable[RunConfig]) -> str:
    """The metric by which trials are compared. Raises ConfigError if a trial does not record the metric, or if the user must choose a metric."""
    metric = plan.options.metric
    for config in configs:
        how, known = config.evaluation, metrics_of(config)
        if plan.options.metric is None and how.estimate is not None and not how.keeps_best:
            raise ConfigError(
                f"metric: expected a choice where scores are estimates ({how.estimate}), got none; pass --metric {(known or ('',))[0]}"
            )
        metric = metric or next(iter(known), None)
        if metric is None:
            raise ConfigError(
                f"metric: the task {config.task.name} does not say what selects an epoch; pass --metric valid_…"
            )
        if known and metric not in known:
            raise ConfigError(f"metric: expected one of {', '.join(known)}, got {metric!r}; set --metric")
    assert metric is not None
    return metric


def metrics_of(config: RunConfig) -> tuple[str, ...]:
    """Names of the validation metrics that an epoch of this run records. The first metric selects the best epoch. Empty for a user's own task."""
    chosen = getattr(config.task.options, "metric", None)
    others = _BINARY_METRICS.get(str(chosen)) if config.task.name == "binary" else _METRICS.get(config.task.name)
    if others is None or chosen is None:
        return ()
    prefix = "valid_" if config.evaluation.estimate is None else "valid_estimate_"
    names = (chosen, *others, "loss")
    return tuple(dict.fromkeys([f"{prefix}{name}" for name in names] + ["train_loss"]))


def lower_is_better(metric: str) -> bool:
    return metric.rpartition("_")[2] in _LOWER_IS_BETTER


def at_once(asked: int | None, trials: Iterable[WorkerOptions], resources: Resources) -> int:
    """Number of trials that run at the same time. Each trial has the number of workers that it would have if it ran alone on this machine.

    Raises ConfigError if no trial fits, or if fewer trials fit than the options ask for.
    """
    most, limit = resources.cpus, ""
    for trial in trials:
        try:
            resolved, _ = resolve_workers(trial, resources)
        except ConfigError as error:
            raise ConfigError(f"a trial's workers: {error}; --workers sets them, --cpus says what there is") from None
        on_gpu = resolved.device == "gpu"
        fit = max(1, min(resources.cpus, resources.gpus if on_gpu else resources.cpus) // resolved.most)
        if fit <= most:
            have = f"{resources.gpus} GPUs" if on_gpu else f"{resources.cpus} CPUs"
            most, limit = fit, f"{have}, {resolved.most} workers a trial"
    if asked is not None and asked > most:
        raise ConfigError(f"at_once: expected at most {most} ({limit}), got {asked}; lower --at_once")
    return asked or most


def say(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{path}={value:.6g}" if isinstance(value, float) else f"{path}={value}" for path, value in values.items()
    )
