"""Which partition owns which node: `assign_partitions(name, source, num_partitions, seed)`, and `assign_types` of a typed graph.

A partitioner is a pure function of the source and its arguments, and leaves no partition empty. `random` and `range` see no edge, and sizes
differ by at most one. `ldg` and `metis` find locality groups, which stand in an order in which neighbors are near (`graphmill.storage.partitioning.group_order`); a partition is a range
of them, within a group of the even one. `ldg` puts at most `LOOSE` times the mean in a group, so that communities of many sizes find room, or (1 + `LDG_SLACK`)
times where groups are the partitions; `metis` keeps METIS's tolerance (about 3 %). Of a typed graph groups are the partitions, and both keep to (1 + `LDG_SLACK`) for each type.
Memory is O(num_nodes) and up to four windows of edges; `metis` holds the graph.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphmill.core.counter_random import Permutation, derive_key
from graphmill.core.errors import ConfigError, DataError, MissingDependencyError
from graphmill.core.parallel_map import ordered_map
from graphmill.storage.format.source import EdgeChunk, EdgeSource, SourceInfo, TypedSource
from graphmill.storage.partitioning.group_order import even_ranges, order_groups

LDG_SLACK, LOOSE = 0.03, 4.0
# Edges that LDG sees at once, about 60 bytes each: the more, the better the partitions. A constant, not an option: the same
# graph gets the same partitions on every machine.
LDG_WINDOW_EDGES = 1 << 21

# As many groups for each partition, of at least so many nodes; few partitions have as many as so many do, and the same ones.
PARTITION_GROUPS, GROUP_NODES, FEW_PARTITIONS = 16, 32, 4
MOST_GROUPS = 4096  # that are ordered: edges are counted from each to each

_READ_EDGES = 1 << 20


@dataclass(frozen=True)
class Assignment:
    """Of every row of a graph."""

    partition: np.ndarray  # int32 [num_nodes]
    group: np.ndarray | None = (
        None  # int32 [num_nodes], ascending from partition to partition; None: there are no groups
    )
    num_groups: int = 0


def assign_partitions(
    name: str, source: EdgeSource, num_partitions: int, seed: int, num_groups: int | None = None
) -> Assignment:
    """The partition of every row, by the partitioner `name`, and its locality group where there are such (`automatic_groups` says how many, if
    nobody else does). Edges count both ways, whether or not the source gives both.

    Errors: DataError for an edge whose id is out of range (`ldg`, `metis`); MissingDependencyError for `metis` without pymetis; ConfigError for
    groups that cannot be.
    """
    num_nodes = source.info.num_nodes
    if name in SHARES:
        if num_groups:
            raise ConfigError(
                f"groups: expected a partitioner that finds some, ldg or metis, got {name}; leave them out"
            )
        return Assignment(SHARES[name](num_nodes, num_partitions, seed))
    if num_groups is None:
        num_groups = automatic_groups(num_nodes, num_partitions)
    elif not num_partitions <= num_groups <= min(num_nodes, MOST_GROUPS):
        raise ConfigError(
            f"groups: expected at least one for each of {num_partitions} partitions, at most {MOST_GROUPS} and one for each of {num_nodes} nodes, got "
            f"{num_groups}"
        )
    if num_groups == 1:
        return Assignment(np.zeros(num_nodes, np.int32))
    links = np.zeros((num_groups, num_groups), np.int64) if num_groups <= MOST_GROUPS else None
    slack = LDG_SLACK if num_groups == num_partitions else LOOSE - 1
    whole = np.array([0, num_nodes])
    group = _without_empty(GROUPERS[name](source, whole, num_groups, seed, links, slack), num_groups)
    size = np.bincount(group, minlength=num_groups)
    order = np.arange(num_groups) if links is None else order_groups(links, size)
    number = np.empty(num_groups, np.int32)
    number[order] = np.arange(num_groups)
    bounds = even_ranges(size[order], num_partitions)
    partition_of = np.repeat(np.arange(num_partitions, dtype=np.int32), np.diff(bounds))
    group = number[group]
    return Assignment(partition_of[group], group, num_groups)


def assign_types(name: str, source: TypedSource, num_partitions: int, seed: int) -> dict[str, Assignment]:
    """The partition of every row of every type. `ldg` and `metis` see one graph: the rows of all types one after another, the edges of all relations.

    Each partition has about equally many nodes of each type, and there are no locality groups. Errors as `assign_partitions`.
    """
    num_nodes = {node_type: nodes.info.num_nodes for node_type, nodes in source.nodes.items()}
    if name in SHARES or num_partitions == 1:
        shares = SHARES.get(name, consecutive_shares)
        return {node_type: Assignment(shares(count, num_partitions, seed)) for node_type, count in num_nodes.items()}
    together = _TypesTogether(source)
    partition = GROUPERS[name](together, together.offsets, num_partitions, seed, None, LDG_SLACK)
    of_types = dict(zip(num_nodes, np.split(partition, together.offsets[1:-1]), strict=True))
    return {
        node_type: Assignment(_without_empty(own, num_partitions) if len(own) >= num_partitions else own)
        for node_type, own in of_types.items()
    }


@dataclass(frozen=True)
class _TypesTogether:
    """A typed source as the edges of one plain graph: the rows of all types one after another, the edges of all relations."""

    source: TypedSource

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [num_types + 1]: where the rows of each type begin."""
        return np.cumsum([0, *(nodes.info.num_nodes for nodes in self.source.nodes.values())])

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(name=self.source.name, num_nodes=int(self.offsets[-1]))

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Relation after relation. Raises DataError for an id that its type has not."""
        first = dict(zip(self.source.nodes, self.offsets.tolist(), strict=False))
        for relation, edges in self.source.relations.items():
            ends = relation.source, relation.target
            counts = [self.source.nodes[end].info.num_nodes for end in ends]
            for chunk in edges.edges(chunk_edges):
                _check_ends(chunk, edges.info.name, *counts)
                yield EdgeChunk(chunk.src + first[ends[0]], chunk.dst + first[ends[1]])


def automatic_groups(num_nodes: int, num_partitions: int) -> int:
    """How many locality groups there are where nobody says it: one partition needs none, and of a small graph they are the partitions."""
    if num_partitions == 1:
        return 1
    many = PARTITION_GROUPS * max(num_partitions, FEW_PARTITIONS)
    return many if many * GROUP_NODES <= num_nodes and many <= MOST_GROUPS else num_partitions


def random_shares(num_nodes: int, num_partitions: int, seed: int) -> np.ndarray:
    """int32 [num_nodes]: equal shares of a keyed shuffle of the rows."""
    from graphmill.core.counter_kernels import shuffled_shares

    shuffle = Permutation(num_nodes, derive_key(seed, 0x7061_7274))  # "part"
    partition = np.empty(num_nodes, dtype=np.int32)
    shuffled_shares(shuffle.compiled_form, num_partitions, partition)
    return partition


def consecutive_shares(num_nodes: int, num_partitions: int, seed: int) -> np.ndarray:
    """int32 [num_nodes]: consecutive rows in equal shares; `seed` changes nothing."""
    bound = np.arange(num_partitions + 1) * num_nodes // num_partitions
    return np.repeat(np.arange(num_partitions, dtype=np.int32), np.diff(bound))


def ldg_groups(
    source: EdgeSource, type_offsets: np.ndarray, num_groups: int, seed: int, links: np.ndarray | None, slack: float
) -> np.ndarray:
    """int32 [num_nodes]: linear deterministic greedy over the edge stream, in one pass; `seed` changes nothing. A group has at most 1 + `slack` times the
    mean of each type (rows type_offsets[t] up to the next). Adds to links[a, b], where that is given, the edges from group a to group b, as the groups are while these edges pass.

    A node goes where most of its neighbours are, discounted by fullness: argmax of count_g · (1 - size_g / capacity), of its own type, ties to
    the emptiest (Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012). There, nodes
    arrive with all their neighbours. Here, edges arrive, so a node is placed by the neighbours seen in a window of `LDG_WINDOW_EDGES` edges, in
    order of first appearance, and again in a later window that shows at least as many. Nodes without edges fill up the emptiest groups.
    """
    # imported here: only this partitioner waits for numba's compiler
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

    # Windows are read here while a thread places the one before.
    for _ in ordered_map(place, _windows(source, LDG_WINDOW_EDGES), 1):
        pass
    for of_type, own in zip(np.split(group, type_offsets[1:-1]), size, strict=True):
        fill_up(of_type, own)
    return group


def metis_groups(
    source: EdgeSource, type_offsets: np.ndarray, num_groups: int, seed: int, links: np.ndarray | None, slack: float
) -> np.ndarray:
    """METIS's k-way partition of the undirected simple graph behind the edges, as `ldg_groups`, but with METIS's slack, and a group may be empty; holds the whole graph in memory.

    METIS, as pymetis has it, balances all nodes together. Where there are several types, a group that has more than 1 + `slack` times the mean of one
    gives up those of its nodes that then cut the fewest edges more.
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
    adjacency.sum_duplicates()  # and with it the order of neighbours no longer depends on the order of edges
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
    """int64 [num_types]: how many nodes of each type a group has at most."""
    return np.ceil(np.diff(type_offsets) / num_groups * (1.0 + slack)).astype(np.int64)


