"""Kills owners of embeddings while a job trains. Losses, scores and tables equal those from an undisturbed run, bit for bit."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.disturbed_job import REPOSITORY, Job, Outcome, epochs, start, starts
from tests.ray_head import RayHead
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

TABLE = ("--embeddings.width", "8", "--fit.micro_batches", "3", "--fit.checkpoint_every", "5")


def table(run: Path) -> dict[str, np.ndarray]:
    """The embedding table of the newest checkpoint, in the order of ids, for any number of owners."""
    newest = max((run / "train").glob("epoch-*"))
    ids = np.concatenate([np.load(path) for path in sorted(newest.glob("table-*.ids.npy"))])
    order = np.argsort(ids)
    names = {path.name.split(".")[1] for path in newest.glob("table-*.npy")}
    return {
        name: np.concatenate([np.load(path) for path in sorted(newest.glob(f"table-*.{name}.npy"))])[order]
        for name in names
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, ray_head: RayHead) -> Path:
    """A run without faults, and with another number of owners."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    status, said = start(run, *TABLE, "--embeddings.owners", "1", head=ray_head).end()
    assert status == 0, said
    return run


def equal(run: Path, undisturbed: Path) -> None:
    assert Outcome.of(run) == Outcome.of(undisturbed)
    ours, theirs = table(run), table(undisturbed)
    assert ours.keys() == theirs.keys() == {"ids", "rows", "best", "state0"}
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name]), name


def kill_an_owner(job: Job, number: int, num_owners: int = 3) -> None:
    wait_until(lambda: len(job.actors("TableServer")) == num_owners, 60)
    owners = job.actors("TableServer")
    victim = owners[number % len(owners)]
    victim.kill()
    wait_until(lambda: victim.pid not in {owner.pid for owner in job.actors("TableServer")}, 60)


def test_an_owner_that_is_killed_ten_times_changes_nothing(undisturbed, tmp_path, ray_head):
    job = start(tmp_path / "run", *TABLE, "--embeddings.owners", "3", head=ray_head)
    job.wait_for_epochs(1)
    for strike in range(10):
        done, struck = len(epochs(job.run)), time.monotonic()
        kill_an_owner(job, strike)
        job.wait_for_epochs(done + 2)
        print(f"strike {strike}: two epochs later after {time.monotonic() - struck:.1f} s")
    status, said = job.end()
    assert status == 0, said
    assert len(starts(job.run)) == 1  # no worker had to begin again
    equal(job.run, undisturbed)


def test_a_worker_and_an_owner_that_are_killed_change_nothing(undisturbed, tmp_path, ray_head):
    job = start(tmp_path / "run", *TABLE, "--embeddings.owners", "3", head=ray_head)
    job.wait_for_epochs(7)
    job.actors("RayTrainWorker")[1].kill()
    kill_an_owner(job, 0)
    job.wait_for_starts(2)
    job.wait_for_epochs(len(epochs(job.run)) + 2)
    status, said = job.end()
    assert status == 0, said
    equal(job.run, undisturbed)


def test_an_asynchronous_table_trains_resumes_and_predicts_and_outlives_an_owner(tmp_path, ray_head):
    """The rows depend on the order in which gradients arrive, so this test compares no losses bit for bit."""
    run, words = tmp_path / "run", (*TABLE, "--embeddings.mode", "async", "--embeddings.owners", "2")
    job = start(run, *words, "--fit.epochs", "12", head=ray_head)
    job.wait_for_epochs(3)
    kill_an_owner(job, 1, num_owners=2)
    status, said = job.end()
    assert status == 0, said
    assert len(starts(run)) == 1  # no worker had to begin again
    losses = [record["train_loss"] for record in epochs(run)]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    before = table(run)

    status, said = start(run, *words, "--run.resume", str(run), "--fit.epochs", "14", head=ray_head).end()
    assert status == 0, said
    losses += [record["train_loss"] for record in epochs(run)[12:]]
    assert len(losses) == 14
    assert max(losses[12:]) < losses[0]
    assert np.array_equal(table(run)["ids"], before["ids"])
    assert not np.array_equal(table(run)["rows"], before["rows"])

    summary = json.loads((run / "summary.json").read_text())
    command = [
        sys.executable,
        str(REPOSITORY / "jobs" / "predict.py"),
        str(run),
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    said, errors = Job(run, command=command, head=ray_head).popen.communicate(timeout=300)
    assert f"test accuracy {summary['scores']['test']!r} over" in said, errors
