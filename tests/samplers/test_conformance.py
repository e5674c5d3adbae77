"""What every sampler keeps, whatever it does: one suite over all of them, in process and through partition servers.

A new sampler is one line of SAMPLERS. Laws: a batch is a function of (epoch, batch) alone; the loader hands batches over in order and
resumes at any step; threads, servers and partitions (but where these are the batches) change no byte; ranks share an epoch's roots; bad
arguments are one clear error.
"""

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from cluster.partition_server import ServerOptions, connect, partition_servers
from cluster.session import SessionOptions, ray_session
from samplers.graph_batches import ArrayGraphStore, GraphBatchOptions, GraphBatchSampler, graphs_to_torch
from samplers.loader import Loader, LoaderOptions
from samplers.minibatch import to_torch
from samplers.neighbor import NeighborOptions, NeighborSampler
from samplers.node2subgraph import Node2SubgraphOptions, Node2SubgraphSampler
from samplers.ppr import PprOptions, PprSampler
from samplers.protocol import Sampler
from samplers.random_partition import RandomPartitionOptions, RandomPartitionSampler
from samplers.router import Router, local_router
from samplers.saint import SaintOptions, SaintSampler
from storage.encode import encode
from storage.encodings import parse_encoding_name
from storage.errors import ConfigError
from storage.graph import StoredGraph, open_graph
from storage.ingest import IngestOptions, ingest
from storage.source import SPLIT_TRAIN
from tests.listed_graph import ListedGraph, random_listed_graph

Build = Callable[[Router, int], Sampler]  # from a router and the number of ranks
NUM_NODES = 160
ENCODINGS = ("rwse-3", "laplacian-4-both_ends")

SAMPLERS: dict[str, Build] = {
    "neighbor": lambda r, n: NeighborSampler(r, NeighborOptions(fanouts=(4, 3), batch_size=8), n),
    "neighbor-induced": lambda r, n: NeighborSampler(r, NeighborOptions((3, 2), 8, edges="induced"), n),
    "neighbor-replace": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, replace=True), n),
    "neighbor-weight": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="weight"), n),
    "neighbor-degree": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="degree"), n),
    "neighbor-labor": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, scheme="labor"), n),
    "neighbor-both": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, direction="both"), n),
    "neighbor-columns": lambda r, n: NeighborSampler(
        r, NeighborOptions((4, 3), 8, edge_columns=("id", "weight", "feature")), n
    ),
    "neighbor-fixed": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, shuffle=False), n),
    "neighbor-encodings": lambda r, n: NeighborSampler(r, NeighborOptions((4, 3), 8, encodings=ENCODINGS), n),
    "random-partition": lambda r, n: RandomPartitionSampler(r, RandomPartitionOptions(num_chunks=5), n),
    "random-partition-unions": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(num_chunks=7, chunks_per_batch=2), n
    ),
    # Two partitions can be dealt in two orders only: a seed whose first epochs differ, from each other and from the next seed's.
    "random-partition-stored": lambda r, n: RandomPartitionSampler(
        r, RandomPartitionOptions(cut="partitions", seed=5), n
    ),
    "node2subgraph": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(max_hops=3, max_nodes=9, batch_size=8), n
    ),
    "node2subgraph-encodings": lambda r, n: Node2SubgraphSampler(
        r, Node2SubgraphOptions(max_hops=3, max_nodes=9, batch_size=8, encodings=ENCODINGS[:1]), n
    ),
    "ppr": lambda r, n: PprSampler(r, PprOptions(epsilon=1e-3, top_k=6, batch_size=8), n),
    "saint": lambda r, n: SaintSampler(r, SaintOptions(num_walks=10, num_presamples=20), n),
    "graph-batches": lambda r, n: GraphBatchSampler(small_graphs(), GraphBatchOptions(max_nodes=40), n),
}
# Samplers that deal every root (or graph) of an epoch exactly once over all ranks.
COVERING = [name for name in SAMPLERS if name != "saint"]
# Samplers whose batches do not depend on how the graph is partitioned.
CUT_BLIND = [name for name in SAMPLERS if name != "random-partition-stored"]

every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def rich_graph() -> ListedGraph:
    rng = np.random.default_rng(11)
    graph = random_listed_graph(NUM_NODES, 1400, seed=11)
    feature = rng.standard_normal((1400, 2)).astype(np.float32)
    return replace(graph, weight=rng.random(1400).tolist(), edge_feature=feature.tolist(), edge_feature_dim=2)


def small_graphs() -> ArrayGraphStore:
    rng = np.random.default_rng(3)
    num_nodes, num_edges = rng.integers(1, 12, 50), rng.integers(0, 20, 50)
    offsets = [np.concatenate([[0], np.cumsum(count)]) for count in (num_nodes, num_edges)]
    ends = (rng.random((2, num_edges.sum())) * np.repeat(num_nodes, num_edges)).astype(np.int32)
    return ArrayGraphStore(*offsets, ends, node_feature=rng.random((num_nodes.sum(), 3)).astype(np.float32))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[int, StoredGraph]:
    """The same graph in 1, 2 and 5 partitions."""
    folder, stored = tmp_path_factory.mktemp("conformance"), {}
    for partitions in (1, 2, 5):
        url = str(folder / str(partitions))
        ingest(rich_graph(), url, IngestOptions(num_partitions=partitions, edge_ids=True, out_edges=True))
        stored[partitions] = open_graph(url)
        for encoding in ENCODINGS:
            stored[partitions], _ = encode(stored[partitions], parse_encoding_name(encoding))
    return stored


