"""`resolve(config, facts)` decides a run in one place, before anything is started.

    RunConfig ──look──▶ Facts ──resolve──▶ ResolvedRun ──▶ training | --plan | predict | sweep | benchmarks

`look` reads files, the machine and the cluster; `resolve` is a pure function. Its result has two parts. The identity determines the numbers; a resume keeps the
identity. The placement determines the duration; a resume resolves the placement again. Each automatic choice comes with a reason.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Literal

from graphmill.cluster.options import TrainOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.ray.placement import resolve as resolve_workers
from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.config.config import FORMAT, NodeEvaluationOptions, RunConfig, config_tree, own_code, read_config
from graphmill.jobs.config.defaults import GraphFacts, choose, has_recipe
from graphmill.jobs.config.reader import Tree, build, shown, to_tree
from graphmill.jobs.config.registry import (
    Inputs,
    Kind,
    find_kind,
    in_this_process,
    model_config,
    origin,
    sharding,
    stored_encoding,
)
from graphmill.jobs.config.standard_columns import standard_choice
from graphmill.jobs.config.stored_columns import EdgeWeights, choose_weights
from graphmill.jobs.resolve.checks import OF_ONE_GRAPH, OF_OTHERS
from graphmill.models.parallel.shards import NUM_BLOCKS
from graphmill.samplers.methods.registry import given
from graphmill.samplers.vocabulary.messages import EdgeColumn
from graphmill.samplers.vocabulary.options import FullGraphOptions, full_evaluation
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.source import SPLIT_TRAIN, SPLITS

FEWEST_STEPS = 200  # a run with fewer steps prints a warning


@dataclass(frozen=True)
class Facts:
    """The facts about data, machine and cluster that `resolve` needs."""

    inputs: Inputs
    data_identity: Mapping[str, Any]
    """Properties of the data that must not change when the run is resumed."""
    resources: Resources | None
    """Resources of this machine, or of the joined cluster; None: a cluster that is not joined yet."""
    data_bytes: int | None = None
    """Size of the data's files; None: they do not exist yet."""
    graph: GraphFacts | None = None
    """Facts by which open options are chosen. None: the facts are not known yet, and the options stay open."""
    weights: EdgeWeights | None = None
    """Weights of the graph's edges; None: edges have no weights."""


