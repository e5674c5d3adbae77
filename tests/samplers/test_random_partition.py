"""The random-partition sampler against its slow reference, and against what chance should give."""

import tempfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from samplers.plans import chunk_share
from samplers.random_partition import RandomPartitionOptions, RandomPartitionSampler
from samplers.router import Router, local_router
from storage.errors import ConfigError
from storage.graph import open_graph
from storage.ingest import IngestOptions, ingest
from storage.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from tests import reference_sampler as reference
from tests.listed_graph import ListedGraph, expected_graph, listed_graphs, random_listed_graph

CUTS = [(1, "random"), (2, "random"), (4, "random"), (4, "range"), (4, "ldg"), (4, "metis")]


@pytest.fixture(scope="module")
def graph() -> ListedGraph:
    return random_listed_graph(300, 2400)


@pytest.fixture(scope="module")
def routers(graph: ListedGraph, tmp_path_factory: pytest.TempPathFactory) -> list[Router]:
    routers = []
    for count, partitioner in CUTS:
        url = str(tmp_path_factory.mktemp("cut") / "graph")
        ingest(graph, url, IngestOptions(num_partitions=count, partitioner=partitioner))
        routers.append(local_router(open_graph(url)))
    return routers


def expected_batch(rows, options: RandomPartitionOptions, num_ranks: int, epoch: int, batch: int) -> reference.Expected:
    share = chunk_share(batch, options.num_chunks, num_ranks)
    epoch = epoch if options.shuffle else 0
    node = reference.chunk_nodes(rows, options.seed, epoch, share.chunk, options.num_chunks)
    roots = [i for i, one in enumerate(node) if rows[one].split[options.split_set] in options.root_splits]
    return reference.Expected(
        node, reference.induced(rows, node), roots[reference.share(len(roots), share.parts, share.part)]
    )


