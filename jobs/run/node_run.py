"""A run on the nodes of one graph: prepare the graph, serve it, train on it, compare with the baselines, report."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from cluster.checkpoint import DATA
from cluster.partition_server import connect, partition_servers
from cluster.placement import Resources, cluster_resources
from cluster.run_directory import RunDirectory
from cluster.session import ray_session
from cluster.train_spec import TrainSpec
from cluster.trainer import train
from cluster.training_data import NodeData, OpenNodes
from jobs.run.baselines import Baselines, compute_baselines
from jobs.run.config import NodeDataOptions, RunConfig, with_snapshot
from jobs.run.node_task import check_graph, check_splits, node_task
from jobs.run.prepare_graph import prepare_graph, store_encoding
from jobs.run.progress import progress
from jobs.run.registry import Inputs
from jobs.run.resolve import Facts, ResolvedRun, resolve
from jobs.run.training_run import (
    check_resume,
    choose_run_dir,
    follow,
    known_resources,
    open_run,
    print_end,
    run_summary,
    session_options,
)
from jobs.run.verdict import end_of_run, judge
from jobs.run.whole_graph import WholeGraphData
from models.options.features import Features
from samplers.options import RandomPartitionOptions
from samplers.random_partition import count_chunks
from samplers.router import Router, local_router
from storage.arrow_files import is_local
from storage.errors import ConfigError
from storage.graph import StoredGraph
from storage.manifest import Manifest
from storage.source import SourceInfo


def run_nodes(job: str, config: RunConfig) -> int:
    """Trains, and returns the exit status: 0, or 1 where the model does not beat the baselines and `run.require_baselines` says it must."""
    started = time.monotonic()
    resources = known_resources(config)
    check_options(config)
    resolve(
        config, Facts(Inputs(Features(dim=1), out_dim=2, task="node"), {}, resources)
    )  # what needs no graph is refused at once
    run_dir = choose_run_dir(job, config.run)
    graph = prepare_graph(node_data(config))
    resolved = resolve_nodes(config, graph, resources)
    check_run(graph, resolved)
    if resolved.encoding is not None:
        graph = store_encoding(graph, resolved.encoding)
    config = with_snapshot(config, graph.manifest.snapshot)  # a resume opens the same one
    resolved = replace(resolved, config=config)
    manifest, fit, evaluation = graph.manifest, resolved.fit, config.evaluation
    data = whole_graph_data(graph, resolved) if resolved.is_full_graph else None
    if config.run.resume is not None:
        check_resume(run_dir, resolved.architecture, resolved.identity, fit.epochs)
    print(
        f"graph {manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_partitions} partitions at {graph.url}",
        flush=True,
    )
    if evaluation.estimate is not None:
        print(f"scores are estimates: {evaluation.estimate}; {evaluation.kept}", flush=True)
    print("starting Ray and the partition servers", flush=True)
    with ray_session(session_options(config)) as session, partition_servers(graph, config.servers) as servers:
        where = "a local Ray" if session.is_ours else f"the Ray cluster at {session.address}"
        before = resolved.workers
        resolved = replace(resolve_nodes(config, graph, cluster_resources(resolved.workers)), config=config)
        for reason in resolved.reasons:
            print(reason, flush=True)
        if (
            data is not None and session.is_ours and resolved.workers.device == "cpu"
        ):  # a GPU's worker looks at it itself
            data.check_memory(graph, resolved.workers.most)
        print(f"{manifest.num_partitions} partition servers up on {where}", flush=True)
        router = connect(servers)
        if resolved.workers != before or not is_local(graph.filesystem):
            check_splits(manifest, split_set(config), metric_of(config), num_roots(resolved))
            check_samplers(router, resolved)
        task = node_task(resolved, manifest)
        print("fitting the baselines (majority class, features only)", flush=True)
        baselines = compute_baselines(router, split_set(config), task.metric, config.fit.seed)
        with open_run(run_dir, config.run, resolved.tree()) as run:
            spec = TrainSpec(
                data=NodeData(servers) if data is None else data,
                build_model=resolved.build_model,
                task=task,
                model_config=resolved.architecture,
                identity=resolved.identity,
                sampler=resolved.training if data is None else data.roots()["train"],
                evaluation=resolved.evaluation if data is None else data.roots(),
                is_estimate=evaluation.estimate is not None,
                keep_best=evaluation.keeps_best,
                options=resolved.fit,
                loader=config.loader,
            )
            with progress("training") as bar:
                result = train(spec, resolved.workers, run, follow(bar, fit.epochs, task.metric, "nodes"))
            summary = _summary(job, graph, config, task.metric, baselines, result, run, time.monotonic() - started)
            run.write_summary(summary)
    print_end(summary, f"{summary['nodes_per_s']:,.0f} nodes/s, {summary['edges_per_s']:,.0f} edges/s", run_dir)
    return end_of_run(summary, require_baselines=config.run.require_baselines)


def node_data(config: RunConfig) -> NodeDataOptions:
    """The graph's options of a run on nodes."""
    assert isinstance(config.data, NodeDataOptions)
    return config.data


