"""The subject of runs on a set of many graphs: predicts the graphs, or their labelled nodes or pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.cluster.data.graph_set_data import (
    EVERY,
    GraphData,
    GraphSplitOptions,
    predicted_ids,
    predicted_places,
)
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.tasks import Classification, Regression, Task
from graphmill.core.errors import ConfigError
from graphmill.core.summaries import size
from graphmill.jobs.baselines.graph_baselines import check_graph_trees, compute_graph_baselines, compute_graph_trees
from graphmill.jobs.baselines.node_baselines import Baselines
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import GraphFacts, set_facts
from graphmill.jobs.config.standard_columns import with_standard_columns
from graphmill.jobs.data.prepare_molecules import find_molecules, how_to_make, prepare_molecules
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.subjects.subject import Prediction, Served, Subject, check_names, checked, trained_task
from graphmill.jobs.tasks.graph_task import (
    graph_task,
    predicted,
    scored_splits,
    set_inputs,
    set_lacks,
    split_targets,
    target_columns,
)
from graphmill.jobs.tasks.model_inputs import baselines_see
from graphmill.storage.format.graph_set_manifest import GraphSetManifest
from graphmill.storage.graph import source_ids
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.molecules.molecule_source import HASHED
from graphmill.storage.molecules.smiles_features import ATOMS, BONDS
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps

if TYPE_CHECKING:
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.plan.run_plan import Plan
    from graphmill.jobs.records.run_record import Run

_MOLECULE_BYTES = 400  # approximate size of a molecule's nodes and edges


@dataclass(frozen=True)
class Graphs(Subject):
    """One stored set of graphs."""

    stored: StoredGraphs
    stamps: FileStamps | None = None  # stamps of the verified files
    entry: ClassVar[str] = "graphs"

    @classmethod
    def find(cls, config: RunConfig) -> Self | None:
        stored = find_molecules(config.data, config.target)
        return cls(stored) if isinstance(stored, StoredGraphs) else None

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        return cls(prepare_molecules(config.data, config.target))

    @classmethod
    def at(cls, url: str, snapshot: int | None, options: "PredictConfig") -> Self:
        store = open_graphs(url, snapshot)
        if options.verify and not options.plan:
            store.verify()
        return cls(store)

    @classmethod
    def plan_unmade(cls, plan: "Plan", resolved: ResolvedRun, resources: Resources | None) -> None:
        """Adds the features that the molecules will get, and the approximate number of molecules."""
        from graphmill.jobs.plan.scoring_plan import add_untried

        config = resolved.config
        stored = find_molecules(config.data, config.target)
        assert not isinstance(stored, StoredGraphs)
        info, folder = stored[0].info, Path(stored[1])
        rows = info.num_rows
        count = "molecules" if rows is None else f"about {rows:,} molecules"
        made = f"not there yet: the first run makes it, or {how_to_make(config.data, config.target, folder)}"
        expected_bytes = None if rows is None else _MOLECULE_BYTES * rows
        expected = None if rows is None else GraphFacts(rows, 0, 0, 0, round(0.8 * rows), is_set=True)
        resolved = resolve(config, Facts(resolved.inputs, {}, resources, expected_bytes, expected))
        plan.place(resolved, 0)
        plan.add_chosen(resolved)
        plan.add("graphs", f"{info.name}, {made}; {count}; targets {', '.join(info.target_names) or 'none'}")
        if config.task.name != "classes" and info.target_names:  # the number of classes is known only from the targets
            manifest = GraphSetManifest(info.name, rows or 0, 0, 0, (0, rows or 0), ATOMS, BONDS)
            inputs = set_inputs(
                manifest, 1 if config.target is not None else len(info.target_names), config.data.edge_features
            )
            plan.add_model(resolve(config, Facts(inputs, {}, resources)).build_model())
        if rows is not None and info.split_names == ("train", "valid", "test"):
            train = round(0.8 * rows)
            plan.add("splits", f"train about {train:,}, valid and test about {(rows - train) // 2:,} each, by hash")
            batch = resolved.training.max_graphs * plan.micro_batches
            plan.add_steps(-(-train // batch) * plan.micro_batches, resolved.fit)
        add_untried(plan, resolved, "set")

    def unit(self, config: RunConfig) -> str:
        return predicted(self.manifest)

    @property
    def text(self) -> str:
        manifest = self.manifest
        targets = f"targets {', '.join(self.stored.target_names) or 'none'}"
        return (
            f"{manifest.name} at {self.url}: {manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
            f"{manifest.num_shards} shards, {size(self.num_bytes)}; {f'labelled {manifest.labelled}' if manifest.labelled else targets}"
        )

    def columns(self, config: RunConfig) -> tuple[int, ...]:
        """Indices of the target columns that the run predicts."""
        return target_columns(self.stored, config.target)

    def lacks(self, resolved: ResolvedRun) -> Sequence[str]:
        is_regression = isinstance(self.task(resolved), Regression)
        return set_lacks(self.stored, () if is_regression else self.columns(resolved.config))

    def resolve(self, config: RunConfig, resources: Resources | None) -> ResolvedRun:
        manifest, columns = self.manifest, self.columns(config)
        identity = {
            "graphs": manifest.name,
            "num_graphs": manifest.num_graphs,
            "num_nodes": manifest.num_nodes,
            "targets": [manifest.target_names[column] for column in columns],
            **({"labelled": manifest.labelled} if manifest.labelled else {}),
            "task": config.task.name,
            # The model's outputs have these units. Runs of older versions have no such entry.
            **({} if getattr(config.task.options, "standardise", True) else {"standardise": False}),
            DATA: manifest.measured.digest[:16],
        }
        inputs = set_inputs(manifest, graph_task(config.task, self.stored, columns).out_dim, config.data.edge_features)
        inputs = with_standard_columns(inputs, [manifest], config.data)
        return resolve(config, Facts(inputs, identity, resources, self.num_bytes, set_facts(manifest)))

    def check(self, resolved: ResolvedRun) -> None:
        self._splits(resolved)
        if "trees" in resolved.config.baseline.models:
            check_graph_trees(self.stored, self.task(resolved))

    def _splits(self, resolved: ResolvedRun) -> tuple[str, ...]:
        return scored_splits(self.stored, self.columns(resolved.config), self.task(resolved), resolved.micro_batches)

    def completed(self, resolved: ResolvedRun) -> Self:
        """The set, with its files verified."""
        stamps = take_stamps(self.url, self.manifest.files.values())
        stamps.verify()
        verified = replace(self, stamps=stamps)
        verified.check_served(Served(verified.data(resolved)), resolved)
        return verified

    def check_served(self, served: Served, resolved: ResolvedRun) -> None:
        data = served.data.open()
        for options in (self.training(resolved), *self.evaluation(resolved).values()):
            data.sampler(options, resolved.micro_batches).num_batches  # noqa: B018 - checks its options

    def task(self, resolved: ResolvedRun) -> Task:
        return graph_task(resolved.config.task, self.stored, self.columns(resolved.config))

    def training(self, resolved: ResolvedRun) -> GraphSplitOptions:
        return GraphSplitOptions("train", resolved.training)

    def evaluation(self, resolved: ResolvedRun) -> Mapping[str, Any]:
        return {split: GraphSplitOptions(split, resolved.evaluation[split]) for split in self._splits(resolved)}

    def data(self, resolved: ResolvedRun) -> GraphData:
        labels = isinstance(self.task(resolved), Classification)
        return GraphData(self.stored, self.columns(resolved.config), labels=labels, stamps=self.stamps)

    def rivals(self, config: RunConfig) -> str:
        by_labelled = {None: "mean, composition only", "nodes": "shares of the classes, features only"}
        trees = ", boosted trees" if "trees" in config.baseline.models else ""
        return f"{by_labelled.get(self.manifest.labelled, 'equal scores')}{trees}"

    def baselines(self, served: Served, resolved: ResolvedRun, task: Task) -> Baselines:
        seen = baselines_see(resolved.inputs, resolved.config.data.standardise)
        columns, splits, config = self.columns(resolved.config), self._splits(resolved), resolved.config
        scores = compute_graph_baselines(self.stored, columns, task, splits, seen)
        if "trees" in config.baseline.models:
            tries = config.baseline.configurations
            scores["trees"] = compute_graph_trees(self.stored, columns, task, splits, config.fit.seed, tries)
        return scores

    def described(self, resolved: ResolvedRun, task: Task) -> dict[str, Any]:
        standard = resolved.inputs.standard
        return {**({"standardised_columns": len(standard)} if standard else {}), "task": dict(vars(task))}

    def plan(self, plan: "Plan", resolved: ResolvedRun) -> None:
        from graphmill.jobs.plan.scoring_plan import add_training
        from graphmill.jobs.plan.tries import Tries

        data, scored, columns = self.data(resolved), self.evaluation(resolved), self.columns(resolved.config)
        self.check_served(Served(data), resolved)
        known = {
            name: ~np.isnan(split_targets(self.stored, name, columns)).all(axis=1) for name in self.stored.split_names
        }
        counts = [f"{name} {int(rows.sum()):,} of {len(rows):,}" for name, rows in known.items()]
        units = {"nodes": "nodes with a class", "pairs": "labelled pairs"}
        known_targets = units.get(self.manifest.labelled or "", "with a target")
        plan.add("splits", f"{', '.join(counts)} {known_targets}; scored: {', '.join(scored)}")
        if "trees" in resolved.config.baseline.models:
            from graphmill.jobs.baselines.tree_baseline import plan_text

            plan.add("trees", plan_text(resolved.config.baseline.configurations, None))
        tries, task = Tries(data.open(), resolved.build_model()), self.task(resolved)
        add_training(plan, resolved, tries, self.training(resolved), scored, task, self.unit(resolved.config))

    def predict(self, run: "Run", options: "PredictConfig", trained: ResolvedRun) -> Prediction:
        from graphmill.cluster.prediction.predictor import UNSPLIT

        store, manifest = self.stored, self.manifest
        target_names = tuple(run.state.identity["targets"])
        if manifest.labelled != run.state.identity.get("labelled"):
            raise ConfigError(
                f"{store.url}: expected a set of which {run.state.identity.get('labelled') or 'the graphs'} are predicted, got one with "
                f"{manifest.labelled or 'targets of graphs'}"
            )
        has_targets = set(target_names) <= set(store.target_names)
        columns = tuple(store.target_names.index(name) for name in target_names) if has_targets else None
        task = trained_task(run, trained)
        if isinstance(task, Classification) and (columns or manifest.labelled):
            check_names(store.url, store.class_names, task)
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
        all_train = "train" in store.split_names and len(store.split("train")) == len(store)
        unsplit = manifest.provenance.get("split") == HASHED or all_train
        if manifest.content_hash != run.data_hash and unsplit:
            samplers = {UNSPLIT: GraphSplitOptions(EVERY, batches)}  # graphs to which the source assigns no split

        def members(name: str) -> np.ndarray:
            graphs = np.arange(len(store)) if len(samplers) == 1 else store.unsplit()
            return predicted_ids(store, graphs if name == UNSPLIT else store.split(name))

        own = set_inputs(manifest, task.out_dim, trained.config.data.edge_features)
        inputs = replace(trained.inputs, node=own.node, edge=own.edge, out_dim=own.out_dim)
        return Prediction(
            subject=self,
            trained=trained,
            data=GraphData(store, columns, labels=isinstance(task, Classification)),
            samplers=samplers,
            build_model=checked(run, store.url, replace(trained, inputs=inputs).build_model),
            task=task,
            members=lambda _: members,
            target_names=target_names,
            has_targets=has_targets,
            places=partial(predicted_places, store) if manifest.labelled else None,
            source_ids=source_ids(store),
        )