@pytest.fixture(scope="module")
def router(graphs) -> Router:
    return local_router(graphs[2])


@pytest.fixture(scope="module")
def remote(graphs) -> Iterator[Router]:
    """A router whose every answer comes from a partition server."""
    options = ServerOptions(local_reads=False, timeout_s=200)
    with ray_session(SessionOptions(num_cpus=2)), partition_servers(graphs[2], options) as servers:
        yield connect(servers)


def content(batch: Any) -> dict[str, Any]:
    """All of a batch, down to the bytes."""
    assert is_dataclass(batch)
    found: dict[str, Any] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, np.ndarray):
            found[field.name] = (value.dtype.str, value.shape, value.tobytes())
        else:
            found[field.name] = value
    return found


def epoch_of(sampler: Sampler, epoch: int = 0) -> list[dict[str, Any]]:
    return [content(sampler.sample(epoch, batch)) for batch in range(sampler.num_batches)]


def tensors_of(sampler: Sampler, batch: Any) -> dict[str, Any]:
    """A loader's batch in the form of `content`."""
    return {
        name: (value.numpy().dtype.str, tuple(value.shape), value.numpy().tobytes())
        if hasattr(value, "numpy")
        else value
        for name, value in vars(batch).items()
    }


def collate_of(sampler: Sampler) -> Callable[[Any], Any]:
    return graphs_to_torch if isinstance(sampler, GraphBatchSampler) else to_torch


def loaded(sampler: Sampler, epoch: int, options: LoaderOptions | None = None, **ranks) -> list[dict[str, Any]]:
    with Loader(sampler, options, collate=collate_of(sampler), **ranks) as loader:
        return [tensors_of(sampler, batch) for batch in loader.epoch(epoch)]


def direct(sampler: Sampler, epoch: int) -> list[dict[str, Any]]:
    collate = collate_of(sampler)
    return [tensors_of(sampler, collate(sampler.sample(epoch, batch))) for batch in range(sampler.num_batches)]


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal to the last byte; else a message that says where, in lines that a person can read."""
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
    """Permanent ids of the roots, or the numbers of the graphs."""
    return (batch.node_id[batch.root_index] if hasattr(batch, "root_index") else batch.graph_id).tolist()


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
        for batch in reversed(range(first.num_batches)):  # another object, another order
            second.sample(2, batch)
            assert_same([content(second.sample(3, batch))], [batches[batch]])

    def test_seeds_differ(self, name, router):
        sampler = SAMPLERS[name](router, 1)
        source = small_graphs() if name == "graph-batches" else router
        other = type(sampler)(source, replace(sampler.options, seed=sampler.options.seed + 1))
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
        arrays = [value for value in vars(batch).values() if isinstance(value, np.ndarray)]
        assert batch.num_bytes == sum(array.nbytes for array in arrays)
        assert batch.num_nodes > 0
        assert batch.num_edges >= 0


@pytest.mark.parametrize("name", CUT_BLIND)
def test_partitions_change_nothing(name, graphs):
    expected = epoch_of(SAMPLERS[name](local_router(graphs[1]), 2), 1)
    for partitions in (2, 5):
        assert_same(epoch_of(SAMPLERS[name](local_router(graphs[partitions]), 2), 1), expected)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", COVERING)
def test_every_root_once_an_epoch(name, num_ranks, router):
    sampler = SAMPLERS[name](router, num_ranks)
    found = sorted(root for batch in range(sampler.num_batches) for root in members(sampler.sample(1, batch)))
    split = np.array(rich_graph().split)[:, 0]
    expected = np.arange(50) if name == "graph-batches" else np.flatnonzero(split == SPLIT_TRAIN)
    assert found == expected.tolist()


@pytest.mark.ray
@every_sampler
def test_servers_change_nothing(name, router, remote):
    sampler = SAMPLERS[name](remote, 2)
    assert_same(epoch_of(sampler, 1), epoch_of(SAMPLERS[name](router, 2), 1))
    assert_same(loaded(sampler, 2, LoaderOptions(threads=2, prefetch=3)), direct(SAMPLERS[name](router, 2), 2))


@pytest.mark.ray
def test_a_server_s_error_keeps_its_traceback(remote):
    """An error in an actor reaches the training loop with the place where it happened, also after it was pickled."""
    sampler = NeighborSampler(remote, NeighborOptions(encodings=("rwse-7",)))
    with Loader(sampler) as loader, pytest.raises(ConfigError) as caught:
        next(loader.epoch(0))
    assert str(caught.value).startswith("stage fetch, epoch 0, step 0, rank 0: partition server")
    (note,) = caught.value.__notes__
    assert "partition_owner.py" in note
    assert "pid=" in note  # Ray's own account of the remote call