def split_set(config: RunConfig) -> int:
    return node_data(config).split_set


def metric_of(config: RunConfig) -> str:
    return str(getattr(config.task.options, "metric", ""))


def check_options(config: RunConfig) -> None:
    """Raises ConfigError for what the embedded graph would not have."""
    if node_data(config).path is None and metric_of(config) == "rocauc":
        raise ConfigError("metric rocauc: expected 2 classes, the embedded graph has 47; set --task.metric accuracy")


def node_inputs(data: Manifest | SourceInfo) -> Inputs:
    """What the graph decides of a model."""
    return Inputs(node=Features(dim=data.feature_dim), out_dim=data.num_classes or 1, task="node")


def resolve_nodes(config: RunConfig, graph: StoredGraph, resources: Resources | None) -> ResolvedRun:
    """The run on this graph. Raises ConfigError where the two do not fit."""
    manifest = graph.manifest
    if split_set(config) >= manifest.num_split_sets or manifest.label_kind != "class" or not manifest.feature_dim:
        check_graph(graph, split_set(config), metric_of(config), 1)
    # Partitions are in it only where they are the chunks: else no batch depends on them.
    partitioned = getattr(config.sampler.options, "cut", "random") == "partitions"
    identity = {
        **({"partitions": manifest.content_hash} if partitioned else {}),
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "split_set": split_set(config),
        DATA: manifest.measured.data_digest(split_set(config)),
    }
    return resolve(config, Facts(node_inputs(manifest), identity, resources))


def num_roots(resolved: ResolvedRun) -> int:
    """How many labelled nodes the training split needs at least."""
    return 1 if resolved.is_full_graph else resolved.workers.num_workers or 1


def check_run(graph: StoredGraph, resolved: ResolvedRun) -> None:
    """Raises ConfigError where the graph has not what the run needs.

    Samplers are tried where the graph's files are at hand; elsewhere once the servers are up.
    """
    config = resolved.config
    check_graph(graph, split_set(config), metric_of(config), num_roots(resolved))
    if isinstance(resolved.training, RandomPartitionOptions):
        count_chunks(resolved.training, graph.manifest)
    if is_local(graph.filesystem):
        check_samplers(local_router(graph), resolved)


def check_samplers(router: Router, resolved: ResolvedRun) -> None:
    """Raises ConfigError where a sampler's options do not fit the graph."""
    if resolved.is_full_graph:
        return
    data = OpenNodes(router)
    for options in (resolved.training, *resolved.evaluation.values()):
        plain = (
            replace(options, encodings=()) if hasattr(options, "encodings") else options
        )  # they may not be stored yet
        data.sampler(plain, resolved.workers.num_workers or 1).num_batches  # noqa: B018 - checks its options


def whole_graph_data(graph: StoredGraph, resolved: ResolvedRun) -> WholeGraphData:
    """The data of a run whose one batch is the whole graph."""
    return WholeGraphData.of(graph, split_set(resolved.config), resolved.model_config)


def _summary(
    job: str,
    graph: StoredGraph,
    config: RunConfig,
    metric: str,
    baselines: Baselines,
    result: Mapping[str, Any],
    run: RunDirectory,
    wall_s: float,
) -> dict[str, Any]:
    scores = {split: values[metric] for split, values in result["scores"].items()}
    return {
        "job": job,
        "graph": graph.url,
        "graph_hash": graph.manifest.content_hash,
        "snapshot": graph.manifest.snapshot,
        **judge(metric, scores, asdict(baselines), estimate=config.evaluation.estimate),
        **run_summary(result, run, ("nodes_per_s", "edges_per_s")),
        "wall_s": wall_s,
    }
