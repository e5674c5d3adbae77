"""Answers a sampler's requests from one partition in this process.

This is the only implementation of each request: a partition server forwards to it, and a router in the same process calls it directly.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatchmethod
from itertools import pairwise
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.parallel_map import num_cores, ordered_map
from graphmill.samplers.access.array_pool import ArrayPool
from graphmill.samplers.access.list_draws import check_weights, checked, edge_columns, edge_lists, sample_lists
from graphmill.samplers.access.node_tables import NodeTables, tables_of_relations
from graphmill.samplers.kernels.features import decode_rows
from graphmill.samplers.kernels.lists import induced_edges_by_map
from graphmill.samplers.kernels.random_streams import hash_ids
from graphmill.samplers.kernels.rows import own_rows, place_rows, take_rows
from graphmill.samplers.kernels.subgraphs import HUB_DEGREE, DamagedLists, induced_subgraphs, list_neighbors, step_walks
from graphmill.samplers.vocabulary.messages import (
    DegreeLists,
    EdgeColumn,
    FetchRows,
    FindNodes,
    ForParts,
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
    PartReplies,
    PartReply,
    PartRequest,
    Reply,
    Request,
    SampleForBatches,
    SampleNeighbors,
    StepWalks,
    WalkDirection,
    join_columns,
    part_name,
)
from graphmill.samplers.vocabulary.requirements import NO_EDGE_WEIGHTS, NO_GROUPS
from graphmill.storage.filesystem.mapped_files import damaged
from graphmill.storage.filesystem.urls import is_local
from graphmill.storage.format.encoding_names import encoding_columns, split_encodings
from graphmill.storage.graph import Partition, StoredGraph, TypedGraph

_LISTED = 20  # most parts that a message names
_MAX_READS = 16  # most parts of a message that are read from an object store at the same time


class PartitionOwner:
    """Stateless, read-only and thread-safe over a `Partition`.

    `tables` are needed for draws that depend on nodes of other partitions (LABOR, by degree). Without tables the partition must be the whole graph.
    """

    def __init__(self, partition: Partition, num_nodes: int, tables: NodeTables | None = None) -> None:
        self._partition = partition
        self._num_nodes = num_nodes
        self._tables = tables
        self._pool = ArrayPool()

    def answer(self, request: Request) -> Reply:
        """Returns the reply to a request. Raises ConfigError if this partition does not own a node of the request. Raises FormatError if the partition's files
        have changed since they were opened."""
        try:
            return _kind_of_answer(type(request))(self, request)
        except DamagedLists:
            raise damaged(f"partition {self._partition.index}") from None

    @singledispatchmethod
    def _answer(self, request: object) -> Reply:
        raise ConfigError(f"expected a request of graphmill.samplers.vocabulary.messages, got {type(request).__name__}")

    def _rows(self, node: np.ndarray) -> np.ndarray:
        partition = self._partition
        try:
            return own_rows(node, partition.start, partition.num_nodes)
        except IndexError as error:
            raise ConfigError(
                f"partition {partition.index} owns the nodes [{partition.start}, {partition.stop}), got {int(node[error.args[0]])}"
            ) from None

    def _own_positions(self, member: np.ndarray) -> np.ndarray:
        """int64, ascending: positions in `member` of the nodes that this partition owns. Raises ConfigError if an id is not the id of a node of the graph."""
        if len(member) and not 0 <= int(member.min()) <= int(member.max()) < self._num_nodes:
            bad = int(member.min()) if member.min() < 0 else int(member.max())
            raise ConfigError(f"expected node ids in [0, {self._num_nodes}), got {bad}")
        return np.flatnonzero((member >= self._partition.start) & (member < self._partition.stop))

    @_answer.register
    def _sample_neighbors(self, request: SampleNeighbors) -> NeighborLists:
        partition, tables = self._partition, self._tables
        if request.scheme not in ("labor", "degree"):
            tables = None
        elif partition.num_nodes == self._num_nodes and (tables is None or tables.are_of_one_relation):
            tables = None  # this partition is the whole graph
        elif tables is None:
            raise ConfigError(f"scheme {request.scheme!r} over several partitions needs NodeTables, the owner has none")
        return sample_lists(partition, self._num_nodes, self._rows(request.node), request, tables)

    @_answer.register
    def _sample_for_batches(self, request: SampleForBatches) -> NeighborLists:
        draw = vars(request).copy()
        node, start, key, until = (draw.pop(name) for name in ("node", "start", "key", "until"))
        batches = [slice(first, stop) for first, stop in pairwise(start)]
        drawn = [
            self._sample_neighbors(
                SampleNeighbors(node[own], key=int(own_key), until=None if until is None else until[own], **draw)
            )
            for own, own_key in zip(batches, key, strict=True)
        ]
        columns = {name: join_columns([getattr(lists, name) for lists in drawn]) for name in vars(drawn[0])}
        return NeighborLists(**columns)  # type: ignore[arg-type]  # counts and neighbors are always there

    @_answer.register
    def _induced_edges(self, request: InducedEdges) -> Reply:
        partition, member = self._partition, request.member
        own = self._own_positions(member)  # must run before the cast to a narrower dtype, which could wrap an id
        # The dense map has 4 bytes per node of the graph. Clearing it takes time, so the map pays off only for many members.
        if self._num_nodes > 32 * len(member):
            one_set = member.astype(partition.indices.dtype, copy=False), np.array([0, len(member)])
            return self._induced_subgraphs(InducedSubgraphs(*one_set, request.columns))
        row = self._rows(member[own])
        position_of_id = np.full(self._num_nodes, -1, np.int32)
        position_of_id[member] = np.arange(len(member), dtype=np.int32)
        count, neighbor, entry = induced_edges_by_map(partition.indptr, partition.indices, row, position_of_id)
        return self._with_columns(count, neighbor, entry, request.columns)

    def _with_columns(
        self, count: np.ndarray, neighbor: np.ndarray, entry: np.ndarray, columns: tuple[EdgeColumn, ...]
    ) -> NeighborLists:
        """Returns lists of in-edges with the requested columns. `entry` has the positions of the edges in the partition."""
        lists, _ = edge_lists(self._partition, "in")
        has_ranks = self._partition.num_nodes == self._num_nodes
        of_edges = edge_columns(lists, None, entry, columns, has_ranks=has_ranks)
        return NeighborLists(count=count, neighbor=neighbor, **of_edges)

    @_answer.register
    def _fetch_rows(self, request: FetchRows) -> NodeRows:
        partition = self._partition
        row = self._rows(request.node)
        split = None if request.split_set is None else self._split(request.split_set)[row]
        return NodeRows(
            original_id=partition.original_id[row],
            feature=self._features(row) if request.feature else None,
            label=None if partition.label is None else partition.label[row],
            split=split,
            encoding=self._encodings(row, request.encodings) if request.encodings else None,
        )

    def _encodings(self, row: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        """The encodings of these rows, concatenated."""
        encoding = self._pool.empty((len(row), encoding_columns(names)), np.float32)
        for stored, out in self._encoding_slices(names, encoding):
            np.take(stored, row, axis=0, out=out, mode="clip")
        return encoding

    def _encoding_slices(self, names: tuple[str, ...], into: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each name: (the stored rows, the range of columns of `into` for them). Raises ConfigError if an encoding is not stored."""
        partition = self._partition
        for name, out in split_encodings(into, names).items():
            try:
                yield partition.encodings[name], out
            except KeyError:
                kind, dim, *eigenvalues = name.split("-")
                raise ConfigError(
                    f"encoding {name!r}: expected it in the graph's snapshot, found none; compute it: "
                    f"graphmill encode <url> {kind} --dim {dim}{''.join(f' --which {word}' for word in eigenvalues)}"
                ) from None

    def _features(self, row: np.ndarray) -> np.ndarray | None:
        """Returns rows of features in their stored form."""
        table, on_store = self._partition.feature, self._partition.feature_on_store
        if on_store is not None:
            return on_store.read(row)
        if table is None:
            return None
        feature = self._pool.empty((len(row), table.shape[1]), table.dtype)
        take_rows(table, row, feature)
        return feature

    def place_rows(self, request: FetchRows, into: NodeRows, position: np.ndarray | slice) -> None:
        """Answers `FetchRows` by writing the rows directly to the positions `position` of every column of `into`. A slice means all positions, in order.
        Features become float32."""
        partition, at = self._partition, None if isinstance(position, slice) else position
        row = self._rows(request.node)
        columns = [(partition.label, into.label)]
        if partition.first_id is None:
            columns.append((partition.original_id, into.original_id))
        else:
            if at is None:
                np.add(row, partition.first_id, out=into.original_id)
            else:
                into.original_id[at] = row + partition.first_id
        if request.split_set is not None:
            columns.append((self._split(request.split_set), into.split))
        if request.feature and into.feature is not None:
            if partition.feature_on_store is not None:
                decode_rows(partition.feature_rows, partition.feature_on_store.read(row), into.feature, None, at)
            elif partition.feature is not None:
                decode_rows(partition.feature_rows, partition.feature, into.feature, row, at)
        for stored, out in columns:
            if stored is not None and out is not None:
                place_rows(stored, row, at, out)
        if into.encoding is not None:
            for encoded, columns_out in self._encoding_slices(request.encodings, into.encoding):
                place_rows(encoded, row, at, columns_out)

    @property
    def reads_ranges(self) -> bool:
        """Whether rows of features are on an object store, and are read by ranges when they are requested."""
        return self._partition.feature_on_store is not None

    @property
    def feature_bytes(self) -> int:
        """Number of bytes of one stored row of features."""
        partition = self._partition
        has_none = partition.feature is None and partition.feature_on_store is None
        return 0 if has_none else partition.feature_rows.row_bytes

    def _split(self, split_set: int) -> np.ndarray:
        split = self._partition.split
        num_sets = 0 if split is None else len(split)
        if split is None or not 0 <= split_set < num_sets:
            raise ConfigError(
                f"split set: expected one of the graph's {num_sets}, got {split_set}; set --data.split_set"
            )
        return split[split_set]

    @_answer.register
    def _list_split(self, request: ListSplit) -> NodeList:
        return self._node_list(np.flatnonzero(self._split(request.split_set) == request.code))

    @_answer.register
    def _list_links(self, request: ListLinks) -> LinkRows:
        links = self._partition.links
        if links is None:
            raise ConfigError(
                "links: expected a graph with links that are held out, got one without; ingest it with --links.valid and --links.test"
            )
        own = links.take(np.flatnonzero(links.split == request.split))
        pairs = own.source, own.destination, own.is_link
        return LinkRows(*pairs, np.diff(own.negative_ptr), own.negative, own.time, own.relation)

    @_answer.register
    def _list_chunk(self, request: ListChunk) -> NodeList:
        if request.count == request.num_chunks:
            return self._node_list(np.arange(self._partition.num_nodes))
        hashed = hash_ids(np.uint64(request.key), self._partition.original_id)
        # Exact integer bounds of the chunks' hashes: chunk = floor(hash · num_chunks / 2^64).
        low = -(-(request.chunk << 64) // request.num_chunks)
        high = -(-((request.chunk + request.count) << 64) // request.num_chunks) - 1
        return self._node_list(np.flatnonzero((hashed >= np.uint64(low)) & (hashed <= np.uint64(high))))

    @_answer.register
    def _find_nodes(self, request: FindNodes) -> NodeList:
        owned, ids = self._partition.original_id, request.original_id  # `owned` is sorted
        row = np.searchsorted(owned, ids)
        inside = np.flatnonzero(row < len(owned))
        return self._node_list(row[inside[owned[row[inside]] == ids[inside]]])

    @_answer.register
    def _list_groups(self, request: ListGroups) -> NodeGroups:
        if self._partition.group is None:
            raise ConfigError(NO_GROUPS)
        return NodeGroups(self._partition.group[self._rows(request.node)])

    def _node_list(self, row: np.ndarray) -> NodeList:
        partition = self._partition
        time = None if partition.time is None else partition.time[row]
        return NodeList(node=row + partition.start, original_id=partition.original_id[row], time=time)

    def _walk_lists(self, direction: WalkDirection, column: str = "indices") -> tuple[Any, Any, Any, Any, bool]:
        """Returns two pairs (indptr, a column such as indices), and whether the second pair is used. It is used for "both" if the graph is not symmetric."""
        lists, more = edge_lists(self._partition, direction)
        second = more or lists
        return lists.indptr, getattr(lists, column), second.indptr, getattr(second, column), more is not None

    @_answer.register
    def _list_neighbors(self, request: ListNeighbors) -> DegreeLists:
        max_degree = np.empty(0, np.int64) if request.max_degree is None else request.max_degree
        lists, row = self._walk_lists(request.direction), self._rows(request.node)
        degree, count, neighbor = list_neighbors(*lists, row, max_degree)
        neighbor, weight = checked(neighbor, self._partition.num_sources), None
        if request.by_weight:
            weights = self._walk_lists(request.direction, "weight")
            if any(column is None for column in weights):
                raise ConfigError(NO_EDGE_WEIGHTS)
            weight = list_neighbors(*weights, row, max_degree)[2]
            check_weights(weight, count, self._partition.original_id, row)
        return DegreeLists(degree, count, neighbor, weight)

    @_answer.register
    def _step_walks(self, request: StepWalks) -> NeighborLists:
        lists, row = self._walk_lists(request.direction), self._rows(request.node)
        reached = step_walks(*lists, request.node, row, request.walk, np.uint64(request.key))
        neighbor = checked(reached, self._partition.num_sources)
        return NeighborLists(count=np.ones(len(row), np.int64), neighbor=neighbor)

    @_answer.register
    def _induced_subgraphs(self, request: InducedSubgraphs) -> NeighborLists:
        partition, member, member_ptr = self._partition, request.member, request.graph_ptr
        target, target_ptr = member, member_ptr
        if request.target is not None and request.target_ptr is not None:
            target, target_ptr = request.target, request.target_ptr
            if len(target_ptr) != len(member_ptr):  # the compiled loop uses one index for both
                raise ConfigError(f"expected as many sets of both types, got {len(target_ptr)} and {len(member_ptr)}")
        position = self._own_positions(target).astype(np.int32)
        row = self._rows(target[position])
        lists = (partition.indptr, partition.indices)
        count, neighbor, entry = induced_subgraphs(
            *lists, row, position, target_ptr, member, member_ptr, HUB_DEGREE, bool(request.columns)
        )
        return self._with_columns(count, neighbor, entry, request.columns)


# Looked up only once: each access to the descriptor builds a function, which takes as long as the lists of a small batch.
_kind_of_answer = PartitionOwner.__dict__["_answer"].dispatcher.dispatch


class PartsOwner:
    """The owner of several parts: a `PartitionOwner` for each part (`part_name`). One message may hold requests to several of them. Threads read the rows of
    parts whose rows are on an object store at the same time, because each read waits for the store."""

    def __init__(self, parts: Mapping[str, PartitionOwner]) -> None:
        self._parts = dict(parts)

    def answer(self, request: Request) -> PartReplies:
        """The replies of the parts. Raises ConfigError for a part that it does not have, and any error of a part's owner."""
        if not isinstance(request, ForParts) or len(request.parts) != len(request.requests):
            raise ConfigError(f"expected requests to parts, one for each part, got {type(request).__name__}")
        asked = list(zip(request.parts, request.requests, strict=True))
        for name, _ in asked:
            if name not in self._parts:
                few = ", ".join([*self._parts][:_LISTED]) + (" …" if len(self._parts) > _LISTED else "")
                raise ConfigError(f"expected a part that this server has ({few}), got {name!r}")

        def reply(one: tuple[str, PartRequest]) -> PartReply:
            replied = self._parts[one[0]].answer(one[1])
            assert not isinstance(replied, PartReplies)
            return replied

        num_reads = sum(isinstance(own, FetchRows) and self._parts[name].reads_ranges for name, own in asked)
        num_threads = min(num_reads, _MAX_READS) if num_reads > 1 else 0
        return PartReplies(tuple(ordered_map(reply, asked, num_threads)))


def open_parts(graph: StoredGraph | TypedGraph, partitions: Sequence[int], *, verify: bool = False) -> PartsOwner:
    """The owner of these partitions of a stored graph. Threads open the partitions at the same time. Raises FormatError for damaged files."""
    stored: dict[str, StoredGraph] = {"": graph} if isinstance(graph, StoredGraph) else {}
    tables: dict[str, NodeTables] = {name: NodeTables(part) for name, part in stored.items()}
    if isinstance(graph, TypedGraph):
        stored = {name: graph.nodes(name) for name in graph.node_types}
        stored |= {str(relation): graph.relation(relation) for relation in graph.relations}
        tables = {str(relation): of_sources for relation, of_sources in tables_of_relations(graph).items()}

    def open_one(index: int) -> dict[str, PartitionOwner]:
        owners = {}
        for name, part in stored.items():
            partition = part.partition(index, verify=verify)
            if verify and is_local(part.filesystem):
                dict(partition.encodings)  # the encodings are mapped and verified too
            owners[part_name(index, name)] = PartitionOwner(partition, part.manifest.num_nodes, tables.get(name))
        return owners

    opened = ordered_map(open_one, partitions, min(len(partitions), num_cores()))
    return PartsOwner({name: owner for of_partition in opened for name, owner in of_partition.items()})
