"""Rows of node files are joined by their column of ids. Every kind of label, file and id, with rows in any order, gives the same graph."""

import gzip
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.importers.tables.node_columns import read_labels
from graphmill.storage.importers.tables.typed_tables import typed_tables

COUNT = 7
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 0)]
IDS = {
    "rows": list(range(COUNT)),
    "numbers": [50, 7, 9, 1000, 3, 88, 12],
    "strings": ["ZA", "NA", "007", "b c", "null", "Ω", "x"],
}
LABELS = {
    "classes": ([3, 0, 1, 2, 1, 0, 3], [3, 0, 1, 2, 1, 0, 3]),
    "classes and holes": ([3, None, 1, 2, None, 0, 3], [3, -1, 1, 2, -1, 0, 3]),
    "classes as floats": ([3.0, None, 1.0, 2.0, 1.0, 0.0, 3.0], [3, -1, 1, 2, 1, 0, 3]),
    "truth values": ([True, False, True, True, False, False, True], [1, 0, 1, 1, 0, 0, 1]),
    "real numbers": ([0.5, 1.25, -3.0, 4.0, 0.0, 7.5, 2.0], [0.5, 1.25, -3.0, 4.0, 0.0, 7.5, 2.0]),
}
SPLITS = {
    "names": {"split": ["train", "val", "test", "none", "train", "valid", "test"]},
    "codes": {"split": [1, 2, 3, 0, 1, 2, 3]},
    "masks": {f"{part}_mask": [i % 4 == code for i in (0, 1, 2, 3, 0, 1, 2)] for code, part in enumerate(("train", "val", "test"))},
}  # fmt: skip
CODES = [1, 2, 3, 0, 1, 2, 3]
FEATURE = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2)


def _write(path, columns):
    table = pa.table(columns)
    if path.name.endswith(".parquet"):
        pa_parquet.write_table(table, path)
    else:
        pa_csv.write_csv(table, path, pa_csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ","))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return str(path)


def _files(folder, ending, ids, label, splits, order, one_file):
    """Writes files of all columns, with rows in this order and the column of ids in the middle. Returns options that name the files."""
    parts = {
        "features": {"f": FEATURE[:, 0].tolist(), "node_id": ids, "g": FEATURE[:, 1].tolist()},
        "labels": {"label": label, "node_id": ids},
        "splits": {**splits, "node_id": ids},
        "node_times": {"node_id": ids, "time": list(range(100, 100 + COUNT))},
    }
    if one_file:
        parts = {key: dict(itertools.chain(*(columns.items() for columns in parts.values()))) for key in parts}
    shuffled = {name: {key: [column[i] for i in order] for key, column in columns.items()} for name, columns in parts.items()}  # fmt: skip
    if one_file:
        return dict.fromkeys(parts, _write(folder / f"nodes{ending}", shuffled["labels"]))
    return {name: _write(folder / f"{name}{ending}", columns) for name, columns in shuffled.items()}


def _graph_by_id(graph):
    """Returns each node's columns, and the edges, by the ids in the files."""
    nodes = list(graph.nodes(3))
    if graph.info.has_string_id:
        ids = [name for chunk in nodes for name in chunk.string_id.to_pylist()]
    elif nodes[0].original_id is not None:
        ids = np.concatenate([chunk.original_id for chunk in nodes]).tolist()
    else:
        ids = list(range(graph.info.num_nodes))
    feature, label, split, time = (
        np.concatenate([getattr(chunk, name) for chunk in nodes]) for name in ("feature", "label", "split", "time")
    )
    rows = {name: (feature[i].tolist(), float(label[i]), split[i].tolist(), int(time[i])) for i, name in enumerate(ids)}
    edges = {(ids[a], ids[b]) for chunk in graph.edges(3) for a, b in zip(chunk.src, chunk.dst, strict=True)}
    return rows, edges, label.dtype


@pytest.mark.parametrize("one_file", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".tsv.gz", ".parquet"])
@pytest.mark.parametrize("named", ["rows", "numbers", "numbers compacted", "strings", "strings compacted"])
def test_every_kind_in_any_order_gives_the_same_graph(tmp_path, named, ending, shuffled, one_file):
    kind = named.split()[0]
    ids = IDS[kind]
    order = np.random.default_rng(3).permutation(COUNT).tolist() if shuffled else list(range(COUNT))
    edges = _write(tmp_path / f"edges{ending}", {"src": [ids[a] for a, _ in EDGES], "dst": [ids[b] for _, b in EDGES]})
    options = {"string_ids": True} if named == "strings compacted" else {}
    if named.endswith("compacted"):
        options["compact_ids"] = True
    elif kind != "rows":
        options["ids"] = _write(tmp_path / f"ids{ending}", {"id": [ids[i] for i in reversed(range(COUNT))]})
    for (label, expected), splits in itertools.product(LABELS.values(), SPLITS.values()):
        files = _files(tmp_path, ending, ids, label, splits, order, one_file)
        rows, found, dtype = _graph_by_id(EdgeListGraph(edges, EdgeListOptions(**files, **options)))
        every = zip(FEATURE.tolist(), map(float, expected), [[code] for code in CODES], range(100, 107), strict=True)
        assert rows == dict(zip(ids, every, strict=True))
        assert found == {(ids[a], ids[b]) for a, b in EDGES}
        assert dtype == (np.float32 if 0.5 in expected else np.int64)


