"""Tests boosted trees as a baseline: their inputs follow the definition, their scores repeat, and what only neighbors tell is found."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graphmill.cluster.tasks import BinaryClassification, Classification, Regression
from graphmill.core.errors import ConfigError
from graphmill.jobs import ingest, train_nodes
from graphmill.jobs.baselines import tree_baseline
from graphmill.jobs.baselines.graph_baselines import check_graph_trees, compute_graph_trees
from graphmill.jobs.baselines.tree_baseline import SETTINGS, best_trees, check_node_trees, compute_node_trees
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.typed_router import whole_router
from graphmill.storage.format.manifest import NODE
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import ingest as store
from graphmill.storage.ingestion.ingest_options import IngestOptions
from tests.job_in_process import output_of, run_job

pytest.importorskip("lightgbm")


def _graph(num_nodes=900, seed=0):
    """The class of a node is the sign of the mean of its neighbors' first feature: its own row says nothing."""
    random = np.random.default_rng(seed)
    feature = random.normal(size=(num_nodes, 3)).astype(np.float32)
    src, dst = random.integers(0, num_nodes, (2, 4 * num_nodes))
    degree = np.bincount(dst, minlength=num_nodes)
    mean = np.bincount(dst, feature[src, 0], num_nodes) / np.maximum(degree, 1)
    split = random.choice([1, 2, 3], num_nodes, p=[0.6, 0.2, 0.2]).astype(np.int8)[:, None]
    return ArrayGraph(
        "told by neighbors", num_nodes, src, dst, feature=feature, label=(mean > 0).astype(np.int64), split=split
    )


@pytest.mark.parametrize("block_numbers", [1 << 25, 40])  # in the second case lists of two nodes rarely fit one block
@pytest.mark.parametrize("widest", [128, 2])
def test_the_columns_of_neighbors_follow_their_definition(tmp_path, monkeypatch, block_numbers, widest):
    monkeypatch.setattr(tree_baseline, "_BLOCK_NUMBERS", block_numbers)
    monkeypatch.setattr(tree_baseline, "_WIDEST", widest)
    source = _graph(60)
    store(source, str(tmp_path / "g"), IngestOptions(num_partitions=3))
    router = local_router(open_graph(str(tmp_path / "g")))
    node = router.list_split(0, 1).node[::-1]
    found = np.concatenate([*tree_baseline._neighbors(router, NODE, node)], axis=1)
    original = router.fetch(node).original_id
    for row, one in zip(found, original, strict=True):
        listed = source.feature[source.src[source.dst == one]].astype(np.float64)
        parts = [listed.mean(0), listed.min(0), listed.max(0)] if len(listed) else [np.zeros(3)] * 3
        expected = np.concatenate([[np.log1p(len(listed))], *parts[: 3 if widest > 2 else 1]])
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-6)


def test_trees_find_what_only_neighbors_tell_and_repeat(tmp_path):
    store(_graph(), str(tmp_path / "one"), IngestOptions(num_partitions=1))
    store(_graph(), str(tmp_path / "three"), IngestOptions(num_partitions=3))
    task = Classification(2)
    found = [
        compute_node_trees(local_router(open_graph(str(tmp_path / name))), NODE, 0, task, 0, 2)
        for name in ("one", "one", "three")
    ]
    assert found[0] == found[1]
    assert found[0]["test"] > 0.85
    assert found[2]["test"] > 0.85
    blind = SETTINGS[1:2]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree_baseline, "SETTINGS", blind)
        own = compute_node_trees(local_router(open_graph(str(tmp_path / "one"))), NODE, 0, task, 0, 1)
    assert own["test"] < 0.65


@pytest.mark.parametrize(
    ("task", "least"),
    [
        (Classification(3), 0.9),
        (Classification(2), 0.95),
        (BinaryClassification(2, metric="ap"), 0.95),
        (Regression((1.0,), (2.0,), metric="r2"), 0.9),
        (Regression((1.0, 5.0), (2.0, 0.5), metric="mae"), 0.3),
    ],
)
def test_each_kind_of_label(task, least):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(600, 4)).astype(np.float32)
    if isinstance(task, Classification):
        target = torch.tensor(np.digitize(inputs[:, 0], [0] if task.num_classes == 2 else [-0.5, 0.5]))
        target[::50] = -1
    elif isinstance(task, BinaryClassification):
        target = torch.tensor((inputs[:, :2] > 0).astype(np.float32))
        target[::50, 0] = torch.nan
    else:
        target = torch.tensor(inputs[:, : task.out_dim] * 2 + 1).double()
        target[::50] = torch.nan

    def read(split, most):
        rows = slice({"train": 0, "valid": 1, "test": 2}[split], None, 3)
        yield inputs[rows], target[rows]

    scores = best_trees(read, 4, task, ("valid", "test"), 0, 4)
    if task.higher_is_better:
        assert scores["test"] > least
    else:
        assert scores["test"] < least


def test_trees_of_a_typed_graph_read_each_relation(tmp_path):
    words = ["synthetic-mag", "typed", "--mag.scale", "0.0004", "--mag.num-classes", "3", "--mag.feature-dim", "8"]
    output_of(ingest.main, *words, cwd=tmp_path)
    graph = open_graph(str(tmp_path / "typed"))
    router = whole_router(graph)
    node = router.nodes["paper"].list_split(0, 1).node[:5]
    parts = [*tree_baseline._neighbors(router, "paper", node)]
    into = [relation for relation in router.edges if relation.target == "paper"]
    assert len(into) > 1
    widths = [1 + 3 * router.nodes[relation.source].manifest.feature_dim for relation in into]
    assert sum(part.shape[1] for part in parts) == sum(widths)


