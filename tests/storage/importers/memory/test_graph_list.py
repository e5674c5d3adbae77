"""Lists, iterators and data sets of PyG's graphs, and of objects that stand for DGL's graphs, are stored as sets."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import graphmill as gm
from graphmill.core.errors import ConfigError, DataError
from graphmill.jobs import inspect_graph
from graphmill.storage.format.graph_set_manifest import NO_FEATURES, RowSchema
from graphmill.storage.graph_sets.graph_set import open_graphs
from tests.job_in_process import run_job

Data = pytest.importorskip("torch_geometric.data").Data
InMemoryDataset = pytest.importorskip("torch_geometric.data").InMemoryDataset
PARTS = ("train", "valid", "test", None)


def _graph(number, **columns):
    generator = torch.Generator().manual_seed(number)
    nodes = 2 + number % 4
    made = {
        "x": torch.randint(0, 5, (nodes, 2), generator=generator),
        "edge_index": torch.randint(0, nodes, (2, 2 * nodes), generator=generator),
        "edge_attr": torch.rand(2 * nodes, generator=generator),
        "y": torch.tensor([[float(number), 1.0 if number % 2 else float("nan")]]),
        **columns,
    }
    return Data(**{name: value for name, value in made.items() if value is not None})


def _dgl(data):
    graph = SimpleNamespace(
        ndata={"feat": data.x}, edata={"feat": data.edge_attr}, edges=lambda: tuple(data.edge_index)
    )
    graph.num_nodes, graph.part = (lambda: data.num_nodes), getattr(data, "part", None)
    return graph, data.y[0]


class _Set(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


class _OgbSet(_Set):
    def get_idx_split(self):
        return {part: torch.arange(12)[number::4] for number, part in enumerate(PARTS[:3])}


FORMS = {
    "list": lambda graphs: (graphs, "part"),
    "iterator": lambda graphs: (iter(graphs), "part"),
    "data set": lambda graphs: (_Set([graph for graph in graphs if graph.__delattr__("part") is None]), _rows()),
    "data set of OGB": lambda graphs: (_OgbSet([graph for graph in graphs if graph.__delattr__("part") is None]), None),
    "iterator beside rows": lambda graphs: (iter(graphs), {**_rows(), "val": _rows()["valid"], "valid": None}),
    "graphs of DGL": lambda graphs: (map(_dgl, graphs), "part"),
    "graphs of DGL beside rows": lambda graphs: (list(map(_dgl, graphs)), _rows()),
}


def _rows():
    return {part: list(range(12))[number::4] for number, part in enumerate(PARTS[:3])}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*not read. part")
def test_every_form_is_the_same_set(form, tmp_path):
    """Tests three shards, the content of each graph, missing targets, splits by attribute or rows, and vocabularies that hold just the existing categories."""
    graphs = [_graph(number, part=PARTS[number % 4]) for number in range(12)]
    given, split = FORMS[form]([_graph(number, part=PARTS[number % 4]) for number in range(12)])
    if isinstance(split, dict):
        split = {part: rows for part, rows in split.items() if rows is not None}
    url = str(tmp_path / "set")
    manifest = gm.ingest_graphs(given, url, split=split, shard_rows=5)
    stored = gm.open_graphs(url)
    stored.verify()
    most = torch.cat([graph.x for graph in graphs]).amax(dim=0) + 1
    assert manifest.node == RowSchema(2, "int32", tuple(most.tolist()))
    assert manifest.edge == RowSchema(1, "float32")
    assert (stored.target_names, manifest.num_shards) == (("y0", "y1"), 3)
    for number, part in enumerate(PARTS[:3]):
        assert stored.split(part).tolist() == list(range(12))[number::4]
    np.testing.assert_array_equal(stored.target, torch.cat([graph.y for graph in graphs]).numpy())
    for number, graph in enumerate(graphs):
        packed = stored.fetch(np.array([number]))
        assert packed.num_nodes.tolist() == [graph.num_nodes]
        np.testing.assert_array_equal(packed.edge_index, graph.edge_index.numpy())
        np.testing.assert_array_equal(packed.node_feature, graph.x.numpy())
        np.testing.assert_array_equal(packed.edge_feature[:, 0], graph.edge_attr.numpy())


def test_graphs_are_taken_as_they_come(tmp_path):
    """A shard is written before the graphs of the next shard are read."""
    alive = []

    def graphs():
        for number in range(40):
            alive.append(len(list((tmp_path / "set").rglob("graphs.arrow"))))
            yield _graph(number)

    gm.ingest_graphs(graphs(), str(tmp_path / "set"), shard_rows=10)
    assert alive == sorted(alive)
    assert alive[-1] == 3


def test_classes_of_nodes_and_what_there_is_not(tmp_path):
    bare = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3) for _ in range(2)]
    manifest = gm.ingest_graphs(bare, str(tmp_path / "bare"))
    assert (manifest.node, manifest.edge, manifest.target_names, manifest.labelled) == (
        NO_FEATURES,
        NO_FEATURES,
        (),
        None,
    )
    assert gm.open_graphs(str(tmp_path / "bare")).split("train").tolist() == [0, 1]
    for number, graph in enumerate(bare):
        graph.y = torch.tensor([number, -1, 4])
    url = str(tmp_path / "nodes")
    manifest = gm.ingest_graphs(bare, url)
    assert (manifest.labelled, manifest.num_classes) == ("nodes", 5)
    assert gm.open_graphs(url).node_labels("train").tolist() == [0, -1, 4, 1, -1, 4]
    manifest = gm.ingest_graphs(bare, str(tmp_path / "graphs"), labelled="graphs")
    assert manifest.target_names == ("y0", "y1", "y2")


def test_vocabularies_that_are_said(tmp_path):
    """A set for prediction gets the vocabularies of the training set."""
    graphs = [_graph(0, edge_attr=torch.ones(4, 1, dtype=torch.long))]
    manifest = gm.ingest_graphs(graphs, str(tmp_path / "set"), categories={"node": (9, 8), "edge": (4,)})
    assert (manifest.node.categories, manifest.edge.categories) == ((9, 8), (4,))
    with pytest.raises(DataError, match="graph 0: node features: column 0: expected categories below 2, got"):
        gm.ingest_graphs([_graph(3)], str(tmp_path / "few"), categories={"node": (2, 2)})


def _graphs(**second):
    return [_graph(0), _graph(1, **second)]


@pytest.mark.parametrize(
    ("graphs", "options", "match"),
    [
        ([], {}, "graphs: expected at least one graph, got none"),
        ([5], {}, "graph 0: expected PyG's Data with edge_index or a DGLGraph, got int"),
        ([_graph(0), Data()], {}, "graph 1: expected PyG's Data"),
        (_graphs(x=None, num_nodes=3), {}, "graph 1: node features: expected 2 columns of int32, .*, got none"),
        (_graphs(x=torch.ones(3, 2)), {}, r"graph 1: node features: expected .* int32, .*, got \[3, 2\] of float32"),
        (_graphs(x=torch.ones(3, 3).long()), {}, r"graph 1: node features: expected 2 columns .*, got \[3, 3\] of int64"),
        (_graphs(x=torch.ones(2, 2).long(), num_nodes=3), {}, "graph 1: node features: expected 3 rows"),
        (_graphs(x=torch.full((3, 2), -1)), {}, "graph 1: node features: column 0: expected categories below 100000, got -1"),
        (_graphs(edge_attr=torch.full((6,), torch.inf)), {}, "graph 1: edge features: expected finite numbers"),
        (_graphs(y=torch.ones(1, 3)), {}, "graph 1: expected 2 targets, got"),
        (_graphs(edge_index=torch.tensor([[0], [7]])), {}, "graph 1: expected edges among 3 nodes"),
        (_graphs(edge_index=torch.tensor([[0], [0.5]])), {}, "graph 1: edge_index: expected rows of nodes as whole"),
        (_graphs(y=torch.tensor([0.5, 1, 2])), {"labelled": "nodes"}, r"graph 0: expected y"),
        ([_graph(0, y=torch.tensor([1, 0])), _graph(1)], {}, r"graph 1: expected y .* of 3 nodes, got float32 \[1, 2\]"),
        ([_graph(0, y=None), _graph(1)], {}, "graph 1: expected no y, as the first graph has none"),
        (_graphs(), {"labelled": "nodes"}, r"graph 0: expected y to be a class of each of 2 nodes, got float32 \[1, 2\]; or say labelled"),
        (_graphs(part="training"), {"split": "part"}, "graph 1: part: expected train, valid, test or None, got 'training'"),
        (_graphs(), {"split": "part"}, "expected graphs with part, by which they are split, got none"),
        (_graphs(), {"split": {"train": [0, 1, 2]}}, "train split rows must be 0 to 1, got 2"),
        (_graphs(), {"split": {"fit": [0]}}, "split_idx: expected some of train"),
    ],
)  # fmt: skip
def test_what_is_refused(graphs, options, match, tmp_path):
    with pytest.raises(DataError, match=match) as caught:
        gm.ingest_graphs(graphs, str(tmp_path / "set"), **options)
    assert "\n" not in str(caught.value)


def test_rows_of_a_split_that_an_iterator_does_not_reach(tmp_path):
    with pytest.raises(DataError, match="expected graphs up to 5, which the split names, got 2"):
        gm.ingest_graphs(iter(_graphs()), str(tmp_path / "set"), split={"train": [5]})


def test_what_is_not_read_is_named(tmp_path):
    with pytest.warns(UserWarning, match="^graphs: not read: pos, smiles$"):
        gm.ingest_graphs(
            [_graph(0, pos=torch.ones(2, 3), smiles="C", part="test")], str(tmp_path / "set"), split="part"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gm.ingest_graphs([_graph(0)], str(tmp_path / "other"))


def test_a_set_from_python_is_shown_trained_on_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graphs = []
    for number in range(60):
        kind = torch.randint(0, 3, (4, 1), generator=torch.Generator().manual_seed(number))
        ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        graphs.append(Data(x=kind, edge_index=ring, y=kind.sum().float(), part=PARTS[number % 3]))
    gm.ingest_graphs(graphs, "set", split="part")
    shown = run_job(inspect_graph.main, ["set"])
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "train 20, valid 20, test 20" in shown.stdout
    words = ["--data", "set", "--model", "grit", "--model.num_layers", 1, "--model.width", 16, "--fit.epochs", 2]
    run = gm.train(gm.config(*words, kind="graphs"))
    table = gm.predict(run).to_pandas()
    assert table["id"].tolist() == list(range(60))
    np.testing.assert_array_equal(table["target_y"], [float(graph.y) for graph in graphs])


def test_a_split_is_drawn_where_options_say_so(tmp_path):
    graphs = [_graph(number, y=torch.tensor([number % 3])) for number in range(40)]
    options = gm.SplitOptions(shares=(0.5, 0.25, 0.25), by="label", seed=1)
    gm.ingest_graphs(graphs, str(tmp_path / "drawn"), split=options)
    stored = open_graphs(str(tmp_path / "drawn"))
    assert [len(stored.split(name)) for name in ("train", "valid", "test")] == [20, 10, 10]
    assert stored.manifest.provenance["split"] == "0.5 0.25 0.25 by label, seed 1"
    gm.ingest_graphs(graphs, str(tmp_path / "whole"))
    assert stored.manifest.node == open_graphs(str(tmp_path / "whole")).manifest.node
    with pytest.raises(ConfigError, match="expected a list or data set, which can be read twice, got an iterator"):
        gm.ingest_graphs(iter(graphs), str(tmp_path / "other"), split=options)
