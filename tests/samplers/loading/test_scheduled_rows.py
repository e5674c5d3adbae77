"""Tests fetching by plan. Batches are bit for bit the same as without a plan, with fewer rows and requests, within the budget. Also tests errors and epochs
that are not finished."""

import threading
import time
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, StageError
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.router import local_router
from graphmill.samplers.loading import scheduled_rows as planned_rows
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.messages import FetchRows, SampleForBatches, SampleNeighbors
from graphmill.samplers.vocabulary.options import GraphBatchOptions, LoaderOptions, NeighborOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.far_owner import far_router
from tests.listed_graph import random_listed_graph
from tests.samplers.slow_row_plan import belady
from tests.waiting import wait_until

NODES, DIM = 900, 6
ROW_BYTES = 4 * DIM + 8 + 8 + 1  # features, permanent id, label, split code
OPTIONS = NeighborOptions(fanouts=(5, 3), batch_size=24)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("planned") / "graph")
    ingest(random_listed_graph(NODES, 7000, feature_dim=DIM), url, IngestOptions(num_partitions=3))
    return open_graph(url)


def planned(rows: int, **options) -> LoaderOptions:
    return LoaderOptions(cache_bytes=rows * ROW_BYTES, **options)


def same(one, other) -> bool:
    return all(
        torch.equal(value, getattr(other, name)) if isinstance(value, torch.Tensor) else value == getattr(other, name)
        for name, value in vars(one).items()
    )


def far_nodes(graph, sampler, epoch: int) -> list[set[int]]:
    """For each batch, the stored ids of its nodes that are not in the first partition."""
    batches = sampler.draw(epoch, range(sampler.num_batches))
    return [set(drawn.node[drawn.node >= graph.offsets[1]].tolist()) for drawn in batches]


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_fetches_what_the_slow_plan_fetches(graph, share, monkeypatch):
    """All batches are known before the first one is delivered, and no rows are fetched in advance. So the number of fetched rows equals that of the slow
    plan."""
    monkeypatch.setattr(planned_rows, "_AHEAD_SHARE", 1 << 40)
    room = int(share * NODES)
    router, far = far_router(graph)
    sampler = NeighborSampler(router, OPTIONS)
    batches = planned_rows.ScheduledBatches(sampler, planned(room), range(sampler.num_batches))
    batches.begin(2, 0)
    wait_until(lambda: batches._draws.num_finished == len(batches._bounds) - 1)
    for number in range(sampler.num_batches):
        batches.batch(number)
    batches.close(10)
    stats, sets = batches.stats, far_nodes(graph, NeighborSampler(local_router(graph), OPTIONS), 2)
    assert stats.most_known == sampler.num_batches
    assert stats.needed == sum(map(len, sets))
    assert stats.fetched == sum(owner.rows_asked for owner in far)
    assert stats.fetched == sum(len(fetched) for fetched, _ in belady(sets, room))
    assert 0.9 * stats.peak_bytes <= min(room, len(set().union(*sets))) * ROW_BYTES
    assert stats.peak_bytes <= room * ROW_BYTES
    assert stats.requests == sum(len(owner.row_requests) for owner in far)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_never_more_than_the_budget_with_rows_that_come_early(graph, share):
    room = int(share * NODES)
    router, far = far_router(graph)
    with Loader(NeighborSampler(router, OPTIONS), planned(room, threads=2)) as loader:
        num_batches = sum(len(list(loader.epoch(epoch))) for epoch in range(2))
        stats, kept = loader.planned.stats, loader.planned._kept[0].rows
    assert num_batches == 2 * len(loader)
    assert sum(column.nbytes for column in vars(kept).values() if column is not None) == room * ROW_BYTES
    assert stats.peak_bytes <= room * ROW_BYTES
    assert stats.fetched == sum(owner.rows_asked for owner in far) < stats.needed


