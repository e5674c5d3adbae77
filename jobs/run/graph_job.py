"""The body of every job over many graphs: open the set, train on it, compare with the baselines, report."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.checkpoint import DATA
from cluster.options import TrainOptions, WorkerOptions
from cluster.placement import place
from cluster.run_directory import RunDirectory
from cluster.session import ray_session
from cluster.tasks import BinaryClassification, Classification, Regression, Task
from cluster.train_spec import TrainSpec
from cluster.trainer import train
from cluster.training_data import GraphData, GraphSplitOptions
from jobs.run.graph_baselines import GraphBaselines, compute_graph_baselines
from jobs.run.graph_options import GraphFitOptions, GraphJobOptions
from jobs.run.option_checks import at_least, check_graph_fit, check_training_options
from jobs.run.progress import progress
from jobs.run.training_run import (
    check_resume,
    choose_run_dir,
    follow,
    kept_line,
    open_run,
    print_scores,
    run_summary,
    session_options,
    train_options,
    wants_bfloat16,
    worker_options,
)
from jobs.run.verdict import end_of_run, judge
from samplers.options import GraphBatchOptions, LoaderOptions
from storage.errors import ConfigError, DataError
from storage.file_stamps import take_stamps
from storage.graph_set_manifest import GraphSetManifest
from storage.graph_store import StoredGraphs


def run_graph_job(
    job: str,
    options: GraphJobOptions,
    config: Mapping[str, Any],
    prepare: Callable[[GraphJobOptions], StoredGraphs],
    build_model: Callable[[GraphSetManifest, int], torch.nn.Module],
    model_config: Callable[[GraphSetManifest, int], Mapping[str, Any]],
) -> int:
    """Runs the job and returns its exit status: 0, or 1 where the model does not beat the baselines and `--require-baselines` says it must.

    `config` is the resolved configuration, saved with the run. `prepare` opens the set, making it first where it must.
    `build_model(manifest, out_dim)` runs on every worker: its module takes a TorchGraphBatch and returns predictions
    [num_graphs, out_dim], or a StepOutput with them.
    """
    if options.plan:
        from jobs.plan.graph_plan import plan_graph_run  # it builds on this module

        return plan_graph_run(job, options, build_model, model_config)
    config = {name: value for name, value in config.items() if name != "plan"}
    started = time.monotonic()
    fit, run_options = options.fit, options.run
    parts = graph_parts(job, options)
    workers, fitted, batches, run_dir = parts.workers, parts.fitted, parts.batches, parts.run_dir
    store = prepare(options)
    manifest = store.manifest
    config["graphs"] = asdict(replace(options.graphs, snapshot=manifest.snapshot))  # a resume opens the same one
    columns = target_columns(store, options)
    task = graph_task(store, columns, fit)
    splits = scored_splits(store, columns, task, fit, workers.num_workers or 1)
    the_model_config = model_config(manifest, task.out_dim)
    stamps = take_stamps(store.url, store.manifest.files.values())
    stamps.verify()
    data = GraphData(store, columns, labels=fit.task == "classes", stamps=stamps)
    samplers = {split: GraphSplitOptions(split, parts.eval_batches) for split in splits}
    samplers["train"] = GraphSplitOptions("train", batches)
    check_batches(data, samplers, workers.num_workers or 1)
    identity = run_identity(store, columns, task, options)
    if run_options.resume is not None:
        check_resume(run_dir, the_model_config, identity, fit.epochs)
    print(
        f"graphs {manifest.name}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges at {store.url}; "
        f"target {', '.join(store.target_names[column] for column in columns)}",
        flush=True,
    )
    print("fitting the baselines (mean, composition only)", flush=True)
    baselines = compute_graph_baselines(store, columns, task, splits)
    with ray_session(session_options(run_options)):
        workers = place(workers)
        if workers != parts.workers:
            splits = scored_splits(store, columns, task, fit, workers.most)
            check_batches(data, samplers, workers.most)
        if wants_bfloat16(fit, workers):
            fitted = replace(fitted, precision="bfloat16")
        with open_run(run_dir, run_options, config) as run:
            spec = TrainSpec(
                data=data,
                build_model=lambda: build_model(manifest, task.out_dim),
                task=task,
                model_config=the_model_config,
                identity=identity,
                sampler=samplers["train"],
                evaluation={split: samplers[split] for split in splits},
                options=fitted,
                loader=parts.loader,
            )
            with progress("training") as bar:
                result = train(spec, workers, run, follow(bar, fit.epochs, task.metric, "graphs"))
            summary = _summary(job, store, task, baselines, result, run, time.monotonic() - started)
            run.write_summary(summary)
    _print_summary(summary)
    return end_of_run(summary, require_baselines=run_options.require_baselines)


@dataclass(frozen=True)
class GraphParts:
    """What the options alone decide."""

    batches: GraphBatchOptions
    eval_batches: GraphBatchOptions
    loader: LoaderOptions
    workers: WorkerOptions
    fitted: TrainOptions
    run_dir: Path


def graph_parts(job: str, options: GraphJobOptions) -> GraphParts:
    """Raises ConfigError, before anything is prepared, for options that cannot work."""
    check_training_options(options.fit, options.run, options.batch)
    check_graph_fit(options.fit)
    return GraphParts(
        batches=train_batches(options),
        eval_batches=eval_batches(options),
        loader=LoaderOptions(
            threads=options.batch.loader_threads, prefetch=options.batch.prefetch, timeout_s=options.run.batch_timeout_s
        ),
        workers=worker_options(options.run),
        fitted=train_options(options.fit),
        run_dir=choose_run_dir(job, options.run),
    )


def train_batches(options: GraphJobOptions) -> GraphBatchOptions:
    batch = options.batch
    for name, least in (("batch_size", 1), ("eval_batch_size", 1), ("batch_nodes", 0), ("batch_pairs", 0)):
        at_least(batch, name, least)
    ratio = batch.bucket_ratio
    if ratio is not None and ratio != 0 and not ratio >= 1:
        raise ConfigError(f"bucket_ratio: expected at least 1, or 0 for any, got {ratio}; set --bucket-ratio")
    return GraphBatchOptions(
        max_graphs=batch.batch_size,
        max_nodes=batch.batch_nodes,
        max_node_pairs=batch.batch_pairs,
        bucket_ratio=_bucket_ratio(batch.bucket_ratio),
        oversize="alone",
        seed=options.fit.seed,
    )


def _bucket_ratio(option: float | None) -> float:
    if option is None:
        return 1.2
    return math.inf if option == 0 else option


def eval_batches(options: GraphJobOptions) -> GraphBatchOptions:
    return replace(train_batches(options), max_graphs=options.batch.eval_batch_size, shuffle=False)


def target_columns(store: StoredGraphs, options: GraphJobOptions) -> tuple[int, ...]:
    """Which targets the run is about."""
    names, wanted = store.target_names, options.graphs.target
    if not names:
        raise ConfigError(f"{store.url}: expected targets, the set has none; ingest it with a target")
    if wanted is None:
        return tuple(range(len(names)))
    if wanted not in names:
        raise ConfigError(f"{store.url}: expected a target of {', '.join(names)}, got {wanted!r}; set --target")
    return (names.index(wanted),)


def scored_splits(
    store: StoredGraphs, columns: tuple[int, ...], task: Task, fit: GraphFitOptions, num_workers: int
) -> tuple[str, ...]:
    """ "valid", and "test" where it can be scored. Raises ConfigError where "valid" or "train" cannot serve."""
    found = []
    for split in ("train", "valid", "test"):
        graphs = store.split(split) if split in store.split_names else np.empty(0, np.int64)
        target = store.target[graphs][:, list(columns)]
        enough, needed = bool((~np.isnan(target)).any()), "a target"
        if fit.task == "binary" or task.metric == "rocauc":
            enough, needed = bool(((target == 1).any(axis=0) & (target == 0).any(axis=0)).any()), "both answers"
        if fit.task == "classes" and enough and np.nanmax(target) >= task.out_dim:
            raise ConfigError(
                f"{store.url}: split {split}: expected the training split's classes 0 to {task.out_dim - 1}, got {np.nanmax(target):g}; "
                "ingest the set with another split"
            )
        if enough and len(graphs) >= num_workers:
            found.append(split)
        elif split != "test":
            raise ConfigError(
                f"{store.url}: split {split}: expected at least {num_workers} graphs (one per worker) with {needed}, got {len(graphs)} "
                "graphs; lower --workers or ingest the set with another split"
            )
    return tuple(found[1:])


def graph_task(store: StoredGraphs, columns: tuple[int, ...], fit: GraphFitOptions) -> Task:
    """The task with what it must know of the training split."""
    training = store.manifest.measured.parts[store.split_names.index("train") + 1]
    names = [store.target_names[column] for column in columns]
    means, deviations = [], []
    for column, name in zip(columns, names, strict=True):
        found = training.targets[column]
        if not found.num_labelled:
            raise ConfigError(f"{store.url}: target {name}: no training graph has one; choose with --target")
        if found.mean is None or found.std is None:
            raise DataError(f"{store.url}: expected finite targets or NaN, got infinity in the training split")
        means.append(found.mean)
        deviations.append(found.std or 1.0)
    if fit.task != "regression":
        target = store.target[store.split("train")][:, list(columns)].astype(np.float64)
        return (_binary_task if fit.task == "binary" else _class_task)(store.url, target, names, fit)
    metric = "mae" if fit.metric == "auto" else fit.metric
    return Regression(
        mean=tuple(means),
        scale=tuple(deviations),
        kind=fit.loss,
        huber_delta=fit.huber_delta,
        metric=metric,
    )


def _binary_task(url: str, target: np.ndarray, names: list[str], fit: GraphFitOptions) -> Task:
    other = ~np.isnan(target) & (target != 0) & (target != 1)
    if other.any():
        column = int(np.argmax(other.any(axis=0)))
        raise ConfigError(
            f"{url}: target {names[column]}: expected 0, 1 or nothing, got {target[other[:, column], column][0]:g}; set --task regression"
        )
    positive, negative = np.count_nonzero(target == 1, axis=0), np.count_nonzero(target == 0, axis=0)
    weight = np.where((positive > 0) & (negative > 0), negative / np.maximum(positive, 1), 1.0)
    return BinaryClassification(
        num_tasks=target.shape[1],
        metric="rocauc" if fit.metric == "auto" else fit.metric,
        label_smoothing=fit.label_smoothing,
        positive_weight=tuple(weight.tolist()) if fit.class_weights == "balanced" else None,
    )


def _class_task(url: str, target: np.ndarray, names: list[str], fit: GraphFitOptions) -> Task:
    if len(names) != 1:
        raise ConfigError(f"{url}: expected one target with numbers of classes, got {', '.join(names)}; set --target")
    known = target[~np.isnan(target)]
    if (known < 0).any() or (known != np.floor(known)).any():
        raise ConfigError(f"{url}: target {names[0]}: expected classes 0, 1, 2 …, got others; set --task regression")
    count = np.bincount(known.astype(np.int64), minlength=2)
    weight = np.where(count > 0, count.sum() / (len(count) * np.maximum(count, 1)), 1.0)
    return Classification(
        num_classes=len(count),
        metric="accuracy" if fit.metric == "auto" else fit.metric,
        label_smoothing=fit.label_smoothing,
        class_weight=tuple(weight.tolist()) if fit.class_weights == "balanced" else None,
    )


def check_batches(data: GraphData, samplers: Mapping[str, GraphSplitOptions], num_workers: int) -> None:
    """Raises ConfigError where a sampler's options do not fit the graphs."""
    opened = data.open()
    for sampler_options in samplers.values():
        opened.sampler(sampler_options, num_workers).num_batches  # noqa: B018 - checks its options


