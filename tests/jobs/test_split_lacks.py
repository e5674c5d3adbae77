"""Tests that the plan, the doctor, and the run's first lines, summary and report all name the problems of splits, with both counts."""

import gzip
import json

import numpy as np
import pytest
import torch

from graphmill.jobs import doctor, ingest, inspect_graph, train_graphs, train_nodes
from graphmill.jobs.tasks.graph_task import set_lacks
from graphmill.jobs.tasks.node_task import graph_lacks
from graphmill.storage.graph import open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import ingest as write_graph
from tests.job_in_process import run_job

DOCTOR = ["--quick", "--ray.check", "no"]


def job(main, *words, cwd, code=0):
    done = run_job(main, [str(word) for word in words], cwd)
    assert done.returncode == code, done.stderr
    return done.stdout


def graph_of(url, label, split):
    count = len(label)
    ends = np.arange(count), (np.arange(count) + 1) % count
    feature = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    write_graph(
        ArrayGraph("g", count, *ends, feature=feature, label=label, split=split[:, None].astype(np.int8)), str(url)
    )
    return open_graph(str(url)).manifest


def test_classes_that_no_training_node_has_are_named_everywhere(tmp_path):
    label = np.repeat([0, 1, 2, -1], [20, 20, 10, 5])
    split = np.repeat([1, 2, 1, 3, 3, 3], [10, 10, 10, 10, 10, 5])
    manifest = graph_of(tmp_path / "graph", label, split)
    expected = [
        "valid has one class of 3: 0 (10 of 10 nodes)",
        "test has classes that none of 20 training nodes has: 2 (10 of 20)",
    ]
    assert graph_lacks(manifest, 0) == expected
    line = "; ".join(expected)
    words = ["--data", "graph", "--model", "gcn", "--model.num_layers", 1, "--model.width", 4, "--fit.epochs", 2]
    words += ["--run.dir", "run", "--workers.launcher", "process"]
    assert f"lacks  {line}\n" in job(train_nodes.main, *words, "--plan", cwd=tmp_path)
    assert f"warn  splits         graph lacks: {line}\n" in job(doctor.main, "--graph", "graph", *DOCTOR, cwd=tmp_path)
    assert f"\nsplits lack: {line}\n" in job(train_nodes.main, *words, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["lacks"] == expected
    report = (tmp_path / "run" / "report.html").read_text()
    assert all(f"Warning: {each}." in report for each in expected)


def test_splits_that_lack_nothing_say_nothing(tmp_path):
    label, split = np.tile([0, 1], 30), np.repeat([1, 2, 3], 20)
    assert graph_lacks(graph_of(tmp_path / "graph", label, split), 0) == []
    assert graph_lacks(graph_of(tmp_path / "real", label / 2 + 0.25, split), 0) == []
    assert graph_lacks(graph_of(tmp_path / "other", label, split), 3) == []
    assert " splits " not in job(doctor.main, "--graph", "graph", *DOCTOR, cwd=tmp_path)


def test_labels_of_which_no_training_node_says_yes(tmp_path):
    label = np.zeros((30, 2), np.int8)
    label[::3, 0] = label[25:28, 1] = 1
    manifest = graph_of(tmp_path / "graph", label, np.repeat([1, 2, 3], 10))
    assert graph_lacks(manifest, 0) == ["test has classes that none of 10 training nodes has: 1 (3 of 10)"]


def test_classes_of_sets(tmp_path):
    target = np.array([[0, 0.5], [1, 1], [0, 2], [0, 3], [2, 1], [np.nan, 1], [1, 1]], np.float32)
    graphs = PackedGraphs(np.full(7, 1), np.zeros(7, np.int64), np.zeros((2, 0), np.int32), None, None, target)
    info = GraphSetInfo("toy", target_names=("a", "b"), split_names=("train", "valid", "test"))
    write_graphs(str(tmp_path / "toy"), info, [shard_batch(graphs, "uint16", np.array([1, 1, 2, 2, 3, 3, 3], np.int8))])
    expected = [
        "valid has one class of 3: 0 (2 of 2 graphs)",
        "test has classes that none of 2 training graphs has: 2 (1 of 2)",
    ]
    store = open_graphs(str(tmp_path / "toy"))
    assert set_lacks(store, [0]) == expected
    assert set_lacks(store, [0, 1]) == [f"a: {each}" for each in expected]
    assert set_lacks(store, [1]) == set_lacks(store, []) == []


def test_official_rows_that_are_rejected_are_counted_by_their_part(tmp_path):
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    folder = tmp_path / "data" / "pcqm4m-v2"
    (folder / "raw").mkdir(parents=True)
    rows = [f"{'C' * (n % 9 + 1)}{'O' * (n // 9)}" for n in range(60)]
    rows[50] = rows[51] = rows[5] = "F[Si](F)(F)(F)(F)F"
    ends = {"train": (0, 40), "valid": (40, 50), "test-dev": (50, 55), "test-challenge": (55, 60)}
    with gzip.open(folder / "raw" / "data.csv.gz", "wt") as stream:
        values = [f"{n},{text},{'none at all' if n == 6 else n % 5 if n < 50 else ''}\n" for n, text in enumerate(rows)]
        stream.writelines(["idx,smiles,homolumogap\n", *values])
    torch.save({name: torch.arange(*both).numpy() for name, both in ends.items()}, folder / "split_dict.pt")
    said = job(ingest.main, "pcqm4mv2", "set", "--root", "data", cwd=tmp_path)
    lost = "train 2 of 40, test-dev 2 of 5"
    assert f"rejected: 4 rows ({lost}), listed in" in said
    assert lost in job(inspect_graph.main, "set", cwd=tmp_path)
    words = ["--data", "set", "--model", "grit", "--model.width", 16, "--model.num_layers", 1, "--fit.epochs", 2]
    words += ["--run.dir", "run", "--workers.launcher", "process", "--sampler.max_graphs", 16]
    assert f"lacks  rejected rows: {lost}\n" in job(train_graphs.main, *words, "--plan", cwd=tmp_path)
    assert f"set lacks: rejected rows: {lost}\n" in job(doctor.main, "--graph", "set", *DOCTOR, cwd=tmp_path)
    assert f"splits lack: rejected rows: {lost}\n" in job(train_graphs.main, *words, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["lacks"] == [f"rejected rows: {lost}"]
    assert f"Warning: rejected rows: {lost}." in (tmp_path / "run" / "report.html").read_text()
