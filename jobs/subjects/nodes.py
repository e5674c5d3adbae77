"""The subject of runs on the nodes of one graph, plain or typed."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.cluster.data.training_data import OpenNodes, StoredNodes, TrainingData
from graphmill.cluster.embeddings.rows import SavedTable
from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.tasks import Regression, Task
from graphmill.core.errors import ConfigError
from graphmill.core.summaries import size
from graphmill.jobs.baselines.node_baselines import Baselines, compute_baselines
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import graph_facts
from graphmill.jobs.config.registry import GRAPH_PARALLEL, Inputs
from graphmill.jobs.config.standard_columns import with_standard_columns
from graphmill.jobs.config.stored_columns import edge_weights, unread
from graphmill.jobs.data.prepare_graph import find_graph, prepare_graph, store_encoding
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.resolve.typed_facts import (
    NodeGraph,
    check_graph_kind,
    describe,
    predicted_nodes,
    typed_facts,
    typed_identity,
    typed_inputs,
    with_type,
)
from graphmill.jobs.subjects.graph_parallel import WholeGraphData, shard_memory
from graphmill.jobs.subjects.subject import Members, Prediction, Served, Subject, check_names, checked, trained_task
from graphmill.jobs.tasks.model_inputs import baselines_see
from graphmill.jobs.tasks.node_task import (
    check_graph,
    check_splits,
    fits_labels,
    graph_inputs,
    graph_lacks,
    lacks_features,
    node_task,
    num_rows,
)
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.access.warm_up import asked_by
from graphmill.samplers.methods.random_partition import count_chunks
from graphmill.samplers.methods.registry import without_encodings
from graphmill.samplers.vocabulary.options import RandomPartitionOptions
from graphmill.storage.filesystem.urls import is_local
from graphmill.storage.format.encodings import find_encoding
from graphmill.storage.format.manifest import NODE, Manifest
from graphmill.storage.format.source import SPLIT_NAMES
from graphmill.storage.graph import PLAIN_OR_TYPED, StoredGraph, TypedGraph, open_graph, source_ids

if TYPE_CHECKING:
    from graphmill.cluster.embeddings.embeddings import TableSpec
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.plan.run_plan import Plan
    from graphmill.jobs.records.run_record import Run


@dataclass(frozen=True)
class Nodes(Subject):
    """A graph whose nodes have labels."""

    stored: NodeGraph
    spreads: ClassVar[bool] = True

    @classmethod
    def find(cls, config: RunConfig) -> Self | None:
        graph = find_graph(config.data)
        return None if graph is None else cls(graph)

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        return cls(prepare_graph(config.data))

    @classmethod
    def at(cls, url: str, snapshot: int | None, options: "PredictConfig") -> Self:
        return cls(open_graph(url, snapshot, kind=PLAIN_OR_TYPED))

    @classmethod
    def plan_unmade(cls, plan: "Plan", resolved: ResolvedRun, resources: Resources | None) -> None:
        from graphmill.jobs.subjects.node_plan import plan_without_graph

        plan_without_graph(plan, resolved, resources)

    def unit(self, config: RunConfig) -> str:
        return "nodes"

    @property
    def text(self) -> str:
        graph = self.stored
        if isinstance(graph, TypedGraph):
            return f"{describe(graph)}, {size(self.num_bytes)}"
        manifest, count = graph.manifest, graph.manifest.num_classes or "no"
        labels = {"answers": f"{count} labels a node", "value": "a number a node", "values": f"{count} numbers a node"}
        return (
            f"{manifest.name} at {graph.url}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, {manifest.feature_dim} features, "
            f"{labels.get(str(manifest.label_kind), f'{count} classes')}, {manifest.num_partitions} partitions, {size(self.num_bytes)}"
        )

    def unread(self, resolved: ResolvedRun) -> str:
        return unread(self.stored.manifest, resolved.config, resolved.inputs)

    def lacks(self, resolved: ResolvedRun) -> Sequence[str]:
        return graph_lacks(self.predicted(resolved.config).manifest, resolved.config.data.split_set)

    def predicted(self, config: RunConfig) -> StoredGraph:
        """The graph itself. For a typed graph: the nodes of the predicted type."""
        return predicted_nodes(self.stored, config)

    def resolve(self, config: RunConfig, resources: Resources | None) -> ResolvedRun:
        check_graph_kind(config, self.stored)
        if isinstance(self.stored, TypedGraph):
            return resolve(*_typed_facts(config, self.stored, resources))
        return resolve(*_plain_facts(config, self.stored, resources))

    def check(self, resolved: ResolvedRun) -> None:
        """Tries the samplers if the graph's files are on this machine. Otherwise `check_served` does so when the servers run."""
        config, nodes = resolved.config, self.predicted(resolved.config)
        if resolved.workers.launcher != "process":
            _check_certificates(config.servers)
        self.check_targets(nodes, resolved)
        if isinstance(resolved.training, RandomPartitionOptions):
            count_chunks(resolved.training, self.stored.manifest)
        if self.is_here:
            check_samplers(whole_router(self.stored), resolved)

    def check_targets(self, nodes: StoredGraph, resolved: ResolvedRun) -> None:
        """Raises ConfigError if the run needs labels or splits that the graph does not have."""
        config = resolved.config
        split_set, width = config.data.split_set, config.embeddings.width
        check_graph(nodes, split_set, config.task, config.metric, num_roots(resolved), width)
        task = self.task(resolved)  # raises for options that contradict the labels
        if "trees" in config.baseline.models:
            from graphmill.jobs.baselines.tree_baseline import check_node_trees

            check_node_trees(nodes.manifest, task)

    def completed(self, resolved: ResolvedRun) -> Self:
        """The graph with the encoding that the model reads. If the run's options ask for it, the features stay on the object store."""
        graph = self.stored
        if resolved.config.servers.range_reads:
            graph = graph.features_by_range()
        if resolved.encoding is not None:
            graph = store_encoding(graph, resolved.encoding)
        return replace(self, stored=graph)

    def check_memory(self, resolved: ResolvedRun) -> None:
        if resolved.is_full_graph and resolved.workers.device == "cpu":  # a GPU's memory is checked by its worker
            shard_memory(self.manifest, resolved).check(resolved.workers.most)

    def check_served(self, served: Served, resolved: ResolvedRun) -> None:
        config = resolved.config
        nodes = self.predicted(config).manifest
        check_splits(nodes, config.data.split_set, config.metric, num_roots(resolved))
        check_samplers(served.router, resolved)

    def task(self, resolved: ResolvedRun) -> Task:
        return node_task(resolved.config, resolved.inputs, self.predicted(resolved.config).manifest)

    def data(self, resolved: ResolvedRun) -> TrainingData:
        return StoredNodes.of(self.stored.whole(), verify=resolved.config.servers.verify)

    @contextmanager
    def here(self, resolved: ResolvedRun) -> Iterator[Served]:
        servers, graph = resolved.config.servers, self.stored.whole()
        with kept_on_disk(graph, servers) as kept:
            data = StoredNodes.of(kept, verify=servers.verify and kept is graph)
            traffic = Traffic(kept.num_partitions)
            yield Served(data, data.open(traffic).router, traffic)

    def serving(self, resolved: ResolvedRun) -> AbstractContextManager[Served]:
        _check_certificates(resolved.config.servers)
        samplers = (self.training(resolved), *self.evaluation(resolved).values())
        return self._serving(resolved.config.servers, resolved.workers, asked_by(samplers))

    @contextmanager
    def _serving(
        self, options: ServerOptions, workers: WorkerOptions, asked: tuple[str, ...] | None
    ) -> Iterator[Served]:
        from graphmill.cluster.data.served_nodes import ServedNodes
        from graphmill.cluster.serving.graph_service import shared_or_own
        from graphmill.cluster.serving.partition_server import connect_any

        with shared_or_own(self.stored, options, partial(print, flush=True), workers, asked) as group:
            servers, traffic = group.running(), Traffic(self.num_partitions)
            router = connect_any(servers, traffic.watch)
            renewed = lambda wait_s, say: ServedNodes(group.running(wait_s, say))  # noqa: E731
            yield Served(ServedNodes(servers), router, traffic, group.where(), renewed, group.full_disks, group.nodes)

    def shared(self, data: TrainingData, resolved: ResolvedRun) -> TrainingData:
        if not resolved.is_full_graph:
            return data
        return WholeGraphData(data, resolved.training, shard_memory(self.manifest, resolved))

    def table(self, resolved: ResolvedRun) -> "TableSpec | None":
        options = resolved.config.embeddings
        if not options.width:
            return None
        from graphmill.cluster.embeddings.embeddings import TableSpec

        return TableSpec(options, num_rows(self.stored.manifest, options), resolved.config.fit.seed)

    def rivals(self, config: RunConfig) -> str:
        constant = "mean" if config.task.name == "regression" else "majority class"
        return f"{constant}, features only{', boosted trees' if 'trees' in config.baseline.models else ''}"

    def baselines(self, served: Served, resolved: ResolvedRun, task: Task) -> Baselines:
        config, own = resolved.config, self.predicted(resolved.config).manifest.name
        rows = served.router if isinstance(served.router, Router) else served.router.nodes[own]
        seen = baselines_see(resolved.inputs, config.data.standardise, own if resolved.is_typed else "")
        scores = compute_baselines(rows, config.data.split_set, task, config.fit.seed, seen)
        if "trees" in config.baseline.models:
            from graphmill.jobs.baselines.tree_baseline import compute_node_trees

            tries, seed = config.baseline.configurations, config.fit.seed
            own = own if resolved.is_typed else NODE
            scores["trees"] = compute_node_trees(served.router, own, config.data.split_set, task, seed, tries)
        return scores

    def described(self, resolved: ResolvedRun, task: Task) -> dict[str, Any]:
        standard, config = resolved.inputs.standard, resolved.config
        return {
            **({"node_type": self.predicted(config).manifest.name} if resolved.is_typed else {}),
            **({"standardised_columns": len(standard)} if standard else {}),
            **({} if config.task.is_foreign else {"task": dict(vars(task))}),
        }

    def plan(self, plan: "Plan", resolved: ResolvedRun) -> None:
        from graphmill.jobs.subjects.node_plan import plan_nodes

        plan_nodes(plan, self.stored, resolved, self.task(resolved))

    def predict(self, run: "Run", options: "PredictConfig", trained: ResolvedRun) -> Prediction:
        from graphmill.cluster.prediction.predictor import UNSPLIT, with_unsplit

        self.check_trained(run, trained)
        config, manifest = trained.config, self.predicted(trained.config).manifest
        num_classes, has_targets = trained.inputs.out_dim, fits_labels(manifest, config.task)
        if has_targets and manifest.label_kind != "class" and (manifest.num_classes or 1) != num_classes:
            raise ConfigError(
                f"{self.url}: expected the run's {num_classes} labels per node, got {manifest.num_classes or 1}; ingest it without labels"
            )
        if has_targets and (manifest.num_classes or 0) > num_classes:
            raise ConfigError(
                f"{self.url}: expected at most the run's {num_classes} classes, got {manifest.num_classes}; ingest it without labels"
            )
        # Summaries of older runs have no such entries.
        task = trained_task(
            run, trained, {"num_classes": num_classes, "num_tasks": num_classes, "metric": config.metric}
        )
        if has_targets:
            check_names(self.url, manifest.class_names, task)
        split_set, has_splits = config.data.split_set, manifest.num_split_sets > 0
        if has_splits and split_set >= manifest.num_split_sets:
            raise ConfigError(
                f"{self.url}: expected split set {split_set}, as the run had it, got a graph with {manifest.num_split_sets}; "
                "ingest it without splits"
            )
        is_whole = spreads_graph(trained, options.parallel)
        parallel = replace(config.run, parallel="graph" if is_whole else "data")
        shape = replace(trained, inputs=self.inputs(trained), config=replace(config, run=parallel))
        # Without splits, the training split's sampler takes all nodes as roots.
        own = {UNSPLIT: replace(shape.evaluation["train"], split_set=0)}
        samplers = with_unsplit(shape.evaluation) if has_splits else own
        build_model = checked(run, self.url, shape.build_model)
        memory = shard_memory(self.manifest, shape, training=False) if is_whole else None

        def members(served: Served) -> Members:
            nodes = served.router.nodes[manifest.name] if isinstance(served.router, TypedRouter) else served.router
            if not has_splits:
                return lambda _: nodes.list_chunk(key=0, chunk=0, num_chunks=1).original_id
            return lambda name: nodes.list_split(split_set, SPLIT_NAMES.index(name)).original_id

        def shared(nodes: TrainingData) -> TrainingData:
            return nodes if memory is None else WholeGraphData(nodes, samplers[UNSPLIT], memory)

        return self.prediction(
            run,
            options,
            trained,
            build_model=build_model,
            task=task,
            samplers=samplers,
            members=members,
            target_names=getattr(task, "names", ()) or ("",) * isinstance(task, Regression),
            has_targets=has_targets,
            shared=shared,
            shard_bytes=None if memory is None else memory.check,
            estimate=None if is_whole else config.evaluation.estimate,
        )

    def check_trained(self, run: "Run", trained: ResolvedRun) -> None:
        """Raises ConfigError if the run was trained on another kind of graph, or has embeddings for the nodes of another graph."""
        if isinstance(self.stored, TypedGraph) != trained.is_typed:
            kind = "a typed graph" if trained.is_typed else "a plain graph"
            raise ConfigError(f"{self.url}: expected {kind}, as the run was trained on, got another kind; set --graph")
        if trained.config.embeddings.width and self.manifest.content_hash != run.data_hash:
            raise ConfigError(
                f"{self.url}: expected the run's own graph, whose nodes its embeddings are of; leave out --graph"
            )

    def prediction(self, run: "Run", options: "PredictConfig", trained: ResolvedRun, **parts: Any) -> Prediction:
        """The Prediction with `parts` and with everything that predictions of nodes and of links have in common."""
        graph, config, encoding = self.stored, trained.config, trained.encoding
        # The predicted graph may be in another place than the run's graph. Files on a local disk are mapped, never read by range.
        by_range = config.servers.range_reads and not is_local(graph.filesystem)
        servers = replace(config.servers, verify=options.verify, range_reads=by_range)

        def check_look() -> None:
            if not graph.is_here:
                raise ConfigError(f"{graph.url} is not on this machine, where batches would be drawn")
            if encoding is not None and not find_encoding(graph, encoding.name):
                raise ConfigError(
                    f"{graph.url} has no {encoding.name} yet; the prediction computes it, or graphmill encode"
                )

        def table() -> SavedTable:
            options = config.embeddings
            return SavedTable(run.best_folder, options.width, config.fit.seed, node_types=options.node_types)

        return Prediction(
            subject=self,
            trained=replace(trained, config=replace(config, servers=servers)),
            check_look=check_look,
            table=table if config.embeddings.width else None,
            source_ids=source_ids(self.predicted(config)),
            **parts,
        )

    def inputs(self, trained: ResolvedRun) -> Inputs:
        """The run's inputs with the feature widths of this graph. The widths must fit the run's weights."""
        config, weights, manifest = trained.config, edge_weights(self.manifest, trained.config), self.manifest
        if trained.inputs.edge_weight and weights is not None:
            weights.check()
        if manifest.is_typed:
            inputs = typed_inputs(manifest, self.predicted(config).manifest, config)
        else:
            inputs = graph_inputs(manifest, config)
        learnt, path = trained.inputs.categories, config.data.path
        by_run = f"its tables by the run's graph ({'features_as:' if manifest.is_typed else '--edge-list.features-as'} {path})"
        for own, others in ((_types(trained.inputs), _types(inputs)), (trained.inputs.relations, inputs.relations)):
            if own != others:
                raise ConfigError(
                    f"{self.url}: expected {', '.join(map(str, own))}, in the run's order, got {', '.join(map(str, others))}; ingest {by_run}"
                )
        if inputs.embedded != trained.inputs.embedded or (learnt and inputs.categories and inputs.categories != learnt):
            raise ConfigError(f"{self.url}: expected columns with the run's categories, got others; ingest {by_run}")
        if manifest.is_typed:
            return replace(trained.inputs, node_dims=inputs.node_dims, edge_dims=inputs.edge_dims)
        return replace(trained.inputs, node=inputs.node, edge=inputs.edge)