def test_trees_of_graphs_read_their_counts():
    random = np.random.default_rng(0)
    sizes = random.integers(3, 20, 300)

    def fetch(graphs):
        return SimpleNamespace(
            node_label=None,
            num_nodes=sizes[graphs],
            num_edges=sizes[graphs] * 2,
            node_feature=None,
            target=(sizes[graphs] > 10)[:, None] * 1.0,
        )

    splits = {"train": np.arange(200), "valid": np.arange(200, 250), "test": np.arange(250, 300)}
    graphs = SimpleNamespace(manifest=SimpleNamespace(labelled=None), num_nodes=sizes, split=splits.get, fetch=fetch)
    assert compute_graph_trees(graphs, (0,), BinaryClassification(1), ("valid", "test"), 0, 3)["test"] > 0.99


def test_a_run_shows_them_beside_its_own_scores(tmp_path):
    store(_graph(300), str(tmp_path / "g"), IngestOptions(num_partitions=2))
    words = [
        "--data",
        tmp_path / "g",
        "--model",
        "sage",
        "--fit.steps",
        2,
        "--baseline",
        "trees",
        "--run.dir",
        tmp_path / "run",
    ]
    done = run_job(train_nodes.main, [*map(str, words)])
    assert done.returncode == 0, done.stderr
    assert "baseline trees: own row and neighbors" in done.stdout
    assert "boosted trees" in done.stdout
    assert set(json.loads((tmp_path / "run" / "summary.json").read_text())["baselines"]) == {
        "majority",
        "features_only",
        "trees",
    }


def test_without_lightgbm_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    store(_graph(60), str(tmp_path / "g"), IngestOptions(num_partitions=1))
    words = [
        "--data",
        tmp_path / "g",
        "--model",
        "sage",
        "--fit.steps",
        1,
        "--baseline",
        "trees",
        "--run.dir",
        tmp_path / "run",
    ]
    done = run_job(train_nodes.main, [*map(str, words)])
    assert done.returncode == 1
    assert "--baseline trees needs lightgbm: pip install -e '.[trees]'" in done.stderr
    assert not (tmp_path / "run").exists()  # before any training


def test_a_task_that_trees_cannot_predict_is_refused_at_once():
    with pytest.raises(ConfigError, match="leave out trees"):
        check_node_trees(SimpleNamespace(label_kind="value"), SimpleNamespace())
    with pytest.raises(ConfigError, match="got pairs; leave out trees"):
        check_graph_trees(SimpleNamespace(manifest=SimpleNamespace(labelled="pairs")), SimpleNamespace())


def test_a_plan_names_them(tmp_path):
    store(_graph(60), str(tmp_path / "g"), IngestOptions(num_partitions=1))
    words = ["--data", tmp_path / "g", "--model", "sage", "--fit.steps", 1, "--baseline", "trees", "--plan"]
    said = output_of(train_nodes.main, *words, cwd=tmp_path)
    assert "trees  3 settings, 13 columns; at most 200,000 training and validation rows of 9.9 MiB each" in said


def test_a_wide_table_has_fewer_rows_in_memory():
    asked = []

    def read(split, most):
        asked.append(most)
        yield np.zeros((1, 1 << 20), np.float32), torch.zeros(1, 1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree_baseline, "_Trees", lambda *given: SimpleNamespace(scores=lambda blocks: {"ap": 0.0}))
        best_trees(read, 1 << 20, BinaryClassification(1, metric="ap"), ("test",), 0, 1)
    assert asked == [1, 512, 512]


@pytest.mark.parametrize(
    ("task", "rounds"), [(BinaryClassification(40), 150), (Regression((0.0,) * 9, (1.0,) * 9), 500)]
)
def test_all_columns_together_have_at_most_6000_trees(task, rounds, monkeypatch):
    asked = []
    fake = SimpleNamespace(
        Dataset=lambda *given, **named: None,
        early_stopping=lambda *given, **named: None,
        train=lambda options, own, rounds, **named: asked.append(rounds),
    )
    monkeypatch.setattr(tree_baseline, "_lightgbm", lambda: fake)
    rows = np.zeros((4, 2), np.float32), torch.ones(4, task.out_dim)
    tree_baseline._Trees(rows, rows, task, SETTINGS[0], 2, 0)
    assert asked == [rounds] * task.out_dim


@pytest.mark.parametrize("task", [BinaryClassification(2), Regression((1.0, 5.0), (2.0, 0.5)), Classification(3)])
def test_a_label_without_a_known_training_row_is_constant(task):
    inputs = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    if isinstance(task, Classification):
        target = torch.full((300,), -1)
    else:
        target = torch.tensor((inputs[:, :2] > 0).astype(np.float32))
        target[:, 1] = torch.nan
    trees = tree_baseline._Trees((inputs, target), (inputs, target), task, SETTINGS[0], 4, 0)
    found = trees._predict(inputs)
    assert found.shape == (300, task.out_dim)
    assert (found[:, 1] == 0).all()
    assert (found[:, 0].std() > 0) == (not isinstance(task, Classification))
