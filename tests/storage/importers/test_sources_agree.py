"""Every kind of source, with rows in any order, gives the same nodes, labels, splits and edges of one small graph."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet
import pytest
import torch
from torch_geometric.data import Data

from graphmill.storage.graph import open_graph
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.memory.from_pyg import pyg_graph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.importers.tables.typed_tables import typed_tables
from graphmill.storage.ingestion.ingest import IngestOptions, ingest

COUNT = 8
EDGES = np.array([(i, (i * 3 + 1) % COUNT) for i in range(COUNT)]).T
FEATURE = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2)
SPLIT = np.array([1, 2, 3, 0, 1, 2, 3, 1], np.int8)
LABELS = {
    "classes": [3, 0, 1, 2, 1, 0, 3, 2],
    "classes with holes": [3, None, 1, 2, None, 0, 3, 0],
    "classes as floats": [3.0, None, 1.0, 2.0, 1.0, 0.0, 3.0, 0.0],
    "truth values": [True, False, True, True, False, False, True, True],
    "real numbers": [0.5, 1.25, -3.0, 4.0, 0.0, 7.5, 2.0, 1.0],
    "text": ["b", "a", None, "c", "b", "a", "a", "c"],
}
TABLES = (".csv", ".tsv.gz", ".parquet", ".arrow", "folder", "nodes", "typed")
ARRAYS = ("npy", "npz", "ArrayGraph", "PyG")


def expected(kind: str) -> list[float]:
    values = LABELS[kind]
    if kind == "text":
        return [-1 if value is None else "abc".index(value) for value in values]
    return [-1.0 if value is None else float(value) for value in values]


def array(kind: str) -> np.ndarray:
    values = LABELS[kind]
    return np.array([np.nan if value is None else value for value in values]) if None in values else np.array(values)


def write(path, table: pa.Table):
    if path.name.endswith(".parquet"):
        pa_parquet.write_table(table, path)
    elif path.name.endswith(".arrow"):
        pa_feather.write_feather(table, str(path), compression="uncompressed")
    else:
        with pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as stream:
            pa_csv.write_csv(table, stream, pa_csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ","))
    return str(path)


def from_table(folder, source: str, kind: str, order: list[int]):
    """Makes a source from tables that have a column of ids, and rows in this order."""
    rows = {
        "id": list(range(COUNT)),
        "f": FEATURE[:, 0].tolist(),
        "g": FEATURE[:, 1].tolist(),
        "label": LABELS[kind],
        "split": [("none", "train", "valid", "test")[code] for code in SPLIT],
    }
    table = pa.table(rows).take(order)
    edges = pa.table({"src": EDGES[0], "dst": EDGES[1]})
    if source == "typed":
        write(folder / "n.csv", table)
        write(folder / "e.csv", edges)
        text = "nodes: {n: {file: n.csv, id: id, features: [f, g], label: label, split: split}}\n"
        (folder / "graph.yaml").write_text(text + "edges: [{source: n, relation: e, target: n, file: e.csv}]\n")
        return typed_tables(folder)
    if source == "folder":
        for name, whole in (("e", edges), ("n", table)):
            (folder / name).mkdir()
            for part in range(3):
                write(folder / name / f"part-{part}.parquet", whole.slice(3 * part, 3))
        edge_path, path = folder / "e", str(folder / "n")
    else:
        ending = ".parquet" if source == "nodes" else source
        edge_path, path = write(folder / f"e{ending}", edges), write(folder / f"n{ending}", table)
    if source == "nodes":
        return EdgeListGraph(edge_path, EdgeListOptions(nodes=path))
    return EdgeListGraph(edge_path, EdgeListOptions(features=path, labels=path, splits=path, num_nodes=COUNT))


def from_arrays(folder, source: str, kind: str):
    """Makes a source from arrays. The ids are positions."""
    label = array(kind)
    if source == "npy":
        write(folder / "e.csv", pa.table({"src": EDGES[0], "dst": EDGES[1]}))
        for name, values in (("x", FEATURE), ("y", label), ("s", SPLIT)):
            np.save(folder / f"{name}.npy", values)
        files = {"features": folder / "x.npy", "labels": folder / "y.npy", "splits": folder / "s.npy"}
        return EdgeListGraph(folder / "e.csv", EdgeListOptions(**{name: str(path) for name, path in files.items()}))
    masks = {f"{part}_mask": code == SPLIT for code, part in ((1, "train"), (2, "val"), (3, "test"))}
    if source == "npz":
        np.savez(folder / "g.npz", edge_index=EDGES, x=FEATURE, y=label, **masks)
        return npz_graph(folder / "g.npz")
    if source == "ArrayGraph":
        return ArrayGraph("a", COUNT, *EDGES, feature=FEATURE, label=label, split=SPLIT[:, None])
    data = Data(x=torch.from_numpy(FEATURE), y=torch.from_numpy(label), edge_index=torch.from_numpy(EDGES))
    return pyg_graph(data.update({name: torch.from_numpy(mask) for name, mask in masks.items()}))


def stored(source, url: str):
    """Ingests the source. Returns features, labels and splits by id, edges by id, and class names."""
    ingest(source, url, IngestOptions(num_partitions=2, overwrite=True))
    graph = open_graph(url)
    held = list(graph.partitions())
    ids = np.concatenate([part.original_id for part in held])
    order = np.argsort(ids)
    columns = [np.concatenate([getattr(part, name) for part in held])[order] for name in ("feature", "label")]
    columns.append(np.concatenate([part.split[0] for part in held])[order])
    edges = {
        (ids[u], v)
        for part in held
        for u, v in zip(part.indices, np.repeat(part.original_id, np.diff(part.indptr)), strict=True)
    }
    return columns, {(int(u), int(v)) for u, v in edges}, graph.class_names


@pytest.mark.parametrize("kind", LABELS)
def test_every_source_gives_the_same_graph(tmp_path, kind) -> None:
    shuffled = np.random.default_rng(5).permutation(COUNT).tolist()
    cases = [(source, order) for source in TABLES for order in (list(range(COUNT)), shuffled)]
    cases += [(source, None) for source in (ARRAYS if kind != "text" else ())]
    for number, (source, order) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        graph = from_arrays(folder, source, kind) if order is None else from_table(folder, source, kind, order)
        (feature, label, split), edges, names = stored(graph, str(folder / "graph"))
        where = f"{source}, {'shuffled' if order == shuffled else 'in order'}"
        np.testing.assert_array_equal(feature, FEATURE, where)
        np.testing.assert_allclose(np.nan_to_num(label.astype(float), nan=-1), expected(kind), err_msg=where)
        assert label.dtype == (np.float32 if kind == "real numbers" else np.int64), where
        np.testing.assert_array_equal(split, SPLIT, where)
        assert edges == set(map(tuple, EDGES.T.tolist())), where
        assert names == (("a", "b", "c") if kind == "text" else ()), where
