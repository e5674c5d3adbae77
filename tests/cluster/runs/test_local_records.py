"""Every record of rank 0 reaches the driver once and in order, even if either is killed."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graphmill.cluster.runs.local_records import AttemptFiles, Recorder, RecordReader
from graphmill.cluster.runs.record_follower import followed
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.core.errors import StageError


def epoch(number: int, **values: float) -> dict:
    return {"kind": "epoch", "epoch": number, "train_loss": 0.5, **values}


def step(epoch: int, number: int) -> dict:
    return {"kind": "step", "epoch": epoch, "step": number, "num_steps": 4}


@pytest.fixture
def files(tmp_path) -> AttemptFiles:
    return AttemptFiles.create(tmp_path)


def test_records_arrive_once_in_order_and_as_they_were(files):
    reporter, reader = Recorder(files), RecordReader(files)
    assert list(reader.fresh()) == []
    reporter.push(epoch(0, third=1 / 3, tiny=5e-324))
    reporter.push({"kind": "damage", "what": "naïve\nname"})
    assert list(reader.fresh()) == [epoch(0, third=1 / 3, tiny=5e-324), {"kind": "damage", "what": "naïve\nname"}]
    reporter.push(epoch(1))
    assert list(reader.fresh()) == [epoch(1)]
    assert list(reader.fresh()) == []


def test_of_steps_the_latest_is_shown_unless_its_epoch_is_over(files):
    reporter, reader = Recorder(files), RecordReader(files)
    for number in (1, 2):
        reporter.push(step(0, number))
    assert list(reader.fresh()) == [step(0, 2)]
    assert list(reader.fresh()) == []
    reporter.push(step(0, 4))
    reporter.push(epoch(0))
    assert list(reader.fresh()) == [epoch(0)]
    reporter.push(step(1, 1))
    reporter.push(epoch(1))
    reporter.push(step(2, 1))
    assert list(reader.fresh()) == [epoch(1), step(2, 1)]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_is_being_written_waits_for_its_end(files, cut):
    reader, line = RecordReader(files), json.dumps(epoch(0)).encode() + b"\n"
    files.records.write_bytes(line + line[:-cut])
    files.step.write_bytes(line[:-cut])
    assert list(reader.fresh()) == [epoch(0)]
    files.records.write_bytes(line + line)
    assert list(reader.fresh()) == [epoch(0)]


def test_a_request_to_stop_is_heard(files, monkeypatch):
    monkeypatch.setattr("graphmill.cluster.runs.local_records._REQUEST_LOOK_S", 0.0)
    reporter = Recorder(files)
    assert not reporter.stop_asked()
    files.ask_to_stop()
    assert reporter.stop_asked()
    files.remove()
    assert reporter.stop_asked()


def test_a_step_does_not_wait_for_the_file_system_each_time(files):
    reporter = Recorder(files)
    assert not reporter.stop_asked()
    files.remove()
    assert not reporter.stop_asked()  # it was asked a moment ago


def test_attempts_have_files_of_their_own(tmp_path):
    old, new = AttemptFiles.create(tmp_path), AttemptFiles.create(tmp_path)
    Recorder(old).push(epoch(7))  # a worker that outlives its attempt
    assert list(RecordReader(new).fresh()) == []
    assert AttemptFiles.left(tmp_path) == [old, new]
    for files in (old, new):
        files.remove()
    assert AttemptFiles.left(tmp_path) == []
    assert not any(tmp_path.iterdir())


WRITER = """
import sys, time
from pathlib import Path
from graphmill.cluster.runs.local_records import AttemptFiles, Recorder
reporter = Recorder(AttemptFiles(Path(sys.argv[1])))
for number in range(100_000):
    reporter.push({"kind": "epoch", "epoch": number, "text": "x" * (number % 5000)})
"""


def test_a_killed_writer_leaves_whole_records_only(files):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(files.stem)], cwd=Path(__file__).resolve().parents[3])
    reader, seen = RecordReader(files), []
    deadline = time.monotonic() + 60
    while len(seen) < 200:
        assert time.monotonic() < deadline
        seen += [record["epoch"] for record in reader.fresh()]
    writer.kill()
    writer.wait(timeout=30)
    seen += [record["epoch"] for record in reader.fresh()]
    assert seen == list(range(len(seen)))


def test_all_that_was_reported_is_passed_on_before_the_end(tmp_path):
    files, seen, stopping = AttemptFiles.create(tmp_path), [], threading.Event()
    with followed(files, seen.append, stopping):
        reporter = Recorder(files)
        for number in range(100):
            reporter.push(epoch(number))
        stopping.set()
        deadline = time.monotonic() + 30
        while not reporter.stop_asked():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        reporter.push(epoch(100))
    assert seen == [epoch(number) for number in range(101)]
    assert not any(tmp_path.iterdir())


def test_workers_are_asked_to_stop_once(files, monkeypatch):
    asked, stopping = [], threading.Event()
    monkeypatch.setattr(AttemptFiles, "ask_to_stop", lambda self: asked.append(self))
    stopping.set()
    with followed(files, lambda record: None, stopping):
        time.sleep(5 * files.look_s)
    assert len(asked) == 1


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("of any kind")])
def test_an_error_of_who_records_ends_the_body_and_is_named(files, error):
    def consume(record) -> None:
        raise error

    def follow() -> None:
        with followed(files, consume):
            Recorder(files).push({"kind": "damage", "what": "something"})
            with pytest.raises(KeyboardInterrupt):  # by which the wait for Ray Train ends, too
                time.sleep(60)

    with pytest.raises(StageError, match=f"^recording metrics: {type(error).__name__}: {error}$"):
        follow()


def test_epochs_that_a_killed_driver_has_not_recorded_are_made_up_for(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {})
    files = AttemptFiles.create(run.path)
    reporter = Recorder(files)
    for number in range(4):
        reporter.push(epoch(number))
        reporter.push({"kind": "traffic", "epoch": number})
    os.truncate(files.records, files.records.stat().st_size - 3)
    run.take({"kind": "start", "epoch": 0, "step": 0, "workers": 1})
    run.take(epoch(0))
    again = RunDirectory.resume(run.path, {})
    shown: list[int] = []
    again.listeners.append(lambda record: shown.append(record["epoch"]))
    again.take({"kind": "start", "epoch": 3, "step": 0, "workers": 1})  # the checkpoint after epoch 2
    (left,) = AttemptFiles.left(run.path)
    again.make_up(RecordReader(left).records(), 3)
    again.take(epoch(3))
    assert [record["epoch"] for record in again.metrics()] == [0, 1, 2, 3]
    assert shown == [1, 2, 3]  # trackers too
