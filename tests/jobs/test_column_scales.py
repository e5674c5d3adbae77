"""Tests columns of node features with values in the millions, with an offset, or with tiny values. Models and baselines learn as well as from columns of
ordinary scale."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

import graphmill as gm
from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, train_graphs, train_nodes
from graphmill.jobs.config.config import GraphSetOptions, NodeDataOptions
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.config.standard_columns import have_other_scale, with_standard_columns
from graphmill.storage.format.graph_set_manifest import parse_graph_set_manifest
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.format.statistics import ColumnStatistics
from graphmill.storage.graph import open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.statistics.graph_measures import ColumnMeasure
from tests.job_in_process import one_thread, output_of, run_job, trained
from tests.predictions import predictions_of

NODES, CLASSES, COLUMNS = 600, 4, 8
TRAINING = ["--fit.warmup_epochs", 0, "--fit.patience", "none"]
SHORT = [*TRAINING, "--fit.epochs", 2]


def scaled(k: int, factor: float, offset: float = 0.0):
    def change(x: np.ndarray) -> np.ndarray:
        x[:, k] = x[:, k] * factor + offset
        return x

    return change


SCALES = {
    "plain": lambda x: x,
    "millions": scaled(0, 1e7),
    "offset": scaled(0, 1e6, 1e8),
    "tiny": scaled(0, 1e-5),
    "all": lambda x: scaled(0, 1e7)(scaled(1, 1e6, 3e7)(scaled(2, 1e-5)(x))),
    "small together": lambda x: 0.01 * x,
}


def make(folder: Path, name: str, nodes: int = NODES, training: int = 100) -> str:
    """A graph whose classes can be learned from one column each, and from half of the edges."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, nodes)
    src, other = rng.integers(0, nodes, (2, 7 * nodes))
    members = [np.flatnonzero(y == k) for k in range(CLASSES)]
    dst = np.where(rng.random(7 * nodes) < 0.5, [rng.choice(members[k]) for k in y[src]], other)
    x = SCALES[name](rng.normal(size=(nodes, COLUMNS)) + np.eye(CLASSES, COLUMNS)[y]).astype(np.float32)
    split = rng.permutation(np.arange(nodes) % 3 + 1).astype(np.int8)
    split[(split == 1) & (np.arange(nodes) % 100 >= training)] = 0
    graph = ArrayGraph("scales", nodes, src, dst, feature=x, label=y, split=split[:, None])
    url = str(folder / f"{name} {nodes} {training}")
    ingest(graph, url, IngestOptions(num_partitions=2, out_edges=True, undirected=True))
    return url


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("scales")
    return {name: make(folder, name) for name in SCALES}


PATHS = {
    "whole": ["--model", "gcn", "--sampler", "random-partition", "--sampler.num_chunks", 1],
    "geco": ["--model", "geco", "--sampler", "random-partition", "--sampler.num_chunks", 2],
    "sampled": ["--model", "sage", "--sampler", "neighbor", "--sampler.fanouts", 3, 3, "--evaluation", "sampled"],
    "shard": ["--model", "gcn", "--run.parallel", "graph", "--workers", 1, "--workers.launcher", "process"],
    "geco shard": ["--model", "geco", "--run.parallel", "graph", "--workers", 1, "--workers.launcher", "process"],
    "embeddings": ["--model", "gcn", "--embeddings.width", 4],
    "roots": ["--model", "ppgt", "--model.num_layers", 1, "--sampler", "node2subgraph", "--evaluation", "sampled"],
}


@pytest.mark.parametrize(
    "path", [*(pytest.param(n, marks=pytest.mark.long) if n in ("geco", "embeddings", "roots") else n for n in PATHS)]
)
def test_every_path_reads_the_same_numbers_whatever_the_scale(graphs, tmp_path, path):
    words = [*PATHS[path], *SHORT, "--data.standardise", "yes"]
    words += ["--model.num_layers", 2] if path in ("whole", "sampled", "shard") else []
    wanted, losses, _ = trained(graphs["plain"], tmp_path / "plain", *words)
    found, others, printed = trained(graphs["all"], tmp_path / "all", *words)
    assert others == pytest.approx(losses, rel=1e-4)
    assert found["scores"] == pytest.approx(wanted["scores"], abs=0.003)
    assert "chosen --data.standardise yes: 8 columns of features to mean 0 and deviation 1 (0: mean " in printed
    assert trained(graphs["plain"], tmp_path / "raw", *words, "--data.standardise", "no")[1] != losses