def _types(inputs: Inputs) -> tuple[str, ...]:
    return tuple(name for name, _ in inputs.node_dims)


def _check_certificates(servers: ServerOptions) -> None:
    """Raises ConfigError if the servers require certificates that are missing on this host."""
    if servers.tls:
        from graphmill.cluster.transport.tls import tls_context

        tls_context(is_server=True)


@contextmanager
def kept_on_disk(graph: NodeGraph, servers: ServerOptions) -> Iterator[NodeGraph]:
    """A verified copy of the graph on this host's disk, if the graph is on an object store and --servers.disk_cache names a folder. Otherwise `graph`."""
    cache = servers.disk_cache
    if cache is None or (kept := cache.copy_of(graph)) is graph:
        yield graph
        return
    with cache.holding(kept, range(kept.num_partitions)) as copied:
        num_bytes = sum(each.num_bytes for each in copied)
        print(f"graph {kept.manifest.name} at {kept.url}: {num_bytes:,} bytes copied there now", flush=True)
        yield kept


def _plain_facts(config: RunConfig, graph: StoredGraph, resources: Resources | None) -> tuple[RunConfig, Facts]:
    _check_targets(config, graph)
    manifest = graph.manifest
    identity = {
        **_partitions(config, manifest),
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "split_set": config.data.split_set,
        DATA: manifest.measured.data_digest(config.data.split_set),
    }
    facts = graph_facts(manifest, config.data.split_set, by_weight=config.data.edge_weight != "no")
    return config, Facts(
        inputs_of(config, graph), identity, resources, manifest.num_bytes, facts, edge_weights(manifest, config)
    )


