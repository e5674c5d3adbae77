"""Tests `--run.resume auto`: the same command begins a run and continues it after a kill, in a folder and on S3. A command with other options is refused."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, replay, report, train_nodes
from graphmill.jobs.run.train import begun, config, train
from tests.job_in_process import output_of, run_job
from tests.s3_server import s3_bucket

REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = [
    *("--data.nodes", "1500", "--model.width", "16", "--model.num_layers", "2", "--sampler.num_chunks", "3"),
    *("--fit.schedule", "constant", "--fit.checkpoint_every", "1", "--fit.patience", "none"),
    *("--workers.launcher", "process", "--run.resume", "auto"),
]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def lines(place: RunStore, name: str) -> list[dict]:
    return [json.loads(line) for line in (place.read(name) or b"").splitlines()]


def losses(place: RunStore, score: str = "valid_loss") -> list[tuple[int, float, float]]:
    return [(line["epoch"], line["train_loss"], line[score]) for line in lines(place, "metrics.jsonl")]


def weights(place: RunStore) -> bytes | None:
    return place.read("best/model.safetensors")


def start(where: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(REPOSITORY / "jobs" / "train_nodes.py"), *WORDS, *words, "--run.dir", where]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_job_killed_and_submitted_again_ends_as_one_that_never_was(bucket, workplace):
    epochs = ("--fit.epochs", "40")
    output_of(train_nodes.main, *WORDS, *epochs, "--run.dir", "undisturbed", cwd=workplace)
    undisturbed = RunStore(str(workplace / "undisturbed"))
    assert len(losses(undisturbed)) == 40
    for where in (f"{bucket}/runs/killed", str(workplace / "killed")):
        place, kills = RunStore(where), 0
        while kills < 2:
            before = checkpoints_of(place).names()[:1]
            job = start(where, workplace, *epochs)
            deadline = time.monotonic() + 300
            while checkpoints_of(place).names()[:1] <= before and job.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            job.kill()
            out, _ = job.communicate(timeout=60)
            assert "Traceback" not in out, out
            kills += 1
        output_of(train_nodes.main, *WORDS, *epochs, "--run.dir", where, cwd=workplace)
        assert losses(place) == losses(undisturbed)
        assert weights(place) == weights(undisturbed)
        assert [event["resumed"] for event in lines(place, "events.jsonl") if event["kind"] == "begin"][-1]


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_s3_is_read_from_there(bucket, workplace):
    where = f"{bucket}/runs/read"
    said = output_of(train_nodes.main, *WORDS, "--fit.epochs", "3", "--run.dir", where, cwd=workplace)
    assert f"report     {where}/report.html" in said
    printed = output_of(predict.main, where, f"{where}/predictions", cwd=workplace)
    assert "as in the run's summary" in printed
    done = run_job(report.main, [where], workplace)
    assert (done.returncode, done.stdout) == (0, f"{where}/report.html\n")
    done = run_job(replay.main, [where, "--epoch", "2", "--batch", "0", "--loss"], workplace)
    assert done.returncode == 0, done.stderr
    assert "of epoch-000002" in done.stdout
    place = RunStore(where)
    again = [*WORDS, "--fit.epochs", "3"]
    before, summary = place.names(), place.read("summary.json")
    done = run_job(train_nodes.main, [*again, "--run.dir", where], workplace)
    (line,) = (line for line in done.stdout.splitlines() if where in line)
    assert (done.returncode, line) == (
        0,
        f"{where} is finished (best epoch 3 of 3), nothing is left to do; more --fit.epochs go on with it",
    )
    assert (place.names(), place.read("summary.json")) == (before, summary)
    taken = run_job(train_nodes.main, [*again[:-4], "--fit.epochs", "3", "--run.dir", where], workplace)
    assert taken.returncode == 1
    assert "expected no run here, found one" in taken.stderr
    for change, told in (("--model.width", "width: 16 there, 32 here"), ("--fit.seed", "seed: 0 there, 32 here")):
        other = run_job(train_nodes.main, [*again, change, "32", "--run.dir", where], workplace)
        assert other.returncode == 1, other.stderr
        assert told in other.stderr
    assert place.store is not None
    for name in checkpoints_of(place).names():  # Makes the state of a run that ended before its first checkpoint.
        place.store.remove([f"train/{name}/{file}" for file in place.store.names(f"train/{name}")])
    other = run_job(train_nodes.main, [*again, "--fit.seed", "5", "--run.dir", where], workplace)
    assert other.returncode == 1, other.stderr
    assert "what it holds is of another run (seed: 0 there, 5 here" in other.stderr
    place.store.remove(["summary.json"])
    told = losses(place)
    output_of(train_nodes.main, *again, "--run.dir", where, cwd=workplace)
    assert losses(place) == told
    assert place.read("summary.json") is not None


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_workers_of_ray_train_into_s3_and_go_on(bucket, workplace):
    words = ["--data.molecules", "300", "--model.width", "16", "--model.num_layers", "1", "--fit.schedule", "constant"]
    words += ["--fit.checkpoint_every", "1", "--fit.micro_batches", "2", "--run.resume", "auto"]

    def run(where: str, *more: str) -> None:
        command = [sys.executable, str(REPOSITORY / "jobs" / "train_graphs.py"), *words, *more, "--run.dir", where]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=workplace, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr

    where = f"{bucket}/runs/ray"
    run(where, "--workers.launcher", "ray", "--workers", "2", "--fit.epochs", "2")
    place = RunStore(where)
    assert place.store is not None
    assert "attempts" not in place.names()
    run(where, "--workers.launcher", "ray", "--workers", "1", "--fit.epochs", "4")
    assert checkpoints_of(place).names() == ["epoch-000004", "epoch-000003"]
    run("alone", "--workers.launcher", "process", "--fit.epochs", "4")
    alone = RunStore(str(workplace / "alone"))
    assert losses(place, "valid_mae") == losses(alone, "valid_mae")
    assert weights(place) == weights(alone)


def test_auto_needs_a_directory_and_begins_where_there_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match=r"expected --run\.dir beside --run\.resume auto"):
        config("--run.resume", "auto")
    said = config("--run.resume", "auto", "--run.dir", str(tmp_path / "new"))
    assert said.run.resume == "auto"
    assert begun(said).diff(said) == {"run.resume": (None, "auto")}


def test_python_goes_on_with_a_run_as_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "--data.nodes", "300", "--run.dir", "run", "--fit.epochs"]
    train(config(*words, 2, "--fit.micro_batches", 2))
    train(config(*words, 3).changed(("run.resume", "auto")))  # without --fit.micro_batches
    assert [line[0] for line in losses(RunStore("run"))] == [0, 1, 2]
    with pytest.raises(ConfigError, match="seed: 0 there, 5 here"):
        train(config(*words, 3, "--fit.seed", 5))
