"""Which partition owns which node: `assign_partitions(name, source, num_partitions, seed)`.

A partitioner is a pure function of the source and its arguments, returns int32 [num_nodes], and leaves no partition empty. Sizes differ by at
most one for `random` and `range`; `ldg` puts at most (1 + `LDG_SLACK`) times the mean in one; `metis` keeps METIS's tolerance (about 3 %).
Memory is O(num_nodes) and up to four windows of edges; `metis` holds the graph.
"""

from collections.abc import Callable, Iterator

import numpy as np

from storage.counter_random import Permutation, derive_key
from storage.errors import DataError, MissingDependencyError
from storage.ordered_map import ordered_map
from storage.source import GraphSource

LDG_SLACK = 0.03
# Edges that LDG sees at once, about 60 bytes each: the more, the better the partitions. A constant, not an option: the same
# graph gets the same partitions on every machine.
LDG_WINDOW_EDGES = 1 << 21

_READ_EDGES = 1 << 20


def assign_partitions(name: str, source: GraphSource, num_partitions: int, seed: int) -> np.ndarray:
    """int32 [num_nodes]: the partition of every row, by the partitioner `name`. Edges count both ways, whether or not the
    source gives both.

    Errors: DataError for an edge whose id is out of range (`ldg`, `metis`); MissingDependencyError for `metis` without pymetis.
    """
    if num_partitions == 1:
        return np.zeros(source.info.num_nodes, dtype=np.int32)
    return PARTITIONERS[name](source, num_partitions, seed)


def assign_random(source: GraphSource, num_partitions: int, seed: int) -> np.ndarray:
    """Equal shares of a keyed shuffle of the rows; reads no edge."""
    from storage.counter_kernels import shuffled_shares

    num_nodes = source.info.num_nodes
    shuffle = Permutation(num_nodes, derive_key(seed, 0x7061_7274))  # "part"
    partition = np.empty(num_nodes, dtype=np.int32)
    shuffled_shares(shuffle.compiled_form, num_partitions, partition)
    return partition


def assign_range(source: GraphSource, num_partitions: int, seed: int) -> np.ndarray:
    """Consecutive rows in equal shares; reads no edge, and `seed` changes nothing."""
    num_nodes = source.info.num_nodes
    bound = np.arange(num_partitions + 1) * num_nodes // num_partitions
    return np.repeat(np.arange(num_partitions, dtype=np.int32), np.diff(bound))


def assign_ldg(source: GraphSource, num_partitions: int, seed: int) -> np.ndarray:
    """Linear deterministic greedy over the edge stream, in one pass; `seed` changes nothing.

    A node goes where most of its neighbours are, discounted by fullness: argmax of count_p · (1 - size_p / capacity), ties to
    the emptiest (Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012). There, nodes
    arrive with all their neighbours. Here, edges arrive, so a node is placed at its first window of `LDG_WINDOW_EDGES` edges
    by the neighbours seen there, in order of first appearance. Nodes without edges fill up the emptiest partitions.
    """
    # imported here: only this partitioner waits for numba's compiler
    from storage.greedy_partition import fill_up, place_window

    num_nodes = source.info.num_nodes
    capacity = int(np.ceil(num_nodes / num_partitions * (1.0 + LDG_SLACK)))
    partition = np.full(num_nodes, -1, dtype=np.int32)
    size = np.zeros(num_partitions, dtype=np.int64)

    def place(window: tuple[np.ndarray, np.ndarray]) -> None:
        place_window(*window, partition, size, capacity)

    # Windows are read here while a thread places the one before.
    for _ in ordered_map(place, _windows(source, LDG_WINDOW_EDGES), 1):
        pass
    fill_up(partition, size)
    return _without_empty(partition, num_partitions)


def assign_metis(source: GraphSource, num_partitions: int, seed: int) -> np.ndarray:
    """METIS's k-way partition of the undirected simple graph behind the edges; holds the whole graph in memory."""
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError(
            "the metis partitioner needs pymetis: pip install -e '.[metis]', or choose --partitioner ldg"
        ) from error
    from scipy.sparse import coo_array

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
        num_partitions, pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices), options=options
    )
    return _without_empty(np.asarray(parts, dtype=np.int32), num_partitions)


PARTITIONERS: dict[str, Callable[[GraphSource, int, int], np.ndarray]] = {
    "random": assign_random,
    "range": assign_range,
    "ldg": assign_ldg,
    "metis": assign_metis,
}


def _windows(source: GraphSource, window_edges: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(src, dst) of exactly `window_edges` edges, then the rest, however the source cuts its chunks; ids are checked."""
    num_nodes = source.info.num_nodes
    pending: list[tuple[np.ndarray, np.ndarray]] = []
    num_pending = 0
    for chunk in source.edges(min(window_edges, _READ_EDGES)):
        if len(chunk.src) != len(chunk.dst):  # the compiled loops read both by one index
            raise DataError(
                f"{source.info.name}: expected as many sources as destinations, got {len(chunk.src)} and {len(chunk.dst)}"
            )
        for ids in (chunk.src, chunk.dst):
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                bad = ids[int(np.argmax((ids < 0) | (ids >= num_nodes)))]
                raise DataError(f"edge ids must be 0 to {num_nodes - 1} (num_nodes = {num_nodes}), got {bad}")
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


def _without_empty(partition: np.ndarray, num_partitions: int) -> np.ndarray:
    """The same, after every empty partition has got the last row of the then largest one."""
    size = np.bincount(partition, minlength=num_partitions)
    for empty in np.flatnonzero(size == 0):
        largest = int(np.argmax(size))
        partition[np.flatnonzero(partition == largest)[-1]] = empty
        size[largest] -= 1
        size[empty] += 1
    return partition
