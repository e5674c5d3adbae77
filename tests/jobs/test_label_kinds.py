"""Tests every kind of node labels, from arrays to scores and predictions: named classes, several labels, one number, several numbers."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score, mean_absolute_error, r2_score

from graphmill.cluster.tasks import Regression
from graphmill.core.errors import ConfigError
from graphmill.jobs import inspect_graph, predict, train_nodes
from graphmill.jobs.baselines.node_baselines import compute_baselines
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.jobs.sweeps.design import lower_is_better, metrics_of
from graphmill.jobs.tasks.node_task import node_task
from graphmill.samplers.access.router import local_router
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.job_in_process import output_of, run_job
from tests.runs import node_run

NUM_NODES = 160
UNITS = np.array([1.0, 1e6, 1e-3])
LONG = "a target whose name is longer than the column in which it is printed"
SMALL = ["--model.num_layers", 1, "--model.width", 16, "--fit.epochs", 4, "--fit.patience", "none"]
TASKS = {"classes": "classification", "answers": "binary", "values": "regression", "value": "regression"}
NAMES = {"classes": ("Blatt", "Baum", "größer"), "answers": ("red", "toxic", LONG), "values": ("size", LONG, "tiny")}


def _labels(kind):
    random = np.random.default_rng(5)
    feature = random.normal(size=(NUM_NODES, 4)).astype(np.float32)
    state = feature @ random.normal(size=(4, 3))
    label = {"classes": state.argmax(axis=1), "answers": (state > 0).astype(float), "values": state * UNITS + 5 * UNITS}
    label["value"] = label["values"][:, 1]
    if kind != "classes":
        label[kind][random.random(label[kind].shape) < 0.1] = np.nan
    return feature, label[kind]


def _stored(kind, folder, **changes):
    random = np.random.default_rng(6)
    feature, label = _labels(kind)
    src, dst = random.integers(0, NUM_NODES, (2, 500))
    split = random.choice([1, 1, 2, 3], (NUM_NODES, 1)).astype(np.int8)
    given = {"feature": feature, "label": label, "split": split, "class_names": NAMES.get(kind, ()), **changes}
    ingest(ArrayGraph(kind, NUM_NODES, src, dst, **given), str(folder), IngestOptions(num_partitions=2))
    return str(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs by kind of label: (graph, run, output, summary, predictions)."""
    made = {}

    def make(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            graph, run = _stored(kind, folder / "graph"), folder / "run"
            told = output_of(train_nodes.main, "--data", graph, "--task", TASKS[kind], *SMALL, "--run.dir", run)
            assert "as in the run's summary" in output_of(predict.main, run, folder / "out")
            summary = json.loads((run / "summary.json").read_text())
            made[kind] = graph, run, told, summary, pq.read_table(folder / "out").to_pandas()
        return made[kind]

    return make


def test_several_numbers(finished):
    graph, run, told, summary, rows = finished("values")
    test, label = (rows["split"] == "test").to_numpy(), _labels("values")[1]
    for column, name in enumerate(NAMES["values"]):
        predicted, known = rows[f"prediction_{name}"].to_numpy(), test & ~np.isnan(label[:, column])
        np.testing.assert_array_equal(rows[f"target_{name}"], label[:, column].astype(np.float32))
        scores, true = summary["all_scores"]["test"], label[known, column].astype(np.float32)
        assert scores[f"mae_{name}"] == pytest.approx(mean_absolute_error(true, predicted[known]), rel=1e-6)
        assert scores[f"r2_{name}"] == pytest.approx(r2_score(true, predicted[known]), rel=1e-6)
        assert abs(predicted.mean() / UNITS[column] - 5) < 2  # predictions are in the unit of the target
        constant = summary["baselines"]["constant"]
        assert set(constant) > {"valid", "test", f"valid_mae_{name}", f"test_mae_{name}"}
        assert summary["baselines"]["features_only"][f"test_mae_{name}"] < constant[f"test_mae_{name}"] / 2
    assert summary["higher_is_better"] is False
    assert {"valid_mae", "valid_r2", f"valid_mae_{LONG}"} <= set(read_run(run).epoch_names)
    assert f"test mae_{LONG}" in (run / "report.html").read_text()
    lines = told.split("mae in deviations", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    assert len(lines) == 3 + 3 * 3
    for line in lines:
        _, *cells = line.rsplit(maxsplit=2)
        assert all(np.isfinite(list(map(float, cells))))
        assert line.startswith(("model", "mean of the", "features only", "mae of "))
    assert len({len(line) for line in lines}) == 1
    assert "3 real numbers each" in output_of(inspect_graph.main, graph)


@pytest.mark.long
def test_one_number(finished):
    _, run, told, summary, rows = finished("value")
    assert list(rows.columns) == ["id", "split", "target", "prediction"]
    known = (rows["split"] == "test") & rows["target"].notna()
    expected = mean_absolute_error(rows["target"][known], rows["prediction"][known])
    assert summary["scores"]["test"] == pytest.approx(expected, rel=1e-6)
    assert "fitting the baselines (mean, features only)" in told
    again = output_of(train_nodes.main, "--run.resume", run, "--fit.epochs", 5)
    assert json.loads((run / "summary.json").read_text())["epochs"] == 5, again


def test_several_answers_with_names(finished):
    *_, told, summary, rows = finished("answers")
    test = rows["split"] == "test"
    for name in NAMES["answers"]:
        known = test & rows[f"target_{name}"].notna()
        expected = f1_score(rows[f"target_{name}"][known], rows[f"logit_{name}"][known] > 0, zero_division=0)
        assert summary["all_scores"]["test"][f"f1_{name}"] == pytest.approx(expected)
        assert f"test_f1_{name}" in summary["baselines"]["majority"]
    assert f"f1 of {LONG}, features only  " in told


def test_classes_with_names(finished):
    _, run, _, summary, rows = finished("classes")
    names = np.array(NAMES["classes"])
    assert (names[rows["prediction"]] == rows["class"]).all()
    assert (names[rows["target"]] == rows["target_class"]).all()
    test, scores = rows["split"] == "test", summary["all_scores"]["test"]
    assert list(scores["by_class"]) == list(names)
    expected = confusion_matrix(rows["target_class"][test], rows["class"][test], labels=names)
    np.testing.assert_array_equal(scores["confusion"], expected)
    assert "valid_by_class" not in read_run(run).epoch_names
    page = (run / "report.html").read_text()
    assert all(f">{name}</th>" in page for name in (*names, "predicted größer", "recall"))


def test_other_labels_than_the_runs_are_refused(finished, tmp_path):
    _, run, *_ = finished("classes")
    other = _stored("classes", tmp_path / "other", class_names=("Blatt", "Zweig", "größer"))
    done = run_job(predict.main, [str(run), str(tmp_path / "out"), "--graph", other, "--other-graph"])
    assert done.returncode == 1
    assert "label 1 is 'Zweig', the run's is 'Baum'; ingest it without labels" in done.stderr
    _, run, *_ = finished("values")
    other = _stored("value", tmp_path / "one")
    done = run_job(predict.main, [str(run), str(tmp_path / "out"), "--graph", other, "--other-graph"])
    assert done.returncode == 1
    assert "expected the run's 3 labels per node, got 1" in done.stderr


@pytest.fixture(scope="module", params=["value", "values"])
def numbers(request, tmp_path_factory):
    return open_graph(_stored(request.param, tmp_path_factory.mktemp("numbers") / "graph"))


def test_targets_are_standardised_over_the_training_rows(numbers):
    run = node_run(numbers, "--data", numbers.url, "--task", "regression", "--task.metric", "r2", "--task.loss", "mse")
    task = node_task(run.config, run.inputs, numbers.manifest)
    rows = local_router(numbers).fetch(np.arange(NUM_NODES), split_set=0)
    train = rows.label.reshape(NUM_NODES, -1)[rows.split == 1].astype(np.float64)
    assert isinstance(task, Regression)
    assert (task.metric, task.kind, task.higher_is_better) == ("r2", "mse", True)
    assert task.mean == pytest.approx(np.nanmean(train, axis=0))
    assert task.scale == pytest.approx(np.nanstd(train, axis=0))
    assert task.names == (NAMES["values"] if numbers.manifest.label_kind == "values" else ())
    assert task.deviation == (task.scale if task.names else ())
    run = node_run(numbers, "--data", numbers.url, "--task", "regression", "--task.standardise", "no")
    task = node_task(run.config, run.inputs, numbers.manifest)
    assert (set(task.mean), set(task.scale)) == ({0.0}, {1.0})


def test_the_baseline_of_features_is_the_better_of_ridge_and_perceptron(numbers):
    """The labels are linear in the features, so ridge regression predicts them except for the effect of its penalty."""
    run = node_run(numbers, "--data", numbers.url, "--task", "regression", "--task.metric", "r2")
    task = node_task(run.config, run.inputs, numbers.manifest)
    found = compute_baselines(local_router(numbers), 0, task, 0, lambda rows: rows)
    assert found["features_only"]["test"] > 0.999
    assert found["constant"]["test"] < 0.05


def test_directions_of_a_sweep(numbers):
    run = node_run(numbers, "--data", numbers.url, "--task", "regression")
    names = metrics_of(run.config)
    assert names[0] == "valid_mae"
    assert [name for name in names if not lower_is_better(name)] == ["valid_r2"]


def test_what_does_not_fit_is_one_line(numbers, tmp_path):
    done = run_job(train_nodes.main, ["--data", numbers.url, "--run.dir", str(tmp_path / "run")])
    assert done.returncode == 1
    assert "expected nodes with a class each, the graph's have" in done.stderr
    assert done.stderr.strip().endswith("set --task regression")
    done = run_job(train_nodes.main, ["--task", "regression", "--run.dir", str(tmp_path / "run")])
    assert "task regression: expected nodes with other labels, the embedded graph's have one class" in done.stderr
    label = _labels("values")[1]
    label[:, 1] = np.nan
    label[0, 1] = 1.5
    split = np.ones((NUM_NODES, 1), np.int8)
    split[:40] = np.repeat([2, 3], 20)[:, None]
    graph = open_graph(_stored("values", tmp_path / "graph", label=label, split=split))
    run = node_run(graph, "--data", graph.url, "--task", "regression")
    with pytest.raises(ConfigError, match=r"values: target a target whose .*: nothing in the training split has one"):
        Nodes(graph).check(run)


def test_a_plan_trains_nothing(numbers):
    told = output_of(train_nodes.main, "--data", numbers.url, "--task", "regression", *SMALL, "--plan")
    assert ("3 numbers a node" if numbers.manifest.label_kind == "values" else "a number a node") in told


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["neighbor --sampler.fanouts 4", "saint", "ppr"])
def test_every_sampler(sampler, numbers, tmp_path):
    words = ["--task", "regression", *SMALL, "--sampler", *sampler.split(), "--run.dir", tmp_path / "run"]
    output_of(train_nodes.main, "--data", numbers.url, *words)
    scores = json.loads((tmp_path / "run" / "summary.json").read_text())["scores"]
    assert all(np.isfinite(list(scores.values())))
    assert torch.get_default_dtype() == torch.float32