def test_ordinary_scales_are_left_as_they_are(graphs, tmp_path):
    words = ["--model", "gcn", *SHORT]
    summary, losses, printed = trained(graphs["plain"], tmp_path / "auto", *words)
    assert trained(graphs["plain"], tmp_path / "no", *words, "--data.standardise", "no")[1] == losses
    assert "standardise" not in printed
    assert "standardised_columns" not in summary
    resolved = json.loads((tmp_path / "auto" / "config.json").read_text())["resolved"]
    assert resolved["inputs"]["standard"] == []
    assert "standardised" not in resolved["identity"]
    assert not [name for name in load_file(tmp_path / "auto" / "best" / "model.safetensors") if "standard" in name]


def test_baselines_see_what_the_model_sees(graphs, tmp_path):
    words = ["--model", "gcn", *SHORT]
    found = {name: trained(graphs[name], tmp_path / name, *words)[0]["baselines"] for name in ("plain", "all")}
    assert found["all"]["features_only"] == pytest.approx(found["plain"]["features_only"], abs=0.02)
    raw = trained(graphs["all"], tmp_path / "raw", *words, "--data.standardise", "no")[0]["baselines"]
    assert raw["features_only"]["test"] < found["plain"]["features_only"]["test"] - 0.1


def test_numbers_of_training_travel_with_the_weights(graphs, tmp_path):
    """A run stores the means and scales of its training rows with the weights.

    Predictions are therefore equal on a graph with other training rows, and a resume uses the same means and scales.
    """
    run, words = tmp_path / "run", ["--model", "gcn", *SHORT]
    summary, _, printed = trained(graphs["all"], run, *words)
    told = "3 columns of features to mean 0 and deviation 1 (0: mean "
    assert f"chosen --data.standardise yes: {told}" in printed
    assert summary["standardised_columns"] == 3
    tree = json.loads((run / "config.json").read_text())
    assert [tuple(own[:2]) for own in tree["resolved"]["inputs"]["standard"]] == [("", 0), ("", 1), ("", 2)]
    assert any(told in line for line in tree["resolved"]["chosen"])
    numbers = load_file(run / "best" / "model.safetensors")["standard.numbers "]
    assert numbers.T.tolist() == [own[2:] for own in tree["resolved"]["inputs"]["standard"]]
    other = make(tmp_path, "all", training=50)
    own = open_graph(other).manifest.measured.feature.columns
    assert own[0].mean != numbers[0, 0]
    tables = []
    for url, words in ((graphs["all"], []), (other, ["--other-graph"])):
        out = tmp_path / f"out {len(tables)}"
        output_of(predict.main, str(run), str(out), "--graph", url, *words)
        tables.append(predictions_of(out).sort_by("id").drop_columns(["split"]))
    assert tables[0].equals(tables[1])
    with one_thread():
        done = run_job(train_nodes.main, ["--run.resume", str(run), "--fit.epochs", "3"])
    assert done.returncode == 0, done.stderr
    assert "another run" in refused(["--run.resume", str(run), "--fit.epochs", "4", "--data.standardise", "no"])


def refused(words: list[str]) -> str:
    done = run_job(train_nodes.main, words)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_graph_of_an_older_version_has_no_numbers(graphs):
    body = json.loads(open_graph(graphs["all"]).manifest.to_json())
    del body["statistics"]["feature"]["columns"]
    manifest = parse_manifest(json.dumps(body), "manifests/000001.json")
    assert with_standard_columns(Inputs(), [manifest], NodeDataOptions()) == Inputs()
    with pytest.raises(ConfigError, match=r"mean and deviation.*ingest the data again, or set --data.standardise no"):
        with_standard_columns(Inputs(), [manifest], NodeDataOptions(standardise="yes"))


def test_each_type_of_nodes_and_each_relation_has_its_own_columns(tmp_path):
    """If a type has no splits, the statistics use all of its rows. A type without features is skipped."""
    rng = np.random.default_rng(0)
    y, x, split = rng.integers(0, 3, 300), rng.normal(size=(300, 4)), rng.choice([1, 2, 3], (300, 1)).astype(np.int8)
    x[:, :3] += np.eye(3)[y]
    losses = {}
    for name in ("plain", "all"):
        nodes = {
            "a": array_nodes("a", 300, feature=SCALES[name](x.copy()).astype(np.float32), label=y, split=split),
            "b": array_nodes(
                "b", 200, feature=scaled(1, 1e6 if name == "all" else 1)(x[:200].copy()).astype(np.float32)
            ),
            "c": array_nodes("c", 50),
        }
        ends = {each: np.random.default_rng(1).integers(0, 50, (2, 900)) for each in ("b", "c")}
        relations = {
            Relation(each, "to", "a"): array_edges(each, src=src, dst=dst) for each, (src, dst) in ends.items()
        }
        shown = (scaled(0, 1e6, 3e7) if name == "all" else SCALES["plain"])(x[:, 1:].repeat(3, axis=0))
        relations[Relation("b", "by.way", "a")] = array_edges("by", *ends["b"], edge_feature=shown)
        ingest(TypedSource("typed", nodes, relations), str(tmp_path / name), IngestOptions(num_partitions=2))
        words = [
            "--model",
            "rsage",
            *SHORT,
            "--sampler.fanouts",
            4,
            3,
            "--data.edge_features",
            "--data.standardise",
            "yes",
        ]
        losses[name] = trained(str(tmp_path / name), tmp_path / f"run {name}", *words)[1]
    assert losses["all"] == pytest.approx(losses["plain"], rel=1e-4)
    summary, _, printed = trained(str(tmp_path / "all"), tmp_path / "auto", *words[:-2])
    assert re.search(r"5 columns of features to .* \(a 0: mean .*; a 1: mean .*; a 2: mean .*; …\)", printed)
    standard = json.loads((tmp_path / "auto" / "config.json").read_text())["resolved"]["inputs"]["standard"]
    assert [each[:2] for each in standard[-2:]] == [["b", 1], ["b--by.way--a", 0]]
    assert standard[-2][2:] == pytest.approx([1e6 * x[:200, 1].mean(), 1e6 * x[:200, 1].std()], rel=1e-5)
    assert summary["standardised_columns"] == 5


