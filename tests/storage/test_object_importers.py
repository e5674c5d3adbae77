"""Tests the importers of PyG's and DGL's objects. DGL's importer is also tested with an object that has only the few methods that the importer calls."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from graphmill.core.errors import DataError
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.memory.from_dgl import dgl_graph
from graphmill.storage.importers.memory.from_pyg import pyg_graph
from graphmill.storage.ingestion.ingest import ingest

torch = pytest.importorskip("torch")

SRC, DST = [0, 1, 1, 2], [1, 0, 2, 1]
FEATURE = np.arange(12, dtype=np.float32).reshape(4, 3)
MASKS = {"train": [1, 0, 0, 0], "val": [0, 1, 0, 0], "test": [0, 0, 1, 0]}


def _mask(part):
    return torch.tensor(MASKS[part], dtype=torch.bool)


def _check(graph):
    assert graph.src.tolist() == SRC
    assert graph.dst.tolist() == DST
    assert not graph.info.undirected_once
    chunk = next(graph.nodes(10))
    np.testing.assert_array_equal(chunk.feature, FEATURE)
    assert chunk.label.tolist() == [0, 1, 2, 0]
    assert chunk.label.dtype == np.int64
    assert chunk.split.tolist() == [[1], [2], [3], [0]]


@pytest.fixture
def data():
    Data = pytest.importorskip("torch_geometric.data").Data
    masks = {f"{part}_mask": _mask(part) for part in MASKS}
    label = torch.tensor([[0], [1], [2], [0]])
    return Data(x=torch.from_numpy(FEATURE), edge_index=torch.tensor([SRC, DST]), y=label, **masks)


def test_pyg_masks(data):
    _check(pyg_graph(data))


@pytest.mark.parametrize("left", [["train"], ["train", "test"]])
def test_masks_of_some_parts_alone(data, left):
    """A missing mask counts as a mask without nodes, so a training mask alone makes a split set."""
    expected = [[code] if part in left else [0] for code, part in enumerate(MASKS, start=1)] + [[0]]
    columns = _node_columns()
    for part in MASKS.keys() - set(left):
        data[f"{part}_mask"] = None
        del columns[f"{part}_mask"]
    idx = {part: torch.tensor(MASKS[part]).nonzero().squeeze(1) for part in left}
    columnless = _stand_in(ndata={}, edata={})
    graphs = (pyg_graph(data), pyg_graph(data, split_idx=idx), dgl_graph(_stand_in(ndata=columns, edata={})))
    for graph in (*graphs, dgl_graph(columnless, split_idx=idx)):
        assert next(graph.nodes(10)).split.tolist() == expected


def test_pyg_split_idx_in_place_of_masks(data):
    del data.train_mask, data.val_mask, data.test_mask
    assert pyg_graph(data).info.num_split_sets == 0
    idx = {"train": torch.tensor([0]), "valid": torch.tensor([1]), "test": torch.tensor([2])}
    _check(pyg_graph(data, split_idx=idx))
    with pytest.raises(DataError, match=r"split_idx: expected some of train, valid .* and test, got \['training'\]"):
        pyg_graph(data, split_idx={"training": torch.tensor([0])})


def _data_set(*items, **methods):
    """Makes a PyG data set that holds these graphs."""
    InMemoryDataset = pytest.importorskip("torch_geometric.data").InMemoryDataset
    made = type("MadeDataset", (InMemoryDataset,), methods)()
    made.data, made.slices = made.collate(list(items))
    return made


def test_a_data_set_in_place_of_its_only_graph(data):
    idx = {part: torch.tensor(MASKS[part]).nonzero().squeeze(1) for part in MASKS}
    for given in ([data], _data_set(data)):
        _check(pyg_graph(given))
    with pytest.raises(
        DataError, match=r"expected one graph, got MadeDataset of 2; .* store them all with ingest_graphs"
    ):
        pyg_graph(_data_set(data, data))
    del data.train_mask, data.val_mask, data.test_mask
    _check(pyg_graph(_data_set(data, get_idx_split=lambda _: idx)))  # OGB's data sets have this method
    _check(dgl_graph([_stand_in()]))
    with pytest.raises(DataError, match="expected a DGL graph, got Data"):
        dgl_graph(data)


@pytest.mark.parametrize("valid", ["val_idx", "valid_idx"])
def test_pyg_rows_of_a_split(data, valid):
    """Rows may come with masks that agree with them. If rows and masks contradict each other, the importer chooses neither."""
    masks = {name: data[name] for name in ("train_mask", "val_mask", "test_mask")}
    data.train_idx, data[valid], data.test_idx = torch.tensor([0]), [1], np.array([2])
    _check(pyg_graph(data))
    for name in masks:
        del data[name]
    _check(pyg_graph(data))
    del data.test_idx
    assert next(pyg_graph(data).nodes(10)).split.tolist() == [[1], [2], [0], [0]]
    data.train_mask = masks["val_mask"]
    with pytest.raises(DataError, match=r"train_mask … and train_idx … name other nodes; give those .* as split_idx"):
        pyg_graph(data)
    assert next(pyg_graph(data, split_idx={"test": [3]}).nodes(10)).split.tolist() == [[0], [0], [0], [3]]


def test_what_is_not_read_is_named(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyg_graph(data)
    data.pos, data.edge_type = torch.ones(4, 3), torch.zeros(4)
    with pytest.warns(UserWarning, match="^pyg: not read: edge_type, pos$"):
        _check(pyg_graph(data))
    with pytest.warns(UserWarning, match="^dgl: not read: feat$"):
        dgl_graph(_stand_in())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_of_any_length(data, kind):
    data.x, data.y, data.edge_weight = data.x.to(kind), data.y.float(), torch.arange(4).to(kind)
    _check(pyg_graph(data, num_classes=3))
    assert next(pyg_graph(data).edges(10)).weight.tolist() == [0, 1, 2, 3]
    data.y = torch.tensor([0.5, 1, 2, 0])
    with pytest.raises(
        DataError, match=r"labels must be classes, .* got 0.5, 1 such; for real numbers .* no num_classes"
    ):
        pyg_graph(data, num_classes=3)


def test_pyg_several_sets_edge_columns_and_regression(data):
    for part in ("train", "val"):
        data[f"{part}_mask"] = torch.stack([_mask(part)] * 2, dim=1)
    data.edge_attr, data.edge_weight = torch.ones(4, 2), torch.arange(4.0)
    data.y = torch.tensor([0.5, float("nan"), 1.0, 2.0])
    graph = pyg_graph(data)
    assert graph.info.num_split_sets == 2
    assert graph.info.edge_feature_dim == 2
    chunk = next(graph.edges(10))
    assert chunk.weight.tolist() == [0, 1, 2, 3]
    assert chunk.feature.shape == (4, 2)
    assert graph.label.dtype == np.float32


@pytest.mark.parametrize("given", [5, torch.tensor(5)])
def test_pyg_number_of_classes(data, given):
    assert pyg_graph(data).info.num_classes is None
    data.num_classes = given
    assert pyg_graph(data).info.num_classes == 5
    assert pyg_graph(data, num_classes=7).info.num_classes == 7


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y": torch.full((4,), -100)}, "got -100, 4 such of 4; write -1 .* PyTorch's -100"),
        ({"x": torch.zeros(3, 2), "num_nodes": 4}, "one row per node: 4 nodes, got 3"),
        ({"y": torch.zeros(4, 2, 2, dtype=torch.long)}, "one number per node"),
        ({"val_mask": _mask("train")}, "splits overlap"),
        (
            {"val_mask": torch.zeros(2, 4, dtype=torch.bool)},
            r"valid mask: expected shape \[4\] or \[4, split sets\], got \[2, 4\]; transpose",
        ),
        ({"val_mask": torch.zeros(4, 4, dtype=torch.bool)}, "valid mask: .* square cannot be told"),
        ({"val_mask": torch.tensor([0, 1, 2, 0])}, "expected a mask of truth values, or of 0 and 1"),
        ({"edge_weight": torch.ones(3)}, "one row per edge: 4 edges, got 3"),
        ({"x": torch.zeros(4, 2).to_sparse()}, "dense tensor"),
        ({"edge_index": None}, "edge_index"),
    ],
)
def test_pyg_bad_data(data, change, match):
    for name, value in change.items():
        data[name] = value
    with pytest.raises(DataError, match=match):
        pyg_graph(data)


def _node_columns():
    columns = {f"{part}_mask": _mask(part) for part in MASKS}
    return {"feat": torch.from_numpy(FEATURE), "label": torch.tensor([0, 1, 2, 0]), **columns}


def _stand_in(**changes):
    graph = SimpleNamespace(
        is_homogeneous=True,
        ntypes=["_N"],
        ndata=_node_columns(),
        edata={"weight": torch.arange(4.0)[:, None], "feat": torch.ones(4)},
        edges=lambda: (torch.tensor(SRC), torch.tensor(DST)),
        num_nodes=lambda: 4,
    )
    graph.__dict__.update(changes)
    return graph


def test_dgl_stand_in():
    _check(dgl_graph(_stand_in()))
    weighted = next(dgl_graph(_stand_in(), edge_weight="weight", edge_feature="feat").edges(10))
    assert weighted.weight.tolist() == [0, 1, 2, 3]
    assert weighted.feature.shape == (4, 1)
    bare = dgl_graph(_stand_in(ndata={}))
    assert (bare.info.feature_dim, bare.info.has_label, bare.info.num_split_sets) == (0, False, 0)


def test_dgl_bad_graphs():
    with pytest.raises(DataError, match="homogeneous"):
        dgl_graph(_stand_in(is_homogeneous=False))
    with pytest.raises(DataError, match="edata has no 'w'"):
        dgl_graph(_stand_in(), edge_weight="w")


def test_real_dgl(monkeypatch):
    monkeypatch.setenv("DGLBACKEND", "pytorch")  # otherwise the import writes a file to the home directory
    monkeypatch.setenv("DGL_BACKEND", "pytorch")
    dgl = pytest.importorskip("dgl")
    graph = dgl.graph((torch.tensor(SRC), torch.tensor(DST)), num_nodes=4)
    graph.ndata.update(_node_columns())
    graph.edata["weight"] = torch.arange(4.0)
    _check(dgl_graph(graph))
    assert next(dgl_graph(graph, edge_weight="weight").edges(10)).weight.tolist() == [0, 1, 2, 3]
    hetero = dgl.heterograph({("a", "r", "b"): (torch.tensor([0]), torch.tensor([0]))})
    with pytest.raises(DataError, match="homogeneous"):
        dgl_graph(hetero)


def test_pyg_temporal_data(tmp_path):
    temporal = pytest.importorskip("torch_geometric.data").TemporalData
    events = temporal(
        src=torch.tensor([0, 2, 0]), dst=torch.tensor([3, 1, 3]), t=torch.tensor([5, 7, 9]), msg=torch.eye(3)[:, :2]
    )
    graph = pyg_graph(events)
    (edges,) = graph.edges(10)
    assert (edges.src.tolist(), edges.dst.tolist(), edges.time.tolist()) == ([0, 2, 0], [3, 1, 3], [5, 7, 9])
    assert edges.feature.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert (graph.info.num_nodes, graph.info.feature_dim, graph.info.edge_feature_dim) == (4, 0, 2)
    events.x = torch.zeros(6, 4)
    assert (pyg_graph(events).info.num_nodes, pyg_graph(events).info.feature_dim) == (6, 4)
    events.x = torch.zeros(2, 4)
    with pytest.raises(DataError, match=r"expected node ids in \[0, 2\)"):
        ingest(pyg_graph(events), str(tmp_path / "graph"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"src": np.array([0.9, 1.9])}, "src: expected rows of nodes as whole numbers, got 0.9, 2 such of float64"),
        ({"split": np.eye(3, dtype=bool)}, "split must be whole numbers of shape .* got bool"),
        ({"split": np.array([1, 2, 3])}, r"split must be whole numbers of shape .* got int64 \[3\]"),
    ],
)
def test_arrays_that_would_be_misread(change, match):
    with pytest.raises(DataError, match=match):
        ArrayGraph("a", 3, **{"src": np.array([0, 1]), "dst": np.array([1, 2]), **change})
