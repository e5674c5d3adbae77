"""The configuration of a run: one frozen value, the same on the command line, in a recipe (YAML), in Python, and in a run's directory.

    RunConfig = data, model, sampler, task, evaluation, fit, loader, servers, workers, ray, run

Each part is the options class of a component, with the defaults of that class. recipes/defaults has a recipe for each model; a command without options runs
this recipe. The values of a resumed run override this recipe, a named recipe overrides the resumed run, and flags override the named recipe. An option is open
if none of the three sets it and jobs/config/defaults.py has a rule for it. `graphmill.jobs.resolve.resolve` then chooses the option's value for the graph.
"""

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache, reduce
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args

from graphmill.cluster.options import (
    EmbeddingOptions,
    ServerOptions,
    SessionOptions,
    TrainOptions,
    WorkerOptions,
    metric_name,
)
from graphmill.core.errors import ConfigError, FormatError, quoted
from graphmill.core.option_checks import Amount, Count, Size, check_fields, check_options
from graphmill.core.summaries import changed_options
from graphmill.jobs.config.defaults import rule_paths
from graphmill.jobs.config.link_options import LinksOptions
from graphmill.jobs.config.reader import (
    HEAD,
    Tree,
    UnknownOption,
    UsageError,
    Words,
    build,
    convert,
    flag_of,
    leaves,
    merge,
    options_of,
    take,
    to_tree,
    unknown,
)
from graphmill.jobs.config.registry import (
    GIVEN_HERE,
    KINDS,
    Component,
    find_kind,
    given_of,
    load,
    options_class,
    saved_by,
)
from graphmill.jobs.config.short_help import Option
from graphmill.models.relational.options import RelationalConfig
from graphmill.samplers.methods.registry import OBJECTS
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
FORMAT = 2  # version of config.json
AUTO = "auto"
_COMPONENTS = ("model", "sampler", "task")
# Options whose value may be an import path.
_OWN_CODE = ("fit.optimizer", "fit.schedule", "fit.callbacks", "task.metric", "task.loss")
_NO_STRANGERS = ("torch.optim:", "torch.optim.lr_scheduler:", "torch.nn:", "torch.nn.functional:")


@dataclass(frozen=True)
class NodeDataOptions:
    """The graph."""

    path: str | None = None
    """A prepared graph's path or fsspec URL, or an OGB node set such as ogbn-products. none: the embedded synthetic graph."""
    snapshot: int | None = None
    """Snapshot of the graph; none: the newest. A resumed run keeps its snapshot."""
    nodes: int = 20_000
    """Size of the embedded synthetic graph."""
    graph_seed: int = 0
    """Seed of the embedded synthetic graph and of the partitioner. --fit.seed is the seed of the training."""
    partitions: int = 2
    """Number of partitions of a graph that the run prepares."""
    partitioner: Literal["random", "range", "ldg", "metis"] = "ldg"
    """Partitioner of a graph that the run prepares."""
    folder: str = "data"
    """Folder of prepared graphs and of OGB's raw files."""
    directed: bool = False
    """Keep the direction of an OGB set's edges (ogbn-arxiv). Without this option, the reverse of each edge is added, as in the literature."""
    split_set: Size = 0
    """Index of the train/valid/test split to use."""
    edge_features: bool = False
    """Read the stored features of edges: every batch holds them, and the model uses them."""
    edge_weight: Literal["auto", "yes", "no"] = "auto"
    """Use edge weights in the model: in sums over neighbors and in walks, an edge of weight w counts as w parallel edges. auto: yes if the graph has weights
    and --sampler.scheme is not weight."""
    standardise: Literal["auto", "yes", "no"] = "auto"
    """Standardise columns of node features by mean and deviation of the training rows. With --data.edge_features, also columns of edge features, by mean and
    deviation of all edges. The model and the features-only baseline read the standardised columns. yes: all columns. auto: only columns with a scale far from
    1. A column has such a scale in two cases: the root mean square of its nonzero numbers is above 10, or below a hundredth of the mean over all columns; or
    its mean is more than 100 deviations from 0."""
    category_width: Count = 16
    """Width of the trained vectors of categories, for columns that ingestion embedded (--edge-list.embedding-columns). The vectors of a node are added up,
    and the sum is appended to the features of the node."""
    links: LinkSplitOptions = field(default_factory=LinkSplitOptions)
    """Held-out links of a graph that the run prepares."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.path is None and self.split_set > 0:
            raise ConfigError(
                f"split_set: the embedded graph has one split, number 0, got {self.split_set}; leave it out, or set path"
            )


@dataclass(frozen=True)
class GraphSetOptions:
    """The set of graphs."""

    path: str | None = None
    """A prepared set's path or fsspec URL, a CSV file of SMILES and target, or none: the embedded molecules."""
    snapshot: int | None = None
    """Snapshot of the set; none: the newest. A resumed run keeps its snapshot."""
    molecules: int = 4_000
    """Size of the embedded set."""
    edge_features: bool = True
    """Read the features of edges. no: leave them out, for a model that has no place for them."""
    standardise: Literal["auto", "yes", "no"] = "auto"
    """Standardise columns of real numbers, of nodes and of edges, by mean and deviation of the training graphs. The model and the baseline read the
    standardised columns. yes: all columns. auto: columns with a scale far from 1, by the same rule as for the nodes of one graph."""
    folder: str = "data"
    """Folder of the sets that runs prepare."""


