"""Tests that the real clients of MLflow and W&B copy runs into MLflow's file store and W&B's offline files."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import graphmill.jobs.records.trackers
from graphmill.cluster.runs.run_directory import RunDirectory, flat
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import RunOptions
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.records.trackers import tracked
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.jobs.run.training_run import open_run
from tests.runs import config_of
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIG = {"fit": {"epochs": 4, "seed": 0}, "run": {"workers": 2}}


def record(epoch: int) -> dict:
    return {"epoch": epoch, "train_loss": 1.0 / (1 + epoch), "valid_accuracy": 0.1 * epoch, "note": "text"}


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow's client, and the path of its store."""
    client = pytest.importorskip("mlflow").MlflowClient
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    return client(), tmp_path / "mlruns"


def history(client, path: Path, name: str) -> list[tuple[int, float]]:
    number = json.loads((path / "tracking.json").read_text())["mlflow"]["id"]
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(number, name))


def the_run(client):
    experiment = client.get_experiment_by_name("graphmill")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def hidden(store: Path, path: Path, away: Path) -> Path:
    """Moves the run's entry out of MLflow's store, so that MLflow fails. Returns the new place of the entry."""
    (entry,) = store.glob("*/" + json.loads((path / "tracking.json").read_text())["mlflow"]["id"])
    shutil.move(entry, away)
    return entry


def sent(path: Path) -> int:
    """The last epoch that was sent to MLflow."""
    return json.loads((path / "tracking.json").read_text())["mlflow"]["sent"]


LOSSES = [(epoch, 1.0 / (1 + epoch)) for epoch in range(4)]


