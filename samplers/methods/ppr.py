"""Personalised PageRank by forward push: each root with the nodes where its random walks end most often.

Forward push (Andersen, Chung, Lang, FOCS 2006, without laziness, as in PPRGo, arXiv:2007.01570): every node holds a score p and a residual r. At first
r(root) = 1. A push of u moves alpha · r(u) to p(u) and the rest evenly to the residuals of u's neighbors, until r(u) < epsilon · degree(u) everywhere. The
invariant p + Σ_u r(u) · ppr(u) = ppr(root) bounds p by the exact vector. At a node without neighbors walks stay: all of r(u) goes to p(u). Parallel edges count
separately. By weight, neighbors get the rest in proportion to the weights of edges; at a node whose weights are all 0 walks stay. Unlike in the papers, the
root pushes once regardless of its degree.

Pushes run in rounds, from the residuals at the beginning of the round and in order of discovery. The results therefore depend neither on partitions nor on the
other roots of the batch. When every root is done or waits, one request per owner fetches the missing degrees and lists. After its first push a root makes at
most 1 / (alpha · epsilon) steps along edges. Each touched node takes up to about 120 bytes.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.list_pool import ListPool, ListsNeighbors
from graphmill.samplers.drawing.subgraph_batch import RootSets
from graphmill.samplers.kernels.push import FIRST_BITS, best_candidates, push_known, start_roots
from graphmill.samplers.methods.root_subgraphs import SubgraphSampler
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import PprOptions


@dataclass(frozen=True)
class PushedRoots:
    """Scores and residuals. Root g has the entries [offset[g], offset[g] + size[g]), the root itself first."""

    offset: np.ndarray  # int64 [num_roots]
    size: np.ndarray  # int64 [num_roots]
    node: np.ndarray  # stored ids
    score: np.ndarray  # float64
    residual: np.ndarray  # float64
    num_rounds: int  # of requests
    memory: tuple[np.ndarray, ...]  # the arrays that hold these fields, for reuse by the memory pool


class PprSampler(SubgraphSampler):
    """Minibatches of one subgraph per root (`SubgraphSampler`): the root, then its `top_k` nodes by descending score, with all edges among them.

    In a typed graph the `top_k` nodes may be of all types. `hop` is 0 for roots and 1 for other nodes.
    """

    options: PprOptions

    @cached_property
    def _memory(self) -> "PushMemory":
        return PushMemory()

    def _sets(self, roots: NodeList, epoch: int) -> RootSets:
        pushed = push_roots(self._graph, roots.node, self.options, self._memory)
        node, score, level, graph_ptr = best_nodes(pushed, self.options.top_k, self._numbers.ranks)
        self._memory.give_back(pushed.memory)
        hop = np.ones(len(node), np.int16)
        hop[graph_ptr[:-1]] = 0
        return RootSets(node, graph_ptr, level, hop, score.astype(np.float32))


class PushMemory:
    """Arrays over entries and table slots of a batch's roots. Batches reuse them, because allocating them takes longer than the pushes."""

    def __init__(self) -> None:
        self._free: deque[tuple[np.ndarray, ...]] = deque()

    def borrow(self, num_entries: int, index_dtype: np.dtype) -> tuple[np.ndarray, ...]:
        """(node, number, score, residual, table_id, table_entry), uninitialised, for at least `num_entries` entries."""
        try:
            arrays = self._free.pop()
        except IndexError:
            arrays = (np.empty(0, index_dtype),)
        if len(arrays[0]) >= num_entries:
            return arrays
        entries = [np.empty(num_entries, dtype) for dtype in (index_dtype, np.int32, np.float64, np.float64)]
        return *entries, np.empty(2 * num_entries, index_dtype), np.empty(2 * num_entries, np.int32)

    def give_back(self, arrays: tuple[np.ndarray, ...]) -> None:
        self._free.append(arrays)


def push_roots(
    router: ListsNeighbors, root: np.ndarray, options: PprOptions, memory: PushMemory | None = None
) -> PushedRoots:
    """Runs forward push from each root until no residual reaches epsilon · degree. With `memory`, use the result before its arrays are given back."""
    num_roots, room = len(root), 1 << FIRST_BITS
    offset, size = np.arange(num_roots) * room, np.ones(num_roots, np.int64)
    bits, end = np.full(num_roots, FIRST_BITS, np.int64), num_roots * room
    arrays = (memory or PushMemory()).borrow(end, np.dtype(router.manifest.index_dtype))
    start_roots(root, offset, *arrays)
    pool, rounds, wanted = ListPool(router, options.direction, options.by_weight), 0, offset.copy()
    while len(wanted):
        node, number, _, residual, _, _ = arrays
        new = wanted[number[wanted] < 0]
        number[new] = pool.number(node[new])
        largest = np.zeros(len(pool.start))
        np.maximum.at(largest, number[wanted], residual[wanted])
        # Add one to the quotient: rounding must not leave out a list that the exact comparison needs.
        reach = np.floor(largest / options.epsilon).astype(np.int64) + 1
        if rounds == 0:
            reach[:] = np.iinfo(np.int64).max
        due = np.flatnonzero((largest > 0) & (pool.start < 0) & (pool.degree <= reach))
        if len(due):
            pool.fetch(due, reach[due])
        wanted, end, *grown = push_known(
            offset,
            bits,
            size,
            end,
            pool.start,
            pool.degree,
            pool.neighbor,
            pool.weight,
            options.alpha,
            options.epsilon,
            rounds == 0,
            *arrays,
        )
        arrays = tuple(grown)
        rounds += 1
    return PushedRoots(offset, size, arrays[0], arrays[2], arrays[3], rounds, arrays)


def best_nodes(
    pushed: PushedRoots, top_k: int, order_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(node, score, level, graph_ptr): each root and its best nodes, descending in score. `level` increases whenever the score changes.

    Among nodes that tie for the last position, those with the lowest rank are taken. `order_of` maps distinct nodes to ranks by permanent id.
    """
    entry, graph, tied = best_candidates(pushed.offset, pushed.size, pushed.score, top_k)
    if tied.any():
        distinct, place = np.unique(pushed.node[entry[tied]], return_inverse=True)
        permanent = order_of(distinct)[place]
        of_tied = graph[tied]
        order = np.lexsort((permanent, of_tied))
        first_of_graph = np.searchsorted(of_tied[order], of_tied[order])
        rank = np.arange(len(order)) - first_of_graph
        left = top_k - np.bincount(graph[~tied], minlength=len(pushed.size))
        keep = ~tied
        keep[np.flatnonzero(tied)[order]] = rank < left[of_tied[order]]
        entry, graph = entry[keep], graph[keep]
    roots = np.arange(len(pushed.size))
    entry, graph = np.concatenate([pushed.offset, entry]), np.concatenate([roots, graph])
    is_other = np.arange(len(entry)) >= len(roots)
    order = np.lexsort((-pushed.score[entry], is_other, graph))
    graph_ptr = pointers(np.bincount(graph, minlength=len(roots)))
    score = pushed.score[entry[order]]
    level = np.cumsum(score != np.concatenate([[np.inf], score[:-1]]))
    level[graph_ptr[:-1]] = -1  # a root comes first, regardless of its score
    return pushed.node[entry[order]].astype(np.int64), score, level, graph_ptr
