"""Compares the cost model with real batches: the bytes of their messages, and the effects of more workers and of caches."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.plan.cost_model import (
    BatchShape,
    Degrees,
    Link,
    Rates,
    Widths,
    Workload,
    all_reduce_bytes,
    check_points,
    chunk_traffic,
    draw_traffic,
    early_batches,
    expected_batch,
    fit_rates,
    free_cores,
    load_cpu_s,
    load_points,
    neighbor_traffic,
    planned_share,
    planned_traffic,
    point_batch,
    predict,
    random_halo,
    remote_traffic,
    row_traffic,
    step_cost,
)
from graphmill.models.geco.options import GECOConfig
from graphmill.models.parallel.shards import Shards
from graphmill.models.parallel_cost import sent_bytes
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.traffic import COLUMNS, Traffic, WatchedLocal, WatchedRemote
from graphmill.samplers.loading.row_schedule import RowSchedule
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.vocabulary.options import NeighborOptions, RandomPartitionOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

PARTITIONS = 3


def totals(traffic: Traffic) -> dict[str, int]:
    return dict(zip(COLUMNS, traffic.by_partition().sum(axis=0).tolist(), strict=True))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    url = tmp_path_factory.mktemp("cost") / "graph"
    source = SyntheticGraph(SyntheticOptions(num_nodes=6000, mean_degree=20, feature_dim=12))
    ingest(source, str(url), IngestOptions(num_partitions=PARTITIONS, partitioner="random"))
    return open_graph(str(url))


@pytest.fixture(scope="module")
def degrees(graph: StoredGraph) -> Degrees:
    return Degrees.of(np.concatenate([np.diff(partition.indptr) for partition in graph.partitions()]))


def watched_router(graph: StoredGraph, kind: type) -> tuple[Router, Traffic]:
    traffic, tables = Traffic(PARTITIONS), NodeTables(graph)
    owners = [
        kind(LocalOwner(PartitionOwner(partition, graph.manifest.num_nodes, tables)), index, traffic)
        for index, partition in enumerate(graph.partitions())
    ]
    return Router(graph.manifest, owners), traffic


@pytest.mark.parametrize("kind", [WatchedRemote, WatchedLocal])
def test_bytes_of_neighbor_batches_are_those_of_their_messages(graph: StoredGraph, kind: type) -> None:
    router, traffic = watched_router(graph, kind)
    sampler = NeighborSampler(router, NeighborOptions(fanouts=(4, 3), batch_size=50))
    roots = sampler.roots_of(0, 0)
    before = totals(traffic)
    batch = sampler.sample(0, 0)
    found = {name: value - before[name] for name, value in totals(traffic).items()}

    assert batch.hop is not None
    per_hop = np.bincount(batch.hop, minlength=3)
    ends = np.cumsum(per_hop)
    drawn = [int(batch.indptr[ends[0]]), int(batch.indptr[ends[1]] - batch.indptr[ends[0]])]
    assert per_hop[0] == len(roots)
    shape = BatchShape(tuple(per_hop[:2].tolist()), tuple(drawn), batch.num_nodes)
    model = neighbor_traffic(shape, Widths(feature=12 * 4, index=2), PARTITIONS)
    if kind is WatchedRemote:
        assert found["sent_bytes"] == model.sent
        assert found["received_bytes"] == model.received
        assert found["remote_requests"] == model.requests
        assert found["local_bytes"] == 0
    else:
        assert found["local_bytes"] == model.total
        assert found["remote_requests"] == 0


def test_bytes_of_chunk_batches_are_those_of_their_messages(graph: StoredGraph) -> None:
    router, traffic = watched_router(graph, WatchedRemote)
    sampler = RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=5))
    before = totals(traffic)
    batch = sampler.sample(0, 0)
    found = {name: value - before[name] for name, value in totals(traffic).items()}
    model = chunk_traffic(batch.num_nodes, batch.num_edges, Widths(feature=12 * 4, index=2), PARTITIONS)
    assert (found["sent_bytes"], found["received_bytes"]) == (model.sent, model.received)
    assert found["remote_requests"] == model.requests


def test_expected_batches_are_near_real_ones(graph: StoredGraph, degrees: Degrees) -> None:
    assert degrees.num_nodes == graph.manifest.num_nodes
    assert degrees.num_edges == pytest.approx(graph.manifest.num_edges)
    router, _ = watched_router(graph, WatchedLocal)
    sampler = NeighborSampler(router, NeighborOptions(fanouts=(5, 3), batch_size=60))
    batches = [sampler.sample(0, number) for number in range(6)]
    shape, _ = expected_batch(degrees, float(np.mean([batch.num_roots for batch in batches])), (5, 3))
    assert shape.nodes == pytest.approx(np.mean([batch.num_nodes for batch in batches]), rel=0.08)
    assert shape.edges == pytest.approx(np.mean([batch.num_edges for batch in batches]), rel=0.08)


def test_batches_grow_with_fanouts_and_never_beyond_the_graph(degrees: Degrees) -> None:
    sizes = [expected_batch(degrees, 100, fanouts)[0].nodes for fanouts in ((), (2,), (5,), (5, 5), (-1, -1, -1, -1))]
    assert sizes == sorted(sizes)
    assert sizes[0] == pytest.approx(100)
    assert sizes[-1] <= degrees.num_nodes
    even = expected_batch(Degrees(np.array([30.0]), np.array([1e9])), 1, (3, 2))[0]
    assert even.nodes == pytest.approx(1 + 3 + 6)  # in so large a graph no node is drawn twice
    with pytest.raises(ConfigError, match="roots: expected 1 to"):
        expected_batch(degrees, degrees.num_nodes + 1, (5,))


def test_power_law_has_the_mean_asked_for() -> None:
    law = Degrees.power_law(1e6, 30e6)
    assert law.num_nodes == pytest.approx(1e6)
    assert law.num_edges == pytest.approx(30e6)
    assert law.degree.min() >= 15


def test_one_worker_needs_no_communication() -> None:
    assert all_reduce_bytes(1e6, 1) == 0
    assert all_reduce_bytes(1e6, 4) == 6e6
    workload = Workload("small", 1e5, 3e6, 400, roots=100)
    remote, cost = predict(workload, 1, Link(10), Rates())
    assert (remote.total, remote.requests, remote.rounds) == (0, 0, 0)
    assert (cost.reduce_s, cost.link_s) == (0, 0)
    assert random_halo(workload.degrees, 1) == 0
    config = GECOConfig(in_dim=4, out_dim=3, width=8)
    assert set(sent_bytes(config, Shards.even(100, 1), 0, 0, 0).values()) == {0}


def test_more_nodes_more_bytes_faster_links_fewer_seconds() -> None:
    workload = Workload("small", 1e6, 3e7, 400, roots=100)
    moved = [predict(workload, nodes, Link(10), Rates())[0].total for nodes in (1, 2, 4, 8, 64)]
    assert moved == sorted(moved)
    seconds = [predict(workload, 8, Link(speed), Rates(), train_s=0.0)[1].step_s for speed in (1, 10, 25, 100)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 2 * seconds[-1]
    assert predict(workload, 8, Link(10), Rates(), train_s=60.0)[1].bound == "training"
    assert predict(workload, 8, Link(0.01), Rates(), train_s=0.0)[1].bound == "link"
    shape, remote = expected_batch(workload.degrees, 100, (5, 3))[0], predict(workload, 8, Link(10), Rates())[0]
    shared = step_cost(shape, remote, 1e5, 8, Rates(), Link(10), cores_per_worker=0.25)
    assert shared.bound == "cores"
    assert shared.step_s == pytest.approx(4 * shared.cpu_s)


def test_planned_rows_are_near_those_of_a_plan() -> None:
    """Batches hold each node independently of other batches, as the formula assumes. The test checks several cache sizes in the steady state."""
    count, share = np.array([4000.0, 2000.0, 500.0]), np.array([0.01, 0.1, 0.6])
    rng, each = np.random.default_rng(0), np.repeat(share, count.astype(int))
    batches = [np.flatnonzero(rng.random(len(each)) < each).astype(np.int32) for _ in range(300)]
    needed = float(np.mean([len(batch) for batch in batches]))
    last = 1.0
    for part in (0.05, 0.1, 0.2, 0.4):
        rows = round(part * len(each))
        plan = RowSchedule(np.array([0, len(each)]), np.array([False]), rows)
        plan.begin(0, len(batches))
        for batch in batches:
            plan.admit(batch)
        steps = [plan.take(rows // 16) for _ in batches][50:200]
        fetched = [len(step.absent) + len(step.ahead) for step in steps]
        model = planned_share(count, share, rows)
        assert model == pytest.approx(float(np.mean(fetched)) / needed, rel=0.05)
        assert model < last
        last = model
    assert planned_share(count, share, 0) == pytest.approx(1)
    assert planned_share(count, share, 1.1 * len(each)) == pytest.approx(0, abs=1e-6)
    assert planned_share(count, share, len(each), known=3) > 0.05


def test_planned_traffic_is_rows_saved_and_requests_joined() -> None:
    workload = Workload("small", 1e6, 3e7, 400, roots=100)
    without, little, much = (predict(workload, 8, Link(10), Rates(), part)[0] for part in (0, 0.01, 0.5))
    assert much.received < little.received < without.received
    assert little.requests == pytest.approx(without.requests * (3 / 16 + 1) / 4)
    assert much.requests < 0.5 * little.requests  # one request fetches the rows of several batches
    assert [early_batches(160, fetched) for fetched in (20, 3, 0)] == [0, 3, 16]
    shape, widths = BatchShape((10, 20), (30, 40), 50), Widths(100)
    none = planned_traffic(draw_traffic(shape, widths, 4), row_traffic(50, 4, widths.row, 4), 0.0, 0.25, 0)
    assert none.requests == 2 * 4 / 4 + 4
    whole = neighbor_traffic(shape, widths, 4)
    assert whole.received - none.received == 50 * widths.row
    assert whole.sent - none.sent == 50 * 4


def test_near_partitions_are_not_asked() -> None:
    whole = neighbor_traffic(BatchShape((10, 20), (30, 40), 50), Widths(100), 4)
    assert whole.rounds == 3
    half = remote_traffic(whole, 0.5, 2, 4)
    assert (half.total, half.requests) == (whole.total / 2, 6)
    assert remote_traffic(whole, 1.0, 4, 4).total == 0


def test_a_halo_is_the_nodes_elsewhere_with_a_neighbor_here() -> None:
    rng = np.random.default_rng(0)
    num_nodes, degree, workers = 4000, 6, 4
    source = rng.integers(0, num_nodes, (num_nodes, degree))  # the neighbors of each node
    owner = rng.integers(0, workers, num_nodes)
    needed = [np.count_nonzero((owner[source] == w).any(axis=1) & (owner != w)) for w in range(workers)]
    assert random_halo(Degrees(np.array([degree]), np.array([num_nodes])), workers) == pytest.approx(
        np.mean(needed), rel=0.03
    )


KNOWN = Rates(0.02, 20e-6, 3e-3, 2e-6, 1e-3, 1e-9, 2e-3, 1e-9)


def made_up_point(batch_size: int, requests: bool) -> dict:
    """A measured point whose times follow exactly from known rates."""
    settings = {
        "sampler": "neighbor", "scaling": "weak", "workers": 1, "partitions": 2, "chunks": 4,
        "local_reads": not requests, "fanouts": (5, 3), "batch_size": batch_size,
    }  # fmt: skip
    degree = ([20.0], [100_000.0])
    point = {
        "settings": settings, "degrees": degree, "roots_per_batch": batch_size, "feature_bytes": 400, "index_bytes": 4, "cores": 2,
        "num_parameters": 1e5,
    }  # fmt: skip
    shape, remote = point_batch(point)
    cost = step_cost(shape, remote, 1e5, 1, KNOWN)
    loaded = load_cpu_s(shape, remote, KNOWN)
    return point | {
        "remote_requests_per_batch": remote.requests,
        "sent_bytes_per_batch": remote.sent,
        "received_bytes_per_batch": remote.received,
        "nodes_per_batch": shape.nodes,
        "train_cpu_s_per_batch": cost.train_s,
        "worker_cpu_s_per_step": cost.train_s + loaded,
        "server_cores": (cost.cpu_s - cost.train_s - loaded) / cost.step_s,
        "step_s": cost.step_s,
    }


def test_rates_are_found_again_in_points_made_from_them() -> None:
    points = [made_up_point(size, requests) for size in (50, 200, 800) for requests in (False, True)]
    found = fit_rates(points)
    for name in ("train_step_s", "train_node_s", "load_step_s", "load_node_s", "load_request_s", "serve_request_s"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.05), name
    for check in check_points(points, found, points[:1]):
        for model, measured in (check.nodes, check.remote_bytes, check.requests, check.cpu_s):
            assert model == pytest.approx(measured, rel=0.05, abs=1e-9)
    assert [check.fitted for check in check_points(points, found, points[:1])] == [True] + [False] * 5


def test_what_ray_and_the_host_take_is_not_the_workers() -> None:
    point = made_up_point(200, requests=True)
    alone = point | {
        "own_cores": 1.75,
        "server_cores": 0.25,
        "step_s": 0.5,
        "worker_cpu_s_per_step": 0.6,
        "stolen_cores": 0.0,
    }
    two = point | {"settings": point["settings"] | {"workers": 2}, "stolen_cores": 0.1}
    assert free_cores(two, [alone]) == pytest.approx(2 - 0.3 - 0.1)
    assert free_cores(two, []) == pytest.approx(1.9)
    assert free_cores(two | {"settings": two["settings"] | {"address": "head:6379"}}, [alone]) == float("inf")
    assert free_cores(two | {"cores": 1, "stolen_cores": 0.9}, [alone]) == 0.1, "some are left, or nothing would end"
    assert free_cores(point, [alone | {"own_cores": 1.0}]) == 2, "less than none is measurement"
    (check,) = check_points([two], KNOWN, [alone])
    cost = step_cost(*point_batch(two), 1e5, 2, KNOWN, None, 1.6 / 2)
    assert check.step_s[0] == pytest.approx(cost.step_s)


def test_an_unfinished_last_point_is_left_out_and_a_broken_one_named(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text('{"status": "ok"}\n{"status": "o')
    assert load_points(path) == [{"status": "ok"}]
    path.write_text('{"status": "ok"}\n[1]\n{"status": "ok"}\n')
    with pytest.raises(FormatError, match=r"points\.jsonl, line 2: expected a point"):
        load_points(path)


def test_a_missing_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.jsonl: expected points"):
        load_points(tmp_path / "none.jsonl")
