"""Tables for batches of links: all nodes in ascending permanent id, the links of each split, and the edges as links to train on.

A node's number is its rank by permanent id within its type, so no table depends on the partitions. A process reads each table at its first use. The tables
take 20 bytes per node and 16 bytes per edge. Known links take another 16 bytes per edge and direction.

The links belong to a plain graph or to one relation of a typed graph. A relation may join two types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.vocabulary.messages import (
    EdgeColumn,
    LinkRows,
    NeighborLists,
    NodeList,
    join_columns,
)
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.manifest import EDGE, Manifest
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, Relation

_NODES = 1 << 18  # nodes per request; bounds the memory of replies


class Lists(Protocol):
    """The methods of a router that this module uses."""

    manifest: Manifest

    def list_chunk(self, key: int, chunk: int, num_chunks: int) -> NodeList: ...

    def sample_neighbors(
        self, node: np.ndarray, fanout: int, key: int, *, columns: tuple[EdgeColumn, ...]
    ) -> NeighborLists: ...

    def list_links(self, split: int) -> list[LinkRows]: ...


@dataclass(frozen=True)
class LinkTable:
    """Pairs of nodes, given by their numbers. The links come first, then the pairs that are not links. Both parts are sorted by (source, destination)."""

    source: np.ndarray  # int64 [m]
    destination: np.ndarray  # int64 [m]
    num_links: int  # number of links; the pairs after them are not links
    negative_ptr: np.ndarray  # int64 [m + 1]: link i has the negatives negative[negative_ptr[i]:negative_ptr[i + 1]]
    negative: np.ndarray  # int64: nodes that replace the link's destination
    time: np.ndarray | None = None  # int64 [m]; None if links are not distinguished by time
    relation: np.ndarray | None = None  # int64 [m]; only in a knowledge graph


@dataclass(frozen=True)
class Ends:
    """For each source, the destinations of its known links. In a knowledge graph, for each (source, relation)."""

    key: np.ndarray  # int64 [m], ascending: source · num_relations + relation
    node: np.ndarray  # int64 [m]: destinations, ascending for each key
    num_relations: int  # at least 1

    @classmethod
    def of(cls, source: np.ndarray, destination: np.ndarray, relation: np.ndarray | None, num_relations: int) -> "Ends":
        count = max(1, num_relations)
        key = source * count if relation is None else source * count + relation
        order = np.lexsort((destination, key))
        key, node = key[order], destination[order]
        is_new = np.ones(len(key), bool)
        is_new[1:] = (key[1:] != key[:-1]) | (node[1:] != node[:-1])
        return cls(key[is_new], node[is_new], count)

    def after(self, source: np.ndarray, relation: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(place, node) pairs, sorted by place. A known link (of relation[place]) leads from source[place] to the node."""
        key = source * self.num_relations + (0 if relation is None else relation)
        first, last = (np.searchsorted(self.key, key, side=side) for side in ("left", "right"))
        counts = last - first
        place = np.repeat(np.arange(len(key)), counts)
        return place, self.node[np.repeat(first - pointers(counts)[:-1], counts) + np.arange(counts.sum())]


