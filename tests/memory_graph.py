"""Small plain and typed graphs with partitions in memory, without files. `local_router` and `typed_router` open them like stored graphs. Also owners that count
their requests."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphmill.samplers.access.owners import LocalOwner, Pending
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router
from graphmill.samplers.vocabulary.messages import Request
from graphmill.storage.format.manifest import EDGE, NODE, Manifest
from graphmill.storage.format.source import SPLIT_TRAIN, Relation
from graphmill.storage.format.statistics import GraphStatistics
from graphmill.storage.graph import Partition


@dataclass(frozen=True)
class MemoryGraph:
    """A directed multigraph. Row i of every column belongs to node i."""

    num_nodes: int
    edges: list[tuple[int, int]]  # (source, destination)
    permanent_id: list[int] | None = None  # ascending; None: 0, 1, …
    split: list[int] | None = None  # None: all nodes train
    symmetric: bool = False  # both directions are in `edges`

    @property
    def ids(self) -> list[int]:
        return list(range(self.num_nodes)) if self.permanent_id is None else self.permanent_id

    def lists(self, direction: str) -> list[list[int]]:
        """The neighbors of each node, as rows, in stored order: first the in-edges, then the out-edges, both ascending."""
        incoming: list[list[int]] = [[] for _ in range(self.num_nodes)]
        outgoing: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for src, dst in sorted(self.edges):
            incoming[dst].append(src)
            outgoing[src].append(dst)
        for one in outgoing:
            one.sort()
        if direction == "both" and not self.symmetric:
            return [a + b for a, b in zip(incoming, outgoing, strict=True)]
        return outgoing if direction == "out" else incoming


@dataclass
class CountingOwner:
    """An owner that answers requests and records them."""

    owner: LocalOwner
    requests: list[Request] = field(default_factory=list)

    def submit(self, request: Request) -> Pending:
        self.requests.append(request)
        return self.owner.submit(request)


def counting_owners(
    graph: MemoryGraph, assignment: Sequence[int] | None = None
) -> tuple[Manifest, list[CountingOwner]]:
    """Returns the manifest, and one owner per partition. assignment[i] is the partition of node i; no partition may be empty. None: one partition."""
    part_of = [0] * graph.num_nodes if assignment is None else list(assignment)
    split = [SPLIT_TRAIN] * graph.num_nodes if graph.split is None else graph.split
    src, dst = [src for src, _ in graph.edges], [dst for _, dst in graph.edges]
    table = TypedMemoryGraph(
        {NODE: NodeTable(graph.ids, split=split)}, {EDGE: EdgeTable(src, dst)}, {NODE: part_of}, max(part_of) + 1
    )
    nodes, incoming = table.nodes(NODE), table.relation(EDGE)
    outgoing = incoming if graph.symmetric else replace(table, edges={EDGE: EdgeTable(dst, src)}).relation(EDGE)
    owners = []
    for part, out, rows in zip(incoming.parts, outgoing.parts, nodes.parts, strict=True):
        ids = part.original_id
        partition = replace(
            part,
            out_indptr=out.indptr,
            out_indices=out.indices,
            feature=np.stack([ids, -ids], axis=1).astype(np.float32),
            label=ids % 7,
            split=rows.split,
        )
        owners.append(CountingOwner(LocalOwner(PartitionOwner(partition, graph.num_nodes))))
    manifest = replace(
        incoming.manifest,
        name="memory",
        feature_dim=2,
        feature_dtype="float32",
        symmetric=graph.symmetric,
        has_out_edges=not graph.symmetric,
        label_kind="class",
        num_classes=7,
        num_split_sets=1,
        statistics=None,
    )
    return manifest, owners


def memory_router(graph: MemoryGraph, assignment: Sequence[int] | None = None) -> Router:
    return Router(*counting_owners(graph, assignment))


def cut(num_nodes: int, num_partitions: int, seed: int = 0) -> list[int]:
    """A random partition for every node, such that no partition is empty."""
    assignment = np.random.default_rng(seed).integers(0, num_partitions, num_nodes)
    assignment[np.random.default_rng(seed + 1).permutation(num_nodes)[:num_partitions]] = np.arange(num_partitions)
    return assignment.tolist()


@st.composite
def memory_graphs(draw: st.DrawFn, max_nodes: int = 14, max_edges: int = 50) -> MemoryGraph:
    """Draws multigraphs with self-loops, isolated nodes and gaps between permanent ids."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    symmetric = draw(st.booleans())
    gaps = draw(st.none() | st.lists(st.integers(1, 5), min_size=num_nodes, max_size=num_nodes))
    return MemoryGraph(
        num_nodes=num_nodes,
        edges=edges + [(dst, src) for src, dst in edges if src != dst] if symmetric else edges,
        permanent_id=None if gaps is None else np.cumsum(gaps).tolist(),
        symmetric=symmetric,
    )


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> MemoryGraph:
    """A larger directed multigraph. In-degrees are skewed, and a tenth of the nodes are isolated."""
    rng = np.random.default_rng(seed)
    connected = max(1, num_nodes * 9 // 10)
    src = rng.integers(0, connected, num_edges)
    dst = (connected * rng.random(num_edges) ** 2).astype(np.int64)
    return MemoryGraph(num_nodes, list(zip(src.tolist(), dst.tolist(), strict=True)))


@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type. Row i of every column belongs to node i."""

    ids: list[int]  # permanent ids, ascending
    feature_dim: int = 0
    labelled: bool = False
    split: list[int] | None = None

    @property
    def feature(self) -> np.ndarray | None:
        """Features that are computed from the ids."""
        if not self.feature_dim:
            return None
        return np.asarray(self.ids, np.float32)[:, None] + np.arange(self.feature_dim, dtype=np.float32) / 8


@dataclass(frozen=True)
class EdgeTable:
    """The edges of one relation: for each edge, the row of its source, the row of its target, and columns."""

    src: list[int]
    dst: list[int]
    weight: list[float] | None = None
    feature: list[list[float]] | None = None
    has_id: bool = False


@dataclass(frozen=True)
class OpenTable:
    """A type or a relation as a plain graph, in the form that `graphmill.samplers.access.router.local_router` opens."""

    manifest: Manifest
    parts: list[Partition]

    @property
    def num_partitions(self) -> int:
        return len(self.parts)

    def partition(self, index: int, *, verify: bool = False) -> Partition:
        return self.parts[index]


@dataclass(frozen=True)
class TypedMemoryGraph:
    """A typed graph. `cut` has, for each type, the partition of each node. Types that `cut` does not have are in the first partition."""

    tables: dict[str, NodeTable]
    edges: dict[Relation, EdgeTable]
    cut: dict[str, list[int]] = field(default_factory=dict)
    num_partitions: int = 1

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(self.tables)

    @property
    def relations(self) -> tuple[Relation, ...]:
        return tuple(self.edges)

    def parted(self, num_partitions: int, seed: int = 0) -> "TypedMemoryGraph":
        """The same graph, with every node in a random partition. Partitions may be empty."""
        rng = np.random.default_rng(seed)
        cut = {name: rng.integers(0, num_partitions, len(table.ids)).tolist() for name, table in self.tables.items()}
        return replace(self, cut=cut, num_partitions=num_partitions)

    def _order(self, node_type: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (rows in stored order, stored id of each row, offsets of the partitions)."""
        table = self.tables[node_type]
        part_of = np.asarray(self.cut.get(node_type, [0] * len(table.ids)), np.int64)
        order = np.lexsort((table.ids, part_of))
        stored = np.empty(len(order), np.int64)
        stored[order] = np.arange(len(order))
        return order, stored, np.searchsorted(part_of[order], np.arange(self.num_partitions + 1))

    def nodes(self, node_type: str) -> OpenTable:
        table, (order, _, offsets) = self.tables[node_type], self._order(node_type)
        manifest = Manifest(
            name=node_type,
            num_nodes=len(table.ids),
            num_edges=0,
            partition_offsets=tuple(map(int, offsets)),
            feature_dim=table.feature_dim,
            feature_dtype="float32" if table.feature_dim else None,
            label_kind="class" if table.labelled else None,
            num_classes=5 if table.labelled else None,
            num_split_sets=0 if table.split is None else 1,
            statistics=_digest(table),
        )
        parts = []
        for index, rows in enumerate(np.split(order, offsets[1:-1])):
            ids = np.asarray(table.ids, np.int64)[rows]
            parts.append(
                Partition(
                    index=index,
                    start=int(offsets[index]),
                    stop=int(offsets[index + 1]),
                    indptr=np.zeros(len(rows) + 1, np.int64),
                    indices=np.empty(0, np.int32),
                    original_id=ids,
                    feature=None if table.feature is None else table.feature[rows],
                    label=ids % 5 if table.labelled else None,
                    split=None if table.split is None else np.asarray(table.split, np.int8)[rows][None],
                )
            )
        return OpenTable(manifest, parts)

    def relation(self, relation: Relation) -> OpenTable:
        edges = self.edges[relation]
        order, stored, offsets = self._order(relation.target)
        _, source_id, _ = self._order(relation.source)
        src, dst = np.asarray(edges.src, np.int64), np.asarray(edges.dst, np.int64)
        # A larger row has a larger permanent id. Among equal edges, the edge that was given first comes first.
        by_list = np.lexsort((np.arange(len(src)), src, stored[dst]))
        first = np.searchsorted(stored[dst][by_list], np.arange(len(order) + 1))
        parts = []
        for index in range(self.num_partitions):
            start, stop = int(offsets[index]), int(offsets[index + 1])
            some = by_list[first[start] : first[stop]]
            parts.append(
                Partition(
                    index=index,
                    start=start,
                    stop=stop,
                    indptr=(first[start : stop + 1] - first[start]).astype(np.int64),
                    indices=source_id[src[some]].astype(np.int32),
                    original_id=np.asarray(self.tables[relation.target].ids, np.int64)[order[start:stop]],
                    edge_id=some if edges.has_id else None,
                    edge_weight=None if edges.weight is None else np.asarray(edges.weight, np.float32)[some],
                    edge_feature=None if edges.feature is None else np.asarray(edges.feature, np.float32)[some],
                )
            )
        manifest = Manifest(
            name=str(relation),
            num_nodes=len(order),
            num_edges=len(src),
            partition_offsets=tuple(map(int, offsets)),
            has_edge_id=edges.has_id,
            has_edge_weight=edges.weight is not None,
            edge_feature_dim=0 if edges.feature is None else len(edges.feature[0]),
            statistics=_digest(edges),
        )
        return OpenTable(manifest, parts)

    def in_edges(self, relation: Relation) -> dict[int, list[tuple[int, int]]]:
        """Maps the permanent id of each target to its in-edges, in stored order. An in-edge is (permanent id of the source, row of the edge)."""
        source, target, edges = self.tables[relation.source].ids, self.tables[relation.target].ids, self.edges[relation]
        lists: dict[int, list[tuple[int, int]]] = {one: [] for one in target}
        for row, (src, dst) in enumerate(zip(edges.src, edges.dst, strict=True)):
            lists[target[dst]].append((source[src], row))
        return {one: sorted(found) for one, found in lists.items()}


def _digest(table: NodeTable | EdgeTable) -> GraphStatistics:
    """Statistics with the table's digest. All other values are placeholders."""
    nothing: dict[str, Any] = dict.fromkeys(GraphStatistics.__dataclass_fields__)
    digest = hashlib.sha256(repr(table).encode()).hexdigest()
    return GraphStatistics(**nothing | {"edge_fingerprint": digest, "node_digest": digest, "splits": ()})


def random_typed_graph(scale: int = 1, seed: int = 0, edges_scale: int = 1) -> TypedMemoryGraph:
    """A typed graph of papers, authors, institutions and a type without edges. Papers have labels and splits. Some relations have weights, ids or features."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return np.cumsum(rng.integers(1, 4, count)).tolist()

    def table(num_source: int, num_target: int, count: int, **columns) -> EdgeTable:
        return EdgeTable(
            rng.integers(0, num_source, count).tolist(),
            (num_target * rng.random(count) ** 2).astype(int).tolist(),
            **columns,
        )

    papers, authors, places, e = 60 * scale, 90 * scale, 7 * scale, edges_scale * scale
    return TypedMemoryGraph(
        {
            "paper": NodeTable(
                ids(papers), 3, labelled=True, split=rng.choice(4, papers, p=(0.1, 0.6, 0.2, 0.1)).tolist()
            ),
            "author": NodeTable(ids(authors), 2),
            "place": NodeTable(ids(places)),
            "alone": NodeTable([5, 9]),
        },
        {
            Relation("author", "writes", "paper"): table(
                authors, papers, 200 * e, has_id=True, weight=rng.random(200 * e).tolist()
            ),
            Relation("paper", "written_by", "author"): table(papers, authors, 200 * e),
            Relation("paper", "cites", "paper"): table(
                papers, papers, 300 * e, feature=rng.random((300 * e, 2)).astype(np.float32).tolist()
            ),
            Relation("place", "employs", "author"): table(places, authors, 100 * e),
            Relation("alone", "nothing", "paper"): table(1, 1, 0),
        },
    )


@st.composite
def typed_graphs(draw: st.DrawFn) -> TypedMemoryGraph:
    """Draws typed graphs: one to three types, and one to five relations between any of them. Nodes may be isolated, edges repeated, and permanent ids have
    gaps."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    tables = {}
    for name in names:
        gaps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
        tables[name] = NodeTable(np.cumsum(gaps).tolist(), draw(st.integers(0, 2)), labelled=name == "a")
    edges = {}
    for number in range(draw(st.integers(1, 5))):
        source, target = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        ends = st.tuples(*(st.integers(0, len(tables[one].ids) - 1) for one in (source, target)))
        pairs = draw(st.lists(ends, max_size=25))
        edges[Relation(source, f"r{number}", target)] = EdgeTable([s for s, _ in pairs], [d for _, d in pairs])
    return TypedMemoryGraph(tables, edges).parted(draw(st.integers(1, 4)), draw(st.integers(0, 9)))
