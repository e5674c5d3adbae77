"""Tests the loader with samplers that are slow, return large batches, fail, or hang."""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numba.core.compiler_lock import global_compiler_lock

from graphmill.core.errors import ConfigError, DeadlineError, FormatError, GraphmillError, StageError
from graphmill.samplers.access.router import local_router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions
from graphmill.samplers.vocabulary.stage_clock import excuse
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph
from tests.waiting import wait_until


def tiny_batch(epoch: int, batch: int, num_bytes: int = 800) -> MiniBatch:
    none = np.zeros(1, np.int64)
    node_id = np.full(max(1, num_bytes // 8 - 3), batch)
    return MiniBatch(epoch, batch, node_id, none, np.empty(0, np.int32), none)


class FakeSampler:
    """A sampler that calls `act` to make a batch, and records which batches are in progress."""

    def __init__(self, num_batches: int = 20, act: Callable[[int, int], MiniBatch] = tiny_batch) -> None:
        self.num_batches = num_batches
        self._act = act
        self._lock = threading.Lock()
        self.started: list[int] = []
        self.finished: list[int] = []
        self.working = self.most_working = 0

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        with self._lock:
            self.started.append(batch)
            self.working += 1
            self.most_working = max(self.most_working, self.working)
        try:
            return self._act(epoch, batch)
        finally:
            with self._lock:
                self.working -= 1
                self.finished.append(batch)


def sleeping(seconds: Callable[[int], float]) -> Callable[[int, int], MiniBatch]:
    def act(epoch: int, batch: int) -> MiniBatch:
        time.sleep(seconds(batch))
        return tiny_batch(epoch, batch)

    return act


def raising(error: BaseException, at: int = 0) -> Callable[[int, int], MiniBatch]:
    def act(epoch: int, batch: int) -> MiniBatch:
        if batch == at:
            raise error
        return tiny_batch(epoch, batch)

    return act


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    wait_until(lambda: not [t for t in threading.enumerate() if t not in before and "graphmill" in t.name])


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("num_ranks", [1, 4])
def test_batches_come_in_order_whatever_the_delays(threads: int, num_ranks: int) -> None:
    delays = np.random.default_rng(0).random(40) * 0.02
    for rank in range(num_ranks):
        sampler = FakeSampler(40, sleeping(lambda batch: float(delays[batch])))
        with Loader(sampler, LoaderOptions(threads, prefetch=9), rank=rank, num_ranks=num_ranks) as loader:
            found = [(batch.epoch, batch.index) for batch in loader.epoch(3)]
        assert loader.num_steps == 40 // num_ranks
        assert found == [(3, step * num_ranks + rank) for step in range(loader.num_steps)]
        assert sorted(sampler.finished) == [index for _, index in found]
        assert sampler.most_working <= threads


def test_threads_work_at_the_same_time() -> None:
    meet = threading.Barrier(4, timeout=10)

    def act(epoch: int, batch: int) -> MiniBatch:
        meet.wait()
        return tiny_batch(epoch, batch)

    with Loader(FakeSampler(8, act), LoaderOptions(threads=4, prefetch=3)) as loader:
        assert len(list(loader.epoch(0))) == 8


def test_threads_do_not_change_real_batches(tmp_path: Path) -> None:
    ingest(random_listed_graph(200, 1500), str(tmp_path / "graph"), IngestOptions(num_partitions=3))
    sampler = NeighborSampler(
        local_router(open_graph(str(tmp_path / "graph"))), NeighborOptions(fanouts=(4, 4), batch_size=7)
    )
    epochs = []
    for threads in (1, 8):
        with Loader(sampler, LoaderOptions(threads, prefetch=8)) as loader:
            epochs.append(list(loader.epoch(1)))
    for one, other in zip(*epochs, strict=True):
        for name in ("node_id", "indptr", "indices", "root_index", "x", "y", "split"):
            assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("start_step", [0, 1, 5, 9, 10])
def test_an_epoch_goes_on_from_any_step(start_step: int) -> None:
    sampler = FakeSampler(20)
    with Loader(sampler, LoaderOptions(threads=2), rank=1, num_ranks=2) as loader:
        found = [batch.index for batch in loader.epoch(0, start_step)]
    assert found == [2 * step + 1 for step in range(start_step, 10)]
    assert sorted(sampler.started) == found


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (4, 2), (2, 6)])
def test_no_more_batches_ahead_than_asked_for(threads: int, prefetch: int) -> None:
    sampler = FakeSampler(20)
    with Loader(sampler, LoaderOptions(threads, prefetch)) as loader:
        batches = loader.epoch(0)
        for step in range(20):
            next(batches)
            time.sleep(0.02)
            ahead = max(prefetch, threads)
            assert len(sampler.started) <= step + 1 + ahead
            wait_until(lambda step=step, ahead=ahead: len(sampler.finished) == min(step + 1 + ahead, 20))


