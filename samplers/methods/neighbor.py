"""Neighbor sampling: batches of roots, in which each node has up to fanouts[h] neighbors at hop h (GraphSAGE, arXiv:1706.02216). In a typed graph this holds
for each relation (one relation at a time, like R-GCN, arXiv:1703.06103).

A plain graph has one type and one relation. At each hop, a relation draws neighbors for those nodes of its target type that the previous hop found. Each node
is expanded once, at the hop where it first appears. Positions follow discovery: first the roots, then hop by hop. Within a hop they follow the relations, then
the nodes of the frontier, then each list in ascending permanent id. So a relation's list of position i comes before the list of i + 1, no sort is needed, and
the batch's layers are slices of the batch (`graphmill.samplers.batches.layers`). If only edges from a root's past may be drawn, nodes are copies
(`graphmill.samplers.drawing.timed_copies`).

The counters of draws are permanent ids of the target. In a graph of several types or relations, the key of a relation's stream includes the relation's names.
Therefore other relations, their order and the partitions change no draw. The relations of one source type share LABOR's coins.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphmill.samplers.access.router import EDGE_COLUMNS, Columns, Question, Router, ascending_nodes, ask
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.recency import ages_of_copies, encode_ages
from graphmill.samplers.drawing.build_batch import Batch, build_batch, edges_among
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn, with_rows
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_hash, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.drawing.timed_copies import NodeCopies
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.kernels.relabel import PositionMaps, Relabeler
from graphmill.samplers.vocabulary.messages import GivenRoots, NeighborLists, NodeList, NodeRows, join_columns
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.samplers.vocabulary.requirements import (
    check_splits,
    edge_uses,
    encodings_by_type,
    has_one_relation,
    known_relations,
    type_of_roots,
)
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.source import Relation


class NeighborSampler:
    """Minibatches around the roots of one split, or around given `roots` (distinct permanent ids). `root_time` (int64, one per root) gives the times of these
    roots.

    A batch is a MiniBatch for a plain graph, and a TypedBatch around roots of one type for a typed graph.
    """

    __repr__, __len__ = sampler_repr, sampler_len
    router, content_hash, num_batches = own_router, plan_hash, plan_length
    sample = sample_drawn

    def __init__(
        self,
        router: Router | TypedRouter,
        options: NeighborOptions,
        num_ranks: int = 1,
        roots: np.ndarray | None = None,
        root_time: np.ndarray | None = None,
    ) -> None:
        """Raises ConfigError if a column, type or relation that the options name is missing in the graph."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self.root_type = type_of_roots(router, options.root_type)
        check_splits(router, self.root_type, options.split_set)
        known_relations(router, map(str, options.relation_fanouts), "relation_fanouts")
        columns = options.edge_columns
        if options.recency_dim and "time" not in columns:
            columns = (*columns, "time")
        self._uses = edge_uses(
            router,
            options.direction,
            scheme=options.scheme,
            edge_columns=columns,
            induced=options.edges == "induced",
            timed=options.time != "all",
        )
        encodings = encodings_by_type(router, options.encodings)
        self._columns = {
            name: Columns.of(each, options.split_set, encodings[name], feature=options.features)
            for name, each in router.nodes.items()
        }
        self._maps = {name: PositionMaps(each.manifest.num_nodes) for name, each in router.nodes.items()}
        is_plain = has_one_relation(router)
        self._names = {each: () if is_plain else _names_of(each, options) for each in router.edges}
        self._root_batches = RootBatches(router.nodes[self.root_type], options, num_ranks, roots, root_time)

    def roots_of(self, epoch: int, batch: int) -> np.ndarray:
        """Permanent ids of a batch's roots, in the order of the batch. Raises ConfigError for a batch that does not exist."""
        return self._root_batches.roots(epoch, batch).original_id

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Draws batches; their rows are not fetched. Several batches need one request per owner and hop, like a single batch."""
        return self.draw_around([self._root_batches.roots(epoch, batch) for batch in batches], epoch, batches)

    def sample_roots(self, node_id: np.ndarray, epoch: int = 0, batch: int = 0, time: np.ndarray | None = None) -> Any:
        """The minibatch around these roots of any split: distinct permanent ids of the roots' type, in the caller's order.

        `epoch` and `batch` select the draws and are stored in the batch. `time` (int64, one per root) replaces the roots' own times; with `time`, a node may be
        a root at several times. Finding the roots takes one more request per owner. Raises ConfigError if a root is repeated or is not a node of the graph.
        """
        return with_rows(*self.draw_roots(node_id, epoch, batch, time))

    def draw_roots(
        self, node_id: np.ndarray, epoch: int = 0, batch: int = 0, time: np.ndarray | None = None
    ) -> list[PendingBatch]:
        """The minibatch of `sample_roots`, whose rows are not fetched, as a list with one entry."""
        time = None if self.options.time == "all" else time
        roots = find_roots(self._router.nodes[self.root_type], node_id, time, distinct=True)
        return self.draw_around([roots], epoch, [batch])

    def draw_around(self, roots: Sequence[GivenRoots], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Draws batches around these distinct nodes (with times: distinct pairs of node and time); their rows are not fetched."""
        by_type = [each if isinstance(each, Mapping) else {self.root_type: each} for each in roots]
        with stage("sample"):
            grown = self._expand(by_type, epoch if self.options.shuffle else 0, batches)
            return [self._pending(growth, epoch, batch) for batch, growth in zip(batches, grown, strict=True)]

    def _pending(self, grown: "_Growth", epoch: int, batch: int) -> PendingBatch:
        """A batch whose rows are not fetched."""
        nodes, edges, root_types = grown.nodes(), grown.edges(), grown.root_types
        if self.options.edges == "induced":
            of_types = {name: own.node for name, own in nodes.items()}
            among = edges_among(self._router, of_types, {relation: use.columns for relation, use in self._uses.items()})
            edges = {relation: _Edges.of([lists], [lists.neighbor]) for relation, lists in among.items()}

        def complete(*rows_of: NodeRows) -> Batch:
            return self._complete((epoch, batch), root_types, nodes, edges, rows_of)  # `grown` would stay in memory

        wanted = tuple((self._router.nodes[name], own.node, self._columns[name]) for name, own in nodes.items())
        arrays = [array for own in nodes.values() for array in (own.node, own.place, own.root_time)]
        arrays += [array for own in edges.values() for array in (own.count, own.source, *own.columns.values())]
        return PendingBatch(wanted, complete, sum(array.nbytes for array in arrays if array is not None))

    def _complete(
        self,
        number: tuple[int, int],
        root_types: Sequence[str],
        nodes: "Mapping[str, _Nodes]",
        edges: "Mapping[Relation, _Edges]",
        rows_of: Sequence[NodeRows],
    ) -> Batch:
        """The batch `number`, which is (epoch, batch), from the rows of each type's nodes."""
        options, tables, lists = self.options, {}, {}
        for (name, own), rows in zip(nodes.items(), rows_of, strict=True):
            tables[name] = self._placed(name, nodes, edges, rows), {"hop": own.hop, "root_time": own.root_time}
        drop = {} if "time" in options.edge_columns else {"edge_time": None}  # edges have times only for recency
        for relation, drawn in edges.items():
            length = len(tables[relation.target][0].original_id)
            lists[relation] = drawn.indptr(length), drawn.source, {**drawn.columns, **drop}
        (root_type, root_index), *second = ((name, np.arange(nodes[name].layer_sizes[0])) for name in root_types)
        parts = self._router, *number, tables, lists, root_index, root_type, len(options.fanouts), options.encodings
        return build_batch(*parts, *second)

    def _placed(
        self, name: str, nodes: "Mapping[str, _Nodes]", edges: "Mapping[Relation, _Edges]", rows: NodeRows
    ) -> NodeRows:
        """The rows of each copy. The cosines of recency follow the features."""
        own, options = nodes[name], self.options
        if own.place is None:
            return rows
        placed = rows.take(own.place)
        if not (options.recency_dim and options.features):
            return placed
        assert own.root_time is not None
        ages = ages_of_copies(own.root_time, *_reached(name, edges))
        cosines, feature = encode_ages(ages, options.recency_dim, options.recency_unit), placed.feature
        return replace(placed, feature=cosines if feature is None else np.concatenate([feature, cosines], axis=1))

    def _expand(
        self, roots: Sequence[Mapping[str, NodeList]], draw_epoch: int, batches: Sequence[int]
    ) -> "list[_Growth]":
        """Draws hop by hop, for all batches at once."""
        options, relations = self.options, list(self._router.edges)
        if options.as_of is not None:
            at = options.as_of
            roots = [
                {name: replace(own, time=np.full(len(own.node), at)) for name, own in by_type.items()}
                for by_type in roots
            ]
        grown = [_Growth(by_type, self._maps, relations, self._copies(by_type)) for by_type in roots]
        shares_maps = len(batches) > 1  # the batches use the maps in turn
        if shares_maps:
            for growth in grown:
                growth.close()
        for hop in range(len(options.fanouts)):
            frontiers = [growth.frontier() for growth in grown]
            positions = [self._position(draw_epoch, batch, hop) for batch in batches]
            drawn = ask([self._question(relation, hop, positions, grown, frontiers) for relation in relations])
            for number, (growth, frontier) in enumerate(zip(grown, frontiers, strict=True)):
                if shares_maps:
                    growth.open()
                for relation, of_batches in zip(relations, drawn, strict=True):
                    growth.add(relation, frontier[relation.target], of_batches[number])
                if shares_maps or hop + 1 == len(options.fanouts):
                    growth.close()
        return grown

    def _question(
        self,
        relation: Relation,
        hop: int,
        positions: Sequence[tuple[int, int, int]],
        grown: "Sequence[_Growth]",
        frontiers: Sequence[Mapping[str, np.ndarray]],
    ) -> Question[list[NeighborLists]]:
        """The options of a relation's draws at a hop, for all batches."""
        options, use, name = self.options, self._uses[relation], relation.target
        nodes, untils = [frontier[name] for frontier in frontiers], None
        if options.time != "all":
            copies = [growth.copies[name] for growth in grown]
            if use.timed:
                untils = [own.until_of(each) for own, each in zip(copies, nodes, strict=True)]
            nodes = [own.node(each) for own, each in zip(copies, nodes, strict=True)]
        names = self._names[relation]
        return self._router.edges[relation].sample_question(
            nodes,
            options.fanout(relation, hop),
            [int(stream_key(options.seed, Purpose.NEIGHBORS, *position, *names)) for position in positions],
            use.direction,
            untils=untils,
            scheme=use.scheme,
            replace=options.replace,
            columns=() if options.edges == "induced" else use.columns,
        )

    def _copies(self, roots: Mapping[str, NodeList]) -> dict[str, NodeCopies]:
        """Copies by type. Empty if edges of all times are drawn, because nodes then have no copies."""
        if self.options.time == "all":
            return {}
        first = NodeCopies.of(0, ascending_nodes([*roots.values()]), before=self.options.time == "before")
        return {name: replace(first, num_nodes=each.manifest.num_nodes) for name, each in self._router.nodes.items()}

    def _position(self, epoch: int, batch: int, hop: int) -> tuple[int, int, int]:
        """The position of a batch's stream of draws at a hop."""
        options = self.options
        if options.batch_dependency > 1:  # one stream for all ranks and steps of a window of `batch_dependency` steps
            batch = batch // self._num_ranks // options.batch_dependency
        return epoch, batch, 0 if options.layer_dependency else hop