@dataclass(frozen=True)
class ResolvedRun:
    """A run in which everything is decided. Equal values describe equal runs."""

    config: RunConfig
    inputs: Inputs
    identity: Mapping[str, Any]
    workers: WorkerOptions
    reasons: tuple[str, ...] = ()
    """Reasons for the placement, one sentence each."""
    chosen: tuple[str, ...] = ()
    """Options that the user left open, each with the chosen value and the reason."""

    @property
    def choices(self) -> list[str]:
        """The chosen options, one line for each reason."""
        flags: dict[str, list[str]] = {}
        for choice in self.chosen:
            flag, _, reason = choice.partition(": ")
            flags.setdefault(reason, []).append(flag)
        return [f"{' '.join(same)}: {reason}" for reason, same in flags.items()]

    @property
    def is_full_graph(self) -> bool:
        """Whether the whole graph is the only batch, divided among the workers."""
        return self.config.run.parallel == "graph"

    @property
    def micro_batches(self) -> int:
        """Number of batches in a step. On a full graph each worker computes its shard."""
        return self.config.fit.micro_batches or self.workers.most

    @property
    def encoding(self) -> EncodingOptions | None:
        """The stored positional encoding of nodes that every batch holds."""
        return stored_encoding(self.config.model.options) if self.kind.is_one_graph else None

    @property
    def kind(self) -> Kind:
        """The kind of the run: its data, models, samplers and tasks."""
        return find_kind(self.config.kind)

    @cached_property
    def model_config(self) -> Any:
        """The model's options with the data's widths."""
        return None if self.config.model.is_foreign else model_config(self.config.model, self.inputs)

    @property
    def architecture(self) -> dict[str, Any]:
        """The model's options that must equal the options stored with a checkpoint. Options that only change the method of computation, and the optimizer's
        rates, are left out."""
        component = self.config.model
        values = asdict(self._model_options)
        for name in ("recompute", "filter_learning_rate"):
            values.pop(name, None)
        for name in ("edge_dim", "edge_dims"):
            if not values.get(name, 1):  # left out if 0: runs of older versions have no such entry and must still match
                del values[name]
        links = self.config.links
        decoder = {} if links is None else {"decoder": asdict(links.decoder)}
        layers = {"relational": to_tree(self.config.relational)} if self.has_relational_layers else {}
        return {"model": component.name, **values, **decoder, **layers}

    @property
    def is_typed(self) -> bool:
        """Whether the graph has several node types or relations."""
        return bool(self.inputs.node_dims)

    @property
    def has_relational_layers(self) -> bool:
        """Whether the layers of --relational come before the model."""
        return self.is_typed and not self.config.model.takes_types

    def build_model(self) -> Any:
        """The module that the trainer trains."""
        from graphmill.jobs.tasks.model_inputs import read_columns

        config, links = self.config, self.config.links
        from graphmill.jobs.tasks.build_model import build_model  # also imports torch

        model = build_model(config.model, config.kind, self.inputs, config.relational)
        read_columns(model, self.inputs)
        if links is None:
            return model
        from graphmill.jobs.tasks.link_model import LinkModel

        return LinkModel(model, links.decoder, self.inputs.num_relations)

    @property
    def fit(self) -> TrainOptions:
        """The options of `--fit`, with the precision resolved for the workers' device."""
        options = self.config.fit
        if options.precision != "auto":
            return options
        return replace(options, precision="bfloat16" if self.workers.device == "gpu" else "float32")

    @property
    def training(self) -> Any:
        """The sampler options of training batches."""
        if self.is_full_graph:
            return FullGraphOptions(
                self.config.data.split_set,
                (SPLIT_TRAIN,),
                self._encodings,
                NUM_BLOCKS,
                alone="shard",
                edge_columns=self.edge_columns,
                root_type=self.config.node_type,
            )
        sampler, links = self._sampler("train", shuffle=True), self.config.links
        return sampler if links is None else links.training(sampler, self.config.fit.seed)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The sampler options of each split."""
        evaluation = self.config.evaluation
        if not self.kind.is_one_graph:
            return {split: evaluation.batches(self._sampler(split, shuffle=False)) for split in SPLITS}
        if (links := self.config.links) is not None:
            is_full = evaluation.how == "full"
            around = self._on_whole_graph(1)["train"] if is_full else self._sampler("train", shuffle=False)
            return dict(links.scored(around))
        if self.is_full_graph:
            return self._on_whole_graph(1, NUM_BLOCKS, "shard")
        if evaluation.how == "sampled":
            return {split: self._sampler(split, shuffle=False) for split in SPLITS}
        blocks = NUM_BLOCKS if sharding(self._model_options) == "rows" and not self.inputs.node_dims else None
        return self._on_whole_graph(evaluation.chunks, blocks)

    def _on_whole_graph(
        self, chunks: int, blocks: int | None = None, alone: Literal["batch", "shard"] = "batch"
    ) -> dict[str, Any]:
        split_set = self.config.data.split_set
        options = full_evaluation(split_set, chunks, self._encodings, blocks, alone, self.edge_columns)
        return {split: given(each, root_type=self.config.node_type) for split, each in options.items()}

    @property
    def edge_columns(self) -> tuple[EdgeColumn, ...]:
        """The edge columns that every batch holds for the model."""
        if not self.kind.is_one_graph:
            return ()
        held: dict[EdgeColumn, bool] = {"weight": self.inputs.edge_weight, "feature": not self.inputs.edge.empty}
        return tuple(name for name, is_read in held.items() if is_read)

    @property
    def _model_options(self) -> Any:
        return self.config.model.options if self.model_config is None else self.model_config

    @property
    def _encodings(self) -> tuple[str, ...]:
        return () if self.encoding is None else (self.encoding.name,)

    def _sampler(self, split: str, *, shuffle: bool) -> Any:
        config = self.config
        columns = tuple(getattr(config.sampler.options, "edge_columns", ()))
        return given(
            config.sampler.options,
            seed=config.fit.seed,
            split_set=getattr(config.data, "split_set", 0),
            root_type=config.node_type,
            root_split=SPLITS[split],
            shuffle=shuffle,
            encodings=self._encodings,
            by_weight=self.inputs.edge_weight,
            edge_columns=columns + tuple(name for name in self.edge_columns if name not in columns),
        )

    def print_choices(self) -> None:
        for choice in self.choices:
            print(f"chosen {choice}", flush=True)

    def tree(self) -> Tree:
        """The content of config.json; `read_resolved` makes an equal value of it."""
        return {
            "format": FORMAT,
            **self.config.tree(),
            "resolved": {
                "inputs": asdict(self.inputs),
                "identity": dict(self.identity),
                "workers": asdict(self.workers),
                "reasons": list(self.reasons),
                "chosen": list(self.chosen),
            },
        }


def read_resolved(tree: Mapping[str, Any]) -> ResolvedRun:
    """The resolved run that a run directory stores. Raises UsageError or ConfigError if config.json holds no run."""
    tree = {name: value for name, value in tree.items() if name != "format"}
    resolved = tree.pop("resolved")
    return ResolvedRun(
        config=read_config(tree),
        inputs=build(Inputs, resolved["inputs"], "inputs."),
        identity=resolved["identity"],
        workers=build(WorkerOptions, resolved["workers"], "workers."),
        reasons=tuple(resolved["reasons"]),
        chosen=tuple(resolved.get("chosen", ())),
    )


def resolve(config: RunConfig, facts: Facts) -> ResolvedRun:
    """The resolved run for this configuration and these facts; a pure function. Raises ConfigError if configuration and facts do not fit together."""
    workers, reasons = config.workers, []
    if facts.resources is not None:
        workers, note = resolve_workers(asked_workers(config), facts.resources, facts.data_bytes)
        reasons += [] if note is None else [note]
    if config.run.parallel == "data":
        workers, note = _no_more_than(workers, config)
        reasons += [] if note is None else [note]
        if facts.resources is not None:
            config = replace(config, fit=replace(config.fit, micro_batches=config.fit.micro_batches or workers.most))
    chosen: list[str] = []
    if facts.graph is not None:
        config, chosen = _choose(config, facts.graph, config.fit.micro_batches or workers.most)
    is_one_graph = find_kind(config.kind).is_one_graph
    for check in OF_ONE_GRAPH if is_one_graph else OF_OTHERS:
        problem = check(config)
        if problem is not None:
            raise ConfigError(problem)
    if config.run.parallel == "graph":
        usual = NodeEvaluationOptions()
        if is_one_graph and config.evaluation != usual:
            reason = f"--run.parallel graph scores the whole graph by one pass, in place of {config.evaluation.how}"
            chosen.append(f"--evaluation {usual.how}: {reason}")
        config = replace(config, evaluation=usual)
    is_typed = bool(facts.inputs.node_dims)
    reads_weights = is_one_graph and choose_weights(config, facts.weights, is_typed=is_typed)
    if facts.resources is not None and facts.data_bytes is not None and workers.launcher == "ray":
        _check_travels(config)
    own = {
        option: value
        for option, path in own_code(config.tree())
        if option != "fit.callbacks" and (value := origin(path))
    }
    identity = {
        **({} if config.fit.ema_decay is None else {"ema_decay": config.fit.ema_decay}),
        **({} if config.fit.start_from is None else {"start_from": config.fit.start_from}),
        **{name: value for name in ("fresh_head", "freeze", "rates") if (value := getattr(config.fit, name))},
        **({"own": own} if own else {}),
        **facts.data_identity,
        "metric": config.metric,
        "seed": config.fit.seed,
        **({"micro_batches": config.fit.micro_batches} if config.fit.micro_batches is not None else {}),
    }
    if config.embeddings.width:
        identity["embeddings"] = {name: getattr(config.embeddings, name) for name in ("width", "optimizer", "mode")}
        if config.embeddings.node_types:
            identity["embeddings"]["node_types"] = list(config.embeddings.node_types)
    if reads_weights:
        identity["edge_weight"] = True
        chosen.append("--data.edge_weight yes: edges have weights")
    if standard := facts.inputs.standard:
        identity["standardised"] = len(standard)
        chosen.append(f"--data.standardise yes: {standard_choice(facts.inputs)}")
    if embedded := facts.inputs.embedded:
        identity["category_width"] = facts.inputs.category_width
        each = "; ".join(
            f"{size - 1:,} categories of {f'{part} {name}'.strip()}" for part, _, name, size, _ in embedded
        )
        chosen.append(
            f"--data.category_width {facts.inputs.category_width}: {each} have trainable rows, which baselines do not read"
        )
    if is_one_graph:
        identity |= {"parallel": "graph"} if config.run.parallel == "graph" else {"evaluation": evaluation_text(config)}
    encoding = stored_encoding(config.model.options) if is_one_graph else None
    inputs = replace(
        facts.inputs,
        seed=config.fit.seed,
        encoding=None if encoding is None else encoding.name,
        edge_weight=reads_weights,
    )
    resolved = ResolvedRun(config, inputs, identity, workers, tuple(reasons), tuple(chosen))
    resolved.training, resolved.evaluation, resolved.model_config  # noqa: B018 - they check their options
    return resolved


def _check_travels(config: RunConfig) -> None:
    """Raises ConfigError if Ray's workers cannot import the code that the run names."""
    if here := _held_here(config):
        raise ConfigError(
            f"{here}: holds in this process alone; put it in a module that Ray's workers can import and name it package.module:Name, or "
            "train in this process (--workers 1)"
        )


