"""Plain and typed graphs as Python lists, for tests: a source of edges in chunks of any size, random examples, and the expected result of an ingestion.

`expected_graph` is a slow reference for `graphmill.storage.ingestion.ingest`. `stored_graph` reads stored partitions
into the same form. Both name nodes by original ids, so their results do not depend on partitions. `expected_lists` and
`stored_lists` do the same for each type and relation of a typed graph.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from graphmill.storage.format.source import EdgeChunk, NodeChunk, Relation, SourceInfo, TypedSource
from graphmill.storage.graph import StoredGraph, TypedGraph
from graphmill.storage.ingestion.ingest import IngestOptions


@dataclass(frozen=True)
class ListedGraph:
    """A `GraphSource` whose edges and columns are Python lists."""

    num_nodes: int
    edges_listed: list[tuple[int, int]]
    weight: list[float] | None = None
    edge_feature: list[list[float]] | None = None
    feature: list[list[float]] | None = None
    label: list[int] | list[float] | None = None
    split: list[list[int]] | None = None
    original_id: list[int] | None = None
    num_classes: int | None = None
    undirected_once: bool = False
    edge_feature_dim: int = 0
    edge_time: list[int] | None = None
    node_time: list[int] | None = None
    edges_per_chunk: int = 1 << 20
    nodes_per_chunk: int = 1 << 20
    name: str = "listed"
    meanwhile: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)  # called in `edges`

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=self.name,
            num_nodes=self.num_nodes,
            num_edges=len(self.edges_listed),
            feature_dim=len(self.feature[0]) if self.feature else 0,
            edge_feature_dim=self.edge_feature_dim,
            has_edge_weight=self.weight is not None,
            has_edge_time=self.edge_time is not None,
            has_node_time=self.node_time is not None,
            has_label=self.label is not None,
            num_classes=self.num_classes,
            num_split_sets=len(self.split[0]) if self.split else 0,
            undirected_once=self.undirected_once,
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        self.meanwhile()
        size = min(chunk_edges, self.edges_per_chunk)
        for start in range(0, len(self.edges_listed), size):
            some = slice(start, start + size)
            pairs = np.asarray(self.edges_listed[some], np.int64)
            yield EdgeChunk(
                src=pairs[:, 0],
                dst=pairs[:, 1],
                weight=None if self.weight is None else np.asarray(self.weight[some], np.float32),
                feature=None if self.edge_feature is None else np.asarray(self.edge_feature[some], np.float32),
                time=None if self.edge_time is None else np.asarray(self.edge_time[some], np.int64),
            )

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        size = min(chunk_nodes, self.nodes_per_chunk)
        for start in range(0, self.num_nodes, size):
            some = slice(start, start + size)
            label = None if self.label is None else np.asarray(self.label[some])
            yield NodeChunk(
                feature=None if self.feature is None else np.asarray(self.feature[some], np.float32),
                label=label if label is None or label.dtype == np.int64 else label.astype(np.float32),
                split=None if self.split is None else np.asarray(self.split[some], np.int8),
                original_id=None if self.original_id is None else np.asarray(self.original_id[some], np.int64),
                time=None if self.node_time is None else np.asarray(self.node_time[some], np.int64),
            )


@dataclass(frozen=True)
class ListedEdge:
    """One edge in a node's list: the original id of the other node, and the columns of the edge."""

    other_end: int
    edge_id: int | None
    weight: float | None
    feature: tuple[float, ...] | None
    time: int | None = None


@dataclass(frozen=True)
class NodeRow:
    """A node, with its in-edges in stored order."""

    in_edges: tuple[ListedEdge, ...]
    out_edges: tuple[ListedEdge, ...] | None
    feature: tuple[float, ...] | None
    label: float | None
    split: tuple[int, ...] | None
    time: int | None = None


