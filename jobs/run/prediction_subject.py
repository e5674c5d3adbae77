"""From a finished run to what its model predicts: the graph or set, the model, and the samplers by which its splits were scored."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from graphmill.cluster.checkpoints.checkpoint import parse_weights
from graphmill.cluster.checkpoints.checkpoint_store import BEST
from graphmill.cluster.data.training_data import (
    EVERY,
    GraphData,
    GraphSplitOptions,
    StoredNodes,
    TrainingData,
    predicted_ids,
    predicted_places,
)
from graphmill.cluster.embeddings.rows import SavedTable
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.prediction.predictor import UNSPLIT, with_unsplit
from graphmill.cluster.tasks import BinaryClassification, Classification, PairClassification, Regression, Task
from graphmill.cluster.transport.tls import tls_context
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.config.config import saved_tree
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import UsageError
from graphmill.jobs.config.registry import GRAPH_PARALLEL, Inputs, sharding
from graphmill.jobs.config.stored_columns import edge_weights, unread
from graphmill.jobs.data.prepare_graph import store_encoding
from graphmill.jobs.records.finished_run import FinishedRun
from graphmill.jobs.resolve.resolve import ResolvedRun, read_resolved
from graphmill.jobs.resolve.typed_facts import NodeGraph, describe, predicted_nodes, typed_inputs
from graphmill.jobs.run.graph_parallel import WholeGraphData
from graphmill.jobs.run.node_run import kept_on_disk, shard_memory
from graphmill.jobs.tasks.graph_task import set_inputs
from graphmill.jobs.tasks.link_task import graph_inputs, link_task
from graphmill.jobs.tasks.node_task import fits_labels
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.vocabulary.options import (
    FullGraphOptions,
    LoaderOptions,
    RandomPartitionOptions,
    TopLinkOptions,
)
from graphmill.storage.filesystem.urls import is_local
from graphmill.storage.format.encodings import find_encoding
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_NAMES
from graphmill.storage.graph import SourceIds, StoredGraph, source_ids
from graphmill.storage.graph_sets.graph_set import GraphIds, graph_ids, open_graphs
from graphmill.storage.molecules.molecule_source import HASHED
from graphmill.storage.typed_graph import TypedGraph, open_any_graph

_TASKS: dict[str, type] = {
    "regression": Regression,
    "classification": Classification,
    "binary": BinaryClassification,
    "classes": Classification,
    "nodes": Classification,
    "pairs": PairClassification,
}

# What a process needs to reach the data, and the ids of a split's members by the split's name.
Served = tuple[TrainingData, Callable[[str], np.ndarray]]


@dataclass(frozen=True)
class Subject:
    """What is predicted, and by what."""

    url: str
    content_hash: str
    text: str  # one line for people
    samplers: Mapping[str, Any]  # options by split, the unsplit last
    build_model: Callable[[], torch.nn.Module]
    task: Task
    target_names: tuple[str, ...]
    has_targets: bool
    fit: TrainOptions
    loader: LoaderOptions
    num_bytes: int  # of the stored data
    is_of_ray: bool  # the run's workers were Ray's
    serve: Callable[[], AbstractContextManager[Served]]  # for actors; its block needs a Ray session
    here: Callable[[], AbstractContextManager[Served]]  # for this process
    look: Callable[[], Served]  # the same in this process, nothing started or written; ConfigError where it cannot be
    # Of a graph-parallel run: the bytes of one of so many workers; ConfigError where they do not fit here.
    shard_bytes: Callable[[int], int] | None = None
    estimate: str | None = None  # why predictions and scores leave a part of the graph out; None: they do not
    places: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None  # what ids mean that are not the source's own
    table: Callable[[], SavedTable] | None = None  # opens the embeddings of the run's nodes, where it has some
    unread: str = ""  # what is stored and not read, in a line
    source_ids: SourceIds | GraphIds | None = None  # of nodes whose ids are strings, of graphs that have some

    @property
    def is_sharded(self) -> bool:
        """Whether the batch is the whole graph, spread over the workers."""
        return any(isinstance(options, FullGraphOptions) for options in self.samplers.values())


def node_subject(run: FinishedRun, options: PredictConfig) -> Subject:
    """The nodes of one graph, or their links. Raises ConfigError where the run's model does not fit it, or it is another one than the run's."""
    trained = _resolved(run, options.allow_import)
    config = trained.config
    graph = open_any_graph(options.graph or run.data_url, None if options.graph else run.snapshot)
    _check_same(run, graph.url, graph.manifest.content_hash, options.other_graph)
    if isinstance(graph, TypedGraph) != trained.is_typed:
        kind = "a typed graph" if trained.is_typed else "a plain graph"
        raise ConfigError(f"{graph.url}: expected {kind}, as the run was trained on, got another kind; set --graph")
    if config.embeddings.width and graph.manifest.content_hash != run.data_hash:
        raise ConfigError(
            f"{graph.url}: expected the run's own graph, whose nodes its embeddings are of; leave out --graph"
        )
    if config.links is None and options.relation is not None:
        raise ConfigError("--relation: expected a run on links of a knowledge graph, got one on nodes; leave it out")
    if config.links is not None and isinstance(graph, StoredGraph):
        return _link_subject(run, options, trained, graph)
    manifest = predicted_nodes(graph, config).manifest
    num_classes, has_targets = trained.inputs.out_dim, fits_labels(manifest, config.task)
    if has_targets and manifest.label_kind != "class" and (manifest.num_classes or 1) != num_classes:
        raise ConfigError(
            f"{graph.url}: expected the run's {num_classes} labels per node, got {manifest.num_classes or 1}; ingest it without labels"
        )
    if has_targets and (manifest.num_classes or 0) > num_classes:
        raise ConfigError(
            f"{graph.url}: expected at most the run's {num_classes} classes, got {manifest.num_classes}; ingest it without labels"
        )
    # What a summary of before does not tell of answers.
    task = _graph_task(run, trained, {"num_classes": num_classes, "num_tasks": num_classes, "metric": config.metric})
    if has_targets:
        _check_names(graph.url, manifest.class_names, task)
    as_trained = replace(manifest, num_classes=num_classes)
    split_set, has_splits = config.data.split_set, manifest.num_split_sets > 0
    if has_splits and split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected split set {split_set}, as the run had it, got a graph with {manifest.num_split_sets}; "
            "ingest it without splits"
        )
    is_whole = spreads_graph(trained, options.parallel)
    shape = replace(trained, inputs=_of_graph(trained, graph))
    shape = replace(shape, config=replace(config, run=replace(config.run, parallel="graph" if is_whole else "data")))
    # All nodes of a graph without splits are a training sampler's roots.
    own = {UNSPLIT: replace(shape.evaluation["train"], split_set=0)}
    samplers = with_unsplit(shape.evaluation) if has_splits else own
    build_model = _checked(run, graph.url, shape.build_model)
    memory = shard_memory(as_trained, shape, training=False) if is_whole else None

    def members(router: Router | TypedRouter) -> Callable[[str], np.ndarray]:
        nodes = router.nodes[manifest.name] if isinstance(router, TypedRouter) else router
        if not has_splits:
            return lambda _: nodes.list_chunk(key=0, chunk=0, num_chunks=1).original_id
        return lambda name: nodes.list_split(split_set, SPLIT_NAMES.index(name)).original_id

    def shared(nodes: TrainingData) -> TrainingData:
        return nodes if memory is None else WholeGraphData(nodes, samplers[UNSPLIT], memory)

    served = _served(graph, trained, options, members, shared)
    return Subject(
        url=graph.url,
        content_hash=graph.manifest.content_hash,
        source_ids=source_ids(predicted_nodes(graph, config)),
        text=f"graph {describe(graph)}"
        + (f"; {manifest.num_nodes:,} of the type {manifest.name}" if trained.is_typed else ""),
        unread=unread(graph.manifest, config, trained.inputs),
        samplers=samplers,
        build_model=build_model,
        task=task,
        target_names=getattr(task, "names", ()) or ("",) * isinstance(task, Regression),
        has_targets=has_targets,
        fit=trained.fit,
        loader=config.loader,
        num_bytes=graph.manifest.num_bytes,
        is_of_ray=_is_of_ray(trained),
        **served,
        shard_bytes=None if memory is None else memory.check,
        estimate=None if is_whole else config.evaluation.estimate,
        table=_best_table(run, trained),
    )


def _served(
    graph: NodeGraph,
    trained: ResolvedRun,
    options: PredictConfig,
    members: Callable[[Any], Callable[[str], np.ndarray]],
    shared: Callable[[TrainingData], TrainingData],
) -> dict[str, Any]:
    """`serve`, `here` and `look` of one graph's subject."""
    asked, encoding = trained.config.servers, trained.encoding
    # The predicted graph need not lie where the run's did: files of a disk are mapped.
    by_range = asked.range_reads and isinstance(graph, StoredGraph) and not is_local(graph.filesystem)
    servers = replace(asked, verify=options.verify, range_reads=by_range)

    def encoded() -> NodeGraph:
        return store_encoding(graph, encoding) if encoding is not None and isinstance(graph, StoredGraph) else graph

    def serve() -> AbstractContextManager[Served]:
        if servers.tls:
            tls_context(is_server=True)
        return serving()

    @contextmanager
    def serving() -> Iterator[Served]:
        from graphmill.cluster.data.served_nodes import ServedNodes
        from graphmill.cluster.serving.partition_server import connect_any, partition_servers

        with partition_servers(encoded(), servers) as running:
            yield shared(ServedNodes(running)), members(connect_any(running))

    @contextmanager
    def here() -> Iterator[Served]:
        whole = encoded().whole()
        with kept_on_disk(whole, servers) as kept:
            data = StoredNodes.of(kept, verify=servers.verify and kept is whole)
            yield shared(data), members(data.open().router)

    def look() -> Served:
        if not graph.is_here:
            raise ConfigError(f"{graph.url} is not on this machine, where batches would be drawn")
        if encoding is not None and isinstance(graph, StoredGraph) and find_encoding(graph, encoding.name) is None:
            raise ConfigError(
                f"{graph.url} has no {encoding.name} yet; the prediction computes it, or graphmill encode"
            )
        data = StoredNodes.of(graph, verify=False)
        return shared(data), members(data.open().router)

    return {"serve": serve, "here": here, "look": look}


