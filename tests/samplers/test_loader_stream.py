"""Tests the streaming loader: order, bounds, deadlines, errors, positions, and that threads end."""

import pickle
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, StageError
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.samplers.vocabulary.stage_clock import stage

ROWS = 100


class ScriptedSampler:
    """A sampler whose batches have known contents. Before it makes batch `batch`, it calls `script[batch]`."""

    content_hash = "00" * 32

    def __init__(self, num_batches: int, script=None, options: str = "scripted") -> None:
        self.num_batches, self.script, self.options = num_batches, script or {}, options
        self.begun: list[int] = []

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        self.begun.append(batch)
        with stage("fetch"):
            self.script.get(batch, lambda: None)()
        return MiniBatch(
            epoch=epoch,
            index=batch,
            node_id=np.arange(ROWS) + batch,
            indptr=np.zeros(ROWS + 1, np.int64),
            indices=np.empty(0, np.int32),
            root_index=np.arange(1),
        )


BATCH_BYTES = ScriptedSampler(1).sample(0, 0).num_bytes


def sampling_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("graphmill-sampler")]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    deadline = time.monotonic() + 3
    while sampling_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sampling_threads() == []


def eventually(condition, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def raise_(error: BaseException):
    def script():
        raise error

    return script


class TestErrors:
    def test_reaches_the_consumer_at_once_and_ahead_of_its_turn(self):
        stuck = threading.Event()
        sampler = ScriptedSampler(9, {3: lambda: stuck.wait(10), 4: raise_(KeyError("gone"))})
        began = time.monotonic()
        try:
            with (
                pytest.raises(StageError, match=r"stage fetch, epoch 2, step 4, rank 0: KeyError: 'gone'"),
                Loader(sampler, LoaderOptions(threads=2, prefetch=4)) as loader,
            ):
                list(loader.epoch(2))
            assert time.monotonic() - began < 2
        finally:
            stuck.set()

    def test_keeps_its_type_and_its_traceback(self):
        sampler = ScriptedSampler(2, {1: raise_(ConfigError("no such thing"))})
        with Loader(sampler) as loader, pytest.raises(ConfigError) as caught:
            list(loader.epoch(0))
        error = caught.value
        assert str(error) == "stage fetch, epoch 0, step 1, rank 0: no such thing"
        assert isinstance(error.__cause__, ConfigError)
        sent = pickle.loads(pickle.dumps(error))  # noqa: S301  as between processes, where causes are lost
        assert "in script" in "".join(traceback.format_exception(sent))

    def test_nothing_of_the_kind_is_swallowed(self):
        with Loader(ScriptedSampler(2, {0: raise_(SystemExit(3))})) as loader, pytest.raises(SystemExit):
            list(loader.epoch(0))

    def test_no_work_begins_after_an_error(self):
        sampler = ScriptedSampler(50, {1: raise_(ValueError("stop"))})
        with Loader(sampler, LoaderOptions(prefetch=40)) as loader, pytest.raises(StageError):
            list(loader.epoch(0))
        assert max(sampler.begun) == 1

    def test_can_go_on_elsewhere(self):
        sampler = ScriptedSampler(4, {1: raise_(ValueError("once"))})
        with Loader(sampler) as loader:
            with pytest.raises(StageError):
                list(loader.epoch(0))
            assert loader.state_dict()["step"] in (0, 1)
            sampler.script.clear()
            assert [batch.index for batch in loader.epoch(0, 1)] == [1, 2, 3]


class TestThreads:
    def test_an_abandoned_iterator_stops_its_threads(self):
        loader = Loader(ScriptedSampler(1000), LoaderOptions(threads=2))
        batches = loader.epoch(0)
        next(batches)
        assert sampling_threads() != []
        del batches
        eventually(lambda: sampling_threads() == [])
        loader.close()

    def test_an_interrupt_while_they_begin(self, monkeypatch):
        begin = threading.Thread.start

        def interrupted(thread):
            if thread.name == "graphmill-sampler-2":
                raise KeyboardInterrupt
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), Loader(ScriptedSampler(1000), LoaderOptions(threads=3)) as loader:
            next(iter(loader))
        eventually(lambda: sampling_threads() == [])


