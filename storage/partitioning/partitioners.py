"""Assigns nodes to partitions: `assign_partitions(name, source, num_partitions, seed)`, and `assign_types` for a typed graph.

A partitioner is a pure function of the source and its arguments, and leaves no partition empty. `random` and `range` read no edges, and the sizes of their
partitions differ by at most one. `ldg` and `metis` find locality groups, and order the groups so that neighbors are near
(`graphmill.storage.partitioning.group_order`). Their partitions are ranges of groups. A partition differs from the mean size by at most the size of a group.

In `ldg`, a group has at most `LOOSE` times the mean number of nodes, so that communities of different sizes fit. If the groups are the partitions, a group has
at most (1 + `LDG_SLACK`) times the mean. `metis` has METIS's tolerance (about 3 %). In a typed graph, both limit the number of nodes of each type in a group
to (1 + `LDG_SLACK`) times the mean for that type. Memory is O(num_nodes) and up to four windows of edges; `metis` has the whole graph in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from graphmill.core.counter_random import Permutation, derive_key
from graphmill.core.errors import ConfigError, DataError, MissingDependencyError
from graphmill.core.parallel_map import ordered_map
from graphmill.storage.format.source import EdgeChunk, EdgeSource, SourceInfo, TypedSource
from graphmill.storage.partitioning.group_order import even_ranges, order_groups

LDG_SLACK, LOOSE = 0.03, 4.0
# Number of edges in a window of LDG. An edge takes about 60 bytes. A larger window gives better partitions. This is a constant and not an option, so that
# a graph gets the same partitions on every machine.
LDG_WINDOW_EDGES = 1 << 21

# The default number of groups: PARTITION_GROUPS groups for each partition, with at least GROUP_NODES nodes per group. Any number of partitions up to
# FEW_PARTITIONS uses the same groups.
PARTITION_GROUPS, GROUP_NODES, FEW_PARTITIONS = 16, 32, 4
MOST_GROUPS = 4096  # limited, because ordering the groups needs a table with the number of edges between any two groups

_READ_EDGES = 1 << 20


@dataclass(frozen=True)
class Assignment:
    """The partition and the locality group of every row."""

    partition: np.ndarray  # int32 [num_nodes]
    group: np.ndarray | None = None  # int32 [num_nodes]; a later partition has higher group numbers; None: no groups
    num_groups: int = 0

    def rows(self, start: int, stop: int) -> "Assignment":
        """Returns the assignment of these rows only."""
        own = slice(start, stop)
        return replace(self, partition=self.partition[own], group=None if self.group is None else self.group[own])


def assign_partitions(
    name: str, source: EdgeSource, num_partitions: int, seed: int, num_groups: int | None = None
) -> Assignment:
    """Computes the partition of every row with the partitioner `name`, and also the row's locality group if this partitioner finds groups. If `num_groups` is
    None, `automatic_groups` decides. Edges count in both directions, even if the source gives only one direction.

    Raises DataError for an edge with an id out of range (`ldg`, `metis`), MissingDependencyError for `metis` without pymetis, ConfigError for
    an impossible number of groups.
    """
    num_nodes = source.info.num_nodes
    _check_groups(name, num_groups, num_partitions, num_nodes)
    if name in SHARES:
        return Assignment(SHARES[name](num_nodes, num_partitions, seed))
    num_groups = num_groups or automatic_groups(num_nodes, num_partitions)
    if num_groups == 1:
        return Assignment(np.zeros(num_nodes, np.int32))
    slack = LDG_SLACK if num_groups == num_partitions else LOOSE - 1
    group, size = _ordered_groups(name, source, np.array([0, num_nodes]), num_groups, seed, slack)
    return _ranges(group, even_ranges(size, num_partitions))


def assign_types(
    name: str, source: TypedSource, num_partitions: int, seed: int, num_groups: int | None = None
) -> dict[str, Assignment]:
    """Computes the partition of every row of every type. `ldg` and `metis` partition one graph, which has the rows of all types, one type after another, and
    the edges of all relations.

    The nodes of each type are divided about equally over groups and over partitions. If `num_groups` is None, the partitions are the groups, and no groups
    are stored. Raises the errors of `assign_partitions`.
    """
    num_nodes = {node_type: nodes.info.num_nodes for node_type, nodes in source.nodes.items()}
    _check_groups(name, num_groups, num_partitions, max(num_nodes.values()))
    if name in SHARES or (num_partitions == 1 and num_groups is None):
        shares = SHARES.get(name, consecutive_shares)
        return {node_type: Assignment(shares(count, num_partitions, seed)) for node_type, count in num_nodes.items()}
    edges = _TypesTogether(source)
    if num_groups is None:
        partition = GROUPERS[name](edges, edges.offsets, num_partitions, seed, None, LDG_SLACK)
        _fill_empty(partition, edges.offsets, num_partitions)
        assigned = Assignment(partition)
    else:
        group, _ = _ordered_groups(name, edges, edges.offsets, num_groups, seed, LDG_SLACK)
        # Each group has an equal share of every type, so partitions with the same number of groups also have equal shares.
        assigned = _ranges(group, even_ranges(np.ones(num_groups, np.int64), num_partitions))
    return {
        node_type: assigned.rows(start, stop)
        for node_type, (start, stop) in zip(num_nodes, pairwise(edges.offsets), strict=True)
    }


def _check_groups(name: str, num_groups: int | None, num_partitions: int, num_nodes: int) -> None:
    """Raises ConfigError for an impossible number of groups. `num_nodes`: number of nodes of the largest type."""
    if num_groups and name in SHARES:
        raise ConfigError(
            f"groups: expected a partitioner that finds some, ldg or metis, got {name}; set --partitioner ldg, or leave them out"
        )
    if num_groups and not num_partitions <= num_groups <= min(num_nodes, MOST_GROUPS):
        raise ConfigError(
            f"groups: expected at least one for each of {num_partitions} partitions, at most {MOST_GROUPS} and one for each of {num_nodes} nodes, got "
            f"{num_groups}"
        )


def _ordered_groups(
    name: str, source: EdgeSource, type_offsets: np.ndarray, num_groups: int, seed: int, slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group of every row (int32 [num_nodes]) and the size of every group (int64 [num_groups]). Groups with near numbers are near in the graph."""
    links = np.zeros((num_groups, num_groups), np.int64) if num_groups <= MOST_GROUPS else None
    group = GROUPERS[name](source, type_offsets, num_groups, seed, links, slack)
    _fill_empty(group, type_offsets, num_groups)
    size = np.bincount(group, minlength=num_groups)
    order = np.arange(num_groups) if links is None else order_groups(links, size)
    number = np.empty(num_groups, np.int32)
    number[order] = np.arange(num_groups)
    return number[group], size[order]


