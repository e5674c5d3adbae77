"""`--plan` of a run on many graphs: its set, batches and model, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from pathlib import Path

import numpy as np
import torch

from cluster.placement import Resources
from cluster.tasks import Classification
from cluster.training_data import GraphData
from jobs.plan.run_plan import (
    Line,
    count_parameters,
    model_line,
    print_plan,
    process_bytes,
    ray_line,
    refused,
    run_lines,
    size,
    steps_line,
)
from jobs.plan.scoring_plan import training_lines, untried_lines
from jobs.run.config import RunConfig
from jobs.run.graph_run import check_batches, graph_samplers, resolve_graphs
from jobs.run.graph_task import graph_task, scored_splits, set_inputs, target_columns
from jobs.run.prepare_molecules import find_molecules, how_to_make
from jobs.run.registry import PLACEHOLDERS
from jobs.run.resolve import Facts, ResolvedRun, resolve
from jobs.run.training_run import check_resume, choose_run_dir, known_resources
from storage.graph_set_manifest import GraphSetManifest
from storage.graph_store import StoredGraphs
from storage.molecule_features import ATOMS, BONDS
from storage.molecule_source import MoleculeInfo


def plan_graphs(job: str, config: RunConfig) -> int:
    """Prints the plan of `jobs.run.graph_run.run_graphs`; 0. Raises what the run raises of its options alone."""
    process, resources = process_bytes(), known_resources(config)
    resolved = resolve(config, Facts(PLACEHOLDERS["graphs"], {}, resources))
    run_dir = choose_run_dir(job, config.run)
    stored = find_molecules(config.data, config.target)
    problems: list[str] = []
    parameters: int | None = None
    if isinstance(stored, StoredGraphs):
        lines = [set_line(stored)]
        with refused(problems):
            model, more = _stored_lines(process, stored, config, resources, run_dir)
            lines, parameters = [*lines, *more], count_parameters(model)
    else:
        source, target = stored
        lines, parameters = _without_set(process, source.info, target, resolved, resources)
    lines += [ray_line(config.ray), *run_lines(run_dir, config, parameters)]
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
    process: int, store: StoredGraphs, config: RunConfig, resources: Resources | None, run_dir: Path
) -> tuple[torch.nn.Module, list[Line]]:
    """Raises what the run would raise of this set."""
    columns = target_columns(store, config.target)
    task = graph_task(config.task, store, columns)
    resolved = resolve_graphs(config, store, columns, task, resources)
    workers = resolved.workers.most
    splits = scored_splits(store, columns, task, workers)
    data = GraphData(store, columns, labels=isinstance(task, Classification))
    samplers = graph_samplers(resolved, splits)
    check_batches(data, samplers, workers)
    if config.run.resume is not None:
        check_resume(run_dir, resolved.architecture, resolved.identity, config.fit.epochs)
    model = resolved.build_model()
    known = ~np.isnan(store.target[:, list(columns)]).all(axis=1)
    counts = [
        f"{name} {int(known[store.split(name)].sum()):,} of {len(store.split(name)):,}" for name in store.split_names
    ]
    scored = {name: samplers[name] for name in splits}
    return model, [
        ("splits", f"{', '.join(counts)} with a target; scored: {', '.join(splits)}"),
        *training_lines(process, resolved, data.open(), samplers["train"], scored, model, task, "graphs"),
    ]


def _without_set(
    process: int, info: MoleculeInfo, target: Path, resolved: ResolvedRun, resources: Resources | None
) -> tuple[list[Line], int | None]:
    """What is known before the set is made: how its molecules will be described, and about how many there are."""
    config, rows, workers = resolved.config, info.num_rows, resolved.workers.most
    wanted = config.target
    count = "molecules" if rows is None else f"about {rows:,} molecules"
    made = f"not there yet: the first run makes it, or {how_to_make(config.data, wanted, target)}"
    lines: list[Line] = [("graphs", f"{info.name}, {made}; {count}; targets {', '.join(info.target_names) or 'none'}")]
    parameters = None
    if config.task.name != "classes" and info.target_names:  # how many classes there are, only the targets tell
        manifest = GraphSetManifest(info.name, rows or 0, 0, 0, (0, rows or 0), ATOMS, BONDS)
        inputs = set_inputs(manifest, 1 if wanted is not None else len(info.target_names))
        model = resolve(config, Facts(inputs, {}, resources)).build_model()
        parameters = count_parameters(model)
        lines.append(model_line(model))
    if rows is not None and info.split_names == ("train", "valid", "test"):
        train = round(0.8 * rows)
        lines.append(("splits", f"train about {train:,}, valid and test about {(rows - train) // 2:,} each, by hash"))
        batch = resolved.training.max_graphs * workers
        lines.append(steps_line(-(-train // batch) * workers, workers, resolved.fit))
    lines += untried_lines(process, resolved, parameters or 0, "set")
    return lines, parameters