@pytest.fixture(params=["rows", "numbers"])
def three_nodes(request, tmp_path):
    """Writes a path of three nodes to e.csv. Returns the nodes' ids, and options that name these ids."""
    names = (0, 1, 2) if request.param == "rows" else (5, 7, 9)
    (tmp_path / "e.csv").write_text("src,dst\n{0},{1}\n{1},{2}\n".format(*names))
    if request.param == "rows":
        return names, {"num_nodes": 3}
    (tmp_path / "ids.csv").write_text("id\n9\n5\n7\n")
    return names, {"ids": str(tmp_path / "ids.csv")}


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ("{0},1\n{0},1\n{2},3\n", "row 2: expected each id once, got {0} as in row 1, 1 such rows"),
        ("{0},1\n44,1\n{2},3\n{1},2\n", "row 2 without a node: expected .* got 44, 1 such rows"),
        ("{0},1\n,1\n{2},3\n", "line 3: column 'id': expected a value, found an empty field"),
        ("a,1\nb,1\nc,3\n", "line 2: column 'id': expected whole numbers, found 'a'; .* --edge-list.ids"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_apart(tmp_path, rows, match, three_nodes):
    names, options = three_nodes
    (tmp_path / "y.csv").write_text("id,label\n" + rows.format(*names))
    with pytest.raises(DataError, match=r"y\.csv: " + match.format(*names)) as caught:
        _ = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(labels=str(tmp_path / "y.csv"), **options)).info
    assert "\n" not in str(caught.value)


def test_a_node_without_a_row(tmp_path, three_nodes):
    names, options = three_nodes
    (tmp_path / "y.csv").write_text("id,label\n{2},1\n{1},0\n".format(*names))
    (tmp_path / "s.csv").write_text("id,split\n{1},train\n".format(*names))
    files = {"labels": str(tmp_path / "y.csv"), "splits": str(tmp_path / "s.csv")}
    graph = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(**files, ids=options.get("ids")))
    (nodes,) = graph.nodes(9)
    assert (nodes.label.tolist(), nodes.split.tolist()) == ([-1, 0, 1], [[0], [1], [0]])
    assert [each.became.split("; ")[1] for each in graph.roles if each.role in ("label", "split")] == [
        "1 nodes without a row",
        "2 nodes without a row",
    ]
    message = (
        f"x.csv: node without a row: expected a row for each of 3 nodes, found none for id {names[0]}, 1 such nodes"
    )
    (tmp_path / "x.csv").write_text("id,x\n{2},1\n{1},0\n".format(*names))
    with pytest.raises(DataError, match=message):
        _ = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(features=str(tmp_path / "x.csv"), **options)).info