def _names_of(relation: Relation, options: NeighborOptions) -> tuple[int, ...]:
    """The part of a relation's stream key that is not the position: 64 bits of the relation's three names or, for LABOR's coins, of its source type."""
    names = relation[:1] if options.scheme == "labor" else relation
    return (int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], "little"),)


class _Growth:
    """The nodes of every type and the lists of every relation while a batch grows hop by hop. With `copies`, nodes are ids of copies."""

    def __init__(
        self,
        roots: Mapping[str, NodeList],
        maps: Mapping[str, PositionMaps],
        relations: Sequence[Relation],
        copies: Mapping[str, NodeCopies],
    ) -> None:
        self.copies, self.root_types = copies, tuple(roots)
        first = {name: copies[name].number(own) if copies else own.node for name, own in roots.items()}
        nothing = np.empty(0, np.int64)
        self._of_type = {
            name: Relabeler(first.get(name, nothing), None if copies else own) for name, own in maps.items()
        }
        self._sizes: dict[str, list[int]] = {name: [] for name in maps}  # number of nodes that each earlier hop found
        self._lists: dict[Relation, list[NeighborLists]] = {relation: [] for relation in relations}
        self._sources: dict[Relation, list[np.ndarray]] = {relation: [] for relation in relations}

    def frontier(self) -> dict[str, np.ndarray]:
        """Begins a hop. Returns the nodes of each type that the previous hop found."""
        nodes = {}
        for name, relabeler in self._of_type.items():
            nodes[name] = relabeler.node[sum(self._sizes[name]) :]
            self._sizes[name].append(len(nodes[name]))
        return nodes

    def add(self, relation: Relation, frontier: np.ndarray, lists: NeighborLists) -> None:
        """Adds the lists that a relation has drawn for its frontier at this hop."""
        neighbor, source = lists.neighbor, relation.source
        if self.copies:
            neighbor = self.copies[relation.target].neighbors(frontier, lists, self.copies[source])
        self._lists[relation].append(lists)
        self._sources[relation].append(self._of_type[source].add(neighbor))

    def open(self) -> None:
        for relabeler in self._of_type.values():
            relabeler.open()

    def close(self) -> None:
        """Gives the maps back, so that other batches can use them."""
        for relabeler in self._of_type.values():
            relabeler.close()

    def nodes(self) -> "dict[str, _Nodes]":
        """Ends the last hop. Returns the nodes of each type."""
        self.frontier()
        return {name: self._nodes(name) for name in self._of_type}

    def _nodes(self, name: str) -> "_Nodes":
        node, sizes = self._of_type[name].node.copy(), self._sizes[name]
        if not self.copies:
            return _Nodes(node, sizes)
        copies, distinct = self.copies[name], Relabeler(np.empty(0, np.int64))
        place = distinct.add(copies.node(node))
        return _Nodes(distinct.node.copy(), sizes, place, copies.root_time_of(node))

    def edges(self) -> "dict[Relation, _Edges]":
        return {relation: _Edges.of(lists, self._sources[relation]) for relation, lists in self._lists.items()}