def _partitions(config: RunConfig, manifest: Manifest) -> dict[str, str]:
    """Entries of the run's identity on partitions. Empty for random chunks, because no batch then depends on the partitions."""
    partitioned = getattr(config.sampler.options, "cut", "random") != "random"
    return {"partitions": manifest.content_hash} if partitioned else {}


def inputs_of(config: RunConfig, graph: NodeGraph) -> Inputs:
    """The inputs that the graph provides to the model."""
    manifest = graph.manifest
    if not manifest.is_typed:
        return with_standard_columns(graph_inputs(manifest, config), [manifest], config.data)
    inputs = typed_inputs(manifest, predicted_nodes(graph, config).manifest, config)
    return with_standard_columns(inputs, manifest.rows.values(), config.data)


def _typed_facts(config: RunConfig, graph: TypedGraph, resources: Resources | None) -> tuple[RunConfig, Facts]:
    config, manifest, split_set = with_type(config, graph), graph.manifest, config.data.split_set
    predicted = predicted_nodes(graph, config)
    _check_targets(config, predicted)
    nodes = predicted.manifest
    return config, Facts(
        inputs_of(config, graph),
        _partitions(config, manifest) | typed_identity(manifest, nodes.name, split_set),
        resources,
        manifest.num_bytes,
        typed_facts(manifest, nodes, split_set),
        edge_weights(manifest, config),
    )


