"""Runs the commands of the first guide for a cluster: `ray start --head`, then `ray job submit --working-dir .`."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphmill.cluster.ray.upload import LARGE_BYTES
from tests.ray_head import RayHead, start_ray_head
from tests.uploads import DATA, REPOSITORY, copy_checkout, plant

pytestmark = [pytest.mark.ray, pytest.mark.slow]

JOB = "submitted_job.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout. It also has data, the script of the job, and a large file that no rule excludes from uploads."""
    checkout = copy_checkout(tmp_path_factory.mktemp("submitted") / "checkout")
    plant(checkout, DATA)
    shutil.copy(REPOSITORY / "tests" / "cluster" / JOB, checkout)
    with open(checkout / "large.bin", "wb") as file:
        file.truncate(LARGE_BYTES)
    return checkout


def submit(
    head: RayHead, checkout: Path, *entrypoint: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ray", "job", "submit", "--address", head.dashboard_url, "--working-dir", ".", "--", *entrypoint],
        cwd=checkout,
        env=head.environment | (environment or {}),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def ray_head() -> Iterator[RayHead]:
    """A new head node with a dashboard. The tests submit jobs to it."""
    with start_ray_head(num_cpus=4, dashboard=True) as head:
        yield head


@pytest.fixture(scope="module")
def succeeded(ray_head: RayHead, checkout: Path) -> subprocess.CompletedProcess[str]:
    return submit(ray_head, checkout, "python", JOB)


@pytest.fixture(scope="module")
def report(succeeded: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in succeeded.stdout.splitlines() if "REPORT " in line]
    assert lines, succeeded.stdout + succeeded.stderr
    return json.loads(lines[-1].partition("REPORT ")[2])


@pytest.mark.core
def test_a_job_that_ends_well_is_reported_so(succeeded: subprocess.CompletedProcess[str]) -> None:
    assert succeeded.returncode == 0, succeeded.stdout + succeeded.stderr
    assert "succeeded" in succeeded.stdout


def test_the_job_uses_the_cluster_it_was_submitted_to(report: dict[str, Any]) -> None:
    assert report["is_ours"] is False


def test_the_job_and_its_workers_run_the_uploaded_code(report: dict[str, Any]) -> None:
    assert Path(report["cwd"]) != REPOSITORY
    assert report["package"] == str(Path(report["cwd"], "graphmill", "cluster", "__init__.py"))
    assert report["worker"]["package"] == str(Path(report["worker"]["cwd"], "graphmill", "storage", "__init__.py"))


def test_the_workers_are_forked_from_a_process_that_has_imported_what_they_need(report: dict[str, Any]) -> None:
    assert report["worker"]["is_warm"]


def test_the_upload_holds_the_sources_and_no_data(report: dict[str, Any]) -> None:
    files = {Path(name).as_posix() for name in report["files"]}
    assert {"jobs", "cluster", "samplers", "storage", "models"} <= {part for name in files for part in Path(name).parts}
    assert not files & set(DATA)
    assert not {name for name in files if name.startswith("tests/")}


def test_a_large_upload_is_named_where_it_arrives(succeeded: subprocess.CompletedProcess[str]) -> None:
    assert "warning: the upload has 1" in succeeded.stdout
    assert "the largest large.bin (10.0 MB)" in succeeded.stdout


@pytest.mark.long
def test_the_main_job_succeeds_on_a_cluster(ray_head: RayHead, checkout: Path, tmp_path: Path) -> None:
    # Outputs have absolute paths, because Ray removes the job's folder on the cluster when the job ends.
    command = "python jobs/products_geco.py --data.nodes 3000 --fit.epochs 20 --model.width 64 --model.num_layers 2"
    command += " --sampler.num_chunks 2 --fit.learning_rate 0.01 --fit.schedule constant --model.dropout 0"
    folders = ("--data.folder", str(tmp_path / "data"), "--run.dir", str(tmp_path / "run"))
    ended = submit(ray_head, checkout, *command.split(), *folders)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "succeeded" in ended.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["beats_baselines"] is True
    assert summary["workers"] == 2
    assert "partition servers up on the Ray cluster at" in ended.stdout


@pytest.mark.long
def test_a_second_job_from_another_upload_compiles_no_loop(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray unpacks the second upload into another folder. A process that compiles a loop replaces its file, so all processes are counted."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))

    def compiled() -> set[tuple[str, int]]:
        return {(file.name, file.stat().st_ino) for file in cache.glob("graphmill-loops/*.nbc")}

    command = "python jobs/products_geco.py --data.nodes 1500 --fit.epochs 2 --model.width 16 --model.num_layers 1"
    after = []
    with start_ray_head(num_cpus=4, dashboard=True) as head:
        for number in range(2):
            upload, folder = tmp_path / f"upload-{number}", tmp_path / f"job-{number}"
            shutil.copytree(checkout, upload, symlinks=True)
            with open(upload / "jobs" / "train_links.py", "a") as unrelated:
                unrelated.write(f"# upload {number}\n")
            folders = ("--data.folder", str(folder / "data"), "--run.dir", str(folder / "run"))
            ended = submit(head, upload, *command.split(), *folders)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            after.append(compiled())
    assert len(after[0]) > 10
    assert after[1] == after[0]


@pytest.mark.long
def test_a_job_that_fails_ends_the_command_with_1(ray_head: RayHead, checkout: Path) -> None:
    ended = submit(ray_head, checkout, "python", JOB, "--fail")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "this job was asked to fail" in ended.stdout + ended.stderr


@pytest.mark.long
def test_without_the_clusters_token_nothing_runs(ray_head: RayHead, checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.write_text("0" * 64)
    ended = submit(ray_head, checkout, "python", JOB, environment={"RAY_AUTH_TOKEN_PATH": str(other)})
    assert ended.returncode != 0
    assert "REPORT" not in ended.stdout
