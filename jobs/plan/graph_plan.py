"""`--plan` of a job over many graphs: its set, batches and model, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.training_data import GraphData, GraphSplitOptions
from jobs.plan.run_plan import (
    Line,
    batch_line,
    count_parameters,
    memory_line,
    model_line,
    print_plan,
    process_bytes,
    ray_line,
    refused,
    run_lines,
    size,
    steps_line,
    time_line,
    training_memory,
    try_batches,
)
from jobs.plan.scoring_plan import plan_scoring
from jobs.run.graph_job import (
    GraphParts,
    check_batches,
    graph_parts,
    graph_task,
    run_identity,
    scored_splits,
    target_columns,
)
from jobs.run.graph_options import GraphJobOptions
from jobs.run.prepare_molecules import find_molecules, how_to_make
from jobs.run.training_run import check_resume
from storage.graph_set_manifest import GraphSetManifest
from storage.graph_store import StoredGraphs
from storage.molecule_features import ATOMS, BONDS
from storage.molecule_source import MoleculeInfo

_MORE = "starting Ray and the baselines come on top"


def plan_graph_run(
    job: str,
    options: GraphJobOptions,
    build_model: Callable[[GraphSetManifest, int], torch.nn.Module],
    model_config: Callable[[GraphSetManifest, int], Mapping[str, Any]],
) -> int:
    """Prints the plan of `jobs.run.graph_job.run_graph_job` by the same arguments; 0. Raises what the run raises of its options alone."""
    process = process_bytes()
    parts = graph_parts(job, options)
    found = find_molecules(options)
    problems: list[str] = []
    parameters: int | None = None
    if isinstance(found, StoredGraphs):
        lines = [set_line(found)]
        with refused(problems):
            model, more = _stored_lines(process, found, options, parts, build_model, model_config)
            lines, parameters = [*lines, *more], count_parameters(model)
    else:
        source, target = found
        lines, parameters = _without_set(process, source.info, target, options, parts, build_model)
    lines += [ray_line(options.run), *run_lines(parts.run_dir, options.fit, options.run, parameters)]
    print_plan(job, lines, problems)
    return 0


def set_line(store: StoredGraphs) -> Line:
    m = store.manifest
    num_bytes = sum(entry.num_bytes for entry in m.files.values())
    return (
        "graphs",
        f"{m.name} at {store.url}: {m.num_graphs:,} graphs, {m.num_nodes:,} nodes, {m.num_edges:,} edges, {m.num_shards} shards, "
        f"{size(num_bytes)}; targets {', '.join(store.target_names) or 'none'}",
    )


def _stored_lines(
    process: int,
    store: StoredGraphs,
    options: GraphJobOptions,
    parts: GraphParts,
    build_model: Callable[[GraphSetManifest, int], torch.nn.Module],
    model_config: Callable[[GraphSetManifest, int], Mapping[str, Any]],
) -> tuple[torch.nn.Module, list[Line]]:
    """Raises what the run would raise of this set."""
    fit, workers = options.fit, parts.workers.most
    columns = target_columns(store, options)
    task = graph_task(store, columns, fit)
    splits = scored_splits(store, columns, task, fit, workers)
    data = GraphData(store, columns, labels=fit.task == "classes")
    training = GraphSplitOptions("train", parts.batches)
    evaluation = {name: GraphSplitOptions(name, parts.eval_batches) for name in splits}
    check_batches(data, {"train": training, **evaluation}, workers)
    if options.run.resume is not None:
        identity = run_identity(store, columns, task, options)
        check_resume(parts.run_dir, model_config(store.manifest, task.out_dim), identity, fit.epochs)
    opened, model = data.open(), build_model(store.manifest, task.out_dim)
    sampler = opened.sampler(training, workers)
    tried = try_batches(opened, sampler, model, task)
    scored = {name: opened.sampler(one, workers) for name, one in evaluation.items()}
    scoring = plan_scoring(opened, scored, workers, model)
    memory = training_memory(process, count_parameters(model), tried, fit, parts.loader, workers)
    memory |= scoring.memory(parts.loader.prefetch)
    threads = parts.loader.threads
    known = ~np.isnan(store.target[:, list(columns)]).all(axis=1)
    counts = [
        f"{name} {int(known[store.split(name)].sum()):,} of {len(store.split(name)):,}" for name in store.split_names
    ]
    return model, [
        ("splits", f"{', '.join(counts)} with a target; scored: {', '.join(splits)}"),
        model_line(model),
        steps_line(sampler.num_batches, workers, fit),
        batch_line(tried, "graphs"),
        memory_line(memory, workers, 0, options.run.object_store_gb),
        time_line(
            tried,
            sampler.num_batches // workers,
            workers,
            fit.epochs,
            threads,
            f"{scoring.text(workers, fit, threads)}; {_MORE}",
        ),
    ]


def _without_set(
    process: int,
    info: MoleculeInfo,
    target: Path,
    options: GraphJobOptions,
    parts: GraphParts,
    build_model: Callable[[GraphSetManifest, int], torch.nn.Module],
) -> tuple[list[Line], int | None]:
    """What is known before the set is made: how its molecules will be described, and about how many there are."""
    rows, workers = info.num_rows, parts.workers.most
    count = "molecules" if rows is None else f"about {rows:,} molecules"
    made = f"not there yet: the first run makes it, or {how_to_make(options, target)}"
    lines: list[Line] = [("graphs", f"{info.name}, {made}; {count}; targets {', '.join(info.target_names) or 'none'}")]
    parameters = None
    if options.fit.task != "classes" and info.target_names:  # how many classes there are, only the targets tell
        manifest = GraphSetManifest(info.name, rows or 0, 0, 0, (0, rows or 0), ATOMS, BONDS)
        model = build_model(manifest, 1 if options.graphs.target is not None else len(info.target_names))
        parameters = count_parameters(model)
        lines.append(model_line(model))
    if rows is not None and info.split_names == ("train", "valid", "test"):
        train = round(0.8 * rows)
        lines.append(("splits", f"train about {train:,}, valid and test about {(rows - train) // 2:,} each, by hash"))
        lines.append(steps_line(-(-train // (options.batch.batch_size * workers)) * workers, workers, options.fit))
    memory = training_memory(process, parameters or 0, None, options.fit, parts.loader, workers)
    lines += [
        ("batch", "drawn and timed once the set is there, as is scoring; neither is in the memory yet"),
        memory_line(memory, workers, 0, options.run.object_store_gb),
    ]
    return lines, parameters
