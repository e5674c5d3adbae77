"""`--help` of the jobs about runs and machines: at once, with nothing heavy imported."""

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
