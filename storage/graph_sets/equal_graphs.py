"""Finds equal graphs in a set: a hash of each graph that does not depend on the order of its nodes, and an exact comparison of two graphs.

The hash is that of color refinement (Weisfeiler and Leman, 1968): equal graphs have equal hashes. Different graphs may have equal hashes, too; then
`are_isomorphic` decides.
"""

from collections.abc import Iterator

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.storage.graph_sets.graph_set import GraphShard
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs

_KEY = 0x657175616C  # "equal"
_ROUNDS = 6  # rounds of refinement; more rounds tell few more pairs of small graphs apart
_MOST_BRANCHES = 10_000


def graph_hashes(shard: GraphShard, without: int | None = None) -> np.ndarray:
    """A hash of each graph, uint64 [g]. `without`: a column of node features that is not compared."""
    graph_of_node = np.repeat(np.arange(shard.num_graphs), np.diff(shard.node_ptr))
    num_nodes = len(graph_of_node)
    first = np.repeat(shard.node_ptr[:-1], np.diff(shard.edge_ptr))
    source, destination = first + shard.source, first + shard.destination
    order = np.argsort(destination, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(destination, minlength=num_nodes))])
    color = _row_hashes(shard.node_feature, num_nodes, 1, without)
    edge = _row_hashes(shard.edge_feature, len(source), 2, None)[order]
    source = source[order]
    for number in range(_ROUNDS):
        message = hash_counters(derive_key(_KEY, 3, number), color[source] ^ edge)
        color = hash_counters(derive_key(_KEY, 4, number), color) + _sums(message, bounds)
    total = _sums(hash_counters(derive_key(_KEY, 5), color), shard.node_ptr)
    return hash_counters(derive_key(_KEY, 6), total)


def _row_hashes(rows: np.ndarray | None, count: int, purpose: int, without: int | None) -> np.ndarray:
    if rows is None:
        return np.zeros(count, np.uint64)
    kept = [column for column in range(rows.shape[1]) if column != without]
    hashes = np.zeros(count, np.uint64)
    for column in kept:
        values = np.ascontiguousarray(rows[:, column])
        bits = values.view(f"u{values.itemsize}").astype(np.uint64)
        hashes = hash_counters(derive_key(_KEY, purpose, column), hashes ^ bits)
    return hashes


def _sums(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The sum of values[bounds[i]:bounds[i + 1]] modulo 2^64, uint64 [len(bounds) - 1]."""
    return np.diff(np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])[bounds])


def are_isomorphic(pair: PackedGraphs, without: int | None = None) -> bool | None:
    """Whether two packed graphs are equal up to the order of their nodes, with their features. None: not known after `_MOST_BRANCHES` tries.

    Individualisation and refinement: a node of the first graph is matched with each node of the second graph that has its color, and the colors of both are
    refined until every color is of one node.
    """
    return _match(_Small.of(pair, 0, without), _Small.of(pair, 1, without), iter(range(_MOST_BRANCHES)))


class _Small:
    """A graph as colors and lists of (source, edge color) by destination."""

    def __init__(self, color: list[int], lists: list[list[tuple[int, int]]]) -> None:
        self.color, self.lists = color, lists

    @classmethod
    def of(cls, graphs: PackedGraphs, index: int, without: int | None) -> "_Small":
        nodes = slice(*np.cumsum([0, *graphs.num_nodes])[index : index + 2])
        edges = slice(*np.cumsum([0, *graphs.num_edges])[index : index + 2])
        count, num_edges = int(graphs.num_nodes[index]), int(graphs.num_edges[index])
        node = None if graphs.node_feature is None else graphs.node_feature[nodes]
        edge = None if graphs.edge_feature is None else graphs.edge_feature[edges]
        color = _row_hashes(node, count, 1, without).tolist()
        of_edge = _row_hashes(edge, num_edges, 2, None).tolist()
        lists: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for source, destination, kind in zip(*graphs.edge_index[:, edges].tolist(), of_edge, strict=True):
            lists[destination].append((source, kind))
        return cls(color, lists)

    def refined(self, color: list[int]) -> list[int]:
        """The coarsest stable colors at least as fine as `color`. A new color is a hash of tuples of whole numbers, equal in all processes."""
        num = 0
        while len(set(color)) > num:
            num = len(set(color))
            color = [
                hash((own, tuple(sorted((color[source], kind) for source, kind in sources))))
                for own, sources in zip(color, self.lists, strict=True)
            ]
        return color


def _match(one: _Small, other: _Small, tries: Iterator[int]) -> bool | None:
    if next(tries, None) is None:
        return None
    # Both sides are refined by equally many rounds: the numbers of colors are equal in equal graphs.
    left, right = one.refined(one.color), other.refined(other.color)
    if sorted(left) != sorted(right):
        return False
    places: dict[int, list[int]] = {}
    for node, own in enumerate(left):
        places.setdefault(own, []).append(node)
    several = [nodes for nodes in places.values() if len(nodes) > 1]
    if not several:
        return _is_equal(one, other, left, right)
    chosen = min(several, key=len)[0]
    marked = hash((left[chosen], 1))
    first = _Small([marked if node == chosen else own for node, own in enumerate(left)], one.lists)
    for node in [k for k, own in enumerate(right) if own == left[chosen]]:
        second = _Small([marked if k == node else own for k, own in enumerate(right)], other.lists)
        found = _match(first, second, tries)
        if found is not False:
            return found
    return False


def _is_equal(one: _Small, other: _Small, left: list[int], right: list[int]) -> bool:
    """Whether the map between nodes of equal, distinct colors keeps all edges."""
    place = {own: node for node, own in enumerate(right)}
    moved = [place[own] for own in left]
    return all(
        sorted((moved[source], kind) for source, kind in sources) == sorted(other.lists[moved[node]])
        for node, sources in enumerate(one.lists)
    )