RNG = np.random.default_rng(1)
NORMAL = RNG.normal(size=(4000, 6))
WORDS = (RNG.random((4000, 300)) < RNG.random(300) * 0.02).astype(float)
WORDS[:, 7] = np.arange(4000) == 5  # a word that only one row has
ORDINARY = {
    "normal": NORMAL,
    "far by some deviations": NORMAL * 0.1 + 3,
    "means of word vectors": RNG.normal(0, 0.03, (4000, 100)),
    "bag of words": WORDS,
    "counts of words": WORDS * RNG.integers(1, 9, WORDS.shape),
    "shares of words": WORDS / np.maximum(WORDS.sum(1, keepdims=True), 1),
    "shares of long texts": RNG.multinomial(2000, RNG.dirichlet(np.full(500, 0.3)), 300) / 2000,
    "a column of 1 and one of 0": np.stack([*NORMAL.T, np.ones(4000), np.zeros(4000)], axis=1),
    "one mark in all rows but one": np.stack([*NORMAL.T, np.arange(4000) > 0], axis=1),
    "one column of 1": np.ones((4000, 1)),
    "nothing but zeros": np.zeros((4000, 2)),
}


def odd_columns(x: np.ndarray) -> list[int]:
    measure = ColumnMeasure(x.shape[1])
    measure.add(x.astype(np.float32))
    return np.flatnonzero(have_other_scale(measure.result())).tolist()


@pytest.mark.parametrize("name", ORDINARY)
def test_the_rule_leaves(name):
    assert odd_columns(ORDINARY[name]) == []


@pytest.mark.parametrize("factor", [1e7, -1e6, 1e3, 100, 1e-3, 1e-5, 1e-30])
@pytest.mark.parametrize("name", ["normal", "far by some deviations"])
def test_the_rule_finds_a_column_of_another_scale(name, factor):
    assert odd_columns(scaled(2, factor)(ORDINARY[name].copy())) == [2]


def test_the_rule_finds_offsets_rare_large_numbers_and_constants():
    assert odd_columns(scaled(1, 0.02, 5)(NORMAL.copy())) == [1]
    assert odd_columns(scaled(1, 0, 1e6)(NORMAL.copy())) == [1]
    assert odd_columns(np.concatenate([WORDS, 1e5 * WORDS[:, 3:4], 1e-6 * WORDS[:, 3:4]], axis=1)) == [300, 301]
    assert odd_columns(0.01 * NORMAL) == [0, 1, 2, 3, 4, 5]
    assert have_other_scale([]).tolist() == []
    assert have_other_scale([ColumnStatistics(3e38, 3e38, 1.0)]).tolist() == [True]


TABLE = ["gcn", "sage", "gat", "geco", "primphormer"]


@pytest.mark.long
@pytest.mark.parametrize("model", TABLE)
def test_models_and_baselines_score_as_on_plain_columns(tmp_path, model):
    words = ["--model", model, *TRAINING, "--fit.epochs", 60]
    found = {name: trained(make(tmp_path, name, 2000), tmp_path / f"run {name}", *words)[0] for name in SCALES}
    tests = {name: one["scores"]["test"] for name, one in found.items()}
    print(model, tests, {name: one["baselines"] for name, one in found.items()})
    for name, one in found.items():
        assert tests[name] == pytest.approx(tests["plain"], abs=0.02), tests
        for baseline, scores in found["plain"]["baselines"].items():
            assert one["baselines"][baseline]["test"] == pytest.approx(scores["test"], abs=0.02), (name, baseline)


