"""A slow reference for typed neighbor sampling. It uses Python integers, dicts and lists, and reads graphs of `tests.memory_graph`.

This module defines the random numbers of every draw, as `tests.reference_sampler` does for plain graphs.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from graphmill.samplers.batches.typed_batch import TypedBatch
from graphmill.storage.format.source import Relation
from tests.memory_graph import EdgeTable, TypedMemoryGraph
from tests.reference_sampler import MASK, NEIGHBORS, floyd, hash64, stream_key


@dataclass(frozen=True)
class Expected:
    """The expected batch, as lists."""

    node: dict[str, list[int]]
    hop: dict[str, list[int]]
    in_lists: dict[Relation, list[list[int]]]  # for each target node, the positions of its sources
    edge_rows: dict[Relation, list[int]]  # the row of each edge in its table


def name_number(relation: Relation) -> int:
    return int.from_bytes(hashlib.sha256(b"\0".join(one.encode() for one in relation)).digest()[:8], "little")


def typed_batch(
    graph: TypedMemoryGraph,
    root_type: str,
    roots: list[int],
    fanouts: dict[Relation, tuple[int, ...]],
    seed: int,
    epoch: int,
    batch: int,
    direction: str = "in",
) -> Expected:
    position: dict[str, dict[int, int]] = {name: {} for name in graph.node_types}
    hop_of: dict[str, list[int]] = {name: [] for name in graph.node_types}
    in_lists: dict[Relation, list[list[int]]] = {relation: [] for relation in graph.relations}
    edge_rows: dict[Relation, list[int]] = {relation: [] for relation in graph.relations}
    stored = {relation: lists_of(graph, relation, direction) for relation in graph.relations}
    frontier: dict[str, list[int]] = {name: [] for name in graph.node_types}
    frontier[root_type] = roots
    position[root_type] = {root: i for i, root in enumerate(roots)}
    hop_of[root_type] = [0] * len(roots)
    is_plain = len(graph.node_types) == len(graph.relations) == 1
    for hop in range(len(next(iter(fanouts.values())))):
        found: dict[str, list[int]] = {name: [] for name in graph.node_types}
        for relation in graph.relations:
            key = stream_key(seed, NEIGHBORS, epoch, batch, hop, *([] if is_plain else [name_number(relation) & MASK]))
            places = position[relation.source]
            for node in frontier[relation.target]:
                edges, fanout = stored[relation][node], fanouts[relation][hop]
                if 0 <= fanout < len(edges):
                    edges = [edges[place] for place in floyd(hash64(key, node), len(edges), fanout)]
                for source, row in edges:
                    if source not in places:
                        places[source] = len(places)
                        found[relation.source].append(source)
                        hop_of[relation.source].append(hop + 1)
                    edge_rows[relation].append(row)
                in_lists[relation].append([places[source] for source, _ in edges])
        frontier = found
    for relation in graph.relations:
        in_lists[relation] += [[]] * (len(position[relation.target]) - len(in_lists[relation]))
    return Expected({name: list(places) for name, places in position.items()}, hop_of, in_lists, edge_rows)


def lists_of(graph: TypedMemoryGraph, relation: Relation, direction: str) -> dict[int, list[tuple[int, int]]]:
    """Maps the permanent id of a node to the list of entries from which its edges in this relation are drawn.

    With direction "out", if relation r has a reverse, the table of r has the out-edges of this reverse. They are read from
    the edges of the reverse. A relation that stores its out-edges itself uses its own edges.
    """
    source, target, edges = graph.tables[relation.source].ids, graph.tables[relation.target].ids, graph.edges[relation]
    if direction == "in" or relation.reverse in graph.edges:
        other = graph.edges[relation.reverse] if direction == "out" else EdgeTable(edges.dst, edges.src)
        lists: dict[int, list[tuple[int, int]]] = {one: [] for one in target}
        for row, (src, dst) in enumerate(zip(other.src, other.dst, strict=True)):
            lists[target[src]].append((source[dst], row))
        return {one: sorted(found) for one, found in lists.items()}
    incoming, outgoing = graph.in_edges(relation), {one: [] for one in source}
    for row, (src, dst) in enumerate(zip(edges.src, edges.dst, strict=True)):
        outgoing[source[src]].append((target[dst], row))
    return {one: (incoming[one] if direction == "both" else []) + sorted(found) for one, found in outgoing.items()}


def assert_is(batch: TypedBatch, expected: Expected, graph: TypedMemoryGraph, num_roots: int) -> None:
    """Checks that the batch equals the reference, including the rows of its nodes."""
    assert list(batch.nodes) == list(graph.node_types)
    assert list(batch.edges) == list(graph.relations)
    for name, nodes in batch.nodes.items():
        ids, table = expected.node[name], graph.tables[name]
        assert nodes.node_id.tolist() == ids
        assert nodes.hop.tolist() == expected.hop[name]
        rows = [table.ids.index(one) for one in ids]
        assert (nodes.x is None) == (table.feature is None)
        if table.feature is not None:
            np.testing.assert_array_equal(nodes.x, table.feature[rows])
        assert (nodes.y is None) == (not table.labelled)
        if table.labelled:
            assert nodes.y.tolist() == [one % 5 for one in ids]
        assert (nodes.split is None) == (table.split is None)
        if table.split is not None:
            assert nodes.split.tolist() == [table.split[row] for row in rows]
    for relation, edges in batch.edges.items():
        lists = expected.in_lists[relation]
        assert edges.indptr.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
        assert edges.indices.tolist() == [source for one in lists for source in one]
        assert (edges.indptr.dtype, edges.indices.dtype) == (np.int64, np.int32)
    assert batch.root_index.tolist() == list(range(num_roots))


def arrays_of(batch: TypedBatch) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The type, shape and bytes of every array of a batch."""
    found = {"root_index": batch.root_index}
    for tables in (batch.nodes, batch.edges):
        for name, table in tables.items():
            found |= {
                f"{name} {column}": array for column, array in vars(table).items() if isinstance(array, np.ndarray)
            }
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found.items()}


def assert_same(one: TypedBatch, other: TypedBatch) -> None:
    """Checks that two batches are equal bit for bit."""
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    wrong = [name for name, value in first.items() if second[name] != value]
    assert not wrong, wrong
    assert (one.epoch, one.index, one.num_hops, one.root_type) == (
        other.epoch,
        other.index,
        other.num_hops,
        other.root_type,
    )
