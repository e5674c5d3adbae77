import gzip

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from storage.errors import ConfigError, DataError
from storage.importers import edge_list
from storage.importers.edge_list import EdgeListGraph, EdgeListOptions

SRC, DST = [10, 10, 3, 7], [3, 7, 10, 7]
WEIGHT = [0.5, 1.0, 2.0, 4.0]


def _table(src="src", dst="dst"):
    return pa.table({src: SRC, "kind": ["a", "b", "c", "d"], dst: DST, "w": WEIGHT})


def _read(path, chunk=1000, **options):
    graph = EdgeListGraph(path, EdgeListOptions(**options))
    chunks = list(graph.edges(chunk))
    src, dst = (np.concatenate([getattr(c, end) for c in chunks]).tolist() for end in ("src", "dst"))
    return graph, src, dst


def test_parquet_and_csv_with_columns_of_any_name(tmp_path):
    pa_parquet.write_table(_table("from", "to"), tmp_path / "edges.parquet", row_group_size=2)
    pa_csv.write_csv(_table("from", "to"), tmp_path / "edges.csv")
    for name in ("edges.parquet", "edges.csv"):
        graph, src, dst = _read(tmp_path / name, chunk=3, src="from", dst="to", weight="w")
        assert (src, dst) == (SRC, DST)
        assert graph.info.num_nodes == 11
        assert np.concatenate([c.weight for c in graph.edges(2)]).tolist() == WEIGHT
        assert [c.src.dtype for c in graph.edges(2)] == [np.int64] * 2


@pytest.mark.parametrize("delimiter", [",", "\t", " ", ";"])
@pytest.mark.parametrize("ending", [".csv", ".txt", ".txt.gz", ".tsv"])
def test_text_without_header(tmp_path, delimiter, ending):
    lines = "".join(f"{a}{delimiter}{b}{delimiter}{w}\n" for a, b, w in zip(SRC, DST, WEIGHT, strict=True))
    text = f"# Directed graph: tiny\n# FromNodeId\tToNodeId\n{lines}"
    path = tmp_path / f"edges{ending}"
    if ending.endswith(".gz"):
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    graph, src, dst = _read(path, weight="2")
    assert (src, dst) == (SRC, DST)
    assert next(graph.edges(10)).weight.tolist() == WEIGHT


def test_real_snap_file(real_data):
    graph = EdgeListGraph(real_data / "structure/web-NotreDame.txt.gz")
    assert graph.info.num_nodes == 325_729
    assert sum(len(chunk.src) for chunk in graph.edges(100_000)) == 1_497_134


@pytest.mark.parametrize("read_edges", [1, 2, 1 << 20])
def test_compact_ids_keep_the_originals(tmp_path, monkeypatch, read_edges):
    monkeypatch.setattr(edge_list, "_READ_EDGES", read_edges)
    pa_parquet.write_table(_table(), tmp_path / "edges.parquet")
    graph, src, dst = _read(tmp_path / "edges.parquet", compact_ids=True)
    original = np.concatenate([chunk.original_id for chunk in graph.nodes(2)])
    assert original.tolist() == [3, 7, 10]
    assert original[src].tolist() == SRC
    assert original[dst].tolist() == DST
    assert (graph.info.num_nodes, graph.info.num_edges) == (3, 4)