def expected_graph(graph: ListedGraph, options: IngestOptions, sources: list[int] | None = None) -> dict[int, NodeRow]:
    """Applies the rules of ingestion to dicts and lists. Returns original id → node. `sources`: original ids of the source type, if it is another type."""
    undirected = graph.undirected_once if options.undirected is None else options.undirected
    summed = undirected and not graph.undirected_once and not options.drop_duplicates
    drop_duplicates = options.drop_duplicates or summed
    permanent = ids_of(graph)
    ends = permanent if sources is None else sources
    in_lists: dict[int, list[tuple[int, int]]] = {row: [] for row in range(graph.num_nodes)}
    out_lists: dict[int, list[tuple[int, int]]] = {row: [] for row in range(graph.num_nodes)}
    times = graph.edge_time
    if times is None and graph.node_time is not None:
        times = [max(graph.node_time[src], graph.node_time[dst]) for src, dst in graph.edges_listed]
    for position, (src, dst) in enumerate(graph.edges_listed):
        if src == dst and options.drop_self_loops:
            continue
        in_lists[dst].append((src, position))
        if sources is None:
            out_lists[src].append((dst, position))
        if undirected and (src != dst or summed):
            in_lists[src].append((dst, position))

    def listed(lists: dict[int, list[tuple[int, int]]], row: int, with_feature: bool) -> tuple[ListedEdge, ...]:
        kept, seen = [], set()
        # Sorted by time (if edges have times), then by id. Among equal edges, the edge that was given first comes first.
        in_order = sorted((times[position] if times else 0, end, position) for end, position in lists[row])
        for time, other_end, position in in_order:
            if drop_duplicates and (time, other_end) in seen:
                continue
            seen.add((time, other_end))
            equal = [one for when, end, one in in_order if (when, end) == (time, other_end)] if summed else [position]
            feature = None
            if graph.edge_feature is not None and with_feature:
                feature = np.sum(
                    np.asarray([graph.edge_feature[one] for one in equal], np.float32), axis=0, dtype=np.float64
                )
            kept.append(
                ListedEdge(
                    other_end=ends[other_end],
                    edge_id=position if options.edge_ids else None,
                    weight=None if graph.weight is None else _sum(graph.weight, equal),
                    feature=None if feature is None else _floats(feature, np.float32),
                    time=time if times else None,
                )
            )
        return tuple(kept)

    kept = {permanent[row]: listed(in_lists, row, with_feature=True) for row in range(graph.num_nodes)}
    symmetric = sources is None and (undirected or (is_symmetric(kept) and not options.edge_ids))
    rows = {}
    for row in range(graph.num_nodes):
        stored_out = listed(out_lists, row, with_feature=False) if options.out_edges else None
        rows[permanent[row]] = NodeRow(
            in_edges=kept[permanent[row]],
            out_edges=listed(in_lists, row, with_feature=False) if symmetric else stored_out,
            feature=None if graph.feature is None else _floats(graph.feature[row], np.dtype(options.feature_dtype)),
            label=None if graph.label is None else graph.label[row],
            split=None if graph.split is None else tuple(graph.split[row]),
            time=None if graph.node_time is None else graph.node_time[row],
        )
    return rows


def is_symmetric(in_edges: dict[int, tuple[ListedEdge, ...]], *, with_columns: bool = True) -> bool:
    """True if every edge occurs exactly as often as its reverse with the same weight and features."""

    def numbers(edge: ListedEdge) -> tuple[float, ...]:
        columns = tuple(x for x in (edge.weight, edge.time) if x is not None) + (edge.feature or ())
        # Compares bits, so -0 differs from 0.
        return tuple(math.copysign(math.inf, x) if x == 0 else x for x in columns) if with_columns else ()

    edges = Counter((edge.other_end, node, numbers(edge)) for node, row in in_edges.items() for edge in row)
    return all(edges[v, u, columns] == count for (u, v, columns), count in edges.items())


def stored_graph(graph: StoredGraph, sources: StoredGraph | None = None) -> dict[int, NodeRow]:
    """Reads the partitions and checks every checksum. Returns original id → node.

    `sources`: the nodes to which neighbor ids refer, if they have another type.
    """
    partitions = list(graph.partitions(verify=True))
    permanent = np.concatenate([each.original_id for each in (partitions if sources is None else sources.partitions())])

    def listed(row: int, indptr, indices, edge_id, weight, time, feature) -> tuple[ListedEdge, ...]:
        return tuple(
            ListedEdge(
                other_end=int(permanent[indices[e]]),
                edge_id=None if edge_id is None else int(edge_id[e]),
                weight=None if weight is None else float(weight[e]),
                feature=None if feature is None else _floats(feature[e]),
                time=None if time is None else int(time[e]),
            )
            for e in range(int(indptr[row]), int(indptr[row + 1]))
        )

    rows = {}
    for part in partitions:
        features = part.feature_numbers()
        assert list(part.original_id) == sorted(part.original_id)
        for row in range(part.num_nodes):
            in_arrays = (part.indptr, part.indices, part.edge_id, part.edge_weight, part.edge_time, part.edge_feature)
            out_columns = (part.out_edge_id, part.out_edge_weight, part.out_edge_time, None)
            out_arrays = (part.out_indptr, part.out_indices, *out_columns)
            rows[int(part.original_id[row])] = NodeRow(
                in_edges=listed(row, *in_arrays),
                out_edges=None if part.out_indptr is None else listed(row, *out_arrays),
                feature=None if features is None else _floats(features[row]),
                label=None if part.label is None else part.label[row].item(),
                split=None if part.split is None else tuple(int(code) for code in part.split[:, row]),
                time=None if part.time is None else int(part.time[row]),
            )
    return rows