@dataclass(frozen=True)
class NodeEvaluationOptions:
    """Evaluation of the splits."""

    how: Literal["full", "sampled"] = "full"
    """How splits are scored. full: the whole graph is one batch. sampled: the sampler draws batches around the roots of a split."""
    chunks: Count = 1
    """full: number of chunks, if the whole graph does not fit as one batch. Edges between chunks are left out, and scores are then estimates."""
    select_by: Literal["exact", "estimate"] = "exact"
    """Score that selects the weights to keep. exact: keep the weights with the best validation score or, if scores are estimates, the weights of the last
    epoch. estimate: keep the weights with the best estimated validation score."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.select_by == "estimate" and self.estimate is None:
            raise ConfigError(
                "select_by: 'estimate' expects scores that are estimates (how full, chunks above 1), these are exact; set select_by"
            )

    @property
    def estimate(self) -> str | None:
        """The reason why scores are estimates. None: scores are exact for the graph, or for the subgraphs that the sampler draws."""
        if self.how != "full" or self.chunks <= 1:
            return None
        return f"each split is scored in {self.chunks} chunks, without the edges between them (--evaluation.chunks)"

    @property
    def keeps_best(self) -> bool:
        """Whether the run keeps the weights of the best validation, not of the last epoch."""
        return self.estimate is None or self.select_by == "estimate"

    @property
    def kept(self) -> str:
        """Text for the output: the epoch whose weights a run with estimated scores keeps."""
        if self.keeps_best:
            return "the epoch with the best estimate is kept (--evaluation.select_by estimate)"
        return "the last epoch is kept (--evaluation.select_by estimate keeps the one with the best estimate)"


@dataclass(frozen=True)
class GraphEvaluationOptions:
    """Evaluation of the splits."""

    max_graphs: Count = 256
    """Graphs per batch and worker."""
    estimate = None
    keeps_best = True

    def batches(self, options: Any) -> Any:
        """The sampler options for a split, made from the options of the training sampler."""
        return replace(options, max_graphs=self.max_graphs, pair_negatives="stored")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class BaselineOptions:
    """Baseline models that are trained in addition to the run, by their fixed recipes (recipes/baselines): networks for the nodes of one graph, trees also for many graphs."""

    models: tuple[Literal["gcn", "gat", "sage", "trees"], ...] = ()
    """The baseline models. The summary and the report show their scores next to the run's scores. trees: gradient-boosted trees (LightGBM) that read a node's row and its neighbors' rows."""
    configurations: int = 3
    """Number of configurations to try. The recipe of a network lists 24, trees have 4; they are tried in order. The configuration with the best validation score counts."""

    @property
    def networks(self) -> tuple[str, ...]:
        """The models that are trained as runs of their own."""
        return tuple(name for name in self.models if name != "trees")

    def __post_init__(self) -> None:
        named, tries = self.models, self.configurations
        check_options(
            self,
            {
                "models": (len(set(named)) == len(named), "each model once"),
                "configurations": (1 <= tries <= 24, "1 to 24, the whole search"),
            },
        )


