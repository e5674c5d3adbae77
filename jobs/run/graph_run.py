"""A run on many graphs: open the set, train on it, compare with the baselines, report."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.cluster.data.training_data import GraphData, GraphSplitOptions
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.ray.placement import Resources, cluster_resources
from graphmill.cluster.ray.session import ray_session
from graphmill.cluster.tasks import Classification, Regression, Task
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.cluster.training.train_session import Launcher
from graphmill.jobs.baselines.graph_baselines import compute_graph_baselines
from graphmill.jobs.baselines.node_baselines import begin_baselines
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import set_facts
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.config.standard_columns import with_standard_columns
from graphmill.jobs.data.prepare_molecules import prepare_molecules
from graphmill.jobs.machine.this_machine import local_session
from graphmill.jobs.records.verdict import end_of_run
from graphmill.jobs.resolve.cross_checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.run.training_run import (
    check_resume,
    copied_from,
    end_finished,
    finished_summary,
    known_resources,
    print_end,
    train_and_score,
)
from graphmill.jobs.tasks.graph_task import graph_task, predicted, scored_splits, set_inputs, target_columns
from graphmill.jobs.tasks.model_inputs import StandardColumns
from graphmill.jobs.tasks.split_lacks import set_lacks
from graphmill.storage.graph_sets.graph_set import StoredGraphs
from graphmill.storage.replicas.file_stamps import take_stamps


@flushed_subnormals()
def run_graphs(job: str, config: RunConfig) -> int:
    """Trains, and returns the exit status: 0, or 1 where the model does not beat the baselines and `run.require_baselines` says it must."""
    started_s = time.monotonic()
    resources = known_resources(config)
    resolve(config, Facts(PLACEHOLDERS["graphs"], {}, resources))  # what needs no data is refused at once
    run_dir = choose_run_dir(job, config.run)
    store = prepare_molecules(config.data, config.target)
    config = replace(config, data=replace(config.data, snapshot=store.manifest.snapshot))  # a resume opens the same one
    columns = target_columns(store, config.target)
    task = graph_task(config.task, store, columns)
    asked, resolved = config, resolve_graphs(config, store, columns, task, resources)
    manifest, config = store.manifest, resolved.config
    if resources is not None:  # else the cluster has a say
        resolved.print_choices()
    splits = scored_splits(store, columns, task, resolved.micro_batches)
    stamps = take_stamps(store.url, manifest.files.values())
    stamps.verify()
    data = GraphData(store, columns, labels=isinstance(task, Classification), stamps=stamps)
    samplers = graph_samplers(resolved, splits)
    check_batches(data, samplers, resolved.micro_batches)
    if config.run.resume is not None:
        check_resume(run_dir, resolved)
        if (done := finished_summary(run_dir, resolved)) is not None:
            return end_finished(done, run_dir, config.run)
    print(
        f"graphs {manifest.name}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges at {store.url}{copied_from(manifest)}; "
        + (
            f"labelled {manifest.labelled}"
            if manifest.labelled
            else f"target {', '.join(store.target_names[column] for column in columns)}"
        ),
        flush=True,
    )
    lacks = set_lacks(store, () if isinstance(task, Regression) else columns)
    if lacks:
        print(f"splits lack: {'; '.join(lacks)}", flush=True)
    told = {None: "mean, composition only", "nodes": "shares of the classes, features only"}
    print(f"fitting the baselines ({told.get(manifest.labelled, 'equal scores')})", flush=True)
    alone, before = resolved.workers.launcher == "process", resolved.workers
    seen = StandardColumns(resolved.inputs.standard).rows
    fitted = begin_baselines(partial(compute_graph_baselines, store, columns, task, splits, seen), alone=alone)
    if not alone:
        print("starting Ray", flush=True)
    with nullcontext() if alone else ray_session(local_session(config.workers, config.ray)):
        launcher: Launcher = ProcessLauncher(resolved.workers, run_dir)
        if not alone:
            from graphmill.cluster.training.ray_train import RayTrainLauncher

            resolved = resolve_graphs(asked, store, columns, task, cluster_resources(before))
            if resources is None:
                resolved.print_choices()
            launcher = RayTrainLauncher(resolved.workers, run_dir)
        for reason in resolved.reasons:
            print(reason, flush=True)
        if resolved.workers != before:
            splits = scored_splits(store, columns, task, resolved.micro_batches)
            check_batches(data, samplers, resolved.micro_batches)
        described = {
            "graphs": store.url,
            "graphs_hash": manifest.content_hash,
            "snapshot": manifest.snapshot,
            **({"lacks": lacks} if lacks else {}),
            **({"predicted": predicted(manifest)} if manifest.labelled else {}),
            **({"standardised_columns": len(standard)} if (standard := resolved.inputs.standard) else {}),
            "task": dict(vars(task)),
        }
        evaluation = {split: samplers[split] for split in splits}
        summary = train_and_score(
            job, run_dir, resolved, launcher, task, data, samplers["train"], evaluation, fitted, described, started_s
        )
    print_end(summary, run_dir)
    return end_of_run(summary, require_baselines=config.run.require_baselines)


def resolve_graphs(
    config: RunConfig, store: StoredGraphs, columns: tuple[int, ...], task: Task, resources: Resources | None
) -> ResolvedRun:
    """The run on this set. Raises ConfigError where the two do not fit."""
    manifest = store.manifest
    identity = {
        "graphs": manifest.name,
        "num_graphs": manifest.num_graphs,
        "num_nodes": manifest.num_nodes,
        "targets": [manifest.target_names[column] for column in columns],
        **({"labelled": manifest.labelled} if manifest.labelled else {}),
        "task": config.task.name,
        # The weights predict in these units. Runs of before have no such entry.
        **({} if getattr(config.task.options, "standardise", True) else {"standardise": False}),
        DATA: manifest.measured.digest[:16],
    }
    stored = sum(entry.num_bytes for entry in manifest.files.values())
    inputs = with_standard_columns(set_inputs(manifest, task.out_dim), [manifest], config.data)
    return resolve(config, Facts(inputs, identity, resources, stored, set_facts(manifest)))


def graph_samplers(resolved: ResolvedRun, splits: tuple[str, ...]) -> dict[str, GraphSplitOptions]:
    """The options by which training batches, and each of the splits, are drawn."""
    scored = {split: GraphSplitOptions(split, resolved.evaluation[split]) for split in splits}
    return {**scored, "train": GraphSplitOptions("train", resolved.training)}


def check_batches(data: GraphData, samplers: Mapping[str, GraphSplitOptions], micro_batches: int) -> None:
    """Raises ConfigError where a sampler's options do not fit the graphs."""
    opened = data.open()
    for options in samplers.values():
        opened.sampler(options, micro_batches).num_batches  # noqa: B018 - checks its options