def test_the_column_of_ids_by_an_option(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    (tmp_path / "x.csv").write_text("f,who,node\n5,2,0.5\n3,0,0.3\n4,1,0.4\n")
    graph = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(features=str(tmp_path / "x.csv"), id_column="who"))
    np.testing.assert_allclose(next(graph.nodes(9)).feature, [[3, 0.3], [4, 0.4], [5, 0.5]])
    for name, text, match in (
        ("y.csv", "id,label\n0,1\n", "expected one column of ids 'who', found id, label"),
        ("y.csv", "id,node,label\n0,1,1\n", "expected one column of ids, found id, node, label; .* --edge-list.id-column"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        asked = "who" if "who" in match else None
        with pytest.raises(DataError, match=match):
            EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(labels=str(tmp_path / name), id_column=asked))


def test_lists_and_numbers_of_parquet_are_all_features(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    table = {"id": [2, 0, 1], "a": [[5.0, 6], [1, 2], [3, 4]], "n": [0.5, 0.1, 0.3], "b": [[7.0], [8], [9]]}
    path = _write(tmp_path / "x.parquet", table)
    (nodes,) = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(features=path)).nodes(9)
    np.testing.assert_allclose(nodes.feature, [[1, 2, 0.1, 8], [3, 4, 0.3, 9], [5, 6, 0.5, 7]])


@pytest.mark.parametrize("ids", [[30, 10, 20], ["c", "a", "b"]])
def test_features_beside_a_typed_table(tmp_path, ids):
    _write(tmp_path / "a.csv", {"key": ids, "label": [0, 1, 2]})
    _write(tmp_path / "x.csv", {"f": [1.5, 2.5, 3.5], "id": sorted(ids)})
    (tmp_path / "graph.yaml").write_text("nodes: {a: {file: a.csv, id: key, label: label, features: x.csv}}\n")
    (nodes,) = typed_tables(tmp_path).nodes["a"].nodes(9)
    by_label = dict(zip(nodes.label.tolist(), nodes.feature[:, 0].tolist(), strict=True))
    assert by_label == {0: 3.5, 1: 1.5, 2: 2.5}


@pytest.mark.parametrize("quote", ["", '"'])
def test_na_is_a_name(tmp_path, quote):
    names = [f"{quote}{name}{quote}" for name in ("ZA", "NA", "BW")]
    (tmp_path / "e.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in itertools.pairwise(names)))
    (tmp_path / "ids.csv").write_text("\n".join(["id", *names]) + "\n")
    graph = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(ids=str(tmp_path / "ids.csv")))
    assert next(graph.nodes(9)).string_id.to_pylist() == ["ZA", "NA", "BW"]
    assert next(graph.edges(9)).dst.tolist() == [1, 2]


@pytest.mark.parametrize("text", ["id\n1\nNA\n3\n", "id\n1\n\n3\n"])
def test_na_among_numbers_is_no_id(tmp_path, text):
    (tmp_path / "e.csv").write_text("src,dst\n1,3\n")
    (tmp_path / "ids.csv").write_text(text)
    with pytest.raises(DataError, match=r"ids\.csv: line 3: "):
        EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(ids=str(tmp_path / "ids.csv")))


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npy"])
def test_whole_floats_are_classes_unless_said_otherwise(tmp_path, ending):
    def read(values, kind="auto"):
        path = tmp_path / f"y{ending}"
        if ending == ".npy":
            np.save(path, np.array(values, float))
        elif ending == ".csv":
            path.write_text(
                "\n".join(["label", *("" if np.isnan(value) else repr(float(value)) for value in values)]) + "\n"
            )
        else:
            _write(path, {"label": pa.array(values, pa.float64(), from_pandas=True)})
        return read_labels(path, kind=kind)

    labels = read([0.0, 1.0, np.nan, 2.0])
    assert (labels.tolist(), labels.dtype) == ([0, 1, -1, 2], np.int64)
    for values, kind in (([0.0, 1.0, 2.0], "number"), ([0.0, 1.0, -2.5], "auto"), ([0.0, 1.5], "auto")):
        assert (read(values, kind).tolist(), read(values, kind).dtype) == (values, np.float32)
    with pytest.raises(DataError, match=r"1,001 different whole numbers, written as floats: .*label-kind"):
        read(np.arange(1001.0))
    assert read(np.arange(1001.0), "class").dtype == np.int64
    with pytest.raises(DataError, match=r"labels must be classes, .* got 1.5, 1 such"):
        read([0.0, 1.5], "class")


def test_label_kind_of_each_source(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    (tmp_path / "y.csv").write_text("label\n0\n1\n2\n")
    graph = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(labels=str(tmp_path / "y.csv"), label_kind="number"))
    assert next(graph.nodes(9)).label.dtype == np.float32
    (tmp_path / "graph.yaml").write_text("nodes: {a: {file: y.csv, label: label, label_kind: number}}\n")
    assert next(typed_tables(tmp_path).nodes["a"].nodes(9)).label.dtype == np.float32
    (tmp_path / "graph.yaml").write_text("nodes: {a: {file: y.csv, label: label, label_kind: kind}}\n")
    with pytest.raises(ConfigError, match="label_kind: auto, class, number"):
        typed_tables(tmp_path)
    ends = np.array([0, 1]), np.array([1, 2])
    floats = np.array([0, np.nan, 2], np.float32)
    assert ArrayGraph("a", 3, *ends, label=floats).label.tolist() == [0, -1, 2]
    assert ArrayGraph("a", 3, *ends, label=floats, label_kind="number").label.dtype == np.float32
    assert ArrayGraph("a", 3, *ends, label=np.array([0, 1.0, -2])).label.dtype == np.float32
    assert ArrayGraph("a", 3, *ends, label=np.eye(3), label_kind="number").label.dtype == np.float32
    with pytest.raises(DataError, match="label_kind class: expected one label a node"):
        ArrayGraph("a", 3, *ends, label=np.eye(3), label_kind="class")
    with pytest.raises(DataError, match=r"got 0.5, 3 such; .* no num_classes"):
        ArrayGraph("a", 3, *ends, label=np.array([0.5, 0.5, 0.5]), num_classes=3)