def write_set(folder: Path, name: str, training: int = 40, seed: int = 0) -> str:
    """Graphs whose targets can be learned from columns of nodes and edges. With `all`, further columns of other scales have the same information."""
    rng, graphs, part = np.random.default_rng(0), [], np.random.default_rng(seed).permutation(60)
    for _ in range(60):
        n, y = int(rng.integers(3, 8)), rng.normal()
        x, edges = rng.normal([y, 0, 0], 1, (n, 3)), rng.normal([0, y], 1, (2 * n, 2))
        if name == "all":
            x, edges = scaled(0, 1e7)(scaled(1, 1e6, 3e7)(x)), scaled(1, 1e-2, 5)(edges)
        columns = {"x": x.astype(np.float32), "edge_attr": edges.astype(np.float32), "y": np.array([y])}
        graphs.append(SimpleNamespace(edge_index=rng.integers(0, n, (2, 2 * n)), num_nodes=n, **columns))
    ends = {"train": part[:training], "valid": part[training : training + 10], "test": part[training + 10 :]}
    url = str(folder / f"{name} {training} {seed}")
    gm.ingest_graphs(graphs, url, split=ends, shard_rows=25)
    return url


SET = ["--model", "grit", "--model.num_layers", 1, "--model.width", 16, "--sampler.max_graphs", 8, "--fit.epochs", 3]


def test_columns_of_sets_are_standardised(tmp_path):
    """A run standardises columns of nodes and edges by the statistics of the training graphs.

    The model and the baseline read the same standardised columns. Predictions of another set use the statistics of the training graphs.
    """
    urls = {name: write_set(tmp_path, name) for name in ("plain", "all")}
    rows = open_graphs(urls["all"]).fetch(open_graphs(urls["all"]).split("train"))
    measured = open_graphs(urls["all"]).manifest.measured
    for x, columns in ((rows.node_feature, measured.node_columns), (rows.edge_feature, measured.edge_columns)):
        assert [own.mean for own in columns] == pytest.approx(x.astype(float).mean(0).tolist(), rel=1e-12)
        assert [own.deviation for own in columns] == pytest.approx(x.astype(float).std(0).tolist(), rel=1e-9)
    yes = {
        name: trained(url, tmp_path / name, *SET, "--data.standardise", "yes", job=train_graphs)
        for name, url in urls.items()
    }
    assert yes["all"][1] == pytest.approx(yes["plain"][1], rel=1e-4)
    baselines = {name: one[0]["baselines"]["composition"] for name, one in yes.items()}
    assert baselines["all"] == pytest.approx(baselines["plain"], rel=1e-3)
    summary, losses, printed = trained(urls["all"], tmp_path / "auto", *SET, job=train_graphs)
    assert re.search(r"chosen --data.standardise yes: 3 columns .* \(0: mean .*; 1: mean .*; edge 1: mean ", printed)
    assert summary["standardised_columns"] == 3
    raw = trained(urls["all"], tmp_path / "no", *SET, "--data.standardise", "no", job=train_graphs)[1]
    assert raw != losses
    other, tables = write_set(tmp_path, "all", 20, 1), []
    assert open_graphs(other).manifest.measured.node_columns != measured.node_columns
    for url in (urls["all"], other):
        done = run_job(
            predict.main,
            [str(tmp_path / "auto"), str(out := tmp_path / f"out {len(tables)}"), "--graph", url, "--other-graph"],
        )
        assert done.returncode == 0, done.stderr
        tables.append(predictions_of(out).sort_by("id")["prediction_y"].to_pylist())
    assert tables[0] == pytest.approx(tables[1], rel=1e-5)  # the second set puts the graphs in other batches


def test_sets_of_ordinary_scales_are_left_as_they_are(tmp_path):
    url = write_set(tmp_path, "plain")
    summary, losses, printed = trained(url, tmp_path / "auto", *SET, job=train_graphs)
    assert trained(url, tmp_path / "no", *SET, "--data.standardise", "no", job=train_graphs)[1] == losses
    assert "standardise" not in printed
    assert "standardised_columns" not in summary


def test_nothing_to_standardise_is_said(tmp_path):
    body = json.loads(open_graphs(write_set(tmp_path, "all")).manifest.to_json())
    del body["statistics"]["node_columns"], body["statistics"]["edge_columns"]
    older = parse_graph_set_manifest(json.dumps(body), "manifests/000001.json")
    assert with_standard_columns(Inputs(), [older], GraphSetOptions()) == Inputs()
    with pytest.raises(ConfigError, match=r"ingest the data again, or set --data.standardise no"):
        with_standard_columns(Inputs(), [older], GraphSetOptions(standardise="yes"))
    words = [
        "--data.molecules",
        40,
        "--data.folder",
        tmp_path,
        "--data.standardise",
        "yes",
        "--run.dir",
        tmp_path / "run",
    ]
    done = run_job(train_graphs.main, [*map(str, words)])
    assert "standardise: expected columns of numbers, the data has none; leave out --data.standardise" in done.stderr