def test_bytes_are_counted_as_collated() -> None:
    """The bound on bytes uses sizes after collation, which may make a batch larger (float16 to float32, padding)."""

    @dataclass(frozen=True)
    class Wide:
        x: torch.Tensor

    sampler = FakeSampler(4, lambda epoch, batch: tiny_batch(epoch, batch, num_bytes=800))
    with Loader(sampler, LoaderOptions(prefetch=1), collate=lambda batch: Wide(torch.zeros(1000))) as loader:
        assert len(list(loader)) == 4
        assert loader.stats.num_bytes == 4 * 4000


@pytest.mark.parametrize("max_bytes", [1, 8_000, 24_000])
def test_no_more_bytes_ahead_than_asked_for(max_bytes: int) -> None:
    sampler = FakeSampler(30, lambda epoch, batch: tiny_batch(epoch, batch, num_bytes=8_000))
    with Loader(sampler, LoaderOptions(threads=2, prefetch=20, max_bytes=max_bytes)) as loader:
        batches = loader.epoch(0)
        for step in range(30):
            next(batches)
            time.sleep(0.01)
            ahead = len(sampler.started) - (step + 1)
            # One batch is always allowed. Each thread starts its first batch before any size is known.
            assert ahead * 8_000 <= max(max_bytes, 8_000 if step else 16_000)
        assert 7_000 <= loader.stats.peak_bytes <= max(max_bytes, 16_000)


def test_batches_of_many_sizes_stay_within_the_bytes() -> None:
    sizes = np.random.default_rng(0).integers(1_000, 50_000, 60).tolist()
    sampler = FakeSampler(60, lambda epoch, batch: tiny_batch(epoch, batch, num_bytes=sizes[batch]))
    with Loader(sampler, LoaderOptions(threads=3, prefetch=30, max_bytes=200_000)) as loader:
        most = 0
        for step, _ in enumerate(loader.epoch(0)):
            time.sleep(0.003)
            most = max(most, sum(sizes[step + 1 : len(sampler.started)]))
    assert 60_000 < most <= 200_000


ERRORS = {
    "ours": (FormatError("part-00000/nodes.arrow: expected 7 bytes, found 3"), FormatError),
    "deadline": (DeadlineError("partition server 2: no answer within 5 s"), DeadlineError),
    "value": (ValueError("bad value"), StageError),
    "key": (KeyError("missing"), StageError),
    "attribute": (AttributeError("no such thing"), StageError),
    "assertion": (AssertionError("internal"), StageError),
    "memory": (MemoryError("too large"), StageError),
    "their own timeout": (TimeoutError("the disk timed out"), StageError),
}


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_reaches_the_consumer_with_stage_and_cause(name: str, at: int) -> None:
    error, expected = ERRORS[name]
    sampler = FakeSampler(20, raising(error, at))
    with Loader(sampler, LoaderOptions(threads=2)) as loader:
        found, start = [], time.perf_counter()
        with pytest.raises(expected) as raised:
            found.extend(batch.index for batch in loader.epoch(7))
        assert time.perf_counter() - start < 1
    assert found == list(range(len(found)))
    assert len(found) <= at  # the error may be raised before its turn
    assert isinstance(raised.value, GraphmillError)
    assert f"stage sample, epoch 7, step {at}, rank 0" in str(raised.value)
    assert str(error) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is error
    assert len(sampler.started) <= at + 4