@pytest.mark.parametrize("form", ["float16", "int8", "bits", "entries"])
def test_rows_are_kept_as_they_are_stored(form, tmp_path):
    listed = random_listed_graph(NODES, 7000, feature_dim=DIM)
    numbers = np.asarray(listed.feature, np.float32)
    if form == "bits":
        numbers = (numbers > 0).astype(np.float32)
    elif form == "entries":
        numbers = np.pad(numbers, ((0, 0), (0, 40)))
    dtype = form if form in ("float16", "int8") else "float32"
    source = replace(listed, feature=numbers.tolist())
    ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=3, feature_dtype=dtype))
    graph = open_graph(str(tmp_path / "graph"))
    row_bytes = graph.manifest.feature_rows.row_bytes + 8 + 8 + 1
    router, _ = far_router(graph)
    options = LoaderOptions(cache_bytes=200 * row_bytes)
    with (
        Loader(NeighborSampler(router, OPTIONS), options) as loader,
        Loader(NeighborSampler(local_router(graph), OPTIONS)) as plain,
    ):
        for epoch in range(2):
            pairs = zip(loader.epoch(epoch), plain.epoch(epoch), strict=True)
            assert all(same(one, other) for one, other in pairs)
        kept = loader.planned._kept[0].rows
    assert sum(column.nbytes for column in vars(kept).values() if column is not None) == 200 * row_bytes


def test_requests_are_joined(graph):
    router, far = far_router(graph)
    options = NeighborOptions(fanouts=(5, 3), batch_size=8)
    with Loader(NeighborSampler(router, options), planned(NODES)) as loader:
        list(loader.epoch(0))
        num_batches = len(loader)
    assert num_batches > 40
    for owner in far:
        draws = [r for r in owner.requests if isinstance(r, SampleNeighbors | SampleForBatches)]
        assert len(draws) < 0.2 * len(options.fanouts) * num_batches
        assert len(owner.row_requests) < 0.8 * num_batches


def test_joined_draws_are_those_of_each_batch(graph):
    for scheme in ("uniform", "labor"):
        options = NeighborOptions(fanouts=(5, 3), batch_size=24, scheme=scheme)
        sampler, one = NeighborSampler(far_router(graph)[0], options), NeighborSampler(local_router(graph), options)
        joined = sampler.draw(1, [4, 0, 7])
        for drawn, number in zip(joined, (4, 0, 7), strict=True):
            assert np.array_equal(drawn.node, one.draw(1, [number])[0].node)
            rows = one.router.fetch(drawn.node, **vars(drawn.columns))
            expected = one.sample(1, number)
            assert all(
                np.array_equal(value, getattr(expected, name)) if isinstance(value, np.ndarray) else True
                for name, value in vars(drawn.complete(rows)).items()
            )


@pytest.mark.parametrize("threads", [1, 3])
def test_ranks_and_positions(graph, threads):
    sampler = NeighborSampler(local_router(graph), OPTIONS, 4)
    for rank in range(2):
        far = NeighborSampler(far_router(graph)[0], OPTIONS, 4)
        place = {"rank": rank, "num_ranks": 2, "num_positions": 4}
        with Loader(sampler, **place) as plain, Loader(far, planned(200, threads=threads), **place) as loader:
            for epoch, step in ((0, 0), (1, 3), (2, 0)):
                found, expected = list(loader.epoch(epoch, step)), list(plain.epoch(epoch, step))
                assert len(found) == len(expected) > 0
                assert all(map(same, found, expected))


def test_an_abandoned_epoch_leaves_no_thread_and_no_wrong_row(graph):
    before = set(threading.enumerate())
    sampler = NeighborSampler(local_router(graph), OPTIONS)
    with (
        Loader(sampler) as plain,
        Loader(NeighborSampler(far_router(graph)[0], OPTIONS), planned(150, threads=2)) as loader,
    ):
        for epoch in range(4):
            assert len(list(islice(loader.epoch(epoch), 3))) == 3
        assert all(map(same, loader.epoch(7), plain.epoch(7)))
    wait_until(lambda: {thread for thread in threading.enumerate() if "graphmill" in thread.name} <= before)


def test_the_plan_goes_on_from_an_epoch_to_the_next(graph):
    """At the end of an epoch, the plan already knows batches of the next epoch. A jump to another epoch starts a new plan."""
    plain = Loader(NeighborSampler(local_router(graph), OPTIONS))
    fetched = {}
    for num_epochs in (0, 6):
        router, far = far_router(graph)
        with Loader(NeighborSampler(router, OPTIONS), planned(450, threads=2), num_epochs=num_epochs) as loader:
            for epoch in (0, 1, 2, 4, 5, 9):
                first = 3 if epoch == 4 else 0
                found = []
                for batch in loader.epoch(epoch, first):
                    found.append(batch)
                    time.sleep(0.003)  # time for drawing ahead
                assert all(map(same, found, plain.epoch(epoch, first)))
                assert len(found) == len(loader) - first
        fetched[num_epochs] = sum(owner.rows_asked for owner in far)
    assert fetched[6] < fetched[0]


