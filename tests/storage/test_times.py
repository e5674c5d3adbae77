"""Tests the times of edges and nodes that importers read."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch

from graphmill.core.errors import DataError
from graphmill.storage.format.source import GraphSource
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.memory.from_pyg import pyg_graph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.ingestion.ingest import IngestOptions, ingest

SRC, DST = np.array([0, 1, 2, 0]), np.array([2, 2, 1, 2])
TIME = np.array([7, 5, 3, 2**53 + 1])


def stored(source: GraphSource, folder: Path) -> StoredGraph:
    ingest(source, str(folder / "graph"), IngestOptions(overwrite=True))
    graph = open_graph(str(folder / "graph"))
    graph.verify()
    return graph


def in_edges(graph: StoredGraph, node: int) -> list[tuple[int, int]]:
    """Returns (time, source) of in-edges, in the stored order."""
    part = graph.partition(0)
    assert part.edge_time is not None
    some = slice(part.indptr[node], part.indptr[node + 1])
    return list(zip(part.edge_time[some].tolist(), part.indices[some].tolist(), strict=True))


def check(source: GraphSource, folder: Path) -> None:
    graph = stored(source, folder)
    assert (graph.manifest.has_edge_time, graph.manifest.has_node_time) == (True, False)
    # Readers that do not support times refuse the graph.
    assert json.loads(graph.manifest.to_json())["requires"] == ["times"]
    assert in_edges(graph, 2) == [(5, 1), (7, 0), (2**53 + 1, 0)]


def test_times_of_an_edge_list(tmp_path: Path) -> None:
    rows = zip(SRC, DST, TIME, [0.5] * 4, strict=True)
    (tmp_path / "edges.csv").write_text("src,dst,when,w\n" + "".join(f"{a},{b},{t},{w}\n" for a, b, t, w in rows))
    columns = {"src": SRC, "dst": DST, "when": TIME, "w": np.full(4, 0.5)}
    pa_parquet.write_table(pa.table(columns), tmp_path / "edges.parquet")
    for name in ("edges.csv", "edges.parquet"):
        for weight in (None, "w"):
            check(EdgeListGraph(tmp_path / name, EdgeListOptions(time="when", weight=weight)), tmp_path)


def test_dates_of_an_edge_list_are_microseconds(tmp_path: Path) -> None:
    second = 1_600_000_000 + np.arange(4)
    for unit, each in (("s", second), ("ms", second * 1000), ("ns", second * 10**9)):
        columns = {"src": SRC, "dst": DST, "when": pa.array(each, pa.timestamp(unit))}
        pa_parquet.write_table(pa.table(columns), tmp_path / "edges.parquet")
        graph = stored(EdgeListGraph(tmp_path / "edges.parquet", EdgeListOptions(time="when")), tmp_path)
        assert in_edges(graph, 1) == [((1_600_000_002) * 10**6, 2)]


@pytest.mark.parametrize("name", ["years.npy", "years.csv", "years.parquet"])
def test_times_of_nodes_make_those_of_edges(name: str, tmp_path: Path) -> None:
    year = np.array([2020, 1999, 2005])
    (tmp_path / "edges.csv").write_text("".join(f"{a},{b}\n" for a, b in zip(SRC, DST, strict=True)))
    np.save(tmp_path / "years.npy", year)
    (tmp_path / "years.csv").write_text("time\n2020\n1999\n2005\n")
    pa_parquet.write_table(pa.table({"id": np.arange(3), "time": year}), tmp_path / "years.parquet")
    options = EdgeListOptions(node_times=str(tmp_path / name))
    graph = stored(EdgeListGraph(tmp_path / "edges.csv", options), tmp_path)
    assert graph.partition(0).time is not None
    assert graph.partition(0).time.tolist() == year.tolist()
    assert in_edges(graph, 2) == [(2005, 1), (2020, 0), (2020, 0)]


def test_times_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.stack([SRC, DST]), y=np.zeros(3, np.int64), edge_time=TIME)
    check(npz_graph(tmp_path / "g.npz"), tmp_path)
    data = {"edge_index": torch.from_numpy(np.stack([SRC, DST])), "num_nodes": 3, "x": None, "y": None}
    check(pyg_graph(SimpleNamespace(**data, time=torch.from_numpy(TIME))), tmp_path)
    check(pyg_graph(SimpleNamespace(**data, edge_time=torch.from_numpy(TIME)[:, None])), tmp_path)
    graph = stored(pyg_graph(SimpleNamespace(**data, time=torch.tensor([4, 6, 5]))), tmp_path)
    assert (graph.manifest.has_node_time, in_edges(graph, 1)) == (True, [(6, 2)])
    with pytest.raises(DataError, match="time: expected one for each of the 3 nodes or of the 4 edges, got 2"):
        pyg_graph(SimpleNamespace(**data, time=torch.tensor([4, 6])))


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (np.array([1.0, 2.0, 3.5, 4.0]), "got 3.5, 1 such; multiply or round them"),
        (np.array([1.0, np.nan, 3.0, np.inf]), "got nan, 2 such"),
        (np.array(["2020-01-01", "NaT", "2021-01-01", "2022-01-01"], "M8[D]"), "got NaT, 1 such"),
        (np.array([1, 2, 3, 2**63], np.uint64), "got 9223372036854775808, 1 such"),
        (np.array(list("abcd")), "edge times: expected numbers or dates, got <U1"),
        (np.array([1, 2, 3]), "edge times must have one row per edge: 4 edges, got 3"),
    ],
)
def test_times_that_cannot_be(time: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ArrayGraph("odd", 3, SRC, DST, edge_time=time)


def test_what_stands_for_none_is_refused(tmp_path: Path) -> None:
    time = np.array([1, 2, -(2**63), 4])
    with pytest.raises(DataError, match="edge times: expected numbers above -9223372036854775808"):
        ingest(ArrayGraph("odd", 3, SRC, DST, edge_time=time), str(tmp_path / "graph"))


def test_equal_edges_are_equal_in_time(tmp_path: Path) -> None:
    """In an undirected graph, an edge and its reverse have the same time. The weights of equal edges are summed."""
    source = ArrayGraph(
        "multi",
        2,
        np.array([0, 1, 0, 0]),
        np.array([1, 0, 1, 1]),
        edge_weight=np.array([1.0, 2.0, 4.0, 8.0]),
        edge_time=np.array([5, 5, 6, 5]),
    )
    ingest(source, str(tmp_path / "graph"), IngestOptions(undirected=True))
    graph = open_graph(str(tmp_path / "graph"))
    part = graph.partition(0)
    assert graph.manifest.symmetric
    assert graph.manifest.measured.num_duplicate_edges == 0
    assert part.edge_time is not None
    assert part.edge_weight is not None
    assert in_edges(graph, 0) == [(5, 1), (6, 1)]
    assert in_edges(graph, 1) == [(5, 0), (6, 0)]
    assert part.edge_weight.tolist() == [11.0, 4.0, 11.0, 4.0]