def _of_graph(trained: ResolvedRun, graph: NodeGraph) -> Inputs:
    """The run's inputs with the widths of this graph's features, which the run's weights have to fit."""
    config, weights = trained.config, edge_weights(graph.manifest, trained.config)
    if trained.inputs.edge_weight and weights is not None:
        weights.check()
    if isinstance(graph, TypedGraph):
        inputs = typed_inputs(graph.manifest, predicted_nodes(graph, config).manifest, config)
        return replace(trained.inputs, node_dims=inputs.node_dims, relations=inputs.relations)
    inputs = graph_inputs(graph.manifest, config)
    return replace(trained.inputs, node=inputs.node, edge=inputs.edge)


def _link_subject(run: FinishedRun, options: PredictConfig, trained: ResolvedRun, graph: StoredGraph) -> Subject:
    """The best links of every node, by one pass over the whole graph."""
    links, manifest = trained.config.links, graph.manifest
    assert links is not None
    if options.parallel == "graph":
        raise ConfigError("--parallel graph: expected a run on nodes, got one on links")
    name = trained.config.model.name
    if sharding(trained.config.model.options) == "roots":
        raise ConfigError(
            f"{run.path}: the best links need the states of all nodes by one pass over the whole graph, and {name} takes one subgraph per root; "
            "train another model"
        )
    if getattr(trained.config.sampler.options, "recency_dim", 0):
        raise ConfigError(
            f"{run.path}: the best links need the states of all nodes by one pass over the whole graph, which is of no one time, and the run's model reads "
            "ages (--sampler.recency_dim); train without them"
        )
    shape = replace(trained, inputs=_of_graph(trained, graph))
    encodings = () if trained.encoding is None else (trained.encoding.name,)
    around = RandomPartitionOptions(num_chunks=1, shuffle=False, encodings=encodings, edge_columns=trained.edge_columns)

    def members(router: Router) -> Callable[[str], np.ndarray]:
        return lambda _: router.link_tables.nodes.original_id

    served = _served(graph, trained, options, members, lambda nodes: nodes)
    return Subject(
        url=graph.url,
        content_hash=manifest.content_hash,
        source_ids=source_ids(graph),
        text=f"graph {manifest.name}: links from {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges at {graph.url}",
        unread=unread(manifest, trained.config, trained.inputs),
        samplers={UNSPLIT: TopLinkOptions(around, options.top_k, _relation(options, manifest))},
        build_model=_checked(run, graph.url, shape.build_model),
        task=link_task(manifest, links),
        target_names=(),
        has_targets=False,
        fit=trained.fit,
        loader=trained.config.loader,
        num_bytes=manifest.num_bytes,
        is_of_ray=_is_of_ray(trained),
        **served,
        table=_best_table(run, trained),
    )