def _ranges(group: np.ndarray, bounds: np.ndarray) -> Assignment:
    """Makes partitions from groups. Each partition has the groups between two bounds."""
    partition_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    return Assignment(partition_of[group], group, len(partition_of))


@dataclass(frozen=True)
class _TypesTogether:
    """Presents a typed source as one plain graph, with the rows of all types, one type after another, and the edges of all relations."""

    source: TypedSource

    @cached_property
    def offsets(self) -> np.ndarray:
        """The first row of each type, and the number of all rows, int64 [num_types + 1]."""
        return np.cumsum([0, *(nodes.info.num_nodes for nodes in self.source.nodes.values())])

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(name=self.source.name, num_nodes=int(self.offsets[-1]))

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields the edges of one relation after another. Raises DataError for an id outside its type."""
        first = dict(zip(self.source.nodes, self.offsets.tolist(), strict=False))
        for relation, edges in self.source.relations.items():
            ends = relation.source, relation.target
            counts = [self.source.nodes[end].info.num_nodes for end in ends]
            for chunk in edges.edges(chunk_edges):
                _check_ends(chunk, edges.info.name, *counts)
                yield EdgeChunk(chunk.src + first[ends[0]], chunk.dst + first[ends[1]])


def automatic_groups(num_nodes: int, num_partitions: int) -> int:
    """Returns the default number of locality groups. One partition needs no groups, so the number is 1. In a small graph, the partitions are the groups."""
    if num_partitions == 1:
        return 1
    many = PARTITION_GROUPS * max(num_partitions, FEW_PARTITIONS)
    return many if many * GROUP_NODES <= num_nodes and many <= MOST_GROUPS else num_partitions


def random_shares(num_nodes: int, num_partitions: int, seed: int) -> np.ndarray:
    """Shuffles the rows with a key and cuts them into equal shares. Returns the share of each row, int32 [num_nodes]."""
    from graphmill.core.counter_kernels import shuffled_shares

    # "part": makes this shuffle independent of other draws with the same seed
    shuffle = Permutation(num_nodes, derive_key(seed, 0x7061_7274))
    partition = np.empty(num_nodes, dtype=np.int32)
    shuffled_shares(shuffle.compiled_form, num_partitions, partition)
    return partition


def consecutive_shares(num_nodes: int, num_partitions: int, seed: int) -> np.ndarray:
    """Cuts the rows, in order, into equal shares. Returns the share of each row, int32 [num_nodes]. `seed` is not used."""
    bound = np.arange(num_partitions + 1) * num_nodes // num_partitions
    return np.repeat(np.arange(num_partitions, dtype=np.int32), np.diff(bound))


def ldg_groups(
    source: EdgeSource, type_offsets: np.ndarray, num_groups: int, seed: int, links: np.ndarray | None, slack: float
) -> np.ndarray:
    """Groups nodes by linear deterministic greedy (LDG) in one pass over the edge stream. Returns the group of each node, int32 [num_nodes]. Ignores `seed`.
    Type t has the rows [type_offsets[t], type_offsets[t + 1]). For each type, a group has at most (1 + `slack`) times the mean number of nodes per group. If
    `links` is given, counts the edges from group a to group b in links[a, b], by the groups that the ends have after the edge's window was placed.

    A node goes to the group g with the largest count_g · (1 - size_g / capacity): count_g is the number of its neighbours in g, size_g the number of nodes of
    its type in g. If several groups are equally good, the emptiest is used (Stanton and Kliot, "Streaming graph partitioning for large distributed graphs",
    KDD 2012). In the paper, nodes arrive with all their neighbours. Here edges arrive, so a node is placed by its neighbours in a window of
    `LDG_WINDOW_EDGES` edges. The nodes of a window are placed in order of first appearance. A node is placed again in a later window if it has at least as
    many neighbours there. Nodes without edges fill the emptiest groups.
    """
    # Imported here, so that only this partitioner waits for numba's compiler.
    from graphmill.storage.partitioning.greedy_kernels import count_links, fill_up, place_window

    num_nodes = source.info.num_nodes
    capacity = _capacities(type_offsets, num_groups, slack)
    group = np.full(num_nodes, -1, dtype=np.int32)
    seen = np.zeros(num_nodes, np.int32)
    size = np.zeros((len(capacity), num_groups), dtype=np.int64)

    def place(window: tuple[np.ndarray, np.ndarray]) -> None:
        place_window(*window, group, seen, type_offsets, size, capacity)
        if links is not None:
            count_links(*window, group, links)

    # This thread reads a window while another thread places the nodes of the previous window.
    for _ in ordered_map(place, _windows(source, LDG_WINDOW_EDGES), 1):
        pass
    for of_type, own in zip(np.split(group, type_offsets[1:-1]), size, strict=True):
        fill_up(of_type, own)
    return group


def metis_groups(
    source: EdgeSource, type_offsets: np.ndarray, num_groups: int, seed: int, links: np.ndarray | None, slack: float
) -> np.ndarray:
    """Groups nodes by METIS's k-way partition of the undirected simple graph of the edges. Arguments and result are as in `ldg_groups`, except that METIS's
    own tolerance applies and a group may be empty. The whole graph is in memory.

    METIS (pymetis) balances the total number of nodes, not the number of each type. With several types, nodes are then moved out of any group with more than
    (1 + `slack`) times the mean number of nodes of a type. The nodes that cause the fewest additional cut edges are moved.
    """
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError(
            "the metis partitioner needs pymetis: pip install -e '.[metis]', or choose --partitioner ldg"
        ) from error
    from scipy.sparse import coo_array

    from graphmill.storage.partitioning.greedy_kernels import count_links

    num_nodes = source.info.num_nodes
    windows = list(_windows(source, _READ_EDGES))
    src = np.concatenate([np.empty(0, np.int64), *(window[0] for window in windows)])
    dst = np.concatenate([np.empty(0, np.int64), *(window[1] for window in windows)])
    del windows
    no_loop = src != dst
    src, dst = src[no_loop], dst[no_loop]
    ones = np.ones(2 * len(src), dtype=bool)
    shape = (num_nodes, num_nodes)
    adjacency = coo_array((ones, (np.concatenate([src, dst]), np.concatenate([dst, src]))), shape=shape).tocsr()
    adjacency.sum_duplicates()  # after this, the order of neighbours does not depend on the order of edges
    options = pymetis.Options(seed=seed & 0x7FFF_FFFF)
    _, parts = pymetis.part_graph(
        num_groups, pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices), options=options
    )
    group = np.asarray(parts, dtype=np.int32)
    if len(type_offsets) > 2:
        _keep_to_capacity(group, adjacency.indptr, adjacency.indices, type_offsets, num_groups, slack)
    if links is not None:
        count_links(src, dst, group, links)
    return group


SHARES: dict[str, Callable[[int, int, int], np.ndarray]] = {"random": random_shares, "range": consecutive_shares}
GROUPERS: dict[str, Callable[[EdgeSource, np.ndarray, int, int, np.ndarray | None, float], np.ndarray]] = {
    "ldg": ldg_groups,
    "metis": metis_groups,
}


def _capacities(type_offsets: np.ndarray, num_groups: int, slack: float) -> np.ndarray:
    """Returns the largest allowed number of nodes of each type in a group, int64 [num_types]."""
    return np.ceil(np.diff(type_offsets) / num_groups * (1.0 + slack)).astype(np.int64)


def _keep_to_capacity(
    group: np.ndarray,
    indptr: np.ndarray,
    neighbour: np.ndarray,
    type_offsets: np.ndarray,
    num_groups: int,
    slack: float,
) -> None:
    """Moves nodes, in place, until no group has more nodes of a type than the capacity of the type."""
    from graphmill.storage.partitioning.greedy_kernels import cost_of_leaving, move_surplus

    kind = np.repeat(np.arange(len(type_offsets) - 1), np.diff(type_offsets))
    size = np.bincount(kind * num_groups + group, minlength=(len(type_offsets) - 1) * num_groups)
    order = np.argsort(cost_of_leaving(indptr, neighbour, group, num_groups), kind="stable")
    capacity = _capacities(type_offsets, num_groups, slack)
    move_surplus(order, indptr, neighbour, kind, group, size.reshape(-1, num_groups), capacity)


def _windows(source: EdgeSource, window_edges: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (src, dst) in windows of `window_edges` edges; the last window may have fewer. Windows do not depend on the source's chunks. Checks the ids."""
    num_nodes = source.info.num_nodes
    pending: list[tuple[np.ndarray, np.ndarray]] = []
    num_pending = 0
    for chunk in source.edges(min(window_edges, _READ_EDGES)):
        _check_ends(chunk, source.info.name, num_nodes, num_nodes)
        src, dst = chunk.src, chunk.dst
        while len(src):
            space = window_edges - num_pending
            pending.append((src[:space], dst[:space]))
            num_pending += len(pending[-1][0])
            src, dst = src[space:], dst[space:]
            if num_pending == window_edges:
                yield np.concatenate([pair[0] for pair in pending]), np.concatenate([pair[1] for pair in pending])
                pending, num_pending = [], 0
    if num_pending:
        yield np.concatenate([pair[0] for pair in pending]), np.concatenate([pair[1] for pair in pending])


