"""Tests the directory of a run, in a local folder and on object stores.

A checkpoint is complete or does not exist. Each record occurs once, in order. Only one driver trains at a time. Files
of others are not removed.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, load_state, load_weights, verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints, checkpoints_of, keep_best_of
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.runs import run_upload as run_copy
from graphmill.cluster.runs.record_follower import followed
from graphmill.cluster.runs.records import AttemptRecords, Recorder, RecordReader
from graphmill.cluster.runs.run_directory import RunDirectory, check_free
from graphmill.cluster.runs.run_lease import Holder, RunLease, held
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.runs.run_upload import copied
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import ConfigError, ConflictError, DeadlineError, FormatError, StageError
from tests.cluster.training.test_train_loop import spec
from tests.gs_server import gs_bucket
from tests.s3_server import s3_bucket
from tests.waiting import wait_until

STATE = TrainState(1, 0, 0.5, {"seed": 1}, {"width": 3})
STORES = ["memory", "s3", pytest.param("gs", marks=pytest.mark.long)]


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    """Puts temporary files below pytest's folder, which also removes the files that drivers leave for their user."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def gs() -> Iterator[str]:
    with gs_bucket() as url:
        yield url


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a new run."""
    if kind == "local":
        return str(folder / "runs" / "mine")
    parent = "memory://runs" if kind == "memory" else request.getfixturevalue(kind)
    return f"{parent}/{secrets.token_hex(4)}/mine"


@pytest.fixture(params=["local", *STORES])
def store(request, tmp_path) -> RunStore:
    return RunStore(url_of(request.param, request, tmp_path))


@pytest.fixture(params=STORES)
def remote(request, tmp_path) -> RunStore:
    return RunStore(url_of(request.param, request, tmp_path))


@pytest.fixture
def local(tmp_path) -> RunStore:
    return RunStore(str(tmp_path / "runs" / "mine"))


@pytest.fixture
def checkpoints(store) -> Checkpoints:
    return checkpoints_of(store)


@pytest.fixture
def soon(monkeypatch) -> None:
    """Makes rank 0 check for requests every 0.05 s, on any store."""
    monkeypatch.setattr(AttemptRecords, "period_s", 0.05)


def name_of(checkpoints: Checkpoints, damaged: list[str], latest: tuple[int, int] | None = None) -> str | None:
    """The name of the newest valid checkpoint. Also checks that no temporary folder is left."""
    with checkpoints.newest(damaged, latest) as found:
        assert found is None or found[1].name == found[0]
    assert scratch_folders() == []
    return None if found is None else found[0]


def scratch_folders() -> list[Path]:
    return [*Path(tempfile.gettempdir()).glob("graphmill-run-*")]


def snapshot(epoch: int) -> Snapshot:
    tensors = {"weight": torch.full((3, 2), float(epoch)), "bias": torch.arange(3.0)}
    return Snapshot(replace(STATE, next_epoch=epoch), tensors, {k: v + 1 for k, v in tensors.items()}, {})


def epoch(number: int, **values: float) -> dict:
    return {"kind": "epoch", "epoch": number, "train_loss": 0.5, **values}


def step(epoch: int, number: int) -> dict:
    return {"kind": "step", "epoch": epoch, "step": number, "num_steps": 4}


def raise_away(*_: Any, **__: Any) -> None:
    raise DeadlineError("the store is away")


def last_fails(patch: pytest.MonkeyPatch, store: RunStore) -> None:
    """Makes the last write of a checkpoint, or of the best weights, fail without cleanup, as if the process were killed."""

    def fail(*_: Any) -> None:
        raise OSError("the connection is gone")

    put = RunStore.put

    def torn(self: RunStore, source: Path, name: str) -> None:
        (fail if name.endswith("state.json") else put)(self, source, name)

    patch.setattr(RunStore, "put", torn)
    patch.setattr(RunStore, "remove", lambda *_: None)
    if store.is_local:
        patch.setattr("graphmill.cluster.checkpoints.checkpoint_store._publish", fail)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)


def refuse_writes(patch: pytest.MonkeyPatch, store: RunStore) -> RunStore:
    """Makes the store refuse all writes. Retries end after a short time."""
    if store.is_local:
        store.write("attempts", b"a file in the folder's place")
        return store

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("connection reset")

    for verb in ("pipe_file", "put_file"):
        patch.setattr(store.filesystem, verb, away)
    hasty = replace(store, deadline_s=0.5)
    assert hasty.filesystem is store.filesystem
    return hasty


REFUSED = r"cannot write this file within 0\.5\d* s: connection reset|File exists|Not a directory"


def test_a_checkpoint_comes_back_and_old_ones_go(store, checkpoints):
    damaged = list[str]()
    assert name_of(checkpoints, damaged) is None
    for number in (1, 2, 3):
        checkpoints.save(f"epoch-{number:06d}", snapshot(number))
    store.write("train/epoch-000001/notes.txt", b"mine")
    store.write("train/other/state.json", b"{}")
    checkpoints.sweep(2)
    assert checkpoints.names() == ["epoch-000003", "epoch-000002"]
    assert store.names("train/epoch-000001") == ["notes.txt"]  # files of others stay
    assert store.names("train/other") == ["state.json"]
    model = torch.nn.Linear(2, 3)
    for opened in (checkpoints.newest(damaged), checkpoints.opened("epoch-000003")):
        with opened as found:
            name, folder = found if isinstance(found, tuple) else ("epoch-000003", found)
            load_weights(folder / "model.safetensors", model)
        assert name == "epoch-000003"
        assert model.weight.tolist() == [[3.0, 3.0]] * 3
        assert scratch_folders() == []
        torch.nn.init.zeros_(model.weight)
    assert checkpoints.state("epoch-000003").next_epoch == 3
    assert name_of(checkpoints, damaged, (2, 5)) == "epoch-000002"
    assert checkpoints.look(damaged) == "epoch-000003"
    for number in (1, 2):  # every call returns a new name
        assert checkpoints.unused_name("epoch-000003") == f"epoch-000003+{number}"
        checkpoints.save(f"epoch-000003+{number}", snapshot(3))
    assert not damaged


def test_a_torn_checkpoint_is_none_and_damage_is_named(store, checkpoints, monkeypatch):
    damaged = list[str]()
    checkpoints.save("epoch-000001", snapshot(1))
    with monkeypatch.context() as patch:
        last_fails(patch, store)
        with pytest.raises(OSError, match="gone"):
            checkpoints.save("epoch-000002", snapshot(2))
    assert len(store.names("train")) == 2
    assert name_of(checkpoints, damaged) == "epoch-000001"
    checkpoints.sweep(2)
    assert store.names("train/epoch-000002") == []
    assert [name for name in store.names("train") if name.endswith(".tmp")] == []
    checkpoints.save("epoch-000002", snapshot(2))
    store.write("train/epoch-000002/model.safetensors", b"other bytes")
    assert name_of(checkpoints, damaged) == "epoch-000001"
    assert damaged[0].startswith(
        f"{store.url}/train/epoch-000002/model.safetensors: expected the bytes that were saved"
    )
    store.remove(["train/epoch-000001/best.safetensors"])
    assert name_of(checkpoints, damaged) is None


def test_the_newest_whole_checkpoint_is_found_in_the_order_of_positions(store, checkpoints):
    names = [
        "epoch-000002",
        "epoch-000002+1",
        "epoch-000002-step-00000003",
        "epoch-000002-step-00000010",
        "epoch-000010",
    ]
    for name in names:
        checkpoints.save(name, snapshot(2))
    store.write("train/epoch-000011/model.safetensors", b"")  # not a checkpoint: `state.json` is missing
    for name in reversed(names):
        for look in (checkpoints.look, lambda damaged: name_of(checkpoints, damaged)):
            damaged: list[str] = []
            assert look(damaged) == name
            assert len(damaged) == len(names) - 1 - names.index(name)
        state = f"train/{name}/state.json"
        changed = (store.read(state) or b"").replace(b'"best_epoch": 0', b'"best_epoch": 3')
        store.write(state, changed)  # valid JSON, but changed
    assert checkpoints.look([]) is None
    assert name_of(checkpoints, []) is None


def test_sweeping_leaves_the_newest_whole_ones(store, checkpoints):
    def put(*names: str) -> None:
        for name in names:
            checkpoints.save(name, snapshot(1))

    put("epoch-000001", "epoch-000002-step-00000003", "epoch-000002")
    checkpoints.sweep(2)
    assert checkpoints.names() == ["epoch-000002-step-00000003", "epoch-000002"]
    put("epoch-000002-step-00000005", "epoch-000002-step-00000005+1")
    checkpoints.sweep(1)
    assert checkpoints.names() == ["epoch-000002-step-00000005+1"]
    # Damaged checkpoints do not count, so the newest valid checkpoint, from which a run would continue, is kept. Damaged
    # checkpoints that are older are removed.
    put("epoch-000003", "epoch-000004", "epoch-000001")
    for name in ("epoch-000004", "epoch-000001"):
        store.write(f"train/{name}/state.json", b"x")
    store.write("train/epoch-000001-notes/state.json", b"mine")
    checkpoints.sweep(1)
    assert checkpoints.names() == ["epoch-000004", "epoch-000003"]
    assert checkpoints.look([]) == "epoch-000003"
    assert store.names("train/epoch-000001-notes") == ["state.json"]


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_next(remote):
    checkpoints = checkpoints_of(remote)
    checkpoints.save("epoch-000001", snapshot(1))
    left, foreign = (Path(tempfile.mkdtemp(prefix="graphmill-run-")) for _ in range(2))
    (left / "owner").touch()  # no process holds its lock
    with checkpoints.opened("epoch-000001"), checkpoints.opened("epoch-000001") as folder:
        assert folder.exists()
        assert len(scratch_folders()) == 3
        assert not left.exists()
    assert scratch_folders() == [foreign]


def test_of_a_checkpoint_whose_last_answer_is_lost_nothing_stays(remote, monkeypatch):
    """If its state file stayed, the checkpoint would count as the newest one, although it has no weights."""
    checkpoints = checkpoints_of(remote)
    checkpoints.save("epoch-000001", snapshot(1))
    put = RunStore.put

    def unanswered(self: RunStore, source: Path, name: str) -> None:
        put(self, source, name)
        if name.endswith("state.json"):
            raise DeadlineError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "put", unanswered)
        with pytest.raises(DeadlineError, match="no answer"):
            checkpoints.save("epoch-000002", snapshot(2))
    checkpoints.sweep(1)
    assert checkpoints.names() == ["epoch-000001"]
    assert name_of(checkpoints, damaged := []) == "epoch-000001"
    assert not damaged


def test_a_store_that_is_away_is_refused_in_one_line_and_keeps_what_it_has(remote, monkeypatch):
    checkpoints = checkpoints_of(remote)
    checkpoints.save("epoch-000001", snapshot(1))
    with monkeypatch.context() as patch, pytest.raises(DeadlineError, match=REFUSED):
        checkpoints_of(refuse_writes(patch, remote), 0.5).save("epoch-000002", snapshot(2))
    assert checkpoints.names() == ["epoch-000001"]


def test_the_best_weights_are_whole_or_not_there(store, checkpoints, monkeypatch):
    def keep(number: int) -> None:
        checkpoints.save(f"epoch-{number:06d}", snapshot(number))
        with checkpoints.opened(f"epoch-{number:06d}") as folder:
            keep_best_of(folder, store)

    def kept() -> int:
        with store.at_hand("best") as folder:
            verify_checkpoint(folder / "best")
            state = load_state(folder / "best")
        assert state == replace(STATE, next_epoch=state.next_epoch)
        return state.next_epoch

    for number in (1, 2):  # the second save replaces the first
        keep(number)
        assert kept() == number
        assert store.names("best") == ["config.json", "model.safetensors", "state.json"]
        assert store.read("best/model.safetensors") == store.read(f"train/epoch-{number:06d}/best.safetensors")
    store.write("best/notes.txt", b"mine")
    with monkeypatch.context() as patch:
        last_fails(patch, store)
        with pytest.raises(OSError, match="gone"):
            keep(3)
        assert store.read("best/state.json") is None or kept() == 2
    keep(4)
    assert kept() == 4
    assert store.read("best/notes.txt") == b"mine"
    assert [name for name in store.names() if name.startswith(".")] == []


def test_records_arrive_once_in_order_and_outlive_the_driver(store, soon):
    records = AttemptRecords.create(store)
    recorder, reader = Recorder(records), RecordReader(records)
    assert list(reader.fresh()) == []
    told = [epoch(0, third=1 / 3, tiny=5e-324), {"kind": "damage", "what": "naïve\nname"}, *map(epoch, range(1, 4))]
    for record in told[:3]:
        recorder.push(record)
    recorder.flush()
    assert list(reader.fresh()) == told[:3]
    assert list(reader.fresh()) == []
    for number in (1, 2):
        recorder.push(step(2, number))
    wait_until(lambda: list(reader.fresh()) == [step(2, 2)])
    recorder.push(step(2, 4))
    recorder.push(epoch(2))
    recorder.flush()
    assert list(reader.fresh()) in ([epoch(2)], [step(2, 4), epoch(2)])  # depends on timing
    assert list(reader.fresh()) == []  # steps of finished epochs are not shown
    recorder.push(epoch(3))
    recorder.close()
    (left,) = AttemptRecords.left(store)
    assert list(RecordReader(left).records()) == told
    beside = left.path("records").replace("records", "notes.txt")
    store.write(beside, b"mine")
    left.remove()
    assert store.read(beside) == b"mine"
    assert AttemptRecords.left(store) == []


def test_a_folder_is_looked_at_more_often_than_a_store(store):
    """On an object store every check for progress is a request that costs money. A local folder can be checked more often, so progress is shown at once."""
    records = AttemptRecords.create(store)
    assert (max(records.look_s, records.period_s) <= 0.2) == store.is_local
    assert (min(records.look_s, records.period_s) >= 1.0) == (not store.is_local)


def test_a_request_to_stop_is_heard_and_outlives_its_file(store, soon):
    records = AttemptRecords.create(store)
    recorder = Recorder(records)
    recorder.push(epoch(0))
    assert not recorder.stop_asked()
    records.ask_to_stop()
    wait_until(recorder.stop_asked)
    recorder.close()
    records.remove()
    assert recorder.stop_asked()


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_is_being_written_waits_for_its_end(local, cut):
    records = AttemptRecords.create(local)
    reader, line = RecordReader(records), json.dumps(epoch(0)).encode() + b"\n"
    local.write(records.path("records"), line + line[:-cut])
    local.write(records.path("step"), line[:-cut])
    assert list(reader.fresh()) == [epoch(0)]
    local.write(records.path("records"), line + line)
    assert list(reader.fresh()) == [epoch(0)]


def test_attempts_have_files_of_their_own(store):
    old, new = AttemptRecords.create(store), AttemptRecords.create(store)
    for records, number in ((old, 7), (new, 0)):  # a worker of the old attempt still runs
        recorder = Recorder(records)
        recorder.push(epoch(number))
        recorder.close()
    assert list(RecordReader(new).fresh()) == [epoch(0)]
    assert [left.name for left in AttemptRecords.left(store)] == [old.name, new.name]
    for records in (old, new):
        records.remove()
    assert AttemptRecords.left(store) == []
    assert store.names("attempts") == []


def test_attempts_of_a_version_before_are_read(store):
    """An earlier version used other names for these files, in folders and on stores."""
    at, pieces = "attempts/20261123-201530-123456", (b"", b"-000001", b"-000002")
    lines = [json.dumps(epoch(number)).encode() + b"\n" for number in range(2)]
    if store.is_local:
        store.write(f"{at}.records", b"".join(lines))
        store.write(f"{at}.step", json.dumps(step(2, 1)).encode() + b"\n")
        store.write(f"{at}.request", b"")
    else:
        for piece, line in zip(pieces[1:], lines, strict=True):
            store.write(f"{at}/records{piece.decode()}", line)
        store.write(f"{at}/step", json.dumps(step(2, 1)).encode() + b"\n")
    (left,) = AttemptRecords.left(store)
    assert list(RecordReader(left).fresh()) == [epoch(0), epoch(1), step(2, 1)]
    left.remove()
    assert store.names("attempts") == []


def test_training_does_not_wait_for_the_store(store, monkeypatch):
    extend, done = RunStore.extend, threading.Event()

    def slow(*args: Any) -> None:
        done.wait(20)
        extend(*args)

    monkeypatch.setattr(RunStore, "extend", slow)
    records = AttemptRecords.create(store)
    recorder, began = Recorder(records), time.monotonic()
    for number in range(1000):
        recorder.push(epoch(number))
        assert not recorder.stop_asked()
        assert time.monotonic() - began < 10
    done.set()
    recorder.close()
    assert list(RecordReader(records).records()) == [epoch(number) for number in range(1000)]


WRITER = """
import sys
from graphmill.cluster.runs.records import AttemptRecords, Recorder
from graphmill.cluster.runs.run_store import RunStore
recorder = Recorder(AttemptRecords(RunStore(sys.argv[1]), sys.argv[2]))
for number in range(100_000):
    recorder.push({"kind": "epoch", "epoch": number, "text": "x" * (number % 5000)})
    recorder.flush()
