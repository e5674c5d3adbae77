"""Tests a trained model as an object. On tensors, PyG's data and stored graphs it returns the numbers of `predict`.

The model is also saved, loaded, exported and evaluated.
"""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

import graphmill as gm
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs import ingest, train_graphs, train_links, train_nodes
from graphmill.jobs.convert_checkpoint import save_converted
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.run import evaluate
from graphmill.samplers.access.typed_router import whole_router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.methods.random_partition import RandomPartitionOptions, RandomPartitionSampler
from graphmill.samplers.methods.registry import build_sampler
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs
from tests.job_in_process import output_of
from tests.jobs.test_column_scales import write_set
from tests.jobs.test_predict_unseen import EMBED, shops

SHORT = ["--fit.epochs", 2, "--fit.warmup_epochs", 0, "--workers.launcher", "process"]
SMALL = ["--model.width", 16, "--model.num_layers", 2]
NODES = ["--sampler", "random-partition", "--sampler.num_chunks", 1]
MODELS = {
    "geco": [],
    "gcn": [],
    "sage": [],
    "gat": ["--model.num_heads", 2],
    "primphormer": ["--model.num_heads", 2],
    "tokengt": ["--model.num_heads", 2, "--model.identifier_dim", 8],
    "grit": ["--model.num_heads", 2],
    "ppgt": ["--model.num_heads", 2],
}
BY_ROOT = ("grit", "ppgt")
ON_GRAPHS = ("geco", "primphormer", "tokengt", "grit", "ppgt")


def column(table: pa.Table, name: str) -> torch.Tensor:
    return torch.tensor(np.array(table[name].to_pylist()))


@pytest.fixture(scope="module")
def shop_graph(tmp_path_factory):
    """72 nodes with one column in the millions and one column of categories that have trainable rows."""
    folder = tmp_path_factory.mktemp("shops")
    shops(folder, "graph", 24, EMBED, rows=range(72))
    return folder / "graph"


