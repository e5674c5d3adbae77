"""`resolve(config, facts)`: what a run is, decided in one place and before anything is started.

    RunConfig ──look──▶ Facts ──resolve──▶ ResolvedRun ──▶ training | --plan | predict | sweep | benchmarks

`look` reads the world; `resolve` is pure. Its result has two parts: the identity decides the numbers (a resume keeps it), the placement
decides the time (a resume resolves it again), each automatic choice of it with its reason.
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
from graphmill.jobs.config.config import FORMAT, NodeEvaluationOptions, RunConfig, config_tree, read_config
from graphmill.jobs.config.defaults import GraphFacts, choose, has_recipe
from graphmill.jobs.config.link_options import LinksOptions
from graphmill.jobs.config.reader import Tree, build, shown, to_tree
from graphmill.jobs.config.registry import (
    GRAPH_PARALLEL,
    PLACEHOLDERS,
    Inputs,
    Kind,
    model_config,
    origin,
    sharding,
    stored_encoding,
)
from graphmill.jobs.config.standard_columns import standard_choice
from graphmill.jobs.config.stored_columns import EdgeWeights, choose_weights
from graphmill.jobs.tasks.build_model import build_model
from graphmill.jobs.tasks.link_samplers import scored_links, training_links
from graphmill.models.options.features import Features
from graphmill.models.parallel.shards import NUM_BLOCKS
from graphmill.samplers.methods.registry import given
from graphmill.samplers.vocabulary.messages import EdgeColumn
from graphmill.samplers.vocabulary.options import (
    FullGraphOptions,
    GraphBatchOptions,
    LoaderOptions,
    SubgraphOptions,
    TypedOptions,
    full_evaluation,
)
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.source import SPLIT_TRAIN, SPLITS


@dataclass(frozen=True)
class Facts:
    """What `resolve` needs to know of the world."""

    inputs: Inputs
    data_identity: Mapping[str, Any]
    """What a run may not change of its data between its parts."""
    resources: Resources | None
    """Of this machine, or of the cluster once it is joined; None: a cluster that is not joined yet."""
    data_bytes: int | None = None
    """Of the data's files; None: not there yet."""
    graph: GraphFacts | None = None
    """What open options are chosen by; None: not looked at yet, and they stay open."""
    weights: EdgeWeights | None = None
    """Of the graph's edges; None: they have none."""