"""


def test_a_killed_writer_leaves_whole_records_only(local):
    records = AttemptRecords.create(local)
    command = [sys.executable, "-c", WRITER, records.run.url, records.name]
    writer = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])
    reader, seen = RecordReader(records), []

    def read() -> int:
        seen.extend(record["epoch"] for record in reader.fresh())
        return len(seen)

    wait_until(lambda: read() >= 200)
    writer.kill()
    writer.wait(timeout=30)
    read()
    assert seen == list(range(len(seen)))


def test_what_the_store_refuses_reaches_who_reports(store, soon, monkeypatch):
    recorder = Recorder(AttemptRecords.create(store))
    object.__setattr__(recorder._records, "run", refuse_writes(monkeypatch, store))
    recorder.push(epoch(0))
    with pytest.raises(OSError, match=REFUSED):
        recorder.flush()


def test_whoever_waits_hears_of_the_refusal_at_once(store, monkeypatch):
    """The caller gets the error at once, even if the thread ends much later."""

    def slowly_ending(work, name: str) -> Future:
        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001
                time.sleep(0.5)
                future.set_exception(error)

        future: Future = Future()
        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    monkeypatch.setattr("graphmill.cluster.runs.records.begin", slowly_ending)
    monkeypatch.setattr("graphmill.cluster.runs.records._END_S", 20.0)
    recorder, began = Recorder(AttemptRecords.create(store)), time.monotonic()
    monkeypatch.setattr(RunStore, "extend", raise_away)
    recorder.push(epoch(0))
    with pytest.raises(DeadlineError, match="the store is away"):
        recorder.flush()
    assert time.monotonic() - began < 15


def test_one_driver_at_a_time(remote):
    with RunLease(remote, lease_s=2.0):
        began = time.monotonic()
        with (
            pytest.raises(ConflictError, match="expected a run that nobody trains now, found process"),
            RunLease(remote, 2.0),
        ):
            pass
        assert time.monotonic() - began < 10
    with RunLease(remote, 2.0):  # the driver before has ended, so there is no wait
        pass
    assert len(remote.names("holders")) == 1


def test_a_driver_that_is_gone_is_followed(remote, capsys):
    here = Holder.this()
    remote.write("holders/000004.json", json.dumps(vars(replace(here, pid=2**22 - 1))).encode())
    began = time.monotonic()
    with RunLease(remote, 60.0):  # its holder was a process of this machine that is dead
        assert remote.names("holders") == ["000005.json"]
    assert time.monotonic() - began < 20
    remote.write("holders/000007.json", json.dumps(vars(replace(here, host="far", process="another"))).encode())
    with RunLease(remote, 1.0):  # its holder on another machine was silent for a lease period
        assert "was trained by process" in capsys.readouterr().err


def test_of_two_that_begin_at_once_one_trains(remote):
    entered, refused, start = [], [], threading.Barrier(2, timeout=60)
    done = threading.Event()

    def begin() -> None:
        start.wait()
        try:
            with RunLease(remote, lease_s=1.0):
                entered.append(1)
                done.wait(5)
        except ConflictError:
            refused.append(1)
            done.set()

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (len(entered), len(refused)) == (1, 1)


def test_a_local_run_has_one_driver_too(local):
    local.write("config.json", b"{}")
    refused = pytest.raises(ConflictError, match="found a process that does")
    with held(local), refused, held(replace(local)):
        pass
    with held(local):
        pass
    assert local.names() == ["config.json"]  # a local lock leaves no file


def test_who_was_taken_over_leaves_the_successors_files(remote, capsys):
    theirs = {"config.json": b'{"seed": 2}', "metrics.jsonl": b"{}\n"}

    def train_on(directory: RunDirectory) -> None:
        directory.record({"epoch": 1, "train_loss": 1.0})
        assert remote.create("holders/000002.json", b"{}")
        for name, content in theirs.items():
            remote.write(name, content)
        time.sleep(30)  # the holder's next check ends this sleep

    directory = RunDirectory.create(remote, {"seed": 1})

    def drive() -> None:
        with RunLease(remote, lease_s=10.0) as directory.hold, copied(directory):
            train_on(directory)

    with pytest.raises(ConflictError, match="another process has taken it over"):
        drive()
    assert {name: remote.read(name) for name in theirs} == theirs
    assert f"what the run has recorded since is in {directory.path}" in capsys.readouterr().err
    assert RunStore(f"{remote}-next").folder != directory.path  # the next run does not remove it
    assert directory.metrics() == [{"epoch": 1, "train_loss": 1.0}]


def test_the_working_folder_of_a_killed_driver_goes_with_the_next_run(remote):
    code = "import os, sys; from graphmill.cluster.runs.run_store import RunStore; print(RunStore(sys.argv[1]).folder, flush=True); os._exit(1)"
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [sys.executable, "-c", code, "memory://runs/killed"], env=environment, capture_output=True, text=True
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    assert remote.folder.is_dir()
    assert not left.parent.exists()
    assert RunStore(f"{remote}-next").folder.is_dir()
    assert remote.folder.is_dir()  # its process is alive


def test_once_the_store_lacks_something_a_killed_drivers_folder_is_the_users(remote, monkeypatch):
    monkeypatch.setattr(run_copy, "_PERIOD_S", 0.01)
    directory = RunDirectory.create(remote, {"seed": 1})
    owner = directory.path.parent / "owner"
    assert owner.exists()
    with copied(directory), monkeypatch.context() as away:
        away.setattr(RunStore, "write", raise_away)
        directory.record({"epoch": 1, "train_loss": 1.0})
        wait_until(lambda: not owner.exists())  # if the driver dies now, the folder stays for the user
    assert remote.read("metrics.jsonl")
    assert not directory.path.parent.exists()


def test_the_workers_of_who_was_taken_over_save_nothing_more(remote):
    kept = list[str]()
    directory = RunDirectory.create(remote, {"seed": 1})

    def take_over(record: Mapping[str, Any]) -> None:
        if record["epoch"] == 1 and remote.create("holders/000002.json", b"{}"):
            kept.extend(checkpoints_of(remote).names())

    def drive() -> None:
        with RunLease(remote, lease_s=2.0) as directory.hold, copied(directory):
            launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), remote)
            train(spec(epochs=10_000, checkpoint_every=10_000), launcher, directory, lambda _: None)

    directory.listeners.append(take_over)
    with pytest.raises(ConflictError, match="another process has taken it over"):
        drive()
    assert checkpoints_of(remote).names() == kept


def test_a_run_trains_into_the_store_as_into_a_folder(remote, tmp_path):
    def run(place: RunStore) -> tuple[dict, RunStore]:
        with held(place if not place.is_local else RunStore(str(tmp_path))):
            directory = RunDirectory.create(place, {"seed": 1})
            with copied(directory):
                launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), place)
                summary = train(spec(epochs=3, checkpoint_every=1), launcher, directory, lambda _: None)
        return dict(summary), place

    (ours, stored), (theirs, local) = run(remote), run(RunStore(str(tmp_path / "run")))
    assert ours == theirs

    def losses(place: RunStore) -> list[float]:
        return [json.loads(line)["train_loss"] for line in (place.read("metrics.jsonl") or b"").splitlines()]

    assert losses(stored) == losses(local)
    assert len(losses(stored)) == 3
    assert stored.read("best/model.safetensors") == local.read("best/model.safetensors")
    assert not Path(stored.folder).exists()
    for place in (stored, local):
        assert AttemptRecords.left(place) == []
        assert len(checkpoints_of(place).names()) == 2
    assert any(name.startswith("events.out") for name in stored.names("tensorboard"))
    with pytest.raises(ConfigError, match="expected no run here, found one"):
        check_free(replace(remote))


def test_epochs_that_a_killed_driver_has_not_recorded_are_made_up_for(store, tmp_path):
    run = RunDirectory.create(tmp_path / "run", {})
    records = AttemptRecords.create(store)
    recorder = Recorder(records)
    for number in range(4):
        recorder.push(epoch(number))
        recorder.push({"kind": "traffic", "epoch": number})
    recorder.close()
    if store.is_local:
        path = store.folder / records.path("records")
        os.truncate(path, path.stat().st_size - 3)
    run.take({"kind": "start", "epoch": 0, "step": 0, "workers": 1})
    run.take(epoch(0))
    again = RunDirectory.resume(run.path, {})
    shown: list[int] = []
    again.listeners.append(lambda record: shown.append(record["epoch"]))
    again.take({"kind": "start", "epoch": 3, "step": 0, "workers": 1})  # resume at the checkpoint after epoch 2
    (left,) = AttemptRecords.left(store)
    again.make_up(RecordReader(left).records(), 3)
    again.take(epoch(3))
    assert [record["epoch"] for record in again.metrics()] == [0, 1, 2, 3]
    assert shown == [1, 2, 3]  # trackers also get the missed epochs


def test_all_that_was_reported_is_passed_on_before_the_end(store, soon):
    records, seen, settled, stopping = AttemptRecords.create(store), [], [], threading.Event()
    with followed(records, seen.append, stopping.is_set, settle=lambda: settled.append(len(seen))):
        recorder = Recorder(records)
        for number in range(100):
            recorder.push(epoch(number))
        stopping.set()
        wait_until(recorder.stop_asked)
        recorder.push(epoch(100))
        recorder.close()
    assert seen == [epoch(number) for number in range(101)]
    assert settled == [101]
    assert store.names("attempts") == []


def test_workers_are_asked_to_stop_once(local, monkeypatch):
    asked, stopping = [], threading.Event()
    monkeypatch.setattr(AttemptRecords, "ask_to_stop", lambda self: asked.append(self))
    stopping.set()
    records = AttemptRecords.create(local)
    with followed(records, lambda record: None, stopping.is_set):
        time.sleep(5 * records.look_s)
    assert len(asked) == 1


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("of any kind")])
def test_an_error_of_who_records_ends_the_body_and_is_named(local, error):
    records = AttemptRecords.create(local)

    def consume(record) -> None:
        raise error

    def follow() -> None:
        with followed(records, consume):
            Recorder(records).push({"kind": "damage", "what": "something"})
            with pytest.raises(KeyboardInterrupt):  # the error interrupts a wait for Ray Train
                time.sleep(60)

    with pytest.raises(StageError, match=f"^recording metrics: {type(error).__name__}: {error}$"):
        follow()


def test_a_url_of_no_bucket_or_no_package_is_one_line(s3):
    with pytest.raises(ConfigError, match="expected a bucket"):
        RunStore("s3://no-such-bucket-here/run").check_bucket()
    with pytest.raises(FormatError, match="cannot open this kind of URL"):
        _ = RunStore("nothing://x/run").is_local
