"""Tests train_nodes on a typed graph.

Runs of R-SAGE, and of models behind relational layers, are resumed, replayed and planned. Unsupported options are refused.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graphmill.jobs import ingest, predict, replay, train_links, train_nodes
from graphmill.jobs.resolve.resolve import ResolvedRun, read_resolved
from graphmill.models.relational.network import RSAGE, OverTypes
from graphmill.storage.graph import open_graph
from tests.job_in_process import one_thread, output_of, run_job, run_on_one_thread
from tests.predictions import predictions_of
from tests.runs import curve, node_run

PROCESS = ["--workers", "1", "--workers.launcher", "process"]
SMALL = [
    *("--fit.epochs", "3", "--sampler.fanouts", "4", "3", "--sampler.batch_size", "64", "--fit.micro_batches", "2"),
    *("--fit.schedule", "constant", "--fit.checkpoint_every", "1", "--run.defaults", "recipe"),
    *("--fit.warmup_epochs", "0", "--fit.learning_rate", "0.02"),
]
RSAGE_WORDS = ["--data", "two", "--model", "rsage", "--model.width", "16", "--model.dropout", "0.1", *SMALL, *PROCESS]
TYPED_SAMPLER = ["--sampler", "typed-neighbor", "--evaluation", "sampled"]
BEHIND_LAYERS = ["--relational.width", "16", "--relational.num_layers", "1", "--relational.num_bases", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One typed graph in one and in two partitions, and a plain graph."""
    folder = tmp_path_factory.mktemp("typed")
    mag = ["--mag.scale", "0.0004", "--mag.num-classes", "3", "--mag.feature-dim", "8"]
    plain = ["--synthetic.num-nodes", "300"]
    for source, name, options in (("mag", "one", mag), ("mag", "two", mag), ("", "plain", plain)):
        kind = f"synthetic-{source}" if source else "synthetic"
        cut = ["--partitions", "1"] if name == "one" else ["--partitions", "2", "--partitioner", "ldg"]
        words = [kind, name, *cut, *options]
        output_of(ingest.main, *words, cwd=folder)
    return folder


