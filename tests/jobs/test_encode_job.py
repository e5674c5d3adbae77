"""Tests jobs/encode.py from the command line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphmill.jobs import encode
from graphmill.storage.format.encodings import stored_encodings
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import ingest
from tests.job_in_process import run_job
from tests.listed_graph import random_listed_graph

REPOSITORY = Path(__file__).resolve().parents[2]


def encode_job(*arguments: str) -> subprocess.CompletedProcess:
    return run_job(encode.main, arguments)


@pytest.fixture
def url(tmp_path: Path) -> str:
    ingest(random_listed_graph(40, 160), str(tmp_path / "graph"))
    return str(tmp_path / "graph")


def test_computes_and_then_finds(url):
    first = encode_job(url, "laplacian", "--dim", "4")
    assert first.returncode == 0, first.stderr
    assert "laplacian-4-smallest: computed" in first.stdout
    second = encode_job(url, "laplacian", "--dim", "4")
    assert "laplacian-4-smallest: found" in second.stdout
    assert tuple(stored_encodings(open_graph(url))) == ("laplacian-4-smallest",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("laplacian", "--dim", "0"), "set --dim"), (("rwse", "--dim", "10000"), "set --dim")],
)
def test_one_line_for_bad_options(url, arguments, message):
    done = encode_job(url, *arguments)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_no_graph(tmp_path):
    done = encode_job(str(tmp_path), "rwse")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_help_imports_nothing_heavy():
    started = time.perf_counter()
    code = (
        "import sys\nsys.argv[1:] = ['--help']\nimport graphmill.jobs.encode as job\n"
        "try:\n    job.main()\nexcept SystemExit:\n    pass\n"
        "assert not {'scipy', 'pyarrow', 'torch', 'ray'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Compute and store" in done.stdout or "eigenvectors" in done.stdout.lower()
    assert time.perf_counter() - started < 30
