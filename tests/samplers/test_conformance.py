"""Tests properties that every sampler must have. One suite tests all samplers, in process and through partition servers.

A new sampler needs one line in SAMPLERS. The properties:

- A batch is a function of (epoch, batch) alone.
- The loader yields batches in order, and resumes at any step, but only with the same data.
- Threads, servers and partitions do not change a batch. (Exception: samplers whose batches are partitions.)
- Ranks divide the roots of an epoch among them.
- Roots are the nodes of a split, or all nodes if there are no splits, or nodes that are given by permanent id.
- Wrong arguments raise one clear error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving.partition_server import connect, partition_servers
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.samplers.drawing.pending_batch import with_rows
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.graph_batches import GraphBatchSampler, graphs_to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.options import (
    GraphBatchOptions,
    LoaderOptions,
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
    TypedNeighborOptions,
    TypedNode2SubgraphOptions,
)
from graphmill.storage.encoding.encode import encode
from graphmill.storage.format.encoding_names import parse_encoding_name
from graphmill.storage.format.source import SPLIT_NONE, SPLIT_TRAIN, Relation
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.array_graph_store import ArrayGraphStore
from tests.far_owner import far_router
from tests.listed_graph import ListedGraph, random_listed_graph

Build = Callable[[Router, int], Sampler]  # (router, number of ranks) -> sampler
NUM_NODES = 160
ENCODINGS = ("rwse-3", "laplacian-4-both_ends")

SAMPLERS: dict[str, Build] = {
    "neighbor": lambda r, n: NeighborSampler(r, NeighborOptions(fanouts=(4, 3), batch_size=8), n),
    "neighbor-induced": lambda r, n: NeighborSampler(r, NeighborOptions((3, 2), 8, edges="induced"), n),
    "neighbor-replace": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, replace=True), n),
    "neighbor-weight": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="weight"), n),
    "neighbor-degree": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="degree"), n),
    "neighbor-labor": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="labor"), n),
    "neighbor-dependent": lambda r, n: NeighborSampler(
        r, NeighborOptions((4, 3), 8, scheme="labor", batch_dependency=2, layer_dependency=True), n
    ),
    "neighbor-both": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, direction="both"), n),
    "neighbor-columns": lambda r, n: NeighborSampler(
        r, NeighborOptions((4, 3), 8, edge_columns=("id", "weight", "feature")), n
    ),
    "neighbor-until": lambda r, n: NeighborSampler(
        r, NeighborOptions((4, 3), 8, time="until", edge_columns=("time",)), n
    ),
    "neighbor-last": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, time="before", scheme="last"), n),
    "neighbor-fixed": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, shuffle=False), n),
    "neighbor-groups": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, root_order="groups"), n),
    "neighbor-encodings": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, encodings=ENCODINGS), n),
    "random-partition": lambda r, n: RandomPartitionSampler(r, RandomPartitionOptions(num_chunks=5), n),
    "random-partition-columns": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(num_chunks=5, edge_columns=("id", "weight", "feature")), n
    ),
    "random-partition-unions": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(num_chunks=7, chunks_per_batch=2), n
    ),
    "random-partition-corrected": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(num_chunks=5, corrected=True), n
    ),
    "random-partition-within": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(num_chunks=10, cut="within", corrected=True), n
    ),
    # Two partitions have only two possible orders. With this seed, the first epochs have different orders, and the next seed
    # gives another order.
    "random-partition-stored": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(cut="partitions", seed=5), n
    ),
    "node2subgraph": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(max_hops=3, max_nodes=9, batch_size=8), n
    ),
    "node2subgraph-encodings": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(max_hops=3, max_nodes=9, batch_size=8, encodings=ENCODINGS[:1]), n
    ),
    "node2subgraph-columns": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(max_hops=3, max_nodes=9, batch_size=8, edge_columns=("id", "weight", "feature")), n
    ),
    "ppr-columns": lambda r, n: PprSampler(
        r, PprOptions(epsilon=1e-3, top_k=6, batch_size=8, edge_columns=("id", "weight", "feature")), n
    ),
    "ppr-weight": lambda r, n: PprSampler(r, PprOptions(epsilon=1e-3, top_k=6, batch_size=8, by_weight=True), n),
    "node2subgraph-weight": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(3, 9, "in", 8, by_weight=True), n
    ),
    "ppr": lambda r, n: PprSampler(r, PprOptions(epsilon=1e-3, top_k=6, batch_size=8), n),
    "saint": lambda r, n: SaintSampler(r, SaintOptions(num_walks=10, num_presamples=20), n),
    "typed-neighbor": lambda r, n: NeighborSampler(
        several_types(r), TypedNeighborOptions((4, 3), 8, root_type="node", edge_columns=("id", "weight", "feature")), n
    ),
    "typed-neighbor-dependent": lambda r, n: NeighborSampler(
        several_types(r),
        TypedNeighborOptions((4, 3), 8, root_type="node", scheme="labor", batch_dependency=2, layer_dependency=True),
        n,
    ),
    "typed-neighbor-until": lambda r, n: NeighborSampler(
        several_types(r),
        TypedNeighborOptions((4, 3), 8, root_type="node", time="until", scheme="last", recency_dim=3),
        n,
    ),
    "typed-neighbor-out": lambda r, n: NeighborSampler(
        several_types(r), TypedNeighborOptions((4, 3), 8, root_type="node", direction="out", edge_columns=("id",)), n
    ),
    "typed-neighbor-both": lambda r, n: NeighborSampler(
        several_types(r), TypedNeighborOptions((4, 3), 8, root_type="node", direction="both", scheme="weight"), n
    ),
    "typed-neighbor-induced": lambda r, n: NeighborSampler(
        several_types(r), TypedNeighborOptions((3, 2), 8, root_type="node", edges="induced", encodings=ENCODINGS), n
    ),
    "typed-random-partition": lambda r, n: RandomPartitionSampler(
        several_types(r), RandomPartitionOptions(num_chunks=5, root_type="node", encodings=ENCODINGS), n
    ),
    "typed-node2subgraph": lambda r, n: Node2SubgraphSampler(
        several_types(r),
        TypedNode2SubgraphOptions(3, 9, batch_size=8, root_type="node", edge_columns=("id", "weight")),
        n,
    ),
    "typed-node2subgraph-relations": lambda r, n: Node2SubgraphSampler(
        several_types(r), Node2SubgraphOptions(3, 9, "both", 8, root_type="node", relations=("node--edge--node",)), n
    ),
    "typed-node2subgraph-encodings": lambda r, n: Node2SubgraphSampler(
        several_types(r), TypedNode2SubgraphOptions(3, 9, batch_size=8, root_type="node", encodings=ENCODINGS), n
    ),
    "typed-ppr": lambda r, n: PprSampler(
        several_types(r),
        PprOptions(epsilon=1e-3, top_k=6, batch_size=8, root_type="node", edge_columns=("feature",)),
        n,
    ),
    "typed-ppr-weight": lambda r, n: PprSampler(
        several_types(r), PprOptions(epsilon=1e-3, top_k=6, batch_size=8, root_type="node", by_weight=True), n
    ),
    "typed-random-partition-stored": lambda r, n: RandomPartitionSampler(
        several_types(r), RandomPartitionOptions(cut="partitions", seed=5, root_type="node"), n
    ),
    "typed-random-partition-corrected": lambda r, n: RandomPartitionSampler(
        several_types(r), RandomPartitionOptions(num_chunks=5, corrected=True, root_type="node"), n
    ),
    "typed-random-partition-within": lambda r, n: RandomPartitionSampler(
        several_types(r), RandomPartitionOptions(num_chunks=10, cut="within", corrected=True, root_type="node"), n
    ),
    "typed-saint": lambda r, n: SaintSampler(
        several_types(r), SaintOptions(num_walks=10, num_presamples=20, direction="in", root_type="node"), n
    ),
    "graph-batches": lambda r, n: GraphBatchSampler(small_graphs(), GraphBatchOptions(max_nodes=40), n),
}
# Samplers in whose epochs every root (or graph) occurs exactly once, on one rank.
COVERING = [name for name in SAMPLERS if not name.endswith("saint")]
# Samplers whose batches do not depend on how the graph is partitioned.
BY_PARTITION = tuple(name for name in SAMPLERS if name.endswith(("-stored", "-within")))
CUT_BLIND = [name for name in SAMPLERS if name not in BY_PARTITION]

# Samplers that draw nodes of one graph (not whole graphs).
OF_NODES = [name for name in SAMPLERS if name != "graph-batches"]
# Samplers that can make a batch around any given nodes.
AROUND_ROOTS = [name for name in OF_NODES if "random-partition" not in name and "saint" not in name]
PERMANENT_ID = 7 + 3 * np.arange(NUM_NODES)  # permanent ids differ from numbers in the store

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
# For tests with servers or plans, the gate uses one sampler for each kind of request. The other samplers would send the
# same requests and compile more loops.
IN_THE_GATE = {
    "neighbor",
    "neighbor-weight",
    "neighbor-columns",
    "random-partition-stored",
    "node2subgraph",
    "ppr",
    "saint",
    "typed-neighbor",
    "graph-batches",
}


def mostly_long(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in IN_THE_GATE else pytest.mark.long) for name in names]


def rich_graph() -> ListedGraph:
    rng = np.random.default_rng(11)
    graph = random_listed_graph(NUM_NODES, 1400, seed=11)
    feature = rng.standard_normal((1400, 2)).astype(np.float32)
    return replace(
        graph,
        weight=rng.random(1400).tolist(),
        edge_feature=feature.tolist(),
        edge_feature_dim=2,
        edge_time=rng.integers(0, 50, 1400).tolist(),
        node_time=rng.integers(20, 50, NUM_NODES).tolist(),
        original_id=PERMANENT_ID.tolist(),
    )


def with_splits(which: str) -> ListedGraph:
    """The rich graph. It has no splits, or a split set with only training nodes."""
    only_train = [[SPLIT_TRAIN if row % 3 else SPLIT_NONE] for row in range(NUM_NODES)]
    return replace(rich_graph(), split=None if which == "none" else only_train)


def small_graphs() -> ArrayGraphStore:
    rng = np.random.default_rng(3)
    num_nodes, num_edges = rng.integers(1, 12, 50), rng.integers(0, 20, 50)
    offsets = [np.concatenate([[0], np.cumsum(count)]) for count in (num_nodes, num_edges)]
    ends = (rng.random((2, num_edges.sum())) * np.repeat(num_nodes, num_edges)).astype(np.int32)
    return ArrayGraphStore(*offsets, ends, node_feature=rng.random((num_nodes.sum(), 3)).astype(np.float32))


def stored(graph: ListedGraph, url: Path, partitions: int) -> StoredGraph:
    # groups do not depend on partitions
    options = IngestOptions(num_partitions=partitions, partitioner="ldg", groups=8, edge_ids=True, out_edges=True)
    ingest(graph, str(url), options)
    for encoding in ENCODINGS:
        encode(open_graph(str(url)), parse_encoding_name(encoding))
    return open_graph(str(url))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[int, StoredGraph]:
    """The same graph in 1, in 2 and in 5 partitions."""
    folder = tmp_path_factory.mktemp("conformance")
    return {partitions: stored(rich_graph(), folder / str(partitions), partitions) for partitions in (1, 2, 5)}


@pytest.fixture(scope="module")
def sparsely_split(tmp_path_factory) -> dict[tuple[str, int], StoredGraph]:
    """The same graph in 1 and in 2 partitions, without splits and with a split set that has only training nodes."""
    folder = tmp_path_factory.mktemp("sparsely-split")
    return {
        (which, partitions): stored(with_splits(which), folder / f"{which}-{partitions}", partitions)
        for which in ("none", "train")
        for partitions in (1, 2)
    }


@pytest.fixture(scope="module")
def other_graph(tmp_path_factory) -> StoredGraph:
    """A graph that differs from the first one only in its features."""
    graph = rich_graph()
    assert graph.feature is not None
    changed = replace(graph, feature=[[-value for value in row] for row in graph.feature])
    return stored(changed, tmp_path_factory.mktemp("other") / "graph", 2)


@pytest.fixture(scope="module")
def router(graphs) -> Router:
    return local_router(graphs[2])


@pytest.fixture(scope="module")
def remote(graphs, shared_ray) -> Iterator[Router]:
    """A router that reads everything from partition servers."""
    options = ServerOptions(local_reads=False, timeout_s=200)
    with partition_servers(graphs[2], options) as servers:
        yield connect(servers)


def one_type(router: Router) -> TypedRouter:
    """Makes a plain graph look like a typed graph with one type and one relation."""
    return TypedRouter({"node": router}, {Relation("node", "edge", "node"): router})


def several_types(router: Router) -> TypedRouter:
    """Makes a plain graph look like a typed graph with two types and three relations. Each type has all its nodes, each relation all its edges."""
    ends = {"edge": ("node", "node"), "to": ("node", "other"), "rev_to": ("other", "node")}
    edges = {Relation(source, name, target): router for name, (source, target) in ends.items()}
    return TypedRouter({"node": router, "other": router}, edges)


def is_typed(sampler: Any) -> bool:
    return isinstance(getattr(sampler, "router", None), TypedRouter)


def columns_of(batch: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a batch by name. The fields of a typed batch's tables are included."""
    assert is_dataclass(batch)
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(batch, TypedBatch) and isinstance(value, dict):
            for table, columns in value.items():
                yield from ((f"{table} {name}", column) for name, column in columns_of(columns))
        else:
            yield field.name, value