class _Breaking:
    """A far owner that raises an error at its n-th request for rows."""

    def __init__(self, owner: LocalOwner, error: Exception, at: int, of: type) -> None:
        self._owner, self._error, self._left, self._of = owner, error, at, of

    def submit(self, request):
        if isinstance(request, self._of):
            self._left -= 1
            if self._left < 0:
                raise self._error
        return self._owner.submit(request)


@pytest.mark.parametrize("of", [FetchRows, (SampleNeighbors, SampleForBatches)])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_owner_s_error_reaches_the_consumer(graph, threads, of):
    error = StageError("partition server 1: gone")
    router = local_router(graph, watch=lambda owner, i: _Breaking(owner, error, 5, of) if i else owner)
    options = planned(100, threads=threads, timeout_s=20)
    with (
        Loader(NeighborSampler(router, OPTIONS), options) as loader,
        pytest.raises(StageError, match=r"stage (fetch|sample), epoch 0, step \d+, rank 0: partition server 1: gone"),
    ):
        list(loader.epoch(0))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_rows_that_an_owner_refused_are_asked_for_again(graph, threads, at):
    """After an error a loader may be iterated again. Rows that were requested but did not arrive do not count as kept, so they are requested again."""
    owners = []

    def watch(owner, index):
        if index:
            owners.append(_Breaking(owner, StageError("gone"), at, FetchRows))
        return owners[-1] if index else owner

    router = local_router(graph, watch=watch)
    plain = Loader(NeighborSampler(local_router(graph), OPTIONS))
    with Loader(NeighborSampler(router, OPTIONS), planned(NODES, threads=threads)) as loader:
        with pytest.raises(StageError, match="gone"):
            list(loader.epoch(0))
        for owner in owners:
            owner._left = 1 << 30
        step = loader._position.delivered
        assert all(map(same, loader.epoch(0, step), plain.epoch(0, step)))
        assert all(map(same, loader.epoch(1), plain.epoch(1)))


class _Short:
    """A far owner. In its replies, the last entry of a column is missing."""

    def __init__(self, owner: LocalOwner, column: str) -> None:
        self._owner, self._column = owner, column

    def submit(self, request):
        pending = self._owner.submit(request)
        if not isinstance(request, FetchRows):
            return pending
        reply = pending.result()
        return SimpleNamespace(result=lambda: replace(reply, **{self._column: getattr(reply, self._column)[:-1]}))


@pytest.mark.parametrize("column", ["original_id", "feature", "label"])
@pytest.mark.parametrize("rows", [0, 100])
def test_a_reply_with_too_few_rows_is_an_error_not_a_wrong_batch(graph, column, rows):
    router = local_router(graph, watch=lambda owner, i: _Short(owner, column) if i == 2 else owner)
    with (
        Loader(NeighborSampler(router, OPTIONS), planned(rows)) as loader,
        pytest.raises(
            StageError, match=rf"stage fetch.*: partition 2: expected \d+ rows of {column}, got \d+; run the"
        ),
    ):
        list(loader.epoch(0))


def test_bytes_of_the_plan_bound_what_is_known(graph):
    known = {}
    for plan_bytes in (0, 1 << 30):
        sampler = NeighborSampler(far_router(graph)[0], NeighborOptions(fanouts=(5, 3), batch_size=6))
        with Loader(sampler, planned(100, plan_bytes=plan_bytes)) as loader:
            for _ in loader.epoch(0):
                time.sleep(0.01)  # time for drawing many batches ahead
            known[plan_bytes] = loader.planned.stats.most_known
    assert known[0] <= 32 < known[1 << 30]  # 32: drawn with joined requests, or finished


def test_nothing_is_planned_where_all_rows_are_near(graph):
    with Loader(NeighborSampler(local_router(graph), OPTIONS), planned(100)) as loader:
        assert loader.planned is None


def test_a_sampler_that_cannot_draw_is_refused():
    class Other:
        options, content_hash, num_batches = GraphBatchOptions(max_nodes=3), "", 1

        def sample(self, epoch, batch):
            raise NotImplementedError

    with pytest.raises(ConfigError, match="cache_bytes: expected a sampler with a method `draw`"):
        Loader(Other(), planned(1))
