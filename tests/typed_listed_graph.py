"""Typed graphs as plain Python lists, for tests: `expected_lists` is the slow reference of `graphmill.storage.ingestion.ingest`, `stored_lists` reads a stored graph back into its form.

Both name a node by its type and permanent id, so neither knows of partitions.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import TypedGraph
from graphmill.storage.ingestion.ingest_options import IngestOptions
from tests.listed_graph import ListedGraph

# An edge in a target's list: the source's permanent id, edge id, weight, features.
Edge = tuple[int, int | None, float | None, tuple[float, ...] | None]


@dataclass(frozen=True)
class TypedLists:
    """What a typed graph holds."""

    nodes: dict[str, dict[int, tuple]]  # type → permanent id → (feature, label, split)
    edges: dict[Relation, dict[int, list[Edge]]]  # relation → target's permanent id → its list


def typed_source(nodes: dict[str, ListedGraph], relations: dict[Relation, ListedGraph]) -> TypedSource:
    return TypedSource("listed", nodes, relations, {"made": "by hand"})


def expected_lists(
    nodes: dict[str, ListedGraph], relations: dict[Relation, ListedGraph], options: IngestOptions
) -> TypedLists:
    """By the rules of ingestion and nothing but dicts and lists; without reverses in a relation of one type."""
    ids = {name: each.original_id or list(range(each.num_nodes)) for name, each in nodes.items()}
    all_edges = {relation: listed.edges_listed for relation, listed in relations.items()}
    if options.undirected:
        for (source, name, target), listed in relations.items():
            if source != target:
                all_edges[Relation(target, f"rev_{name}", source)] = [(b, a) for a, b in listed.edges_listed]
    lists = {}
    for relation, pairs in all_edges.items():
        listed = relations.get(relation) or relations[Relation(relation.target, relation.name[4:], relation.source)]
        of_target: dict[int, list[Edge]] = {node: [] for node in ids[relation.target]}
        seen = set()
        for position, (src, dst) in sorted(enumerate(pairs), key=lambda each: (each[1][0], each[0])):
            if options.drop_self_loops and relation.source == relation.target and src == dst:
                continue
            if options.drop_duplicates and (src, dst) in seen:
                continue
            seen.add((src, dst))
            edge = (
                ids[relation.source][src],
                position if options.edge_ids else None,
                None if listed.weight is None else float(np.float32(listed.weight[position])),
                None if listed.edge_feature is None else _floats(listed.edge_feature[position]),
            )
            of_target[ids[relation.target][dst]].append(edge)
        lists[relation] = of_target
    rows = {
        name: {
            ids[name][row]: (
                None if each.feature is None else _floats(each.feature[row]),
                None if each.label is None else each.label[row],
                None if each.split is None else tuple(each.split[row]),
            )
            for row in range(each.num_nodes)
        }
        for name, each in nodes.items()
    }
    return TypedLists(rows, lists)


def stored_lists(graph: TypedGraph) -> TypedLists:
    """As the partitions have it; every file's checksum is checked."""
    rows: dict[str, dict[int, tuple]] = {}
    for name in graph.node_types:
        rows[name] = {}
        for index in range(graph.num_partitions):
            part = graph.nodes(name).partition(index, verify=True)
            assert (part.start, part.stop) == tuple(graph.nodes(name).offsets[index : index + 2])
            assert part.num_edges == 0
            features = part.feature_numbers()
            for row, node in enumerate(part.original_id.tolist()):
                rows[name][node] = (
                    None if features is None else _floats(features[row]),
                    None if part.label is None else part.label[row].item(),
                    None if part.split is None else tuple(part.split[:, row].tolist()),
                )
    permanent = {
        name: np.concatenate([graph.nodes(name).partition(p).original_id for p in range(graph.num_partitions)])
        for name in graph.node_types
    }
    lists: dict[Relation, dict[int, list[Edge]]] = {}
    for relation in graph.relations:
        lists[relation] = {}
        for index in range(graph.num_partitions):
            part = graph.relation(relation).partition(index, verify=True)
            for row, node in enumerate(part.original_id.tolist()):
                lists[relation][node] = [
                    (
                        int(permanent[relation.source][part.indices[e]]),
                        None if part.edge_id is None else int(part.edge_id[e]),
                        None if part.edge_weight is None else float(part.edge_weight[e]),
                        None if part.edge_feature is None else _floats(part.edge_feature[e]),
                    )
                    for e in range(int(part.indptr[row]), int(part.indptr[row + 1]))
                ]
    return TypedLists(rows, lists)


def _floats(values) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(values, np.float32))


@st.composite
def typed_lists(draw: st.DrawFn) -> tuple[dict[str, ListedGraph], dict[Relation, ListedGraph]]:
    """Up to three types and four relations, with or without each kind of column, in chunks of any size."""
    number = st.floats(-100, 100, width=16)
    nodes, relations = {}, {}
    for name in draw(st.lists(st.sampled_from(["paper", "author", "field_of_study"]), min_size=1, unique=True)):
        count = draw(st.integers(1, 9))
        dim, sets = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        gaps = draw(st.none() | st.lists(st.integers(1, 5), min_size=count, max_size=count))

        def rows(width, values, count=count):
            row = st.lists(values, min_size=width, max_size=width)
            return draw(st.lists(row, min_size=count, max_size=count)) if width else None

        nodes[name] = ListedGraph(
            num_nodes=count,
            edges_listed=[],
            feature=rows(dim, number),
            label=draw(st.none() | st.lists(st.integers(-1, 3), min_size=count, max_size=count)),
            num_classes=4,
            split=rows(sets, st.integers(0, 3)),
            original_id=None if gaps is None else np.cumsum(gaps).tolist(),
            nodes_per_chunk=draw(st.integers(1, 10)),
            name=name,
        )
    for name in draw(st.lists(st.sampled_from(["cites", "writes", "has-topic", "r.1"]), unique=True)):
        source, target = (draw(st.sampled_from(list(nodes))) for _ in range(2))
        ends = [st.integers(0, nodes[end].num_nodes - 1) for end in (source, target)]
        edges = draw(st.lists(st.tuples(*ends), max_size=25))
        dim = draw(st.integers(0, 2))
        relations[Relation(source, name, target)] = ListedGraph(
            num_nodes=0,
            edges_listed=edges,
            weight=draw(st.none() | st.lists(number, min_size=len(edges), max_size=len(edges))),
            edge_feature=[draw(st.lists(number, min_size=dim, max_size=dim)) for _ in edges] if dim else None,
            edge_feature_dim=dim,
            edges_per_chunk=draw(st.integers(1, 26)),
            name=name,
        )
    return nodes, relations