train = partial(run_on_one_thread, train_nodes.main)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The directory of an R-SAGE run that was trained without interruption."""
    said = train([*RSAGE_WORDS, "--run.dir", "whole"], folder)
    assert "4 types" in said
    return folder / "whole"


def test_a_run_is_kept_as_any_run_is(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["node_type"] == "paper"
    assert set(summary["baselines"]) == {"majority", "features_only"}
    losses = [loss for loss, *_ in curve(whole)]
    assert losses[-1] < losses[0]
    page = (whole / "report.html").read_text()
    assert "node_type" in page
    tree = json.loads((whole / "config.json").read_text())
    assert tree["task"]["node_type"] == "paper"
    resolved = read_resolved(tree)
    assert isinstance(resolved, ResolvedRun)
    assert resolved.is_typed
    assert resolved.training.root_type == "paper"


def test_a_resumed_run_is_the_same_to_the_last_digit(whole: Path, folder: Path) -> None:
    train([*RSAGE_WORDS, "--run.dir", "parts", "--fit.epochs", "1"], folder)
    train(["--run.resume", "parts", "--fit.epochs", "3"], folder)
    assert curve(folder / "parts") == curve(whole)
    weights = [(run / "best" / "model.safetensors").read_bytes() for run in (folder / "parts", whole)]
    assert weights[0] == weights[1]


def test_partitions_change_no_digit(whole: Path, folder: Path) -> None:
    train([*RSAGE_WORDS, "--data", "one", "--run.dir", "one-partition"], folder)
    assert curve(folder / "one-partition") == curve(whole)


def test_replay_rebuilds_a_batch(whole: Path, folder: Path) -> None:
    said = output_of(replay.main, str(whole), "--batch", "1", "--loss", "--out", "batch.npz", cwd=folder)
    for line in ("paper.x  float32", "author--writes--paper.indices  int32", "loss  ", "micro-batch 1"):
        assert line in said
    arrays = np.load(folder / "batch.npz")
    assert len(arrays["paper.x"]) == len(arrays["paper.node_id"]) == len(arrays["author--writes--paper.indptr"]) - 1


def test_the_plan_draws_a_batch(folder: Path) -> None:
    said = output_of(train_nodes.main, *RSAGE_WORDS, "--plan", cwd=folder)
    for line in ("of 4 types", "every split through its own roots", "RSAGE, ", "refused  nothing"):
        assert line in said


def test_fanouts_of_a_relation(folder: Path) -> None:
    graph = open_graph(str(folder / "two"))
    words = ("--model", "rsage", "--sampler.relation_fanouts", "author--writes--paper=5,0", "paper--cites--paper=-1,2")
    run = node_run(graph, *words)
    relations = dict(run.training.relation_fanouts)
    assert {str(name): counts for name, counts in relations.items()} == {
        "author--writes--paper": (5, 0),
        "paper--cites--paper": (-1, 2),
    }
    assert read_resolved(json.loads(json.dumps(run.tree()))) == run
    assert node_run(graph, "--model", "rsage", "--sampler.relation_fanouts", "none").training.relation_fanouts == {}


MODELS = {
    "geco": ["--model.width", "16", "--model.num_layers", "1"],
    "primphormer": ["--model.width", "16", "--model.num_layers", "1"],
    "tokengt": [*("--model.width", "16", "--model.num_layers", "1", "--model.identifier", "orf")],
    "sage": ["--model.width", "16"],
}


@pytest.mark.parametrize(
    "name", [name if name == "geco" else pytest.param(name, marks=pytest.mark.long) for name in MODELS]
)
def test_other_models_stand_behind_relational_layers(name: str, folder: Path) -> None:
    graph = open_graph(str(folder / "two"))
    words = ["--model", name, *TYPED_SAMPLER, *MODELS[name], *BEHIND_LAYERS, *SMALL]
    run = node_run(graph, *words)
    model = run.build_model().model
    assert isinstance(model, OverTypes)
    assert len(model.layers.convolutions) == 1
    assert model.layers.convolutions[0].basis_BFD.shape == (2, 16, 16)
    assert run.architecture["relational"]["num_bases"] == 2
    if name == "geco":  # GECO's filters have a separate learning rate
        groups = run.build_model().param_groups(0.1, 0.5)
        assert {group["name"]: group["lr"] for group in groups}["filters"] == 0.01
        assert sum(len(group["params"]) for group in groups) == len([*run.build_model().parameters()])
    train(["--data", "two", *words, *PROCESS, "--fit.epochs", "1", "--run.dir", name], folder)
    assert np.isfinite(curve(folder / name)[0][0])


def test_r_sage_has_layers_of_its_own(folder: Path) -> None:
    run = node_run(open_graph(str(folder / "two")), "--model", "rsage", "--task.node_type", "paper")
    assert isinstance(run.build_model().model, RSAGE)
    assert "relational" not in run.architecture
    assert run.inputs.node_dims == (("author", 0), ("field_of_study", 0), ("institution", 0), ("paper", 8))
    ages = ["--sampler.time", "until", "--sampler.as_of", "5", "--sampler.recency_dim", "3"]
    run = node_run(open_graph(str(folder / "two")), "--model", "rsage", *ages)
    assert run.inputs.node_dims == (("author", 3), ("field_of_study", 3), ("institution", 3), ("paper", 11))


SUBGRAPHS = {
    "typed-node2subgraph": ["--sampler.max_hops", "2", "--sampler.max_nodes", "20"],
    "typed-ppr": ["--sampler.top_k", "9", "--sampler.epsilon", "0.001"],
}


def test_an_epoch_over_subgraphs_of_roots(folder: Path) -> None:
    sampler = ["--sampler", "typed-node2subgraph", *SUBGRAPHS["typed-node2subgraph"], "--sampler.batch_size", "64"]
    words = ["--data", "two", "--model", "rsage", "--model.width", "16", *sampler, *PROCESS]
    train([*words, "--fit.epochs", "1", "--run.defaults", "recipe", "--run.dir", "subgraphs"], folder)
    assert np.isfinite(curve(folder / "subgraphs")[0][0])


@pytest.mark.parametrize(
    ("model", "sampler"),
    [
        ("grit", "typed-node2subgraph"),
        pytest.param("ppgt", "typed-ppr", marks=pytest.mark.long),
        pytest.param("ppgt", "typed-node2subgraph", marks=pytest.mark.long),
    ],
)
def test_models_of_one_subgraph_per_root(model: str, sampler: str, folder: Path) -> None:
    """Results are equal on one and on two partitions, and after a resume. The predictions have the same scores as the run."""
    words = [
        *("--model", model, "--model.width", "16", "--model.num_layers", "1", "--model.num_heads", "2", *BEHIND_LAYERS),
        *("--sampler", sampler, *SUBGRAPHS[sampler], "--sampler.batch_size", "64", "--evaluation", "sampled", *PROCESS),
        *("--fit.epochs", "2", "--fit.checkpoint_every", "1", "--run.defaults", "recipe"),
    ]
    whole, parts = f"{model}-{sampler}", f"{model}-{sampler}-parts"
    train(["--data", "two", *words, "--run.dir", whole], folder)
    train(["--data", "one", *words, "--run.dir", parts, "--fit.epochs", "1"], folder)
    train(["--run.resume", parts, "--fit.epochs", "2"], folder)
    assert curve(folder / parts) == curve(folder / whole)
    said = output_of(predict.main, str(folder / whole), f"predicted-{whole}", cwd=folder)
    assert "as in the run's summary" in said


@pytest.mark.long
@pytest.mark.parametrize("name", SUBGRAPHS)
def test_a_run_over_subgraphs_of_roots(name: str, folder: Path) -> None:
    words = [
        *("--model", "rsage", "--model.width", "16", "--sampler", name, *SUBGRAPHS[name], *PROCESS),
        *("--sampler.relations", "author--writes--paper", "paper--rev_writes--author", "--sampler.batch_size", "64"),
        *("--fit.epochs", "2", "--fit.checkpoint_every", "1", "--run.defaults", "recipe"),
    ]
    train(["--data", "two", *words, "--run.dir", f"two-{name}"], folder)
    train(["--data", "one", *words, "--run.dir", f"one-{name}", "--fit.epochs", "1"], folder)
    train(["--run.resume", f"one-{name}", "--fit.epochs", "2"], folder)
    assert curve(folder / f"one-{name}") == curve(folder / f"two-{name}")
    said = output_of(replay.main, str(folder / f"two-{name}"), "--batch", "1", "--loss", cwd=folder)
    assert "paper.subgraph  int64" in said
    output_of(predict.main, str(folder / f"two-{name}"), f"predictions-{name}", cwd=folder)


def test_scores_on_the_whole_graph_are_those_of_all_neighbors(folder: Path) -> None:
    """Training, plan and predictions score all types and relations in one pass."""
    base = ["--data", "two", "--model", "rsage", "--model.width", "16", *PROCESS, "--run.defaults", "recipe"]
    words = [*base, "--sampler", "neighbor", "--sampler.fanouts", "-1", "-1", "--fit.epochs", "2"]
    predicted = []
    for how in ("full", "sampled"):
        train([*words, "--evaluation", how, "--fit.checkpoint_every", "1", "--run.dir", how], folder)
        done = run_job(predict.main, [how, f"predictions-{how}"], folder)
        assert done.returncode == 0, done.stderr
        predicted.append(predictions_of(folder / f"predictions-{how}").sort_by("id"))
    assert curve(folder / "full") == curve(folder / "sampled")
    assert predicted[0]["prediction"].equals(predicted[1]["prediction"])
    done = run_job(train_nodes.main, [*words, "--evaluation", "full", "--plan"], folder)
    assert done.returncode == 0, done.stderr
    assert "one pass over the whole graph as one batch" in done.stdout


@pytest.mark.parametrize("model", ["rsage", "geco"])
def test_the_whole_graph_is_the_one_batch(model: str, folder: Path) -> None:
    """A graph-parallel run has the whole graph as its only batch. It can be planned, resumed and used for predictions, as on a plain graph."""
    words = ["--data", "two", "--model", model, "--model.width", "16", "--run.parallel", "graph", *PROCESS]
    words += [*("--fit.checkpoint_every", "1", "--run.defaults", "recipe"), *BEHIND_LAYERS * (model == "geco")]
    plan = train([*words, "--plan"], folder)
    assert "the whole graph, about 776 nodes on each of 1 worker" in plan
    full = "chosen  --evaluation full: --run.parallel graph scores the whole graph by one pass, in place of sampled"
    assert (full in plan) == (model == "rsage")
    train([*words, "--fit.epochs", "2", "--run.dir", f"whole-{model}"], folder)
    train([*words, "--fit.epochs", "1", "--run.dir", f"part-{model}"], folder)
    train(["--run.resume", f"part-{model}", "--fit.epochs", "2"], folder)
    assert curve(folder / f"part-{model}") == curve(folder / f"whole-{model}")
    said = output_of(predict.main, str(folder / f"whole-{model}"), f"predicted-whole-{model}", cwd=folder)
    assert "as in the run's summary" in said


CHUNKS = {
    "plain": ["--sampler.num_chunks", "3"],
    "corrected": ["--sampler.num_chunks", "3", "--sampler.corrected", "yes"],
    "saint": ["--sampler", "saint", "--sampler.num_walks", "60", "--sampler.num_presamples", "20"],
}


@pytest.mark.parametrize("how", CHUNKS)
def test_chunks_train_and_the_whole_graph_scores(how: str, folder: Path) -> None:
    """The scores equal those of one batch with all nodes, for any number of partitions and ranks. The run can be resumed and used for predictions."""
    words = ["--model", "geco", *BEHIND_LAYERS, "--model.width", "16", "--model.num_layers", "1", *SMALL[7:], *PROCESS]
    words += CHUNKS[how]
    train(["--data", "two", *words, "--run.dir", f"two-{how}", "--fit.epochs", "2"], folder)
    train(["--data", "one", *words, "--run.dir", f"one-{how}", "--fit.epochs", "1"], folder)
    train(["--run.resume", f"one-{how}", "--fit.epochs", "2"], folder)
    assert curve(folder / f"one-{how}") == curve(folder / f"two-{how}")
    done = run_job(predict.main, [str(folder / f"two-{how}"), f"predictions-{how}"], folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model rsage --task.node_type book", "expected a type, one of author, field_of_study, institution, paper"),
        ("--model rsage --task.node_type author", "expected nodes with a class each"),
        ("--model rsage --task binary", "set --task classification"),
        ("--model rsage --data.split_set 2", "set --data.split_set"),
        ("--model rsage --relational.num_bases 2", "leave out --relational"),
        ("--model rsage --sampler.fanouts 5 5 5", "fanouts needs one entry per layer: 2 layers"),
        ("--model rsage --sampler.relation_fanouts writes=5,5", "expected SOURCE--NAME--TARGET, got 'writes'"),
        ("--model rsage --sampler.relation_fanouts a--b--c=5,5", "expected relations among author--affiliated"),
        ("--model rsage --sampler.relation_fanouts author--writes--paper=5", "expected a fan-out for each of the"),
        ("--model rsage --sampler.root_order groups", "root_order"),
        (
            "--model rsage --sampler typed-ppr --sampler.relations a--b--c",
            "relations: expected relations among author--a",
        ),
        ("--model rsage --data.edge_features", "expected features of edges, the graph has none"),
        ("--model rsage --embeddings.width 4 --embeddings.node_types book", "expected a type, one of author, field"),
        ("--model rsage --embeddings.node_types author", "set --embeddings.width"),
        (
            "--model ppgt --sampler typed-neighbor --evaluation sampled",
            "set --sampler typed-node2subgraph or typed-ppr, and --eval",
        ),
    ],
)
def test_what_a_typed_graph_cannot_have_is_refused_in_one_line(words: str, message: str, folder: Path) -> None:
    done = run_job(train_nodes.main, ["--data", "two", *words.split(), "--run.dir", "refused"], folder)
    assert done.returncode in (1, 2), done.stdout
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "refused").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--model rsage",
        TYPED_SAMPLER,
        "--task.node_type paper",
        "--relational.width 64",
        "--embeddings.node_types paper --embeddings.width 4",
    ],
)
def test_a_plain_graph_has_no_types(words: str | list[str], folder: Path) -> None:
    words = words.split() if isinstance(words, str) else words
    done = run_job(train_nodes.main, ["--data", "plain", *words, "--run.dir", "refused"], folder)
    assert done.returncode == 1
    assert f"expected a typed graph, which {words[0].removesuffix('.width')} " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_links_that_are_not_held_out_are_refused(folder: Path) -> None:
    done = run_job(train_links.main, ["--data", "two"], folder)
    assert done.returncode == 1
    assert "expected links held out of a relation, one of author--affiliated" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_ray_workers_behind_servers_train_the_same_weights(whole: Path, folder: Path, shared_ray) -> None:
    """One worker and two workers train on two micro-batches in a step. They read only through servers, and continue a run of one process.

    Then `predict` predicts the nodes.
    """
    served = ["--servers.local_reads", "no", "--servers.start_timeout_s", "600", "--workers.launcher", "ray"]
    for name, workers in (("served-1", "1"), ("served-2", "2")):
        train([*RSAGE_WORDS, *served, "--workers", workers, "--run.dir", name], folder)
        assert curve(folder / name) == curve(whole)
    train([*RSAGE_WORDS, "--run.dir", "moved", "--fit.epochs", "1"], folder)
    train(["--run.resume", "moved", *served, "--workers", "2", "--fit.epochs", "3"], folder)
    assert curve(folder / "moved") == curve(whole)
    weights = {
        (folder / run / "best" / "model.safetensors").read_bytes() for run in ("whole", "served-1", "served-2", "moved")
    }
    assert len(weights) == 1
    traffic = json.loads((folder / "served-2" / "summary.json").read_text())["traffic"]["epochs"]
    assert traffic["remote_requests"] > 0
    with one_thread():
        done = run_job(predict.main, [str(whole), "predictions"], folder)
    assert done.returncode == 0, done.stderr
    table = predictions_of(folder / "predictions")
    assert table["id"].to_pylist() == list(range(open_graph(str(folder / "two")).nodes("paper").num_nodes))
    of_test = [row["target"] == row["prediction"] for row in table.to_pylist() if row["split"] == "test"]
    assert np.mean(of_test) == pytest.approx(json.loads((whole / "summary.json").read_text())["scores"]["test"])
