"""Prepares typed sources for ingestion. Checks them, adds reverse relations, and turns a source with one type and one relation into a plain graph."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.manifest import EDGE, NAME
from graphmill.storage.format.source import (
    REVERSE,
    EdgeChunk,
    EdgeSource,
    GraphSource,
    NodeChunk,
    NodeSource,
    Relation,
    SourceInfo,
    TypedSource,
)
from graphmill.storage.ingestion.ingest_options import MAX_PARTITIONS, IngestOptions
from graphmill.storage.splits.drawn_split import SplitSource

_OF_EDGES = (
    "num_edges",
    "edge_feature_dim",
    "relations",
    "has_edge_weight",
    "has_edge_time",
    "undirected_once",
    "symmetric",
)


def plain_source(source: GraphSource | TypedSource) -> GraphSource | TypedSource:
    """Returns a source of a plain graph if the typed source has one type and one relation. Else returns the source unchanged."""
    if isinstance(source, TypedSource) and len(source.nodes) == len(source.relations) == 1:
        return OnlyRelation(source)
    return source


@dataclass(frozen=True)
class OnlyRelation:
    """A `GraphSource` made from one type and one relation. The provenance records their names if they differ from those of a plain graph."""

    typed: TypedSource

    @property
    def info(self) -> SourceInfo:
        ((node_type, nodes),), ((relation, edges),) = self.typed.nodes.items(), self.typed.relations.items()
        names = {} if relation == EDGE else {"node_type": node_type, "relation": relation.name}
        of_edges = {key: getattr(edges.info, key) for key in _OF_EDGES}
        return replace(nodes.info, name=self.typed.name, provenance={**self.typed.provenance, **names}, **of_edges)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        (nodes,) = self.typed.nodes.values()
        return nodes.nodes(chunk_nodes)

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        (edges,) = self.typed.relations.values()
        return edges.edges(chunk_edges)


def with_reverse_relations(source: TypedSource) -> TypedSource:
    """Adds a relation rev_NAME for each relation NAME between two different types. Raises ConfigError if the source already has rev_NAME."""
    added: dict[Relation, EdgeSource] = {}
    for each, edges in source.relations.items():
        if each.source == each.target:
            continue
        reverse = reverse_of(each)
        if reverse in source.relations:
            raise ConfigError(
                f"{source.name}: {each} has its reverse {reverse} already: expected edges one way; pass --reverse-edges keep"
            )
        added[reverse] = Reversed(edges)
    return replace(source, relations={**source.relations, **added})


def reverse_of(relation: Relation) -> Relation:
    """Returns the relation that ingestion adds for the reverse edges."""
    return Relation(relation.target, REVERSE + relation.name, relation.source)


@dataclass(frozen=True)
class Reversed:
    """The edges of a relation with source and target exchanged."""

    edges_of: EdgeSource

    @property
    def info(self) -> SourceInfo:
        return replace(self.edges_of.info, name=f"{self.edges_of.info.name}, reversed")

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        for chunk in self.edges_of.edges(chunk_edges):
            yield replace(chunk, src=chunk.dst, dst=chunk.src)


def is_split(nodes: NodeSource, options: IngestOptions) -> bool:
    """Whether the options draw a split of these nodes. Nodes must have times for `by_time`, and labels for other splits."""
    return nodes.info.has_node_time if options.split.time_shares else nodes.info.has_label


def with_drawn_splits(source: TypedSource, options: IngestOptions) -> TypedSource:
    """Replaces the source's splits by the split that the options draw, so that tables learn only from training rows."""
    drawn = {
        name: nodes.with_split(options.split)
        for name, nodes in source.nodes.items()
        if options.split and isinstance(nodes, SplitSource) and (len(source.nodes) == 1 or is_split(nodes, options))
    }
    return replace(source, nodes={**source.nodes, **drawn})


def check_sizes(name: str, num_nodes: int, options: IngestOptions) -> None:
    """Raises DataError if there are no nodes, and ConfigError if there are more partitions than nodes."""
    if num_nodes < 1:
        raise DataError(f"{name}: expected at least one node, got {num_nodes}")
    if options.num_partitions > num_nodes:
        raise ConfigError(
            f"num_partitions: expected at most one partition per node ({num_nodes}), got {options.num_partitions}; "
            "lower --partitions"
        )


def check_typed(source: TypedSource, options: IngestOptions) -> None:
    """Makes all checks that do not need the source's data. Raises DataError and ConfigError."""
    name, types = source.name, source.nodes
    _check_names(source)
    for node_type, nodes in types.items():
        if nodes.info.num_nodes < 1:
            check_sizes(f"{name}: {node_type}", nodes.info.num_nodes, options)
    check_sizes(name, max((nodes.info.num_nodes for nodes in types.values()), default=0), options)
    parts = len(types) + len(source.relations)
    if options.num_partitions * parts > MAX_PARTITIONS:
        raise ConfigError(
            f"{name}: num_partitions: expected at most {MAX_PARTITIONS // parts} with {parts} types and relations, whose files a process maps, got "
            f"{options.num_partitions}; lower --partitions"
        )
    if options.out_edges and not any(each.source == each.target for each in source.relations):
        raise ConfigError(
            f"{name}: out_edges: expected a relation within one type, found none; out-edges between two types are a relation of their own: pass "
            "--reverse-edges add"
        )
    labelled = [node_type for node_type, nodes in types.items() if nodes.info.has_label]
    if options.num_classes is not None and len(labelled) != 1:
        raise ConfigError(
            f"{name}: num_classes: expected one type with labels, found {', '.join(labelled) or 'none'}; leave --num-classes out"
        )
    if options.split and not any(is_split(nodes, options) for nodes in types.values()):
        needed = "times" if options.split.time_shares else "labels"
        raise ConfigError(
            f"{name}: split {options.split}: expected a type whose nodes have {needed}, found none; leave --split out"
        )
    for each, edges in source.relations.items():
        if each.source != each.target and (edges.info.undirected_once or edges.info.symmetric):
            raise ConfigError(
                f"{name}: {each}: expected directed edges between two types, the source says undirected ones"
            )


def _check_names(source: TypedSource) -> None:
    """Raises ConfigError for a name that cannot be the name of a folder, and for a relation between unknown types."""
    for name in (*source.nodes, *(each.name for each in source.relations)):
        if not re.fullmatch(NAME, name):
            raise ConfigError(
                f"{source.name}: expected names of up to 64 letters, digits, _, . and single -, got {name!r}; rename this type or relation"
            )
    for each in source.relations:
        for end in (each.source, each.target):
            if end not in source.nodes:
                listed = ", ".join(source.nodes)
                raise ConfigError(f"{source.name}: relation {each}: expected types among {listed}, got {end!r}")
