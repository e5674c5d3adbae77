"""Workers die during training on a real Ray. Tests how often they are restarted, and when the run gives up."""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from ray import cloudpickle

from graphmill.cluster.data.graph_set_data import GraphData, OpenGraphs
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.training.ray_train import RayTrainLauncher
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import DataError, StageError
from tests.cluster.training import test_train_loop as toys

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 5  # steps in an epoch


class Mortal(toys.Pooled):
    """A model that kills its process in the process's training step number `lifetime`."""

    def __init__(self, lifetime: int) -> None:
        super().__init__()
        self.lifetime, self.seen = lifetime, 0

    def forward(self, batch):
        self.seen += self.training
        if self.seen == self.lifetime:
            time.sleep(0.5)  # time for the records of earlier steps to arrive
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)


class Leaving(toys.Pooled):
    """A model whose process is asked to leave by SIGTERM in the process's training step number `lifetime`."""

    def __init__(self, lifetime: int) -> None:
        super().__init__()
        self.lifetime, self.seen = lifetime, 0

    def forward(self, batch):
        self.seen += self.training
        if self.seen == self.lifetime:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)  # Python handles the signal in the main thread
        return super().forward(batch)


class Refusing(toys.Pooled):
    """A model that raises an error for the batch of its third training step."""

    seen = 0

    def forward(self, batch):
        self.seen += self.training
        if self.seen == 3:
            raise DataError("graph 7: expected finite features, got NaN; correct the source")
        return super().forward(batch)


@dataclass(frozen=True)
class Unreadable:
    """A data set whose batches cannot be converted to tensors."""

    data: GraphData

    def open(self) -> OpenGraphs:
        opened = self.data.open()

        def collate(minibatch):
            raise OSError(5, "Input/output error")

        opened.collate = collate  # type: ignore[method-assign]
        return opened


@pytest.fixture(scope="module", autouse=True)
def by_value(shared_ray):
    for module in (toys, sys.modules[__name__]):  # Ray's workers cannot import tests
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (toys, sys.modules[__name__]):
        cloudpickle.unregister_pickle_by_value(module)


GIVEN_UP = "given up after 1 failure within an hour, expected at most 0 (--workers.failures_per_hour)"


@pytest.mark.parametrize(
    ("changes", "kind", "line"),
    [
        (
            {"build_model": Refusing},
            DataError,
            f"training, rank 0: graph 7: expected finite features, got NaN; correct the source; {GIVEN_UP}",
        ),
        (
            {"data": Unreadable(toys.spec().data)},
            StageError,
            f"stage collate, epoch 0, step 0, rank 0: OSError: [Errno 5] Input/output error; {GIVEN_UP}",
        ),
    ],
)
def test_the_user_reads_an_error_once_with_its_stage_and_rank(tmp_path, changes, kind, line):
    directory = RunDirectory.create(tmp_path / "run", {})
    shown: list[dict] = []
    launcher = RayTrainLauncher(WorkerOptions(1, "cpu", failures_per_hour=0), directory.path)
    with pytest.raises(kind) as raised:
        train(replace(toys.spec(), **changes), launcher, directory, shown.append)
    assert str(raised.value) == line
    assert "failure" not in [record["kind"] for record in shown]
    events = [json.loads(text) for text in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [
        event["error"] + "; given up after " + event["given_up"] for event in events if event["kind"] == "failure"
    ] == [line]
    assert not (tmp_path / "run" / "attempts").exists()


def run(folder: Path, lifetime: int, per_hour: int, model: type[toys.Pooled] = Mortal) -> list[dict]:
    """Trains three epochs and returns the run's events."""
    spec = replace(toys.spec(checkpoint_every=1), build_model=partial(model, lifetime), model_config={})
    directory = RunDirectory.create(folder, {})
    told: list[str] = []
    try:
        launcher = RayTrainLauncher(WorkerOptions(1, "cpu", failures_per_hour=per_hour), directory.path)
        train(spec, launcher, directory, lambda record: told.append(record["kind"]))
    finally:
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        failures = [event for event in events if event["kind"] == "failure"]
        # All failures except the last are reported while the run continues.
        assert told.count("failure") == sum(event["given_up"] is None for event in failures)
    return events


@pytest.mark.long
def test_failures_within_the_rate_change_nothing(tmp_path):
    run(tmp_path / "undisturbed", lifetime=1000, per_hour=0)
    events = run(tmp_path / "disturbed", lifetime=STEPS + 3, per_hour=2)  # each attempt gets one epoch further
    assert [event["kind"] for event in events if event["kind"] in ("start", "failure")] == ["start", "failure"] * 2 + [
        "start"
    ]
    assert [event["epoch"] for event in events if event["kind"] == "start"] == [0, 1, 2]
    weights = [(tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("undisturbed", "disturbed")]
    assert weights[0] == weights[1]


def test_a_worker_that_is_asked_to_leave_saves_its_step_and_nothing_is_lost(tmp_path):
    """SIGTERM in the middle of the second epoch; no failure is allowed."""
    run(tmp_path / "undisturbed", lifetime=1000, per_hour=0)
    events = run(tmp_path / "disturbed", lifetime=STEPS + 3, per_hour=0, model=Leaving)
    costs = [(event["announced"], event["steps"]) for event in events if event["kind"] == "interruption"]
    assert costs, "no worker left"
    assert set(costs) == {(True, 0)}
    assert not [event for event in events if event["kind"] == "failure"]
    weights = [(tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("undisturbed", "disturbed")]
    assert weights[0] == weights[1]


@pytest.mark.core
def test_more_failures_than_the_rate_allows_end_the_run(tmp_path):
    with pytest.raises(
        StageError, match=r"given up after 2 failures within an hour, expected at most 1 \(--workers.failures_per_hour"
    ) as e:
        run(tmp_path / "run", lifetime=STEPS + 3, per_hour=1)
    assert "\n" not in str(e.value)
    assert len((tmp_path / "run" / "failure.log").read_text().split("Actor")) > 2  # both failures, with Ray's messages


@pytest.mark.long
def test_a_crash_that_comes_back_at_the_same_step_ends_the_run_whatever_the_rate(tmp_path):
    with pytest.raises(StageError, match=r"given up after 3 failures in a row, none further than 0\.\d+ epochs"):
        run(tmp_path / "run", lifetime=3, per_hour=1000)
