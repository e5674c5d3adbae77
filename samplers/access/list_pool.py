"""Neighbor lists of one batch. Each list is fetched once and used by all subgraphs."""

from typing import Protocol

import numpy as np

from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.vocabulary.messages import DegreeLists, WalkDirection


class SizeOfGraph(Protocol):
    """Properties of a graph that a search needs before it begins."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def index_dtype(self) -> str: ...


class ListsNeighbors(Protocol):
    """The source of neighbors for a search: the router of a plain graph, or several relations of a typed graph that share one numbering of nodes."""

    @property
    def manifest(self) -> SizeOfGraph: ...

    def list_neighbors(
        self, node: np.ndarray, direction: WalkDirection, max_degree: np.ndarray | None, by_weight: bool
    ) -> DegreeLists: ...


class _Growing:
    """A one-dimensional array that grows; an append costs amortised constant time."""

    def __init__(self, dtype: np.dtype) -> None:
        self._array, self._length = np.empty(1024, dtype), 0

    @property
    def array(self) -> np.ndarray:
        return self._array[: self._length]

    def extend(self, values: np.ndarray) -> None:
        end = self._length + len(values)
        if end > len(self._array):
            longer = np.empty(max(end, 2 * len(self._array)), self._array.dtype)
            longer[: self._length] = self.array
            self._array = longer
        self._array[self._length : end] = values
        self._length = end


class ListPool:
    """Nodes numbered in order of first appearance, with their degrees and the lists fetched so far.

    Node i's list is neighbor[start[i] : start[i] + degree[i]], in ascending permanent id (for direction "both", out-edges after in-edges).
    """

    def __init__(self, router: ListsNeighbors, direction: WalkDirection, by_weight: bool = False) -> None:
        self._router, self._direction, self._by_weight = router, direction, by_weight
        self._relabeler = Relabeler(np.empty(0, np.int64))
        self._neighbor = _Growing(np.dtype(router.manifest.index_dtype))
        self._start, self._degree = _Growing(np.dtype(np.int64)), _Growing(np.dtype(np.int64))
        self._weight = _Growing(np.dtype(np.float32))

    @property
    def node(self) -> np.ndarray:
        """int64 [n]: the stored id of each node."""
        return self._relabeler.node

    @property
    def start(self) -> np.ndarray:
        """int64 [n]: start of each node's list in `neighbor`; -1: not fetched."""
        return self._start.array

    @property
    def degree(self) -> np.ndarray:
        """int64 [n]: degree of each node; -1: not known."""
        return self._degree.array

    @property
    def neighbor(self) -> np.ndarray:
        return self._neighbor.array

    @property
    def weight(self) -> np.ndarray:
        """float32: weights of the entries of `neighbor`; empty unless the search is by weight."""
        return self._weight.array

    def number(self, node: np.ndarray) -> np.ndarray:
        """int32 [len(node)]: the index of each node (its number). A node that is new here has no list and no degree yet."""
        number = self._relabeler.add(node)
        unseen = np.full(self._relabeler.num_nodes - len(self.start), -1, np.int64)
        self._start.extend(unseen)
        self._degree.extend(unseen)
        return number

    def fetch(self, number: np.ndarray, max_degree: np.ndarray | None = None) -> None:
        """Fetches the lists of these distinct node numbers, except lists longer than their entry of `max_degree`."""
        lists = self._router.list_neighbors(self.node[number], self._direction, max_degree, self._by_weight)
        end = len(self.neighbor) + np.cumsum(lists.count)
        self.degree[number] = lists.degree
        complete = lists.count == lists.degree
        self.start[number[complete]] = (end - lists.count)[complete]
        self._neighbor.extend(lists.neighbor)
        if lists.weight is not None:
            self._weight.extend(lists.weight)