@dataclass(frozen=True)
class _Nodes:
    """The nodes of one type; their rows are not fetched."""

    node: np.ndarray  # stored ids, distinct
    layer_sizes: list[int]
    place: np.ndarray | None = None  # int32: position of each copy's node in `node`; None: no copies
    root_time: np.ndarray | None = None  # int64, of each copy

    @property
    def hop(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.layer_sizes), dtype=np.int16), self.layer_sizes)


@dataclass(frozen=True)
class _Edges:
    """The edges of one relation."""

    count: np.ndarray  # int32: edges per node; sampled: for nodes before the last hop; induced: for all nodes
    source: np.ndarray
    columns: dict[str, np.ndarray | None]

    @classmethod
    def of(cls, lists: Sequence[NeighborLists], sources: Sequence[np.ndarray]) -> "_Edges":
        columns = {name: join_columns([getattr(each, name) for each in lists]) for name in EDGE_COLUMNS}
        count = np.concatenate([each.count for each in lists], dtype=np.int32, casting="same_kind")
        return cls(count, np.concatenate(sources), columns)

    def indptr(self, num_nodes: int) -> np.ndarray:
        """int64 [num_nodes + 1]. The nodes after those of `count` have no edges."""
        ends = np.empty(num_nodes + 1, np.int64)
        ends[0], num_counted = 0, len(self.count)
        np.cumsum(self.count, out=ends[1 : num_counted + 1])
        ends[num_counted + 1 :] = ends[num_counted]
        return ends


def _reached(name: str, edges: Mapping[Relation, _Edges]) -> tuple[np.ndarray, np.ndarray]:
    """(source, time) of the timed edges by which the batch reaches the nodes of a type."""
    timed = [
        (own.source, time)
        for relation, own in edges.items()
        if relation.source == name and (time := own.columns["edge_time"]) is not None
    ]
    if len(timed) == 1:
        return timed[0]
    none = (np.empty(0, np.int32), np.empty(0, np.int64))
    sources, times = zip(none, *timed, strict=True)
    return np.concatenate(sources), np.concatenate(times)
