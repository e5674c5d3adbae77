"""The body of every node-classification job: prepare the graph, serve it, train on it, compare with the baselines, report."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.checkpoint import check_continues, latest_checkpoint, load_state
from cluster.metrics_hub import Record
from cluster.partition_server import ServerOptions, connect, partition_servers
from cluster.run_directory import RunDirectory, check_free, load_config
from cluster.session import SessionOptions, ray_session
from cluster.train_spec import (
    Metric,
    SamplerOptions,
    TrainOptions,
    TrainSpec,
    build_sampler,
    full_evaluation,
)
from cluster.trainer import WorkerOptions, choose_device, train
from jobs.baselines import Baselines, compute_baselines
from jobs.node_options import NodeJobOptions
from jobs.prepare_graph import prepare_graph
from jobs.progress import Progress, progress
from samplers.loader import LoaderOptions
from samplers.neighbor import NeighborOptions
from samplers.random_partition import RandomPartitionOptions
from samplers.router import Router
from storage.errors import ConfigError
from storage.graph import StoredGraph
from storage.manifest import Manifest
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID


def run_node_job(
    job: str,
    options: NodeJobOptions,
    config: Mapping[str, Any],
    build_model: Callable[[Manifest], torch.nn.Module],
    model_config: Callable[[Manifest], Mapping[str, Any]],
) -> int:
    """Runs the job; 0 where the model beats both baselines on the test split, else 1.

    `config` is the resolved configuration, saved with the run. `build_model` runs on every worker: its module takes a TorchBatch and
    returns logits [num_roots, num_classes].
    """
    started = time.monotonic()
    fit, run_options = options.fit, options.run
    train_sampler = _train_sampler(options)
    evaluation = _evaluation(options)
    loader = LoaderOptions(
        threads=options.batch.loader_threads, prefetch=options.batch.prefetch, timeout_s=run_options.batch_timeout_s
    )
    workers = WorkerOptions(run_options.workers, run_options.device, run_options.max_failures)
    server_options = ServerOptions(
        timeout_s=run_options.server_timeout_s, verify=options.graph.verify, local_reads=run_options.local_reads
    )
    train_options = _train_options(options)
    run_dir = _run_dir(job, options)
    graph = prepare_graph(options.graph)
    _check_graph(graph, options)
    manifest = graph.manifest
    the_model_config = model_config(manifest)
    session_options = SessionOptions(
        address=run_options.address,
        num_cpus=max(run_options.workers, torch.get_num_threads()),
        object_store_bytes=int(run_options.object_store_gb * 2**30),
        dashboard_port=run_options.dashboard_port,
    )
    print(
        f"graph {manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_partitions} partitions at {graph.url}",
        flush=True,
    )
    with ray_session(session_options) as session, partition_servers(graph, server_options) as servers:
        place = "a local Ray" if session.is_ours else f"the Ray cluster at {session.address}"
        print(f"{manifest.num_partitions} partition servers up on {place}", flush=True)
        on_gpu = choose_device(workers) == "gpu"
        if fit.precision == "bfloat16" or (fit.precision == "auto" and on_gpu):
            train_options = replace(train_options, precision="bfloat16")
        identity = _identity(manifest, options)
        _check_before_training(connect(servers), options, (train_sampler, *evaluation.values()))
        if run_options.resume is not None:
            _check_resume(run_dir, the_model_config, identity, fit.epochs)
        print("fitting the baselines (majority class, features only)", flush=True)
        baselines = compute_baselines(connect(servers), options.graph.split_set, fit.metric, fit.seed)
        run = RunDirectory.resume(run_dir, config) if run_options.resume else RunDirectory.create(run_dir, config)
        try:
            spec = TrainSpec(
                servers=servers,
                build_model=build_model,
                model_config=the_model_config,
                identity=identity,
                sampler=train_sampler,
                evaluation=evaluation,
                options=train_options,
                loader=loader,
            )
            with progress("training") as bar:
                result = train(spec, workers, run, _follow(bar, fit.epochs, fit.metric))
            summary = _summary(job, graph, options, baselines, result, run, time.monotonic() - started)
            run.write_summary(summary)
        finally:
            run.close()
    _print_summary(summary, fit.metric)
    return 0 if summary["beats_baselines"] else 1


def _train_options(options: NodeJobOptions) -> TrainOptions:
    fit = options.fit
    return TrainOptions(
        epochs=fit.epochs,
        learning_rate=fit.learning_rate,
        weight_decay=fit.weight_decay,
        schedule=fit.schedule,
        warmup_epochs=fit.warmup_epochs,
        clip_norm=fit.clip_norm,
        label_smoothing=fit.label_smoothing,
        metric=fit.metric,
        eval_every=fit.eval_every,
        checkpoint_every=fit.checkpoint_every,
        seed=fit.seed,
    )


def _train_sampler(options: NodeJobOptions) -> SamplerOptions:
    batch, seed, split_set = options.batch, options.fit.seed, options.graph.split_set
    if batch.sampler == "neighbor":
        return NeighborOptions(
            fanouts=batch.fanouts, batch_size=batch.batch_size, edges=batch.edges, seed=seed, split_set=split_set
        )
    if batch.evaluation == "sampled":
        raise ConfigError(
            "evaluation: 'sampled' needs the neighbor sampler; set --sampler neighbor or --evaluation full"
        )
    return RandomPartitionOptions(num_chunks=batch.chunks, seed=seed, split_set=split_set)


def _evaluation(options: NodeJobOptions) -> dict[str, SamplerOptions]:
    batch, split_set = options.batch, options.graph.split_set
    if batch.evaluation == "full":
        return full_evaluation(split_set, batch.eval_chunks)
    return {
        name: NeighborOptions(
            fanouts=batch.fanouts,
            batch_size=batch.batch_size,
            edges=batch.edges,
            seed=options.fit.seed,
            split_set=split_set,
            root_split=code,
            shuffle=False,
        )
        for name, code in (("train", SPLIT_TRAIN), ("valid", SPLIT_VALID), ("test", SPLIT_TEST))
    }


def _check_graph(graph: StoredGraph, options: NodeJobOptions) -> None:
    manifest = graph.manifest
    if manifest.label_kind != "class":
        raise ConfigError(f"{graph.url}: expected class labels, the graph has {manifest.label_kind or 'none'}")
    if not manifest.feature_dim:
        raise ConfigError(
            f"{graph.url}: expected node features, the graph has none; ingest it with features (jobs/ingest.py --edge-list.features)"
        )
    if options.graph.split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected a split set below {manifest.num_split_sets}, got {options.graph.split_set}; set --split-set"
        )
    if options.fit.metric == "rocauc" and manifest.num_classes != 2:
        raise ConfigError(
            f"metric rocauc: expected 2 classes, the graph has {manifest.num_classes}; pass --metric accuracy"
        )


def _identity(manifest: Manifest, options: NodeJobOptions) -> dict[str, Any]:
    """What a run may not change between its parts. Partitions are not in it: batches do not depend on them."""
    return {
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "split_set": options.graph.split_set,
        "metric": options.fit.metric,
        "seed": options.fit.seed,
    }


def _check_resume(run_dir: Path, model_config: Mapping[str, Any], identity: Mapping[str, Any], epochs: int) -> None:
    """Raises before anything of the run is touched where its checkpoint does not fit what is asked for."""
    checkpoint = latest_checkpoint(run_dir)
    if checkpoint is not None:
        check_continues(load_state(checkpoint), model_config, identity, epochs, str(checkpoint))


def _check_before_training(router: Router, options: NodeJobOptions, samplers: Iterable[SamplerOptions]) -> None:
    """Raises ConfigError where a split cannot be trained on or scored, or a sampler's options do not fit the graph."""
    for name, code in (("train", SPLIT_TRAIN), ("valid", SPLIT_VALID), ("test", SPLIT_TEST)):
        nodes = router.list_split(options.graph.split_set, code).node
        label = router.fetch(nodes, feature=False).label
        assert label is not None
        classes = np.unique(label[label >= 0])
        labelled = int(np.count_nonzero(label >= 0))
        needed = options.run.workers if name == "train" else 1
        if labelled < needed:
            raise ConfigError(
                f"split {name}: expected at least {needed} labelled nodes (one root per worker), the graph has {labelled} "
                f"among {len(nodes)}; lower --workers or ingest the graph with another split"
            )
        if options.fit.metric == "rocauc" and len(classes) < 2:
            raise ConfigError(
                f"split {name}: rocauc needs nodes of both classes, the graph has only class {int(classes[0])}; "
                "pass --metric accuracy or ingest the graph with another split"
            )
    for sampler_options in samplers:
        build_sampler(router, sampler_options, options.run.workers).num_batches  # noqa: B018 - checks its options


