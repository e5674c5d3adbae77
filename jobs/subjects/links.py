"""The subject of runs on the links of one graph: checks the graph and the task, and predicts the best links."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.tasks import LinkPrediction, Task
from graphmill.core.errors import ConfigError
from graphmill.jobs.baselines.link_baselines import compute_link_baselines
from graphmill.jobs.baselines.node_baselines import Baselines
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.link_options import SCORED, LinksOptions
from graphmill.jobs.config.registry import sharding
from graphmill.jobs.config.stored_columns import edge_weights
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.resolve.typed_facts import check_graph_kind, link_relation, link_rows, with_type
from graphmill.jobs.subjects.nodes import Nodes, check_samplers, inputs_of, num_roots
from graphmill.jobs.subjects.subject import Prediction, Served, checked
from graphmill.jobs.tasks.node_task import check_features
from graphmill.samplers.methods.links import link_tables
from graphmill.samplers.vocabulary.options import RandomPartitionOptions, TopLinkOptions
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_VALID, SPLITS
from graphmill.storage.graph import StoredGraph, source_ids

if TYPE_CHECKING:
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.records.run_record import Run


class Links(Nodes):
    """A graph with held-out links. In a typed graph, the links belong to one relation."""

    spreads: ClassVar[bool] = False
    has_relations: ClassVar[bool] = True

    def unit(self, config: RunConfig) -> str:
        return "links"

    def lacks(self, resolved: ResolvedRun) -> Sequence[str]:
        return ()

    def resolve(self, config: RunConfig, resources: Resources | None) -> ResolvedRun:
        check_graph_kind(config, self.stored)
        config = with_type(config, self.stored)
        graph, links, manifest = link_rows(self.stored, config), options_of(config), self.manifest
        check_links(graph, links, 1, config.embeddings.width)
        ranked = replace(links, ranking=ranking(graph.manifest, links))
        identity = {
            "graph": manifest.name,
            "num_nodes": manifest.num_nodes,
            "num_edges": manifest.num_edges,
            **link_identity(graph.manifest, links),
            DATA: manifest.graph_digest[:16],
        }
        inputs, weights = inputs_of(config, self.stored), edge_weights(manifest, config)
        facts = Facts(inputs, identity, resources, manifest.num_bytes, weights=weights)
        return resolve(replace(config, task=replace(config.task, options=ranked)), facts)

    def links(self, resolved: ResolvedRun) -> Manifest:
        """Manifest of the graph or relation whose edges are the links."""
        return link_rows(self.stored, resolved.config).manifest

    def check_targets(self, nodes: StoredGraph, resolved: ResolvedRun) -> None:
        config = resolved.config
        check_links(link_rows(self.stored, config), options_of(config), num_roots(resolved), config.embeddings.width)

    def check_served(self, served: Served, resolved: ResolvedRun) -> None:
        check_samplers(served.router, resolved)

    def task(self, resolved: ResolvedRun) -> Task:
        return link_task(self.links(resolved), options_of(resolved.config))

    def rivals(self, config: RunConfig) -> str:
        return "common neighbors" if link_rows(self.stored, config).manifest.is_one_type else "paths of three edges"

    def baselines(self, served: Served, resolved: ResolvedRun, task: Task) -> Baselines:
        return compute_link_baselines(served.router, resolved.evaluation["test"], task)

    def described(self, resolved: ResolvedRun, task: Task) -> dict[str, Any]:
        summary = super().described(resolved, task)
        relation = {"relation": options_of(resolved.config).relation} if resolved.is_typed else {}
        return relation | {name: value for name, value in summary.items() if name not in ("task", "node_type")}

    def predict(self, run: "Run", options: "PredictConfig", trained: ResolvedRun) -> Prediction:
        """Predicts the best links of every node in one pass over the whole graph."""
        from graphmill.cluster.prediction.predictor import UNSPLIT

        self.check_trained(run, trained)
        graph, manifest, model = self.stored, self.links(trained), trained.config.model
        links = options_of(trained.config)
        if sharding(model.options) == "roots":
            raise ConfigError(
                f"{run.path}: the best links need the states of all nodes by one pass over the whole graph, and {model.name} takes one subgraph per root; "
                "train another model"
            )
        if getattr(trained.config.sampler.options, "recency_dim", 0):
            raise ConfigError(
                f"{run.path}: the best links need the states of all nodes by one pass over the whole graph, which is of no one time, and the run's model reads "
                "ages (--sampler.recency_dim); train without them"
            )
        build_model = checked(run, graph.url, replace(trained, inputs=self.inputs(trained)).build_model)
        encodings = () if trained.encoding is None else (trained.encoding.name,)
        around = RandomPartitionOptions(
            num_chunks=1, shuffle=False, encodings=encodings, edge_columns=trained.edge_columns
        )
        relation = _relation(options.relation, manifest)
        samplers = {UNSPLIT: TopLinkOptions(around, options.top_k, relation, links.relation)}

        def members(served: Served) -> Callable[[str], np.ndarray]:
            return lambda _: link_tables(served.router, links.relation).sources.original_id

        parts = {"build_model": build_model, "task": link_task(manifest, links), "samplers": samplers}
        ends = graph if isinstance(graph, StoredGraph) else graph.nodes(link_relation(graph, links.relation).target)
        return self.prediction(run, options, trained, members=members, end_ids=source_ids(ends), **parts)


def _relation(name: str | None, manifest: Manifest) -> int | None:
    """Index of the relation `name`; None if the graph has no relations. Raises ConfigError if the graph has no relation of that name."""
    if name in manifest.relations:
        return manifest.relations.index(name)
    if not manifest.relations:
        if name is None:
            return None
        raise ConfigError(
            f"relation: expected none, since the graph has no relations, got {name}; leave out --relation"
        )
    known = ", ".join(manifest.relations[:5]) + (" …" if len(manifest.relations) > 5 else "")
    raise ConfigError(f"relation: expected one of {known}, got {name or 'none'}; set --relation")


def options_of(config: RunConfig) -> LinksOptions:
    """The run's link options."""
    assert config.links is not None
    return config.links