@dataclass(frozen=True)
class RunOptions:
    """The run's directory, and what the run does at its end."""

    dir: str | None = None
    """Directory of the run: a path that all nodes can write, or a URL such as s3://bucket/runs/mine. The default is runs/<job>-<time>."""
    resume: Literal["auto"] | str | None = None
    """Continue the run in this directory; options that are not set keep the values of that run. auto: continue the run in --run.dir, or begin it there if
    --run.dir holds no run. The same command can then be started again and again."""
    defaults: Literal["automatic", "recipe"] = "automatic"
    """Values of options that the user does not set. automatic: chosen for the graph, each with a reason. recipe: the values of the model's default recipe.
    A recipe file whose `base` is one of our recipes uses recipe."""
    parallel: Literal["data", "graph"] = "data"
    """Division of the work among workers. data: every worker has its own batches. graph: the whole graph is the only batch of an epoch, and its nodes are
    divided among the workers (geco, sage, gcn, gat, rsage)."""
    require_baselines: bool = False
    """Exit with status 1 if the final score does not beat every baseline; without this option the run only prints a warning. Requires exact scores, not
    estimates."""
    track: tuple[Literal["mlflow", "wandb"], ...] = ()
    """Also send configuration, epochs and scores to these trackers. Each tracker is an extra: pip install -e '.[mlflow]'."""
    track_project: str = "graphmill"
    """Experiment in MLflow, or project in W&B."""
    price_per_hour: Amount = 0.0
    """Price of one machine for an hour, in any currency. --plan then prints the cost of the run, and the summary what the run has cost."""
    promise: tuple[float, ...] = ()
    """What --plan expects of the run, in the form in which --plan prints it: MiB of a worker's memory, processor seconds of a step with its batch, seconds of the
    whole run. The summary then prints it beside what the run has taken."""

    def __post_init__(self) -> None:
        check_fields(self)
        fine = len(self.promise) in (0, 3) and all(0 < number < math.inf for number in self.promise)
        check_options(self, {"promise": (fine, "the three numbers that --plan prints, each above 0, or none")})