@dataclass(frozen=True)
class ResolvedRun:
    """A run with nothing left to decide. Equal values are equal runs."""

    config: RunConfig
    inputs: Inputs
    identity: Mapping[str, Any]
    workers: WorkerOptions
    reasons: tuple[str, ...] = ()
    """Of the placement, in a sentence each."""
    chosen: tuple[str, ...] = ()
    """Options that were left open: each with its value and the reason."""

    @property
    def choices(self) -> list[str]:
        """What was chosen, one line for each reason."""
        flags: dict[str, list[str]] = {}
        for choice in self.chosen:
            flag, _, reason = choice.partition(": ")
            flags.setdefault(reason, []).append(flag)
        return [f"{' '.join(same)}: {reason}" for reason, same in flags.items()]

    @property
    def is_full_graph(self) -> bool:
        """The whole graph is the one batch, spread over the workers."""
        return self.config.run.parallel == "graph"

    @property
    def micro_batches(self) -> int:
        """Batches of a step; of a full graph each worker has its shard."""
        return self.config.fit.micro_batches or self.workers.most

    @property
    def encoding(self) -> EncodingOptions | None:
        """What every batch carries of the nodes' positions."""
        return stored_encoding(self.config.model.options) if self.config.kind == "nodes" else None

    @cached_property
    def model_config(self) -> Any:
        """The model's options with the data's widths."""
        return None if self.config.model.is_foreign else model_config(self.config.model, self.inputs)

    @property
    def architecture(self) -> dict[str, Any]:
        """What a checkpoint has to agree with: not how the model is computed, nor the optimizer's rates."""
        component = self.config.model
        values = asdict(self._model_options)
        for name in ("recompute", "filter_learning_rate"):
            values.pop(name, None)
        if not values.get("edge_dim", 1):  # runs from before there were features of edges go on
            del values["edge_dim"]
        links = self.config.links
        decoder = {} if links is None else {"decoder": asdict(links.decoder)}
        layers = {"relational": to_tree(self.config.relational)} if self.has_relational_layers else {}
        return {"model": component.name, **values, **decoder, **layers}

    @property
    def is_typed(self) -> bool:
        """Whether the graph has several types of nodes, or of edges."""
        return bool(self.inputs.node_dims)

    @property
    def has_relational_layers(self) -> bool:
        """Whether layers of --relational stand before the model."""
        row = self.config.model.row("model", self.config.kind)
        return self.is_typed and (row is None or not row.takes_types)

    def build_model(self) -> Any:
        """The module that the trainer takes."""
        from graphmill.jobs.tasks.model_inputs import standardise

        config, links = self.config, self.config.links
        model = build_model(config.model, config.kind, self.inputs, config.relational)
        standardise(model, self.inputs.standard)
        if links is None:
            return model
        from graphmill.jobs.tasks.link_model import LinkModel

        return LinkModel(model, links.decoder, self.inputs.num_relations)

    @property
    def fit(self) -> TrainOptions:
        """With the precision that the workers' device has."""
        options = self.config.fit
        if options.precision != "auto":
            return options
        return replace(options, precision="bfloat16" if self.workers.device == "gpu" else "float32")

    @property
    def training(self) -> Any:
        """The options of the sampler that training batches are drawn by."""
        if self.is_full_graph:
            return FullGraphOptions(
                self.config.data.split_set,
                (SPLIT_TRAIN,),
                self._encodings,
                NUM_BLOCKS,
                alone="shard",
                edge_columns=self.edge_columns,
            )
        sampler, links = self._sampler("train", shuffle=True), self.config.links
        return sampler if links is None else training_links(links, sampler, self.config.fit.seed)

    @property
    def evaluation(self) -> dict[str, Any]:
        """The samplers' options that each split is scored through."""
        how = self.config.evaluation
        if self.config.kind == "graphs":
            return {split: replace(self._sampler(split, shuffle=False), max_graphs=how.max_graphs) for split in SPLITS}
        if self.config.links is not None:
            return self._scored_links(self.config.links)
        if self.is_full_graph:
            return self._on_whole_graph(1, NUM_BLOCKS, "shard")
        if how.how == "sampled":
            return {split: self._sampler(split, shuffle=False) for split in SPLITS}
        blocks = NUM_BLOCKS if sharding(self._model_options) == "rows" else None
        return self._on_whole_graph(how.chunks, blocks)

    def _on_whole_graph(
        self, chunks: int, blocks: int | None = None, alone: Literal["batch", "shard"] = "batch"
    ) -> dict[str, Any]:
        split_set = self.config.data.split_set
        return dict(full_evaluation(split_set, chunks, self._encodings, blocks, alone, self.edge_columns))

    def _scored_links(self, links: LinksOptions) -> dict[str, Any]:
        around = self._sampler("train", shuffle=False)
        if self.config.evaluation.how == "full":
            around = self._on_whole_graph(1)["train"]
        return dict(scored_links(links, around))

    @property
    def edge_columns(self) -> tuple[EdgeColumn, ...]:
        """What every batch carries of the edges for the model."""
        if self.config.kind == "graphs":
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
        if isinstance(config.sampler.options, GraphBatchOptions):
            return replace(config.sampler.options, seed=config.fit.seed, shuffle=shuffle)
        columns = tuple(getattr(config.sampler.options, "edge_columns", ()))
        return given(
            config.sampler.options,
            seed=config.fit.seed,
            split_set=config.data.split_set,
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
        """What config.json holds; `read_resolved` makes an equal value of it."""
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
    """The run that a run's directory holds. Raises UsageError or ConfigError where it is none."""
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
    """The run that this configuration is in this world. Pure. Raises ConfigError where the two do not fit."""
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
    for check in CHECKS:
        problem = check(config)
        if problem is not None:
            raise ConfigError(problem)
    is_typed = bool(facts.inputs.node_dims)
    reads_weights = config.kind == "nodes" and choose_weights(config, facts.weights, is_typed=is_typed)
    own = {group: told for group in ("model", "sampler", "task") if (told := origin(getattr(config, group)))}
    identity = {
        **({} if config.fit.ema_decay is None else {"ema_decay": config.fit.ema_decay}),
        **({} if config.fit.start_from is None else {"start_from": config.fit.start_from}),
        **({"own": own} if own else {}),
        **facts.data_identity,
        "metric": config.metric,
        "seed": config.fit.seed,
        **({"micro_batches": config.fit.micro_batches} if config.fit.micro_batches is not None else {}),
    }
    if config.embeddings.width:
        identity["embeddings"] = {name: getattr(config.embeddings, name) for name in ("width", "optimizer", "mode")}
    if reads_weights:
        identity["edge_weight"] = True
        chosen.append("--data.edge_weight yes: edges have weights")
    if standard := facts.inputs.standard:
        identity["standardised"] = len(standard)
        chosen.append(f"--data.standardise yes: {standard_choice(facts.inputs)}")
    if config.kind == "nodes":
        identity |= {"parallel": "graph"} if config.run.parallel == "graph" else {"evaluation": evaluation_text(config)}
    encoding = stored_encoding(config.model.options) if config.kind == "nodes" else None
    inputs = replace(
        facts.inputs,
        seed=config.fit.seed,
        encoding=None if encoding is None else encoding.name,
        edge_weight=reads_weights,
    )
    resolved = ResolvedRun(config, inputs, identity, workers, tuple(reasons), tuple(chosen))
    resolved.training, resolved.evaluation, resolved.model_config  # noqa: B018 - they check their options
    return resolved


def _choose(config: RunConfig, graph: GraphFacts, micro_batches: int) -> tuple[RunConfig, list[str]]:
    """(the configuration with nothing left open, each choice with its reason)."""
    kind, model = config.kind, config.model
    recipe = _recipe_options(kind, None if model.is_foreign else model.name) if has_recipe(kind, model.name) else {}
    choices = choose(config.open, config.options(), graph, micro_batches, recipe)
    if not choices:
        return config, []
    values = [(path, choice.value) for path, choice in choices.items()]
    told = [f"--{path} {shown(choice.value)}: {choice.reason}" for path, choice in choices.items()]
    return config.changed(*values, ("fit.steps", None)), told


@cache
def _recipe_options(kind: Kind, model: str | None) -> Mapping[str, Any]:
    """What the default recipe of this model, or for one of a user's own the first model's, says of every option."""
    named = {} if model is None else {"model": model}
    return MappingProxyType(read_config(config_tree(kind, {**named, "run": {"defaults": "recipe"}})).options())


def asked_workers(config: RunConfig) -> WorkerOptions:
    """What is asked of placement: Ray, where its address is given, or the whole graph is to be spread over workers."""
    workers = config.workers
    spread = config.run.parallel == "graph" and workers.num_workers is None
    asks_ray = workers.launcher == "auto" and (config.ray.address is not None or spread)
    return replace(workers, launcher="ray") if asks_ray else workers


def _no_more_than(workers: WorkerOptions, config: RunConfig) -> tuple[WorkerOptions, str | None]:
    """The workers, of which none is without a micro-batch, and what is to be said of fewer than there might be."""
    most = config.fit.micro_batches
    if most is None or workers.most <= most:
        return workers, None
    if config.workers.num_workers is not None or (workers.min_workers or 0) > most:
        raise ConfigError(
            f"workers: expected at most one for each of the {most} micro-batches of a step, got {workers.most}; lower --workers, or begin a "
            "run with a higher --fit.micro_batches"
        )
    told = f"{counted(most, 'micro-batch')} a step (--fit.micro_batches): {counted(most, 'worker')}"
    return replace(workers, num_workers=most), told


def evaluation_text(config: RunConfig) -> str:
    """All that scores depend on beside the weights: scores of different kinds must not compete for the best epoch."""
    how: Any = config.evaluation
    if how.how == "full":
        return f"full, {how.chunks} chunks" + ("" if how.keeps_best else ", the last epoch kept")
    told = ", ".join(f"{name} {value}" for name, value in to_tree(config.sampler.options).items())
    return f"sampled, {config.sampler.name}, {told}"


def _fanouts_are_layers(config: RunConfig) -> str | None:
    row, options = config.model.row("model", config.kind), config.sampler.options
    fanouts, layers = getattr(options, "fanouts", None), getattr(config.model.options, "num_layers", None)
    # With all edges among the nodes found, any number of hops makes a graph for any number of layers.
    if (
        "model.num_layers" in config.open
        or row is None
        or not row.layers_are_hops
        or fanouts is None
        or (isinstance(options, TypedOptions) and not row.takes_types)
        or getattr(options, "edges", "") == "induced"
        or len(fanouts) == layers
    ):
        return None
    return (
        f"fanouts needs one entry per layer: {layers} layers, got {fanouts}; set --sampler.fanouts or --model.num_layers, "
        "or --sampler.edges induced"
    )


def _hops_find_neighbors(config: RunConfig) -> str | None:
    fanouts = getattr(config.sampler.options, "fanouts", ())
    if getattr(config.sampler.options, "relation_fanouts", None):  # the others may be left out
        return None
    if all(fanout > 0 or fanout == -1 for fanout in fanouts):
        return None
    return f"fanouts: expected at least 1 per hop, or -1 for all neighbors, got {fanouts}; set --sampler.fanouts"


def _subgraphs_of_roots(config: RunConfig) -> str | None:
    if config.kind != "nodes" or sharding(config.model.options) != "roots":
        return None
    own, options = config.model.is_foreign, config.sampler.options
    if config.evaluation.how == "sampled" and (own or isinstance(options, SubgraphOptions)):
        return None
    name = config.model.name if own else config.model.name.upper()
    typed = "typed-" if isinstance(options, TypedOptions) else ""
    return (
        f"sampler: {name} takes one subgraph per root, got {config.sampler.name} with {config.evaluation.how} evaluation; "
        f"set --sampler {typed}node2subgraph or {typed}ppr, and --evaluation sampled"
    )


def _sampled_scores_have_roots(config: RunConfig) -> str | None:
    if config.kind != "nodes" or config.evaluation.how != "sampled":
        return None
    if config.sampler.is_foreign and not hasattr(config.sampler.options, "root_split"):
        return f"evaluation: 'sampled' needs a sampler with the field root_split, {config.sampler.name} has none; add it, or set --evaluation full"
    if config.sampler.name not in ("random-partition", "saint"):
        return None
    return "evaluation: 'sampled' needs a sampler of roots; set --sampler neighbor or --evaluation full"


def _patience_needs_scores_that_choose(config: RunConfig) -> str | None:
    if config.fit.patience is None or config.evaluation.keeps_best:
        return None
    return (
        f"patience: expected scores that choose the best epoch, got estimates ({config.evaluation.estimate}); set --fit.patience none, or "
        "--evaluation.select_by estimate"
    )


def _links_fit_the_rest(config: RunConfig) -> str | None:
    links, evaluation, sampler = config.links, config.evaluation, config.sampler.options
    if links is None:
        return None
    if config.run.parallel == "graph":
        return "--run.parallel graph: expected a task on nodes, got links; leave it out"
    if config.fit.steps is not None:
        return f"steps: a run on links counts epochs, got --fit.steps {config.fit.steps}; leave it out and set --fit.epochs"
    if config.baseline.models:
        return f"baseline: expected classification of nodes, got links and {' '.join(config.baseline.models)}; leave out --baseline"
    if getattr(sampler, "batch_size", None) != getattr(type(sampler), "batch_size", None):
        return "batch_size: a batch of links has --task.batch_size of them; leave out --sampler.batch_size"
    if evaluation.how == "full" and evaluation.chunks > 1:
        return f"chunks: links are scored on the whole graph in one chunk, or sampled, got {evaluation.chunks}; set --evaluation sampled"
    if evaluation.how == "sampled" and links.ranking == "all":
        return "ranking: 'all' nodes as rivals need the states of all, got sampled evaluation; set --evaluation full or --task.ranking sampled"
    return None


def _the_past_is_sampled(config: RunConfig) -> str | None:
    options = config.sampler.options
    if getattr(options, "time", "all") == "all":
        return None
    if config.links is not None and (options.time, options.as_of) != ("before", None):
        return f"time: links expect 'before', without as_of, for a link is an edge of its own time, got {options.time!r}; set --sampler.time before"
    if config.evaluation.how == "full":
        return f"time: {options.time!r} expects scores through the sampler, for the whole graph has edges of all times; set --evaluation sampled"
    if config.baseline.models:
        return (
            f"baseline: expected edges of all times, which {' '.join(config.baseline.models)} would hear, got --sampler.time {options.time}; "
            "leave out --baseline"
        )
    return None


def _baselines_need_exact_scores(config: RunConfig) -> str | None:
    if not config.run.require_baselines or config.evaluation.estimate is None:
        return None
    return (
        f"require_baselines: expected exact scores, got estimates ({config.evaluation.estimate}); score the whole graph in one chunk "
        "(--evaluation full --evaluation.chunks 1), or leave out --run.require_baselines"
    )


def _whole_graph_has_no_batches(config: RunConfig) -> str | None:
    if config.run.parallel != "graph":
        return None
    row = config.model.row("model", config.kind)
    if config.kind != "nodes" or row is None or not row.graph_parallel:
        return f"--run.parallel graph: expected a model that can be spread over workers ({GRAPH_PARALLEL}), got {config.model.name}; set --model"
    usual = read_config(config_tree("nodes", {"model": config.model.name}))
    defaults = {
        "--sampler": (config.sampler, usual.sampler),
        "--evaluation": (config.evaluation, NodeEvaluationOptions()),
        "--loader": (config.loader, LoaderOptions()),
        "--fit.micro_batches": (config.fit.micro_batches, TrainOptions().micro_batches),
    }
    useless = [flag for flag, (value, default) in defaults.items() if value != default]
    if not useless:
        return None
    return f"--run.parallel graph: the whole graph is the one batch of an epoch; leave out {', '.join(useless)}"


def _shards_hear_their_neighbors(config: RunConfig) -> str | None:
    local = getattr(config.model.options, "local", None)
    if config.run.parallel != "graph" or local is None:
        return None
    if getattr(config.model.options, "block", "geco") == "hyena":
        return "--run.parallel graph: expected GECO's own block, hyena computes all nodes in one process; set --model.block geco"
    if local.block == "gated-gcn":
        return f"--run.parallel graph: expected a local block that keeps no row of an edge (lcb, gcn, sage, gat, appnp), got {local.block}; set --model.local.block"
    return None


def _embeddings_fit_the_rest(config: RunConfig) -> str | None:
    if not config.embeddings.width:
        return None
    if config.kind != "nodes":
        return f"width: expected the nodes of one graph, got many graphs and --embeddings.width {config.embeddings.width}; leave it out"
    beside = {
        "--run.parallel graph": config.run.parallel == "graph",
        "--fit.ema_decay": config.fit.ema_decay is not None,
        "--fit.start_from": config.fit.start_from is not None,
        "--baseline": bool(config.baseline.models),
    }
    for flag, is_set in beside.items():
        if is_set:
            return f"width: a table of embeddings goes without {flag}, got both; leave out one of them"
    from graphmill.cluster.runs.run_store import RunStore  # loads pyarrow

    for place in (config.run.dir, config.run.resume):
        if place is not None and not RunStore(place).is_local:
            return (
                f"{place}: expected a run's directory in a folder, where the owners of embeddings write their rows, got one on an object store; "
                "set --run.dir to a folder that all hosts write"
            )
    if config.workers.keep_checkpoints < 2:
        return "keep_checkpoints: expected at least 2 with embeddings, whose owners may begin at the checkpoint before the newest, got 1; set --workers.keep_checkpoints 2"
    return None


def _features_of_nodes_are_left_on_stores(config: RunConfig) -> str | None:
    if config.kind == "nodes" or not config.servers.range_reads:
        return None
    return "range_reads: expected the nodes of one graph, whose features stay on its store, got many graphs; leave out --servers.range_reads"


def _classic_baselines_are_of_nodes(config: RunConfig) -> str | None:
    if config.kind == "nodes" or not config.baseline.models:
        return None
    return f"baseline: expected the nodes of one graph, got many graphs and {' '.join(config.baseline.models)}; leave out --baseline"


def _embedded_graph_has_47_classes(config: RunConfig) -> str | None:
    if config.kind != "nodes" or config.data.path is not None:
        return None
    if config.task.name in ("binary", "regression"):
        return f"task {config.task.name}: expected nodes with other labels, the embedded graph's have one class; set --task classification"
    if config.metric != "rocauc":
        return None
    return "metric rocauc: expected 2 classes, the embedded graph has 47; set --task.metric accuracy"


def _chunks_per_batch(config: RunConfig) -> str | None:
    options = config.sampler.options
    chunks = getattr(options, "num_chunks", None)
    together = getattr(options, "chunks_per_batch", 1)
    if chunks is None or together <= chunks:
        return None
    return f"chunks_per_batch: expected 1 to the number of chunks ({chunks}), got {together}; set --sampler.chunks_per_batch"


def _sums_can_be_corrected(config: RunConfig) -> str | None:
    if not getattr(config.sampler.options, "corrected", False) or config.model.is_foreign or config.sampler.is_foreign:
        return None
    block = getattr(config.model.options, "local", None)
    name = config.model.name
    if name in ("geco", "sage", "gcn") and getattr(block, "block", "lcb") not in ("gat", "gated-gcn"):
        return None
    what = f"{name} with --model.local {block.block}" if name == "geco" and block is not None else name
    return (
        f"corrected: expected a model that sums over neighbors (geco, sage, gcn), got {what}, which weighs them itself; "
        "set --sampler.corrected no"
    )


def _edges_are_read(config: RunConfig) -> str | None:
    if config.kind != "nodes" or not config.data.edge_features or config.model.is_foreign:
        return None
    if config.run.parallel == "graph":
        return "--data.edge_features: expected batches, got --run.parallel graph, which sums over neighbors alone; leave out one of them"
    if getattr(config.sampler.options, "corrected", False):
        return "corrected: expected sums over neighbors, got models that read each edge (--data.edge_features); set --sampler.corrected no"
    name, options = config.model.name, config.model.options
    if not {"edge", "edge_dim"} & set(options.GIVEN):
        return f"--data.edge_features: expected a model that reads features of edges, got {name}; set --model sage, gcn, gat, geco, grit, ppgt, tokengt or primphormer"
    if "model.local.block" in config.open:  # chosen when the graph is known, for edges that have features
        return None
    try:
        model_config(config.model, replace(PLACEHOLDERS["nodes"], edge=Features(dim=1)))
    except ConfigError as error:
        return f"--data.edge_features: {error}"
    return None


def _trackers_are_installed(config: RunConfig) -> str | None:
    from graphmill.jobs.records.trackers import missing_tracker

    return missing_tracker(config.run.track)


CHECKS = (
    _hops_find_neighbors,
    _fanouts_are_layers,
    _subgraphs_of_roots,
    _sampled_scores_have_roots,
    _links_fit_the_rest,
    _the_past_is_sampled,
    _patience_needs_scores_that_choose,
    _baselines_need_exact_scores,
    _whole_graph_has_no_batches,
    _shards_hear_their_neighbors,
    _chunks_per_batch,
    _sums_can_be_corrected,
    _embeddings_fit_the_rest,
    _classic_baselines_are_of_nodes,
    _edges_are_read,
    _features_of_nodes_are_left_on_stores,
    _embedded_graph_has_47_classes,
    _trackers_are_installed,
)