def run_identity(store: StoredGraphs, columns: tuple[int, ...], task: Task, options: GraphJobOptions) -> dict[str, Any]:
    """What a run may not change between its parts."""
    manifest = store.manifest
    averaged = {} if options.fit.ema_decay is None else {"ema_decay": options.fit.ema_decay}
    return {
        **averaged,
        "graphs": manifest.name,
        "num_graphs": manifest.num_graphs,
        "num_nodes": manifest.num_nodes,
        "targets": [manifest.target_names[column] for column in columns],
        "task": options.fit.task,
        "metric": task.metric,
        "seed": options.fit.seed,
        DATA: manifest.measured.digest[:16],
    }


def _summary(
    job: str,
    store: StoredGraphs,
    task: Task,
    baselines: GraphBaselines,
    result: Mapping[str, Any],
    run: RunDirectory,
    wall_s: float,
) -> dict[str, Any]:
    scores = {split: values[task.metric] for split, values in result["scores"].items()}
    return {
        "job": job,
        "graphs": store.url,
        "graphs_hash": store.manifest.content_hash,
        "snapshot": store.manifest.snapshot,
        "task": dict(vars(task)),
        **judge(task.metric, scores, asdict(baselines), higher_is_better=task.higher_is_better),
        "all_scores": result["scores"],
        **run_summary(result, run, ("roots_per_s", "nodes_per_s", "edges_per_s")),
        "wall_s": wall_s,
    }


def _print_summary(summary: Mapping[str, Any]) -> None:
    print_scores(summary)
    print(
        f"\n{kept_line(summary)}, {summary['num_parameters']:,} parameters, "
        f"{summary['workers']} workers on {summary['device']}\n"
        f"{summary['roots_per_s']:,.0f} graphs/s while training; waited for batches {summary['wait_share']:.1%} of it; "
        f"{summary['wall_s']:.0f} s in all\n"
        f"run directory: {summary['run_dir']}"
    )