def _run_dir(job: str, options: NodeJobOptions) -> Path:
    """Where the run lives; raises before any work where it cannot."""
    if options.run.resume is not None:
        path = Path(options.run.resume)
        load_config(path)
        return path
    path = Path(options.run.run_dir or f"runs/{job}-{time.strftime('%Y%m%d-%H%M%S')}")
    check_free(path)
    return path


def _follow(bar: Progress, num_epochs: int, metric: Metric) -> Callable[[Record], None]:
    """Turns records of the hub into progress."""
    note = ""

    def on_record(record: Record) -> None:
        nonlocal note
        if record["kind"] == "epoch":
            valid = record.get(f"valid_{metric}")
            shown = "" if valid is None else f"  valid {metric} {valid:.4f}"
            note = f"loss {record['train_loss']:.4f}{shown}  {record['nodes_per_s']:,.0f} nodes/s"
            bar.update(record["epoch"] + 1, num_epochs, note)
        elif record["kind"] == "step" and record["num_steps"] > 1:
            bar.update(record["epoch"] + record["step"] / record["num_steps"], num_epochs, note)
        elif record["kind"] == "start" and record["epoch"]:
            bar.update(record["epoch"], num_epochs, f"continuing from epoch {record['epoch']}")

    return on_record


def _summary(
    job: str,
    graph: StoredGraph,
    options: NodeJobOptions,
    baselines: Baselines,
    result: Mapping[str, Any],
    run: RunDirectory,
    wall_s: float,
) -> dict[str, Any]:
    metric = options.fit.metric
    epochs = run.metrics()
    train_s = sum(epoch["train_s"] for epoch in epochs)
    scores = {split: values[metric] for split, values in result["scores"].items()}
    features_only = None if baselines.features_only is None else baselines.features_only["test"]
    return {
        "job": job,
        "graph": graph.url,
        "graph_hash": graph.manifest.content_hash,
        "metric": metric,
        "scores": scores,
        "counts": {split: values["count"] for split, values in result["scores"].items()},
        "baselines": asdict(baselines),
        "beats_baselines": scores["test"] > max(baselines.majority["test"], features_only or 0.0),
        "best_epoch": result["best_epoch"],
        "epochs": len(epochs),
        "num_parameters": result["num_parameters"],
        "workers": result["world_size"],
        "device": result["device"],
        "train_s": train_s,
        "wait_share": sum(epoch["wait_s"] for epoch in epochs) / max(train_s, 1e-9),
        "nodes_per_s": sum(epoch["nodes_per_s"] * epoch["train_s"] for epoch in epochs) / max(train_s, 1e-9),
        "edges_per_s": sum(epoch["edges_per_s"] * epoch["train_s"] for epoch in epochs) / max(train_s, 1e-9),
        "wall_s": wall_s,
        "run_dir": str(run.path.resolve()),
    }


def _print_summary(summary: Mapping[str, Any], metric: str) -> None:
    scores, baselines = summary["scores"], summary["baselines"]
    rows = [("model", scores["valid"], scores["test"])]
    if baselines["features_only"] is not None:
        rows.append(("features only", baselines["features_only"]["valid"], baselines["features_only"]["test"]))
    rows.append(("majority class", baselines["majority"]["valid"], baselines["majority"]["test"]))
    print(f"\n{metric:<16}{'valid':>9}{'test':>9}")
    for name, valid, test in rows:
        print(f"{name:<16}{valid:>9.4f}{test:>9.4f}")
    print(
        f"\nbest epoch {summary['best_epoch'] + 1} of {summary['epochs']}, {summary['num_parameters']:,} parameters, "
        f"{summary['workers']} workers on {summary['device']}\n"
        f"{summary['nodes_per_s']:,.0f} nodes/s, {summary['edges_per_s']:,.0f} edges/s while training; "
        f"waited for batches {summary['wait_share']:.1%} of it; {summary['wall_s']:.0f} s in all\n"
        f"run directory: {summary['run_dir']}"
    )
    if not summary["beats_baselines"]:
        print("the model does not beat both baselines: exit status 1")
