"""Every importer stores the same edges with the same weights."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse
import torch
from pyarrow import parquet

from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.importers.memory.from_dgl import dgl_graph, typed_dgl_graph
from graphmill.storage.importers.memory.from_pyg import pyg_graph, typed_pyg_graph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.importers.tables.typed_tables import typed_tables
from graphmill.storage.ingestion.ingest import ingest

NODES = 5
SRC, DST = np.array([0, 3, 1, 2, 4, 0]), np.array([1, 1, 2, 3, 0, 4])
WEIGHT = np.array([0.5, 2.0, 0.0, 7.25, 1.0, 3.5], np.float32)
EDGES = sorted(zip(SRC.tolist(), DST.tolist(), WEIGHT.tolist(), strict=True))
CITES = Relation("a", "r", "a")


def stored(graph: StoredGraph) -> list[tuple[int, int, float]]:
    partition = graph.partition(0)
    assert partition.edge_weight is not None
    dst = np.repeat(np.arange(NODES), np.diff(partition.indptr))
    return sorted(zip(partition.indices.tolist(), dst.tolist(), partition.edge_weight.tolist(), strict=True))


def matrix() -> scipy.sparse.coo_array:
    """Makes a sparse matrix that has a stored weight of 0."""
    return scipy.sparse.coo_array((WEIGHT, (SRC, DST)), shape=(NODES, NODES))


def of_scipy(_: Path) -> Any:
    found = matrix()
    return ArrayGraph("scipy", NODES, *found.coords, edge_weight=found.data)


def npz(folder: Path) -> Any:
    np.savez(folder / "g.npz", edge_index=np.stack([SRC, DST]), edge_weight=WEIGHT, x=np.ones((NODES, 1)))
    return npz_graph(folder / "g.npz")


def text(folder: Path) -> Any:
    rows = [f"{u} {v} {weight}\n" for u, v, weight in EDGES]
    (folder / "g.txt").write_text("".join(rows))
    return EdgeListGraph(folder / "g.txt", EdgeListOptions(weight="2"))


def csv(folder: Path) -> Any:
    (folder / "g.csv").write_text("stars,src,dst\n" + "".join(f"{weight},{u},{v}\n" for u, v, weight in EDGES))
    return EdgeListGraph(folder / "g.csv", EdgeListOptions(weight="stars"))


def arrow(folder: Path) -> Any:
    parquet.write_table(pa.table({"src": SRC, "dst": DST, "stars": WEIGHT}), folder / "g.parquet")
    return EdgeListGraph(folder / "g.parquet", EdgeListOptions(weight="stars"))


def matrix_market(folder: Path) -> Any:
    scipy.io.mmwrite(folder / "g.mtx", matrix(), symmetry="general")
    return EdgeListGraph(folder / "g.mtx", EdgeListOptions(weight="2"))


def of_networkx(_: Path) -> Any:
    utils = pytest.importorskip("torch_geometric.utils")
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(NODES))
    graph.add_weighted_edges_from(EDGES)
    return pyg_graph(utils.from_networkx(graph))


def pyg(_: Path) -> Any:
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.from_numpy(np.stack([SRC, DST]))
    return pyg_graph(data.Data(edge_index=edges, edge_weight=torch.from_numpy(WEIGHT), num_nodes=NODES))


def dgl_like(column: str) -> Any:
    """Makes an object with the methods of `dgl.DGLGraph` that the importers call."""
    data = {column: torch.from_numpy(WEIGHT)}

    class Edges(dict):
        def __call__(self, etype: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.from_numpy(SRC), torch.from_numpy(DST)

    return SimpleNamespace(
        is_homogeneous=True,
        ntypes=["a"],
        canonical_etypes=[tuple(CITES)],
        num_nodes=lambda name=None: NODES,
        ndata={},
        edata=data,
        nodes={"a": SimpleNamespace(data={})},
        edges=Edges({tuple(CITES): SimpleNamespace(data=data)}),
    )


SOURCES = {
    "arrays": lambda _: ArrayGraph("arrays", NODES, SRC, DST, edge_weight=WEIGHT),
    "float64": lambda _: ArrayGraph("arrays", NODES, SRC, DST, edge_weight=WEIGHT.astype(np.float64)),
    "scipy": of_scipy,
    "npz": npz,
    "text": text,
    "csv": csv,
    "parquet": arrow,
    "matrix market": matrix_market,
    "networkx": of_networkx,
    "pyg": pyg,
    "dgl, by DGL's name": lambda _: dgl_graph(dgl_like("weight")),
    "dgl, named": lambda _: dgl_graph(dgl_like("w"), edge_weight="w"),
}


def typed_arrays(_: Path) -> TypedSource:
    edges = array_edges("r", SRC, DST, edge_weight=WEIGHT)
    return TypedSource("t", {"a": array_nodes("a", NODES)}, {CITES: edges})


def typed_files(folder: Path) -> TypedSource:
    csv(folder)
    edge = "{source: a, relation: r, target: a, file: g.csv, weight: stars}"
    (folder / "graph.yaml").write_text(f"nodes:\n  a: {{count: {NODES}}}\nedges:\n  - {edge}\n")
    return typed_tables(folder)


def typed_pyg(column: str) -> TypedSource:
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["a"].num_nodes = NODES
    data[tuple(CITES)].edge_index = torch.from_numpy(np.stack([SRC, DST]))
    data[tuple(CITES)][column] = torch.from_numpy(WEIGHT)
    return typed_pyg_graph(data)


TYPED = {
    "arrays": typed_arrays,
    "tables": typed_files,
    "pyg": lambda _: typed_pyg("edge_weight"),
    "pyg, by networkx's name": lambda _: typed_pyg("weight"),
    "dgl, by DGL's name": lambda _: typed_dgl_graph(dgl_like("weight")),
    "dgl, named": lambda _: typed_dgl_graph(dgl_like("w"), edge_weight="w"),
}


@pytest.mark.parametrize("name", SOURCES | TYPED)
def test_weights_reach_the_graph(name: str, tmp_path: Path) -> None:
    ingest((SOURCES | TYPED)[name](tmp_path), str(tmp_path / "graph"))
    assert stored(open_graph(str(tmp_path / "graph"))) == EDGES


def test_weights_of_nodes_are_no_weights_of_edges() -> None:
    """PyG's `weight` is not read as weights of edges if it has as many rows as there are nodes."""
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.from_numpy(np.stack([SRC, DST]))
    graph = pyg_graph(data.Data(edge_index=edges, weight=torch.ones(NODES), num_nodes=NODES))
    assert not graph.info.has_edge_weight
