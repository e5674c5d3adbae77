"""A run's directory on an object store: whole checkpoints or none, records once and in order, one driver at a time, nobody else's files."""

import json
import os
import secrets
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

from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, load_weights
from graphmill.cluster.checkpoints.checkpoint_store import StoredCheckpoints, keep_best_of
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.runs import run_upload as run_copy
from graphmill.cluster.runs.record_follower import followed
from graphmill.cluster.runs.remote_records import StoredRecords
from graphmill.cluster.runs.run_directory import RunDirectory, check_free
from graphmill.cluster.runs.run_lease import Holder, RunLease
from graphmill.cluster.runs.run_upload import copied
from graphmill.cluster.runs.run_url import RunUrl
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import ConfigError, ConflictError, DeadlineError, FormatError
from graphmill.storage.filesystem.remote_folder import StoredFolder
from tests.cluster.training.test_train_loop import spec
from tests.gs_server import gs_bucket
from tests.s3_server import s3_bucket
from tests.waiting import wait_until

STATE = TrainState(1, 0, 0.5, {"seed": 1}, {"width": 3})


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path, monkeypatch):
    """What a driver leaves behind for its user goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def gs() -> Iterator[str]:
    with gs_bucket() as url:
        yield url


@pytest.fixture(params=["memory", "s3", pytest.param("gs", marks=pytest.mark.long)])
def url(request) -> str:
    """Of a run that is not there yet."""
    parent = "memory://runs" if request.param == "memory" else request.getfixturevalue(request.param)
    return f"{parent}/{secrets.token_hex(4)}/mine"


@pytest.fixture
def store(url: str) -> StoredFolder:
    return StoredFolder(url)


def newest(checkpoints: StoredCheckpoints, damaged: list[str], latest: tuple[int, int] | None = None) -> str | None:
    """Its name. No folder is left behind, whether it was whole or not."""
    with checkpoints.newest(damaged, latest) as found:
        assert found is None or found[1].name == found[0]
    assert scratch_folders() == []
    return None if found is None else found[0]


def scratch_folders() -> list[Path]:
    return [*Path(tempfile.gettempdir()).glob("graphmill-checkpoint-*")]


def snapshot(epoch: int) -> Snapshot:
    tensors = {"weight": torch.full((3, 2), float(epoch)), "bias": torch.arange(3.0)}
    return Snapshot(replace(STATE, next_epoch=epoch), tensors, {k: v + 1 for k, v in tensors.items()}, {})


def test_a_checkpoint_comes_back_and_old_ones_go(store):
    checkpoints, damaged = StoredCheckpoints(store), list[str]()
    assert newest(checkpoints, damaged) is None
    for epoch in (1, 2, 3):
        checkpoints.save(f"epoch-{epoch:06d}", snapshot(epoch))
    store.write("train/epoch-000001/notes.txt", b"mine")
    store.write("train/other/state.json", b"{}")
    checkpoints.sweep(2)
    assert checkpoints.names() == ["epoch-000003", "epoch-000002"]
    assert store.names("train/epoch-000001") == ["notes.txt"]  # what is not ours stays
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
    assert newest(checkpoints, damaged, (2, 5)) == "epoch-000002"
    assert checkpoints.unused_name("epoch-000003") == "epoch-000003+1"
    assert not damaged


def test_a_torn_upload_is_no_checkpoint_and_damage_is_named(store, monkeypatch):
    checkpoints, damaged = StoredCheckpoints(store), list[str]()
    checkpoints.save("epoch-000001", snapshot(1))
    put = StoredFolder.put

    def torn(self: StoredFolder, source: Path, name: str) -> None:
        if name.endswith("state.json"):
            raise OSError("the connection is gone")
        put(self, source, name)

    with monkeypatch.context() as patch:
        patch.setattr(StoredFolder, "put", torn)
        patch.setattr(StoredFolder, "remove", lambda *_: None)  # it cannot tidy up either
        with pytest.raises(OSError, match="gone"):
            checkpoints.save("epoch-000002", snapshot(2))
    assert store.names("train/epoch-000002")
    assert newest(checkpoints, damaged) == "epoch-000001"
    checkpoints.sweep(2)
    assert store.names("train/epoch-000002") == []
    checkpoints.save("epoch-000002", snapshot(2))
    store.write("train/epoch-000002/model.safetensors", b"other bytes")
    assert newest(checkpoints, damaged) == "epoch-000001"
    assert damaged[0].startswith(
        f"{store.url}/train/epoch-000002/model.safetensors: expected the bytes that were saved"
    )
    store.remove(["train/epoch-000001/best.safetensors"])
    assert newest(checkpoints, damaged) is None


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_next(store):
    checkpoints = StoredCheckpoints(store)
    checkpoints.save("epoch-000001", snapshot(1))
    left, foreign = (Path(tempfile.mkdtemp(prefix="graphmill-checkpoint-")) for _ in range(2))
    (left / "owner").touch()  # whose lock is free
    with checkpoints.opened("epoch-000001"), checkpoints.opened("epoch-000001") as folder:
        assert folder.exists()
        assert len(scratch_folders()) == 3
        assert not left.exists()
    assert scratch_folders() == [foreign]


def test_of_a_checkpoint_whose_last_answer_is_lost_nothing_stays(store, monkeypatch):
    """Else it would count as the newest of those that are kept, though it has no weights."""
    checkpoints = StoredCheckpoints(store)
    checkpoints.save("epoch-000001", snapshot(1))
    put = StoredFolder.put

    def unanswered(self: StoredFolder, source: Path, name: str) -> None:
        put(self, source, name)
        if name.endswith("state.json"):
            raise DeadlineError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(StoredFolder, "put", unanswered)
        with pytest.raises(DeadlineError, match="no answer"):
            checkpoints.save("epoch-000002", snapshot(2))
    checkpoints.sweep(1)
    assert checkpoints.names() == ["epoch-000001"]
    assert newest(checkpoints, damaged := []) == "epoch-000001"
    assert not damaged


def test_a_store_that_is_away_is_refused_in_one_line_and_keeps_what_it_has(url, monkeypatch):
    store = StoredFolder(url, deadline_s=0.6)
    checkpoints = StoredCheckpoints(store)
    checkpoints.save("epoch-000001", snapshot(1))

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(store.filesystem, "put_file", away)
        with pytest.raises(DeadlineError, match=r"cannot write this file within 0.6 s: connection reset|cannot write"):
            checkpoints.save("epoch-000002", snapshot(2))
    assert checkpoints.names() == ["epoch-000001"]


def test_records_arrive_once_in_order_and_outlive_the_driver(store, monkeypatch):
    monkeypatch.setattr("graphmill.cluster.runs.remote_records._PERIOD_S", 0.05)
    reports = StoredRecords.create(store)
    reporter, reader = reports.reporter(), reports.reader()
    assert list(reader.fresh()) == []
    told = [{"kind": "epoch", "epoch": number, "train_loss": 1 / 3} for number in range(5)]
    for record in told[:3]:
        reporter.push(record)
    reporter.flush()
    assert list(reader.fresh()) == told[:3]
    reporter.push({"kind": "step", "epoch": 3, "step": 1, "num_steps": 4})
    deadline, shown = time.monotonic() + 20, []
    while not shown and time.monotonic() < deadline:
        shown = list(reader.fresh())
    assert shown == [{"kind": "step", "epoch": 3, "step": 1, "num_steps": 4}]
    assert not reporter.stop_asked()
    reports.ask_to_stop()
    while not reporter.stop_asked() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reporter.stop_asked()
    for record in told[3:]:
        reporter.push(record)
    reporter.close()
    (left,) = StoredRecords.left(store)
    assert list(left.reader().records()) == told
    store.write(f"attempts/{reports.name}/notes.txt", b"mine")
    left.remove()
    assert store.names(f"attempts/{reports.name}") == ["notes.txt"]


def test_what_the_store_refuses_reaches_who_reports(url, monkeypatch):
    monkeypatch.setattr("graphmill.cluster.runs.remote_records._PERIOD_S", 0.05)
    store = StoredFolder(url, deadline_s=0.5)
    reporter = StoredRecords.create(store).reporter()

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("connection reset")

    monkeypatch.setattr(store.filesystem, "pipe_file", away)
    reporter.push({"kind": "epoch", "epoch": 0})
    with pytest.raises(DeadlineError, match=r"cannot write this file within 0\.5 s"):
        reporter.flush()


def test_whoever_waits_hears_of_the_refusal_at_once(url, monkeypatch):
    """However long the thread takes to end after it."""
    store = StoredFolder(url, deadline_s=0.2)

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

    monkeypatch.setattr("graphmill.cluster.runs.remote_records.begin", slowly_ending)
    monkeypatch.setattr("graphmill.cluster.runs.remote_records._END_S", 20.0)
    reporter, began = StoredRecords.create(store).reporter(), time.monotonic()

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("connection reset")

    monkeypatch.setattr(store.filesystem, "pipe_file", away)
    reporter.push({"kind": "epoch", "epoch": 0})
    with pytest.raises(DeadlineError, match="cannot write this file"):
        reporter.flush()
    assert time.monotonic() - began < 15


def test_one_driver_at_a_time(store):
    with RunLease(store, lease_s=2.0):
        began = time.monotonic()
        with (
            pytest.raises(ConflictError, match="expected a run that nobody trains now, found process"),
            RunLease(store, 2.0),
        ):
            pass
        assert time.monotonic() - began < 10
    with RunLease(store, 2.0):  # it has ended: no wait
        pass
    assert len(store.names("holders")) == 1


def test_a_driver_that_is_gone_is_followed(store, capsys):
    here = Holder.this()
    store.write("holders/000004.json", json.dumps(vars(replace(here, pid=2**22 - 1))).encode())
    began = time.monotonic()
    with RunLease(store, 60.0):  # of this machine, and no such process
        assert store.names("holders") == ["000005.json"]
    assert time.monotonic() - began < 20
    store.write("holders/000007.json", json.dumps(vars(replace(here, host="far", process="another"))).encode())
    with RunLease(store, 1.0):  # of another machine, and silent for a lease
        assert "was trained by process" in capsys.readouterr().err


def test_of_two_that_begin_at_once_one_trains(store):
    entered, refused, start = [], [], threading.Barrier(2)
    done = threading.Event()

    def begin() -> None:
        start.wait()
        try:
            with RunLease(store, lease_s=1.0):
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
    assert (len(entered), len(refused)) == (1, 1)


def test_who_was_taken_over_leaves_the_successors_files(store, url, capsys):
    theirs = {"config.json": b'{"seed": 2}', "metrics.jsonl": b"{}\n"}

    def train_on(directory: RunDirectory) -> None:
        directory.record({"epoch": 1, "train_loss": 1.0})
        assert store.create("holders/000002.json", b"{}")
        for name, content in theirs.items():
            store.write(name, content)
        time.sleep(30)  # the holder's next look ends it

    directory = RunDirectory.create(RunUrl(url), {"seed": 1})

    def drive() -> None:
        with RunLease(store, lease_s=10.0) as directory.hold, copied(directory):
            train_on(directory)

    with pytest.raises(ConflictError, match="another process has taken it over"):
        drive()
    assert {name: store.read(name) for name in theirs} == theirs
    assert f"what the run has recorded since is in {directory.path}" in capsys.readouterr().err
    assert RunUrl(f"{url}-next").folder != directory.path  # the next run leaves it alone
    assert directory.metrics() == [{"epoch": 1, "train_loss": 1.0}]


def test_the_working_folder_of_a_killed_driver_goes_with_the_next_run(url):
    code = "import os, sys; from graphmill.cluster.runs.run_url import RunUrl; print(RunUrl(sys.argv[1]).folder, flush=True); os._exit(1)"
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [sys.executable, "-c", code, "memory://runs/killed"], env=environment, capture_output=True, text=True
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    mine = RunUrl(url)
    assert mine.folder.is_dir()
    assert not left.parent.exists()
    assert RunUrl(f"{url}-next").folder.is_dir()
    assert mine.folder.is_dir()  # of a process that lives


def test_once_the_store_lacks_something_a_killed_drivers_folder_is_the_users(store, url, monkeypatch):
    monkeypatch.setattr(run_copy, "_PERIOD_S", 0.01)
    directory = RunDirectory.create(RunUrl(url), {"seed": 1})
    owner = directory.path.parent / "owner"
    assert owner.exists()
    with copied(directory), monkeypatch.context() as away:
        away.setattr(StoredFolder, "write", raise_away)
        directory.record({"epoch": 1, "train_loss": 1.0})
        wait_until(lambda: not owner.exists())  # were the driver killed now, nobody would remove it
    assert store.read("metrics.jsonl")
    assert not directory.path.parent.exists()


def raise_away(*_: Any) -> None:
    raise DeadlineError("the store is away")


def test_the_workers_of_who_was_taken_over_save_nothing_more(store, url):
    place, kept = RunUrl(url), list[str]()
    directory = RunDirectory.create(place, {"seed": 1})

    def take_over(record: Mapping[str, Any]) -> None:
        if record["epoch"] == 1 and store.create("holders/000002.json", b"{}"):
            kept.extend(StoredCheckpoints(store).names())

    def drive() -> None:
        with RunLease(store, lease_s=2.0) as directory.hold, copied(directory):
            launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), place)
            train(spec(epochs=10_000, checkpoint_every=10_000), launcher, directory, lambda _: None)

    directory.listeners.append(take_over)
    with pytest.raises(ConflictError, match="another process has taken it over"):
        drive()
    assert StoredCheckpoints(store).names() == kept


def test_a_local_run_has_one_driver_too(tmp_path):
    place = RunUrl(str(tmp_path))
    with place.held(), pytest.raises(ConflictError, match="found a process that does"), RunUrl(str(tmp_path)).held():
        pass
    with place.held():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_trains_into_the_store_as_into_a_folder(url, tmp_path):
    def run(where: str) -> tuple[dict, RunUrl]:
        place = RunUrl(where)
        with place.held() if place.store else RunUrl(str(tmp_path)).held():
            directory = RunDirectory.create(place, {"seed": 1})
            with copied(directory):
                launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), place)
                summary = train(spec(epochs=3, checkpoint_every=1), launcher, directory, lambda _: None)
        return dict(summary), place

    (ours, stored), (theirs, local) = run(url), run(str(tmp_path / "run"))
    assert ours == theirs

    def losses(place: RunUrl) -> list[float]:
        return [json.loads(line)["train_loss"] for line in (place.read("metrics.jsonl") or b"").splitlines()]

    assert losses(stored) == losses(local)
    assert len(losses(stored)) == 3
    for name in ("model.safetensors",):
        assert stored.read(f"best/{name}") == local.read(f"best/{name}")
    assert not Path(stored.folder).exists()
    assert stored.store is not None
    assert StoredRecords.left(stored.store) == []
    assert len(StoredCheckpoints(stored.store).names()) == 2
    assert any(name.startswith("events.out") for name in stored.store.names("tensorboard"))
    with pytest.raises(ConfigError, match="expected no run here, found one"):
        check_free(RunUrl(url))


def test_epochs_that_a_killed_driver_has_not_recorded_are_made_up_for(store, url):
    reports = StoredRecords.create(store)
    reporter = reports.reporter()
    for number in range(2):
        reporter.push({"kind": "epoch", "epoch": number, "train_loss": 0.5})
    reporter.close()
    directory = RunDirectory.create(RunUrl(f"{url}-other"), {})
    (left,) = RunUrl(url).left_reports()
    directory.start(2)
    directory.make_up(left.reader().records(), 2)
    assert [line["epoch"] for line in directory.metrics()] == [0, 1]


def test_the_best_weights_are_whole_or_not_there(store, url, monkeypatch):
    checkpoints = StoredCheckpoints(store)
    checkpoints.save("epoch-000001", snapshot(1))
    place = RunUrl(url)
    with checkpoints.opened("epoch-000001") as folder:
        keep_best_of(folder, place)
    before = place.read("best/state.json")
    put = StoredFolder.put

    def cut(self: StoredFolder, source: Path, name: str) -> None:
        put(self, source, name)
        raise OSError("killed")

    checkpoints.save("epoch-000002", snapshot(2))
    monkeypatch.setattr(StoredFolder, "put", cut)
    with checkpoints.opened("epoch-000002") as folder, pytest.raises(OSError, match="killed"):
        keep_best_of(folder, place)
    assert before is not None
    assert place.read("best/state.json") is None


def test_the_driver_follows_reports_on_a_store(store, monkeypatch):
    monkeypatch.setattr("graphmill.cluster.runs.remote_records._PERIOD_S", 0.05)
    reports, seen, settled = StoredRecords.create(store), [], []
    with followed(reports, seen.append, settle=lambda: settled.append(len(seen))):
        reporter = reports.reporter()
        reporter.push({"kind": "epoch", "epoch": 0})
        reporter.close()
    assert seen == [{"kind": "epoch", "epoch": 0}]
    assert settled == [1]
    assert StoredRecords.left(store) == []


def test_a_url_of_no_bucket_or_no_package_is_one_line(s3):
    with pytest.raises(ConfigError, match="expected a bucket"):
        StoredFolder("s3://no-such-bucket-here/run").check_bucket()
    with pytest.raises(FormatError, match="cannot open this kind of URL"):
        _ = RunUrl("nothing://x/run").store