@pytest.mark.parametrize(("num_chunks", "num_ranks"), [(1, 1), (1, 3), (2, 1), (7, 1), (7, 3), (64, 2), (300, 1)])
def test_every_cut_yields_the_reference(
    num_chunks: int, num_ranks: int, graph: ListedGraph, routers: list[Router]
) -> None:
    rows = expected_graph(graph, IngestOptions())
    options = RandomPartitionOptions(num_chunks=num_chunks, seed=3, root_splits=(SPLIT_TRAIN, SPLIT_TEST), split_set=1)
    samplers = [RandomPartitionSampler(router, options, num_ranks) for router in routers]
    num_batches = samplers[0].num_batches
    for epoch, batch in {(0, 0), (2, num_batches // 2), (2, num_batches - 1)}:
        first = samplers[0].sample(epoch, batch)
        reference.assert_is(first, expected_batch(rows, options, num_ranks, epoch, batch), rows, split_set=1)
        for sampler in samplers[1:]:
            reference.same_bytes(sampler.sample(epoch, batch), first)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    graph=listed_graphs(),
    partitions=st.integers(1, 4),
    num_chunks=st.integers(1, 12),
    num_ranks=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
)
def test_any_graph_yields_the_reference(graph: ListedGraph, partitions, num_chunks, num_ranks, seed, shuffle) -> None:
    if graph.split is None:
        graph = replace(graph, split=[[SPLIT_TRAIN]] * graph.num_nodes)
    rows = expected_graph(graph, IngestOptions())
    options = RandomPartitionOptions(num_chunks=min(num_chunks, graph.num_nodes), seed=seed, shuffle=shuffle)
    with tempfile.TemporaryDirectory() as folder:
        ingest(graph, f"{folder}/graph", IngestOptions(num_partitions=min(partitions, graph.num_nodes)))
        sampler = RandomPartitionSampler(local_router(open_graph(f"{folder}/graph")), options, num_ranks)
        roots, nodes = [], set()
        for batch in range(sampler.num_batches):
            found = sampler.sample(4, batch)
            reference.assert_is(found, expected_batch(rows, options, num_ranks, 4, batch), rows)
            roots += found.node_id[found.root_index].tolist()
            nodes |= set(found.node_id.tolist())
        assert nodes == set(rows)
        assert sorted(roots) == [node for node, row in sorted(rows.items()) if row.split[0] == SPLIT_TRAIN]


def test_one_chunk_is_the_whole_graph(routers: list[Router], graph: ListedGraph) -> None:
    batch = RandomPartitionSampler(routers[2], RandomPartitionOptions(num_chunks=1)).sample(0, 0)
    assert batch.num_nodes == graph.num_nodes
    assert batch.num_edges == len(graph.edges_listed)


def test_empty_chunks_are_empty_batches(routers: list[Router]) -> None:
    options = RandomPartitionOptions(num_chunks=300)
    for router in routers:
        sampler = RandomPartitionSampler(router, options)
        empty = [batch for batch in map(lambda b: sampler.sample(0, b), range(300)) if batch.num_nodes == 0]
        assert empty
        for batch in empty:
            assert batch.indptr.tolist() == [0]
            assert batch.num_edges == batch.num_roots == 0
            assert batch.feature is not None
            assert batch.feature.shape == (0, 4)


def test_epochs_cut_anew_and_only_with_shuffling(routers: list[Router]) -> None:
    def cut(epoch: int, *, shuffle: bool) -> bytes:
        options = RandomPartitionOptions(num_chunks=4, shuffle=shuffle)
        return RandomPartitionSampler(routers[0], options).sample(epoch, 0).node_id.tobytes()

    assert cut(0, shuffle=True) != cut(1, shuffle=True)
    assert cut(0, shuffle=False) == cut(1, shuffle=False) == cut(0, shuffle=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Router:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 20_000, (100_000, 2)).tolist()
    graph = ListedGraph(num_nodes=20_000, edges_listed=[tuple(edge) for edge in edges], split=[[SPLIT_TRAIN]] * 20_000)
    url = str(tmp_path_factory.mktemp("large") / "graph")
    ingest(graph, url, IngestOptions(num_partitions=2))
    return local_router(open_graph(url))


@pytest.mark.parametrize("num_chunks", [2, 10, 64])
def test_chunk_sizes_and_surviving_edges_are_as_chance_has_it(num_chunks: int, large: Router) -> None:
    sampler = RandomPartitionSampler(large, RandomPartitionOptions(num_chunks=num_chunks, seed=1))
    batches = [sampler.sample(0, batch) for batch in range(num_chunks)]
    sizes = [batch.num_nodes for batch in batches]
    assert sum(sizes) == 20_000
    assert chisquare(sizes).pvalue > 1e-4
    kept = sum(batch.num_edges for batch in batches)
    # Self-loops always survive; edges share nodes, so the variance exceeds the binomial one a little.
    low, high = binom.interval(1 - 1e-6, 100_000, 1 / num_chunks)
    assert 0.98 * low < kept < 1.02 * high


def test_two_nodes_meet_about_once_in_p_epochs(large: Router) -> None:
    sampler = RandomPartitionSampler(large, RandomPartitionOptions(num_chunks=4, seed=1))
    together = 0
    for epoch in range(100):
        chunks = [set(sampler.sample(epoch, batch).node_id[:10].tolist()) for batch in range(4)]
        together += any({0, 1} <= chunk for chunk in chunks)
    low, high = binom.interval(1 - 1e-4, 100, 1 / 4)
    assert low <= together <= high


REFUSED: dict[str, tuple[Callable[[Router], object], str]] = {
    "no chunk": (lambda _: RandomPartitionOptions(num_chunks=0), "num_chunks: expected at least 1, got 0; set --chunks"),
    "no root": (lambda _: RandomPartitionOptions(root_splits=()), "expected codes of train, valid or test, got ()"),
    "roots of no split": (lambda _: RandomPartitionOptions(root_splits=(SPLIT_NONE,)), "got (0,)"),
    "roots of an unknown split": (lambda _: RandomPartitionOptions(root_splits=(SPLIT_VALID, 4)), "got (2, 4)"),
    "more chunks than nodes": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=301)),
        "expected at most one per node (300), got 301; set --chunks",
    ),
    "unknown split set": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(split_set=2)),
        "expected one of the graph's 2, got 2",
    ),
    "negative split set": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(split_set=-1)),
        "expected one of the graph's 2, got -1",
    ),
    "batch that does not exist": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=3), 2).sample(0, 4),
        "expected a number in [0, 4), got 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(name: str, routers: list[Router]) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        build(routers[0])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
