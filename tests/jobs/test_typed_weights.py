"""Tests edge weights in a run on a typed graph. Two relations differ only in their weights, and the weights decide the classes."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.jobs import inspect_graph, predict, train_nodes
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.job_in_process import run_job, trained

NODES, EDGES = 400, 3000
CITES, WRITES = Relation("paper", "cites", "paper"), Relation("author", "writes", "paper")
WEIGHTS = {
    "none": None,
    "ones": np.ones_like,
    "telling": lambda same: np.where(same, 100.0, 0.0),
    "negative": lambda same: np.where(same, 1.0, -0.5),
}
SMALL = ["--fit.epochs", 3, "--fit.warmup_epochs", 0, "--workers", 1, "--workers.launcher", "process"]
FANOUTS = ["--sampler.fanouts", -1, -1, "--sampler.batch_size", 100]
MODELS = {
    "rsage": ["--model", "rsage", "--model.width", 16, "--model.dropout", 0, *FANOUTS],
    "geco behind layers": [
        *("--model", "geco", "--model.width", 16, "--relational.width", 16, "--relational.num_layers", 0),
        *("--sampler", "typed-neighbor", "--evaluation", "sampled", *FANOUTS),
    ],
    "rsage by walks": ["--model", "rsage", "--model.width", 16, "--sampler", "typed-ppr", "--sampler.top_k", 9],
    # Draws by weights of 1 differ from draws without weights. Here the sampler takes whole layers and draws nothing.
    "rsage by search": [
        *("--model", "rsage", "--model.width", 16, "--sampler", "typed-node2subgraph"),
        *("--sampler.max_hops", 1, "--sampler.max_nodes", NODES),
    ],
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[str, str]:
    folder, made = tmp_path_factory.mktemp("typed-weights"), {}
    for name, weight in WEIGHTS.items():
        rng = np.random.default_rng(5)
        y = rng.integers(0, 2, NODES)
        x = (np.eye(2)[y] + rng.normal(size=(NODES, 2))).astype(np.float32)
        src, dst = rng.integers(0, NODES, (2, EDGES))
        split = rng.choice([1, 2, 3], (NODES, 2)).astype(np.int8)
        values = None if weight is None else weight(y[src] == y[dst]).astype(np.float32)
        nodes = {"paper": array_nodes("paper", NODES, x, y, split), "author": array_nodes("author", 5)}
        written, times = (rng.integers(0, 5, 50), rng.integers(0, NODES, 50)), np.arange(50)
        edges = {CITES: array_edges("cites", src, dst, edge_weight=values)}
        edges[WRITES] = array_edges("writes", *written, edge_feature=np.ones((50, 2), "f4"), edge_time=times)
        made[name] = str(folder / name)
        ingest(TypedSource("t", nodes, edges), made[name], IngestOptions(num_partitions=2))
    return made


def train(url: str, run: Path, *words) -> tuple[float, list[float], str]:
    """Trains, and returns (test score, losses, output) of the run."""
    summary, losses, said = trained(url, run, *SMALL, *words)
    return summary["scores"]["test"], losses, said


SETS = "1 further split set (--data.split_set) of paper"
OTHERS = (
    "2 features of edges (--data.edge_features) of author--writes--paper; "
    "times of edges (--sampler.time) of author--writes--paper"
)


@pytest.mark.parametrize(
    "name", [name if name == "rsage" else pytest.param(name, marks=pytest.mark.long) for name in MODELS]
)
def test_weights_are_read_by_layers_models_and_searches(graphs, tmp_path, name) -> None:
    """Weights of 1 change nothing; other weights change the losses. With `no` the result equals a graph without weights."""
    runs = {kind: train(graphs[kind], tmp_path / kind, *MODELS[name]) for kind in ("none", "ones", "telling")}
    assert runs["ones"][1] == pytest.approx(runs["none"][1], rel=1e-4)
    assert runs["telling"][1] != pytest.approx(runs["none"][1], rel=1e-3)
    assert "chosen --data.edge_weight yes: edges have weights" in runs["telling"][2]
    left = train(graphs["telling"], tmp_path / "left", *MODELS[name], "--data.edge_weight", "no")
    assert left[:2] == runs["none"][:2]
    unread = f"stored and not read by this run: {SETS}; "
    assert f"{unread}edge weights (--data.edge_weight) of paper--cites--paper; {OTHERS}\n" in left[2]
    assert f"{unread}{OTHERS}\n" in runs["telling"][2]


def test_weights_that_tell_the_classes_are_learned(graphs, tmp_path) -> None:
    words = [*MODELS["rsage"], "--fit.epochs", 60, "--fit.learning_rate", 0.02]
    assert train(graphs["telling"], tmp_path / "telling", *words)[0] >= 0.95
    assert train(graphs["ones"], tmp_path / "ones", *words)[0] < 0.85
    done = run_job(predict.main, [str(tmp_path / "telling"), str(tmp_path / "out")])
    assert "as in the run's summary" in done.stdout
    assert f"stored and not read by this run: {SETS}; {OTHERS}\n" in done.stdout
    for name, problem in (("none", "edge column 'weight': no relation has it"), ("negative", "weights of at least 0")):
        done = run_job(
            predict.main, [str(tmp_path / "telling"), str(tmp_path / name), "--graph", graphs[name], "--other-graph"]
        )
        assert done.returncode == 1
        assert problem in done.stderr


@pytest.mark.parametrize(
    ("name", "words", "problem"),
    [
        ("negative", [], "paper--cites--paper: edge_weight: expected weights of at least 0"),
        ("none", ["--data.edge_weight", "yes"], "t: edge_weight: expected weights of edges, the graph has none"),
    ],
)
def test_what_cannot_be_read_is_refused(graphs, tmp_path, name, words, problem) -> None:
    done = run_job(
        train_nodes.main, ["--data", graphs[name], "--model", "rsage", *words, "--run.dir", str(tmp_path / "run")]
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert problem in done.stderr


def test_a_run_of_which_nothing_reads_weights(graphs, tmp_path) -> None:
    words = [*MODELS["geco behind layers"], "--model.block", "hyena"]
    assert "edge weights (--data.edge_weight) of paper--cites--paper; " in train(graphs["telling"], tmp_path, *words)[2]


def test_inspect_graph_names_them(graphs) -> None:
    printed = run_job(inspect_graph.main, [graphs["telling"]]).stdout
    assert "columns  weights\n" in printed
    assert "not read  unless a run asks for them: 1 further split set (--data.split_set)\n" in printed
    assert (
        "not read  unless a run asks for them: 2 features of edges (--data.edge_features), times of edges (--sampler.time)\n"
        in printed
    )