def _check_targets(config: RunConfig, graph: StoredGraph) -> None:
    """Raises ConfigError if labels, features or splits that `resolve` reads are missing in the graph."""
    manifest, split_set, width = graph.manifest, config.data.split_set, config.embeddings.width
    fits = fits_labels(manifest, config.task)
    if split_set >= manifest.num_split_sets or not fits or lacks_features(manifest, width):
        check_graph(graph, split_set, config.task, config.metric, 1, width)


def num_roots(resolved: ResolvedRun) -> int:
    """Minimum number of labelled nodes in the training split."""
    return 1 if resolved.is_full_graph else resolved.micro_batches


def check_samplers(router: Router | TypedRouter, resolved: ResolvedRun) -> None:
    """Raises ConfigError if the options of a sampler do not fit the graph."""
    if resolved.is_full_graph:
        return
    data = OpenNodes(router)
    for options in (resolved.training, *resolved.evaluation.values()):
        data.sampler(without_encodings(options), resolved.micro_batches).num_batches  # noqa: B018 - checks its options


def spreads_graph(run: ResolvedRun, parallel: str) -> bool:
    """Whether to predict graph-parallel. `auto`: in the same way in which the run was trained."""
    if parallel == "auto":
        return run.is_full_graph
    row = run.config.model.row("model", run.config.kind)
    if parallel == "graph" and (row is None or not row.graph_parallel):
        raise ConfigError(
            f"--parallel graph: expected a run whose model can be spread over workers ({GRAPH_PARALLEL}), got one of {run.config.model.name}"
        )
    if parallel == "graph" and getattr(run.config.model.options, "block", None) == "hyena":
        raise ConfigError("--parallel graph: hyena computes all nodes in one process; leave it out")
    return parallel == "graph"
