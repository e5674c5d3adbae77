"""A run whose hosts are announced to be lost, with a launcher whose attempts are written down: what is counted, said and recorded."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.process.interruption import TrainClock
from graphmill.cluster.process.outcome import Failed, Finished, Stopped
from graphmill.cluster.runs.records import Recorder
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import StageError
from tests.cluster.training.test_train_loop import spec
from tests.disturbed_job import events

DIED = Failed("training", "rank 0", StageError("it died"), is_final=False)


def start(epoch: int, step: int) -> dict[str, Any]:
    return {"kind": "start", "epoch": epoch, "step": step, "workers": 2}


def step(epoch: int, number: int) -> dict[str, Any]:
    return {"kind": "step", "epoch": epoch, "step": number, "num_steps": 10}


class Written:
    """Plays attempts: for each the records of rank 0, the host whose loss is announced (or none), and the outcome."""

    def __init__(self, *attempts: tuple[list[dict[str, Any]], str | None, Any]) -> None:
        self.workers = WorkerOptions(2, "cpu", failures_per_hour=0)
        self._attempts, self._leave = list(attempts), lambda node, host: None

    @contextmanager
    def watching(self, say: Any, end_now: Any, leave: Callable[[str, str], None]) -> Any:
        self._leave = leave
        yield lambda: ""

    def watch(self, record: Any) -> None: ...

    def uses(self, node: str) -> bool:
        return node != "elsewhere"

    def attempt(self, spec: Any, reports: Any) -> Any:
        records, lost, outcome = self._attempts.pop(0)
        recorder = Recorder(reports)
        for record in records:
            recorder.push(record)
            if record["kind"] != "step":
                recorder.flush()
            time.sleep(0.3)  # a step's record replaces the one before
        if lost is not None:
            self._leave("node", lost)
            deadline = time.monotonic() + 10
            while not recorder.stop_asked():
                assert time.monotonic() < deadline, "the workers are not asked to save"
                time.sleep(0.01)
        recorder.close()
        return outcome


class BetweenAttempts(Written):
    """Before each attempt the loss of a host is announced, on which the attempt has neither workers nor servers."""

    def attempt(self, spec: Any, reports: Any) -> Any:
        self._leave("elsewhere", "h9 (10.0.0.9)")
        outcome = super().attempt(spec, reports)
        assert not Recorder(reports).stop_asked(), "the workers are asked to save for nothing"
        return outcome


def interruptions(
    folder: Path, *attempts: tuple[list[dict[str, Any]], str | None, Any], launcher: type[Written] = Written
) -> list[tuple[bool, int]]:
    directory, said = RunDirectory.create(folder, {}), []
    try:
        train(spec(), launcher(*attempts), directory, lambda record: said.append(str(record.get("what", ""))))
    finally:
        costs = [event for event in events(folder) if event["kind"] == "interruption"]
        for cost in costs:
            how = "announced" if cost["announced"] else "unannounced"
            assert any(f"lost by the {how} interruption; it stood for {cost['stood_s']:.1f} s" in line for line in said)
    return [(cost["announced"], cost["steps"]) for cost in costs]


END = Finished({"scores": {}})


def test_an_announced_loss_costs_no_step_and_is_no_failure(tmp_path: Path) -> None:
    first = [start(0, 0), step(0, 4)], "h1 (10.0.0.1)", Stopped(0, 5)
    second = [start(0, 5), step(0, 7)], "h2 (10.0.0.2)", Stopped(1)
    third = [start(1, 0), step(1, 3)], None, Stopped(1, 4, ("h3 (10.0.0.3)",))  # a worker was asked to leave
    assert interruptions(tmp_path / "run", first, second, third, ([start(1, 4)], None, END)) == [(True, 0)] * 3
    assert not [event for event in events(tmp_path / "run") if event["kind"] == "failure"]


def test_a_host_that_is_gone_before_the_ranks_have_saved_costs_steps_but_is_no_failure(tmp_path: Path) -> None:
    first = [start(0, 0), step(0, 4)], "h1 (10.0.0.1)", DIED
    assert interruptions(tmp_path / "run", first, ([start(0, 1)], None, END)) == [(True, 3)]


def test_a_loss_without_notice_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="given up after 1 failure within an hour"):
        interruptions(tmp_path / "run", ([start(0, 0), step(0, 4)], None, DIED))


def test_an_announcement_between_two_attempts_neither_stops_the_next_nor_excuses_its_failure(tmp_path: Path) -> None:
    attempt = [start(0, 0), step(0, 4)], None
    assert interruptions(tmp_path / "run", (*attempt, END), launcher=BetweenAttempts) == []
    with pytest.raises(StageError, match="given up after 1 failure within an hour"):
        interruptions(tmp_path / "failed", (*attempt, DIED), launcher=BetweenAttempts)


def test_the_clock_counts_steps_across_epochs() -> None:
    clock = TrainClock()
    clock.interrupt(announced=False)  # before training began: nothing is lost
    assert clock.update(start(0, 0), 1.0) is None
    clock.update(step(0, 9), 2.0)
    clock.update({"kind": "epoch", "epoch": 0}, 3.0)
    clock.update(step(1, 2), 4.0)
    clock.interrupt(announced=False)
    clock.interrupt(announced=True)  # another attempt that did not begin either: the first cause counts
    assert clock.update({"kind": "traffic"}, 9.0) is None
    assert clock.update(start(0, 7), 12.5) == {"steps": 5, "stood_s": 8.5, "announced": False}
    assert clock.update(start(0, 7), 13.0) is None


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_any_rank_can_stop_all_and_rank_0_alone_saves(ranks: int) -> None:
    none, save, stop = CheckpointRequest
    assert CheckpointRequest.of(none.share * ranks) == none
    assert CheckpointRequest.of(save.share + none.share * (ranks - 1)) == save
    for stopping in range(1, ranks + 1):
        assert CheckpointRequest.of(stop.share * stopping) == stop
        assert CheckpointRequest.of(stop.share * stopping + save.share) == stop


WORKER = """
import sys, time
from graphmill.cluster.process.leave_notice import is_leaving, take_notice
take_notice(float(sys.argv[1]))
print("ready", flush=True)
while not is_leaving():
    time.sleep(0.01)
print("leaving", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("grace_s", "again"), [("60", True), ("0.2", False)])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_takes_notice_and_still_ends(signum: int, grace_s: str, again: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER, grace_s], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        os.kill(worker.pid, signum)
        assert worker.stdout.readline() == "leaving\n"
        if again:
            os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(timeout=20) > 128