@dataclass(frozen=True)
class RunConfig:
    """All options of a run."""

    kind: str
    """nodes, graphs, or the import path of a user's own kind."""
    data: Any
    """NodeDataOptions or GraphSetOptions, depending on `kind`. `evaluation` also depends on `kind`."""
    model: Component
    sampler: Component
    task: Component
    evaluation: Any
    relational: RelationalConfig = field(default_factory=RelationalConfig)
    fit: TrainOptions = field(default_factory=TrainOptions)
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    servers: ServerOptions = field(default_factory=ServerOptions)
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)
    embeddings: EmbeddingOptions = field(default_factory=EmbeddingOptions)
    baseline: BaselineOptions = field(default_factory=BaselineOptions)
    run: RunOptions = field(default_factory=RunOptions)
    open: tuple[str, ...] = ()
    """Paths of the options that the run chooses for its graph. Before the choice these options have the defaults of their classes."""

    def __repr__(self) -> str:
        """The options that differ from the components' defaults, by group."""
        words: list[str] = [self.kind]
        for group in _order(self.kind):
            part = getattr(self, group)
            name, options = (f" {part.name}", part.options) if isinstance(part, Component) else ("", part)
            changed = changed_options(options)
            words += [f"{group}{name}({changed})"] if name or changed else []
        words += [f"open({', '.join(self.open)})"] if self.open else []
        return fill(f"RunConfig({', '.join(words)})", 120, subsequent_indent="  ")

    @property
    def metric(self) -> str:
        """The metric of the task. Empty: a user's own task that names no metric."""
        return metric_name(str(getattr(self.task.options, "metric", "")))

    @property
    def links(self) -> LinksOptions | None:
        """The options of a link task. None: the run predicts no links."""
        options = self.task.options
        return options if isinstance(options, LinksOptions) else None

    @property
    def node_type(self) -> str | None:
        """The predicted node type of a typed graph. None: the only type with labels."""
        return getattr(self.task.options, "node_type", None)

    @property
    def target(self) -> str | None:
        """The target that a task over many graphs names. None: all targets."""
        return getattr(self.task.options, "target", None)

    def tree(self) -> Tree:
        """Plain values. `read_config` makes an equal configuration from them."""
        parts = {name: to_tree(getattr(self, name)) for name in group_classes(self.kind)}
        tree = {"kind": self.kind} | {
            name: parts[name] if name in parts else self._component(name) for name in _order(self.kind)
        }
        for path in self.open:
            *groups, leaf = path.split(".")
            part: Any = tree
            for name in groups:
                part = part[name]
            part[leaf] = AUTO
        return tree

    def options(self) -> dict[str, Any]:
        """Every option by its path, and every component's name by its group."""
        values: dict[str, Any] = {}
        for group in _order(self.kind):
            part = getattr(self, group)
            if isinstance(part, Component):
                values[group] = part.name
                part = part.options
            for path in leaves(type(part)):
                value = part
                for name in path.split("."):
                    value = getattr(value, name)
                values[f"{group}.{path}"] = value
        return values

    def diff(self, other: "RunConfig") -> dict[str, tuple[Any, Any]]:
        """(value in this configuration, value in `other`) for each option that differs, by path. "auto": the run chooses the value. None: the configuration
        has no such option."""
        here, there = (
            config.options() | {"kind": config.kind} | dict.fromkeys(config.open, AUTO) for config in (self, other)
        )
        pairs = {path: (here.get(path), there.get(path)) for path in here | there}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1] or (path in here) != (path in there)}

    def _component(self, group: str) -> Tree:
        component = getattr(self, group)
        return {"name": component.name, **to_tree(component.options)}

    def changed(self, *flags: tuple[str, Any]) -> "RunConfig":
        """A copy of the configuration with other values, by path: `changed(("fit.epochs", 3))`."""
        tree = self.tree()
        for path, value in flags:
            tree = lay_over(tree, nested(path, value))
        return read_config(tree)


def group_classes(kind: str) -> dict[str, type]:
    """The groups of options that are not components, with their classes."""
    row = find_kind(kind)
    parts: dict[str, Any] = {
        part.name: part.default_factory for part in fields(RunConfig) if part.name not in row.without
    }
    return {"data": load(row.data), "evaluation": load(row.evaluation)} | {
        name: made for name, made in parts.items() if isinstance(made, type)
    }


@cache
def training_flags() -> Mapping[str, Any]:
    """All training flags, each with its type: the flags of the groups and of all our components."""
    flags: dict[str, Any] = {"kind": str, "allow_import": bool}
    for kind, row in KINDS.items():
        for group, options in group_classes(kind).items():
            own = leaves(options, f"{group}.")
            flags = {group: next(iter(own.values()))} | own | flags
        for group in _COMPONENTS:
            names = (*row.table(group), *get_args(flags.get(group)))
            flags[group] = Literal[tuple(dict.fromkeys(names))]
            for name in row.table(group):
                flags |= leaves(options_class(group, kind, name), f"{group}.")
    return flags


def typed_flags() -> Iterator[tuple[str, Any]]:
    """Each training flag with its type, once for each class of options that has it."""
    for kind, row in KINDS.items():
        for group, options in group_classes(kind).items():
            own = leaves(options, f"{group}.")
            yield from {group: next(iter(own.values()))}.items()
            yield from own.items()
        for group in _COMPONENTS:
            yield group, Literal[tuple(row.table(group))]
            for name in row.table(group):
                yield from leaves(options_class(group, kind, name), f"{group}.").items()


def _order(kind: str) -> tuple[str, ...]:
    return ("data", *_COMPONENTS, *(name for name in group_classes(kind) if name != "data"))


