"""Tests the gate's rule for Ray: Ray's core tests run on every machine. If Ray does not start there, the gate fails and names Ray's time limit."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CORE = {
    "test_products_geco.py": "test_a_run_leaves_everything_it_promises",
    "test_worker_failures.py": "test_more_failures_than_the_rate_allows_end_the_run",
    "test_job_submit.py": "test_a_job_that_ends_well_is_reported_so",
}
# Here the machine pretends to be slow, and Ray pretends not to start.
PRETENDED = """
import contextlib
import sys

import pytest

from tests import ray_head

@contextlib.contextmanager
def one_start(*asked):
    print("STARTED")
    raise RuntimeError("it timed out during startup")
    yield

ray_head.why_too_slow_for_ray = lambda: "pretended to be slow"
ray_head._one_start = one_start
sys.exit(pytest.main(["-q", "-rA", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", "pyproject.toml", sys.argv[1]]))
"""
GATE = """
import pytest

from tests.ray_head import start_ray_head

pytestmark = pytest.mark.ray

def test_other():
    raise AssertionError

@pytest.mark.core
def test_core():
    pass

@pytest.mark.core
def test_core_without_ray():
    with start_ray_head():
        raise AssertionError
"""


def test_the_core_runs_on_a_slow_machine_and_fails_where_ray_does_not_come_up(tmp_path: Path) -> None:
    (tmp_path / "test_toy.py").write_text(GATE)
    command = [sys.executable, "-c", PRETENDED, str(tmp_path / "test_toy.py")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"1 failed, 1 passed, 1 skipped", done.stdout), done.stdout
    assert re.search(r"SKIPPED .*pretended to be slow", done.stdout)
    assert re.search(r"PASSED .*::test_core$", done.stdout, re.MULTILINE)
    *_, last = (line for line in done.stdout.splitlines() if line.startswith("FAILED "))
    assert "::test_core_without_ray" in last
    assert "Ray gives its processes 30 s to come up, a limit of its own, and 3 starts did not" in last
    assert done.stdout.count("STARTED") == 3


def test_the_core_is_one_run_one_killed_worker_and_one_submitted_job() -> None:
    marked = {
        path.name: re.findall(r"^@pytest\.mark\.core\n(?:@.*\n)*def (\w+)", path.read_text(), re.MULTILINE)
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if path != Path(__file__)
    }
    assert {name: names for name, names in marked.items() if names} == {name: [test] for name, test in CORE.items()}
