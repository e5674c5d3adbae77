"""From a finished run to what its model predicts: the graph or set, the model, and the samplers by which its splits were scored."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from cluster.checkpoint import load_weights
from cluster.options import ServerOptions
from cluster.partition_server import connect, partition_servers
from cluster.prediction import UNSPLIT, PredictedData
from cluster.prediction_data import PredictedNodeData, PredictedNodes, unsplit
from cluster.tasks import BinaryClassification, Classification, Regression, Task
from cluster.training_data import GraphData, GraphSplitOptions
from jobs.run.finished_run import FinishedRun
from jobs.run.graph_job import eval_batches, graph_task, target_columns
from jobs.run.node_job import evaluation_samplers
from jobs.run.predicted_shards import PredictedShardData
from jobs.run.prepare_graph import store_encoding
from jobs.run.resume import read_config
from jobs.run.run_models import GraphModel, NodeModel, WholeGraphModel
from jobs.run.run_options import FitOptions, RunOptions
from samplers.options import LoaderOptions
from samplers.router import local_router
from storage.arrow_files import is_local
from storage.encodings import find_encoding
from storage.errors import ConfigError, FormatError
from storage.graph import StoredGraph, open_graph
from storage.graph_store import StoredGraphs, open_graphs
from storage.source import SPLIT_NAMES

_NODE_JOBS = ("products_geco", "products_primphormer", "products_tokengt", "arxiv_ppgt")
_GRAPH_JOB = "pcqm4m_tokengt"
_TASKS: dict[str, type] = {"regression": Regression, "binary": BinaryClassification, "classes": Classification}

Parallel = Literal["auto", "data", "graph"]
# What a process needs to reach the data, and the ids of a split's members by the split's name.
Served = tuple[PredictedData, Callable[[str], np.ndarray]]


@dataclass(frozen=True)
class LocalNodeData:
    """One graph whose files lie here, for the process that names it."""

    graph: StoredGraph

    def open(self) -> PredictedNodes:
        return PredictedNodes(local_router(self.graph))


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
    precision: str
    seed: int
    loader: LoaderOptions
    serve: Callable[[], Any]  # a context manager that yields Served; needs a Ray session
    look: Callable[[], Served]  # the same in this process, nothing started or written; ConfigError where it cannot be
    # Where workers predict the whole graph together: the bytes of one of so many; ConfigError where they do not fit here.
    shard_bytes: Callable[[int], int] | None = None
    estimate: str | None = None  # why predictions and scores leave a part of the graph out; None: they do not

    @property
    def together(self) -> bool:
        """Whether the batch is the whole graph, spread over the workers."""
        return self.shard_bytes is not None


def node_subject(
    run: FinishedRun, url: str | None, *, other: bool, verify: bool, parallel: Parallel = "auto"
) -> Subject:
    """The nodes of one graph. Raises ConfigError where the run's model does not fit it, or it is another one than the run's."""
    if run.job not in _NODE_JOBS:
        raise ConfigError(
            f"{run.path}: expected a run of {', '.join(_NODE_JOBS)} or {_GRAPH_JOB}, got one of {run.job!r}"
        )
    module = importlib.import_module(f"jobs.{run.job}")
    config = read_config(module.Config, str(run.path), "give a finished run's directory")
    model: NodeModel = module.node_model(config)
    graph = open_graph(url or run.data_url, None if url else run.snapshot)
    manifest = graph.manifest
    _check_same(run, graph.url, manifest.content_hash, other)
    num_classes = int(run.state.model_config["out_dim"])
    if (manifest.num_classes or 0) > num_classes:
        raise ConfigError(
            f"{graph.url}: expected at most the run's {num_classes} classes, got {manifest.num_classes}; ingest it without labels"
        )
    shown = replace(manifest, num_classes=num_classes)
    if config.graph.split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected split set {config.graph.split_set}, as the run had it, got a graph with {manifest.num_split_sets}; "
            "ingest it with a split, be it one that names no node"
        )
    names = () if model.encoding is None else (model.encoding.name,)
    samplers = {split: replace(options, encodings=names) for split, options in evaluation_samplers(config).items()}
    samplers[UNSPLIT] = unsplit(samplers["train"])
    whole = _whole(run, config, model, parallel)
    build = model.build if whole is None else whole.build
    build_model = _checked(run, graph.url, lambda: build(shown))
    shards = None if whole is None else PredictedShardData.of(whole.data(replace(graph, manifest=shown)))
    servers = ServerOptions(timeout_s=config.run.server_timeout_s, verify=verify, local_reads=config.run.local_reads)

    @contextmanager
    def serve() -> Iterator[Served]:
        encoded = graph if model.encoding is None else store_encoding(graph, model.encoding)
        with partition_servers(encoded, servers) as running:
            router = connect(running)
            codes = {name: code for code, name in enumerate(SPLIT_NAMES)}
            yield (
                shards or PredictedNodeData(running),
                lambda name: router.list_split(config.graph.split_set, codes[name]).original_id,
            )

    def look() -> Served:
        if not is_local(graph.filesystem):
            raise ConfigError(f"{graph.url} is not on this machine, where batches would be drawn")
        if model.encoding is not None and find_encoding(graph, model.encoding.name) is None:
            raise ConfigError(
                f"{graph.url} has no {model.encoding.name} yet; the prediction computes it, or python jobs/encode.py"
            )
        data = LocalNodeData(graph)
        codes = {name: code for code, name in enumerate(SPLIT_NAMES)}
        router = data.open().router
        return shards or data, lambda name: router.list_split(config.graph.split_set, codes[name]).original_id

    return Subject(
        url=graph.url,
        content_hash=manifest.content_hash,
        text=f"graph {manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges at {graph.url}",
        samplers=samplers if shards is None else shards.roots(UNSPLIT),
        build_model=build_model,
        task=Classification(num_classes, config.fit.metric),
        target_names=(),
        has_targets=manifest.label_kind == "class",
        **_shared(run, config.fit, config.run, config.batch),
        serve=serve,
        look=look,
        shard_bytes=None if shards is None else lambda workers: shards.graph.check_memory(graph, workers),
        estimate=config.batch.estimate if shards is None else None,
    )


def _whole(run: FinishedRun, config: Any, model: NodeModel, parallel: Parallel) -> WholeGraphModel | None:
    """The model over shards of the whole graph, where it is to be; `auto`: where the run was trained so."""
    if parallel == "auto":
        parallel = getattr(config, "parallel", "data")
    if parallel == "data":
        return None
    if model.whole is None:
        raise ConfigError(
            f"--parallel graph: expected a run whose model can be spread over workers (GECO's), got one of {run.job}"
        )
    return model.whole


def graph_set_subject(
    run: FinishedRun, url: str | None, *, other: bool, verify: bool, parallel: Parallel = "auto"
) -> Subject:
    """The graphs of a set. Raises ConfigError where the run's model does not fit it, or it is another one than the run's."""
    if parallel == "graph":
        raise ConfigError("--parallel graph: expected a run on one graph, got one on a set of graphs")
    module = importlib.import_module(f"jobs.{_GRAPH_JOB}")
    config = read_config(module.Config, str(run.path), "give a finished run's directory")
    model: GraphModel = module.graph_model(config)
    store = open_graphs(url or run.data_url, None if url else run.snapshot)
    if verify:
        store.verify()
    manifest = store.manifest
    _check_same(run, store.url, manifest.content_hash, other)
    same = manifest.content_hash == run.data_hash
    target_names = tuple(run.state.identity["targets"])
    has_targets = set(target_names) <= set(store.target_names)
    columns = tuple(store.target_names.index(name) for name in target_names) if has_targets else None
    task = _task(run, config, store if same else None)
    if isinstance(task, Classification) and columns is not None:
        most = np.nanmax(store.target[:, list(columns)], initial=-1.0)
        if most >= task.num_classes:
            raise ConfigError(
                f"{store.url}: expected the run's classes 0 to {task.num_classes - 1}, got {most:g}; ingest it without targets"
            )
    batches = eval_batches(config)
    splits: list[str | None] = [*store.split_names, None]

    def members(name: str) -> np.ndarray:
        graphs = store.unsplit() if name == UNSPLIT else store.split(name)
        return store.original_id[graphs]

    @contextmanager
    def serve() -> Iterator[Served]:
        yield look()

    def look() -> Served:
        return GraphData(store, columns, labels=isinstance(task, Classification)), members

    return Subject(
        url=store.url,
        content_hash=manifest.content_hash,
        text=f"graphs {manifest.name}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes at {store.url}",
        samplers={UNSPLIT if split is None else split: GraphSplitOptions(split, batches) for split in splits},
        build_model=_checked(run, store.url, lambda: model.build(manifest, task.out_dim)),
        task=task,
        target_names=target_names,
        has_targets=has_targets,
        **_shared(run, config.fit, config.run, config.batch),
        serve=serve,
        look=look,
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
        load_weights(run.weights_path, build())
    except (FormatError, ValueError) as error:
        raise ConfigError(f"{url}: the run's model does not fit this data: {error}") from None
    return build


def _task(run: FinishedRun, config: Any, store: StoredGraphs | None) -> Task:
    """The run's task; `store`: what it was trained on, where that is at hand."""
    saved = run.summary.get("task")
    if saved is None:  # runs of earlier versions: their training targets tell
        if store is None:
            raise ConfigError(
                f"{run.path}: expected the statistics of the run's targets in summary.json, found none: it was trained by an earlier "
                "version; predict the set that it was trained on, or train it again"
            )
        return graph_task(store, target_columns(store, config), config.fit)
    try:
        return TypeAdapter(_TASKS[config.fit.task]).validate_python(saved)
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(f"{run.path}/summary.json: task: {first['loc']}: {first['msg']}") from None


def _shared(run: FinishedRun, fit: FitOptions, options: RunOptions, batch: Any) -> dict[str, Any]:
    """What the subjects of both kinds have of the run's options."""
    bfloat16 = fit.precision == "bfloat16" or (fit.precision == "auto" and run.on_gpu)
    return {
        "precision": "bfloat16" if bfloat16 else "float32",
        "seed": fit.seed,
        "loader": LoaderOptions(
            threads=batch.loader_threads, prefetch=batch.prefetch, timeout_s=options.batch_timeout_s
        ),
    }