@pytest.fixture(scope="module")
def graph_set(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set"), "all")


@pytest.fixture(scope="module")
def runs(shop_graph, graph_set, tmp_path_factory):
    """Finished runs by (kind, model). Each is trained at its first use."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run_of(kind: str, model: str):
        if (kind, model) not in made:
            words = ["--model", model, *SMALL, *MODELS[model], *SHORT, "--run.dir", folder / f"{kind}-{model}"]
            if kind == "nodes":
                sampler = (
                    ["--sampler", "node2subgraph", "--sampler.direction", "in", "--evaluation", "sampled"]
                    if model in BY_ROOT
                    else NODES
                )
                words += ["--data", shop_graph, "--data.standardise", "yes", *sampler]
                output_of(train_nodes.main, *words)
            else:
                position = ["--model.position.dim", 4] if model in ("geco", "primphormer") else []
                output_of(train_graphs.main, *words, *position, "--data", graph_set, "--sampler.max_graphs", 8)
            made[kind, model] = read_run(folder / f"{kind}-{model}")
        return made[kind, model]

    return run_of


def tensors(url) -> dict:
    """The features of a stored graph, and its edges in random order."""
    options = RandomPartitionOptions(num_chunks=1, root_splits=None)
    batch = to_torch(RandomPartitionSampler(whole_router(open_graph(str(url))), options).sample(0, 0))
    destination = torch.repeat_interleave(torch.arange(batch.num_nodes), batch.indptr.diff())
    edge_index = torch.stack([batch.indices.long(), destination])
    return {"x": batch.x, "edge_index": edge_index[:, torch.randperm(edge_index.shape[1])]}


def set_tensors(url, numbers=range(5)) -> dict:
    packed = open_graphs(str(url)).fetch(np.array(numbers))
    nodes, edges = torch.tensor(packed.num_nodes), torch.tensor(packed.num_edges)
    starts = torch.repeat_interleave(nodes.cumsum(0) - nodes, edges)
    return {
        "x": torch.tensor(packed.node_feature),
        "edge_index": torch.tensor(packed.edge_index).long() + starts,
        "edge_attr": torch.tensor(packed.edge_feature),
        "batch": torch.repeat_interleave(torch.arange(len(nodes)), nodes),
    }


@pytest.mark.parametrize("model", [model for model in MODELS if model not in BY_ROOT])
def test_a_models_rows_of_nodes_are_those_of_predict(model, runs, shop_graph):
    """The model takes raw features; it contains the standardisation and the embedded columns. The exported program computes the same numbers."""
    run, own = runs("nodes", model), tensors(shop_graph)
    trained, table = run.model(), gm.predict(run, embeddings=True)
    assert {"columns ", "numbers "} <= {name.rpartition(".")[2] for name in trained.state_dict()}
    with torch.no_grad():
        rows = trained(own["x"], own["edge_index"])
        torch.testing.assert_close(rows, column(table, "logits").float(), rtol=1e-5, atol=1e-5)
        states = trained.embeddings(SimpleNamespace(**own))
        torch.testing.assert_close(states, column(table, "embedding").float(), rtol=1e-5, atol=1e-5)
        assert torch.equal(trained(str(shop_graph)), column(table, "logits").float())
        program = trained.export(own["x"], own["edge_index"]).module()
        other = own["x"].flip(0), own["edge_index"].flip(1)
        columns = {"encodings": kept} if (kept := trained.batch(*other).encodings) else {}
        torch.testing.assert_close(program(*other, **columns), trained(*other), rtol=0, atol=1e-6)
    torch.testing.assert_close(run.embeddings([3, 1]), states[[3, 1]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", BY_ROOT)
def test_a_batch_of_subgraphs_has_predicts_rows(model, runs, shop_graph):
    run = runs("nodes", model)
    trained, table = run.model(), gm.predict(run)
    options = trained.trained.evaluation["test"]
    batch = build_sampler(options, whole_router(open_graph(str(shop_graph))), 1).sample(0, 0)
    with torch.no_grad():
        rows = trained(batch)
    expected = column(table, "logits").float()[to_torch(batch).predicted_id]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ON_GRAPHS)
def test_a_models_rows_of_graphs_are_those_of_predict(model, runs, graph_set):
    """Predictions are in the unit of the target."""
    run, own = runs("graphs", model), set_tensors(graph_set)
    trained, table = run.model(), gm.predict(run)
    target = column(table, next(name for name in table.column_names if name.startswith("prediction")))
    with torch.no_grad():
        torch.testing.assert_close(trained(**own)[:, 0], target[:5], rtol=1e-5, atol=1e-5)
        assert torch.equal(trained(open_graphs(graph_set))[:, 0], target)
        program = trained.export(**own).module()
        other = {**own, "x": own["x"].flip(0)}
        ends = other.pop("x"), other.pop("edge_index")
        torch.testing.assert_close(program(*ends, **other), trained(*ends, **other), rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ["gat", "tokengt", "grit"])
def test_attention_says_how_a_row_is_summed(model, runs, shop_graph):
    kind = "nodes" if model == "gat" else "graphs"
    run = runs(kind, model)
    weights = run.attention() if kind == "nodes" else run.model().attention(**set_tensors(run.data_url))
    assert len(weights) == 2
    for of_layer in weights:
        graphs, heads, queries, keys = of_layer.shape
        assert (graphs, heads, queries) == (1 if kind == "nodes" else 5, 2, keys)
        torch.testing.assert_close(of_layer.sum(3), torch.ones(graphs, heads, queries), rtol=0, atol=1e-5)
    if model == "gat":  # a node attends only to its in-neighbors and to itself
        ends = tensors(shop_graph)["edge_index"]
        seen = torch.eye(72, dtype=torch.bool).index_put((ends[1], ends[0]), torch.tensor(True))
        assert ((weights[0][0, 0] > 0) == seen).all()
    with pytest.raises(ConfigError, match=r"attention: expected a model with weights for pairs of nodes .* got gcn"):
        runs("nodes", "gcn").attention()


def test_rows_of_embeddings_and_states_of_links(shop_graph, tmp_path):
    """`node_id` selects rows of an embedding table. A run on links returns the states that its decoder compares, and the scores of pairs."""
    shops(tmp_path, "links", 24, ["--links.valid", 0.3, "--links.test", 0.3], rows=range(72))
    words = ["--model", "sage", *SMALL, *SHORT]
    own = tensors(shop_graph)
    table = ["--embeddings.width", 4, "--data", shop_graph, *NODES]
    output_of(train_nodes.main, *words, *table, "--run.dir", tmp_path / "table")
    links = ["--data", tmp_path / "links", "--sampler.fanouts", 5, 5]
    output_of(train_links.main, *words, *links, "--run.dir", tmp_path / "run")
    with torch.no_grad():
        run = read_run(tmp_path / "table")
        run.save_model(tmp_path / "model")
        expected = column(gm.predict(run), "logits").float()
        for trained in (run.model(), gm.load_model(tmp_path / "model")):
            rows = trained(**own, node_id=torch.arange(72))
            torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(ConfigError, match="node_id: expected ids of the run's nodes"):
            trained(**own)
        run, own = read_run(tmp_path / "run"), tensors(tmp_path / "links")
        trained, pairs = run.model(), torch.tensor([[0, 1], [5, 5]])
        states = trained(**own)
        expected = column(gm.predict(run, embeddings=True), "embedding").float()
        torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
        scores = trained.network.decoder(states[pairs[0]], states[pairs[1]], None)
        assert torch.equal(trained(**own, pairs=pairs), scores)


def test_a_typed_graph_as_dictionaries(tmp_path):
    mag = ["--mag.scale", 0.0004, "--mag.num-classes", 3, "--mag.feature-dim", 8]
    output_of(ingest.main, "synthetic-mag", tmp_path / "mag", *mag)
    words = ["--data", tmp_path / "mag", "--model", "rsage", "--model.width", 16, "--evaluation", "full", *SHORT]
    output_of(train_nodes.main, *words, "--run.dir", tmp_path / "run")
    run, graph = read_run(tmp_path / "run"), open_graph(str(tmp_path / "mag"), kind=TypedGraph)
    trained = run.model()
    batch = typed_to_torch(trained._whole(graph))
    order = {name: nodes.node_id.argsort() for name, nodes in batch.nodes.items()}
    place = {name: rows.argsort() for name, rows in order.items()}
    x = {name: (torch.zeros(len(n), 0) if n.x is None else n.x)[order[name]] for name, n in batch.nodes.items()}
    ends = {}
    for relation, edges in batch.edges.items():
        destination = torch.repeat_interleave(torch.arange(len(edges.indptr) - 1), edges.indptr.diff())
        ends[relation] = torch.stack(
            [place[relation.source][edges.indices.long()], place[relation.target][destination]]
        )
    with torch.no_grad():
        rows = trained(SimpleNamespace(x_dict=x, edge_index_dict=ends))
    torch.testing.assert_close(rows, column(gm.predict(run), "logits").float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="expected every type and relation of the run's graph"):
        trained({}, ends)


def test_a_converted_checkpoint_is_scored(graph_set, tmp_path):
    """The checkpoint has the same weights as a run, and gets the score of this run. The run predicts in the unit of the target."""
    words = ["--model", "grit", *SMALL, *MODELS["grit"], *SHORT, "--data", graph_set, "--sampler.max_graphs", 8]
    words += ["--task.standardise", "no", "--data.standardise", "no"]
    output_of(train_graphs.main, *words, "--run.dir", tmp_path / "run")
    run = read_run(tmp_path / "run")
    save_converted(run.model().network.model, "grit", tmp_path / "converted")
    assert gm.evaluate(tmp_path / "converted", graph_set)["test"]["mae"] == pytest.approx(run.scores["test"], rel=1e-6)
    own = set_tensors(graph_set)
    with torch.no_grad():
        torch.testing.assert_close(gm.load_model(tmp_path / "converted")(**own).double(), run.model()(**own))
    with pytest.raises(ConfigError, match="expected data=… of a converted checkpoint"):
        gm.evaluate(tmp_path / "converted")


def test_a_saved_model_needs_no_run(runs, shop_graph, tmp_path, monkeypatch):
    run, own = runs("nodes", "geco"), tensors(shop_graph)
    run.save_model(tmp_path / "model")
    with torch.no_grad():
        expected = run.model()(own["x"], own["edge_index"])
        assert torch.equal(gm.load_model(tmp_path / "model")(own["x"], own["edge_index"]), expected)
    card = (tmp_path / "model" / "README.md").read_text()
    assert re.search(r"\| model \| [\d.]+ \| [\d.]+ \|", card)
    assert "--fit.epochs 2" in card
    assert "| model.width | 16 |" in card
    assert gm.evaluate(tmp_path / "model", shop_graph)["test"]["accuracy"] == run.scores["test"]
    assert str(tmp_path) not in (tmp_path / "model" / "summary.json").read_text()
    with pytest.raises(ConfigError, match="expected a saved model or nothing there"):
        run.save_model(tmp_path / "model")
    constants = pytest.importorskip("huggingface_hub.constants")
    # Makes a download of the client by hand, without the network.
    cache, revision = tmp_path / "models--us--geco", "0" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(revision)
    (cache / "snapshots").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    uploaded = []

    def upload(*, repo_id: str, folder_path: str) -> None:
        uploaded.append(repo_id)
        shutil.copytree(folder_path, cache / "snapshots" / revision)

    monkeypatch.setattr("huggingface_hub.create_repo", lambda name, **_: uploaded.append(name))
    monkeypatch.setattr("huggingface_hub.upload_folder", upload)
    run.save_model("hf://us/geco")
    assert uploaded == ["us/geco", "us/geco"]
    with torch.no_grad():
        assert torch.equal(gm.load_model("hf://us/geco")(own["x"], own["edge_index"]), expected)
    with pytest.raises(FormatError, match="hf://us/nothing: expected a model on the Hub"):
        gm.load_model("hf://us/nothing")
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(FormatError):
        gm.load_model(tmp_path / "model")


def test_evaluation_needs_no_training(runs, shop_graph, graph_set, tmp_path):
    run = runs("graphs", "grit")
    said = output_of(evaluate.main, run.path)
    assert "test    count 10, mae 0." in said
    assert gm.evaluate(run)["test"]["mae"] == pytest.approx(run.scores["test"], rel=1e-12)
    other = gm.evaluate(run, write_set(tmp_path, "all", 30, seed=1))
    assert other["valid"]["count"] == 10
    assert other["valid"]["mae"] != gm.evaluate(run)["valid"]["mae"]
    shops(tmp_path, "unknown", 24, ["--edge-list.features-as", str(shop_graph)], rows=range(24), known=False)
    with pytest.raises(ConfigError, match="expected labels to score by, found none"):
        gm.evaluate(runs("nodes", "gcn"), tmp_path / "unknown")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(72, 3)}, r"x: expected \[n, 2\], .* got \[72, 3\]"),
        ({"edge_index": torch.full((2, 4), 72)}, "edge_index: expected rows of x, 0 to 71"),
        ({"edge_index": torch.zeros(4, 2)}, r"edge_index: expected whole numbers \[2, E\]"),
        ({"edge_attr": torch.zeros(4, 2)}, "edge_attr: expected none, as the run's data has"),
        ({"batch": torch.zeros(72)}, "batch: expected a run on many graphs"),
        ({"colour": 1}, "colour: expected one of edge_attr"),
        ({"pairs": torch.zeros(2, 2)}, "pairs: expected a run on links"),
        ({"node_id": torch.arange(3)}, "node_id: expected 72 rows, got 3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_one_line(change, message, runs, shop_graph):
    with pytest.raises(ConfigError, match=message):
        runs("nodes", "gcn").model()(**tensors(shop_graph) | change)