def content(batch: Any) -> dict[str, Any]:
    """All parts of a batch as bytes."""
    return content_of(dict(columns_of(batch)))


def content_of(columns: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in columns.items()
    }


def as_plain(batch: TypedBatch) -> dict[str, Any]:
    """The `content` of a typed batch with one type and one relation, in the form of a plain batch."""
    (nodes,), (edges,) = batch.nodes.values(), batch.edges.values()
    columns, roots = {**vars(nodes), **vars(edges)}, batch.root_index
    if nodes.subgraph is not None:  # typed batches are ordered by hop, plain batches by subgraph
        order = np.argsort(nodes.subgraph, kind="stable")
        place = np.argsort(order).astype(np.int32)
        entry = np.concatenate([np.arange(edges.indptr[i], edges.indptr[i + 1]) for i in order])
        of_nodes = {name: value[order] for name, value in vars(nodes).items() if isinstance(value, np.ndarray)}
        columns |= of_nodes | {
            name: value[entry] for name, value in vars(edges).items() if value is not None and name != "indptr"
        }
        columns["indptr"] = np.append(0, np.cumsum(np.diff(edges.indptr)[order]))
        columns["graph_ptr"] = np.searchsorted(nodes.subgraph[order], np.arange(len(roots) + 1))
        columns["indices"], roots = place[edges.indices[entry]], place[roots].astype(np.int64)
    columns |= {"epoch": batch.epoch, "index": batch.index, "root_index": roots}
    return content_of(
        columns | {"feature": columns["x"], "label": columns["y"], "encoding_names": batch.encoding_names}
    )