class LinkTables:
    """The link tables of one graph or relation, read through its router."""

    def __init__(self, router: Lists, sources: Lists | None = None, relation: Relation = EDGE) -> None:
        """`router`: router of the plain graph or of the relation. `sources`: router of the source type, if it is not the target type."""
        self._router, self._sources, self.relation = router, sources, relation
        self.is_one_type, self.num_sources = sources is None, router.manifest.num_sources
        self.num_nodes = router.manifest.num_nodes  # nodes of the type where links end
        self.symmetric = router.manifest.symmetric
        self.num_relations = len(router.manifest.relations)  # 0 if the graph is not a knowledge graph
        self._of_split: dict[tuple[int, bool], LinkTable] = {}

    @property
    def digest(self) -> str:
        """Digest of the held-out links. Empty if the graph has no held-out links."""
        links = self._router.manifest.links
        return "" if links is None else links.digest

    @property
    def reverse(self) -> Relation | None:
        """The relation that holds the reverse of each edge."""
        links = self._router.manifest.links
        return Relation.of(links.reverse) if links is not None and links.reverse else None

    @cached_property
    def nodes(self) -> NodeList:
        """The nodes where links may end; entry i is node number i."""
        return self._router.list_chunk(key=0, chunk=0, num_chunks=1)

    @cached_property
    def sources(self) -> NodeList:
        """The nodes where links may begin."""
        return self.nodes if self._sources is None else self._sources.list_chunk(key=0, chunk=0, num_chunks=1)

    @cached_property
    def _number(self) -> np.ndarray:
        """Translates stored ids into node numbers."""
        return _numbers(self.nodes)

    @cached_property
    def _source_number(self) -> np.ndarray:
        return self._number if self.is_one_type else _numbers(self.sources)

    def _is_link(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """bool: whether each edge counts as a link. Loops do not count. In a symmetric graph only the direction with source < destination counts."""
        if not self.is_one_type:
            return np.ones(len(source), bool)
        return source < destination if self.symmetric else source != destination

    @cached_property
    @stage("plan")
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The graph's edges as distinct links (source, destination), ascending; see `_is_link`."""
        parts = self._listed((), loops=False)
        key = np.unique(np.concatenate([source * self.num_nodes + destination for source, destination, _ in parts]))
        return np.divmod(key, self.num_nodes)

    @cached_property
    @stage("plan")
    def timed_edges(self) -> np.ndarray:
        """int64 [3, m]: the edges as distinct links (source, destination, time), ascending."""
        return self._edges_with("time")

    @cached_property
    @stage("plan")
    def triples(self) -> np.ndarray:
        """int64 [3, m]: a knowledge graph's edges as distinct, ascending triples (source, destination, relation). Loops are included."""
        return self._edges_with("feature", loops=True)

    def _edges_with(self, column: Literal["time", "feature"], *, loops: bool = False) -> np.ndarray:
        edges = np.concatenate([np.stack(part) for part in self._listed((column,), loops=loops)], axis=1)
        edges = edges[:, np.lexsort(edges[::-1])]
        is_new = np.ones(edges.shape[1], bool)
        is_new[1:] = (edges[:, 1:] != edges[:, :-1]).any(axis=0)
        return edges[:, is_new]

    def _listed(
        self, columns: tuple[EdgeColumn, ...], *, loops: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (source, destination, time or relation) of the edges that count as links, one range of nodes at a time. Without such a column the third array
        is empty."""
        for start in range(0, self.num_nodes, _NODES):
            node = np.arange(start, min(start + _NODES, self.num_nodes))
            lists = self._router.sample_neighbors(node, -1, 0, columns=columns)
            source = self._source_number[lists.neighbor].astype(np.int64)
            destination = np.repeat(self._number[node].astype(np.int64), lists.count)
            kept = self._is_link(source, destination) | (loops and not self.symmetric)
            values = lists.edge_time if lists.edge_feature is None else lists.edge_feature[:, 0].astype(np.int64)
            yield source[kept], destination[kept], np.empty(0, np.int64) if values is None else values[kept]

    @cached_property
    def ends(self) -> Ends:
        """The edges as known links; in a symmetric graph, in both directions."""
        return self._ends([])

    @cached_property
    def known(self) -> Ends:
        """The edges and all held-out links, as known links."""
        return self._ends([self._stored(code) for code in (SPLIT_VALID, SPLIT_TEST)])

    def _ends(self, held_out: list[LinkTable]) -> Ends:
        names = ("source", "destination", "relation")
        edges = self.triples if self.num_relations else self.edges
        columns = [
            np.concatenate([own, *(getattr(table, name)[: table.num_links] for table in held_out)])
            for own, name in zip(edges, names, strict=False)
        ]
        source, destination, relation = *columns[:2], columns[2] if self.num_relations else None
        if self.symmetric:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        return Ends.of(source, destination, relation, self.num_relations)

    @cached_property
    def weight_ends(self) -> np.ndarray:
        """int64 [num_nodes]: running sums of degree^0.75 (arXiv:1310.4546, 2.2), as multiples of 1/1024. For links between two types only in-edges count."""
        source, destination = self.edges
        degree = np.bincount(destination, minlength=self.num_nodes)
        if self.is_one_type:
            degree += np.bincount(source, minlength=self.num_nodes)
        root = np.sqrt(degree.astype(np.float64))  # exact to the last bit on every machine, unlike a power
        return np.cumsum(np.rint(1024 * root * np.sqrt(root)).astype(np.int64))

    def links(self, split: int, *, timed: bool = False) -> LinkTable:
        """Returns the stored links of a split. If the training split has no stored links, returns the graph's edges. `timed`: include times."""
        if (split, timed) not in self._of_split:
            stored = self._stored(split)
            if split == SPLIT_TRAIN and not stored.num_links:
                edges = self.timed_edges if timed else self.triples if self.num_relations else self.edges
                source, destination, *more = edges
                stored = LinkTable(
                    np.concatenate([source, stored.source]),
                    np.concatenate([destination, stored.destination]),
                    len(source),
                    np.zeros(len(source) + len(stored.source) + 1, np.int64),
                    stored.negative,
                    join_columns([*more, stored.time]) if timed else None,
                    join_columns([*more, stored.relation]) if self.num_relations else None,
                )
            self._of_split[split, timed] = stored
        return self._of_split[split, timed]

    def _stored(self, split: int) -> LinkTable:
        if self._router.manifest.links is None:
            none = np.empty(0, np.int64)
            return LinkTable(none, none, 0, np.zeros(1, np.int64), none, relation=none if self.num_relations else None)
        replies = self._router.list_links(split)
        names = ("source", "destination", "is_link", "count", "negative")
        columns = {name: np.concatenate([getattr(reply, name) for reply in replies]) for name in names}
        source, destination, is_link = columns["source"], columns["destination"], columns["is_link"]
        time, relation = (join_columns([getattr(reply, name) for reply in replies]) for name in ("time", "relation"))
        count, start = columns["count"], pointers(columns["count"])[:-1]
        last_keys = [values for values in (time, relation) if values is not None]
        order = np.lexsort((*last_keys, destination, source, 1 - is_link))
        ptr = pointers(count[order])
        at = np.repeat(start[order] - ptr[:-1], count[order]) + np.arange(ptr[-1])
        more = (None if values is None else values[order] for values in (time, relation))
        return LinkTable(source[order], destination[order], int(is_link.sum()), ptr, columns["negative"][at], *more)


def _numbers(nodes: NodeList) -> np.ndarray:
    """Translates stored ids into node numbers."""
    number = np.empty(len(nodes.node), nodes.node.dtype)
    number[nodes.node] = np.arange(len(nodes.node))
    return number
