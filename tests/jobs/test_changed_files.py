"""Shortens or overwrites, during a run, a file that the run has mapped.

The run names the file in one line, ends with status 1, and records the fault in its directory.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.disturbed_job import Job, events
from tests.listed_graph import random_listed_graph
from tests.stored_files import stored_file

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = [
    *("--data.nodes", "1500", "--model.width", "16", "--model.num_layers", "2", "--fit.schedule", "constant"),
    *("--fit.epochs", "4000", "--workers.launcher", "process"),
]
NEIGHBOR = ["--sampler", "neighbor", "--sampler.fanouts", "5", "5", "--sampler.batch_size", "100"]


def cut(graph: Path) -> Path:
    path = stored_file(graph, "part-00001/features.arrow")
    os.truncate(path, 0)
    return path


def overwrite(graph: Path, column: str, junk: int) -> Path:
    """Overwrites the column in its file in place, as a careless copy would."""
    values = getattr(open_graph(str(graph)).partition(1), column)
    path = stored_file(graph, "part-00001/topology.arrow")
    place = path.read_bytes().index(values.tobytes())
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(np.full_like(values, junk).tobytes())
    return path


def far_ids(graph: Path) -> Path:
    return overwrite(graph, "indices", 2**31 - 1)


def far_offsets(graph: Path) -> Path:
    return overwrite(graph, "indptr", 2**61)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "change"),
    [
        (NEIGHBOR, cut),
        pytest.param(NEIGHBOR, far_ids, marks=pytest.mark.long),
        pytest.param(NEIGHBOR, far_offsets, marks=pytest.mark.long),
        pytest.param(["--sampler.num_chunks", "3"], far_ids, marks=pytest.mark.long),
        pytest.param(["--sampler.num_chunks", "3"], far_offsets, marks=pytest.mark.long),
    ],
)
def test_a_run_says_which_file(tmp_path: Path, sampler: list[str], change: Callable[[Path], Path]) -> None:
    run = tmp_path / "run"
    job = Job(
        run,
        command=[sys.executable, str(REPOSITORY / "jobs" / "train_nodes.py"), *FLAGS, *sampler, "--run.dir", str(run)],
    )
    job.wait_for_epochs(2)
    (graph,) = tmp_path.glob("data/*")
    path = change(graph)
    status, err = job.end(timeout_s=120)
    assert status == 1, err
    assert err.splitlines()[-1].startswith("error: ")
    line = f"{path}: expected the bytes that its manifest names, found"
    assert line in err.splitlines()[-1]
    assert err.count("expected the bytes") == 1, err
    assert line in (run / "failure.log").read_text()
    assert events(run)[-1]["kind"] == "fail"
    assert line in events(run)[-1]["error"]


READER = """
import ctypes, os, sys, threading
import numpy as np
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.faults import last_words
from graphmill.samplers.kernels.rows import take_rows
from graphmill.storage.graph import open_graph

def main():
    feature = open_graph(sys.argv[1]).partition(1).feature
    out = np.empty_like(feature)
    print("mapped", flush=True)
    what = sys.stdin.readline().strip()
    with last_words(lambda line: "; the last word"):
        if what == "numpy":  # which holds Python's lock
            feature.sum()
        elif what == "threads":  # compiled loops, which do not
            rows = np.arange(len(feature))
            threads = [threading.Thread(target=take_rows, args=(feature, rows, out)) for _ in range(8)]
            for one in threads: one.start()
            for one in threads: one.join()
        elif what == "astray":
            ctypes.string_at(16)
        else:
            raise IndexError(what)

run(main)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url = tmp_path_factory.mktemp("changed") / "graph"
    ingest(random_listed_graph(200, 1500), str(url), IngestOptions(num_partitions=2))
    return url


@pytest.mark.parametrize(
    ("what", "num_bytes", "status", "found"),
    [
        ("numpy", 0, 1, "found the file cut to 0 bytes while it was read"),
        pytest.param("threads", 0, 1, "found the file cut to 0 bytes while it was read", marks=pytest.mark.long),
        ("astray", 1, 1, "found the file changed while it was read"),
        ("astray", None, -signal.SIGSEGV, None),
        pytest.param("defect", 1, 1, "found the file changed while it was read", marks=pytest.mark.long),
        pytest.param("defect", None, 1, None, marks=pytest.mark.long),
    ],
)
def test_a_reader_says_which_file_and_a_defect_stays_one(
    graph: Path, what: str, num_bytes: int | None, status: int, found: str | None
) -> None:
    path = stored_file(graph, "part-00001/features.arrow")
    content = path.read_bytes()
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(graph)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "mapped\n"
    try:
        if num_bytes == 0:
            os.truncate(path, 0)
        elif num_bytes is not None:
            with path.open("r+b") as stream:
                stream.write(b"x" * num_bytes)
        _, err = reader.communicate(f"{what}\n", timeout=120)
    finally:
        with path.open("r+b") as stream:
            stream.write(content)
    assert reader.returncode == status, err
    if found is None:
        assert "error:" not in err
    else:
        last = "" if what == "defect" else "; the last word"
        advice = "; put the file back; a run goes on with --run.resume"
        assert err == f"error: {path}: expected the bytes that its manifest names, {found}{advice}{last}\n"


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGBUS])
def test_a_signal_that_somebody_sends_ends_the_process(signum: int) -> None:
    code = "import os, sys; from graphmill.jobs.cli.faults import faults_told\nwith faults_told(): os.kill(os.getpid(), int(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(int(signum))], capture_output=True, timeout=120)
    assert done.returncode == -signum, done.stderr
