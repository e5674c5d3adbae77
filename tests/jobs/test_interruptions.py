"""The main job, disturbed: Ctrl-C ends it in seconds and leaves nothing behind; a killed worker costs time and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = [
    "--nodes",
    "1500",
    "--width",
    "16",
    "--layers",
    "2",
    "--chunks",
    "8",
    "--checkpoint-every",
    "8",
    "--epochs",
    "20",
]


def start(run: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(REPOSITORY / "jobs" / "products_geco.py"), *FLAGS, "--run-dir", str(run), *flags]
    return subprocess.Popen(
        command, cwd=run.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def recorded(run: Path) -> list[dict]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def wait_for_epochs(job: subprocess.Popen[str], run: Path, count: int, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while len(recorded(run)) < count:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[tuple[float, float]]:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    job = start(run)
    out, err = job.communicate(timeout=240)
    assert "Traceback" not in err, out + err
    return [(line["train_loss"], line["valid_loss"]) for line in recorded(run)]


def test_ctrl_c_ends_the_job_and_resume_completes_it(tmp_path, undisturbed):
    run = tmp_path / "run"
    job = start(run)
    wait_for_epochs(job, run, 9)  # one more than the first checkpoint holds
    family = psutil.Process(job.pid).children(recursive=True)
    pressed = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130
    assert time.monotonic() - pressed < 30
    assert err.strip() == "interrupted"
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, alive
    resumed = start(run.parent / "run", "--resume", str(run))
    _, err = resumed.communicate(timeout=240)
    assert "Traceback" not in err, err
    assert [(line["train_loss"], line["valid_loss"]) for line in recorded(run)] == undisturbed


def test_a_killed_worker_changes_nothing(tmp_path, undisturbed):
    run = tmp_path / "run"
    job = start(run)
    wait_for_epochs(job, run, 3)  # before the first checkpoint
    workers = [
        process
        for process in psutil.Process(job.pid).children(recursive=True)
        if "RayTrainWorker" in " ".join(process.cmdline())
    ]
    assert len(workers) == 2
    workers[1].kill()
    _, err = job.communicate(timeout=240)
    assert "Traceback" not in err, err
    assert [(line["train_loss"], line["valid_loss"]) for line in recorded(run)] == undisturbed
    # It was killed before the first checkpoint: every epoch was run again, and none is recorded twice.
    assert [line["epoch"] for line in recorded(run)] == list(range(20))