class TestPosition:
    def test_epochs_follow_each_other(self):
        with Loader(ScriptedSampler(3)) as loader:
            assert [(batch.epoch, batch.index) for _ in range(2) for batch in loader] == [
                (epoch, index) for epoch in range(2) for index in range(3)
            ]

    def test_state_at_every_step(self):
        with Loader(ScriptedSampler(3)) as loader:
            rest = [(epoch, index) for epoch in range(2) for index in range(3)]
            states = [loader.state_dict()]
            for _ in range(2):
                states += [loader.state_dict() for _ in loader]
        for consumed, state in enumerate(states):
            with Loader(ScriptedSampler(3)) as loader:
                loader.load_state_dict(state)
                found = [(batch.epoch, batch.index) for batch in loader]
                epoch = min(consumed // 3, 2)
                assert found == [one for one in [*rest, (2, 0), (2, 1), (2, 2)] if one[0] == epoch][consumed % 3 :]

    def test_reset_ends_an_iteration(self):
        with Loader(ScriptedSampler(5)) as loader:
            batches = iter(loader)
            next(batches)
            loader.reset(7, 3)
            assert list(batches) == []
            assert [(batch.epoch, batch.index) for batch in loader] == [(7, 3), (7, 4)]

    def test_goes_on_where_a_loop_was_left(self):
        with Loader(ScriptedSampler(4)) as loader:
            for _ in loader:
                break
            assert [batch.index for batch in loader] == [1, 2, 3]

    def test_refuses_another_loader_s_state(self):
        with Loader(ScriptedSampler(4)) as loader:
            state = loader.state_dict()
        for other in (Loader(ScriptedSampler(4, options="others")), Loader(ScriptedSampler(4), num_ranks=2)):
            with pytest.raises(ConfigError, match="fingerprint"):
                other.load_state_dict(state)
        with pytest.raises(ConfigError, match="expected epoch, step, data and fingerprint, got \\['epoch'\\]"):
            Loader(ScriptedSampler(4)).load_state_dict({"epoch": 1})

    def test_refuses_another_graph_s_state_and_one_that_names_no_graph(self):
        loader, other = Loader(ScriptedSampler(4)), Loader(ScriptedSampler(4))
        other._sampler.content_hash = "ab" * 32
        with pytest.raises(
            ConfigError, match=r"expected a position in the data (ab){8}, got one in (00){8}: of another graph"
        ):
            other.load_state_dict(loader.state_dict())
        old = {name: value for name, value in loader.state_dict().items() if name != "data"}
        with pytest.raises(ConfigError, match="if an earlier version saved it, begin an epoch"):
            loader.load_state_dict(old)

    def test_refuses_steps_that_there_are_not(self):
        with pytest.raises(ConfigError, match="step in"):
            Loader(ScriptedSampler(4)).reset(0, 5)


class TestOptions:
    @pytest.mark.parametrize(
        "options", [{"threads": 0}, {"prefetch": 0}, {"max_bytes": -1}, {"timeout_s": 0}, {"close_timeout_s": -1}]
    )
    def test_refused(self, options):
        with pytest.raises(ConfigError, match=r"expected (at least|more than)"):
            LoaderOptions(**options)

    def test_ranks(self):
        with pytest.raises(ConfigError, match="2 ranks share evenly"):
            Loader(ScriptedSampler(3), num_ranks=2)
        with pytest.raises(ConfigError, match="rank in"):
            Loader(ScriptedSampler(4), rank=2, num_ranks=2)


def test_stats_say_where_time_goes():
    def slow():
        time.sleep(0.02)

    with Loader(ScriptedSampler(6, {i: slow for i in range(6)})) as loader:
        list(loader.epoch(0))
        stats = loader.stats
    assert stats.num_batches == 6
    assert stats.num_nodes == 6 * ROWS
    assert stats.num_bytes == 6 * BATCH_BYTES
    assert 0.1 < stats.fetch_s < 1
    assert stats.wait_s > 0.05
    assert stats.blocked_s < stats.fetch_s
    assert stats.pin_s == stats.copy_s == 0
    assert set(stats.as_dict()) >= {
        "plan_s",
        "sample_s",
        "fetch_s",
        "collate_s",
        "pin_s",
        "copy_s",
        "blocked_s",
        "wait_s",
    }

    with Loader(ScriptedSampler(6)) as loader:
        for _ in loader.epoch(0):
            time.sleep(0.02)
        assert loader.stats.blocked_s > 0.03  # threads waited for the slow consumer
        assert loader.stats.wait_s < 0.05
        assert loader.stats.queue_depth_sum >= 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_arrive_on_the_gpu():
    with Loader(ScriptedSampler(6), LoaderOptions(threads=2), device="cuda") as loader:
        for batch in loader.epoch(0):
            assert batch.node_id.device.type == "cuda"
            assert torch.equal(batch.node_id.cpu(), torch.arange(ROWS) + batch.index)
        assert loader.stats.pin_s > 0
