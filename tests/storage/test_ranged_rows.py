"""Reads feature rows from a store by byte ranges. Bytes are right even if the store fails at times, memory stays small, and a store that does not answer
gives a one-line error."""

import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core import daemon_threads as background
from graphmill.core.errors import ConfigError, DeadlineError, FormatError
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.messages import FetchRows, ForParts, part_name
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions
from graphmill.storage import range_reads as ranged_rows
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.range_reads import RangedRows, merged_ranges
from tests.listed_graph import random_listed_graph
from tests.s3_server import s3_bucket

ROOT = Path(__file__).resolve().parents[2]
NODES, DIM = 900, 6


class Store:
    """A proxy in front of an S3 server. A test can make it slow, failing or unreachable."""

    def __init__(self, answer) -> None:
        self.answer, self.lock = answer, threading.Lock()
        self.be_good()

    def be_good(self) -> None:
        self.wait_s, self.fail_each, self.is_away = 0.0, 0, False
        self.num_ranges = self.now = self.most_at_once = 0

    def __call__(self, environ, start_response):
        if "HTTP_RANGE" not in environ:
            return self.answer(environ, start_response)
        with self.lock:
            self.num_ranges, self.now = self.num_ranges + 1, self.now + 1
            self.most_at_once = max(self.most_at_once, self.now)
            fails = self.is_away or (self.fail_each and self.num_ranges % self.fail_each == 0)
        try:
            time.sleep(self.wait_s)
            if fails:
                start_response("503 Slow Down", [("Content-Length", "0")])
                return [b""]
            return self.answer(environ, start_response)
        finally:
            with self.lock:
                self.now -= 1


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Store]]:
    stores: list[Store] = []

    def through(answer):
        stores.append(Store(answer))
        return stores[0]

    with s3_bucket(through=through) as url:
        yield url, stores[0]


@pytest.fixture(scope="module")
def graph(s3) -> StoredGraph:
    url = f"{s3[0]}/graph"
    ingest(random_listed_graph(NODES, 7000, feature_dim=DIM), url, IngestOptions(num_partitions=3))
    return open_graph(url)


@pytest.fixture
def store(s3) -> Iterator[Store]:
    s3[1].be_good()
    yield s3[1]
    s3[1].be_good()


def of_partition(graph: StoredGraph, index: int = 0, **more) -> RangedRows:
    entry = graph.manifest.files[f"part-{index:05d}/features.arrow"]
    path, num_rows = f"{graph.path}/{entry.path}", int(np.diff(graph.offsets)[index])
    assert graph.manifest.feature_rows is not None
    return RangedRows(graph.filesystem, path, entry, graph.manifest.feature_rows, num_rows, **more)


def features(form: str) -> tuple[np.ndarray, IngestOptions]:
    random = np.random.default_rng(5)
    numbers = random.normal(size=(3000, 40)).astype(np.float32)
    if form in ("bits", "indices"):
        numbers = (random.random((3000, 40)) < (0.4 if form == "bits" else 0.002)).astype(np.float32)
        numbers[0, 0] = 1
    dtype = form if form in ("float16", "int8") else "float32"
    return numbers, IngestOptions(num_partitions=2, feature_dtype=dtype)


@pytest.mark.parametrize("form", ["float32", "float16", "int8", "bits", "indices"])
def test_rows_are_those_of_the_whole_file(form, monkeypatch):
    # small, so that opening does not read the middle of these files
    monkeypatch.setattr(ranged_rows, "_END_BYTES", 1 << 11)
    numbers, options = features(form)
    url = f"memory://{uuid.uuid4().hex}/graph"
    ingest(ArrayGraph("numbers", 3000, np.zeros(1, np.int64), np.zeros(1, np.int64), feature=numbers), url, options)
    stored = open_graph(url)
    by_range = stored.features_by_range().pin().open()
    whole, ranged = stored.partition(1), by_range.partition(1)
    assert stored.manifest.feature_layout == (form if form in ("bits", "indices") else "dense")
    assert ranged.feature is None
    assert ranged.feature_on_store is not None
    random = np.random.default_rng(1)
    for row in (
        random.integers(0, whole.num_nodes, 500),
        np.arange(whole.num_nodes),
        np.array([whole.num_nodes - 1, 0, 0]),
        np.empty(0, np.int64),
    ):
        np.testing.assert_array_equal(ranged.feature_on_store.read(row), whole.feature[row])
    node = random.permutation(3000)[:700]
    there, here = local_router(by_range).fetch(node), local_router(stored).fetch(node)
    np.testing.assert_array_equal(there.feature, here.feature)
    np.testing.assert_array_equal(there.original_id, here.original_id)


