"""Link prediction: what its task must know of the graph, and what the graph must have for it."""

from dataclasses import asdict
from typing import Any, Literal

from graphmill.cluster.tasks import LinkPrediction, Task
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.link_options import LinksOptions
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.tasks.link_samplers import SCORED
from graphmill.models.options.features import Features
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_VALID, SPLITS, SourceInfo
from graphmill.storage.graph import StoredGraph


def beside_features(config: RunConfig) -> int:
    """How many numbers a batch holds of each node beside its stored features: of embeddings, and of ages."""
    return config.embeddings.width + getattr(config.sampler.options, "recency_dim", 0)


def graph_inputs(data: Manifest | SourceInfo, config: RunConfig) -> Inputs:
    """What the graph and the task decide of a model of its nodes. Raises ConfigError where features of edges are asked for and there are none."""
    if config.data.edge_features and not data.edge_feature_dim:
        raise ConfigError(
            f"{data.name}: edge_features: expected features of edges, the graph has none; leave out --data.edge_features, or ingest a source that has them"
        )
    if config.data.edge_features and data.relations:
        raise ConfigError(
            f"{data.name}: edge_features: expected numbers, an edge of a knowledge graph has a relation, which the decoder of links reads; leave out "
            "--data.edge_features"
        )
    return Inputs(
        node=Features(dim=data.feature_dim + beside_features(config)),
        edge=Features(dim=data.edge_feature_dim if config.data.edge_features else 0),
        out_dim=(data.num_classes or 1) if config.links is None else config.links.decoder.width,  # of links: states
        task="node",
        num_relations=0 if config.links is None else len(data.relations),
    )


def link_identity(manifest: Manifest, options: LinksOptions) -> dict[str, Any]:
    """What a run may not change between its parts, beside the graph."""
    held_out = "" if manifest.links is None else manifest.links.digest[:16]
    return {"held_out": held_out, "links": {**asdict(options), "ranking": ranking(manifest, options)}}


def ranking(manifest: Manifest, options: LinksOptions) -> Literal["fixed", "sampled", "all"]:
    """What links are scored against."""
    if options.ranking != "auto":
        return options.ranking
    links = manifest.links
    return "fixed" if links and all(links.has_negatives(SPLITS[name]) for name in SCORED) else "sampled"


def link_task(manifest: Manifest, options: LinksOptions) -> Task:
    """The run's task on this graph."""
    shared = ranking(manifest, options) == "fixed" and manifest.links is not None and not sum(manifest.links.listed)
    return LinkPrediction(options.metric, options.loss, options.margin, own_rivals=not shared)


def check_links(graph: StoredGraph, options: LinksOptions, num_links: int, width: int) -> None:
    """Raises ConfigError where the graph has not the features, edges and held-out links that the run needs.

    `num_links`: training links that there must be at least. `width`: of embeddings, with which there need be no features.
    """
    manifest, links = graph.manifest, graph.manifest.links
    if not manifest.feature_dim + width:
        raise ConfigError(
            f"{graph.url}: expected node features, the graph has none; train rows of its nodes (--embeddings.width 64), or ingest it with "
            "features (jobs/ingest.py --edge_list.features)"
        )
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
