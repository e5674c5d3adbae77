"""Checks that a graph has everything a sampler needs, when the sampler is constructed. The checks read only manifests and send no requests to owners."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.messages import EdgeColumn, Scheme, WalkDirection
from graphmill.storage.format.manifest import EDGE, Manifest
from graphmill.storage.format.source import Relation

NO_EDGE_IDS = "edge ids: the graph keeps none; ingest it with --edge-ids"
NO_EDGE_WEIGHTS = "edge weights: the graph has none; ingest a source that has them"
NO_EDGE_TIMES = "times: the graph's edges have none; ingest a source with times (--edge-list.time of an edge list)"
LAST_OF_BOTH = "scheme 'last': expected in-edges or out-edges alone, whose lists ascend in time, got both of a directed graph; set direction"
NO_ROOT_TIMES = "time: expected roots with times, the graph's nodes have none; set --sampler.as_of, or ingest a source with times of nodes"
NO_GROUPS = (
    "root_order: expected a graph with locality groups, this one has none; ingest it with --partitioner ldg (or metis) and --groups, or leave out "
    "--sampler.root_order"
)
NO_EDGE_FEATURES = (
    "edge features: the graph has none of these edges (they lie beside in-edges only); use direction 'in'"
)


class HasManifest(Protocol):
    @property
    def manifest(self) -> Manifest: ...


class GraphParts(Protocol):
    """The types and relations of a graph, as a router has them. A plain graph has one type and one relation."""

    @property
    def nodes(self) -> Mapping[str, HasManifest]: ...

    @property
    def edges(self) -> Mapping[Relation, HasManifest]: ...


def has_one_relation(graph: GraphParts) -> bool:
    """Whether the graph has one type and one relation. In such a graph a missing column is an error; in other graphs the column is left out."""
    return len(graph.nodes) == len(graph.edges) == 1


def no_out_edges(direction: WalkDirection, relation: Relation | None = None) -> ConfigError:
    """The error for missing out-edges. `relation`: the relation that has no reverse, or None for a plain graph."""
    if relation is None:
        return ConfigError(
            f"direction {direction!r} needs lists of out-edges, the graph has none; ingest it with --out-edges"
        )
    return ConfigError(
        f"{relation}: direction {direction!r} needs lists of out-edges, a relation has in-edges alone; set direction in, and ingest the graph "
        "with --reverse-edges add where it has no reverse relations"
    )


def directed_lists(
    graph: GraphParts, relations: Iterable[Relation], direction: WalkDirection
) -> dict[Relation, WalkDirection]:
    """Finds the lists that hold the edges of `relations` in a direction. Returns relation -> direction of its lists, in the graph's order.

    The out-edges of a relation are the in-edges of its reverse. The reverse has the name that ingestion gives to reverses, and the same number of edges. If
    there is no reverse, the relation itself must be symmetric or store out-edges; otherwise raises ConfigError. No edge is listed twice.
    """
    lists = dict[Relation, WalkDirection]()
    for each in relations:
        pair = [each, each.reverse] if _has_reverse(graph, each) else [each]
        if direction == "in" or (len(pair) == 1 and _has_out_lists(graph, each)):
            lists[each] = direction
        elif len(pair) == 1:
            raise no_out_edges(direction, None if each == EDGE else each)
        else:
            lists |= dict.fromkeys(pair if direction == "both" else pair[1:], "in")
    return {each: lists[each] for each in graph.edges if each in lists}


def _has_reverse(graph: GraphParts, relation: Relation) -> bool:
    reverse = graph.edges.get(relation.reverse)
    if reverse is None or relation.reverse.reverse != relation:  # a name such as rev_rev_NAME
        return False
    return reverse.manifest.num_edges == graph.edges[relation].manifest.num_edges


def _has_out_lists(graph: GraphParts, relation: Relation) -> bool:
    manifest = graph.edges[relation].manifest
    return relation.source == relation.target and (manifest.symmetric or manifest.has_out_edges)


def _check_edges(manifest: Manifest, use: "EdgeUse", *, induced: bool) -> None:
    """Raises ConfigError if a relation does not store an edge column that the sampler uses."""
    if "weight" in (use.scheme, *use.columns) and not manifest.has_edge_weight:
        raise ConfigError(f"{manifest.name}: the graph has no edge weights; ingest a source that has them")
    if (use.timed or use.scheme == "last" or "time" in use.columns) and not manifest.has_edge_time:
        raise ConfigError(NO_EDGE_TIMES)
    if use.scheme == "last" and use.direction == "both" and not manifest.symmetric:
        raise ConfigError(LAST_OF_BOTH)
    of_out_edges = use.direction != "in" and not manifest.symmetric and not induced
    if "id" in use.columns and not manifest.has_edge_id and (of_out_edges or manifest.num_partitions > 1):
        # In a graph of one partition an in-edge's id is its position. With several partitions, a partition does not know the id of its first edge.
        raise ConfigError(NO_EDGE_IDS)
    if "feature" in use.columns:
        if not manifest.edge_feature_dim:
            raise ConfigError(f"{manifest.name}: the graph has no edge features; ingest a source that has them")
        if of_out_edges:
            raise ConfigError(NO_EDGE_FEATURES)


def check_splits(graph: GraphParts, node_type: str, split_set: int) -> None:
    """Raises ConfigError if this type of nodes does not have this split set."""
    num_sets = graph.nodes[node_type].manifest.num_split_sets
    if not 0 <= split_set < max(num_sets, 1):
        whose = "the graph" if has_one_relation(graph) else node_type
        held = f"one of {whose}'s {num_sets}" if num_sets else f"0, {whose} has none"
        raise ConfigError(f"split set: expected {held}, got {split_set}; set --data.split_set")


def type_of_roots(graph: GraphParts, root_type: str | None) -> str:
    """Returns the type of the roots: the given type, else the only type, else the only type with labels. Raises ConfigError if the graph has no such type."""
    if root_type is not None:
        if root_type not in graph.nodes:
            raise ConfigError(f"root_type: expected one of {', '.join(graph.nodes)}, got {root_type!r}; set root_type")
        return root_type
    if len(graph.nodes) == 1:
        return next(iter(graph.nodes))
    labelled = [name for name, each in graph.nodes.items() if each.manifest.label_kind is not None]
    if len(labelled) != 1:
        raise ConfigError(
            f"root_type: expected a type of nodes, for {' and '.join(labelled) or 'no type'} of {', '.join(graph.nodes)} "
            "has labels; set root_type"
        )
    return labelled[0]


def known_relations(graph: GraphParts, names: Iterable[str], option: str = "relations") -> tuple[Relation, ...]:
    """Returns the named relations in the graph's order, or all relations if `names` is empty. Raises ConfigError if the graph does not have a relation."""
    named = {Relation.of(name) for name in names}
    for relation in named:
        if relation not in graph.edges:
            raise ConfigError(f"{option}: expected relations among {', '.join(map(str, graph.edges))}, got {relation}")
    return tuple(relation for relation in graph.edges if relation in named or not named)


