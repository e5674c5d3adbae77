"""Tests edge features, embeddings and stored encodings in runs on a typed graph.

A run can learn the classes from any one of the three. Runs with them can be resumed and used for predictions.
"""

from pathlib import Path

import numpy as np
import pytest

from graphmill.jobs import predict, replay, train_nodes
from graphmill.storage.format.encodings import find_encoding
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.job_in_process import one_thread, output_of, run_job, trained
from tests.runs import curve

PAPERS, AUTHORS = 300, 30
WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")
SMALL = [
    *("--fit.learning_rate", 0.02, "--fit.schedule", "constant", "--fit.warmup_epochs", 0, "--fit.checkpoint_every", 1),
    *("--fit.micro_batches", 2, "--workers", 1, "--workers.launcher", "process", "--run.defaults", "recipe"),
    *("--sampler", "neighbor", "--sampler.fanouts", 5, "--sampler.batch_size", 25, "--fit.patience", "none"),
]
RSAGE = ["--model", "rsage", "--model.width", 16, "--model.num_layers", 1, "--model.dropout", 0]
BEHIND = ["--model.width", 16, "--relational.width", 16, "--evaluation", "sampled"]
EDGES, ROWS = ["--data.edge_features"], ["--embeddings.width", 8, "--embeddings.learning_rate", 0.2]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[int, str]:
    """A graph in 1 and in 2 partitions.

    The class of a paper is the group of its authors. The edges between papers also show the class. Node features are noise.
    """
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("columns")
    group = rng.integers(0, 3, PAPERS)
    author = 3 * rng.integers(0, AUTHORS // 3, 4 * PAPERS) + np.repeat(group, 4)
    cited = rng.integers(0, PAPERS, 3 * PAPERS)
    nodes = {
        "paper": array_nodes("paper", PAPERS, rng.random((PAPERS, 2)), group, rng.integers(1, 4, (PAPERS, 1), np.int8)),
        "author": array_nodes("author", AUTHORS),
    }
    edges = {
        WRITES: array_edges("writes", author, np.repeat(np.arange(PAPERS), 4)),
        CITES: array_edges("cites", rng.integers(0, PAPERS, len(cited)), cited, edge_feature=np.eye(3)[group[cited]]),
    }
    for partitions in (1, 2):
        ingest(
            TypedSource("columns", nodes, edges),
            str(folder / str(partitions)),
            IngestOptions(num_partitions=partitions),
        )
    return {partitions: str(folder / str(partitions)) for partitions in (1, 2)}


def resume(run: Path, epochs: int) -> None:
    with one_thread():
        output_of(train_nodes.main, "--run.resume", run, "--fit.epochs", epochs)


def test_features_of_edges_are_read(graphs, tmp_path) -> None:
    """The relational layers read edge features, and predictions equal the predictions that the run scored."""
    words = [*SMALL, *RSAGE, "--fit.epochs", 12]
    assert trained(graphs[1], tmp_path / "without", *words)[0]["scores"]["test"] < 0.6
    summary, _, said = trained(graphs[2], tmp_path / "reading", *words, *EDGES)
    assert summary["scores"]["test"] > 0.85  # 5 % of the papers have no citation, whose features show the class
    assert "stored and not read" not in said
    assert "as in the run's summary" in output_of(predict.main, tmp_path / "reading", tmp_path / "out")


def test_a_model_behind_the_layers_reads_features_of_edges(graphs, tmp_path) -> None:
    """Batches of the run and the shard of a graph-parallel prediction give the same predictions."""
    words = [
        *SMALL,
        "--model",
        "sage",
        "--model.num_layers",
        1,
        "--model.dropout",
        0,
        *BEHIND,
        "--relational.num_layers",
        1,
    ]
    words += ["--sampler.fanouts", -1, -1, "--sampler.edges", "induced", *EDGES, "--fit.epochs", 12]
    assert trained(graphs[2], tmp_path / "run", *words)[0]["scores"]["test"] > 0.85
    said = output_of(predict.main, tmp_path / "run", tmp_path / "out", "--parallel", "graph", "--workers", 1)
    assert "as in the run's summary" in said


def test_rows_of_a_type_are_learnt_and_a_run_is_resumed_bit_for_bit(graphs, tmp_path) -> None:
    """Results are equal for any partitions. The plan counts the embedding rows, and prediction and replay use the rows."""
    words = [*SMALL, *RSAGE, *ROWS, "--embeddings.node_types", "author"]
    summary, losses, _ = trained(graphs[2], tmp_path / "whole", *words, "--fit.epochs", 10)
    assert summary["scores"]["test"] > 0.9
    trained(graphs[1], tmp_path / "parts", *words, "--fit.epochs", 4)
    resume(tmp_path / "parts", 10)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    (saved,) = (tmp_path / "whole" / "best").glob("table-*.ids.npy")
    assert len(np.load(saved)) == AUTHORS
    assert "as in the run's summary" in output_of(predict.main, tmp_path / "whole", tmp_path / "out")
    assert "norm of its gradient" in output_of(
        replay.main, tmp_path / "whole", "--epoch", 9, "--batch", 1, "--loss", "yes"
    )
    assert f"{AUTHORS} rows of 8" in output_of(train_nodes.main, "--data", graphs[2], *words, "--plan")
    done = run_job(train_nodes.main, ["--run.resume", str(tmp_path / "parts"), "--embeddings.node_types", "paper"])
    assert done.returncode != 0
    assert "resume with its options" in done.stderr
    assert trained(graphs[2], tmp_path / "all", *SMALL, *RSAGE, *ROWS, "--fit.epochs", 1)[1] != losses[:1]
    (saved,) = (tmp_path / "all" / "best").glob("table-*.ids.npy")
    assert len(np.load(saved)) > AUTHORS  # papers have rows too, not only authors


def test_a_model_that_wants_stored_encodings_finds_them(graphs, tmp_path) -> None:
    """The run stores encodings for every type. The curve is the same for any partitions and after a resume."""
    words = [*SMALL, *BEHIND, "--model", "tokengt", "--model.num_layers", 1, "--model.identifier_dim", 4]
    plan = output_of(train_nodes.main, "--data", graphs[2], *words, "--plan")
    assert "laplacian-4-smallest, not stored yet" in plan
    trained(graphs[2], tmp_path / "two", *words, "--fit.epochs", 2)
    trained(graphs[1], tmp_path / "one", *words, "--fit.epochs", 1)
    resume(tmp_path / "one", 2)
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    graph = open_graph(graphs[2])
    assert all(find_encoding(graph.nodes(name), "laplacian-4-smallest") for name in graph.node_types)
    assert "as in the run's summary" in output_of(predict.main, tmp_path / "two", tmp_path / "out")
