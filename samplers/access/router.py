"""The client that samplers use: it splits a question by owner, sends all owners their requests at once, and merges their replies.

The merged answer equals the answer of a single partition, so a sampler cannot distinguish one partition from many, or a local owner from a remote owner. Each
question is one request per owner.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.array_pool import ArrayPool
from graphmill.samplers.access.link_tables import LinkTables
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.owners import (
    LocalOwner,
    Owner,
    PartOfOwner,
    PendingRows,
    PlaceRows,
    PlacesRows,
    StoreOwner,
    expect,
    submit_together,
)
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.kernels.features import decode_rows
from graphmill.samplers.kernels.lists import all_positions
from graphmill.samplers.kernels.rows import group_by_owner, place_rows
from graphmill.samplers.vocabulary.messages import (
    DegreeLists,
    EdgeColumn,
    FetchRows,
    FindNodes,
    InducedEdges,
    InducedSubgraphs,
    LinkRows,
    ListChunk,
    ListGroups,
    ListLinks,
    ListNeighbors,
    ListSplit,
    NeighborLists,
    NodeGroups,
    NodeList,
    NodeRows,
    PartRequest,
    Reply,
    SampleForBatches,
    SampleNeighbors,
    StepWalks,
    WalkDirection,
    join_columns,
    part_name,
)
from graphmill.samplers.vocabulary.requirements import integer_ids
from graphmill.storage.format.encoding_names import encoding_columns
from graphmill.storage.format.manifest import EDGE, LABEL_DTYPES, NODE, Manifest
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph

EDGE_COLUMNS = ("edge_id", "edge_weight", "edge_time", "edge_feature")

Answer = TypeVar("Answer", covariant=True)


class Question(NamedTuple, Generic[Answer]):
    """Requests to owners, and the function that merges their replies into one answer. `ask` sends the requests of several questions at once."""

    requests: Sequence[tuple[Owner, PartRequest]]
    merge: Callable[[list[Reply]], Answer]  # receives the replies in the order of `requests`


@dataclass(frozen=True)
class Columns:
    """Names the columns of nodes to fetch."""

    feature: bool = True
    split_set: int | None = None
    encodings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, router: "Router", split_set: int, encodings: tuple[str, ...] = (), *, feature: bool = True
    ) -> "Columns":
        """Returns columns that include the codes of this split set, if the router's nodes have it."""
        return cls(feature, split_set if split_set < router.manifest.num_split_sets else None, encodings)


def ask(questions: "Sequence[Question[Answer]]") -> list[Answer]:
    """Returns the answers to these questions, each about one type or relation. All requests are sent at once, as one message per owner elsewhere."""
    requests = [request for question in questions for request in question.requests]
    replies = iter([pending.result() for pending in submit_together(requests)])
    return [question.merge([next(replies) for _ in question.requests]) for question in questions]