def read_config(tree: Mapping[str, Any]) -> RunConfig:
    """The configuration from a complete tree, which names every component.

    Raises UsageError for unknown names and values of a wrong type. Raises ConfigError if a component refuses a value or cannot be imported.
    """
    try:
        return _read(dict(tree))
    except UnknownOption as error:
        group, kind = error.option.partition(".")[0], _kind(tree.get("kind", "nodes"))
        names = {each: _split(tree.get(each, {}))[0] or "" for each in _COMPONENTS}
        said_of = f"--{group} {names[group]}" if group in names else ""
        raise unknown(error.option, _all_flags(kind, names), said_of) from None


def _read(tree: Tree) -> RunConfig:
    kind = _kind(tree.pop("kind", "nodes"))
    classes = group_classes(kind)
    parts: dict[str, Any] = {}
    rules = rule_paths(kind, _split(tree.get("model", {}))[0] or "")
    is_automatic = _is_automatic(tree)
    left_open: set[str] = set()
    for group in _COMPONENTS:
        name, options = _split(tree.pop(group, {}))
        if name is None:
            raise UsageError(f"missing --{group}: one of {', '.join(find_kind(kind).table(group))}")
        options_type = options_class(group, kind, name)
        given = given_of(options_type, find_kind(kind).inputs) if group == "model" else {}
        options, not_said = _take_open(rules, group, options_type, options, is_automatic=is_automatic)
        left_open |= not_said
        parts[group] = Component(name, _build_open(options_type, options, f"{group}.", given, not_said))
    for group, options_type in classes.items():
        value = tree.pop(group, {})
        options = dict(value) if isinstance(value, Mapping) else {HEAD: value}
        options, not_said = _take_open(rules, group, options_type, options, is_automatic=is_automatic)
        left_open |= not_said
        parts[group] = build(options_type, options, f"{group}.")
    for name, value in tree.items():
        raise unknown(flag_of(str(name), value), {})
    return RunConfig(kind=kind, **parts, open=tuple(path for path in rules if path in left_open))


def _is_automatic(tree: Mapping[str, Any]) -> bool:
    """Whether the run chooses unset options for the graph. False for a run on links, which has no rules."""
    if _split(tree.get("task", {}))[0] == "links":
        return False
    said = tree.get("run")
    options = (
        build(RunOptions, {"defaults": said["defaults"]}, "run.")
        if isinstance(said, Mapping) and "defaults" in said
        else RunOptions()
    )
    return options.defaults == "automatic"


def _take_open(
    rules: Iterable[str], group: str, options_type: type, tree: Tree, *, is_automatic: bool
) -> tuple[Tree, set[str]]:
    """(the group's tree without its open options, the open options). An option is open if it has a rule and the user did not set it, or set it to auto."""
    left_open, known = set(), leaves(options_type)
    for path in rules:
        inner = path.removeprefix(f"{group}.")
        if inner == path or inner not in known:
            continue
        value, rest = take(options_type, tree, inner)
        if value in (AUTO, Words([AUTO])) or (value is MISSING and is_automatic):
            tree = rest
            left_open.add(path)
    return tree, left_open


def _build_open(options_type: type, said: Tree, path: str, given: Mapping[str, Any], left_open: Collection[str]) -> Any:
    """The options of a component. If the set options contradict the defaults of the open options, the open options get temporary values until they are
    chosen."""
    try:
        return build(options_type, said, path, given)
    except UsageError:
        raise
    except ConfigError as error:
        for others in _until_chosen(options_type, said):
            try:
                trial = said
                for name, value in others.items():
                    if f"{path}{name}" in left_open:
                        trial = merge(trial, nested(name, value))
                return build(options_type, trial, path, given)
            except ConfigError:
                continue
        raise error from None


def _until_chosen(options_type: type, said: Tree) -> list[Tree]:
    """Temporary values by path. The width is a multiple of the number of heads in the tree; the other values work with any local block."""
    heads, known = 64, leaves(options_type)
    for name in ("num_heads", "local.num_heads"):
        value = take(options_type, said, name)[0] if name in known else MISSING
        heads = heads if value is MISSING else math.lcm(heads, max(1, convert(value, int, name)))
    return [{"width": heads}, {"local.join": "gate", "layer.local": "none", "width": heads}]


