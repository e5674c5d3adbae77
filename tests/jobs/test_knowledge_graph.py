"""Tests jobs on links of a knowledge graph: they learn relations, their scores equal the scores of a plain loop, and the best links belong to one relation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from graphmill.jobs import ingest, predict, train_links, train_nodes
from tests.disturbed_job import Outcome
from tests.job_in_process import output_of, run_job
from tests.job_in_process import train_in as train
from tests.knowledge_graphs import NUM_GROUPS, RULES, triples, write_layout
from tests.predictions import predictions_of

SMALL = [
    *("--data", "graph", "--model", "sage", "--model.width", "16", "--model.num_layers", "1", "--model.norm", "none"),
    *(
        "--model.dropout",
        "0",
        "--embeddings.width",
        "16",
        "--embeddings.learning_rate",
        "0.3",
        "--sampler.fanouts",
        "4",
    ),
    *("--task.decoder.kind", "distmult", "--task.decoder.width", "16", "--task.loss", "softmax"),
    *("--task.num_negatives", "8", "--task.batch_size", "256", "--task.ranking", "all", "--fit.checkpoint_every", "1"),
    *("--fit.schedule", "constant", "--fit.learning_rate", "0.01"),
]
PROCESS = ["--workers", "1", "--workers.launcher", "process"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("knowledge")
    write_layout(folder / "small", triples())
    output_of(ingest.main, "triples:small", "graph", "--partitions", "2", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def trained(workplace) -> Path:
    train(workplace, *SMALL, *PROCESS, "--fit.epochs", "16", "--run.dir", "whole")
    return workplace / "whole"


def test_relations_are_learnt(trained) -> None:
    """A model can learn the right group, an eighth of the entities. The right member of the group is random."""
    told = json.loads((trained / "summary.json").read_text())
    assert told["scores"]["test"] > 2 * told["baselines"]["common_neighbors"]["test"]
    assert told["all_scores"]["test"]["hits_20"] > 0.8
    assert told["counts"] == {"valid": 240, "test": 240}


@pytest.mark.long
def test_a_resumed_run_is_the_same(workplace, trained) -> None:
    train(workplace, *SMALL, *PROCESS, "--fit.epochs", "5", "--run.dir", "part")
    train(workplace, "--run.resume", "part", "--fit.epochs", "16")
    assert Outcome.of(workplace / "part") == Outcome.of(trained)


@pytest.mark.long
def test_the_best_links_lead_by_their_relation(workplace, trained) -> None:
    for name in ("next to", "inverse of opposite"):
        out = name.replace(" ", "-")
        output_of(predict.main, "whole", out, "--top_k", "5", "--relation", name, "--workers", "1", cwd=workplace)
        table = predictions_of(workplace / out)
        rule = RULES[name.removeprefix("inverse of ")]
        right = [
            int(end[1:]) % NUM_GROUPS == rule(int(node[1:]) % NUM_GROUPS)
            for node, ends in zip(table["id"].to_pylist(), table["destination"].to_pylist(), strict=True)
            for end in ends
        ]
        assert np.mean(right) > 2 / NUM_GROUPS


def test_scores_and_best_links_are_those_of_a_loop(workplace, trained) -> None:
    """The loop computes filtered scores in both directions, from the states that `predict --embeddings` wrote."""
    words = ["whole", "states", "--relation", "next to", "--embeddings", "--workers", "1"]
    output_of(predict.main, *words, cwd=workplace)
    table = predictions_of(workplace / "states")
    place = {name: row for row, name in enumerate(table["id"].to_pylist())}
    state = torch.tensor(table["embedding"].to_pylist(), dtype=torch.float64)
    vectors = load_file(trained / "best" / "model.safetensors")["decoder.relation.vectors"].double()
    files = {
        split: (workplace / "small" / f"{split}.txt").read_text().splitlines() for split in ("train", "valid", "test")
    }
    number: dict[str, int] = {}
    parts = {}
    for split, lines in files.items():
        rows = [line.split("\t") for line in lines]
        parts[split] = [(place[h], number.setdefault(r, len(number)), place[t]) for h, r, t in rows]
        parts[split] += [(t, r + len(RULES), h) for h, r, t in parts[split]]
    known = {link for part in parts.values() for link in part}
    ranks = []
    for source, relation, destination in parts["test"]:
        score = (state[source] * vectors[relation]) @ state.T
        rivals = [v for v in range(len(state)) if v != destination and (source, relation, v) not in known]
        ranks.append(1 + float((score[rivals] > score[destination]).sum()))
    own = number["next to"]
    for node, ends in enumerate(table["destination"].to_pylist()):
        score = (state[node] * vectors[own]) @ state.T
        joined = {node} | {t for h, r, t in parts["train"] if (h, r) == (node, own)}
        best = sorted((v for v in range(len(state)) if v not in joined), key=lambda v: -float(score[v]))[:10]
        assert sorted(place[end] for end in ends) == sorted(best)
    told = json.loads((trained / "summary.json").read_text())["scores"]["test"]
    assert np.mean(1 / np.array(ranks)) == pytest.approx(told, abs=2e-3)


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (train_links.main, [*SMALL, "--task.decoder.kind", "dot"], "set --task.decoder distmult, transe or mlp"),
        (train_links.main, [*SMALL, "--data.edge_features"], "leave out --data.edge_features"),
        (predict.main, ["whole", "no"], "relation: expected one of next to, "),
        (predict.main, ["whole", "no", "--relation", "likes"], "got likes; set --relation"),
        (predict.main, ["whole", "no"], "got none; set --relation"),
    ],
)
def test_what_cannot_be_is_one_line(workplace, trained, main, words, message) -> None:
    more = [] if main is predict.main else ["--run.dir", "no"]
    done = run_job(main, [*words, *more], workplace)
    assert done.returncode != 0
    names = {*(workplace / "small" / "train.txt").read_text().split("\n")[0].split("\t")[1:2]}
    assert message.replace("next to, ", f"{min(names)}, ") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (workplace / "no").exists()


@pytest.mark.long
@pytest.mark.parametrize("decoder", ["transe", "mlp"])
def test_other_decoders_train(workplace, decoder) -> None:
    words = [*SMALL, "--task.decoder.kind", decoder, "--fit.epochs", "4", "--run.dir", decoder]
    train(workplace, *words, *PROCESS, "--task.ranking", "sampled")
    losses = [
        json.loads(line)["train_loss"] for line in (workplace / decoder / "metrics.jsonl").read_text().splitlines()
    ]
    assert losses[-1] < losses[0]


@pytest.mark.long
@pytest.mark.ray
def test_servers_and_two_workers_train_the_same(workplace, shared_ray) -> None:
    words = [
        *SMALL,
        "--fit.micro_batches",
        "2",
        "--fit.epochs",
        "3",
        "--task.ranking",
        "sampled",
        "--evaluation",
        "sampled",
    ]
    train(workplace, *words, *PROCESS, "--run.dir", "alone")
    served = [
        "--workers",
        "2",
        "--workers.launcher",
        "ray",
        "--servers.local_reads",
        "no",
        "--servers.start_timeout_s",
        "600",
    ]
    train(workplace, *words, *served, "--run.dir", "served")
    assert Outcome.of(workplace / "alone").weights == Outcome.of(workplace / "served").weights


@pytest.mark.long
def test_a_run_on_nodes_has_no_relation(tmp_path) -> None:
    words = ["--data.nodes", "200", "--fit.epochs", "1", "--run.dir", "nodes", *PROCESS, "--model", "sage"]
    assert run_job(train_nodes.main, [*words, "--model.width", "8"], tmp_path).returncode == 0
    done = run_job(predict.main, ["nodes", "out", "--relation", "r"], tmp_path)
    assert done.returncode == 1
    assert "--relation: expected a run on links of a knowledge graph" in done.stderr
