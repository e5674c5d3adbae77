"""Compares the neighbor sampler with its slow reference, for any partitions of the graph."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID, EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests import reference_sampler as reference
from tests.listed_graph import ListedGraph, expected_graph, listed_graphs, random_listed_graph

FANOUTS = ((3, 2), (15, 10, 5), (-1, 2), (0,), (2, 0, 2), (-1,), (1, 1, 1, 1))
CUTS = [(1, "random"), (2, "random"), (4, "random"), (2, "range"), (4, "range"), (2, "ldg"), (4, "ldg"), (4, "metis")]

Route = Callable[..., Router]


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


@pytest.mark.parametrize("edges", ["sampled", "induced"])
@pytest.mark.parametrize("fanouts", FANOUTS)
def test_every_cut_yields_the_reference(
    fanouts: tuple[int, ...], edges: str, graph: ListedGraph, routers: list[Router]
) -> None:
    rows = expected_graph(graph, IngestOptions())
    roots = [node for node, row in sorted(rows.items()) if row.split is not None and row.split[0] == SPLIT_TRAIN]
    options = NeighborOptions(fanouts=fanouts, batch_size=20, edges=edges, seed=7)
    samplers = [NeighborSampler(router, options, num_ranks=2) for router in routers]
    num_batches = samplers[0].num_batches
    for epoch, batch in ((0, 0), (0, num_batches - 1), (3, 1)):
        first = samplers[0].sample(epoch, batch)
        order = reference.root_order(roots, 7, epoch)[reference.share(len(roots), num_batches, batch)]
        expected = reference.neighbor_batch(rows, order, fanouts, 7, epoch, batch, edges)
        reference.assert_is(first, expected, rows)
        assert (first.epoch, first.index) == (epoch, batch)
        for sampler in samplers[1:]:
            reference.same_bytes(sampler.sample(epoch, batch), first)


@given(
    graph=listed_graphs(),
    partitions=st.integers(1, 4),
    fanouts=st.lists(st.integers(-1, 3), min_size=1, max_size=3).map(tuple),
    edges=st.sampled_from(["sampled", "induced"]),
    batch_size=st.integers(1, 5),
    num_ranks=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
)
def test_any_graph_yields_the_reference(
    graph: ListedGraph, partitions: int, fanouts, edges, batch_size, num_ranks, seed, shuffle
) -> None:
    if graph.split is None:
        graph = replace(graph, split=[[SPLIT_TRAIN]] * graph.num_nodes)
    rows = expected_graph(graph, IngestOptions())
    roots = [node for node, row in sorted(rows.items()) if row.split is not None and row.split[0] == SPLIT_TRAIN]
    options = NeighborOptions(fanouts=fanouts, batch_size=batch_size, edges=edges, seed=seed, shuffle=shuffle)
    with tempfile.TemporaryDirectory() as folder:
        ingest(graph, f"{folder}/graph", IngestOptions(num_partitions=min(partitions, graph.num_nodes)))
        sampler = NeighborSampler(local_router(open_graph(f"{folder}/graph")), options, num_ranks)
        if len(roots) < num_ranks:
            with pytest.raises(ConfigError, match="at least one training root per rank"):
                assert sampler.num_batches
            return
        seen = []
        for batch in range(sampler.num_batches):
            found = sampler.sample(5, batch)
            order = reference.root_order(roots, seed, 5) if shuffle else roots
            order = order[reference.share(len(roots), sampler.num_batches, batch)]
            epoch = 5 if shuffle else 0
            reference.assert_is(found, reference.neighbor_batch(rows, order, fanouts, seed, epoch, batch, edges), rows)
            seen += found.node_id[found.root_index].tolist()
        assert sorted(seen) == roots


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_every_root_once_per_epoch(num_ranks: int, routers: list[Router], graph: ListedGraph) -> None:
    assert graph.split is not None
    roots = [node for node in range(graph.num_nodes) if graph.split[node][1] == SPLIT_VALID]
    options = NeighborOptions(fanouts=(2,), batch_size=8, split_set=1, root_split=SPLIT_VALID)
    sampler = NeighborSampler(routers[2], options, num_ranks)
    orders = []
    for epoch in range(2):
        batches = [sampler.sample(epoch, batch) for batch in range(sampler.num_batches)]
        assert min(batch.num_roots for batch in batches) >= 1
        seen = [int(node) for batch in batches for node in batch.node_id[batch.root_index]]
        assert sorted(seen) == roots
        orders.append(seen)
    assert orders[0] != orders[1]


def star(degree: int, **columns) -> ListedGraph:
    """A graph in which node 0 has in-edges from the nodes 1 … degree. Node 0 is the training node."""
    edges = [(source, 0) for source in range(1, degree + 1)]
    split = [[SPLIT_TRAIN], *([[SPLIT_VALID]] * degree)]
    return ListedGraph(num_nodes=degree + 1, edges_listed=edges, split=split, **columns)


def test_isolated_roots_self_loops_and_repeated_edges(route: Route) -> None:
    graph = ListedGraph(
        num_nodes=4, edges_listed=[(1, 1), (1, 1), (2, 1), (2, 1), (2, 1), (0, 2)], split=[[SPLIT_TRAIN]] * 4
    )
    batch = NeighborSampler(route(graph), NeighborOptions(fanouts=(-1,), shuffle=False)).sample(0, 0)
    assert batch.node_id.tolist() == [0, 1, 2, 3]
    assert batch.indptr.tolist() == [0, 0, 5, 6, 6]
    assert batch.indices.tolist() == [1, 1, 2, 2, 2, 0]


def router_id(router: Router, permanent: int) -> int:
    nodes = router.list_split(0, SPLIT_TRAIN)
    return int(nodes.node[nodes.original_id.tolist().index(permanent)])


class Hub:
    """A graph in which node 0 has a million in-edges."""

    info = SourceInfo(name="hub", num_nodes=1_000_001, num_edges=1_000_000, num_split_sets=1)

    def edges(self, chunk_edges: int):
        for start in range(1, 1_000_001, chunk_edges):
            src = np.arange(start, min(start + chunk_edges, 1_000_001))
            yield EdgeChunk(src=src, dst=np.zeros_like(src))

    def nodes(self, chunk_nodes: int):
        for start in range(0, 1_000_001, chunk_nodes):
            row = np.arange(start, min(start + chunk_nodes, 1_000_001))
            yield NodeChunk(split=np.where(row == 0, SPLIT_TRAIN, SPLIT_VALID).astype(np.int8)[:, None])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Router:
    url = str(tmp_path_factory.mktemp("hub") / "graph")
    ingest(Hub(), url, IngestOptions(num_partitions=2, partitioner="range"))
    return local_router(open_graph(url))


@pytest.mark.parametrize("fanout", [15, 48, 49, 5000, 40_000])
def test_a_hub_is_drawn_from_as_the_reference_says(fanout: int, hub: Router) -> None:
    for key in (0, 1):
        found = hub.sample_neighbors(np.array([0]), fanout, key)
        assert found.count.tolist() == [fanout]
        expected = reference.floyd(reference.hash64(key, 0), 1_000_000, fanout)
        assert (found.neighbor - 1).tolist() == expected


def test_a_hub_costs_no_quadratic_time(hub: Router) -> None:
    def seconds(fanout: int) -> float:
        best = float("inf")
        for key in range(3):
            start = time.perf_counter()
            hub.sample_neighbors(np.array([0]), fanout, key)
            best = min(best, time.perf_counter() - start)
        return best

    seconds(50)  # compile first
    assert seconds(15) < 0.05  # drawing does not read the whole list
    # If the time were quadratic, drawing 200,000 would take 10^10 steps and many seconds.
    assert seconds(200_000) < 1.0


def test_a_fanout_far_beyond_any_degree_costs_nothing(route: Route) -> None:
    router = route(star(5))
    lists = router.sample_neighbors(np.array([router_id(router, 0)]), 2**40, 0)
    assert lists.count.tolist() == [5]


def test_labels_and_splits_may_be_absent(route: Route) -> None:
    router = route(star(3))
    batch = NeighborSampler(router, NeighborOptions(fanouts=(2,))).sample(0, 0)
    assert batch.feature is batch.label is None
    assert batch.split is not None
    assert batch.split[batch.root_index].tolist() == [SPLIT_TRAIN]


def test_given_roots_are_sampled_like_those_of_a_batch(routers: list[Router]) -> None:
    for router in routers[:3]:
        sampler = NeighborSampler(router, NeighborOptions(fanouts=(3, 2), batch_size=20))
        roots = sampler.roots_of(2, 1)
        whole = sampler.sample(2, 1)
        assert roots.tolist() == whole.node_id[whole.root_index].tolist()
        reference.same_bytes(sampler.sample_roots(roots, 2, 1), whole)
        reference.same_bytes(sampler.sample_roots(roots.astype(">i4"), 2, 1), whole)
        three = np.array([299, 0, 150])
        batch = sampler.sample_roots(three)
        assert (batch.epoch, batch.index) == (0, 0)
        assert batch.node_id[batch.root_index].tolist() == three.tolist()
        assert sampler.sample_roots(np.empty(0, np.int64)).num_nodes == 0
        with pytest.raises(ConfigError, match=r"batch: expected a number in"):
            sampler.roots_of(0, sampler.num_batches)


@pytest.mark.parametrize("fits", [True, False])
def test_given_roots_that_cannot_be(fits: bool, routers: list[Router], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = NeighborSampler(routers[1], NeighborOptions(fanouts=(2,)))
    monkeypatch.setattr(sampler._maps["node"], "fits", fits)
    for wrong, message in (
        (
            [3, 300],
            "roots: expected ids of nodes of the graph listed, as its source numbers them, got 300, which it does not",
        ),
        ([-1], "roots: .* got -1"),
        ([2**40], "roots: .* got 1099511627776"),
        ([5, 7, 5], "roots: expected distinct nodes, got node 5 twice"),
        ([0.5], "expected integer node ids, got dtype float64"),
    ):
        with pytest.raises(ConfigError, match=message):
            sampler.sample_roots(np.array(wrong))
    assert sampler.sample_roots(np.array([5, 7])).num_roots == 2