def test_a_run_and_its_continuation_are_one_entry_of_mlflow(mlflow, tmp_path, capsys):
    client, _ = mlflow
    path = tmp_path / "run-of-one"

    def interrupted():
        with open_run(RunStore(str(path)), RunOptions(track=("mlflow",)), CONFIG) as run:
            run.record(record(0))
            run.record(record(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    entry = the_run(client)
    assert entry.info.status == "KILLED"
    assert entry.info.run_name == "run-of-one"
    assert entry.data.params == {"fit.epochs": "4", "fit.seed": "0", "run.workers": "2"}
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",), resume=str(path)), CONFIG) as run:
        run.start(1)  # the run repeats epoch 1, with the same values
        for epoch in (1, 2, 3):
            run.record(record(epoch))
        run.write_summary({"accuracy": {"test": 0.5}, "model": "GECO", "beats": True})
    entry = the_run(client)
    assert entry.info.status == "FINISHED"
    assert history(client, path, "train_loss") == LOSSES
    assert entry.data.metrics["final.accuracy.test"] == 0.5
    assert "final.beats" not in entry.data.metrics
    assert "note" not in entry.data.metrics
    assert "not reached" not in capsys.readouterr().err


def test_what_could_not_be_sent_is_sent_later(mlflow, tmp_path, capsys):
    client, store = mlflow
    path = tmp_path / "run"
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",)), CONFIG) as run:
        run.record(record(0))
        wait_until(lambda: sent(path) == 0)
        entry = hidden(store, path, tmp_path / "away")
        said = ""

        def has_said() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "not reached" in said

        run.record(record(1))
        wait_until(has_said)
        run.record(record(2))
        shutil.move(tmp_path / "away", entry)
        run.record(record(3))
    assert history(client, path, "train_loss") == LOSSES
    said += capsys.readouterr().err
    assert said.count("mlflow: not reached, the run goes on") == 1


def test_nobody_waits_for_a_tracker_that_does_not_answer(mlflow, tmp_path, monkeypatch, capsys):
    client, _ = mlflow
    path = tmp_path / "run"
    answers = threading.Event()
    send = graphmill.jobs.records.trackers.MLflow._send

    def slow(self, values, epoch):
        answers.wait(60)
        send(self, values, epoch)

    monkeypatch.setattr(graphmill.jobs.records.trackers.MLflow, "_send", slow)
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",)), CONFIG) as run:
        for epoch in range(4):
            run.record(record(epoch))
        assert sent(path) == -1
        answers.set()
    assert history(client, path, "train_loss") == LOSSES
    # If a tracker never answers, the run gives up waiting for it at the end.
    answers.clear()
    monkeypatch.setitem(graphmill.jobs.records.trackers._END_S, "finished", 0.2)
    with open_run(RunStore(str(tmp_path / "other")), RunOptions(track=("mlflow",)), CONFIG) as run:
        run.record(record(0))
    assert "mlflow: not reached, the run goes on" in capsys.readouterr().err
    answers.set()


def test_what_a_killed_run_could_not_send_its_continuation_sends(mlflow, tmp_path):
    client, store = mlflow
    path = tmp_path / "run"
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",)), CONFIG) as run:
        run.record(record(0))
        wait_until(lambda: sent(path) == 0)
        entry = hidden(store, path, tmp_path / "away")
        run.record(record(1))
        run.record(record(2))
    shutil.move(tmp_path / "away", entry)
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",), resume=str(path)), CONFIG) as run:
        run.record(record(3))
    assert history(client, path, "train_loss") == LOSSES


@pytest.mark.long
def test_two_trackers_keep_one_file(mlflow, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    client, _ = mlflow
    path = tmp_path / "run"
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow", "wandb")), CONFIG) as run:
        for epoch in range(4):
            run.record(record(epoch))
    assert history(client, path, "train_loss") == LOSSES
    assert {name: entry["sent"] for name, entry in json.loads((path / "tracking.json").read_text()).items()} == {
        "mlflow": 3,
        "wandb": 3,
    }
    assert "not reached" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"mlflow": 3}', '{"mlflow": {"id": "a"}}'])
def test_a_damaged_file_of_entries_is_one_line(tmp_path, text):
    pytest.importorskip("mlflow")
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    (run.path / "tracking.json").write_text(text)
    with (
        pytest.raises(ConfigError, match=r"expected the trackers' entries, got .* remove it to begin new entries"),
        tracked(("mlflow",), "graphmill", run, CONFIG),
    ):
        pass


def test_a_run_that_was_not_tracked_from_the_beginning_is_sent_whole(mlflow, tmp_path):
    client, _ = mlflow
    path = tmp_path / "run"
    with open_run(RunStore(str(path)), RunOptions(), CONFIG) as run:
        run.record(record(0))
        run.record(record(1))
    assert not (path / "tracking.json").exists()
    with open_run(RunStore(str(path)), RunOptions(track=("mlflow",), resume=str(path)), CONFIG) as run:
        run.record(record(2))
        run.record(record(3))
    assert history(client, path, "train_loss") == LOSSES


def test_a_run_that_fails_says_so(mlflow, tmp_path):
    client, _ = mlflow
    with pytest.raises(ValueError), open_run(RunStore(str(tmp_path / "run")), RunOptions(track=("mlflow",)), CONFIG):
        raise ValueError("no")
    assert the_run(client).info.status == "FAILED"


def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    with (
        pytest.raises(ConfigError, match=r"track: mlflow: .*set MLFLOW_TRACKING_URI") as error,
        tracked(("mlflow",), "graphmill", run, CONFIG),
    ):
        pass
    assert "\n" not in str(error.value)


def wandb_records(data: bytes):
    """Records of a .wandb file. The file has a header of 7 bytes and then LevelDB's log format. Each record must fit in one block."""
    from wandb.proto.wandb_internal_pb2 import Record

    at = 7
    while at + 7 <= len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        assert kind == 1, "a record that is cut into pieces"
        entry = Record()
        entry.ParseFromString(data[at + 7 : at + 7 + length])
        yield entry
        at += 7 + length


def test_a_run_in_wandbs_offline_files(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = tmp_path / "run"
    with open_run(RunStore(str(path)), RunOptions(track=("wandb",)), CONFIG) as run:
        for epoch in range(4):
            run.record(record(epoch))
        run.write_summary({"accuracy": {"test": 0.5}})
    number = json.loads((path / "tracking.json").read_text())["wandb"]["id"]
    (file,) = path.glob(f"wandb/offline-run-*/run-{number}.wandb")
    deadline = time.monotonic() + 30  # a separate process of W&B writes the file
    while not any(entry.HasField("exit") for entry in wandb_records(file.read_bytes())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    losses, finals, codes = [], {}, []
    for entry in wandb_records(file.read_bytes()):
        kind = entry.WhichOneof("record_type")
        items = {"history": entry.history.item, "summary": entry.summary.update}.get(kind, ())
        values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        if kind == "history":
            losses.append((values["_step"], values["train_loss"]))
        elif kind == "summary":
            finals |= values
        elif kind == "exit":
            codes.append(entry.exit.exit_code)
    assert losses == LOSSES
    assert finals["final.accuracy.test"] == 0.5
    assert codes == [0]
    assert wandb.run is None


def test_wandb_without_a_key_is_one_line(tmp_path):
    """Runs in a separate process, because a process reads W&B's mode only once."""
    pytest.importorskip("wandb")
    program = (
        "from graphmill.cluster.runs.run_directory import RunDirectory\nfrom graphmill.jobs.cli.exit_codes import run\nfrom graphmill.jobs.records.trackers import tracked\n"
        "from pathlib import Path\n"
        "def main():\n"
        "    with tracked(('wandb',), 'p', RunDirectory.create(Path('run'), {}), {}):\n        pass\n"
        "run(main)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    paths = {"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "NETRC": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | paths,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: track: wandb: ")
    assert "WANDB_MODE=offline" in done.stderr
    assert done.stderr.count("\n") == 1


def test_unknown_and_missing_trackers(monkeypatch):
    with pytest.raises(ConfigError, match=r"--run\.track: expected one of mlflow, wandb, got 'comet'"):
        config_of("--run.track", "comet")
    config = config_of("--run.track", "wandb")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"wandb is not installed; pip install wandb"):
        resolve(config, Facts(PLACEHOLDERS["nodes"], {}, None))


def test_flat_names():
    assert flat({"a": {"b": {"c": 1}, "d": None}, "e": (1, 2)}) == {"a.b.c": 1, "a.d": None, "e": (1, 2)}