@given(
    st.lists(st.integers(0, 5000), unique=True).map(sorted),
    st.integers(1, 1 << 17),
    st.integers(0, 1 << 18),
)
def test_merged_ranges(rows, row_bytes, gap):
    row = np.array(rows, np.int64)
    bounds = merged_ranges(row, row_bytes, gap)
    assert [each for begin, end in bounds for each in rows[begin:end]] == rows
    most = max(row_bytes, ranged_rows._MAX_RANGE_BYTES)
    for begin, end in bounds:
        assert (row[end - 1] - row[begin] + 1) * row_bytes <= most
        assert all((row[i + 1] - row[i] - 1) * row_bytes <= gap for i in range(begin, end - 1))
    for (begin, end), (_, next_end) in pairwise(bounds):
        is_near = (row[end] - row[end - 1] - 1) * row_bytes <= gap
        assert not is_near or (row[next_end - 1] - row[begin] + 1) * row_bytes > most


def test_several_ranges_of_a_slow_store_are_in_flight(graph, store):
    rows, row = of_partition(graph, max_gap_bytes=0), np.arange(0, 200, 5)
    store.wait_s, before = 0.05, store.num_ranges
    got = rows.read(row)
    assert store.num_ranges - before == len(row)
    assert 2 <= store.most_at_once <= ranged_rows.IN_FLIGHT
    np.testing.assert_array_equal(got, graph.partition(0).feature[row])


def test_a_message_to_several_parts_reads_their_rows_at_the_same_time(graph, store):
    parts = open_parts(graph.features_by_range().pin().open(), [0, 1, 2])
    firsts = graph.offsets[:3]
    request = ForParts(
        tuple(part_name(index, "") for index in range(3)), tuple(FetchRows(np.array([first])) for first in firsts)
    )
    store.wait_s, store.most_at_once = 0.2, 0
    replies = parts.answer(request).replies  # one range of each part
    assert store.most_at_once == 3
    for index, reply in enumerate(replies):
        np.testing.assert_array_equal(reply.feature, graph.partition(index).feature[:1])


def test_readers_of_all_calls_are_bounded_and_come_back(graph, store, monkeypatch):
    free = threading.BoundedSemaphore(2)
    monkeypatch.setattr(ranged_rows, "_readers", free)
    rows, row = of_partition(graph, max_gap_bytes=0), np.arange(0, 100, 5)
    hasty = of_partition(graph, max_gap_bytes=0, deadline_s=1.0)
    store.wait_s = 0.02
    reads = [background.begin(lambda: rows.read(row), "read") for _ in range(3)]
    for read in reads:
        np.testing.assert_array_equal(read.result(60), graph.partition(0).feature[row])
    assert 2 <= store.most_at_once <= 5  # three calling threads, which also read, and two more reading threads
    store.is_away = True
    with pytest.raises(DeadlineError):
        hasty.read(row)
    assert all(free.acquire(timeout=30) for _ in range(2))


def test_a_store_that_fails_some_requests_is_asked_again(graph, store):
    rows, row = of_partition(graph, max_gap_bytes=0), np.arange(0, 60, 4)
    store.fail_each = 3
    np.testing.assert_array_equal(rows.read(row), graph.partition(0).feature[row])


def test_a_store_that_stays_away_is_one_line_in_time(graph, store):
    rows = of_partition(graph, deadline_s=1.0)
    store.is_away, began = True, time.monotonic()
    with pytest.raises(DeadlineError, match=r"features\.arrow: cannot read rows within 1 s") as raised:
        rows.read(np.array([0, 3]))
    assert "\n" not in str(raised.value)
    assert time.monotonic() - began < 20


class Short(fsspec.get_filesystem_class("memory")):
    """A store in which every second answer is too short."""

    cachable = False
    count = 0

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.count += 1
        return super().cat_file(path, start, end, **kwargs)[: -1 if self.count % 2 else None]


def test_an_answer_that_is_too_short_is_asked_for_again(graph):
    url = f"memory://{uuid.uuid4().hex}/graph"
    ingest(random_listed_graph(NODES, 7000, feature_dim=DIM), url, IngestOptions(num_partitions=1))
    short = replace(open_graph(url), filesystem=Short())
    row = np.array([5, 800])
    np.testing.assert_array_equal(of_partition(short).read(row), open_graph(url).partition(0).feature[row])