@dataclass(frozen=True)
class EdgeUse:
    """The lists and columns of one relation that a sampler uses."""

    scheme: Scheme
    columns: tuple[EdgeColumn, ...]
    timed: bool
    direction: WalkDirection = "in"  # direction of the lists from which edges are drawn


def edge_uses(
    graph: GraphParts,
    direction: WalkDirection = "in",
    *,
    scheme: Scheme = "uniform",
    edge_columns: tuple[EdgeColumn, ...] = (),
    induced: bool = False,
    timed: bool = False,
) -> dict[Relation, EdgeUse]:
    """Returns the lists and columns that a sampler uses, for each relation.

    In a graph of several relations, the sampler uses the columns that each relation stores. It draws uniformly from a relation without weights, and ignores
    times in a relation without times. `induced`: the columns are columns of induced edges, which are always in-edges. Raises ConfigError in three cases: the
    only relation does not have what the options need; none of several relations stores a column; or a relation has no lists in this direction
    (`directed_lists`).
    """
    alone, uses = has_one_relation(graph), dict[Relation, EdgeUse]()
    needed: dict[str, EdgeColumn] = {"weight": "weight", "last": "time"}  # the column that a scheme needs
    columns = set(edge_columns) | {
        column for name, column in needed.items() if name == scheme or (timed and column == "time")
    }
    for relation, list_direction in directed_lists(graph, graph.edges, direction).items():
        manifest = graph.edges[relation].manifest
        stored = columns if alone else {name for name in columns if has_column(manifest, name)}
        use = EdgeUse(
            scheme if scheme not in needed or needed[scheme] in stored else "uniform",
            tuple(name for name in edge_columns if name in stored),
            timed and "time" in stored,
            list_direction,
        )
        try:
            _check_edges(manifest, use, induced=induced)
        except ConfigError as error:
            raise error if alone else ConfigError(f"{relation}: {error}") from None
        uses[relation] = use
    for name in () if alone else columns:
        if not any(has_column(each.manifest, name) for each in graph.edges.values()):
            raise ConfigError(f"edge column {name!r}: no relation has it; ingest a source that has it")
    return uses


def has_column(manifest: Manifest, name: EdgeColumn) -> bool:
    """Whether a relation stores this edge column."""
    return {
        "id": manifest.has_edge_id,
        "weight": manifest.has_edge_weight,
        "time": manifest.has_edge_time,
        "feature": manifest.edge_feature_dim > 0,
    }[name]


def encodings_by_type(graph: GraphParts, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Returns, for each type, these encodings if the type stores all of them, and otherwise no encodings. Raises ConfigError if no type stores them. In a graph
    of one type, the owner of the nodes raises this error later."""
    stored = {
        name: names if len(graph.nodes) == 1 or set(names) <= set(each.manifest.encodings) else ()
        for name, each in graph.nodes.items()
    }
    if names and not any(stored.values()):
        raise ConfigError(
            f"encodings: expected a type of nodes that stores {', '.join(names)}, got none; leave them out"
        )
    return stored


def integer_ids(node: np.ndarray) -> np.ndarray:
    """Converts node ids to the form that owners accept: int32 or int64 in this machine's byte order. If the array has this form, returns it unchanged.

    Raises ConfigError unless `node` is a one-dimensional array of integers.
    """
    node = np.asarray(node)
    if node.dtype.kind not in "iu":
        raise ConfigError(f"expected integer node ids, got dtype {node.dtype}")
    if node.ndim != 1:
        raise ConfigError(f"expected a one-dimensional array of node ids, got shape {node.shape}")
    if node.dtype in (np.int64, np.int32):
        return node
    if node.dtype.kind == "u" and len(node) and node.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"expected node ids below 2^63, got {node.max()}")
    return node.astype(np.int64)
