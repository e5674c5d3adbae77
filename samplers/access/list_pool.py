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
    """Gives a search the neighbors of nodes: the router of a plain graph, or several relations of a typed graph that share one numbering of nodes."""

    @property
    def manifest(self) -> SizeOfGraph: ...

    def list_neighbors(
        self, node: np.ndarray, direction: WalkDirection, max_degree: np.ndarray | None, by_weight: bool
    ) -> DegreeLists: ...


class _Growing:
    """A one-dimensional array that grows. Appending takes amortised constant time."""

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

    Node i's list is neighbor[start[i] : start[i] + degree[i]], sorted by permanent id. For direction "both", the in-edges come first, then the out-edges.
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
        """int64 [n]: start of each node's list in `neighbor`; -1 if the list is not fetched."""
        return self._start.array

    @property
    def degree(self) -> np.ndarray:
        """int64 [n]: degree of each node; -1 if it is not known."""
        return self._degree.array

    @property
    def neighbor(self) -> np.ndarray:
        return self._neighbor.array

    @property
    def weight(self) -> np.ndarray:
        """float32: the edge weight of each entry of `neighbor`. Empty if the search does not use weights."""
        return self._weight.array

    def number(self, node: np.ndarray) -> np.ndarray:
        """int32 [len(node)]: the number of each node. Adds nodes that the pool does not have, without list and degree."""
        number = self._relabeler.add(node)
        unseen = np.full(self._relabeler.num_nodes - len(self.start), -1, np.int64)
        self._start.extend(unseen)
        self._degree.extend(unseen)
        return number

    def fetch(self, number: np.ndarray, max_degree: np.ndarray | None = None) -> None:
        """Fetches the lists of these distinct node numbers. Leaves out a list that is longer than the node's entry of `max_degree`."""
        lists = self._router.list_neighbors(self.node[number], self._direction, max_degree, self._by_weight)
        end = len(self.neighbor) + np.cumsum(lists.count)
        self.degree[number] = lists.degree
        complete = lists.count == lists.degree
        self.start[number[complete]] = (end - lists.count)[complete]
        self._neighbor.extend(lists.neighbor)
        if lists.weight is not None:
            self._weight.extend(lists.weight)
