"""Tests embeddings of nodes. Graphs without features can be trained on, a run resumes bit for bit, and `predict` gives the predictions that the run scored."""

import json
import uuid
from pathlib import Path

import numpy as np
import pytest

from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, replay, train_links, train_nodes
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions, LinkSplitOptions
from tests.job_in_process import one_thread, output_of, run_job
from tests.runs import config_of, curve

NUM_NODES = 240
MODEL = ["--model", "sage", "--model.width", "16", "--model.num_layers", "1", "--run.defaults", "recipe"]
SAMPLER = ["--sampler", "neighbor", "--sampler.fanouts", "5", "--sampler.batch_size", "20"]
TABLE = ["--embeddings.width", "8", "--embeddings.learning_rate", "0.2"]
FIT = [
    "--fit.micro_batches",
    "2",
    "--fit.learning_rate",
    "0.02",
    "--fit.schedule",
    "constant",
    "--fit.warmup_epochs",
    "0",
    "--workers.launcher",
    "process",
]


def communities(name: str, feature: np.ndarray | None = None) -> ArrayGraph:
    """A graph with four groups of nodes. The groups decide which nodes have edges, and the classes."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 4, NUM_NODES)
    ends = rng.integers(0, NUM_NODES, (12_000, 2))
    ends = ends[(group[ends[:, 0]] == group[ends[:, 1]]) & (ends[:, 0] != ends[:, 1])]
    split = rng.permutation(np.repeat([1, 2, 3], NUM_NODES // 3)).astype(np.int8)[:, None]
    return ArrayGraph(name, NUM_NODES, ends[:, 0], ends[:, 1], feature=feature, label=group, split=split, num_classes=4)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "plain"
    ingest(communities("plain"), str(path), IngestOptions(num_partitions=2))
    return path


def train(graph: Path, run: Path, *words: str, status: int = 0) -> str:
    said = ["--data", str(graph), *MODEL, *SAMPLER, *TABLE, *FIT, "--run.dir", str(run), *words]
    with one_thread():
        done = run_job(train_nodes.main, said)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def tables(run: Path) -> dict[str, np.ndarray]:
    """The embedding tables of the newest checkpoint, by file name."""
    newest = max((run / "train").glob("epoch-*"))
    return {path.name: np.load(path) for path in sorted(newest.glob("table-*.npy"))}


@pytest.mark.parametrize("optimizer", ["adagrad", pytest.param("adam", marks=pytest.mark.long)])
def test_a_graph_without_features_is_learnt_and_a_run_is_resumed_bit_for_bit(graph, tmp_path, optimizer):
    chosen = ("--embeddings.optimizer", optimizer)
    train(graph, tmp_path / "whole", *chosen, "--fit.epochs", "24")
    train(graph, tmp_path / "parts", *chosen, "--fit.epochs", "11")
    train(graph, tmp_path / "parts", "--run.resume", str(tmp_path / "parts"), "--fit.epochs", "24")
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    whole, parts = tables(tmp_path / "whole"), tables(tmp_path / "parts")
    assert len(whole) == {"adagrad": 4, "adam": 5}[optimizer]
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        assert np.array_equal(array, parts[name]), name
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["scores"]["test"] > 0.9
    assert summary["baselines"]["features_only"] is None
    assert not list((tmp_path / "whole" / "train").glob(".*"))


@pytest.mark.long
def test_rows_stand_beside_features(tmp_path):
    """The features are noise. The model learns the classes with trainable embeddings, and does not learn them without."""
    feature = np.random.default_rng(1).normal(size=(NUM_NODES, 3)).astype(np.float32)
    ingest(communities("noise", feature), str(tmp_path / "noise"), IngestOptions(num_partitions=1))
    train(tmp_path / "noise", tmp_path / "with", "--fit.epochs", "24")
    train(tmp_path / "noise", tmp_path / "without", "--fit.epochs", "24", "--embeddings.width", "0")
    scores = [
        json.loads((tmp_path / run / "summary.json").read_text())["scores"]["test"] for run in ("with", "without")
    ]
    assert scores[0] > 0.9
    assert scores[1] < 0.7


def test_predictions_have_the_best_epochs_rows(graph, tmp_path):
    train(graph, tmp_path / "run", "--fit.epochs", "5", "--fit.schedule", "constant", "--evaluation", "sampled")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    said = output_of(predict.main, str(tmp_path / "run"), str(tmp_path / "out"), "--workers", "1")
    for split in ("valid", "test"):
        (line,) = (line for line in said.splitlines() if line.startswith(f"{split} accuracy"))
        assert line.startswith(f"{split} accuracy {summary['scores'][split]:.4f} over")
        assert line.endswith("as in the run's summary")
    printed = output_of(replay.main, str(tmp_path / "run"), "--epoch", "4", "--batch", "3", "--loss", "yes")
    assert "norm of its gradient" in printed


@pytest.mark.long
def test_links_of_a_graph_without_features(tmp_path):

    options = IngestOptions(num_partitions=1, links=LinkSplitOptions(valid=0.1, test=0.1))
    ingest(communities("links"), str(tmp_path / "links"), options)
    said = [
        "--data",
        str(tmp_path / "links"),
        "--model",
        "sage",
        "--model.width",
        "8",
        "--model.num_layers",
        "1",
        *TABLE,
    ]
    said += [
        "--sampler.fanouts",
        "4",
        "--task.batch_size",
        "200",
        "--fit.epochs",
        "1",
        "--run.dir",
        str(tmp_path / "run"),
    ]
    output_of(train_links.main, *said, "--workers.launcher", "process", "--run.defaults", "recipe")


def test_the_plan_counts_the_table(graph, tmp_path):
    said = train(graph, tmp_path / "run", "--plan", "--fit.epochs", "1")
    assert "embeddings  240 rows of 8, 7.5 KiB, with the best epoch's and the state of adagrad here" in said
    # 240 rows of 8 x 3 x 4 + 20 bytes each. In addition, 2 micro-batches push 96 rows of 4 x 8 + 40 bytes each.
    assert "embeddings 40.7 KiB" in said.split("a worker (estimate:")[1]


def test_the_plan_counts_what_owners_take_for_messages(graph, tmp_path):
    words = ("--workers.launcher", "ray", "--workers.num_workers", "2", "--embeddings.owners", "2")
    said = train(graph, tmp_path / "run", "--plan", "--fit.epochs", "1", *words)
    assert "state of adagrad in 2 owners of 22.0 KiB each" in said
    assert "2 owners of embeddings (34.1 KiB each beside the process, 12.1 KiB of it for messages of a step)" in said


@pytest.mark.parametrize("words", [(), ("--plan",)])
def test_a_run_on_an_object_store_is_refused_before_anything_is_written(graph, words):
    url = f"memory://{uuid.uuid4().hex}/run"
    said = ["--data", str(graph), *MODEL, *SAMPLER, *TABLE, *FIT, "--run.dir", url, *words]
    done = run_job(train_nodes.main, said)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"{url}: expected a run's directory in a folder, where the owners of embeddings write their rows" in line
    assert not done.stdout
    assert not RunStore(url).names()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--embeddings.width", "0"),
            r"expected node features, the graph has none; train rows of its nodes \(--embeddings.width 64\)",
        ),
        (("--fit.ema_decay", "0.9"), "a table of embeddings goes without --fit.ema_decay"),
        (("--embeddings.optimizer", "adam", "--baseline", "gcn"), "a table of embeddings goes without --baseline"),
        (("--workers.keep_checkpoints", "1"), "keep_checkpoints: expected at least 2 with embeddings"),
    ],
)
def test_what_does_not_go_together_is_refused(graph, words, expected):
    with pytest.raises(ConfigError, match=expected):
        Nodes(open_graph(str(graph))).resolve(config_of(*MODEL, *TABLE, *words), None)