def _relation(options: PredictConfig, manifest: Manifest) -> int | None:
    """Its number. Raises ConfigError for a name that is none of the graph's."""
    if options.relation in manifest.relations:
        return manifest.relations.index(options.relation)
    if options.relation is None and not manifest.relations:
        return None
    if not manifest.relations:
        raise ConfigError(
            f"relation: expected none, since the graph has no relations, got {options.relation}; leave out --relation"
        )
    known = ", ".join(manifest.relations[:5]) + (" …" if len(manifest.relations) > 5 else "")
    raise ConfigError(f"relation: expected one of {known}, got {options.relation or 'none'}; set --relation")


def _best_table(run: FinishedRun, trained: ResolvedRun) -> Callable[[], SavedTable] | None:
    if not (width := trained.config.embeddings.width):
        return None
    return partial(SavedTable, run.place.folder.resolve() / BEST, width, trained.config.fit.seed)


def _resolved(run: FinishedRun, allow_import: bool) -> ResolvedRun:
    """The run as its directory holds it."""
    try:
        return read_resolved(saved_tree(str(run.path), "give a finished run's directory", allow_import=allow_import))
    except UsageError as error:
        raise FormatError(f"{run.path}/config.json: {error}") from None


def _is_of_ray(run: ResolvedRun) -> bool:
    return run.workers.launcher == "ray"