@pytest.mark.parametrize("name", [name for name in OF_NODES if not name.startswith("typed-")])
@pytest.mark.parametrize("partitions", [1, 5])
def test_one_type_and_one_relation_are_a_plain_graph(name, partitions, graphs):
    """Typed and plain batches have the same nodes, edges, rows and columns, byte for byte, if drawn alone or several together."""
    router = local_router(graphs[partitions])
    plain = SAMPLERS[name](router, 2)
    build: Any = type(plain)
    typed = build(one_type(router), plain.options, 2)
    assert typed.num_batches == plain.num_batches
    for epoch in (0, 3):
        for batch in range(plain.num_batches):
            expected = content(plain.sample(epoch, batch))
            found = as_plain(typed.sample(epoch, batch))
            found["hop"] = None if expected["hop"] is None else found["hop"]
            assert {name for name, value in expected.items() if value is not None} <= found.keys()
            assert_same([{name: found.get(name) for name in expected}], [expected])
    several = [with_rows(drawn) for drawn in typed.draw(1, [0, 1])]
    assert_same([content(one) for one in several], [content(typed.sample(1, batch)) for batch in range(2)])


def epoch_of(sampler: Sampler, epoch: int = 0) -> list[dict[str, Any]]:
    return [content(sampler.sample(epoch, batch)) for batch in range(sampler.num_batches)]


