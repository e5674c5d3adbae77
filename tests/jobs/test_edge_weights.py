"""Tests edge weights in a run on nodes. Two graphs differ only in their weights. In one graph the weights decide the classes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import encode, inspect_graph, predict, train_links, train_nodes
from graphmill.jobs.config.config import config_tree, read_config
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.config.stored_columns import EdgeWeights
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.job_in_process import output_of, run_job, trained
from tests.runs import node_run

NODES, EDGES = 600, 4500
SMALL = ["--model.num_layers", 2, "--model.width", 32, "--fit.learning_rate", 0.02, "--fit.patience", "none"]
SHORT = ["--fit.epochs", 2, "--fit.warmup_epochs", 0]


def make(folder: Path, name: str, weight, *, links: LinkSplitOptions | None = None, **columns) -> str:
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, NODES)
    x = (np.eye(2)[y] + rng.normal(size=(NODES, 2))).astype(np.float32)
    src, dst = rng.integers(0, NODES, (2, EDGES))
    split = rng.choice([1, 2, 3], NODES).astype(np.int8)[:, None]
    values = None if weight is None else weight(y[src] == y[dst]).astype(np.float32)
    columns = {name: make(EDGES) for name, make in columns.items()}
    graph = ArrayGraph("w", NODES, src, dst, edge_weight=values, feature=x, label=y, split=split, **columns)
    url = str(folder / name)
    ingest(graph, url, IngestOptions(num_partitions=2, out_edges=True, links=links or LinkSplitOptions()))
    return url


WEIGHTS = {
    "none": None,
    "ones": np.ones_like,
    "telling": lambda same: np.where(same, 100.0, 0.0),
    "negative": lambda same: np.where(same, 1.0, -0.5),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("weights")
    return {name: make(folder, name, weight) for name, weight in WEIGHTS.items()}


def train(url: str, run: Path, *words) -> tuple[float, list[float], str]:
    """Trains, and returns (test score, losses, output) of the run."""
    summary, losses, said = trained(url, run, *SMALL, *words)
    return summary["scores"]["test"], losses, said


SAMPLERS = {
    "whole": ["--sampler", "random-partition", "--sampler.num_chunks", 1],
    "chunks": ["--sampler", "random-partition", "--sampler.num_chunks", 2],
    "neighbor": ["--sampler", "neighbor", "--sampler.fanouts", 3, 3, "--evaluation", "sampled"],
    "induced": ["--sampler", "neighbor", "--sampler.fanouts", 3, 3, "--sampler.edges", "induced"],
    "saint": ["--sampler", "saint", "--sampler.num_walks", 50, "--sampler.num_presamples", 5],
    "ppr": ["--sampler", "ppr"],
    # Draws by weights of 1 differ from draws without weights. Here the sampler takes whole layers and draws nothing.
    "node2subgraph": ["--sampler", "node2subgraph", "--sampler.max_hops", 1, "--sampler.max_nodes", NODES],
}


@pytest.mark.parametrize(
    "sampler",
    [
        "whole",
        "neighbor",
        *(pytest.param(name, marks=pytest.mark.long) for name in [*SAMPLERS][1:] if name != "neighbor"),
    ],
)
def test_every_sampler_brings_weights(graphs, tmp_path, sampler):
    """Weights of 1 change nothing; other weights change the losses."""
    words = ["--model", "gcn", *SAMPLERS[sampler], *SHORT]
    losses = {name: train(graphs[name], tmp_path / name, *words)[1] for name in ("none", "ones", "telling")}
    assert losses["ones"] == pytest.approx(losses["none"], rel=1e-5)
    assert losses["telling"] != pytest.approx(losses["none"], rel=1e-3)


@pytest.mark.parametrize("model", ["gcn", *(pytest.param(name, marks=pytest.mark.long) for name in ("gat", "geco"))])
def test_a_sharded_graph_has_the_weights_of_a_whole_one(graphs, tmp_path, model):
    words = ["--model", model, "--model.dropout", 0, *SHORT]
    words += ["--model.local.dropout", 0, "--model.input_dropout", 0] if model == "geco" else []
    whole = train(graphs["telling"], tmp_path / "whole", *words, *SAMPLERS["whole"])[1]
    sharded = ["--run.parallel", "graph", "--workers", 1, "--workers.launcher", "process"]
    assert train(graphs["telling"], tmp_path / "shard", *words, *sharded)[1] == pytest.approx(whole, rel=1e-4)


def test_without_weights_a_run_is_that_of_a_graph_that_has_none(graphs, tmp_path):
    words = ["--model", "gcn", *SHORT]
    plain = train(graphs["none"], tmp_path / "plain", *words)
    left = train(graphs["telling"], tmp_path / "left", *words, "--data.edge_weight", "no")
    assert left[:2] == plain[:2]
    assert "stored and not read by this run: edge weights (--data.edge_weight)" in left[2]
    assert "not read by this run" not in plain[2]
    read = train(graphs["telling"], tmp_path / "read", *words)
    assert "chosen --data.edge_weight yes: edges have weights" in read[2]
    assert "not read by this run" not in read[2]


def test_draws_by_weight_stand_for_the_weights(graphs, tmp_path):
    """With `auto` the draws replace the weights in sums. With `yes` a sum also multiplies by the weights of the drawn edges."""
    words = ["--model", "gcn", *SAMPLERS["neighbor"], *SHORT, "--sampler.scheme", "weight"]
    drawn = train(graphs["telling"], tmp_path / "drawn", *words)
    assert "--data.edge_weight yes" not in drawn[2]
    assert "not read by this run" not in drawn[2]
    assert train(graphs["telling"], tmp_path / "both", *words, "--data.edge_weight", "yes")[1] != drawn[1]


def test_predictions_read_them(graphs, tmp_path):
    train(graphs["telling"], tmp_path / "run", "--model", "gcn", "--fit.epochs", 20)
    said = output_of(predict.main, str(tmp_path / "run"), str(tmp_path / "out"))
    assert "as in the run's summary" in said
    for name, problem in (("none", "the graph has no edge weights"), ("negative", "weights of at least 0")):
        done = run_job(
            predict.main, [str(tmp_path / "run"), str(tmp_path / name), "--graph", graphs[name], "--other-graph"]
        )
        assert done.returncode == 1
        assert problem in done.stderr


@pytest.mark.parametrize(
    ("name", "words", "problem"),
    [
        ("negative", [], "expected weights of at least 0.*the least is -0.5; set --data.edge_weight no"),
        ("none", ["--data.edge_weight", "yes"], "expected weights of edges, the graph has none"),
        ("ones", ["--data.edge_weight", "yes", "--sampler.corrected"], "got --sampler.corrected"),
        ("ones", ["--data.edge_weight", "no", "--sampler.edge_columns", "weight"], "leave out one of them"),
    ],
)
def test_what_cannot_be_read_is_refused(graphs, tmp_path, name, words, problem):
    done = run_job(
        train_nodes.main, ["--data", graphs[name], "--model", "gcn", *words, "--run.dir", str(tmp_path / "run")]
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert re.search(problem, done.stderr)


def choices(weights: EdgeWeights, **groups) -> tuple[bool, tuple[str, ...]]:
    facts = Facts(PLACEHOLDERS["nodes"], {}, None, weights=weights)
    resolved = resolve(read_config(config_tree("nodes", groups)), facts)
    return resolved.inputs.edge_weight, resolved.edge_columns


def test_which_models_read_them():
    found, known = (
        EdgeWeights("g", 0.0),
        {"gcn": True, "sage": True, "gat": True, "geco": True, "tokengt": False, "primphormer": True},
    )
    for model, reads in known.items():
        sampler = {"name": "random-partition"}
        assert choices(found, model=model, sampler=sampler) == (reads, ("weight",) if reads else ()), model
    assert choices(found, model={"name": "tokengt", "local": {"join": "gate", "block": "gcn"}})[0]
    assert not choices(replace(found, least=None), model="gcn")[0]  # the graph was ingested by an older version
    with pytest.raises(ConfigError, match="ingest the graph again"):
        choices(replace(found, least=None), model="gcn", data={"edge_weight": "yes"})
    with pytest.raises(ConfigError, match="got tokengt"):
        choices(found, model="tokengt", data={"edge_weight": "yes"})


def test_automatic_choices_read_weights(graphs):
    """Edges join nodes at random, except heavy edges, which join nodes of one class."""
    for name, words, told in (
        ("none", [], "neighbors are not alike"),
        ("telling", [], "neighbors are alike: homophily 1.00"),
        ("telling", ["--data.edge_weight", "no"], "neighbors are not alike"),
    ):
        run = node_run(open_graph(graphs[name]), "--model", "geco", *words)
        assert any(told in choice for choice in run.choices), (name, run.choices)
    assert (
        "homophily  100.0% of the weight of the edges between training nodes"
        in run_job(inspect_graph.main, [graphs["telling"]]).stdout
    )


def test_what_a_graph_stores_and_a_run_does_not_read_is_named(tmp_path):
    columns = {"edge_feature": lambda n: np.ones((n, 2), np.float32), "edge_time": np.arange}
    url = make(tmp_path, "all", WEIGHTS["ones"], **columns)
    unread = "2 features of edges (--data.edge_features); times of edges (--sampler.time)"
    printed = train(url, tmp_path / "run", "--model", "gcn", *SHORT)[2]
    assert f"stored and not read by this run: {unread}\n" in printed
    done = run_job(train_nodes.main, ["--data", url, "--model", "gcn", "--plan"])
    assert re.search(rf"not read +{re.escape(unread)}\n", done.stdout)
    done = run_job(inspect_graph.main, [url])
    assert f"unless a run asks for them: {unread.replace(';', ',')}\n" in done.stdout
    assert "weights  of edges, the least 1\n" in done.stdout
    asks = ["--data.edge_features", "--sampler", "neighbor", "--sampler.fanouts", 3, 3, "--sampler.time", "until"]
    asks += ["--sampler.as_of", EDGES, "--evaluation", "sampled"]
    assert "not read by this run" not in train(url, tmp_path / "asks", "--model", "gcn", *SHORT, *asks)[2]


def test_runs_on_links_and_their_predictions_name_it_too(tmp_path):
    columns = {"edge_time": np.arange, "links": LinkSplitOptions(valid=0.1, test=0.1)}
    url = make(tmp_path, "links", WEIGHTS["ones"], **columns)
    words = ["--data", url, "--model", "gcn", *SMALL, *SHORT, "--sampler", "neighbor", "--sampler.fanouts", 3, 3]
    times = "stored and not read by this run: times of edges (--sampler.time)\n"
    for name, more, line in (
        ("read", [], times),
        ("left", ["--data.edge_weight", "no"], times.replace("times", "edge weights (--data.edge_weight); times")),
    ):
        done = run_job(train_links.main, [*map(str, [*words, *more, "--run.dir", tmp_path / name])])
        assert done.returncode == 0, done.stderr
        assert line in done.stdout
        said = output_of(predict.main, str(tmp_path / name), str(tmp_path / f"{name}-best"), "--workers", "1")
        assert line in said


def test_stored_encodings_are_of_the_graph_without_weights(graphs, tmp_path):
    url, told = make(tmp_path, "encoded", WEIGHTS["telling"]), "which is of the graph without them"
    done = run_job(encode.main, [url, "--kind", "laplacian", "--dim", "4"])
    assert "without the weights of edges; " in done.stdout
    words = ["--model", "tokengt", "--model.num_heads", 2, "--model.identifier_dim", 4, *SHORT]
    local = ["--model.local.join", "gate", "--model.local.block", "gcn"]
    assert f"edge weights in laplacian-4-smallest, {told}\n" in train(url, tmp_path / "run", *words, *local)[2]
    assert told not in train(url, tmp_path / "own", *words)[2]
