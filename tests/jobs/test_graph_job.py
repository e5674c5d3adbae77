"""Tests jobs on many graphs: baselines follow their definitions, bad input ends the job early with one line, all models train, and a run resumes and
predicts."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from graphmill.cluster.data.graph_set_data import GraphData, GraphSplitOptions, graph_labels
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import BinaryClassification, Classification, Regression
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.errors import ConfigError
from graphmill.jobs import pcqm4m_tokengt, predict
from graphmill.jobs.baselines.graph_baselines import compute_graph_baselines
from graphmill.jobs.config.registry import MODELS
from graphmill.jobs.subjects.graphs import Graphs
from graphmill.jobs.tasks.graph_task import graph_task, scored_splits
from graphmill.models.grit.attention import PairNorm
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.samplers.methods.graph_batches import GraphBatchSampler
from graphmill.samplers.vocabulary.options import GraphBatchOptions, LoaderOptions
from graphmill.storage.predictions import SUMMARY
from tests import job_in_process
from tests.predictions import call, go_on_after_an_interruption, predictions_of, scores_of
from tests.recording_reporter import MemoryRecorder
from tests.runs import config_of, curve, set_run

pytest.importorskip("rdkit")

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = [
    "--data.molecules",
    "300",
    "--model.num_layers",
    "2",
    "--sampler.max_graphs",
    "32",
    "--fit.checkpoint_every",
    "1",
]
SMALL += ["--fit.schedule", "constant", "--fit.warmup_epochs", "0"]


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.graph_sets.graph_set import open_graphs
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

    url = str(tmp_path_factory.mktemp("molecules") / "set")
    ingest_molecules(EnumeratedMolecules(200), url)
    return open_graphs(url)


def atom_counts(store, graphs: np.ndarray, element: int) -> np.ndarray:
    packed = store.fetch(graphs)
    owner = np.repeat(np.arange(len(graphs)), packed.num_nodes)
    return np.bincount(owner, packed.node_feature[:, 0] == element, minlength=len(graphs))


class Retargeted:
    """A store of graphs that replaces the target by a function of the graph."""

    def __init__(self, store, target) -> None:
        self._store, self._target = store, target

    def __getattr__(self, name):
        return getattr(self._store, name)

    def fetch(self, graph):
        from dataclasses import replace

        return replace(self._store.fetch(graph), target=self._target(graph).astype(np.float32)[:, None])


def test_composition_explains_what_is_linear_in_atoms_and_the_mean_does_not(molecules):
    nitrogen = 6  # OGB stores the atomic number minus one
    store = Retargeted(molecules, lambda graph: 3.0 * atom_counts(molecules, graph, nitrogen) + 1.0)
    train = store.fetch(molecules.split("train")).target.astype(float)
    task = Regression((float(train.mean()),), (float(train.std()),))
    found = compute_graph_baselines(store, (0,), task, ("valid", "test"))
    assert found["composition"]["test"] < 0.02
    test = store.fetch(molecules.split("test")).target
    assert found["constant"]["test"] == pytest.approx(float(np.abs(test - train.mean()).mean()), rel=1e-5)
    assert found["constant"]["test"] > 0.5


def test_composition_separates_yes_from_no_where_atoms_tell(molecules):
    store = Retargeted(molecules, lambda graph: atom_counts(molecules, graph, 6) > 0)
    found = compute_graph_baselines(store, (0,), BinaryClassification(1), ("valid", "test"))
    assert found["composition"]["test"] > 0.99
    assert found["constant"]["test"] == 0.5


def test_composition_tells_classes_apart_where_atoms_do(molecules):
    store = Retargeted(molecules, lambda graph: np.minimum(atom_counts(molecules, graph, 6), 2))
    found = compute_graph_baselines(store, (0,), Classification(3), ("valid", "test"))
    classes = store.fetch(molecules.split("test")).target[:, 0].astype(int)
    train = np.bincount(store.fetch(molecules.split("train")).target[:, 0].astype(int))
    assert found["constant"]["test"] == pytest.approx(float((classes == train.argmax()).mean()))
    assert found["composition"]["test"] > 0.9


@pytest.mark.parametrize(("metric", "scored"), [("accuracy", ("valid", "test")), ("rocauc", ("valid",))])
def test_a_split_of_one_class_has_no_ranking_to_score(metric, scored):
    splits = {"train": [0, 1], "valid": [2, 3], "test": [4, 5]}
    store = SimpleNamespace(
        manifest=SimpleNamespace(labelled=None),
        url="set",
        split_names=tuple(splits),
        split=lambda name: np.array(splits[name]),
        target=np.array([[0.0], [1], [0], [1], [1], [1]]),
    )
    assert scored_splits(store, (0,), Classification(2, metric), 2) == scored


@pytest.mark.parametrize(
    ("valid", "micro_batches", "says"),
    [
        ([2, 2, 2], 2, "split valid: expected a question with both answers among its 3 graphs, found none"),
        (
            [2, 3],
            4,
            "split valid: expected at least 4 graphs (one per micro-batch of a step), got 2; lower --fit.micro",
        ),
    ],
)
def test_a_split_that_cannot_serve_is_refused_for_one_reason(valid, micro_batches, says):
    splits = {"train": [0, 1, 0, 1], "valid": valid}
    store = SimpleNamespace(
        manifest=SimpleNamespace(labelled=None),
        url="set",
        split_names=tuple(splits),
        split=lambda name: np.array(splits[name]),
        target=np.array([[0.0], [1], [0], [1]]),
    )
    with pytest.raises(ConfigError, match=re.escape(says)):
        scored_splits(store, (0,), Classification(2, "rocauc"), micro_batches)


def test_classes_that_are_not_known_are_left_out():
    assert graph_labels(torch.tensor([[2.0], [float("nan")], [0.0]])).tolist() == [2, -1, 0]


def test_targets_are_standardised_unless_the_task_says_no(molecules):
    train = molecules.target[molecules.split("train")][:, 0]
    for said, mean, scale in (((), train.mean(), train.std()), (("--task.standardise", "no"), 0.0, 1.0)):
        config = config_of("--task", "regression", *said, kind="graphs")
        task = graph_task(config.task, molecules, (0,))
        assert isinstance(task, Regression)
        assert (task.mean[0], task.scale[0]) == pytest.approx((mean, scale), rel=1e-5)
        # Standardisation is part of the run's identity, so a resume with another value is refused.
        assert ("standardise" in Graphs(molecules).resolve(config, None).identity) == bool(said)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=[] if name in ("grit", "primphormer") else pytest.mark.long)
        for name in MODELS["graphs"]
    ],
)
def test_every_model_trains_through_the_loop(model, molecules):
    resolved = set_run(molecules.manifest, 1, "--model", model, "--model.num_layers", 2)
    target = molecules.target[molecules.split("train")]
    batches = GraphBatchOptions(max_graphs=40)
    spec = TrainSpec(
        data=GraphData(molecules, (0,)),
        build_model=resolved.build_model,
        task=Regression((float(target.mean()),), (float(target.std()),)),
        model_config=resolved.architecture,
        identity={},
        sampler=GraphSplitOptions("train", batches),
        evaluation={"valid": GraphSplitOptions("valid", batches)},
        options=TrainOptions(epochs=6, learning_rate=3e-3),
        loader=LoaderOptions(),
    )
    worker = Worker(spec, MemoryRecorder(), 0, 1, torch.device("cpu"))
    with worker.loader(spec.sampler) as loader:
        losses = [worker.train_epoch(loader, epoch)[0]["train_loss"] for epoch in range(6)]
    assert min(losses[-3:]) < 0.93 * losses[0]
    missing = [
        name for name, p in worker.model.named_parameters() if p.requires_grad and p not in worker.optimizer.state
    ]
    assert not missing, "data parallelism would wait for a gradient that never comes"


@pytest.mark.parametrize(("option", "largest_over_smallest"), [("inf", 3.0), (1.0, 1.0), (None, 1.2)])
def test_graphs_of_a_batch_are_as_alike_as_asked(option, largest_over_smallest, molecules):
    ratio = () if option is None else ("--sampler.bucket_ratio", option)
    run = set_run(molecules.manifest, 1, "--sampler.max_graphs", 4, *ratio)
    sampler = GraphBatchSampler(molecules, run.training)
    sizes = [molecules.num_nodes[sampler.graphs_of(0, batch)] for batch in range(sampler.num_batches)]
    ratios = [nodes.max() / nodes.min() for nodes in sizes]
    # There are few of the largest and smallest graphs, so the sampler puts them in batches with other graphs.
    assert np.median(ratios) <= largest_over_smallest
    if option == "inf":
        assert max(ratios) > 1.2


@pytest.mark.parametrize("model", MODELS["graphs"])
def test_graphs_of_all_sizes_meet_by_default_where_a_model_normalises_over_its_batch(model, molecules):
    run = set_run(molecules.manifest, 1, "--model", model)
    has_norm = any(isinstance(part, RowBatchNorm | PairNorm) for part in run.build_model().modules())
    assert run.training.bucket_ratio == (1000 if has_norm else 1.2)


def test_options_of_a_part_are_set_by_their_path(molecules):
    parts = ("--model.layer.dropout", 0.3, "--model.primal.dropout", 0.2, "--model.width", 30, "--model.num_heads", 5)
    config = set_run(molecules.manifest, 1, "--model", "primphormer", *parts).model_config
    assert (config.layer.dropout, config.primal.dropout, config.width, config.num_heads) == (0.3, 0.2, 30, 5)
    with pytest.raises(ConfigError, match=r"unknown option --model\.attention_dropout .*of --model geco"):
        config_of("--model", "geco", "--model.attention_dropout", 0.3, kind="graphs")


def run_job(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return job_in_process.run_job(pcqm4m_tokengt.main, arguments, cwd)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("job")


AVERAGED = [*SMALL, "--fit.ema_decay", "0.9", "--fit.micro_batches", "4"]


@pytest.fixture(scope="module")
def whole_run(shared_ray, workplace) -> subprocess.CompletedProcess[str]:
    return run_job([*AVERAGED, "--fit.epochs", "3", "--run.dir", "one"], workplace)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_leaves_what_it_promises_and_resumes_exactly(whole_run, workplace):
    assert whole_run.returncode == 0, whole_run.stderr
    summary = json.loads((workplace / "one" / "summary.json").read_text())
    assert summary["workers"] == 2
    assert set(summary["scores"]) == {"valid", "test"}
    assert sum(summary["counts"].values()) < 100
    assert summary["baselines"]["composition"]["test"] < summary["baselines"]["constant"]["test"]
    assert {path.name for path in (workplace / "one" / "best").iterdir()} == {
        "model.safetensors",
        "config.json",
        "state.json",
    }
    config = json.loads((workplace / "one" / "best" / "config.json").read_text())
    assert config["model"] == "tokengt"
    assert config["num_layers"] == 2
    assert "composition only" in whole_run.stdout
    # One process replaces two workers; a step still has four micro-batches.
    alone = ["--workers", "1", "--workers.launcher", "process"]
    with job_in_process.one_thread():
        run_job([*AVERAGED, "--fit.epochs", "1", "--run.dir", "two", *alone], workplace)
    together = ["--workers", "2", "--workers.launcher", "ray"]
    resumed = run_job(["--run.resume", "two", "--fit.epochs", "3", *together], workplace)
    assert "Traceback" not in resumed.stderr
    assert curve(workplace / "two", "valid_mae") == curve(workplace / "one", "valid_mae")
    other = run_job(["--run.resume", "two", "--fit.epochs", "4", "--model", "grit"], workplace)
    assert other.returncode == 1
    assert "another architecture" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1


def assert_is_the_runs(out: Path, run: Path, table: pa.Table) -> None:
    """Checks that the predictions in `out` contain every molecule and have the run's scores."""
    assert table["id"].to_pylist() == list(range(300))
    summary = json.loads((out / SUMMARY).read_text())
    ours = {split: summary["scores"][split]["mae"] for split in ("valid", "test")}
    assert ours == scores_of(run)
    test = table.filter(pa.compute.equal(table["split"], "test"))
    error = np.abs(test["prediction_logp"].to_numpy() - test["target_logp"].to_numpy())
    assert error.mean() == pytest.approx(ours["test"], rel=1e-12)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_predicts_its_own_scores(whole_run, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    call(predict.main, monkeypatch, "one", "out", "--shard-rows", "90")
    table = predictions_of(workplace / "out")
    assert_is_the_runs(workplace / "out", workplace / "one", table)
    with job_in_process.one_thread():  # each of Ray's workers has one thread too
        call(predict.main, monkeypatch, "one", "here", "--shard-rows", "90", "--launcher", "process")
    assert predictions_of(workplace / "here").equals(table)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_prediction_goes_on_and_has_the_runs_scores(whole_run, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    table = go_on_after_an_interruption(workplace / "one", workplace / "interrupted", monkeypatch, capsys)
    assert_is_the_runs(workplace / "interrupted", workplace / "one", table)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_job_with_one_line(shared_ray, tmp_path):
    failed = run_job([*SMALL, "--fit.learning_rate", "1e30", "--fit.clip_norm", "None", "--fit.epochs", "3"], tmp_path)
    assert failed.returncode == 1
    line = failed.stderr.strip().splitlines()[-1]
    assert line.startswith("error: epoch 0, step ")
    assert "is not finite" in line
    assert "first bad layer" in line or "weights of" in line