def link_identity(manifest: Manifest, options: LinksOptions) -> dict[str, Any]:
    """Entries on links for the run's identity. A resumed run must have the same entries."""
    held_out = "" if manifest.links is None else manifest.links.digest[:16]
    chosen = {name: value for name, value in asdict(options).items() if (name, value) != ("relation", None)}
    return {"held_out": held_out, "links": {**chosen, "ranking": ranking(manifest, options)}}


def ranking(manifest: Manifest, options: LinksOptions) -> Literal["fixed", "sampled", "all"]:
    """The rivals of held-out links: stored negatives ("fixed"), sampled nodes, or all nodes."""
    if options.ranking != "auto":
        return options.ranking
    links = manifest.links
    return "fixed" if links and all(links.has_negatives(SPLITS[name]) for name in SCORED) else "sampled"


def link_task(manifest: Manifest, options: LinksOptions) -> Task:
    """The link prediction task with the run's options, on this graph."""
    shared = ranking(manifest, options) == "fixed" and manifest.links is not None and not sum(manifest.links.listed)
    return LinkPrediction(options.metric, options.loss, options.margin, own_rivals=not shared)


def check_links(graph: StoredGraph, options: LinksOptions, num_links: int, width: int) -> None:
    """Raises ConfigError if the graph has no features, edges or held-out links, but the run needs them.

    `num_links`: smallest number of training links. `width`: width of the embeddings; a graph with embeddings needs no features.
    """
    manifest, links = graph.manifest, graph.manifest.links
    check_features(graph, width)
    if manifest.relations and options.decoder.kind == "dot":
        raise ConfigError(
            f"{graph.url}: decoder: expected one that tells the graph's relations apart, got dot; set --task.decoder distmult, transe or mlp"
        )
    if links is None:
        raise ConfigError(
            f"{graph.url}: expected a graph with links that are held out, got one without; ingest it with --links.valid 0.05 --links.test 0.1"
        )
    for code in (SPLIT_VALID, SPLIT_TEST):
        name = SPLIT_NAMES[code]
        if not links.positives[code]:
            raise ConfigError(
                f"{graph.url}: split {name}: expected at least one link, got none; ingest it with a larger --links.{name}"
            )
        if ranking(manifest, options) == "fixed" and not links.has_negatives(code):
            raise ConfigError(
                f"{graph.url}: ranking fixed: expected negatives stored for the split {name}, got none; set --task.ranking sampled or all"
            )
    if manifest.num_edges < num_links:
        raise ConfigError(
            f"{graph.url}: expected at least {num_links} edges to train on (one link per micro-batch of a step), got {manifest.num_edges}; lower "
            "--fit.micro_batches (or, where it is none, --workers)"
        )
