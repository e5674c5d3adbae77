"""Tests sampling from the past of each root. Batches are compared with a slow reference and with the edges of the source."""

import copy
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.format.source import SPLIT_TRAIN
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests import reference_sampler as reference
from tests.listed_graph import TIMES, ListedGraph, expected_graph, listed_graphs, random_listed_graph

NUM_NODES, NUM_EDGES = 200, 2400


def timed_graph(seed: int = 0) -> ListedGraph:
    rng = np.random.default_rng(seed)
    graph = random_listed_graph(NUM_NODES, NUM_EDGES, seed, feature_dim=2)
    times = rng.integers(0, 60, NUM_EDGES).tolist()
    return replace(
        graph,
        edge_time=times,
        node_time=rng.integers(10, 60, NUM_NODES).tolist(),
        weight=rng.random(NUM_EDGES).tolist(),
    )


@pytest.fixture(scope="module")
def graph() -> ListedGraph:
    return timed_graph()


@pytest.fixture(scope="module")
def routers(graph: ListedGraph, tmp_path_factory: pytest.TempPathFactory) -> list[Router]:
    routers = []
    for count, partitioner in ((1, "random"), (3, "random"), (4, "ldg")):
        url = str(tmp_path_factory.mktemp("cut") / "graph")
        ingest(graph, url, IngestOptions(num_partitions=count, partitioner=partitioner, out_edges=True, edge_ids=True))
        routers.append(local_router(open_graph(url)))
    return routers


def assert_is_past(batch: MiniBatch, expected: reference.ExpectedPast, rows) -> None:
    reference.assert_is(batch, expected, rows)
    assert batch.root_time is not None
    assert batch.edge_time is not None
    assert batch.root_time.tolist() == expected.root_time
    assert batch.edge_time.tolist() == expected.edge_time


def late_edges(batch: MiniBatch, *, before: bool) -> int:
    """The number of a batch's edges that are later than their root."""
    owner = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    assert batch.root_time is not None
    assert np.array_equal(batch.root_time[owner], batch.root_time[batch.indices])  # both ends have one root time
    late = batch.edge_time >= batch.root_time[owner] if before else batch.edge_time > batch.root_time[owner]
    return int(late.sum())


@pytest.mark.parametrize("scheme", ["uniform", "last"])
@pytest.mark.parametrize("time", ["until", "before"])
@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1), (2, 1, 2)])
def test_every_cut_yields_the_reference(time, scheme, fanouts, graph, routers) -> None:
    rows = expected_graph(graph, IngestOptions())
    roots = [node for node, row in sorted(rows.items()) if row.split[0] == SPLIT_TRAIN]
    options = NeighborOptions(fanouts, 20, time=time, scheme=scheme, seed=7, edge_columns=("time",))
    samplers = [NeighborSampler(router, options, num_ranks=2) for router in routers]
    num_batches = samplers[0].num_batches
    for epoch, batch in ((0, 0), (3, num_batches - 1)):
        order = reference.root_order(roots, 7, epoch)[reference.share(len(roots), num_batches, batch)]
        own = [(node, rows[node].time) for node in order]
        expected = reference.past_batch(rows, own, fanouts, 7, epoch, batch, time, scheme)
        for sampler in samplers:
            found = sampler.sample(epoch, batch)
            assert_is_past(found, expected, rows)
            assert late_edges(found, before=time == "before") == 0


