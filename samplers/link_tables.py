"""What batches of links are drawn from: every node in ascending permanent id, the links of each split, and the edges as links to train on.

A node's number is its place in ascending permanent id, so that nothing here depends on partitions. A process reads each table once, when it is
first asked for: 20 bytes a node, 8 bytes an edge.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from samplers.messages import DegreeLists, EdgeColumn, LinkRows, NeighborLists, NodeList, join_columns
from samplers.stage_clock import stage
from storage.manifest import Manifest
from storage.packed_graphs import pointers
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_NODES = 1 << 18  # of a request: bounds what is under way


class Lists(Protocol):
    """What is asked of a router."""

    manifest: Manifest

    def list_chunk(self, key: int, chunk: int, num_chunks: int) -> NodeList: ...

    def list_neighbors(self, node: np.ndarray) -> DegreeLists: ...

    def sample_neighbors(
        self, node: np.ndarray, fanout: int, key: int, *, columns: tuple[EdgeColumn, ...]
    ) -> NeighborLists: ...

    def list_links(self, split: int) -> list[LinkRows]: ...


@dataclass(frozen=True)
class LinkTable:
    """Pairs of nodes by their numbers, links first, each kind ascending in (source, destination)."""

    source: np.ndarray  # int64 [m]
    destination: np.ndarray  # int64 [m]
    num_links: int  # the pairs after them are no links
    # Of links with lists of their own: link i has the negatives negative[negative_ptr[i]:negative_ptr[i + 1]], ends in place of its destination.
    negative_ptr: np.ndarray  # int64 [m + 1]
    negative: np.ndarray  # int64
    time: np.ndarray | None = None  # int64 [m], where links are told apart by it


class LinkTables:
    """One graph's, through its router."""

    def __init__(self, router: Lists) -> None:
        self._router = router
        self.num_nodes = router.manifest.num_nodes
        self.symmetric = router.manifest.symmetric
        self._of_split: dict[tuple[int, bool], LinkTable] = {}

    @cached_property
    def nodes(self) -> NodeList:
        """Node number i is entry i."""
        return self._router.list_chunk(key=0, chunk=0, num_chunks=1)

    @cached_property
    def _number(self) -> np.ndarray:
        """The number of each stored id."""
        number = np.empty(self.num_nodes, self._router.manifest.index_dtype)
        number[self.nodes.node] = np.arange(self.num_nodes)
        return number

    @cached_property
    @stage("plan")
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The graph's edges as links (source, destination), each once, ascending, without loops; of a symmetric graph's two directions the one
        from the lower node."""
        keys = []
        for start in range(0, self.num_nodes, _NODES):
            node = np.arange(start, min(start + _NODES, self.num_nodes))
            lists = self._router.list_neighbors(node)
            source = self._number[lists.neighbor].astype(np.int64)
            destination = np.repeat(self._number[node].astype(np.int64), lists.count)
            kept = source < destination if self.symmetric else source != destination
            keys.append(source[kept] * self.num_nodes + destination[kept])
        key = np.unique(np.concatenate(keys))
        return np.divmod(key, self.num_nodes)

    @cached_property
    @stage("plan")
    def timed_edges(self) -> np.ndarray:
        """int64 [3, m]: (source, destination, time) of the edges as links, as `edges`, but of edges at several times each."""
        parts = []
        for start in range(0, self.num_nodes, _NODES):
            node = np.arange(start, min(start + _NODES, self.num_nodes))
            lists = self._router.sample_neighbors(node, -1, 0, columns=("time",))
            assert lists.edge_time is not None
            source = self._number[lists.neighbor].astype(np.int64)
            destination = np.repeat(self._number[node].astype(np.int64), lists.count)
            kept = source < destination if self.symmetric else source != destination
            parts.append(np.stack([source, destination, lists.edge_time])[:, kept])
        found = np.concatenate(parts, axis=1)
        found = found[:, np.lexsort(found[::-1])]
        is_new = np.ones(found.shape[1], bool)
        is_new[1:] = (found[:, 1:] != found[:, :-1]).any(axis=0)
        return found[:, is_new]

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """(pointers int64 [num_nodes + 1], nodes): where the edges of each node end, ascending; a symmetric graph's both ways."""
        source, destination = self.edges
        if self.symmetric:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
            order = np.lexsort((destination, source))
            source, destination = source[order], destination[order]
        return pointers(np.bincount(source, minlength=self.num_nodes)), destination

    @cached_property
    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of the edges and of all links that are held out, a symmetric graph's both ways."""
        held_out = [self._stored(code) for code in (SPLIT_VALID, SPLIT_TEST)]
        source, destination = (
            np.concatenate([own, *(getattr(table, name)[: table.num_links] for table in held_out)])
            for own, name in zip(self.edges, ("source", "destination"), strict=True)
        )
        if self.symmetric:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        key = np.unique(source * self.num_nodes + destination)
        source, destination = np.divmod(key, self.num_nodes)
        return pointers(np.bincount(source, minlength=self.num_nodes)), destination

    @cached_property
    def weight_ends(self) -> np.ndarray:
        """int64 [num_nodes]: running sums of degree^0.75 (arXiv:1310.4546, 2.2), in whole 1024ths; the degree counts edges at either end."""
        source, destination = self.edges
        degree = np.bincount(source, minlength=self.num_nodes) + np.bincount(destination, minlength=self.num_nodes)
        root = np.sqrt(degree.astype(np.float64))  # exact to the last bit on every machine, as a power is not
        return np.cumsum(np.rint(1024 * root * np.sqrt(root)).astype(np.int64))

    def links(self, split: int, *, timed: bool = False) -> LinkTable:
        """Of a split, as stored; of the training split, where none are stored, the graph's edges. `timed`: with the time of each."""
        if (split, timed) not in self._of_split:
            stored = self._stored(split)
            if split == SPLIT_TRAIN and not stored.num_links:
                source, destination, *time = self.timed_edges if timed else self.edges
                stored = LinkTable(
                    np.concatenate([source, stored.source]),
                    np.concatenate([destination, stored.destination]),
                    len(source),
                    np.zeros(len(source) + len(stored.source) + 1, np.int64),
                    stored.negative,
                    join_columns([*time, stored.time]) if timed else None,
                )
            self._of_split[split, timed] = stored
        return self._of_split[split, timed]

    def _stored(self, split: int) -> LinkTable:
        if self._router.manifest.links is None:
            none = np.empty(0, np.int64)
            return LinkTable(none, none, 0, np.zeros(1, np.int64), none)
        replies = self._router.list_links(split)
        names = ("source", "destination", "is_link", "count", "negative")
        columns = {name: np.concatenate([getattr(one, name) for one in replies]) for name in names}
        source, destination, is_link = columns["source"], columns["destination"], columns["is_link"]
        time = join_columns([one.time for one in replies])
        count, start = columns["count"], pointers(columns["count"])[:-1]
        order = np.lexsort((*(() if time is None else (time,)), destination, source, 1 - is_link))
        ptr = pointers(count[order])
        at = np.repeat(start[order] - ptr[:-1], count[order]) + np.arange(ptr[-1])
        negative, when = columns["negative"][at], None if time is None else time[order]
        return LinkTable(source[order], destination[order], int(is_link.sum()), ptr, negative, when)