def nested(path: str, value: Any) -> Tree:
    """A tree that sets only the option with this path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def _kind(value: Any) -> str:
    word = value[0] if isinstance(value, Words) and len(value) == 1 else value
    if not isinstance(word, str) or (word not in KINDS and ":" not in word):
        raise UsageError(f"kind: expected {' or '.join(KINDS)}, or package.module:NAME of your own, got {word!r}")
    return word


def _split(value: Any) -> tuple[str | None, Tree]:
    """(name, options) from a component's part of a tree."""
    tree = dict(value) if isinstance(value, Mapping) else {HEAD: value}
    name = [None, *(tree.pop(key) for key in [*tree] if key in (HEAD, "name"))][-1]  # the last word counts
    if isinstance(name, Words):
        if len(name) != 1:
            raise UsageError(f"expected one name, got {quoted(' '.join(name)) if name else 'nothing'}")
        name = name[0]
    if name is not None and not isinstance(name, str):
        raise UsageError(f"expected a name, got {quoted(name)}")
    return name or None, tree


def _all_flags(kind: str, names: Mapping[str, str]) -> dict[str, str]:
    """All training flags, each with the name of its owner. The name is empty if a run of this kind with these components has the flag."""
    here: list[str] = []
    owners: dict[str, list[str]] = {}
    elsewhere: dict[str, str] = {}
    for each, row in ({kind: find_kind(kind)} | KINDS).items():
        flags = [f"{group}.{leaf}" for group, options in group_classes(each).items() for leaf in leaves(options)]
        flags += [*group_classes(each), *_COMPONENTS]
        for group in _COMPONENTS:
            own = names.get(group, "") if each == kind else ""
            for name in dict.fromkeys([*row.table(group), *([own] if ":" in own else [])]):
                its = [f"{group}.{leaf}" for leaf in leaves(options_class(group, each, name))]
                if each == kind and name != own:
                    for flag in its:
                        owners.setdefault(flag, []).append(name)
                else:
                    flags += its
        if each == kind:
            here = flags
        else:
            elsewhere = dict.fromkeys(flags, row.about)
    others = {flag: f"--{flag.partition('.')[0]} {', '.join(names)}" for flag, names in owners.items()}
    return elsewhere | others | dict.fromkeys(here, "")


def lay_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`under`, overridden by the values of `over`. If `over` names another model, sampler or task, the former component's options are dropped."""
    under = dict(under)
    for group in _COMPONENTS:
        name = _split(over[group])[0] if group in over else None
        if name is not None and group in under:
            if _split(under[group])[0] != name:
                under.pop(group)
            over = {**over, group: {"name": name, **_split(over[group])[1]}}
    return merge(under, over)


_STEPS = {"epochs": "steps", "warmup_epochs": "warmup_steps"}  # setting one option of a pair drops the other


def _say_over(recipe: Mapping[str, Any], said: Mapping[str, Any]) -> Tree:
    """A recipe, overridden by the values of another layer. If the layer sets epochs, the recipe's steps are dropped, also the warm-up's. Raises ConfigError if
    the flags set both epochs and steps."""
    fit = said.get("fit")
    if isinstance(fit, Mapping):
        for epochs, steps in _STEPS.items():
            both = [fit.get(epochs), fit.get(steps)]
            if all(isinstance(value, Words) and value not in (["none"], ["auto"]) for value in both):
                raise ConfigError(
                    f"{steps}: expected --fit.{epochs} or --fit.{steps}, got both; an epoch's steps depend on the sampler: leave one out"
                )
        dropped = [f"fit.{steps}" for epochs, steps in _STEPS.items() if epochs in fit and steps not in fit]
        recipe = without(dropped, recipe)
    return lay_over(recipe, said)