def _held_here(config: RunConfig) -> str:
    """Flags of the options that name code which only this process can import."""
    return ", ".join(f"--{option} {path}" for option, path in own_code(config.tree()) if in_this_process(path))


def _choose(config: RunConfig, graph: GraphFacts, micro_batches: int) -> tuple[RunConfig, list[str]]:
    """(the configuration with all open options chosen, each choice with its reason)."""
    kind, model = config.kind, config.model
    recipe = _recipe_options(kind, None if model.is_foreign else model.name) if has_recipe(kind, model.name) else {}
    choices = choose(config.open, config.options(), graph, micro_batches, recipe)
    if not choices:
        return config, []
    values = [(path, choice.value) for path, choice in choices.items()]
    reasons = [f"--{path} {shown(choice.value)}: {choice.reason}" for path, choice in choices.items()]
    return config.changed(*values, ("fit.steps", None)), reasons


@cache
def _recipe_options(kind: str, model: str | None) -> Mapping[str, Any]:
    """Every option of the model's default recipe. A user's own model uses the recipe of the first model."""
    named = {} if model is None else {"model": model}
    return MappingProxyType(read_config(config_tree(kind, {**named, "run": {"defaults": "recipe"}})).options())


def asked_workers(config: RunConfig) -> WorkerOptions:
    """The requested workers. They run on Ray if Ray's address is set or the whole graph is divided among workers. They run in this process if no other process
    can import the run's code."""
    workers = config.workers
    spread = config.run.parallel == "graph" and workers.num_workers is None
    asks_ray = workers.launcher == "auto" and (config.ray.address is not None or spread)
    if workers.launcher == "auto" and workers.num_workers is None and not asks_ray and _held_here(config):
        return replace(workers, launcher="process")
    return replace(workers, launcher="ray") if asks_ray else workers


