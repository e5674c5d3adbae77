"""`--plan` of a run on many graphs: its set, batches and model, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from pathlib import Path

import numpy as np

from graphmill.cluster.data.training_data import GraphData
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.tasks import Classification, Regression
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import GraphFacts
from graphmill.jobs.data.prepare_molecules import find_molecules, how_to_make
from graphmill.jobs.plan.run_plan import Plan, plan_run, size
from graphmill.jobs.plan.scoring_plan import add_training, add_untried
from graphmill.jobs.plan.tries import Tries
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.run.graph_run import check_batches, graph_samplers, resolve_graphs
from graphmill.jobs.run.training_run import check_resume
from graphmill.jobs.tasks.graph_task import (
    graph_task,
    predicted,
    scored_splits,
    set_inputs,
    split_targets,
    target_columns,
)
from graphmill.jobs.tasks.split_lacks import set_lacks
from graphmill.storage.format.graph_set_manifest import GraphSetManifest
from graphmill.storage.graph_sets.graph_set import StoredGraphs
from graphmill.storage.molecules.molecule_source import MoleculeInfo
from graphmill.storage.molecules.smiles_features import ATOMS, BONDS

_MOLECULE_BYTES = 400  # about, of its nodes and edges


def plan_graphs(job: str, config: RunConfig) -> int:
    """Prints the plan of `graphmill.jobs.run.graph_run.run_graphs`; 0. Raises what the run raises of its options alone."""
    return plan_run(job, config, _look)


def _look(plan: Plan, resolved: ResolvedRun, resources: Resources | None, run_dir: RunStore) -> None:
    config = resolved.config
    stored = find_molecules(config.data, config.target)
    if not isinstance(stored, StoredGraphs):
        source, folder = stored
        _add_without_set(plan, source.info, folder, resolved, resources)
        return
    manifest = stored.manifest
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    plan.add(
        "graphs",
        f"{manifest.name} at {stored.url}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_shards} shards, {size(num_bytes)}; "
        + (
            f"labelled {manifest.labelled}"
            if manifest.labelled
            else f"targets {', '.join(stored.target_names) or 'none'}"
        ),
    )
    with plan.refused():
        _add_batches(plan, stored, config, resources, run_dir)


def _add_batches(
    plan: Plan, store: StoredGraphs, config: RunConfig, resources: Resources | None, run_dir: RunStore
) -> None:
    """Raises what the run would raise of this set."""
    columns = target_columns(store, config.target)
    task = graph_task(config.task, store, columns)
    resolved = resolve_graphs(config, store, columns, task, resources)
    plan.place(resolved, 0)
    splits = scored_splits(store, columns, task, plan.micro_batches)
    data = GraphData(store, columns, labels=isinstance(task, Classification))
    samplers = graph_samplers(resolved, splits)
    check_batches(data, samplers, plan.micro_batches)
    if config.run.resume is not None:
        check_resume(run_dir, resolved)
    known = {name: ~np.isnan(split_targets(store, name, columns)).all(axis=1) for name in store.split_names}
    counts = [f"{name} {int(rows.sum()):,} of {len(rows):,}" for name, rows in known.items()]
    what = {"nodes": "nodes with a class", "pairs": "labelled pairs"}.get(
        store.manifest.labelled or "", "with a target"
    )
    plan.add("splits", f"{', '.join(counts)} {what}; scored: {', '.join(splits)}")
    if lacks := set_lacks(store, () if isinstance(task, Regression) else columns):
        plan.add("lacks", "; ".join(lacks))
    scored = {name: samplers[name] for name in splits}
    tries = Tries(data.open(), resolved.build_model())
    add_training(plan, resolved, tries, samplers["train"], scored, task, predicted(store.manifest))


def _add_without_set(
    plan: Plan, info: MoleculeInfo, folder: Path, resolved: ResolvedRun, resources: Resources | None
) -> None:
    """What is known before the set is made: how its molecules will be described, and about how many there are."""
    config, rows = resolved.config, info.num_rows
    count = "molecules" if rows is None else f"about {rows:,} molecules"
    made = f"not there yet: the first run makes it, or {how_to_make(config.data, config.target, folder)}"
    expected_bytes = None if rows is None else _MOLECULE_BYTES * rows
    expected = None if rows is None else GraphFacts(rows, 0, 0, 0, round(0.8 * rows), is_set=True)
    resolved = resolve(config, Facts(resolved.inputs, {}, resources, expected_bytes, expected))
    plan.place(resolved, 0)
    plan.add_chosen(resolved)
    plan.add("graphs", f"{info.name}, {made}; {count}; targets {', '.join(info.target_names) or 'none'}")
    if config.task.name != "classes" and info.target_names:  # how many classes there are, only the targets tell
        manifest = GraphSetManifest(info.name, rows or 0, 0, 0, (0, rows or 0), ATOMS, BONDS)
        inputs = set_inputs(manifest, 1 if config.target is not None else len(info.target_names))
        plan.add_model(resolve(config, Facts(inputs, {}, resources)).build_model())
    if rows is not None and info.split_names == ("train", "valid", "test"):
        train = round(0.8 * rows)
        plan.add("splits", f"train about {train:,}, valid and test about {(rows - train) // 2:,} each, by hash")
        batch = resolved.training.max_graphs * plan.micro_batches
        plan.add_steps(-(-train // batch) * plan.micro_batches, resolved.fit)
    add_untried(plan, resolved, "set")