def spreads_graph(run: ResolvedRun, parallel: str) -> bool:
    """Whether the batch is the whole graph, spread over the workers; `auto`: where the run was trained so."""
    if parallel == "auto":
        return run.is_full_graph
    row = run.config.model.row("model", "nodes")
    if parallel == "graph" and (row is None or not row.graph_parallel):
        raise ConfigError(
            f"--parallel graph: expected a run whose model can be spread over workers ({GRAPH_PARALLEL}), got one of {run.config.model.name}"
        )
    if parallel == "graph" and getattr(run.config.model.options, "block", None) == "hyena":
        raise ConfigError("--parallel graph: hyena computes all nodes in one process; leave it out")
    return parallel == "graph"


def _check_names(url: str, given_names: tuple[str, ...], task: Task) -> None:
    """Raises ConfigError where classes, or labels, of the data that is predicted have other names than the run's."""
    names: tuple[str, ...] = getattr(task, "class_names", ()) or getattr(task, "names", ())
    for number, (own, other) in enumerate(zip(names, given_names, strict=False)):
        if own != other:
            raise ConfigError(f"{url}: label {number} is {other!r}, the run's is {own!r}; ingest it without labels")


def graph_set_subject(run: FinishedRun, options: PredictConfig) -> Subject:
    """The graphs of a set. Raises ConfigError where the run's model does not fit it, or it is another one than the run's."""
    if options.parallel == "graph":
        raise ConfigError("--parallel graph: expected a run on one graph, got one on a set of graphs")
    if options.relation is not None:
        raise ConfigError("--relation: expected a run on links of a knowledge graph, got one on graphs; leave it out")
    trained = _resolved(run, options.allow_import)
    config = trained.config
    store = open_graphs(options.graph or run.data_url, None if options.graph else run.snapshot)
    if options.verify and not options.plan:
        store.verify()
    manifest = store.manifest
    _check_same(run, store.url, manifest.content_hash, options.other_graph)
    target_names = tuple(run.state.identity["targets"])
    if manifest.labelled != run.state.identity.get("labelled"):
        raise ConfigError(
            f"{store.url}: expected a set of which {run.state.identity.get('labelled') or 'the graphs'} are predicted, got one with "
            f"{manifest.labelled or 'targets of graphs'}"
        )
    has_targets = set(target_names) <= set(store.target_names)
    columns = tuple(store.target_names.index(name) for name in target_names) if has_targets else None
    task = _graph_task(run, trained)
    if isinstance(task, Classification) and (columns or manifest.labelled):
        _check_names(store.url, store.class_names, task)
        most = float(manifest.num_classes or 0) - 1
        if columns:
            most = np.nanmax(store.target[:, list(columns)], initial=-1.0)
        if most >= task.num_classes:
            raise ConfigError(
                f"{store.url}: expected the run's classes 0 to {task.num_classes - 1}, got {most:g}; ingest it without targets"
            )
    batches = trained.evaluation["test"]
    samplers = {name: GraphSplitOptions(name, batches) for name in store.split_names}
    samplers[UNSPLIT] = GraphSplitOptions(None, batches)
    if manifest.content_hash != run.data_hash and manifest.provenance.get("split") == HASHED:
        samplers = {UNSPLIT: GraphSplitOptions(EVERY, batches)}  # nobody has split them, and the run has seen none

    def members(name: str) -> np.ndarray:
        graphs = np.arange(len(store)) if len(samplers) == 1 else store.unsplit()
        return predicted_ids(store, graphs if name == UNSPLIT else store.split(name))

    @contextmanager
    def serve() -> Iterator[Served]:
        yield look()

    def look() -> Served:
        return GraphData(store, columns, labels=isinstance(task, Classification)), members

    own = set_inputs(manifest, task.out_dim)
    inputs = replace(trained.inputs, node=own.node, edge=own.edge, out_dim=own.out_dim)
    return Subject(
        url=store.url,
        content_hash=manifest.content_hash,
        text=f"graphs {manifest.name}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes at {store.url}",
        samplers=samplers,
        build_model=_checked(run, store.url, replace(trained, inputs=inputs).build_model),
        task=task,
        target_names=target_names,
        has_targets=has_targets,
        fit=trained.fit,
        loader=config.loader,
        is_of_ray=_is_of_ray(trained),
        num_bytes=sum(entry.num_bytes for entry in manifest.files.values()),
        serve=serve,
        here=serve,
        look=look,
        places=partial(predicted_places, store) if manifest.labelled else None,
        source_ids=graph_ids(store),
    )


def _check_same(run: FinishedRun, url: str, content_hash: str, other: bool) -> None:
    if content_hash != run.data_hash and not other:
        raise ConfigError(
            f"{url}: expected what the run was trained on (content {run.data_hash[:12]}), found another ({content_hash[:12]}); pass "
            "--other-graph to predict it all the same"
        )


def _checked(run: FinishedRun, url: str, build: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    """`build`, tried once. Raises ConfigError where the run's weights do not fit what it makes for this data."""
    try:
        parse_weights(run.weights, run.weights_path, build())
    except (FormatError, ValueError) as error:
        raise ConfigError(f"{url}: the run's model does not fit this data: {error}") from None
    return build


def _graph_task(run: FinishedRun, trained: ResolvedRun, before: Mapping[str, Any] | None = None) -> Task:
    """The run's task, with what it knew of the training targets; `before`: where its summary does not tell."""
    component = trained.config.task
    if component.is_foreign:
        return component.options.build(trained.inputs)
    try:
        return TypeAdapter(_TASKS[component.name]).validate_python(run.summary.get("task", before))
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(f"{run.path}/summary.json: task: {first['loc']}: {first['msg']}") from None