def _no_more_than(workers: WorkerOptions, config: RunConfig) -> tuple[WorkerOptions, str | None]:
    """(the workers, reduced to at most one for each micro-batch; a note if their number was reduced)."""
    most = config.fit.micro_batches
    if most is None or workers.most <= most:
        return workers, None
    if config.workers.num_workers is not None or (workers.min_workers or 0) > most:
        raise ConfigError(
            f"workers: expected at most one for each of the {most} micro-batches of a step, got {workers.most}; lower --workers, or begin a "
            "run with a higher --fit.micro_batches"
        )
    note = f"{counted(most, 'micro-batch')} a step (--fit.micro_batches): {counted(most, 'worker')}"
    return replace(workers, num_workers=most), note


def evaluation_text(config: RunConfig) -> str:
    """Text of all options, in addition to the weights, on which scores depend. The choice of the best epoch does not compare scores with different texts."""
    evaluation: Any = config.evaluation
    if evaluation.how == "full":
        return f"full, {evaluation.chunks} chunks" + ("" if evaluation.keeps_best else ", the last epoch kept")
    # Empty values of newer fields are left out: the text of older runs, which have no such fields, must stay equal.
    tree = to_tree(config.sampler.options).items()
    later = ("relation_fanouts", "relations")
    text = ", ".join(f"{name} {value}" for name, value in tree if value or name not in later)
    return f"sampled, {config.sampler.name}, {text}"


def step_warnings(num_steps: int, num_warmup_steps: int) -> list[str]:
    """Warnings if there are too few optimizer steps, or if the warm-up is too long."""
    warnings = []
    if num_steps < FEWEST_STEPS:
        warnings.append(
            f"{num_steps:,} optimizer steps in all, and most models need {FEWEST_STEPS} at least; set more --fit.epochs, or smaller batches"
        )
    if num_warmup_steps >= num_steps:
        warnings.append(
            f"the warm-up of {num_warmup_steps:,} optimizer steps is no shorter than the run of {num_steps:,}; set a shorter warm-up, or more --fit.epochs"
        )
    return warnings
