"""Tests jobs on the links of one relation of a typed graph: they learn, resume to the last digit, and predict nodes of the target type."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs import predict
from graphmill.jobs.baselines.tuned_baselines import tries
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.models.relational.network import OverTypes
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.job_in_process import output_of
from tests.job_in_process import train_in as train
from tests.predictions import predictions_of
from tests.runs import curve, node_run

USERS, ITEMS, TOPICS = 90, 60, 6
LIKES, NEXT = Relation("user", "likes", "item"), Relation("item", "next", "item")
WORDS = [
    *(
        "--data",
        "shop",
        "--model",
        "rsage",
        "--model.width",
        "16",
        "--model.dropout",
        "0",
        "--sampler.fanouts",
        "6",
        "4",
    ),
    *(
        "--model.num_layers",
        "2",
        "--task.decoder.width",
        "16",
        "--task.batch_size",
        "128",
        "--task.decoder.kind",
        "dot",
    ),
    *("--fit.learning_rate", "0.03", "--fit.schedule", "constant", "--workers", "1", "--workers.launcher", "process"),
]
SCORES = ("valid_loss", "valid_mrr", "valid_auc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in which users like items of their topic."""
    folder, rng = tmp_path_factory.mktemp("typed-links"), np.random.default_rng(1)
    topic, of_item = rng.integers(0, TOPICS, USERS), np.arange(ITEMS) % TOPICS
    pairs = np.unique(rng.integers(0, (USERS, ITEMS), (9000, 2)), axis=0)
    pairs = pairs[topic[pairs[:, 0]] == of_item[pairs[:, 1]]]
    noise = rng.normal(size=(USERS + ITEMS, TOPICS)).astype(np.float32) / 2
    nodes = {
        "user": array_nodes("user", USERS, np.eye(TOPICS, dtype=np.float32)[topic] + noise[:USERS]),
        "item": array_nodes(
            "item",
            ITEMS,
            np.eye(TOPICS, dtype=np.float32)[of_item] + noise[USERS:],
            label=of_item,
            split=np.tile([1, 1, 2, 3], ITEMS // 4)[:, None],
        ),
    }
    edges = {
        LIKES: array_edges("likes", *pairs.T),
        NEXT: array_edges("next", rng.integers(0, ITEMS, 90), rng.integers(0, ITEMS, 90)),
    }
    held = LinkSplitOptions(valid=0.1, test=0.1, relation=str(LIKES))
    ingest(
        TypedSource("shop", nodes, edges),
        str(folder / "shop"),
        IngestOptions(num_partitions=2, undirected=True, links=held),
    )
    ingest(TypedSource("all", nodes, edges), str(folder / "all"), IngestOptions(undirected=True))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    train(folder, *WORDS, "--fit.epochs", "10", "--run.dir", "whole")
    return folder / "whole"


def test_it_learns_and_says_of_what(whole: Path, folder: Path) -> None:
    told = json.loads((whole / "summary.json").read_text())
    assert told["relation"] == str(LIKES)
    # One sixth of the rivals have the user's topic, so the model cannot rank them lower.
    assert told["scores"]["test"] > 0.1
    assert set(told["baselines"]) == {"paths_of_three"}
    assert told["baselines"]["paths_of_three"]["test"] > 0.08
    rows = curve(whole, *SCORES)
    assert rows[-1][0] < rows[0][0]
    assert rows[-1][3] > 0.8
    links = open_graph(str(folder / "shop"), kind=TypedGraph).relation(LIKES).manifest.links
    assert told["counts"] == {"valid": links.positives[2], "test": links.positives[3]}


def test_a_resumed_run_is_the_same_to_the_last_digit(whole: Path, folder: Path) -> None:
    train(folder, *WORDS, "--fit.epochs", "3", "--run.dir", "part")
    train(folder, "--run.resume", "part", "--fit.epochs", "10")
    assert curve(folder / "part", *SCORES) == curve(whole, *SCORES)
    assert (folder / "part/best/model.safetensors").read_bytes() == (whole / "best/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "graph", [[], ["--graph", "all", "--other_graph", "yes"]], ids=["its own", "one without links held out"]
)
def test_the_best_ends_of_every_source_are_new_ones(graph: list[str], whole: Path, folder: Path) -> None:
    output_of(predict.main, "whole", f"found{len(graph)}", "--top_k", "4", *graph, cwd=folder)
    found = predictions_of(folder / f"found{len(graph)}").to_pydict()
    assert sorted(found["id"]) == list(range(USERS))
    stored = open_graph(str(folder / ("all" if graph else "shop")), kind=TypedGraph)
    users = np.concatenate([part.original_id for part in stored.nodes("user").partitions()])
    known = {
        (int(users[source]), int(item))
        for part in stored.relation(LIKES).partitions()
        for item, begin, end in zip(part.original_id, part.indptr[:-1], part.indptr[1:], strict=True)
        for source in part.indices[begin:end]
    }
    for user, best, scores in zip(found["id"], found["destination"], found["score"], strict=True):
        assert len(best) == 4
        assert set(best) <= set(range(ITEMS))
        assert scores == sorted(scores, reverse=True)
        assert not {(user, item) for item in best} & known


@pytest.mark.parametrize(
    "words",
    [["--evaluation", "full", "--task.ranking", "all"], ["--evaluation", "sampled", "--sampler", "ppr"]],
    ids=["all", "sampled"],
)
def test_other_ways_to_score(words: list[str], folder: Path) -> None:
    at = WORDS.index("--sampler.fanouts")
    base = [*WORDS[:at], *WORDS[at + 3 :]] if "ppr" in words else WORDS
    name = f"scored-{words[-1]}"
    train(folder, *base, *words, "--fit.epochs", "2", "--run.dir", name)
    assert np.isfinite([*json.loads((folder / name / "summary.json").read_text())["scores"].values()]).all()


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    graph = open_graph(str(folder / "shop"), kind=TypedGraph)
    for relation, message in (
        ("a--b--c", "got a--b--c; set --task.relation"),
        (str(NEXT), "expected a graph with links that are held out"),
    ):
        with pytest.raises(ConfigError, match=message):
            node_run(graph, "--task", "links", "--task.relation", relation, "--model", "rsage")
    run = node_run(graph, "--task", "links", "--model", "rsage")
    assert run.training.relation == run.evaluation["test"].relation == str(LIKES)


def test_classic_models_see_a_typed_graph_as_one_plain_graph(folder: Path, tmp_path: Path) -> None:
    graph = open_graph(str(folder / "shop"), kind=TypedGraph)
    run = node_run(graph, "--model", "rsage", "--baseline", "gcn", "sage", "--baseline.configurations", "2")
    for one in tries(run.config, RunStore(str(tmp_path)), is_typed=True):
        resolved = Nodes(graph).resolve(one.config, None)
        assert (one.config.node_type, resolved.config.model.name) == ("item", one.name)
        layers = resolved.build_model().model
        assert isinstance(layers, OverTypes)
        assert not layers.layers.convolutions