def config_tree(kind: str, *layers: Mapping[str, Any]) -> Tree:
    """The tree of options: the layers name a model, and their values override the default recipe of this model."""
    said: Tree = {}
    for layer in layers:
        said = _say_over(said, layer)
    kind = _kind(said.get("kind", kind))
    row = find_kind(kind)
    first = {group: next(iter(row.table(group)), "") for group in _COMPONENTS}
    name = _split(said.get("model", {}))[0] or first["model"]
    # A user's own model starts from the options of the first model of the table.
    known = name if name in row.models else first["model"]
    tree = dict(_recipe(f"defaults/{kind}-{known}.yaml")) if kind in KINDS else {**first}
    if name not in row.models:
        tree.pop("model", None)
    if _is_automatic(said):
        tree = without(rule_paths(kind, name), lay_over(tree, {"run": {"defaults": "automatic"}}))
    if any(option == "task.loss" for option, _ in own_code(said)):  # a user's own loss does not read these options
        tree = without([f"task.{name}" for name in ("label_smoothing", "class_weights", "weights")], tree)
    return lay_over(tree, {"kind": kind, **said})


def without(paths: Collection[str], tree: Mapping[str, Any], under: str = "") -> Tree:
    """A recipe's tree without the options at these paths."""
    return {
        name: without(paths, value, f"{under}{name}.") if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if f"{under}{name}" not in paths
    }


@cache
def _recipe(name: str) -> Tree:
    return read_recipe(str(RECIPES / name))


def read_recipe(path: str, *, allow_import: bool = False) -> Tree:
    """A recipe's tree, laid over the recipe that its entry `base` names. Raises ConfigError if the file is not a recipe, and the errors of `check_code`."""
    from graphmill.core.files.plain_yaml import read_yaml

    trees: dict[Path, Tree] = {}
    base: Any = path
    while base or not trees:
        if not isinstance(base, str) or (file := _recipe_file(base)) in trees:
            raise ConfigError(f"{path}: base: expected another recipe's path, got {quoted(base)}")
        if os.path.isdir(file):  # False if the name is too long
            raise ConfigError(
                f"{base}: expected a recipe file, got a folder; name a stored graph with --data, store other data first (graphmill ingest)"
            )
        try:
            tree = read_yaml(file)
        except FileNotFoundError:
            ours = sorted(str(name.relative_to(RECIPES)) for name in RECIPES.rglob("*.yaml"))
            like = [name for name in ours if Path(base).stem in name] or get_close_matches(base, ours)
            near = f", such as {' or '.join(like[:3])}" if like else ""
            raise ConfigError(
                f"{base}: expected a recipe file, found none; recipes/ has ours{near}; data is named with --data"
            ) from None
        if not isinstance(tree, dict):
            raise ConfigError(f"{base}: expected names and values, got {type(tree).__name__}")
        check_code(tree, base, allow_import=allow_import)
        trees[file], base = tree, tree.pop("base", None)
    return reduce(_say_over, reversed(trees.values()))


def _recipe_file(path: str) -> Path:
    return Path(path) if os.path.exists(path) else RECIPES / path