def _check_ends(chunk: EdgeChunk, name: str, num_sources: int, num_targets: int) -> None:
    """Raises DataError unless the ends of the edges are valid rows: below `num_sources` and `num_targets`."""
    if len(chunk.src) != len(chunk.dst):  # the compiled loops read both arrays with one index
        raise DataError(f"{name}: expected as many sources as destinations, got {len(chunk.src)} and {len(chunk.dst)}")
    for ids, count in ((chunk.src, num_sources), (chunk.dst, num_targets)):
        if len(ids) and (ids.min() < 0 or ids.max() >= count):
            bad = ids[int(np.argmax((ids < 0) | (ids >= count)))]
            raise DataError(f"{name}: edge ids must be 0 to {count - 1} (num_nodes = {count}), got {bad}")


def _fill_empty(group: np.ndarray, type_offsets: np.ndarray, num_groups: int) -> None:
    """For each type, fills every group that has no node of this type with one node: the last row of the group with most nodes of the type. Works in place. A
    type with fewer nodes than groups is not changed."""
    for own in np.split(group, type_offsets[1:-1]):
        size = np.bincount(own, minlength=num_groups)
        for empty in np.flatnonzero(size == 0) if len(own) >= num_groups else ():
            largest = int(np.argmax(size))
            own[np.flatnonzero(own == largest)[-1]] = empty
            size[largest] -= 1
            size[empty] += 1
