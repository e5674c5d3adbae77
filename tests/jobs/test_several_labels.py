"""Tests runs on nodes with several labels each: training with baselines, plan, report, replay and prediction."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from graphmill.cluster.options import NodeBinaryOptions
from graphmill.cluster.tasks import BinaryClassification
from graphmill.core.errors import ConfigError
from graphmill.jobs import ingest, inspect_graph, predict, replay, report, train_nodes
from graphmill.jobs.tasks.node_task import node_task, positive_weights
from graphmill.storage.graph import open_graph
from tests.job_in_process import run_job
from tests.raw_layouts import write_set
from tests.runs import node_run

SMALL = ["--model.num_layers", 1, "--model.width", 32, "--fit.epochs", 30, "--fit.patience", "none"]


def _run(job, *arguments):
    return run_job(job.main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("yelp")
    write_set("yelp", root)
    done = _run(ingest, "yelp", root / "stored", "--root", root, "--partitions", 2)
    assert done.returncode == 0, done.stderr
    assert "--task binary --task.metric micro_f1" in done.stdout
    return root / "stored"


@pytest.fixture(scope="module")
def run(stored, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    weights = ["--task.class_weights", "balanced", "--baseline", "gcn", "--baseline.configurations", 1]
    done = _run(train_nodes, "--data", stored, "--task", "binary", *SMALL, *weights, "--run.dir", run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.long
def test_a_run_beats_what_features_alone_tell(run):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["metric"] == "micro_f1"
    assert set(summary["baselines"]) == {"majority", "features_only", "gcn"}
    assert summary["scores"]["test"] > 0.8
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = [epoch for epoch in epochs if "valid_loss" in epoch]
    assert {"valid_micro_f1", "valid_macro_f1", "valid_accuracy", "valid_loss"} <= set(first)
    assert last["valid_loss"] < first["valid_loss"]


def test_balanced_positives_weigh_as_the_nodes_without_the_label_over_those_with_it(stored):
    manifest = open_graph(str(stored)).manifest
    counts = np.array(manifest.measured.splits[0].class_counts[1])
    np.testing.assert_allclose(positive_weights(manifest, 0), (120 - counts) / counts)


def test_weights_of_ones_own_are_those_of_the_loss(stored):
    graph = open_graph(str(stored))
    given = tuple(float(one) for one in range(1, (graph.num_classes or 0) + 1))
    words = ("--data", stored, "--task", "binary", "--task.weights")
    run = node_run(graph, *words, *given)
    task = node_task(run.config, run.inputs, graph.manifest)
    assert isinstance(task, BinaryClassification)
    assert task.positive_weight == given
    run = node_run(graph, *words, 1, 2)
    with pytest.raises(ConfigError, match=f"expected {len(given)} numbers, one for each class or label of"):
        node_task(run.config, run.inputs, graph.manifest)
    with pytest.raises(ConfigError, match="expected class_weights none beside them"):
        NodeBinaryOptions(weights=(1.0,), class_weights="balanced")
    with pytest.raises(ConfigError, match="numbers above 0"):
        NodeBinaryOptions(weights=(1.0, -2.0))


def test_it_is_predicted(run, stored, tmp_path):
    done = _run(predict, run, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "as in the run's summary" in done.stdout
    rows = pq.read_table(tmp_path / "out").to_pandas()
    label = np.empty((240, 5), np.int8)
    for partition in open_graph(str(stored)).partitions():
        label[partition.original_id] = partition.label
    np.testing.assert_array_equal(np.stack(rows["target"]), label)
    np.testing.assert_array_equal(np.stack(rows["prediction"]), np.stack(rows["logits"]) > 0)
    test = (rows["split"] == "test").to_numpy()
    said, true = np.stack(rows["prediction"])[test], label[test]
    score = 2 * (said & true).sum() / (said.sum() + true.sum())
    assert score == pytest.approx(json.loads((run / "summary.json").read_text())["scores"]["test"], abs=1e-12)


def test_it_is_shown(run, stored):
    assert _run(report, run).returncode == 0
    assert "micro_f1" in (run / "report.html").read_text()
    shown = _run(inspect_graph, stored).stdout
    assert "5 yes or no" in shown
    done = _run(replay, run, "--epoch", 2, "--batch", 0, "--loss")
    assert done.returncode == 0, done.stderr
    planned = _run(train_nodes, "--data", stored, "--task", "binary", *SMALL, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "5 labels a node" in planned.stdout


@pytest.mark.parametrize(
    ("sampler", "metric"),
    [
        ("neighbor --sampler.fanouts 4", "macro_f1"),
        pytest.param("node2subgraph", "ap", marks=pytest.mark.long),
        pytest.param("ppr", "rocauc", marks=pytest.mark.long),
        pytest.param("saint", "macro_f1", marks=pytest.mark.long),
    ],
)
def test_every_sampler_and_metric(stored, tmp_path, sampler, metric):
    model = ["--model", "ppgt"] if sampler == "node2subgraph" else ["--model.num_layers", 1, "--model.width", 16]
    words = ["--task", "binary", "--task.metric", metric, *model, "--sampler", *sampler.split(), "--fit.epochs", 1]
    done = _run(train_nodes, "--data", stored, *words, "--fit.warmup_epochs", 0, "--run.dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["metric"] == metric


def test_another_task_than_the_graphs_is_one_line(stored, tmp_path):
    done = _run(train_nodes, "--data", stored, "--run.dir", tmp_path / "run")
    assert done.returncode != 0
    assert (
        "expected nodes with a class each, the graph's have several labels each; set --task binary"
        in (done.stderr.strip().splitlines()[-1])
    )
    done = _run(train_nodes, "--task", "binary", "--run.dir", tmp_path / "run")
    assert done.returncode != 0
    assert "the embedded graph's have one class; set --task classification" in done.stderr
    done = _run(ingest, "yelp", tmp_path / "again", "--root", stored.parent, "--per_class", 3)
    assert done.returncode != 0
    assert "those of yelp have several labels; leave it out" in done.stderr
