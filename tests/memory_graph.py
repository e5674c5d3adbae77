"""Small graphs behind a `Router`, partitioned in memory, without files; and owners that count their requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from graphmill.samplers.access.owners import LocalOwner, Pending
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router
from graphmill.samplers.vocabulary.messages import Request
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_TRAIN
from graphmill.storage.graph import Partition


@dataclass(frozen=True)
class MemoryGraph:
    """A directed multigraph; node i is row i of every column."""

    num_nodes: int
    edges: list[tuple[int, int]]  # src, dst
    permanent_id: list[int] | None = None  # ascending; None: 0, 1, …
    split: list[int] | None = None  # None: all nodes train
    symmetric: bool = False  # both directions are in `edges`

    @property
    def ids(self) -> list[int]:
        return list(range(self.num_nodes)) if self.permanent_id is None else self.permanent_id

    def lists(self, direction: str) -> list[list[int]]:
        """Rows of the neighbors of each node, in the stored order: ascending, out-edges after in-edges."""
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
    """Answers, and keeps what it was asked."""

    owner: LocalOwner
    requests: list[Request] = field(default_factory=list)

    def submit(self, request: Request) -> Pending:
        self.requests.append(request)
        return self.owner.submit(request)


def counting_owners(
    graph: MemoryGraph, assignment: Sequence[int] | None = None
) -> tuple[Manifest, list[CountingOwner]]:
    """The manifest, and one owner per partition; assignment[i] is node i's partition (none empty), None: one partition."""
    part_of = np.zeros(graph.num_nodes, np.int64) if assignment is None else np.asarray(assignment)
    num_partitions = int(part_of.max()) + 1
    permanent = np.asarray(graph.ids, np.int64)
    stored_order = np.lexsort((permanent, part_of))
    stored_id = np.empty(graph.num_nodes, np.int64)
    stored_id[stored_order] = np.arange(graph.num_nodes)
    offsets = np.searchsorted(part_of[stored_order], np.arange(num_partitions + 1))
    in_lists, out_lists = graph.lists("in"), graph.lists("out")
    split = np.full(graph.num_nodes, SPLIT_TRAIN) if graph.split is None else np.asarray(graph.split)
    owners = []
    for part in range(num_partitions):
        rows = stored_order[offsets[part] : offsets[part + 1]]
        indptr, indices = _csc([in_lists[row] for row in rows], stored_id)
        out = (indptr, indices) if graph.symmetric else _csc([out_lists[row] for row in rows], stored_id)
        partition = Partition(
            index=part,
            start=int(offsets[part]),
            stop=int(offsets[part + 1]),
            indptr=indptr,
            indices=indices,
            original_id=permanent[rows],
            out_indptr=out[0],
            out_indices=out[1],
            feature=np.stack([permanent[rows], -permanent[rows]], axis=1).astype(np.float32),
            label=permanent[rows] % 7,
            split=split[rows].astype(np.int8)[None],
        )
        owners.append(CountingOwner(LocalOwner(PartitionOwner(partition, graph.num_nodes))))
    manifest = Manifest(
        name="memory",
        num_nodes=graph.num_nodes,
        num_edges=len(graph.edges),
        partition_offsets=tuple(int(offset) for offset in offsets),
        feature_dim=2,
        feature_dtype="float32",
        symmetric=graph.symmetric,
        has_out_edges=not graph.symmetric,
        label_kind="class",
        num_classes=7,
        num_split_sets=1,
    )
    return manifest, owners


def memory_router(graph: MemoryGraph, assignment: Sequence[int] | None = None) -> Router:
    return Router(*counting_owners(graph, assignment))


def _csc(lists: list[list[int]], stored_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    flat = np.asarray([node for one in lists for node in one], np.int64)
    return indptr, stored_id[flat].astype(np.int32)


def cut(num_nodes: int, num_partitions: int, seed: int = 0) -> list[int]:
    """A random partition for every node, none empty."""
    assignment = np.random.default_rng(seed).integers(0, num_partitions, num_nodes)
    assignment[np.random.default_rng(seed + 1).permutation(num_nodes)[:num_partitions]] = np.arange(num_partitions)
    return assignment.tolist()


@st.composite
def memory_graphs(draw: st.DrawFn, max_nodes: int = 14, max_edges: int = 50) -> MemoryGraph:
    """Multigraphs with self-loops, isolated nodes and gaps between permanent ids."""
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
    """A larger directed multigraph with skewed in-degrees; a tenth of the nodes are isolated."""
    rng = np.random.default_rng(seed)
    connected = max(1, num_nodes * 9 // 10)
    src = rng.integers(0, connected, num_edges)
    dst = (connected * rng.random(num_edges) ** 2).astype(np.int64)
    return MemoryGraph(num_nodes, list(zip(src.tolist(), dst.tolist(), strict=True)))
