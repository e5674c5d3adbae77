"""Facts about a typed graph for a run on the nodes of one type or on the links of one relation, and checks of the run's options.

A typed graph consists of types and relations, each opened as a plain graph. Labels, splits, class weights and baselines come from the predicted type, as they
come from the graph in a run on a plain graph.
"""

from dataclasses import replace
from typing import Any

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.core.errors import ConfigError
from graphmill.core.summaries import changed_options
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import GraphFacts, graph_facts
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.config.stored_columns import category_columns, embedded_columns
from graphmill.jobs.tasks.node_task import edge_dims
from graphmill.models.options.features import Features
from graphmill.models.relational.options import RelationalConfig
from graphmill.samplers.vocabulary.options import TypedOptions
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, TypedGraph

NodeGraph = StoredGraph | TypedGraph


def predicted_nodes(graph: NodeGraph, config: RunConfig) -> StoredGraph:
    """The graph whose nodes are predicted. For a plain graph: the graph itself. For a typed graph: the type that the task names, or the type where links start.
    Raises ConfigError if the graph has no such type."""
    if isinstance(graph, StoredGraph):
        return graph
    if config.links is not None:
        return graph.nodes(link_relation(graph, config.links.relation).source)
    return graph.nodes(predicted_type(graph, config.node_type))


def link_relation(graph: TypedGraph, named: str | None) -> Relation:
    """The relation that the task names; by default, the relation with held-out links. Raises ConfigError if the graph has no such relation."""
    relation = Relation.of(named) if named is not None else graph.manifest.link_relation
    if relation not in graph.relations:
        listed = ", ".join(map(str, graph.relations))
        got, do = f"{relation or 'none'}", "set --task.relation"
        if relation is None:
            do = "ingest it with --links.relation, --links.valid 0.05 and --links.test 0.1"
        raise ConfigError(f"{graph.url}: expected links held out of a relation, one of {listed}, got {got}; {do}")
    return relation


def link_rows(graph: NodeGraph, config: RunConfig) -> StoredGraph:
    """The graph whose edges are links: a plain graph itself, or the relation of a typed graph. Raises the errors of `link_relation`."""
    named = None if config.links is None else config.links.relation
    return graph if isinstance(graph, StoredGraph) else graph.relation(link_relation(graph, named))


def predicted_type(graph: TypedGraph, named: str | None) -> str:
    """The node type that the task names; by default, the only type with labels and splits. Raises ConfigError if no type or several types match."""
    if named is not None:
        graph.nodes(named)
        return named
    labelled = [name for name, row in graph.manifest.node_types.items() if row.label_kind and row.num_split_sets]
    if len(labelled) != 1:
        raise ConfigError(
            f"{graph.url}: expected one type of nodes with labels and splits, got {' and '.join(labelled) or 'none'} among "
            f"{', '.join(graph.node_types)}; set --task.node_type"
        )
    return labelled[0]


def with_type(config: RunConfig, graph: NodeGraph) -> RunConfig:
    """The configuration with the name of the predicted type or relation, and with the types that have trained embeddings. Raises the errors of
    `predicted_type` and `link_relation`, and ConfigError for an unknown type."""
    if isinstance(graph, StoredGraph):
        return config
    if config.embeddings.width:
        asked = {name: graph.nodes(name) for name in config.embeddings.node_types or graph.node_types}
        types = tuple(name for name in graph.node_types if name in asked)
        config = replace(config, embeddings=replace(config.embeddings, node_types=types))
    if config.links is not None:
        relation = str(link_relation(graph, config.links.relation))
        return replace(config, task=replace(config.task, options=replace(config.links, relation=relation)))
    if not hasattr(config.task.options, "node_type"):
        return config
    named = replace(config.task.options, node_type=predicted_type(graph, config.node_type))
    return replace(config, task=replace(config.task, options=named))