@given(
    graph=listed_graphs(),
    edge_time=st.lists(TIMES, min_size=40, max_size=40),
    partitions=st.integers(1, 3),
    fanouts=st.lists(st.integers(-1, 3), min_size=1, max_size=3).map(tuple),
    roots=st.lists(st.tuples(st.integers(0, 11), TIMES | st.just(-(2**63))), min_size=1, max_size=5, unique=True),
    time=st.sampled_from(["until", "before"]),
    scheme=st.sampled_from(["uniform", "last"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_graph_yields_the_reference(graph, edge_time, partitions, fanouts, roots, time, scheme, seed) -> None:
    """Roots are pairs of nodes and times that the caller gives. A node may occur with several times."""
    if graph.node_time is None:
        graph = replace(graph, edge_time=edge_time[: len(graph.edges_listed)])
    rows = expected_graph(graph, IngestOptions())
    permanent = sorted(rows)
    roots = list(dict.fromkeys((permanent[node % len(permanent)], when) for node, when in roots))
    options = NeighborOptions(fanouts, time=time, scheme=scheme, seed=seed, edge_columns=("time",))
    with tempfile.TemporaryDirectory() as folder:
        ingest(graph, f"{folder}/graph", IngestOptions(num_partitions=min(partitions, graph.num_nodes)))
        sampler = NeighborSampler(local_router(open_graph(f"{folder}/graph")), options)
        node, when = (np.array(column) for column in zip(*roots, strict=True))
        found = sampler.sample_roots(node, epoch=2, batch=3, time=when)
        assert_is_past(found, reference.past_batch(rows, roots, fanouts, seed, 2, 3, time, scheme), rows)


@pytest.mark.parametrize(
    "options",
    [
        NeighborOptions((4, 3), 16, time="until"),
        NeighborOptions((4, 3), 16, time="before", scheme="last"),
        NeighborOptions((4, 3), 16, time="until", scheme="weight"),
        NeighborOptions((4, 3), 16, time="until", scheme="weight", replace=True),
        NeighborOptions((4, 3), 16, time="before", scheme="labor"),
        NeighborOptions((4, 3), 16, time="until", replace=True),
        NeighborOptions((4, 3), 16, time="before", direction="out"),
        NeighborOptions((4, 3), 16, time="before", direction="both"),
        NeighborOptions((4, 3), 16, time="before", direction="out", scheme="last"),
        NeighborOptions((4, 3), 16, time="until", as_of=25),
    ],
    ids=lambda options: f"{options.time}-{options.scheme}-{options.direction}-{options.replace}-{options.as_of}",
)
def test_no_draw_looks_ahead_and_no_cut_changes_it(options, graph, routers) -> None:
    """Looks up every sampled edge in the source's table, by its id. Batches that are drawn together equal batches that are drawn alone."""
    options = replace(options, edge_columns=("id", "time"))
    epochs = []
    for router in routers:
        sampler = NeighborSampler(router, options)
        batches = [sampler.sample(1, batch) for batch in range(3)]
        together = [
            drawn.complete(router.fetch(drawn.node, **vars(drawn.columns))) for drawn in sampler.draw(1, [0, 1, 2])
        ]
        for one, other in zip(batches, together, strict=True):
            reference.same_bytes(one, other)
        epochs.append(batches)
    for batches in epochs[1:]:
        for one, other in zip(batches, epochs[0], strict=True):
            reference.same_bytes(one, other)
    table = np.asarray(graph.edge_time)
    for batch in epochs[0]:
        assert batch.num_edges > 20
        assert np.array_equal(table[batch.edge_id], batch.edge_time)
        assert late_edges(batch, before=options.time == "before") == 0
        own = options.as_of or np.asarray(graph.node_time)[batch.node_id[batch.root_index]]
        assert np.all(batch.root_time[batch.root_index] == own)
    assert sum(batch.num_nodes - len(np.unique(batch.node_id)) for batch in epochs[0]) > 0 or options.as_of is not None


def test_draws_at_two_times_are_independent(routers) -> None:
    """A node has the same list at two times, but the draws at these times are independent."""
    options = NeighborOptions((1,), time="until")
    node = np.arange(NUM_NODES)
    sampler = NeighborSampler(routers[0], options)
    drawn = [sampler.sample_roots(node, time=np.full(NUM_NODES, when)) for when in (60, 61)]
    assert drawn[0].num_edges == drawn[1].num_edges
    first, second = (batch.node_id[batch.indices] for batch in drawn)
    assert 0.05 < np.mean(first == second) < 0.6


def test_what_cannot_be(routers, tmp_path: Path) -> None:
    for wrong, message in (
        ({"time": "until", "edges": "induced"}, "time: expected sampled edges"),
        ({"time": "until", "scheme": "degree"}, "time: expected sampled edges"),
        ({"as_of": 3}, "as_of: expected time until or before"),
        ({"scheme": "last", "replace": True}, "replace: expected a scheme other than"),
    ):
        with pytest.raises(ConfigError, match=message):
            NeighborOptions((2,), **wrong)
    with pytest.raises(ConfigError, match="scheme 'last': expected in-edges or out-edges alone"):
        NeighborSampler(routers[0], NeighborOptions((2,), scheme="last", direction="both"))
    ends = np.array([0, 1]), np.array([1, 2])
    ingest(ArrayGraph("plain", 3, *ends), str(tmp_path / "plain"))
    ingest(ArrayGraph("timed", 3, *ends, edge_time=np.array([5, 6])), str(tmp_path / "timed"))
    plain, timed = (local_router(open_graph(str(tmp_path / name))) for name in ("plain", "timed"))
    for options in (
        NeighborOptions((2,), time="until"),
        NeighborOptions((2,), scheme="last"),
        NeighborOptions((2,), edge_columns=("time",)),
    ):
        with pytest.raises(ConfigError, match="times: the graph's edges have none"):
            NeighborSampler(plain, options)
    with pytest.raises(ConfigError, match="times: the graph's edges have none"):
        plain.sample_neighbors(np.array([1]), 1, 0, until=np.array([3]))
    sampler = NeighborSampler(timed, NeighborOptions((2,), time="until"))
    with pytest.raises(ConfigError, match="time: expected roots with times, the graph's nodes have none"):
        sampler.sample(0, 0)
    for given_time, message in ((np.array([5.5]), "got float64"), (np.array([5, 6]), "for each of the 1 roots")):
        with pytest.raises(ConfigError, match=message):
            sampler.sample_roots(np.array([2]), time=given_time)
    with pytest.raises(ConfigError, match="expected distinct nodes, got node 2 twice"):
        sampler.sample_roots(np.array([2, 2]), time=np.array([5, 5]))
    assert sampler.sample_roots(np.array([2, 2]), time=np.array([5, 6])).num_edges == 1
    around = NodeList(np.array([2]), np.array([2]), np.array([6]))
    assert [drawn.node.tolist() for drawn in sampler.draw_around([around], 0, [0])] == [[2, 1]]


def test_times_may_be_given_with_the_roots(routers, graph) -> None:
    """Given times are part of the sampler's data. When roots are divided into batches, each root keeps its time."""
    roots, when = np.array([30, 5, 77]), np.array([20, 0, 59])
    options = NeighborOptions((2,), 2, time="until")
    made = [NeighborSampler(routers[1], options, 1, roots, times) for times in (when, when[::-1])]
    dealt = {}
    for batch in range(made[0].num_batches):
        found = made[0].sample(0, batch)
        dealt |= dict(
            zip(found.node_id[found.root_index].tolist(), found.root_time[found.root_index].tolist(), strict=True)
        )
    assert dealt == dict(zip(roots.tolist(), when.tolist(), strict=True))
    assert made[0].content_hash != made[1].content_hash
    assert made[0].content_hash == NeighborSampler(routers[1], options, 1, roots[::-1], when[::-1]).content_hash


@pytest.mark.long
def test_of_a_million_sampled_edges_none_is_later_than_its_root(tmp_path: Path) -> None:
    """This check does not use the sampler's code. It looks up every sampled edge in the source's table and follows every path of a batch back to its roots."""
    num_nodes, num_edges = 50_000, 1_000_000
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, num_nodes, num_edges), (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    time = rng.integers(1_500_000_000, 1_700_000_000, num_edges)
    node_time = rng.integers(1_550_000_000, 1_700_000_000, num_nodes)
    source = ArrayGraph("payments", num_nodes, src, dst, edge_time=time, node_time=node_time)
    ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=4, edge_ids=True))
    options = NeighborOptions((15, 10, 5), 512, time="before", edge_columns=("id",))
    sampler = NeighborSampler(local_router(open_graph(str(tmp_path / "graph"))), options)
    sampled = late = wrong_ends = strangers = 0
    for batch in (sampler.sample(0, number) for number in range(sampler.num_batches)):
        destination = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
        # For each node, finds the latest root to which it has a path. A node was found by an edge to a node that comes before it.
        cut_off = np.full(batch.num_nodes, -1)
        cut_off[batch.root_index] = node_time[batch.node_id[batch.root_index]]
        earliest = np.where(cut_off >= 0, cut_off, np.iinfo(np.int64).max)
        for hop in range(3):
            of_hop = batch.hop[destination] == hop
            np.minimum.at(earliest, batch.indices[of_hop], earliest[destination[of_hop]])
        wrong_ends += int(np.sum(src[batch.edge_id] != batch.node_id[batch.indices]))
        wrong_ends += int(np.sum(dst[batch.edge_id] != batch.node_id[destination]))
        late += int(np.sum(time[batch.edge_id] >= earliest[destination]))
        strangers += int(np.sum(earliest != batch.root_time))
        sampled += batch.num_edges
        if sampled >= 1_000_000:
            break
    print(f"{sampled:,} sampled edges, {late} later than a root that they reach")
    assert sampled >= 1_000_000
    assert (late, wrong_ends, strangers) == (0, 0, 0)


def test_ages_are_encoded_by_graphmixers_formula(routers: list[Router]) -> None:
    """Compares encodings with z_i = cos(age · α^(-(i-1)/β)), α = β = √d, in float64 and with loops. Ages are computed from the edges of the batch."""
    dim, unit = 9, 2.5
    options = NeighborOptions((3, 2), 40, time="before", recency_dim=dim, recency_unit=unit, edge_columns=("time",))
    plain = replace(options, recency_dim=0, recency_unit=1.0)
    other = NeighborSampler(routers[2], replace(options, edge_columns=()))
    for number in range(2):
        batch = NeighborSampler(routers[0], options).sample(1, number)
        as_before = NeighborSampler(routers[0], plain).sample(1, number)
        assert batch.feature.shape == (batch.num_nodes, 2 + dim)
        assert batch.feature[:, :2].tobytes() == as_before.feature.tobytes()
        newest: dict[int, int] = {}
        for source, time in zip(batch.indices.tolist(), batch.edge_time.tolist(), strict=True):
            newest[source] = max(newest.get(source, time), time)
        for node in range(batch.num_nodes):
            age = int(batch.root_time[node]) - newest[node] if node in newest else 0
            assert age > 0 or node not in newest
            expected = [math.cos(age / unit * math.sqrt(dim) ** (-i / math.sqrt(dim))) for i in range(dim)]
            assert batch.feature[node, 2:] == pytest.approx(expected, abs=1e-6)
        elsewhere = other.sample(1, number)
        assert elsewhere.edge_time is None
        assert elsewhere.feature.tobytes() == batch.feature.tobytes()


def test_ages_are_the_features_of_nodes_without_any(routers: list[Router]) -> None:
    options = NeighborOptions((3, 2), 40, time="before", recency_dim=9)
    beside = NeighborSampler(routers[0], options).sample(1, 0).feature
    without = copy.copy(routers[0])
    without.manifest = replace(without.manifest, feature_dim=0)
    assert NeighborSampler(without, options).sample(1, 0).feature.tobytes() == beside[:, 2:].tobytes()


def test_ages_need_times() -> None:
    with pytest.raises(ConfigError, match="recency_dim: expected time until or before beside it, got all and 8"):
        NeighborOptions(recency_dim=8)
    with pytest.raises(ConfigError, match="recency_unit"):
        NeighborOptions(time="until", recency_dim=8, recency_unit=0.0)


def test_the_past_is_that_of_pygs_temporal_sampling(graph: ListedGraph, tmp_path: Path) -> None:
    """Nodes have times, and all neighbors are drawn. Each root gets the same edges as from torch-sparse's kernel, which PyG's temporal loaders use."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_sparse", reason="PyG's temporal sampling is compiled, and not installed here")
    untimed = replace(graph, edge_time=None)
    ingest(untimed, str(tmp_path / "graph"), IngestOptions(num_partitions=3))
    roots = np.unique(np.array(graph.node_time), return_index=True)[1][::4].copy()  # roots with different times
    sampler = NeighborSampler(
        local_router(open_graph(str(tmp_path / "graph"))), NeighborOptions((-1, -1), time="until")
    )
    batch = sampler.sample_roots(roots)
    target = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    as_of = batch.root_time[target].tolist()
    ours = set(zip(batch.node_id[batch.indices].tolist(), batch.node_id[target].tolist(), as_of, strict=True))

    edges = torch.tensor(graph.edges_listed).t()
    order = edges[1].argsort(stable=True)
    degree = torch.bincount(edges[1], minlength=NUM_NODES)
    colptr, row = torch.cat([degree.new_zeros(1), degree.cumsum(0)]), edges[0][order]
    time, name = torch.tensor(graph.node_time), ("n", "to", "n")
    nodes, sources, targets, _ = torch.ops.torch_sparse.hetero_temporal_neighbor_sample(
        ["n"], [name], {"n__to__n": colptr}, {"n__to__n": row}, {"n": torch.from_numpy(roots)}, {"n__to__n": [-1, -1]},
        {"n": time}, 2, False, True,
    )  # fmt: skip
    of_root = time[nodes["n"][: len(roots)]].tolist()
    theirs = set()
    root_time = dict(enumerate(of_root))
    for source, end in zip(sources["n__to__n"].tolist(), targets["n__to__n"].tolist(), strict=True):
        root_time[source] = root_time[end]  # a node has a copy for each root
        theirs.add((int(nodes["n"][source]), int(nodes["n"][end]), root_time[end]))
    assert ours == theirs
    assert len({when for *_, when in ours}) > 5
