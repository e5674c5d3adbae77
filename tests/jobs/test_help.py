"""Tests `--help` and the refusal of wrong values in the jobs about runs and machines: both are fast and import no heavy package.

A closed pipe causes no traceback.
"""

import json
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
sys.argv[1:] = [*sys.argv[2:], "--help"]
try:
    job.main()
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "ray", "pyarrow", "scipy", "numba", "rdkit"} & set(sys.modules)
assert not heavy, heavy
"""


TRAINING = dict.fromkeys(
    ("pcqm4m_tokengt", "products_geco", "train_graphs", "train_links", "train_nodes"), "--fit.epochs"
)
SAYS = TRAINING | {
    "doctor": "--quick",
    "predict": "--workers",
    "run.evaluate": "--split",
    "report": "--out",
    "ingest": "--partitioner",
    "ingest embedded": "--chunk_rows",
    "inspect_graph": "--verify",
    "audit": "--fail_on",
    "mcp_server": "--max_cpu_seconds",
}


@pytest.mark.parametrize(("words", "option"), SAYS.items())
def test_help_imports_nothing_heavy(words: str, option: str) -> None:
    job, *first = words.split()
    command = [sys.executable, "-c", HELP, f"graphmill.jobs.{job}", *first]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
    assert f"  {option} " in done.stdout


REFUSED = """
import contextlib
import importlib
import io
import json
import sys

from graphmill.jobs.cli.exit_codes import run

for line in json.load(sys.stdin):
    sys.argv = line.split()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        run(importlib.import_module("jobs." + sys.argv[0]).main)
    print(json.dumps([said.getvalue(), sorted({"torch", "ray", "numba"} & set(sys.modules))]))
"""
WRONG = {
    "products_geco --sampler neighbor --sampler.fanouts 10 5": "fanouts needs one entry per layer",
    "products_geco --sampler.fanouts 10 5": "it belongs to --sampler neighbor",
    "products_geco --plan --sampler.num_chunks 2 --sampler.chunks_per_batch 3": "chunks_per_batch: expected 1 to",
    "train_nodes --fit.epochs -3": "epochs: expected at least 1, got -3",
    "train_nodes --model gecko": "model: expected one of geco",
    "train_nodes --run.parallel graph --model grit": "got grit",
    "train_nodes --sampler.cut partitions --sampler.corrected": "corrected: expected a cut at random",
    "train_nodes --run.dir {taken}": "expected no run here",
    "train_nodes --run.resume {taken}/nothing": "expected a run directory",
    "train_graphs --embeddings.width 8": "expected the nodes of one graph",
    "train_links --fit.steps 3": "a run on links counts epochs",
    "pcqm4m_tokengt --model.num_heads 7": "width must be a multiple of num_heads",
    "predict run out --deadline-s 0": "deadline_s: expected more than 0",
    "ingest synthetic out --partitions 0": "partitions: expected 1 to",
}


def test_a_wrong_value_that_needs_no_data_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    lines = json.dumps([line.format(taken=tmp_path) for line in WRONG])
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, cwd=REPOSITORY, input=lines, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    for (line, says), ended in zip(WRONG.items(), done.stdout.splitlines(), strict=True):
        said, heavy = json.loads(ended)
        assert (says in said, said.count("\n"), heavy) == (True, 1, []), (line, said, heavy)


ENDS = """
import sys
import time
from graphmill.jobs.cli.exit_codes import run
from graphmill.core.errors import ConfigError

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