@pytest.mark.parametrize("kind", ["npy", "parquet", "csv"])
def test_node_columns(tmp_path, kind):
    feature = np.arange(8, dtype=np.float32).reshape(4, 2)
    split = np.array([1, 2, 3, 0], np.int8)
    pa_parquet.write_table(pa.table({"src": [0, 3], "dst": [1, 2]}), tmp_path / "edges.parquet")
    files = {name: str(tmp_path / f"{name}.{kind}") for name in ("features", "labels", "splits")}
    if kind == "npy":
        np.save(files["features"], feature)
        np.save(files["labels"], [0, 1, -1, 2])
        np.save(files["splits"], split)
    elif kind == "parquet":
        pa_parquet.write_table(pa.table({"x": pa.array(feature.tolist(), pa.list_(pa.float32()))}), files["features"])
        pa_parquet.write_table(pa.table({"id": [0, 1, 2, 3], "label": [0, 1, None, 2]}), files["labels"])
        pa_parquet.write_table(pa.table({"split": ["train", "val", "test", None]}), files["splits"])
    else:
        pa_csv.write_csv(pa.table({"a": feature[:, 0], "b": feature[:, 1]}), files["features"])
        (tmp_path / "labels.csv").write_text("0\n1\n-1\n2\n")
        (tmp_path / "splits.csv").write_text("split\n1\n2\n3\n0\n")
    graph = EdgeListGraph(tmp_path / "edges.parquet", EdgeListOptions(**files))
    assert graph.info.num_nodes == 4
    chunks = list(graph.nodes(3))
    np.testing.assert_array_equal(np.concatenate([c.feature for c in chunks]), feature)
    assert np.concatenate([c.label for c in chunks]).tolist() == [0, 1, -1, 2]
    assert np.concatenate([c.split for c in chunks])[:, 0].tolist() == split.tolist()


def _write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "options", "match"),
    [
        ("e.csv", "src,dst\n1,2\n3\n", {}, "equally many fields"),
        ("e.csv", "src,dst\n1,2\nx,4\n", {}, "integer ids|equally many"),
        ("e.csv", "src,dst\n1,2\n,4\n", {}, "1 empty fields"),
        ("e.csv", "src,dst\n1.5,2\n", {}, "expected integer ids, found double"),
        ("e.csv", "a,b\n1,2\n", {}, "expected columns src, dst, found a, b"),
        ("e.csv", "", {}, "at least one edge"),
        ("e.parquet", "no parquet", {}, "expected a Parquet file"),
        ("e.txt.gz", "no gzip", {}, "expected UTF-8 text"),
        ("e.csv", "0,1\n", {"features": "x.npy"}, r"x\.npy: no such file"),
        ("e.feather", "", {}, r"ending in \.parquet"),
    ],
)
def test_bad_edge_files(tmp_path, name, text, options, match):
    path = _write(tmp_path, name, text)
    with pytest.raises(DataError, match=match) as caught:
        _ = [EdgeListGraph(path, EdgeListOptions(**options)).info, *EdgeListGraph(path).edges(10)]
    assert "\n" not in str(caught.value)


def test_truncated_gzip(tmp_path):
    path = tmp_path / "e.txt.gz"
    lines = "".join(f"{a}\t{b}\n" for a, b in np.random.default_rng(0).integers(0, 10**6, (20_000, 2)).tolist())
    path.write_bytes(gzip.compress(lines.encode())[:-5000])
    with pytest.raises(DataError, match=r"e\.txt\.gz"):
        list(EdgeListGraph(path).edges(1000))


def test_bad_node_files(tmp_path):
    edges = _write(tmp_path, "e.csv", "0,1\n1,2\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "y.npy", np.zeros(4, int))
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object))
    np.save(tmp_path / "codes.npy", np.array([0, 1, 4]))
    _write(tmp_path, "names.csv", "split\ntrain\nholdout\ntest\n")
    cases = [
        ({"features": "x.npy", "labels": "y.npy"}, r"y\.npy: expected one row per node \(3 .*got 4 rows"),
        ({"labels": "y.npy", "compact_ids": True}, r"expected one row per node \(3 ids occur"),
        ({"labels": "object.npy"}, "plain"),
        ({"splits": "codes.npy"}, "split codes must be"),
        ({"splits": "names.csv"}, "'holdout'"),
    ]
    for options, match in cases:
        named = {key: str(tmp_path / value) if isinstance(value, str) else value for key, value in options.items()}
        with pytest.raises(DataError, match=match):
            _ = EdgeListGraph(edges, EdgeListOptions(**named)).info


def test_bad_options():
    for options, match in (
        ({"num_nodes": 0}, "num_nodes"),
        ({"delimiter": ", "}, "delimiter"),
        ({"compact_ids": True, "num_nodes": 3}, "compact_ids"),
    ):
        with pytest.raises(ConfigError, match=match):
            EdgeListOptions(**options)