def tensors_of(sampler: Sampler, batch: Any) -> dict[str, Any]:
    """The `content` of a loader's batch."""
    return {
        name: (value.numpy().dtype.str, tuple(value.shape), value.numpy().tobytes())
        if hasattr(value, "numpy")
        else value
        for name, value in columns_of(batch)
    }


def rebuilt(sampler: Sampler, source: Any, num_ranks: int = 1, roots: Any = None, **changed: Any) -> Sampler:
    """A sampler of the same kind for this router or store. `options` changes some options; `roots` are permanent ids (or numbers of graphs)."""
    build: Any = type(sampler)
    if is_typed(sampler):
        source = one_type(source) if len(sampler.router.nodes) == 1 else several_types(source)
    return build(source, replace(sampler.options, **changed), num_ranks, roots)


def given_roots(name: str) -> np.ndarray:
    """A quarter of all nodes (or graphs), of any split, in random order."""
    everything = np.arange(50) if name == "graph-batches" else PERMANENT_ID
    return np.random.default_rng(5).permutation(everything)[: len(everything) // 4]


def collate_of(sampler: Sampler) -> Callable[[Any], Any]:
    if is_typed(sampler):
        return typed_to_torch
    return graphs_to_torch if isinstance(sampler, GraphBatchSampler) else to_torch


def loaded(sampler: Sampler, epoch: int, options: LoaderOptions | None = None, **ranks) -> list[dict[str, Any]]:
    with Loader(sampler, options, collate=collate_of(sampler), **ranks) as loader:
        return [tensors_of(sampler, batch) for batch in loader.epoch(epoch)]


def direct(sampler: Sampler, epoch: int) -> list[dict[str, Any]]:
    collate = collate_of(sampler)
    return [tensors_of(sampler, collate(sampler.sample(epoch, batch))) for batch in range(sampler.num_batches)]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Checks that all bytes are equal. If not, the message shows the difference in readable lines."""
    assert len(found) == len(expected)
    wrong = [
        f"batch {number}, {name}: expected {_shown(theirs[name])}, got {_shown(ours[name])}"
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True))
        for name in theirs
        if ours[name] != theirs[name]
    ]
    assert not wrong, "\n".join(wrong[:6])


def _shown(value: Any) -> str:
    if not (isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], bytes)):
        return repr(value)
    dtype, shape, data = value
    return f"{dtype}{list(shape)} {np.frombuffer(data, dtype)[:12].tolist()}"


def members(batch: Any) -> list[int]:
    """The permanent ids of a batch's roots, or the numbers of its graphs."""
    if isinstance(batch, TypedBatch):
        return batch.predicted_id.tolist()
    return (batch.node_id[batch.root_index] if hasattr(batch, "root_index") else batch.graph_id).tolist()


def has_splits(batch: Any) -> bool:
    return (batch.roots if isinstance(batch, TypedBatch) else batch).split is not None


@pytest.mark.parametrize("name", mostly_long(OF_NODES))
@pytest.mark.parametrize("cache_bytes", [1, 60 * 33])
def test_rows_by_plan_change_nothing(name, graphs, cache_bytes):
    """Fetching rows by plan does not change batches, for any room for rows, number of batches ahead, and number of threads. Also in a second epoch, and in the
    rest of an epoch."""
    build = SAMPLERS[name]
    router = local_router(graphs[2]) if name in BY_PARTITION else local_router(graphs[5])
    expected = [direct(build(router, 1), epoch) for epoch in (0, 1)]
    far, _ = far_router(graphs[2 if name in BY_PARTITION else 5])
    for threads, plan_bytes in ((3, 1 << 30), (1, 0)):
        sampler = build(far, 1)
        options = LoaderOptions(threads=threads, prefetch=3, cache_bytes=cache_bytes, plan_bytes=plan_bytes)
        with Loader(sampler, options, collate=collate_of(sampler)) as loader:
            for epoch in (0, 1):
                assert_same([tensors_of(sampler, batch) for batch in loader.epoch(epoch)], expected[epoch])
            assert_same([tensors_of(sampler, batch) for batch in loader.epoch(1, 1)], expected[1][1:])


@every_sampler
class TestEverySampler:
    def test_options_are_frozen(self, name, router):
        options = SAMPLERS[name](router, 1).options
        with pytest.raises(FrozenInstanceError):
            options.seed = 5
        assert type(options)(**vars(options)) == options

    def test_a_batch_is_a_function_of_its_number(self, name, router):
        first, second = SAMPLERS[name](router, 1), SAMPLERS[name](router, 1)
        batches = epoch_of(first, 3)
        assert first.num_batches > 1
        for batch in reversed(range(first.num_batches)):  # a second sampler, in reverse order
            second.sample(2, batch)
            assert_same([content(second.sample(3, batch))], [batches[batch]])

    def test_seeds_differ(self, name, router):
        sampler = SAMPLERS[name](router, 1)
        source = small_graphs() if name == "graph-batches" else router
        other = rebuilt(sampler, source, seed=sampler.options.seed + 1)
        assert epoch_of(sampler) != epoch_of(other)

    def test_epochs_differ_unless_told_otherwise(self, name, router):
        sampler = SAMPLERS[name](router, 1)
        same = [{**one, "epoch": 0} for one in epoch_of(sampler, 1)] == epoch_of(sampler, 0)
        assert same == (not sampler.options.shuffle)

    def test_threads_change_nothing(self, name, router):
        sampler = SAMPLERS[name](router, 1)
        for threads in (1, 3):
            assert_same(loaded(sampler, 1, LoaderOptions(threads=threads, prefetch=4)), direct(sampler, 1))

    def test_resumes_at_every_step(self, name, router):
        sampler = SAMPLERS[name](router, 2)
        collate = collate_of(sampler)
        with Loader(sampler, rank=1, num_ranks=2, collate=collate) as loader:
            loader.reset(4)
            states, whole = [loader.state_dict()], []
            for batch in loader:
                whole.append(tensors_of(sampler, batch))
                states.append(loader.state_dict())
        assert states[-1]["epoch"] == 5
        for step, state in enumerate(states[:-1]):
            with Loader(SAMPLERS[name](router, 2), rank=1, num_ranks=2, collate=collate) as loader:
                loader.load_state_dict(state)
                assert_same([tensors_of(sampler, batch) for batch in loader], whole[step:])

    def test_resumes_in_its_own_data_alone(self, name, router, graphs, other_graph):
        """The state of a loader over another graph or over other roots is refused, even if options and the number of batches are the same."""
        sampler = SAMPLERS[name](router, 1)
        chosen = given_roots(name)
        if name == "graph-batches":
            again, foreign = small_graphs(), replace(small_graphs(), node_feature=-small_graphs().node_feature)
            others = np.setdiff1d(np.arange(50), chosen)[: len(chosen)]
        else:
            # A state does not depend on the partitions, unless partitions are the chunks.
            same_graph = open_graph(graphs[2 if name in BY_PARTITION else 5].url)
            again, foreign = local_router(same_graph), local_router(other_graph)
            others = np.setdiff1d(PERMANENT_ID, chosen)[: len(chosen)]
        known, unknown = rebuilt(sampler, again), [rebuilt(sampler, foreign), rebuilt(sampler, again, roots=others)]
        if name in BY_PARTITION:
            unknown.append(rebuilt(sampler, local_router(open_graph(graphs[5].url))))
        collate = collate_of(sampler)
        for mine, same in (
            (sampler, known),
            (rebuilt(sampler, again, roots=chosen), rebuilt(sampler, again, roots=chosen[::-1])),
        ):
            with Loader(mine, collate=collate) as loader:
                next(iter(loader))
                state = loader.state_dict()
            with Loader(same, collate=collate) as loader:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            for other in unknown:
                with Loader(other, collate=collate) as loader, pytest.raises(ConfigError) as refused:
                    loader.load_state_dict(state)
                assert str(refused.value).startswith("loader state: expected a position in the data ")
                assert "\n" not in str(refused.value)
                assert 'or, with cut="partitions" or "within", of other partitions; resume with' in str(refused.value)

    def test_given_roots_are_dealt(self, name, router):
        """Given roots replace the roots of a split. In an epoch each occurs once, in whatever order the ids are given."""
        chosen, source = given_roots(name), small_graphs() if name == "graph-batches" else router
        sampler = rebuilt(SAMPLERS[name](router, 1), source, roots=chosen)
        batches = [sampler.sample(1, batch) for batch in range(sampler.num_batches)]
        dealt = [root for batch in batches for root in members(batch)]
        if name in COVERING:
            assert sorted(dealt) == sorted(chosen.tolist())
        else:
            assert dealt
            assert set(dealt) <= set(chosen.tolist())
        assert_same(epoch_of(rebuilt(sampler, source, roots=chosen[::-1]), 1), [content(batch) for batch in batches])

    def test_given_roots_that_cannot_be(self, name, router):
        sampler = SAMPLERS[name](router, 1)
        source = small_graphs() if name == "graph-batches" else router
        some = 3 if name == "graph-batches" else 13
        for wrong, message in (
            ([some, 10**6], "got (3 to )?1000000"),
            ([-1, some], "got -1"),
            ([some, some], "distinct"),
            (np.empty(0, np.int64), "at least one, got none"),
        ):
            with pytest.raises(ConfigError, match=f"^(roots|graphs): expected .*{message}"):
                rebuilt(sampler, source, roots=np.asarray(wrong))

    def test_ranks_share_the_epoch(self, name, router):
        for num_ranks in (1, 2, 3):
            sampler = SAMPLERS[name](router, num_ranks)
            assert sampler.num_batches % num_ranks == 0
            by_rank = [loaded(sampler, 0, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
            assert {len(batches) for batches in by_rank} == {sampler.num_batches // num_ranks}
            dealt = [batch for step in zip(*by_rank, strict=True) for batch in step]
            assert_same(dealt, direct(sampler, 0))

    @pytest.mark.parametrize("wrong", [-1, 10**6])
    def test_refuses_batches_that_there_are_not(self, name, router, wrong):
        with pytest.raises(ConfigError, match=r"^batch: expected a number in \[0, "):
            SAMPLERS[name](router, 1).sample(0, wrong)

    def test_batches_say_how_large_they_are(self, name, router):
        batch = SAMPLERS[name](router, 1).sample(0, 0)
        arrays = [value for _, value in columns_of(batch) if isinstance(value, np.ndarray)]
        assert batch.num_bytes == sum(array.nbytes for array in arrays)
        assert batch.num_nodes > 0
        assert batch.num_edges >= 0


@pytest.mark.parametrize("name", CUT_BLIND)
def test_partitions_change_nothing(name, graphs):
    expected = epoch_of(SAMPLERS[name](local_router(graphs[1]), 2), 1)
    for partitions in (2, 5):
        assert_same(epoch_of(SAMPLERS[name](local_router(graphs[partitions]), 2), 1), expected)


@pytest.mark.parametrize("name", [name for name in CUT_BLIND if name in OF_NODES])
def test_partitions_change_nothing_around_given_roots(name, graphs):
    """Given roots are named by permanent ids, so batches do not depend on partitions."""
    expected = None
    for graph in graphs.values():
        router = local_router(graph)
        sampler = rebuilt(SAMPLERS[name](router, 1), router, 2, given_roots(name))
        found = epoch_of(sampler, 1)
        if name in AROUND_ROOTS:
            found.append(content(sampler.sample_roots(given_roots(name)[:5], 3, 4)))
        expected = expected or found
        assert_same(found, expected)


@pytest.mark.parametrize("name", AROUND_ROOTS)
def test_ids_of_a_batch_make_that_batch(name, graphs):
    """If `sample_roots` gets the permanent ids of a batch's roots, it makes the same batch."""
    for graph in graphs.values():
        sampler = SAMPLERS[name](local_router(graph), 1)
        batch = sampler.sample(2, 1)
        again = sampler.sample_roots(np.array(members(batch)), 2, 1)
        assert_same([content(again)], [content(batch)])
        with pytest.raises(ConfigError, match=r"^roots: expected ids of nodes of the graph listed, .* got 8, which"):
            sampler.sample_roots(np.array([7, 8]))


@pytest.mark.parametrize("which", ["none", "train"])
@pytest.mark.parametrize("name", OF_NODES)
def test_graphs_without_splits_or_with_training_nodes_alone(name, which, sparsely_split):
    sampler = SAMPLERS[name](local_router(sparsely_split[which, 1]), 1)
    batches = [sampler.sample(0, batch) for batch in range(sampler.num_batches)]
    dealt = sorted(root for batch in batches for root in members(batch))
    trained = PERMANENT_ID if which == "none" else PERMANENT_ID[np.arange(NUM_NODES) % 3 > 0]
    if name in COVERING:
        assert dealt == trained.tolist()
    else:
        assert set(dealt) <= set(trained.tolist())
    assert all(has_splits(batch) == (which != "none") for batch in batches)
    if name in CUT_BLIND:
        parted = SAMPLERS[name](local_router(sparsely_split[which, 2]), 1)
        assert_same(epoch_of(parted), [content(batch) for batch in batches])


@pytest.mark.parametrize("which", ["none", "train", "all splits"])
@pytest.mark.parametrize("name", OF_NODES)
def test_all_nodes_as_roots(name, which, sparsely_split, graphs):
    router = local_router(graphs[1] if which == "all splits" else sparsely_split[which, 1])
    sampler, every = SAMPLERS[name](router, 1), "root_splits" if "random-partition" in name else "root_split"
    sampler = rebuilt(sampler, router, **{every: None})
    dealt = [root for batch in range(sampler.num_batches) for root in members(sampler.sample(0, batch))]
    assert set(dealt) <= set(PERMANENT_ID.tolist())
    if name in COVERING:
        assert sorted(dealt) == PERMANENT_ID.tolist()


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", COVERING)
def test_every_root_once_an_epoch(name, num_ranks, router):
    sampler = SAMPLERS[name](router, num_ranks)
    found = sorted(root for batch in range(sampler.num_batches) for root in members(sampler.sample(1, batch)))
    split = np.array(rich_graph().split)[:, 0]
    expected = np.arange(50) if name == "graph-batches" else PERMANENT_ID[split == SPLIT_TRAIN]
    assert found == expected.tolist()


@pytest.mark.ray
@pytest.mark.parametrize("name", mostly_long(SAMPLERS))
def test_servers_change_nothing(name, router, remote):
    sampler = SAMPLERS[name](remote, 2)
    assert_same(epoch_of(sampler, 1), epoch_of(SAMPLERS[name](router, 2), 1))
    assert_same(loaded(sampler, 2, LoaderOptions(threads=2, prefetch=3)), direct(SAMPLERS[name](router, 2), 2))
    if name in OF_NODES:
        given = [rebuilt(sampler, source, 1, given_roots(name)) for source in (remote, router)]
        assert_same(epoch_of(given[0]), epoch_of(given[1]))


@pytest.mark.ray
def test_a_server_s_error_keeps_its_traceback(remote):
    """The training loop receives an error of a server with the place where it occurred, also after pickling."""
    sampler = NeighborSampler(remote, NeighborOptions(encodings=("rwse-7",)))
    with Loader(sampler) as loader, pytest.raises(ConfigError) as caught:
        next(loader.epoch(0))
    assert str(caught.value).startswith("stage fetch, epoch 0, step 0, rank 0: partition server")
    (note,) = caught.value.__notes__
    assert "partition_owner.py" in note
    assert "pid=" in note  # process id of the server