def own_code(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(option, import path) of each user-defined component that a tree names."""
    named: list[tuple[str, Any]] = [(group, _split(tree.get(group, {}))[0]) for group in ("kind", *_COMPONENTS)]
    for path in _OWN_CODE:
        group, _, name = path.partition(".")
        value = part.get(name) if isinstance(part := tree.get(group), Mapping) else None
        named += [(path, each) for each in (value if isinstance(value, list | tuple) else [value])]
    return [(path, each) for path, each in named if isinstance(each, str) and ":" in each]


def check_code(
    tree: Tree, where: str, *, allow_import: bool, is_run: bool = False, known: Collection[str] = ()
) -> None:
    """Raises ConfigError if a tree names code that may not be imported. The user must allow the code of a run, and of a recipe that lies outside the working
    folder or belongs to another user. `known`: code that the user has named."""
    for group, name in own_code(tree):
        if allow_import or name in known or name in GIVEN_HERE or name.startswith((f"{OBJECTS}:", *_NO_STRANGERS)):
            continue
        if is_run or not _is_own(_recipe_file(where).resolve()):
            raise ConfigError(
                f"{where}: {group}: names code of its own, {name[:80]}; pass --allow_import to import and run it"
            )


def _is_own(recipe: Path) -> bool:
    """Whether a recipe belongs to this user or root and lies in the working folder. The working folder must not be the root of the file system."""
    here = Path.cwd().resolve()
    return recipe.stat().st_uid in (0, os.geteuid()) and len(here.parts) > 1 and recipe.is_relative_to(here)


def saved_tree(run: str, advice: str, *, allow_import: bool = False, known: Collection[str] = ()) -> Tree:
    """The tree saved with a run. Raises FormatError if there is no tree or its version is another. Raises ConfigError if the tree names user code and
    `allow_import` is not set."""
    return checked_tree(saved_by(run, advice), run, allow_import=allow_import, known=known)


def checked_tree(tree: Tree, run: str, *, allow_import: bool = False, known: Collection[str] = ()) -> Tree:
    """The content of a run's config.json as a tree of this version. `run`: where it comes from, for messages. Raises like `saved_tree`."""
    if tree.get("format") != FORMAT:
        raise FormatError(
            f"{run}: expected a run of this version (config.json of format {FORMAT}), got one of graphmill 0.1; use that version, or train again"
        )
    check_code(tree, run, allow_import=allow_import, is_run=True, known=known)
    tree = _with_micro_batches({name: value for name, value in tree.items() if name != "format"})
    return _without_old_servers(tree, run)


def _with_micro_batches(tree: Tree) -> Tree:
    """The tree with `fit.micro_batches`. A run of version 0.2 stored the number of batches of each worker instead."""
    fit, workers = dict(tree.get("fit", {})), tree.get("resolved", {}).get("workers", {}).get("num_workers")
    each = fit.pop("accumulate", None)
    if each is None or workers is None or "fit" not in tree:
        return tree
    whole = tree.get("run", {}).get("parallel") == "graph"
    return {**tree, "fit": {**fit, "micro_batches": None if whole else each * workers}}


def _without_old_servers(tree: Tree, run: str) -> Tree:
    """Removes two options of the servers from the option tree of a run of version 0.2: the byte limit of cached rows is now an option of the loader, and the
    type of sent features is now the stored type."""
    if "servers" not in tree:
        return tree
    servers = dict(tree["servers"])
    said, cache_bytes = servers.pop("feature_dtype", None), servers.pop("cache_bytes", 0)
    if said == "float16":
        raise FormatError(
            f"{run}: its features travelled as float16 (--servers.feature_dtype), which is now how a graph is stored; ingest the graph "
            "with --feature-dtype float16 and train again"
        )
    kept = {"loader": {**tree.get("loader", {}), "cache_bytes": cache_bytes}} if cache_bytes else {}
    return {**tree, "servers": servers, **kept}


def read_saved(run: str, advice: str, *, allow_import: bool = False, known: Collection[str] = ()) -> RunConfig:
    """The configuration of the run in this directory. Raises FormatError if the directory holds no run, and the ConfigErrors of `saved_tree`."""
    try:
        saved = saved_tree(run, advice, allow_import=allow_import, known=known)
        tree = {name: value for name, value in saved.items() if name != "resolved"}
        if _split(tree.get("task", {}))[0] == "links":  # version 0.2 stored these options and ignored them
            tree = without(["fit.steps"], tree)
        # A run chooses its options once. An option that only a newer version would choose keeps the value of the recipe.
        config = read_config(config_tree("nodes", tree, {"run": {"defaults": "recipe"}}))
        defaults = tree.get("run", {}).get("defaults", "recipe")
        return replace(config, run=replace(config.run, defaults=defaults))
    except UsageError as error:
        raise FormatError(f"{run}/config.json: {error}; repair the file or start another run") from None


def config_options(config: RunConfig) -> list[Option]:
    """Help of every option of this run, under the heading of its group. The defaults are the run's values."""
    options: list[Option] = []
    for group in _order(config.kind):
        value = getattr(config, group)
        if isinstance(value, Component):
            names = tuple(find_kind(config.kind).table(group))
            text = f"{', '.join(names)}, or package.module:Name"
            options.append(Option(group, "NAME", text, value.name, group, names))
            value = value.options
        else:
            options.append(Option(group, None, (type(value).__doc__ or "").strip(), group=group))
        options += options_of(type(value), f"{group}.", values=value, chosen=frozenset(config.open))
    return options
