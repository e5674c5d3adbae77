"""`ingest` takes graphs of any library. It gives the same result as the library's reader, or refuses the graph with a one-line error."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

import graphmill as gm
from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.graph import source_ids
from graphmill.storage.importers import ingest, is_set

NODES = 40
RNG = np.random.default_rng(0)
ENDS = np.unique(RNG.integers(0, NODES, (2, 160)), axis=1)
X = RNG.normal(size=(NODES, 3)).astype(np.float32)
Y = RNG.integers(0, 3, NODES)
PART = np.arange(NODES) % 3 + 1
NAMES = np.array(["none", "train", "valid", "test"])[PART]
EDGES = {"source": ENDS[0], "target": ENDS[1]}
TABLE = {"id": np.arange(NODES), **{f"f{i}": X[:, i] for i in range(3)}, "label": Y, "split": NAMES}


def _data() -> Data:
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(ENDS), y=torch.tensor(Y))
    data.train_mask, data.val_mask, data.test_mask = (torch.tensor(code == PART) for code in (1, 2, 3))
    return data


def _dgl() -> Any:
    dgl = pytest.importorskip("dgl")
    graph = dgl.graph((torch.tensor(ENDS[0]), torch.tensor(ENDS[1])), num_nodes=NODES)
    graph.ndata.update({"feat": torch.tensor(X), "label": torch.tensor(Y)})
    graph.ndata.update(
        {f"{name}_mask": torch.tensor(code == PART) for code, name in enumerate(("train", "val", "test"), 1)}
    )
    return graph


def _networkx() -> Any:
    graph = nx.DiGraph()
    graph.add_nodes_from((i, {"x": X[i].tolist(), "y": int(Y[i]), "split": NAMES[i]}) for i in range(NODES))
    graph.add_edges_from(ENDS.T.tolist())
    return graph


FORMS: dict[str, Any] = {
    "PyG": lambda: ((_data(),), {}),
    "DGL": lambda: ((_dgl(),), {}),
    "NetworkX": lambda: ((_networkx(),), {}),
    "scipy": lambda: ((sp.coo_array((np.ones(len(ENDS[0])), ENDS), (NODES, NODES)),), {"x": X, "y": Y, "split": PART}),
    "pandas": lambda: ((), {"edges": pd.DataFrame(EDGES), "nodes": pd.DataFrame(TABLE)}),
    "pandas with an index of ids": lambda: (
        (pd.DataFrame(EDGES),),
        {"nodes": pd.DataFrame({**TABLE, "split": pd.Categorical(NAMES)}).set_index("id")},
    ),
    "polars": lambda: ((pl.DataFrame(EDGES),), {"nodes": pl.DataFrame(TABLE)}),
    "Arrow": lambda: ((), {"edges": pa.table(EDGES), "nodes": pa.table(TABLE)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_library_s_graph_is_the_same_graph(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DGL_BACKEND", "pytorch")
    words, columns = FORMS[form]()
    mine = ingest(*words, url=str(tmp_path / "mine"), **columns)
    assert mine.content_hash == ingest(_data(), str(tmp_path / "pyg")).content_hash


def test_types_sets_weights_and_names(tmp_path: Path) -> None:
    hetero = HeteroData()
    hetero["user"].x, hetero["item"].num_nodes = torch.rand(3, 2), 4
    hetero["user", "buys", "item"].edge_index = torch.tensor([[0, 1, 2], [3, 0, 1]])
    tables = {
        "nodes": {
            "user": {"file": pd.DataFrame({"uid": ["a", "b"], "age": [1.0, 2.0]}), "id": "uid", "features": ["age"]}
        },
        "edges": [
            {
                "source": "user",
                "relation": "likes",
                "target": "user",
                "file": pl.DataFrame({"src": ["a"], "dst": ["b"]}),
            }
        ],
    }
    assert [*ingest(hetero, str(tmp_path / "hetero")).node_types] == ["user", "item"]
    assert ingest(url=str(tmp_path / "tables"), **tables).num_nodes == 2
    graphs = [
        Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([k % 2])) for k in range(10)
    ]
    assert is_set(graphs)
    assert not is_set(_data())
    stored = ingest(graphs, str(tmp_path / "set"), split=gm.SplitOptions(shares=(0.6, 0.2, 0.2)))
    assert [part.num_graphs for part in stored.measured.parts][1:] == [6, 2, 2]
    named = nx.Graph([("b", "a", {"weight": 2.0}), ("c", "a", {"weight": 1.0})])
    manifest = ingest(named, str(tmp_path / "named"))
    assert (manifest.num_edges, manifest.has_edge_weight) == (4, True)
    assert source_ids(gm.open_graph(str(tmp_path / "named"))).of(np.arange(3)).to_pylist() == ["b", "a", "c"]
    weighted = ingest(sp.csr_matrix(np.diag([1.0, 2.0])), str(tmp_path / "weighted"))
    assert weighted.has_edge_weight
    drawn = ingest(_data(), str(tmp_path / "drawn"), split=gm.SplitOptions(shares=(0.5, 0.25, 0.25)))
    assert drawn.measured.splits[0].num_nodes[1:] == (20, 10, 10)


@pytest.mark.parametrize(
    ("words", "columns", "said"),
    [
        ((3,), {}, r"expected PyG's Data, .*; got builtins.int"),
        (("edges.csv",), {}, "got builtins.str"),
        ((_data(),), {"feat": "x"}, "expected some of split_idx, num_classes, name, got feat"),
        ((), {"edges": pd.DataFrame(EDGES), "labels_of": 1}, "tables: expected some of src, dst, .* got labels_of"),
        ((), {"edges": 3}, "expected a table of pandas, polars or Arrow, got builtins.int"),
        ((_data(),), {"edges": pd.DataFrame(EDGES)}, "got both"),
        ((sp.csr_matrix(np.ones((2, 3))),), {}, "expected a square adjacency matrix"),
        *(
            ((pd.DataFrame(EDGES),), {"nodes": pd.DataFrame({"x": X[:, 0]}, index=index)}, said)
            for index, said in (
                (range(NODES)[::-1], r"in order, got one without a name: \[39, 38, 37\]; call reset_index"),
                (list(map(str, range(NODES))), "or name it id"),
                (pd.Index(range(1, NODES + 1), name="age"), r"got age: \[1, 2, 3\]"),
            )
        ),
        (
            (),
            {
                "nodes": {"user": {"file": pd.DataFrame({"x": [1.0, 2.0]}, index=[1, 0]), "features": ["x"]}},
                "edges": [],
            },
            r"got one without a name: \[1, 0\]",
        ),
        (([HeteroData()],), {}, "graph 0: expected a graph of one type of nodes, got HeteroData"),
        (
            ([_data()],),
            {"options": gm.IngestOptions(num_partitions=2)},
            "expected overwrite and split of the options of a set",
        ),
    ],
)
def test_what_is_not_understood_is_told_in_a_line(words, columns, said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=said) as raised:
        ingest(*words, url=str(tmp_path / "graph"), **columns)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "graph").exists()


def test_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    edges = pd.DataFrame({**EDGES, "since": 3})
    with pytest.warns(UserWarning, match="not read: since"):
        ingest(edges=edges, url=str(tmp_path / "graph"))


def test_attributes_of_networkx_replace_no_ends(tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from((i, {"node": 3 - i, "node_id": 1, "networkx_node": 2}) for i in range(4))
    graph.add_edge(0, 1, source=3, target=2)
    with pytest.warns(UserWarning, match="not read: source, target"):
        ingest(graph, str(tmp_path / "graph"))
    (part,) = gm.open_graph(str(tmp_path / "graph")).partitions()
    assert (part.indptr.tolist(), part.indices.tolist()) == ([0, 0, 1, 1, 1], [0])


@pytest.mark.parametrize(
    "form", [sp.coo_matrix, lambda entries, shape: sp.csr_matrix((entries[0], [1, 1], [0, 2, 2]), shape)]
)
def test_entries_that_are_there_twice_are_summed_beyond_their_type(form: Any, tmp_path: Path) -> None:
    ingest(form((np.array([200, 200], np.uint8), ([0, 0], [1, 1])), (2, 2)), str(tmp_path / "graph"))
    (part,) = gm.open_graph(str(tmp_path / "graph")).partitions()
    assert part.edge_weight.tolist() == [400.0]


def test_rows_of_pandas_in_order_or_with_ids_need_no_index(tmp_path: Path) -> None:
    """A filtered table has gaps in its index. Its column of ids identifies the rows."""
    plain = pd.DataFrame({"x": X[:, 0]})
    stored = [
        ingest(edges=pd.DataFrame(EDGES), nodes=nodes, url=str(tmp_path / str(number))).content_hash
        for number, nodes in enumerate(
            (plain, plain.rename_axis("row"), plain.assign(id=range(NODES)).set_axis(range(5, NODES + 5)))
        )
    ]
    assert len({*stored}) == 1
