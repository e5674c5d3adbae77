"""Compares the bytes and requests that `--plan` predicts for the workers of a host with the counts of their loaders. Cases: rows kept by plan, shared rows, and
locality groups."""

import numpy as np
import pytest

from graphmill.cluster.serving.shared_rows import most_needed, needed
from graphmill.jobs.plan.cost_model import Rates
from graphmill.jobs.plan.needs import Needs, probabilities, seen_needs
from graphmill.jobs.plan.settings_search import Settings, Setup
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.samplers.access.router import Router, ask_rows, local_router
from graphmill.samplers.access.traffic import COLUMNS, Traffic, WatchedRemote
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.loading.scheduled_rows import SharedRows, copy_rows
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

HOSTS, WORKERS, MICRO_BATCHES, EPOCHS = 2, 4, 4, 20
DIM, NODES = 30, 8000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    url = tmp_path_factory.mktemp("needs") / "graph"
    source = SyntheticGraph(
        SyntheticOptions(num_nodes=NODES, mean_degree=16, feature_dim=DIM, num_classes=20, train_share=0.5)
    )
    ingest(source, str(url), IngestOptions(num_partitions=4, partitioner="ldg"))
    return open_graph(str(url))


def shared_rows(
    sampler: NeighborSampler, router: Router, num_bytes: int, row_bytes: int, ranks: range
) -> list[SharedRows]:
    """Chooses and fetches the shared rows like the workers of a host."""
    steps = sampler.num_batches // MICRO_BATCHES
    most, told = num_bytes // row_bytes, []
    for rank in ranks:
        drawn = sampler.draw(0, [step * MICRO_BATCHES + rank for step in range(steps)][:16])
        told.append(needed(router, [one.node for one in drawn], most))
    of_all, first_of = map(np.concatenate, zip(*told, strict=True)), np.array([0, router.manifest.num_nodes])
    (node,) = most_needed(*of_all, num_bytes, first_of, [row_bytes])
    columns = vars(drawn[0].columns)
    rows = router.empty_rows(len(node), **columns, stored=True)
    for pending, group in ask_rows([(router, node, drawn[0].columns)])[0][1]:
        copy_rows(pending.result(), np.arange(len(group)), rows, group)
    return [SharedRows(node, rows)]


def counted(graph: StoredGraph, options: NeighborOptions, loader: LoaderOptions, row_bytes: int) -> tuple[float, float]:
    """(bytes, requests) of a step on the host with the most bytes, over all epochs."""
    found = []
    for host in range(HOSTS):
        traffic, far, ranks = Traffic(4), (2 - 2 * host, 3 - 2 * host), range(2 * host, 2 * host + 2)
        server = WatchedRemote(
            LocalOwner(open_parts(graph, far)), far[0], traffic
        )  # of the other host's two partitions
        router = local_router(graph, far=dict.fromkeys(far, server))
        sampler = NeighborSampler(router, options, MICRO_BATCHES)
        steps = sampler.num_batches // MICRO_BATCHES
        before = np.zeros(len(COLUMNS))
        shared = list[SharedRows]()
        if loader.shared_bytes:
            shared = shared_rows(sampler, router, loader.shared_bytes, row_bytes, ranks)
        for rank in ranks:
            place = {"rank": rank, "num_ranks": WORKERS, "num_positions": MICRO_BATCHES}
            with Loader(sampler, loader, **place, num_epochs=EPOCHS, shared=shared) as batches:
                for epoch in range(EPOCHS):
                    for _ in batches.epoch(epoch):
                        pass
        spent = dict(zip(COLUMNS, traffic.by_partition().sum(axis=0) - before, strict=True))
        each = steps * EPOCHS
        found.append(((spent["sent_bytes"] + spent["received_bytes"]) / each, spent["remote_requests"] / each))
    return max(found)


def setup(needs: Needs, row_bytes: int, num_batches: int) -> Setup:
    return Setup(
        needs=needs,
        micro_batches=MICRO_BATCHES,
        num_batches=num_batches,
        num_epochs=EPOCHS,
        hosts=HOSTS,
        cores=8,
        most_workers=2,
        num_parameters=1000,
        rates=Rates(),
        loader_threads=1,
        row_bytes={"float32": row_bytes},
        free_bytes=1 << 40,
        host_bytes=lambda settings: 0,
    )


@pytest.mark.parametrize(
    ("order", "room", "shared", "within"),
    [
        pytest.param("shuffled", 0.0, 0.0, 0.03, marks=pytest.mark.long),
        pytest.param("shuffled", 0.1, 0.0, 0.03, marks=pytest.mark.long),
        (
            "shuffled",
            0.1,
            0.2,
            0.06,
        ),  # the number of batches drawn ahead depends on the threads, and matters more if a host keeps few rows
        pytest.param("groups", 0.0, 0.0, 0.03, marks=pytest.mark.long),
        pytest.param("groups", 0.1, 0.0, 0.03, marks=pytest.mark.long),
        pytest.param("groups", 0.1, 0.1, 0.05, marks=pytest.mark.long),
    ],
)
def test_bytes_and_requests_are_near_those_that_loaders_ask_for(graph, order, room, shared, within) -> None:
    """The prediction is for a run of many epochs. In a short run, the room holds more of the repeated rows than in the middle of a long run."""
    options, row_bytes = NeighborOptions(fanouts=(5, 3), batch_size=40, root_order=order), 4 * DIM
    needs = seen_needs(graph, options, MICRO_BATCHES, 60.0)
    kept = row_bytes + needs.kept_bytes
    assert kept == row_bytes + 8 + 8 + 1
    cache_bytes, shared_bytes = int(room * NODES * kept), int(shared * NODES * kept)
    num_batches = NeighborSampler(local_router(graph), options, MICRO_BATCHES).num_batches
    now = Settings(WORKERS, cache_bytes, 1 << 30, "float32", shared_bytes)
    traffic = setup(needs, row_bytes, num_batches).traffic(now)
    found = counted(graph, options, LoaderOptions(cache_bytes=cache_bytes, shared_bytes=shared_bytes), round(kept))
    workers = WORKERS // HOSTS
    assert workers * traffic.total == pytest.approx(found[0], rel=within)
    assert workers * traffic.requests == pytest.approx(found[1], rel=0.2)


def test_probabilities_of_counts_are_those_that_made_them() -> None:
    rng = np.random.default_rng(0)
    share, weight = np.array([0.0, 0.01, 0.3]), np.array([0.5, 0.3, 0.2])
    times = rng.binomial(64, rng.choice(share, 20_000, p=weight))
    found, of = probabilities(np.bincount(times, minlength=65), 64)
    assert of.sum() == pytest.approx(1)
    assert (of * found).sum() == pytest.approx((weight * share).sum(), rel=0.03)
    assert of[found > 0.1].sum() == pytest.approx(0.2, abs=0.01)
    assert (of * found**2).sum() == pytest.approx((weight * share**2).sum(), rel=0.03)


def test_a_time_limit_leaves_batches_of_both_kinds(graph: StoredGraph) -> None:
    options = NeighborOptions(fanouts=(5, 3), batch_size=40)
    few, many = (seen_needs(graph, options, MICRO_BATCHES, seconds) for seconds in (0.0, 60.0))
    assert few.rounds == (1, 1)
    assert many.rounds == (16, 128)
    assert few.nodes == pytest.approx(many.nodes, rel=0.15)
