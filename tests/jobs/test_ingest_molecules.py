"""Tests commands that ingest and measure molecules: their output, their exit status, and the files after an interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import molecules
from graphmill.jobs import ingest
from graphmill.storage.snapshots.snapshots import has_graph
from tests.job_in_process import run_job
from tests.stored_files import contents, newest_manifest, stored_file

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments, cwd=Path("."), main=ingest.main):
    return run_job(main, [*map(str, arguments)], cwd)


def test_embedded_molecules_are_written_and_described(tmp_path):
    done = _run("embedded", "molecules", "--count", 300, "--chunk-rows", 100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "enumerated: 300 molecules" in done.stdout
    assert "targets: logp" in done.stdout
    assert "rejected: none" in done.stdout
    assert json.loads(newest_manifest(tmp_path / "molecules").read_text())["num_graphs"] == 300
    assert [path.name for path in tmp_path.iterdir()] == ["molecules"]


def test_rejected_rows_are_counted_and_shown(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,y\nCC,1\nC(C)(C)(C)(C)C,2\nCO,\nCN,x\n")
    done = _run(f"smiles:{tmp_path / 'm.csv'}", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "m: 2 molecules, 4 atoms, 2 bonds" in done.stdout
    assert "(1 without target)" in done.stdout
    assert "rejected: 2 rows" in done.stdout
    assert f"listed in {stored_file(tmp_path / 'out', 'rejects.csv')}; the first:" in done.stdout
    assert "line 3: Explicit valence" in done.stdout
    assert "line 5: target 'x' is not a number" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("qm10", "out"), "unknown source 'qm10'"),
        (("smiles:none.csv", "out"), "none.csv: no such file"),
        (("pcqm4mv2", "out"), "raw/data.csv.gz and split_dict.pt missing"),
        (("embedded", "memory://out"), "memory:// ends with this process"),
        (("embedded", "out", "--workers", "0"), "set --workers"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, arguments, message):
    done = _run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_loads_nothing_heavy():
    code = (
        "import runpy, sys; sys.argv = ['molecules', '--help']\n"
        "try: runpy.run_path('benchmarks/molecules.py', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'ray', 'torch', 'rdkit', 'ogb', 'pyarrow', 'numba'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


@pytest.mark.long
def test_killed_and_started_again_it_goes_on(tmp_path):
    """SIGKILL ends the first ingestion half way. The second reuses its pieces and writes the same files as an undisturbed ingestion."""
    (tmp_path / "m.csv").write_text("smiles,y\n" + "".join(f"{'C' * (n % 30 + 1)}O,{n}\n" for n in range(8_000)))
    arguments = (f"smiles:{tmp_path / 'm.csv'}", tmp_path / "out", "--chunk-rows", 100)
    command = [sys.executable, str(ROOT / "jobs" / "ingest.py"), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(pieces := list((tmp_path / "out" / "pieces").glob("*/chunk-*"))) < 5:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)  # polls, because no signal announces files of another process
        process.send_signal(signal.SIGKILL)
    assert not has_graph(str(tmp_path / "out"))
    before = {path.name: path.stat().st_mtime_ns for path in pieces}
    (before_one,) = [path for path in pieces if "-0000000-" in path.name]
    marked = before_one.stat().st_ino
    stopped = _run(
        *arguments, "--scratch", before_one
    )  # --scratch is no directory: ingestion fails after featurising, so the pieces stay for the test to see
    assert stopped.returncode == 1
    assert before_one.stat().st_ino == marked
    assert len(list(before_one.parent.glob("chunk-*"))) == 80
    assert before_one.stat().st_mtime_ns == before[before_one.name]
    done = _run(*arguments)
    assert done.returncode == 0, done.stderr
    whole = _run(f"smiles:{tmp_path / 'm.csv'}", tmp_path / "whole", "--chunk-rows", 100)
    assert whole.returncode == 0, whole.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out" / "pieces").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.csv", "out", "whole"]


@pytest.mark.long
def test_bench_prints_and_keeps_a_table(tmp_path):
    done = _run("--out", tmp_path, "--molecules", 200, "--workers", "1", "--rounds", 1, main=molecules.main)
    assert done.returncode == 0, done.stderr
    assert "| smiles2graph alone" in done.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rates"]["our featurisation, one core"] > 0
    assert (tmp_path / "results.md").read_text() in done.stdout