def ids_of(graph: ListedGraph) -> list[int]:
    return graph.original_id or list(range(graph.num_nodes))


# An edge in a target's list: (original id of the source, edge id, weight, features).
Edge = tuple[int, int | None, float | None, tuple[float, ...] | None]


@dataclass(frozen=True)
class TypedLists:
    """The contents of a typed graph, as lists."""

    nodes: dict[str, dict[int, tuple]]  # type → original id → (feature, label, split)
    edges: dict[Relation, dict[int, list[Edge]]]  # relation → original id of a target → its list

    @classmethod
    def of(cls, nodes: dict[str, dict[int, NodeRow]], edges: dict[Relation, dict[int, NodeRow]]) -> "TypedLists":
        return cls(
            {name: {i: (row.feature, row.label, row.split) for i, row in rows.items()} for name, rows in nodes.items()},
            {
                each: {
                    i: [(e.other_end, e.edge_id, e.weight, e.feature) for e in row.in_edges] for i, row in rows.items()
                }
                for each, rows in edges.items()
            },
        )


def typed_source(nodes: dict[str, ListedGraph], relations: dict[Relation, ListedGraph]) -> TypedSource:
    return TypedSource("listed", nodes, relations, {"made": "by hand"})


def expected_lists(
    nodes: dict[str, ListedGraph], relations: dict[Relation, ListedGraph], options: IngestOptions
) -> TypedLists:
    """Applies the rules of ingestion to a typed graph. A relation within one type gets no reverse edges."""
    listed = dict(relations)
    if options.undirected:
        for (source, name, target), each in relations.items():
            if source != target:
                reverses = [(b, a) for a, b in each.edges_listed]
                listed[Relation(target, f"rev_{name}", source)] = replace(each, edges_listed=reverses)
    edges = {}
    for relation, each in listed.items():
        loops = options.drop_self_loops and relation.source == relation.target
        columns = {key: getattr(each, key) for key in ("edges_listed", "weight", "edge_feature")}
        edges[relation] = expected_graph(
            replace(nodes[relation.target], **columns),
            replace(
                options,
                undirected=None,
                drop_self_loops=loops,
                out_edges=options.out_edges and relation.source == relation.target,
            ),
            ids_of(nodes[relation.source]),
        )
    return TypedLists.of({name: expected_graph(each, IngestOptions()) for name, each in nodes.items()}, edges)


def stored_lists(graph: TypedGraph) -> TypedLists:
    """Reads the same lists from the stored partitions."""
    nodes = {name: graph.nodes(name) for name in graph.node_types}
    edges = {each: stored_graph(graph.relation(each), nodes[each.source]) for each in graph.relations}
    return TypedLists.of({name: stored_graph(part) for name, part in nodes.items()}, edges)


def _sum(values: list[float], positions: list[int]) -> float:
    return float(np.float32(sum(float(np.float32(values[one])) for one in positions)))


def _floats(values, dtype=None) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(values, dtype))


# Only a few different times, so that many edges have equal times. The limits of the type are among them.
TIMES = st.integers(-2, 4) | st.sampled_from((1 - 2**63, 2**63 - 1))


@st.composite
def listed_graphs(draw: st.DrawFn) -> ListedGraph:
    """Draws small multigraphs with self-loops and isolated nodes. Each kind of column may be missing; chunks have any size."""
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    number = st.floats(-100, 100, width=16)
    edge_dim, feature_dim, split_sets = draw(st.integers(0, 2)), draw(st.integers(0, 3)), draw(st.integers(0, 2))

    def rows(count: int, width: int, values: st.SearchStrategy) -> list[list]:
        return draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=count, max_size=count))

    labels = draw(st.sampled_from([None, st.integers(-1, 3), number]))
    gaps = draw(st.none() | st.lists(st.integers(1, 5), min_size=num_nodes, max_size=num_nodes))
    return ListedGraph(
        num_nodes=num_nodes,
        edges_listed=edges,
        weight=draw(st.none() | st.lists(number, min_size=len(edges), max_size=len(edges))),
        edge_feature=rows(len(edges), edge_dim, number) if edge_dim else None,
        edge_feature_dim=edge_dim,
        feature=rows(num_nodes, feature_dim, number) if feature_dim else None,
        label=None if labels is None else draw(st.lists(labels, min_size=num_nodes, max_size=num_nodes)),
        num_classes=None if labels is None else 4,
        split=rows(num_nodes, split_sets, st.integers(0, 3)) if split_sets else None,
        original_id=None if gaps is None else np.cumsum(gaps).tolist(),
        edge_time=draw(st.none() | st.lists(TIMES, min_size=len(edges), max_size=len(edges))),
        node_time=draw(st.none() | st.lists(TIMES, min_size=num_nodes, max_size=num_nodes)),
        undirected_once=draw(st.booleans()),
        edges_per_chunk=draw(st.integers(1, 41)),
        nodes_per_chunk=draw(st.integers(1, 13)),
    )