def test_a_stuck_sampler_meets_the_deadline() -> None:
    release = threading.Event()

    def act(epoch: int, batch: int) -> MiniBatch:
        if batch == 2:
            release.wait(60)
        return tiny_batch(epoch, batch)

    with Loader(FakeSampler(20, act), LoaderOptions(timeout_s=0.3)) as loader:
        batches = loader.epoch(0)
        next(batches), next(batches)
        start = time.perf_counter()
        with pytest.raises(DeadlineError) as raised:
            next(batches)
        assert 0.25 < time.perf_counter() - start < 2
        assert "epoch 0, step 2, rank 0: nothing after 0.3 s; step 2 is in stage sample" in str(raised.value)
        assert "\n" not in str(raised.value)
        release.set()


@pytest.mark.parametrize("compiles", ["here", "in a server", "nowhere"])
def test_the_time_of_compiling_does_not_count(compiles: str) -> None:
    def act(epoch: int, batch: int) -> MiniBatch:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            with global_compiler_lock if compiles == "here" else contextlib.nullcontext():
                time.sleep(0.1)
            if compiles == "in a server":
                excuse()  # as `RemoteOwner` does for each `Compiling`
        return tiny_batch(epoch, batch)

    with Loader(FakeSampler(1, act), LoaderOptions(timeout_s=1.0, close_timeout_s=10)) as loader:
        if compiles == "nowhere":
            with pytest.raises(DeadlineError, match="nothing after 1 s"):
                next(loader.epoch(0))
        else:
            next(loader.epoch(0))


def test_closing_does_not_wait_for_ever_for_a_stuck_thread() -> None:
    release = threading.Event()

    def act(epoch: int, batch: int) -> MiniBatch:
        release.wait(60)
        return tiny_batch(epoch, batch)

    loader = Loader(FakeSampler(20, act), LoaderOptions(timeout_s=0.1, close_timeout_s=0.2))
    with pytest.raises(DeadlineError, match="step 0, rank 0"):
        next(loader.epoch(0))
    start = time.perf_counter()
    with pytest.raises(DeadlineError, match=r"still at work 0\.2 s after cancellation: step 0 is in stage sample"):
        loader.close()
    assert time.perf_counter() - start < 2
    release.set()


def test_a_consumer_that_leaves_early_stops_the_work() -> None:
    sampler = FakeSampler(1000, sleeping(lambda _: 0.01))
    with Loader(sampler, LoaderOptions(threads=2, prefetch=50)) as loader:
        for batch in loader.epoch(0):
            if batch.index == 3:
                break
    wait_until(lambda: sampler.working == 0)
    begun = len(sampler.started)
    time.sleep(0.1)
    assert len(sampler.started) == begun < 20


def test_a_new_epoch_after_a_half_one_starts_afresh() -> None:
    sampler = FakeSampler(20)
    with Loader(sampler, LoaderOptions(threads=2, prefetch=5)) as loader:
        half = loader.epoch(0)
        next(half)
        half.close()
        assert [batch.index for batch in loader.epoch(1)] == list(range(20))


def test_a_closed_loader_says_so() -> None:
    loader = Loader(FakeSampler(20))
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    assert list(batches) == []
    with pytest.raises(ConfigError, match="expected an open loader, this one is closed"):
        next(loader.epoch(0))
    loader.close()


def test_tensors_lie_over_the_arrays_and_features_become_float32() -> None:
    feature = np.arange(6, dtype=np.float16).reshape(3, 2)
    label = np.arange(3)
    label.flags.writeable = False
    node_id = np.arange(3)
    whole = MiniBatch(
        0, 0, node_id, np.zeros(4, np.int64), np.empty(0, np.int32), np.arange(2), feature=feature, label=label
    )
    with Loader(FakeSampler(1, lambda *_: whole)) as loader:
        batch = next(loader.epoch(0))
    assert batch.x is not None
    assert batch.y is not None
    assert batch.x.dtype == torch.float32
    assert batch.x.tolist() == feature.tolist()
    assert batch.node_id.data_ptr() == node_id.ctypes.data
    assert batch.y.data_ptr() != label.ctypes.data
    assert batch.split is None
