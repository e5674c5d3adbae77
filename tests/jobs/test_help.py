"""`--help` of the jobs about runs and machines: at once, with nothing heavy imported; and no traceback where nobody reads it."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HELP = """
import importlib
import sys

job = importlib.import_module(sys.argv[1])
sys.argv[1:] = ["--help"]
try:
    job.main()
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "ray", "pyarrow", "scipy", "numba"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("job", ["doctor", "predict", "report"])
def test_help_imports_nothing_heavy(job: str) -> None:
    command = [sys.executable, "-c", HELP, f"jobs.{job}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout
    assert f"jobs/{job}.py" in done.stdout


def test_a_reader_that_goes_is_no_error() -> None:
    command = [sys.executable, str(REPOSITORY / "jobs" / "doctor.py"), "--help"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stderr is not None
    job.stdout.close()
    assert job.stderr.read() == b""
    assert job.wait(timeout=120) == 141
