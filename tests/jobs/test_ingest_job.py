"""Tests the commands ingest and inspect: their output, exit status and files."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphmill.storage.graph import open_graph
from graphmill.storage.importers.public.data_sets import DATA_SETS
from tests.job_in_process import run_job
from tests.raw_layouts import write_set
from tests.stored_files import newest_manifest, stored_file

ROOT = Path(__file__).resolve().parents[2]


def _run(job, *arguments):
    return run_job(importlib.import_module(f"graphmill.jobs.{job}").main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    url = tmp_path_factory.mktemp("graphs") / "synthetic"
    done = _run("ingest", "synthetic", url, "--partitions", 3, "--partitioner", "ldg", "--synthetic.num-nodes", 2000)
    assert done.returncode == 0, done.stderr
    return url, done


def test_ingest_writes_and_says_what(stored):
    url, done = stored
    assert "2,000 nodes" in done.stdout
    assert "3 partitions" in done.stdout
    manifest = json.loads(newest_manifest(url).read_text())
    assert manifest["node_types"][0]["num_nodes"] == 2000
    assert [path.name for path in url.parent.iterdir()] == ["synthetic"]


def test_inspect_prints_and_verifies(stored):
    url, _ = stored
    done = _run("inspect_graph", url, "--verify")
    assert done.returncode == 0, done.stderr
    lines = {line.strip().split("  ", 1)[0]: line.strip().split("  ", 1)[1] for line in done.stdout.splitlines()}
    assert lines["nodes"] == "2,000"
    assert lines["partitions"] == "3 (ldg, of 3 locality groups)"
    assert lines["split"] == "train 160, valid 40, test 1,800"
    assert lines["classes"].startswith("47, largest")
    assert "max/mean" in lines["balance"]
    assert float(lines["edge cut"].split()[-1].rstrip("%")) < 40
    assert "every checksum matches" in lines["verified"]


def test_inspect_lists_the_snapshots_and_opens_the_one_asked_for(tmp_path):
    url = tmp_path / "graph"
    for nodes in (60, 50, 70):
        done = _run("ingest", "synthetic", url, "--partitions", 2, "--overwrite", "--synthetic.num-nodes", nodes)
        assert done.returncode == 0, done.stderr
    dates = [1e9, 1.5e9, 1.6e9]
    for number, date in enumerate(dates, 1):
        path = url / "manifests" / f"{number:06d}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"created": date}))

    def lines(*flags):
        done = _run("inspect_graph", url, *flags)
        assert done.returncode == 0, done.stderr
        return {line.strip().split("  ", 1)[0]: line.strip().split("  ", 1)[1] for line in done.stdout.splitlines()}

    newest = lines()
    assert newest["nodes"] == "70"
    assert newest["snapshots"] == "3 of 2020-09-13 12:26:40 (open), 2 of 2017-07-14 02:40:00, 1 of 2001-09-09 01:46:40"
    older = lines("--snapshot", 2, "--verify")
    assert older["nodes"] == "50"
    assert older["snapshots"] == "3 of 2020-09-13 12:26:40, 2 of 2017-07-14 02:40:00 (open), 1 of 2001-09-09 01:46:40"
    (url / "manifests" / "000001.json").write_text("{")
    assert lines()["snapshots"].endswith(", 1 that cannot be read")
    for missing in (0, 4, -1):
        done = _run("inspect_graph", url, f"--snapshot={missing}")
        assert done.returncode == 1
        assert done.stderr == f"error: {url}: expected snapshot {missing}, found 1, 2, 3; it may be pruned\n"


def test_overwrite_never_writes_into_a_folder_of_other_files(tmp_path):
    for name in ("thesis.tex", "manifest.json"):
        url = tmp_path / name.partition(".")[0]
        url.mkdir()
        (url / name).write_text("precious")
        done = _run("ingest", "synthetic", url, "--overwrite", "--synthetic.num-nodes", 50)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert [path.read_text() for path in url.iterdir()] == ["precious"]


def test_inspect_names_a_flipped_bit(stored, tmp_path):
    import shutil

    url = tmp_path / "copy"
    shutil.copytree(stored[0], url)
    damaged = stored_file(url, "part-00001/features.arrow")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert _run("inspect_graph", url).returncode == 0  # only --verify reads every byte
    done = _run("inspect_graph", url, "--verify")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "part-00001/features.arrow" in done.stderr
    assert done.stderr.count("\n") == 1


def test_inspect_names_a_flipped_label_without_verification(stored, tmp_path):
    import shutil

    import numpy as np

    from graphmill.storage.graph import open_graph

    url = tmp_path / "copy"
    shutil.copytree(stored[0], url)
    label = open_graph(str(url)).partition(1).label
    changed = label.copy()
    changed[0] ^= 1 << 20
    path = stored_file(url, "part-00001/nodes.arrow")
    content = path.read_bytes()
    assert content.count(label.tobytes()) == 1
    path.write_bytes(content.replace(label.tobytes(), changed.tobytes()))
    done = _run("inspect_graph", url)
    assert done.returncode == 1
    assert f"found {min(0, int(np.min(label)))} to {int(changed[0])}" in done.stderr
    assert "part-00001/nodes.arrow: expected labels in [-1, 47)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["absent.parquet", "{url}"], "absent.parquet: no such file"),
        (["ogbn-products", "{url}", "--download", "no", "--ogb-root", "{empty}"], "products.zip"),
        (["synthetic", "{url}", "--synthetic.num-nodes", "50", "--partitions", "51"], "partition"),
        (["synthetic", "{url}", "--synthetic.num-nodes", "50", "--num-classes", "5"], "a class in [0, 5), got 46"),
        (["synthetic", "/proc/graph"], "cannot make this directory (choose another url)"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(tmp_path, arguments, expected):
    if arguments[0].startswith("ogbn-"):
        pytest.importorskip("ogb")
    done = _run("ingest", *(a.format(url=tmp_path / "graph", empty=tmp_path) for a in arguments))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("signum", "status", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "")])
def test_a_signal_leaves_nothing(tmp_path, signum, status, said):
    command = [sys.executable, str(ROOT / "jobs/ingest.py"), "synthetic", str(tmp_path / "graph")]
    process = subprocess.Popen(
        [*command, "--synthetic.num-nodes", "3000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not any(tmp_path.rglob("scratch/feature")):  # ingestion has begun when this file exists
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signum)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert errors.strip() == said
    assert list(tmp_path.iterdir()) == []


def test_a_public_set_by_its_name(tmp_path):
    write_set("amazon-photo", tmp_path)
    done = _run("ingest", "amazon-photo", tmp_path / "photo", "--root", tmp_path, "--split_sets", 3, "--partitions", 2)
    assert done.returncode == 0, done.stderr
    graph = open_graph(str(tmp_path / "photo"))
    assert graph.manifest.num_split_sets == 3
    assert [split.num_nodes for split in graph.manifest.measured.splits] == [(0, 60, 90, 90)] * 3
    assert graph.manifest.symmetric


@pytest.mark.parametrize("name", ["hm-categories", "tolokers-2", "city-roads-m"])
def test_the_printed_command_trains_on_a_set_of_graphland(tmp_path, name):
    write_set(name, tmp_path)
    assert _run("ingest", name, tmp_path / "stored", "--root", tmp_path).returncode == 0
    options = DATA_SETS[name].options.split()
    done = _run("train_nodes", "--data", tmp_path / "stored", *options, "--fit.steps", 1, "--run.dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metric"] == (options[-1] if options else "accuracy")


def test_a_public_set_whose_files_are_not_there(tmp_path):
    done = _run("ingest", "cora", tmp_path / "cora", "--root", tmp_path)
    assert done.returncode == 1
    assert "cora: ind.cora.x, ind.cora.tx" in done.stderr
    assert not (tmp_path / "cora").exists()
    done = _run("ingest", "synthetic", tmp_path / "some", "--per_class", 3)
    assert done.returncode == 1
    assert "per_class: expected a public set of one graph" in done.stderr