class Router:
    """A whole graph with one owner per partition.

    Nodes are named by stored ids; `find_nodes` translates permanent ids into stored ids. Every method raises ConfigError for ids that are not integers or not
    nodes of the graph.
    """

    def __init__(self, manifest: Manifest, owners: Sequence[Owner]) -> None:
        if len(owners) != manifest.num_partitions:
            raise ConfigError(f"expected one owner per partition ({manifest.num_partitions}), got {len(owners)}")
        self.manifest = manifest
        self._owners = list(owners)
        # Checked only once: isinstance with a protocol takes as long as reading the rows of a small batch.
        self._near = [owner if isinstance(owner, PlacesRows) else None for owner in owners]
        self._offsets = np.asarray(manifest.partition_offsets, np.int64)
        self._pool = ArrayPool()

    @property
    def nodes(self) -> "dict[str, Router]":
        """Routers by type; in a plain graph, this router for the one type."""
        return {NODE: self}

    @property
    def edges(self) -> "dict[Relation, Router]":
        """Routers by relation; in a plain graph, this router for the one relation."""
        return {EDGE: self}

    @property
    def content_hash(self) -> str:
        """Hash of the graph, independent of its partitions."""
        return self.manifest.measured.graph_digest

    def sample_neighbors(
        self,
        node: np.ndarray,
        fanout: int,
        key: int,
        direction: WalkDirection = "in",
        *,
        until: np.ndarray | None = None,
        **draw: Any,
    ) -> NeighborLists:
        """Draws up to `fanout` neighbors of each node (-1: all); see `SampleNeighbors`. `draw`: the fields scheme, replace and columns of the request."""
        untils = None if until is None else [until]
        return ask([self.sample_question([node], fanout, [key], direction, untils=untils, **draw)])[0][0]

    def sample_question(
        self,
        nodes: Sequence[np.ndarray],
        fanout: int,
        keys: Sequence[int],
        direction: WalkDirection = "in",
        *,
        untils: Sequence[np.ndarray] | None = None,
        **draw: Any,
    ) -> Question[list[NeighborLists]]:
        """Like `sample_neighbors`, but returns the question, for several arrays of nodes with one key each. Each owner gets one request for all arrays."""
        if not fanout or not any(map(len, nodes)):
            columns = draw.get("columns", ())
            return Question((), lambda _: [_no_lists(self.manifest, columns, len(each)) for each in nodes])
        if len(nodes) == 1:
            single, own_key, until_of = integer_ids(nodes[0]), keys[0], None if untils is None else untils[0]
            return self._lists_question(
                single,
                lambda at: SampleNeighbors(
                    single[at], fanout, own_key, direction, until=None if until_of is None else until_of[at], **draw
                ),
                lambda lists: [lists],
            )
        node, until = integer_ids(np.concatenate(nodes)), None if untils is None else np.concatenate(untils)
        start, key = pointers(np.array([len(each) for each in nodes])), np.array(keys, np.uint64)

        def build(at: np.ndarray | slice) -> PartRequest:
            own_start = start if isinstance(at, slice) else np.searchsorted(at, start)
            own_until = None if until is None else until[at]
            return SampleForBatches(node[at], own_start, key, fanout, direction, until=own_until, **draw)

        def cut(lists: NeighborLists) -> list[NeighborLists]:
            ends = pointers(lists.count)[start]
            cuts = zip(start[:-1], start[1:], ends[:-1], ends[1:], strict=True)
            return [_cut_lists(lists, slice(first, last), slice(begin, end)) for first, last, begin, end in cuts]

        return self._lists_question(node, build, cut)

    def induced_edges(self, node: np.ndarray, columns: tuple[EdgeColumn, ...] = ()) -> NeighborLists:
        """Returns all edges among these distinct nodes. Neighbors are positions in `node`; count[i] is the number of edges that end in node[i]."""
        return ask([self.among_question(node, columns)])[0]

    def among_question(self, node: np.ndarray, columns: tuple[EdgeColumn, ...] = ()) -> Question[NeighborLists]:
        """The question of `induced_edges`."""
        node = integer_ids(node)
        return self._lists_question(node, lambda _: InducedEdges(node, columns), _as_they_are)

    def list_neighbors(
        self,
        node: np.ndarray,
        direction: WalkDirection = "in",
        max_degree: np.ndarray | None = None,
        by_weight: bool = False,
    ) -> DegreeLists:
        """Returns all neighbors of each node and, with `by_weight`, the edges' weights. If a node has more neighbors than its entry of `max_degree`, returns
        only its degree."""
        return ask([self.list_question(node, direction, max_degree, by_weight)])[0]

    def list_question(
        self,
        node: np.ndarray,
        direction: WalkDirection = "in",
        max_degree: np.ndarray | None = None,
        by_weight: bool = False,
    ) -> Question[DegreeLists]:
        """The question of `list_neighbors`."""
        node = integer_ids(node)
        requests, groups = self._requests_at(
            node,
            lambda at: ListNeighbors(node[at], direction, None if max_degree is None else max_degree[at], by_weight),
        )
        return Question(requests, lambda replies: _merge_degrees(replies, groups, len(node)))

    def induced_question(
        self,
        target: np.ndarray,
        target_ptr: np.ndarray,
        source: np.ndarray | None = None,
        source_ptr: np.ndarray | None = None,
        columns: tuple[EdgeColumn, ...] = (),
    ) -> Question[NeighborLists]:
        """Asks for the edges within each set g of nodes. The targets of set g are target[target_ptr[g]:target_ptr[g + 1]].

        Between two types, the sources of set g are source[source_ptr[g]:source_ptr[g + 1]]; within one type, the set has only `target`. The answer has a list
        for each entry of `target`. A list holds positions in `source` or, within one type, in `target`.
        """
        target, dtype = integer_ids(target).astype(self.manifest.index_dtype, copy=False), self.manifest.index_dtype
        request = InducedSubgraphs(target, target_ptr, columns)
        if source is not None and source_ptr is not None:
            member = integer_ids(source).astype(dtype, copy=False)
            request = InducedSubgraphs(member, source_ptr, columns, target, target_ptr)
        return self._lists_question(target, lambda _: request, _as_they_are)

    def step_walks(self, node: np.ndarray, walk: np.ndarray, key: int, direction: WalkDirection = "in") -> np.ndarray:
        """Returns the next node of each walk: a uniformly drawn neighbor of its node, or the same node if it has no neighbors."""
        return ask([self.step_question(node, walk, key, direction)])[0].neighbor

    def step_question(
        self, node: np.ndarray, walk: np.ndarray, key: int, direction: WalkDirection = "in"
    ) -> Question[NeighborLists]:
        """The question of `step_walks`."""
        node = integer_ids(node)
        return self._lists_question(node, lambda at: StepWalks(node[at], walk[at], key, direction), _as_they_are)

    def fetch(
        self,
        node: np.ndarray,
        *,
        feature: bool = True,
        split_set: int | None = None,
        encodings: tuple[str, ...] = (),
    ) -> NodeRows:
        """Returns the rows of these nodes, in their order, with the named encodings. Features travel in their stored form and arrive as float32."""
        return fetch_rows([(self, node, Columns(feature, split_set, encodings))])[0]

    def put_rows(self, stored: NodeRows, row: np.ndarray | None, into: NodeRows, position: np.ndarray) -> None:
        """Sets into[position] = stored[row] in every column (row None: all rows). Stored features become float32."""
        for name, column in vars(into).items():
            if column is None:
                continue
            source = getattr(stored, name)
            if name == "feature":
                assert self.manifest.feature_rows is not None
                decode_rows(self.manifest.feature_rows, source, column, row, position)
            elif row is None:
                column[position] = source
            else:
                place_rows(source, row, position, column)

    @property
    def partition_sizes(self) -> np.ndarray:
        """int64 [owners]: number of each owner's nodes."""
        return np.diff(self._offsets)

    @property
    def is_near(self) -> np.ndarray:
        """bool [owners]: True for owners in this process, which write rows directly to their places."""
        return np.array([owner is not None for owner in self._near])

    def row_requests(
        self, node: np.ndarray, *, feature: bool, split_set: int | None, encodings: tuple[str, ...] = ()
    ) -> tuple[list[tuple[PlaceRows, np.ndarray | slice]], list[tuple[int, FetchRows, np.ndarray]]]:
        """Returns (near, far). An entry of `near` is a function that writes the rows of one owner in this process. An entry of `far` is the index of another
        owner and the request to it. Each entry also has the positions of its nodes in `node`."""
        near: list[tuple[PlaceRows, np.ndarray | slice]] = []
        far: list[tuple[int, FetchRows, np.ndarray]] = []
        only_group: list[tuple[int, np.ndarray | slice]] = [(0, slice(None))]  # only one owner: it checks ids
        for index, group in only_group if len(self._owners) == 1 else self._groups(node):
            owner, request = self._near[index], FetchRows(node[group], feature, split_set, encodings)
            if owner is not None:
                near.append((partial(owner.place_rows, request), group))
            else:
                far.append((index, request, np.arange(len(node)) if isinstance(group, slice) else group))
        return near, far

    def owner(self, index: int) -> Owner:
        """The owner of a partition."""
        return self._owners[index]

    def empty_rows(
        self,
        length: int,
        *,
        feature: bool,
        split_set: int | None,
        encodings: tuple[str, ...],
        stored: bool = False,
    ) -> NodeRows:
        """Returns uninitialised rows for `length` nodes. They have the form that `fetch` returns or, with `stored`, the form of owners' replies."""
        manifest = self.manifest
        rows, width, dtype = manifest.feature_rows, manifest.feature_dim, np.dtype(np.float32)
        if stored and rows is not None:
            width, dtype = rows.stored_width, rows.stored_dtype
        label, kind = None, manifest.label_kind
        if kind is not None:
            shape = (length,) if manifest.num_classes is None or kind == "class" else (length, manifest.num_classes)
            label = np.empty(shape, LABEL_DTYPES[kind])
        return NodeRows(
            original_id=np.empty(length, np.int64),
            feature=self._pool.empty((length, width), dtype) if feature and width else None,
            label=label,
            split=None if split_set is None else np.empty(length, np.int8),
            encoding=self._pool.empty((length, encoding_columns(encodings)), np.float32) if encodings else None,
        )

    def find_nodes(self, permanent_id: np.ndarray) -> np.ndarray:
        """int64: the stored id of the node with each permanent id, in the same order."""
        return self.list_found(permanent_id).node

    def list_found(self, permanent_id: np.ndarray) -> NodeList:
        """The nodes with these permanent ids, in the same order. Sends one request to every owner, so that no table of all nodes is needed."""
        ids = integer_ids(permanent_id).astype(np.int64, copy=False)
        listed = self._list_nodes(self._owners, FindNodes(np.sort(ids)))
        place = np.searchsorted(listed.original_id, ids)
        place[place == len(listed.node)] = -1
        missing = np.flatnonzero(listed.original_id[place] != ids) if len(listed.node) else np.arange(len(ids))
        if len(missing):
            raise ConfigError(
                f"expected ids of nodes of the graph {self.manifest.name}, as its source numbers them, got {int(ids[missing[0]])}, "
                "which it does not have"
            )
        return listed.take(place)

    def groups_of(self, node: np.ndarray) -> np.ndarray:
        """int32: the locality group of each node."""
        node = integer_ids(node)
        requests, groups = self._requests_at(node, lambda at: ListGroups(node[at]))
        replies = [expect(pending.result(), NodeGroups) for pending in submit_together(requests)]
        return _scatter([reply.group for reply in replies], groups, len(node))

    def list_split(self, split_set: int, code: int) -> NodeList:
        """All nodes with this split code, ascending in permanent id."""
        return self._list_nodes(self._owners, ListSplit(split_set, code))

    def list_links(self, split: int) -> list[LinkRows]:
        """The stored links with this split code: one reply per owner."""
        pending = submit_together([(owner, ListLinks(split)) for owner in self._owners])
        return [expect(each.result(), LinkRows) for each in pending]

    @cached_property
    def link_tables(self) -> LinkTables:
        """The tables from which batches of links are drawn."""
        return LinkTables(self)

    def list_chunk(
        self, key: int, chunk: int, num_chunks: int, count: int = 1, partition: int | None = None
    ) -> NodeList:
        """All nodes of the chunks [chunk, chunk + count), sorted by permanent id. The graph, or one partition of it, is cut into chunks at random."""
        owners = self._owners if partition is None else [self._owners[partition]]
        return self._list_nodes(owners, ListChunk(key, chunk, num_chunks, count))

    def list_partitions(self, partitions: Sequence[int]) -> NodeList:
        """All nodes of these distinct partitions (at least one), sorted by permanent id. Sends requests only to the owners of these partitions."""
        whole = ListChunk(key=0, chunk=0, num_chunks=1)
        return self._list_nodes([self._owners[partition] for partition in partitions], whole)

    def _list_nodes(self, owners: Sequence[Owner], request: PartRequest) -> NodeList:
        """The nodes that these owners list, ascending in permanent id. All owners receive the request at once."""
        pending = submit_together([(owner, request) for owner in owners])
        return ascending_nodes([expect(each.result(), NodeList) for each in pending])

    def _requests_at(
        self, node: np.ndarray, build: Callable[[np.ndarray | slice], PartRequest]
    ) -> tuple[list[tuple[Owner, PartRequest]], list[np.ndarray | slice]]:
        """Returns (owner, request) pairs, and for each owner the positions of its nodes. `build` makes the request from these positions."""
        if len(self._owners) == 1:
            return [(self._owners[0], build(slice(None)))], [slice(None)]
        groups = self._groups(node)
        return [(self._owners[index], build(group)) for index, group in groups], [group for _, group in groups]

    def _groups(self, node: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Returns (owner, positions of its nodes) for each owner of a node. If `node` is empty, returns the first owner without positions."""
        try:
            order, ends = group_by_owner(node, self._offsets)
        except IndexError as error:
            raise ConfigError(
                f"expected node ids in [0, {self.manifest.num_nodes}), got {int(node[error.args[0]])}"
            ) from None
        starts = ends - np.diff(ends, prepend=0)
        groups = [
            (index, order[start:end])
            for index, (start, end) in enumerate(zip(starts, ends, strict=True))
            if end > start
        ]
        return groups or [(0, order)]

    def _lists_question(
        self,
        node: np.ndarray,
        build: Callable[[np.ndarray | slice], PartRequest],
        then: Callable[[NeighborLists], Answer],
    ) -> Question[Answer]:
        """A question whose replies are lists. `build` makes the request to an owner from the positions of its nodes. `then` makes the answer from the merged
        lists."""
        requests, groups = self._requests_at(node, build)
        return Question(requests, lambda replies: then(_merge_lists(replies, groups, len(node))))


Wanted = tuple[Router, np.ndarray, Columns]  # a router, stored ids of nodes, and the columns to fetch
AskedRows = tuple[list[tuple[PlaceRows, np.ndarray | slice]], list[tuple[PendingRows, np.ndarray]]]


def ask_rows(wanted: Sequence[Wanted]) -> list[AskedRows]:
    """Requests the rows of each router's nodes, all at once, as one message per owner elsewhere. Returns (near, far) for each router. They are the lists of
    `Router.row_requests`, but `far` holds replies that have not arrived yet."""
    asked = [router.row_requests(node, **vars(columns)) if len(node) else ([], []) for router, node, columns in wanted]
    requests = [
        (router.owner(index), request)
        for (router, *_), (_, far) in zip(wanted, asked, strict=True)
        for index, request, _ in far
    ]
    pending = iter(submit_together(requests))
    return [
        (near, [(PendingRows(next(pending), index, len(group)), group) for index, _, group in far])
        for near, far in asked
    ]


def fetch_rows(wanted: Sequence[Wanted]) -> list[NodeRows]:
    """Like `Router.fetch` for several routers: returns the rows of each router's nodes. All rows are requested at once."""
    wanted = [(router, integer_ids(ids), columns) for router, ids, columns in wanted]
    rows = [router.empty_rows(len(node), **vars(columns)) for router, node, columns in wanted]
    asked = ask_rows(wanted)
    for into, (near, _) in zip(rows, asked, strict=True):  # meanwhile, owners elsewhere answer
        for place, group in near:
            place(into, group)
    for (router, *_), into, (_, far) in zip(wanted, rows, asked, strict=True):
        for reply, group in far:
            router.put_rows(reply.result(), None, into, group)
    return rows


def local_router(
    graph: StoredGraph,
    *,
    verify: bool = False,
    watch: Callable[[Owner, int], Owner] = lambda owner, _: owner,
    far: Mapping[int, Owner] | None = None,
    tables: NodeTables | None = None,
    name: str = "",
) -> Router:
    """Router over all partitions of a graph in this process, except the partitions in `far`, whose servers are elsewhere. Each request to a server is one
    message for all partitions that the server has.

    `watch` may wrap the owner of each partition in this process to count its messages (`graphmill.samplers.access.traffic.Traffic`). `tables`: for a relation,
    the tables of its neighbors. `name`: of the type or relation that this graph is in a typed graph.
    """
    num_nodes, tables = graph.manifest.num_nodes, tables or NodeTables(graph)
    owners: dict[int, Owner] = {
        index: PartOfOwner(server, part_name(index, name)) for index, server in (far or {}).items()
    }
    for index in range(graph.num_partitions):
        if index not in owners:
            partition = graph.partition(index, verify=verify)
            kind = LocalOwner if partition.feature_on_store is None else StoreOwner
            owners[index] = watch(kind(PartitionOwner(partition, num_nodes, tables)), index)
    return Router(graph.manifest, [owners[index] for index in range(graph.num_partitions)])


def ascending_nodes(lists: Sequence[NodeList]) -> NodeList:
    """Merges several lists of nodes into one list, ascending in permanent id."""
    node, original_id, time = (join_columns([getattr(each, name) for each in lists]) for name in vars(lists[0]))
    assert node is not None
    assert original_id is not None
    return NodeList(node, original_id, time).take(np.argsort(original_id, kind="stable"))


def _no_lists(manifest: Manifest, columns: tuple[EdgeColumn, ...], length: int) -> NeighborLists:
    """Returns `length` empty lists. Each requested column is an empty array of the right dtype."""
    empty: dict[str, np.ndarray] = {
        "id": np.empty(0, np.int64),
        "weight": np.empty(0, np.float32),
        "time": np.empty(0, np.int64),
        "feature": np.empty((0, manifest.edge_feature_dim), np.float32),
    }
    of_edges: dict[str, Any] = {f"edge_{name}": empty[name] for name in columns}
    return NeighborLists(np.zeros(length, np.int64), np.empty(0, manifest.index_dtype), **of_edges)


def _as_they_are(lists: NeighborLists) -> NeighborLists:
    return lists


def _merge_lists(parts: Sequence[Reply], groups: list[np.ndarray | slice], length: int) -> NeighborLists:
    """Merges the owners' lists into the order of the question's nodes."""
    replies = [expect(reply, NeighborLists) for reply in parts]
    if len(replies) == 1 and isinstance(groups[0], slice):
        return replies[0]
    count = _scatter([reply.count for reply in replies], groups, length)
    start = np.concatenate([[0], np.cumsum(count)])
    neighbor = np.empty(int(start[-1]), replies[0].neighbor.dtype)
    columns = {name: _column_like(getattr(replies[0], name), len(neighbor)) for name in EDGE_COLUMNS}
    for reply, group in zip(replies, groups, strict=True):
        _place_lists(neighbor, start, group, reply.count, reply.neighbor)
        for name, column in columns.items():
            if column is None:
                continue
            if column.ndim == 1:
                _place_lists(column, start, group, reply.count, getattr(reply, name))
            else:
                column[all_positions(start[group], reply.count)] = getattr(reply, name)
    return NeighborLists(count=count, neighbor=neighbor, **columns)


def _merge_degrees(parts: Sequence[Reply], groups: list[np.ndarray | slice], length: int) -> DegreeLists:
    replies = [expect(reply, DegreeLists) for reply in parts]
    if len(replies) == 1 and isinstance(groups[0], slice):
        return replies[0]
    pieces = [NeighborLists(reply.count, reply.neighbor, edge_weight=reply.weight) for reply in replies]
    lists = _merge_lists(pieces, groups, length)
    degree = _scatter([reply.degree for reply in replies], groups, length)
    return DegreeLists(degree, lists.count, lists.neighbor, lists.edge_weight)


def _cut_lists(lists: NeighborLists, nodes: slice, entries: slice) -> NeighborLists:
    """Returns the lists of the nodes in the range `nodes`. `entries` is the range of their entries."""
    columns = {name: None if (column := getattr(lists, name)) is None else column[entries] for name in EDGE_COLUMNS}
    return NeighborLists(lists.count[nodes], lists.neighbor[entries], **columns)


def _column_like(piece: np.ndarray | None, length: int) -> np.ndarray | None:
    return None if piece is None else np.empty((length, *piece.shape[1:]), piece.dtype)


def _scatter(pieces: list[np.ndarray], groups: list[np.ndarray | slice], length: int) -> np.ndarray:
    """Merges the owners' pieces of a column. The result has the order of the question's nodes."""
    if len(pieces) == 1 and isinstance(groups[0], slice):
        return pieces[0]
    merged = np.empty((length, *pieces[0].shape[1:]), pieces[0].dtype)
    for piece, group in zip(pieces, groups, strict=True):
        merged[group] = piece
    return merged


@compiled
def _place_lists(neighbor, start, group, count, piece):
    """Copies the lists of one owner to their positions among the lists of all owners."""
    read = 0
    for i in range(len(group)):
        write = start[group[i]]
        for j in range(count[i]):
            neighbor[write + j] = piece[read + j]
        read += count[i]
