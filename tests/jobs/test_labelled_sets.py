"""Trains on sets of many graphs whose nodes have classes, or whose labels belong to pairs of nodes. The sets are also planned, scored with baselines, predicted
and replayed."""

import functools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from graphmill.cluster.tasks import Classification, PairClassification
from graphmill.jobs import ingest, predict, replay, train_graphs
from graphmill.jobs.baselines.graph_baselines import compute_graph_baselines
from graphmill.storage.graph_sets.graph_set import open_graphs
from tests.job_in_process import run_job
from tests.raw_layouts import write_set

SMALL = ["--model.num_layers", "2", "--model.width", "32", "--sampler.max_graphs", "8", "--fit.epochs", "3"]
TASKS = {
    "pattern": "--task nodes --task.metric weighted_accuracy --task.class_weights batch --task.one_logit yes",
    "cluster": "--task nodes --task.metric macro_f1 --task.class_weights balanced",
    "pcqm-contact": "--task pairs",
}
METRICS = {"pattern": "weighted_accuracy", "cluster": "macro_f1", "pcqm-contact": "mrr"}


def _run(job, *arguments):
    return run_job(job.main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    for name in TASKS:
        write_set(name, root)
        done = _run(ingest, name, root / name / "stored", "--root", root, "--shard_rows", 15)
        assert done.returncode == 0, done.stderr
    return {name: root / name / "stored" for name in TASKS}


def _train(stored, name, run, model="grit", *more):
    return _run(
        train_graphs, "--data", stored[name], "--model", model, *TASKS[name].split(), *SMALL, "--run.dir", run, *more
    )


@pytest.fixture(scope="module")
def run_of(stored, tmp_path_factory):
    """The run directory for a set. The run is trained at its first use."""

    @functools.cache
    def run(name):
        directory = tmp_path_factory.mktemp(name) / "run"
        done = _train(stored, name, directory)
        assert done.returncode == 0, done.stderr
        return directory

    return run


@pytest.mark.parametrize("name", ["pattern", "pcqm-contact", pytest.param("cluster", marks=pytest.mark.long)])
def test_a_run_is_scored_and_predicted(stored, run_of, tmp_path, name):
    run = run_of(name)
    summary = json.loads((run / "summary.json").read_text())
    metric = METRICS[name]
    assert summary["metric"] == metric
    assert set(summary["baselines"]) == ({"equal"} if name == "pcqm-contact" else {"shares", "features_only"})
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert f"valid_{metric}" in epochs[0]
    done = _run(predict, run, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "as in the run's summary" in done.stdout
    assert json.loads((tmp_path / "out" / "_summary.json").read_text())["scores"]["test"][metric] == pytest.approx(
        summary["scores"]["test"], abs=1e-12
    )
    _check_rows(pq.read_table(tmp_path / "out").to_pandas(), open_graphs(str(stored[name])))


def _check_rows(rows, store):
    packed = store.fetch(np.arange(len(store)))
    if store.manifest.labelled == "nodes":
        counts, true = packed.num_nodes, packed.node_label
        assert rows["node"].tolist() == [node for count in counts for node in range(count)]
        assert set(rows["prediction"]) <= set(range(store.manifest.num_classes))
    else:
        counts, true = packed.num_pairs, packed.pairs[:, 2]
        assert (rows[["first", "second"]].to_numpy() == packed.pairs[:, :2]).all()
        assert ((rows["rank"] >= 1) & (rows["rank"] <= packed.num_nodes.max())).all()
    assert rows["id"].tolist() == list(range(counts.sum()))
    assert rows["graph"].tolist() == np.repeat(store.original_id, counts).tolist()
    assert rows["target"].tolist() == true.tolist()
    names = np.array(["", *store.split_names])
    codes = np.concatenate([shard.split for shard in store.shards])
    assert rows["split"].tolist() == np.repeat(names[codes], counts).tolist()


@pytest.mark.parametrize("name", TASKS)
def test_a_plan_counts_what_is_labelled(stored, tmp_path, name):
    done = _train(stored, name, tmp_path / "run", "grit", "--plan")
    assert done.returncode == 0, done.stderr
    what = "labelled pairs" if name == "pcqm-contact" else "nodes with a class"
    assert f"{what}; scored: valid, test" in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_batch_is_replayed(run_of):
    done = _run(replay, run_of("pcqm-contact"), "--epoch", 1, "--batch", 0, "--loss")
    assert done.returncode == 0, done.stderr
    assert "pairs" in done.stdout
    assert "loss" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("model", ["tokengt", "ppgt", "geco", "primphormer"])
@pytest.mark.parametrize("name", ["cluster", "pcqm-contact"])
def test_every_model_trains(stored, tmp_path, name, model):
    done = _train(stored, name, tmp_path / "run", model, "--fit.epochs", 1)
    assert done.returncode == 0, done.stderr


WRONG = {
    ("pattern", "--task regression"): "expected --task nodes for a set of which nodes are labelled, got regression",
    ("pcqm-contact", "--task nodes"): "expected --task pairs for a set of which pairs are labelled, got nodes",
    ("cluster", "--task nodes --task.metric rocauc"): "rocauc with 2 classes, got 'rocauc' with 6",
    ("cluster", "--task nodes --task.one_logit yes"): "one_logit: expected 2 classes, got 6",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_task_that_does_not_fit_is_one_line(stored, tmp_path, case):
    name, task = case
    done = _run(train_graphs, "--data", stored[name], "--model", "grit", *task.split(), "--run.dir", tmp_path / "run")
    assert done.returncode in (1, 2)
    assert WRONG[case] in done.stderr


def test_baselines(stored):
    store = open_graphs(str(stored["cluster"]))
    found = compute_graph_baselines(store, (), Classification(6, "weighted_accuracy"), ("valid", "test"))
    assert found["shares"]["test"] == pytest.approx(1 / 6)
    assert found["features_only"]["test"] > 0.5  # most nodes have a feature that equals the class
    pairs = open_graphs(str(stored["pcqm-contact"]))
    found = compute_graph_baselines(pairs, (), PairClassification(), ("test",))
    sizes = pairs.num_nodes[pairs.split("test")]
    assert found["equal"]["test"] == pytest.approx(np.mean(1 / (1 + (sizes - 1) / 2)), abs=1e-9)


def test_node_targets_do_not_depend_on_the_graphs_beside(stored):
    """A node's logits do not depend on the other graphs of the batch."""
    from graphmill.cluster.data.graph_set_data import GraphData
    from graphmill.jobs.tasks.build_model import build_model
    from graphmill.jobs.tasks.graph_task import set_inputs
    from graphmill.samplers.methods.graph_batches import pack_graphs
    from tests.runs import config_of

    store = open_graphs(str(stored["cluster"]))
    config = config_of("--model", "grit", "--model.num_layers", 2, "--task", "nodes", kind="graphs")
    model = build_model(config.model, "graphs", set_inputs(store.manifest, 6)).eval()
    data = GraphData(store).open()
    with torch.no_grad():
        together, alone = (
            [model(data.collate(pack_graphs(0, 0, graphs, store.fetch(graphs)))).prediction for graphs in chosen]
            for chosen in ([np.arange(4)], [np.array([i]) for i in range(4)])
        )
    torch.testing.assert_close(together[0], torch.cat(alone), rtol=1e-4, atol=1e-5)