def random_listed_graph(num_nodes: int, num_edges: int, seed: int = 0, *, feature_dim: int = 4) -> ListedGraph:
    """A larger multigraph with skewed degrees and every kind of column. About half of its nodes are training nodes; a tenth are isolated."""
    rng = np.random.default_rng(seed)
    connected = max(1, num_nodes * 9 // 10)
    src = rng.integers(0, connected, num_edges)
    dst = (connected * rng.random(num_edges) ** 2).astype(np.int64)
    return ListedGraph(
        num_nodes=num_nodes,
        edges_listed=list(zip(src.tolist(), dst.tolist(), strict=True)),
        feature=rng.standard_normal((num_nodes, feature_dim)).astype(np.float32).tolist() if feature_dim else None,
        label=rng.integers(0, 5, num_nodes).tolist(),
        num_classes=5,
        split=rng.choice(4, (num_nodes, 2), p=(0.1, 0.5, 0.2, 0.2)).tolist(),
    )


@st.composite
def typed_lists(draw: st.DrawFn) -> tuple[dict[str, ListedGraph], dict[Relation, ListedGraph]]:
    """Draws typed graphs with up to three types and four relations. Each kind of column may be missing; chunks have any size."""
    number = st.floats(-100, 100, width=16)
    nodes, relations = {}, {}
    for name in draw(st.lists(st.sampled_from(["paper", "author", "field_of_study"]), min_size=1, unique=True)):
        count = draw(st.integers(1, 9))
        dim, sets = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        gaps = draw(st.none() | st.lists(st.integers(1, 5), min_size=count, max_size=count))

        def rows(width, values, count=count):
            row = st.lists(values, min_size=width, max_size=width)
            return draw(st.lists(row, min_size=count, max_size=count)) if width else None

        nodes[name] = ListedGraph(
            num_nodes=count,
            edges_listed=[],
            feature=rows(dim, number),
            label=draw(st.none() | st.lists(st.integers(-1, 3), min_size=count, max_size=count)),
            num_classes=4,
            split=rows(sets, st.integers(0, 3)),
            original_id=None if gaps is None else np.cumsum(gaps).tolist(),
            nodes_per_chunk=draw(st.integers(1, 10)),
            name=name,
        )
    for name in draw(st.lists(st.sampled_from(["cites", "writes", "has-topic", "r.1"]), unique=True)):
        source, target = (draw(st.sampled_from(list(nodes))) for _ in range(2))
        ends = [st.integers(0, nodes[end].num_nodes - 1) for end in (source, target)]
        edges = draw(st.lists(st.tuples(*ends), max_size=25))
        dim = draw(st.integers(0, 2))
        relations[Relation(source, name, target)] = ListedGraph(
            num_nodes=0,
            edges_listed=edges,
            weight=draw(st.none() | st.lists(number, min_size=len(edges), max_size=len(edges))),
            edge_feature=[draw(st.lists(number, min_size=dim, max_size=dim)) for _ in edges] if dim else None,
            edge_feature_dim=dim,
            edges_per_chunk=draw(st.integers(1, 26)),
            name=name,
        )
    return nodes, relations


MARKED = 8  # number of nodes of a marked graph
NUM_PARTITIONS = 2


def marked_graph(mark: int, meanwhile: Callable[[], None] = lambda: None) -> ListedGraph:
    """A tiny graph whose files all contain its number, in its name, features, labels and weights. So a mixture of files of two graphs is detected."""
    return ListedGraph(
        MARKED,
        [(node, (node + 1) % MARKED) for node in range(MARKED)],
        weight=[mark] * MARKED,
        feature=[[mark]] * MARKED,
        label=[float(mark)] * MARKED,
        name=f"mark-{mark}",
        meanwhile=meanwhile,
    )


def check_mark(graph: StoredGraph) -> int:
    """Reads every byte of a marked graph and returns its number. Raises AssertionError if files of two graphs are mixed, FormatError if a file is damaged."""
    mark = int(graph.manifest.name.removeprefix("mark-"))
    for partition in graph.partitions(verify=True):
        for values in (partition.feature_numbers(), partition.label, partition.edge_weight):
            assert values is not None
            assert (values == mark).all(), (mark, values)
    return mark
