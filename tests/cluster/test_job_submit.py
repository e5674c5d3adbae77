"""The README's cluster command, run for real: `ray start --head`, then `ray job submit --working-dir .`."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ray_head import RayHead, start_ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
JOB = "tests/cluster/submitted_job.py"
# Ray refuses some hundred MB; our sources are a few.
MAX_UPLOAD_BYTES = 8 * 2**20


def submit(
    head: RayHead, *entrypoint: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ray", "job", "submit", "--address", head.dashboard_url, "--working-dir", ".", "--", *entrypoint],
        cwd=REPOSITORY,
        env=head.environment | (environment or {}),
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def ray_head() -> Iterator[RayHead]:
    """A head of its own, for jobs are submitted to a dashboard."""
    with start_ray_head(num_cpus=4, dashboard=True) as head:
        yield head


@pytest.fixture(scope="module")
def succeeded(ray_head: RayHead) -> subprocess.CompletedProcess[str]:
    # These folders exist in a checkout that is in use; whether the upload leaves them out shows only if they do.
    decoys = [REPOSITORY / "runs" / "decoy.txt", REPOSITORY / "data" / "decoy.txt"]
    made = []
    try:
        for decoy in decoys:
            made += [parent for parent in [decoy.parent] if not parent.exists()]
            decoy.parent.mkdir(exist_ok=True)
            decoy.write_text("this file stays at home")
        return submit(ray_head, "python", JOB)
    finally:
        for decoy in decoys:
            decoy.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


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
    assert report["package"] == str(Path(report["cwd"], "cluster", "__init__.py"))
    assert report["worker"]["package"] == str(Path(report["worker"]["cwd"], "storage", "__init__.py"))


def test_the_upload_holds_the_sources_and_nothing_else(report: dict[str, Any]) -> None:
    sizes: dict[str, int] = report["files"]
    top = {Path(name).parts[0] for name in sizes}
    assert {"jobs", "cluster", "samplers", "storage", "models"} <= top
    assert not top & {".git", ".venv", "runs", "data", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
    assert sum(sizes.values()) < MAX_UPLOAD_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:10]


@pytest.mark.long
def test_the_main_job_succeeds_on_a_cluster(ray_head: RayHead, tmp_path: Path) -> None:
    # The job's own folder on the cluster goes away with the job: what is to stay is named by absolute paths.
    ended = submit(
        ray_head,
        *(
            "python",
            "jobs/products_geco.py",
            "--data.nodes",
            "3000",
            "--fit.epochs",
            "20",
            "--model.width",
            "64",
            "--model.num_layers",
            "2",
        ),
        *(
            "--sampler.num_chunks",
            "2",
            "--fit.learning_rate",
            "0.01",
            "--fit.schedule",
            "constant",
            "--model.dropout",
            "0",
        ),
        *("--data.folder", str(tmp_path / "data"), "--run.dir", str(tmp_path / "run")),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "succeeded" in ended.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["beats_baselines"] is True
    assert summary["workers"] == 2
    assert "partition servers up on the Ray cluster at" in ended.stdout


@pytest.mark.long
def test_a_job_that_fails_ends_the_command_with_1(ray_head: RayHead) -> None:
    ended = submit(ray_head, "python", JOB, "--fail")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "this job was asked to fail" in ended.stdout + ended.stderr


@pytest.mark.long
def test_without_the_clusters_token_nothing_runs(ray_head: RayHead, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.write_text("0" * 64)
    ended = submit(ray_head, "python", JOB, environment={"RAY_AUTH_TOKEN_PATH": str(other)})
    assert ended.returncode != 0
    assert "REPORT" not in ended.stdout
