"""`--help` of the jobs about runs and machines: at once, with nothing heavy imported; and no traceback where nobody reads it."""

import os
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


@pytest.mark.parametrize("job", ["doctor", "predict", "report", "train_graphs", "train_links", "train_nodes"])
def test_help_imports_nothing_heavy(job: str) -> None:
    command = [sys.executable, "-c", HELP, f"jobs.{job}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
    assert f"jobs/{job}.py" in done.stdout


ENDS = """
import sys
import time
from jobs.run.exit_codes import run
from storage.errors import ConfigError

def main():
    print("unread")
    if sys.argv[1] == "refused":
        raise ConfigError("the reason")
    return 3 if sys.argv[1] == "failed" else sys.exit(143) if sys.argv[1] == "ended" else 0

run(main)
"""


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [("well", 141, ""), ("refused", 1, "error: the reason\n"), ("failed", 3, ""), ("ended", 143, "")],
)
def test_a_reader_that_goes_is_no_error_and_hides_none(how: str, status: int, said: str) -> None:
    command = [sys.executable, "-c", ENDS, how]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    job = subprocess.Popen(command, cwd=REPOSITORY, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writing)
    _, err = job.communicate(timeout=120)
    assert (job.returncode, err) == (status, said)


def test_help_that_nobody_reads_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, str(REPOSITORY / "jobs" / "doctor.py"), "--help"]
    job = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    _, err = job.communicate(timeout=120)
    assert (job.returncode, err) == (141, "")


def test_no_output_at_all_is_no_error() -> None:
    command = ["sh", "-c", '"$0" -c "$1" well >&-', sys.executable, ENDS]
    done = subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.PIPE, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