def typed_inputs(manifest: Manifest, nodes: Manifest, config: RunConfig) -> Inputs:
    """The model's inputs for a typed graph. `nodes`: the predicted type. The relational layers come before the model."""
    embedded = [
        each for name, row in manifest.node_types.items() for each in embedded_columns(name, row.feature_columns)
    ]
    widths = {name: config.data.category_width for name, *_ in embedded}
    ages = getattr(config.sampler.options, "recency_dim", 0)  # columns that are appended to the features of every node
    trained = dict.fromkeys(config.embeddings.node_types, config.embeddings.width)
    dims = edge_dims(manifest, config)
    return Inputs(
        node=Features(dim=config.relational.width),
        edge=Features(dim=config.relational.width if dims else 0),
        edge_dims=dims,
        out_dim=(nodes.num_classes or 1) if config.links is None else config.links.decoder.width,
        task="node",
        node_dims=tuple(
            (name, row.feature_dim + widths.get(name, 0) + ages + trained.get(name, 0))
            for name, row in manifest.node_types.items()
        ),
        relations=tuple((each.source, each.name, each.target) for each in manifest.edge_types),
        embedded=tuple(embedded),
        category_width=max(widths.values(), default=0),
        categories=tuple(
            each for name, row in manifest.node_types.items() for each in category_columns(name, row.feature_columns)
        ),
    )


def typed_identity(manifest: Manifest, node_type: str, split_set: int) -> dict[str, Any]:
    """Properties of the data that must not change when the run is resumed."""
    return {
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "node_type": node_type,
        "split_set": split_set,
        DATA: manifest.data_digest(node_type, split_set),
    }


def typed_facts(manifest: Manifest, nodes: Manifest, split_set: int) -> GraphFacts:
    """Facts for the rules, about the nodes of the predicted type and the edges that end in these nodes."""
    edges = sum(row.num_edges for relation, row in manifest.edge_types.items() if relation.target == nodes.name)
    return replace(graph_facts(nodes, split_set), num_edges=edges)


def check_graph_kind(config: RunConfig, graph: NodeGraph) -> None:
    """Raises ConfigError if options of typed graphs are set for a plain graph, or options of plain graphs for a typed graph."""
    problem = _for_types(config) if isinstance(graph, StoredGraph) else _for_one_type(config)
    if problem is not None:
        raise ConfigError(f"{graph.url}: {problem}")


def _for_types(config: RunConfig) -> str | None:
    """The error for options that a plain graph cannot have, or None."""
    wrong = dict[str, str]()
    if config.model.takes_types:
        wrong["--model"] = config.model.name
    if isinstance(config.sampler.options, TypedOptions):
        wrong["--sampler"] = config.sampler.name
    if config.node_type is not None:
        wrong["--task.node_type"] = config.node_type
    if config.embeddings.node_types:
        wrong["--embeddings.node_types"] = " ".join(config.embeddings.node_types)
    if config.links is not None and config.links.relation is not None:
        wrong["--task.relation"] = config.links.relation
    if config.relational != RelationalConfig():
        wrong["--relational"] = changed_options(config.relational)
    if not wrong:
        return None
    options = ", ".join(f"{flag} {value}" for flag, value in wrong.items())
    return f"expected a typed graph, which {options} {'is' if len(wrong) == 1 else 'are'} for, got a plain one; set another, or leave it out"


def _for_one_type(config: RunConfig) -> str | None:
    """The error for options that a typed graph cannot have, or None."""
    if config.model.takes_types and config.relational != RelationalConfig():
        return f"--relational: {config.model.name} has layers of its own; set --model.num_layers and the like, and leave out --relational"
    return None


def describe(graph: NodeGraph) -> str:
    """One line about a graph."""
    manifest = graph.manifest
    nodes = f"{manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges"
    if manifest.is_typed:
        nodes = f"{manifest.num_nodes:,} nodes of {len(manifest.node_types)} types, {manifest.num_edges:,} edges of {len(manifest.edge_types)} relations"
    return f"{manifest.name}: {nodes}, {manifest.num_partitions} partitions at {graph.url}"
