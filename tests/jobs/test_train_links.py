"""Tests link prediction as a job: it learns, resumes to the last digit, gives the same results for any number of workers, and predicts the best links."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, train_links, train_nodes
from graphmill.jobs.config.config import saved_tree
from graphmill.jobs.resolve.resolve import read_resolved
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_VALID
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.disturbed_job import Outcome
from tests.job_in_process import output_of, run_job
from tests.job_in_process import train_in as train
from tests.predictions import predictions_of
from tests.runs import config_of, curve

NUM_NODES, NUM_BLOCKS = 240, 8
# A small model on a graph of blocks. Edges join nodes of the same block.
SMALL = [
    *("--data", "graph", "--model", "sage", "--model.width", "16", "--model.num_layers", "2", "--model.dropout", "0"),
    *("--model.norm", "layer", "--sampler.fanouts", "6", "4", "--task.decoder.width", "16", "--task.batch_size", "128"),
    *("--task.decoder.kind", "dot"),
    *("--fit.learning_rate", "0.01", "--fit.schedule", "constant", "--fit.checkpoint_every", "1"),
]
SCORES = ("valid_loss", "valid_mrr", "valid_auc", "valid_hits_10")


def block_graph(**more) -> ArrayGraph:
    rng = np.random.default_rng(3)
    block = rng.integers(0, NUM_BLOCKS, NUM_NODES)
    pairs = rng.integers(0, NUM_NODES, (40_000, 2))
    inside = block[pairs[:, 0]] == block[pairs[:, 1]]
    pairs = pairs[(inside | (rng.random(len(pairs)) < 0.02)) & (pairs[:, 0] < pairs[:, 1])]
    pairs = np.unique(pairs, axis=0)
    pairs = pairs[rng.permutation(len(pairs))[:1500]]
    feature = np.eye(NUM_BLOCKS, dtype=np.float32)[block] + rng.normal(size=(NUM_NODES, NUM_BLOCKS)).astype(np.float32)
    return ArrayGraph("blocks", NUM_NODES, pairs[:, 0], pairs[:, 1], feature=feature, undirected_once=True, **more)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    options = IngestOptions(num_partitions=3, links=LinkSplitOptions(valid=0.1, test=0.1))
    ingest(block_graph(), str(folder / "graph"), options)
    return folder


def summary(folder: Path, run: str) -> dict:
    return json.loads((folder / run / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(workplace) -> Path:
    train(workplace, *SMALL, "--fit.epochs", "12", "--run.dir", "whole")
    return workplace / "whole"


def test_it_learns_and_reports_every_score(workplace, trained) -> None:
    told = summary(workplace, "whole")
    assert told["metric"] == "mrr"
    # One eighth of the rivals are in the destination's block, so the model cannot rank them lower.
    assert told["scores"]["test"] > 0.14
    assert told["baselines"]["common_neighbors"]["test"] > 0.1
    of_test = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert of_test["valid_auc"] > 0.75
    losses = [row[0] for row in curve(trained, *SCORES)]
    assert losses[-1] < 0.8 * losses[0]
    assert (trained / "report.html").exists()
    graph = open_graph(str(workplace / "graph"))
    assert graph.manifest.links is not None
    assert told["counts"] == {"valid": graph.manifest.links.positives[2], "test": graph.manifest.links.positives[3]}


def test_it_is_train_nodes_with_the_task_links_and_resumes_to_the_last_digit(workplace, trained) -> None:
    train(workplace, "jobs/train_links.yaml", *SMALL, "--fit.epochs", "5", "--run.dir", "part", main=train_nodes.main)
    train(workplace, "--run.resume", "part", "--fit.epochs", "12")
    assert Outcome.of(workplace / "part") == Outcome.of(trained)


@pytest.mark.parametrize("negatives", ["in_batch", pytest.param("uniform", marks=pytest.mark.long)])
@pytest.mark.ray
@pytest.mark.slow
def test_any_number_of_workers_trains_the_same(shared_ray, workplace, negatives) -> None:
    words = [*SMALL, "--task.negatives", negatives, "--task.num_negatives", "3", "--fit.epochs", "2"]
    words += ["--fit.micro_batches", "2", "--servers.start_timeout_s", "600", "--evaluation", "sampled"]
    for name, workers in (("one", ["1"]), ("two", ["2", "--servers.local_reads", "no"])):
        train(workplace, *words, "--workers", *workers, "--run.dir", f"{name}-{negatives}")
    one, two = (workplace / f"{name}-{negatives}" for name in ("one", "two"))
    assert Outcome.of(one).weights == Outcome.of(two).weights
    assert curve(one, *SCORES) == curve(two, *SCORES)
    assert summary(workplace, one.name)["scores"] == summary(workplace, two.name)["scores"]


@pytest.mark.parametrize(
    "words",
    [
        ["--task.decoder", "mlp", "--task.loss", "softmax", "--task.num_negatives", "5"],
        pytest.param(
            ["--task.decoder", "transe", "--task.loss", "margin", "--task.negatives", "degree"], marks=pytest.mark.long
        ),
        pytest.param(
            ["--task.decoder", "distmult", "--task.ranking", "all", "--task.metric", "hits_10"], marks=pytest.mark.long
        ),
        ["--evaluation", "sampled", "--task.ranking", "sampled", "--task.num_rivals", "20", "--task.metric", "auc"],
        ["--sampler", "random-partition", "--sampler.num_chunks", "1", "--task.exclude_own", "no"],
    ],
    ids=["mlp", "transe", "distmult", "sampled", "whole"],
)
def test_every_way_of_it_trains(workplace, words) -> None:
    base = SMALL
    if "random-partition" in words:
        at = SMALL.index("--sampler.fanouts")
        base = [*SMALL[:at], *SMALL[at + 3 :]]
    name = "-".join(word.strip("-") for word in words).replace("/", "-")
    said = train(workplace, *base, *words, "--fit.epochs", "3", "--run.dir", name)
    scores = summary(workplace, name)["scores"]
    assert set(scores) == {"valid", "test"}
    assert np.isfinite(list(scores.values())).all()
    assert "common neighbors" in said


@pytest.mark.parametrize("model", ["geco", "primphormer"])
def test_a_graph_transformer_trains(workplace, model) -> None:
    words = ["--data", "graph", "--model", model, "--model.width", "16", "--model.num_layers", "2"]
    words += ["--sampler.fanouts", "6", "4", "--task.decoder.width", "16", "--task.batch_size", "256"]
    words += ["--task.decoder.kind", "dot"]  # with this decoder the loss falls within three epochs
    train(workplace, *words, "--fit.epochs", "3", "--run.dir", model)
    first, *_, last = curve(workplace / model, *SCORES)
    assert last[0] < first[0]


def test_stored_negatives_are_what_scores_are_taken_on(tmp_path) -> None:
    """All links of a split have the same stored negatives. Hits@K and MRR rank a link only against these negatives."""
    graph = block_graph()
    pairs = np.stack([graph.src, graph.dst], axis=1)
    rng = np.random.default_rng(1)
    parts = [Links.of(*pairs[part::20].T, code) for part, code in ((0, SPLIT_VALID), (1, SPLIT_TEST))]
    joined = {tuple(pair) for pair in pairs.tolist()}
    others = [
        pair
        for pair in rng.integers(0, NUM_NODES, (600, 2)).tolist()
        if pair[0] < pair[1] and tuple(pair) not in joined
    ]
    parts += [Links.of(*np.array(others[:90]).T, code, is_link=0) for code in (SPLIT_VALID, SPLIT_TEST)]
    held = np.zeros(len(pairs), bool)
    held[0::20] = held[1::20] = True
    left = ArrayGraph(
        "blocks", NUM_NODES, *pairs[~held].T, feature=graph.feature, undirected_once=True, links=Links.join(parts)
    )
    ingest(left, str(tmp_path / "graph"))
    train(tmp_path, *SMALL, "--task.metric", "hits_20", "--fit.epochs", "4", "--run.dir", "run")
    told = summary(tmp_path, "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"]["ranking"] == "fixed"
    assert told["counts"] == {"valid": 75, "test": 75}
    assert told["scores"]["test"] > 0.3
    assert told["scores"]["test"] == told["all_scores"]["test"]["hits_20"]


def test_the_best_links_are_those_of_a_loop_over_all_pairs(workplace, trained) -> None:
    with_scores = run_job(predict.main, ["whole", "best", "--top_k", "5", "--workers", "1", "--embeddings"], workplace)
    assert with_scores.returncode == 0, with_scores.stderr
    table = predictions_of(workplace / "best")
    assert table["id"].to_pylist() == list(range(NUM_NODES))
    resolved = read_resolved({k: v for k, v in saved_tree(str(trained), "").items()})
    model = resolved.build_model()
    model.load_state_dict(load_file(trained / "best" / "model.safetensors"))
    model.eval()
    graph = open_graph(str(workplace / "graph"))
    known, state = known_and_states(graph, model)
    assert np.allclose(table["embedding"].to_pylist(), state, atol=1e-5)
    score = state.double() @ state.double().T
    for node, destinations, scores in zip(
        *(table[name].to_pylist() for name in ("id", "destination", "score")), strict=True
    ):
        allowed = [other for other in range(NUM_NODES) if other != node and other not in known[node]]
        expected = sorted(allowed, key=lambda other: -float(score[node, other]))[:5]
        assert sorted(destinations) == sorted(expected)
        assert scores == pytest.approx([float(score[node, other]) for other in expected], rel=1e-4)


@pytest.mark.long
def test_the_best_links_of_nodes_whose_ids_are_strings(workplace, trained) -> None:
    """The same graph with strings as node ids has the same best links, given by these ids."""
    source = block_graph()
    (workplace / "edges.csv").write_text(
        "src,dst\n" + "".join(f"n{a},n{b}\n" for a, b in zip(source.src, source.dst, strict=True))
    )
    (workplace / "ids.csv").write_text("id\n" + "".join(f"n{i}\n" for i in range(NUM_NODES)))
    np.save(workplace / "x.npy", source.feature)
    options = EdgeListOptions(
        ids=str(workplace / "ids.csv"), features=str(workplace / "x.npy"), undirected_once=True, node_header=True
    )
    held_out = IngestOptions(num_partitions=3, links=LinkSplitOptions(valid=0.1, test=0.1))
    ingest(EdgeListGraph(workplace / "edges.csv", options), str(workplace / "named"), held_out)
    words = ["whole", "named_best", "--top_k", "5", "--workers", "1", "--graph", "named", "--other-graph"]
    output_of(predict.main, *words, cwd=workplace)
    named, numbered = predictions_of(workplace / "named_best"), predictions_of(workplace / "best")
    assert named["id"].to_pylist() == [f"n{row}" for row in range(NUM_NODES)]
    assert named["row"].to_pylist() == list(range(NUM_NODES))
    assert named["score"] == numbered["score"]
    assert named["destination"].to_pylist() == [[f"n{i}" for i in ids] for ids in numbered["destination"].to_pylist()]


def known_and_states(graph, model) -> tuple[dict[int, set[int]], torch.Tensor]:
    """The neighbors and the state of each node, by permanent id."""
    from graphmill.cluster.data.training_data import StoredNodes
    from graphmill.samplers.vocabulary.options import RandomPartitionOptions

    data = StoredNodes.of(graph).open()
    batch = data.collate(data.sampler(RandomPartitionOptions(1, root_splits=None, shuffle=False), 1).sample(0, 0))
    with torch.no_grad():
        states = model.encoder(batch).prediction
    row = np.repeat(np.arange(NUM_NODES), np.diff(batch.indptr.numpy()))
    known: dict[int, set[int]] = {node: set() for node in range(NUM_NODES)}
    for one, other in zip(batch.node_id[batch.indices].tolist(), batch.node_id[row].tolist(), strict=True):
        known[one].add(other)
    assert batch.node_id.tolist() == list(range(NUM_NODES))
    return known, states


def test_a_plan_says_what_would_be_done(workplace, tmp_path) -> None:
    said = train(workplace, *SMALL, "--plan", "--run.dir", str(tmp_path / "no"))
    assert "links held out" in said
    assert re.search(r"batch  1\d\d links, ", said), said
    assert "nothing" in said.splitlines()[-1] or "refused  nothing" in said
    said = train(tmp_path, "--data.folder", "here", "--plan")
    assert "links held out: 5% of the pairs valid, 10% test" in said
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--sampler.batch_size", "7"],
            "a batch of links has --task.batch_size of them; leave out --sampler.batch_size",
        ),
        (["--run.parallel", "graph"], "leave it out"),
        (["--baseline", "gcn"], "leave out --baseline"),
        (["--evaluation.chunks", "3"], "links are scored on the whole graph in one chunk"),
        (["--task.negatives", "fixed"], "expects negatives stored for the links of the split train"),
        (["--task.ranking", "fixed"], "expected negatives stored for the split valid, got none"),
        (["--sampler", "saint"], "links need one that draws around given nodes"),
    ],
)
def test_what_cannot_be_is_one_line(workplace, words, message) -> None:
    base = SMALL
    if words[1] == "saint":
        at = SMALL.index("--sampler.fanouts")
        base = [*SMALL[:at], *SMALL[at + 3 :]]
    done = run_job(train_links.main, [*base, *words, "--run.dir", "refused"], workplace)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (workplace / "refused").exists()


def test_a_resume_keeps_the_task(workplace, trained) -> None:
    for words in (["--task.loss", "softmax"], ["--task.decoder", "mlp"], ["--task.num_negatives", "2"]):
        done = run_job(train_links.main, ["--run.resume", "whole", "--fit.epochs", "13", *words], workplace)
        assert done.returncode != 0
        assert "this checkpoint is of another" in done.stderr, done.stderr


def test_the_configuration_reads_back() -> None:
    config = config_of("--task", "links", "--task.decoder", "mlp", "--model", "sage")
    assert config.links is not None
    assert config.links.decoder.kind == "mlp"
    assert config.open == ()
    with pytest.raises(ConfigError, match="batch_size"):
        config_of("--task", "links", "--task.batch_size", "0")
