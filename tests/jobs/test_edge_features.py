"""Tests edge features in a run on nodes. A model that reads the edge features learns the classes; a model that does not read them cannot learn the classes."""

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from graphmill.jobs import predict, train_nodes
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.subjects.subject import open_prediction
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.job_in_process import output_of, run_job, trained
from tests.runs import node_run

NODES, DEGREE, CLASSES = 600, 5, 3
SMALL = ["--model.num_layers", 1, "--model.width", 16, "--model.dropout", 0, "--fit.patience", "none"]
SAMPLED = ["--sampler", "neighbor", "--sampler.fanouts", 5]
MODELS = {
    "sage": ["--model", "sage", "--fit.epochs", 200],
    "gat": ["--model", "gat", "--fit.epochs", 40],
    "geco": ["--model", "geco", "--model.local.block", "gated-gcn", "--fit.epochs", 200],
}


def store(url: Path, factor: float = 1.0, offset: float = 0.0) -> str:
    """A graph in which a node's label is the class of its one marked in-neighbor. This class can be learned from the neighbor's features."""
    rng = np.random.default_rng(0)
    shown = rng.integers(0, CLASSES, NODES)
    source = np.stack([rng.choice(NODES, DEGREE, replace=False) for _ in range(NODES)])
    marked = np.zeros((NODES, DEGREE, 1), np.float32)
    marked[:, 0] = 1
    graph = ArrayGraph(
        "marked",
        NODES,
        source.ravel(),
        np.repeat(np.arange(NODES), DEGREE),
        edge_feature=factor * marked.reshape(-1, 1) + offset,
        feature=np.eye(CLASSES, dtype=np.float32)[shown],
        label=shown[source[:, 0]],
        split=rng.permutation(np.repeat([1, 2, 3], NODES // 3)).astype(np.int8)[:, None],
        num_classes=CLASSES,
    )
    ingest(graph, str(url), IngestOptions(num_partitions=2, out_edges=True))
    return str(url)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> str:
    return store(tmp_path_factory.mktemp("edges") / "graph")


def train(stored: str, run: Path, *words) -> None:
    words = ["--data", stored, "--fit.learning_rate", 0.02, *SMALL, *words, "--run.dir", run]
    done = run_job(train_nodes.main, [*map(str, words)])
    assert done.returncode == 0, done.stderr


def score_of(run: Path) -> float:
    """The test accuracy of a run."""
    return json.loads((run / "summary.json").read_text())["scores"]["test"]


@pytest.fixture(scope="module")
def reading(stored, tmp_path_factory):
    """The run directory of a model that reads edge features. It is trained at its first use."""

    @functools.cache
    def run(name: str) -> Path:
        directory = tmp_path_factory.mktemp(name) / "run"
        train(stored, directory, *MODELS[name], *SAMPLED, "--data.edge_features")
        return directory

    return run


@pytest.mark.parametrize("name", ["sage", *(pytest.param(name, marks=pytest.mark.long) for name in ("gat", "geco"))])
def test_a_model_that_reads_edges_wins(stored, reading, tmp_path, name):
    train(stored, tmp_path / "without", *MODELS[name], *SAMPLED)
    assert score_of(tmp_path / "without") < 0.75
    assert score_of(reading(name)) > 0.95


def test_predictions_are_those_of_the_scores(reading, tmp_path):
    run = reading("sage")
    said = output_of(predict.main, str(run), str(tmp_path / "out"))
    assert "as in the run's summary" in said
    rows = pq.read_table(tmp_path / "out").to_pandas()
    test = rows[rows["split"] == "test"]
    assert (test["prediction"] == test["target"]).mean() == pytest.approx(score_of(run))


def test_edges_of_another_scale_are_standardised(stored, tmp_path):
    """The run standardises edge features by all edges of the training graph, and stores means and deviations with its weights."""
    far = store(tmp_path / "far", 1e4, 3e6)
    words = [*MODELS["sage"][:2], *SAMPLED, *SMALL, "--fit.epochs", 2, "--fit.warmup_epochs", 0]
    reads = [*words, "--data.edge_features"]
    yes = {
        url: trained(url, Path(f"{tmp_path}/{i}"), *reads, "--data.standardise", "yes")[1]
        for i, url in enumerate((stored, far))
    }
    assert yes[far] == pytest.approx(yes[stored], rel=1e-3)
    _, losses, printed = trained(far, tmp_path / "auto", *reads)
    assert (
        "chosen --data.standardise yes: 1 column of features to mean 0 and deviation 1 (edge 0: mean 3.002e+06, deviation 4000)"
        in printed
    )
    (own,) = open_graph(far).manifest.measured.edge_columns
    numbers = load_file(tmp_path / "auto" / "best" / "model.safetensors")["standard.numbers edge"]
    assert numbers[:, 0].tolist() == [own.mean, own.deviation]
    assert (own.mean, own.deviation, own.nonzero) == pytest.approx((3.002e6, 4e3, 1))
    run = read_run(str(tmp_path / "auto"), finished=True)
    assert open_prediction(
        run, PredictConfig(run.path, "out", graph=stored, other_graph=True)
    ).trained.inputs.standard == (("edge", 0, *numbers[:, 0]),)
    assert losses != trained(far, tmp_path / "no", *reads, "--data.standardise", "no")[1]
    # Edge features of ordinary scale, and edge features that the run does not read.
    for url, said in ((stored, reads), (far, words)):
        assert node_run(open_graph(url), *map(str, said)).inputs.standard == ()


@pytest.mark.parametrize(
    ("model", "sampler"),
    [
        pytest.param("grit", "ppr", marks=pytest.mark.long),
        pytest.param("ppgt", "node2subgraph", marks=pytest.mark.long),
        ("geco", "random-partition"),
        pytest.param("tokengt", "random-partition", marks=pytest.mark.long),
        pytest.param("sage", "ppr", marks=pytest.mark.long),
        pytest.param("gcn", "saint", marks=pytest.mark.long),
    ],
)
def test_every_sampler_brings_them(stored, tmp_path, model, sampler):
    words = ["--model", model, "--sampler", sampler, "--fit.epochs", 1, "--fit.warmup_epochs", 0]
    train(stored, tmp_path / "run", *words, "--data.edge_features")