def _keep_to_capacity(
    group: np.ndarray,
    indptr: np.ndarray,
    neighbour: np.ndarray,
    type_offsets: np.ndarray,
    num_groups: int,
    slack: float,
) -> None:
    """Moves nodes, in place, until no group has more of a type than its capacity."""
    from graphmill.storage.partitioning.greedy_kernels import cost_of_leaving, move_surplus

    kind = np.repeat(np.arange(len(type_offsets) - 1), np.diff(type_offsets))
    size = np.bincount(kind * num_groups + group, minlength=(len(type_offsets) - 1) * num_groups)
    order = np.argsort(cost_of_leaving(indptr, neighbour, group, num_groups), kind="stable")
    capacity = _capacities(type_offsets, num_groups, slack)
    move_surplus(order, indptr, neighbour, kind, group, size.reshape(-1, num_groups), capacity)


def _windows(source: EdgeSource, window_edges: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(src, dst) of exactly `window_edges` edges, then the rest, however the source cuts its chunks; ids are checked."""
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
    """Raises DataError where the ends of a source's edges are not rows of so many nodes."""
    if len(chunk.src) != len(chunk.dst):  # the compiled loops read both by one index
        raise DataError(f"{name}: expected as many sources as destinations, got {len(chunk.src)} and {len(chunk.dst)}")
    for ids, count in ((chunk.src, num_sources), (chunk.dst, num_targets)):
        if len(ids) and (ids.min() < 0 or ids.max() >= count):
            bad = ids[int(np.argmax((ids < 0) | (ids >= count)))]
            raise DataError(f"{name}: edge ids must be 0 to {count - 1} (num_nodes = {count}), got {bad}")


def _without_empty(group: np.ndarray, num_groups: int) -> np.ndarray:
    """The same, after every empty group has got the last row of the then largest one."""
    size = np.bincount(group, minlength=num_groups)
    for empty in np.flatnonzero(size == 0):
        largest = int(np.argmax(size))
        group[np.flatnonzero(group == largest)[-1]] = empty
        size[largest] -= 1
        size[empty] += 1
    return group