def test_another_file_in_its_place_is_told(monkeypatch):
    url = f"memory://{uuid.uuid4().hex}/graph"
    ingest(random_listed_graph(NODES, 7000, feature_dim=DIM), url, IngestOptions(num_partitions=1))
    stored = open_graph(url)
    rows, filesystem = of_partition(stored), split_url(url)[0]
    path = f"{stored.path}/{stored.manifest.files['part-00000/features.arrow'].path}"
    content = filesystem.cat_file(path)
    filesystem.pipe_file(path, content)
    rows.read(np.array([1]))  # succeeds, because the file is checked only every half minute
    monkeypatch.setattr(rows, "_look_at", 0.0)
    with pytest.raises(FormatError, match="found one that was written since"):
        rows.read(np.array([1]))
    for damaged, said in (
        (content[:-8], f"expected {len(content)} bytes, found {len(content) - 8}"),
        (content[8:] + content[:8], "expected an Arrow IPC file, found damage"),
    ):
        filesystem.pipe_file(path, damaged)
        with pytest.raises(FormatError, match=said):
            of_partition(stored)
    filesystem.rm(path)
    with pytest.raises(FormatError, match="found none; it may be pruned"):
        of_partition(stored)
    monkeypatch.setattr(rows, "_look_at", 0.0)
    with pytest.raises(FormatError, match="found none; it may be pruned"):
        rows.read(np.array([1]))


def peak_of_reads() -> int:
    """Reads rows from 16 MB of features. Returns the most bytes that Python held during the reads."""
    url = f"memory://{uuid.uuid4().hex}/large"
    feature = np.random.default_rng(2).normal(size=(40_000, 100)).astype(np.float32)
    ingest(
        ArrayGraph("large", 40_000, np.zeros(1, np.int64), np.zeros(1, np.int64), feature=feature),
        url,
        IngestOptions(num_partitions=1),
    )
    del feature
    graph = open_graph(url).features_by_range()

    def read() -> None:
        router = local_router(graph)
        for first in range(5):
            router.fetch(np.arange(first, 40_000, 400))
        router.fetch(np.arange(1000))  # 1,000 neighboring rows

    read()  # not measured, because the first requests load modules, which stay in memory
    tracemalloc.start()
    read()
    return tracemalloc.get_traced_memory()[1]


def test_memory_stays_far_below_the_features():
    """Runs in a separate process, because threads that other tests left running would also count."""
    program = "from tests.storage.test_ranged_rows import peak_of_reads; print(peak_of_reads())"
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert int(process.stdout) < 40_000 * 400 / 4


def of_router(router) -> list[RangedRows]:
    """Returns the row readers of the router's partitions."""
    return [owner._owner._partition.feature_on_store for owner in router._owners]


@pytest.mark.parametrize("room", [0, 200, NODES])
def test_batches_by_range_are_those_of_the_graph_in_memory(graph, room):
    """Tests batches with and without a plan. If there is room for all rows, each row is read once."""
    options = NeighborOptions(fanouts=(5, 3), batch_size=24)
    router = local_router(graph.features_by_range())
    fetched = []
    for rows in of_router(router):
        rows.read = lambda row, read=rows.read: fetched.extend(row) or read(row)
    loading = LoaderOptions(cache_bytes=room * (4 * DIM + 8 + 8 + 1), threads=2)
    with (
        Loader(NeighborSampler(router, options), loading) as loader,
        Loader(NeighborSampler(local_router(graph), options)) as plain,
    ):
        for epoch in range(2):
            found, expected = list(loader.epoch(epoch)), list(plain.epoch(epoch))
            assert len(found) == len(expected) > 0
            assert all(map(same, found, expected))
        assert (loader.planned is not None) == (room > 0)
        needed = 0 if loader.planned is None else loader.planned.stats.needed
    if room == NODES:
        assert len(fetched) <= NODES < needed
    elif room:
        assert NODES < len(fetched) < needed


def same(one, other) -> bool:
    return all(
        torch.equal(value, getattr(other, name)) if isinstance(value, torch.Tensor) else value == getattr(other, name)
        for name, value in vars(one).items()
    )


def test_messages_are_counted_as_answered_here(graph):
    counts = []
    for opened in (graph, graph.features_by_range()):
        traffic = Traffic(3)
        NeighborSampler(
            local_router(opened, watch=traffic.watch), NeighborOptions(fanouts=(5, 3), batch_size=24)
        ).sample(0, 0)
        counts.append(traffic.by_partition())
    np.testing.assert_array_equal(*counts)


def test_a_graph_on_a_disk_is_refused(tmp_path):
    ingest(random_listed_graph(50, 90), str(tmp_path / "graph"), IngestOptions(num_partitions=1))
    with pytest.raises(ConfigError, match=r"which needs no more memory; leave out --servers\.range_reads") as raised:
        open_graph(str(tmp_path / "graph")).features_by_range()
    assert "\n" not in str(raised.value)
