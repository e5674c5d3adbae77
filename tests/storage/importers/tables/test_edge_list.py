import gzip
from copy import copy

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError, FormatError, GraphmillError
from graphmill.storage.graph import open_graph, source_ids
from graphmill.storage.importers.tables import edge_file, edge_list, text_table
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.importers.tables.node_columns import NodeFile, read_features, read_labels
from graphmill.storage.ingestion.ingest import IngestOptions, ingest

SRC, DST = [10, 10, 3, 7], [3, 7, 10, 7]
WEIGHT = [0.5, 1.0, 2.0, 4.0]


def read_splits(path, header=None):
    file = NodeFile(path, header)
    return file.splits(file.split_places())


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
    for module in (edge_file, edge_list):
        monkeypatch.setattr(module, "READ_EDGES", read_edges)
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
        ("e.csv", "src,dst\n1,2\n3\n", {}, "line 3: expected 2 fields, .* found 1"),
        ("e.csv", "src,dst\n1,2\nx,4\n", {}, "line 3: column 'src': expected whole numbers, found 'x'"),
        ("e.csv", "src,dst\n1,2\n,4\n", {}, "line 3: .* found an empty field"),
        ("e.csv", "src,dst\n1.5,2\n", {}, "line 2: .* whole numbers .*, got 1.5"),
        ("e.csv", "a,b\n1,2\n", {}, "expected one column each of src, dst, found a, b"),
        ("e.csv", "", {}, "at least one edge"),
        ("e.parquet", "no parquet", {}, "expected a Parquet file"),
        ("e.txt.gz", "no gzip", {}, "cannot read this file"),
        ("e.csv", "0,1\n", {"features": "x.npy"}, r"x\.npy: no such file"),
        ("e.orc", "", {}, r"ending in \.parquet"),
    ],
)
def test_bad_edge_files(tmp_path, name, text, options, match):
    path = _write(tmp_path, name, text)
    with pytest.raises(DataError, match=match) as caught:
        _ = [EdgeListGraph(path, EdgeListOptions(**options)).info, *EdgeListGraph(path).edges(10)]
    assert "\n" not in str(caught.value)


# Texts in the forms of published graphs. All have the edges 1 → 2, 3 → 4, 5 → 6.
REAL = {
    "byte order mark": b"\xef\xbb\xbf1,2\n3,4\n5,6\n",
    "byte order mark and names": b"\xef\xbb\xbfsrc,dst\n1,2\n3,4\n5,6\n",
    "byte order mark and a comment": b"\xef\xbb\xbf# edges\n1,2\n3,4\n5,6\n",
    "KONECT": b"% asym unweighted\n% 3 6 6\n1 2\n3 4\n5 6\n",
    "a blank at each end": b"% asym unweighted\n1 2 \n3 4 \n5 6 \n",
    "comments in between": b"# SNAP\n1\t2\n# the middle\n3\t4\n% 7\t8\n  # 9\t9\n5\t6\n# end",
    "comments with commas": b"src,dst\n1,2\n#3,9\n3,4\n5,6\n",
    "runs of spaces": b"  1   2\n 3  4\n5         6\n",
    "runs further down": b"1 2\n 3  4  \n5 6\n",
    "tabs and spaces": b"1\t2\n3 4\n5 \t 6\t\n",
    "a run of tabs": b"1\t\t2\n3\t4\n5\t6\n",
    "names between runs": b"src   dst\n1 2\n3\t4\n5  6\n",
    "blank lines": b"\n\n1,2\n\n   \n3,4\n\t\n5,6\n\n\n",
    "blank lines between blanks": b"\n1 2\n\n3 4\n  \n5 6\n\n",
    "carriage returns": b"# a\r\n1 2\r\n\r\n3  4\r\n5 6 \r\n",
    "no last line end": b"1,2\n3,4\n5,6",
    "text that nobody asked for": "name,src,dst\n#1,1,2\n%é,3,4\n,5,6\n".encode(),
    "bytes that nobody asked for": b"src,note,dst\n1,\xff\xfe,2\n3,9999999999999999999999,4\n5,,6\n",
    "numbers, then text that nobody asked for": b"src,dst,kind\n1,2,7\n3,4,1.5\n5,6,last\n",
    "names in quotes": b'"src","dst"\n"1","2"\n"3","4"\n5,6\n',
    "empty fields between tabs with names": b"src\tnote\tdst\n1\t\t2\n3\t \t4\n5\tx\t6\n",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("block_bytes", [7, 16, 8 << 20])
@pytest.mark.parametrize("name", REAL)
def test_text_as_real_sources_have_it(tmp_path, monkeypatch, name, block_bytes, zipped):
    path = tmp_path / ("e.txt.gz" if zipped else "e.txt")
    path.write_bytes(gzip.compress(REAL[name]) if zipped else REAL[name])
    monkeypatch.setattr(text_table, "_READ_BYTES", block_bytes)  # small, so that blocks end at many places
    _, src, dst = _read(path)
    assert (src, dst) == ([1, 3, 5], [2, 4, 6])


QUOTES = {
    "never closed": 'src,dst,t\n1,2,"a\n3,4,b\n5,6,c',
    "never closed in the middle": 'src,t,dst\n1,"a,2\n3,b,4\n5,c,6\n',
    "closed further down": 'src,dst,t\n1,2,"a\n3,4,b\n5,6,c"\n',
    "closed in another column": 't\tsrc\tu\tdst\n"a\t1\tx\t2\nb\t3\t"y\t4\nc\t5\tz\t6\n',
    "between blanks": '1 2 "a\n3  4 b\n# "c\n5 6 c\n',
}


@pytest.mark.parametrize("name", QUOTES)
def test_a_quote_that_nobody_asked_for_swallows_no_line(tmp_path, name):
    _, src, dst = _read(_write(tmp_path, "e.txt", QUOTES[name]))
    assert (src, dst) == ([1, 3, 5], [2, 4, 6])


def test_a_quote_in_a_long_file_swallows_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "_READ_BYTES", 1 << 16)
    lines = [f"{n}\t{n + 1}\ttitle {n}\n" for n in range(30_000)]
    lines[5] = '5\t6\t"Unclosed\n'
    lines[20_000] = '20000\t20001\t"Closed"\n'
    _, src, _ = _read(_write(tmp_path, "e.tsv", "src\tdst\ttitle\n" + "".join(lines)))
    assert src == list(range(30_000))


@given(st.lists(st.text('"" ab#', max_size=4), min_size=1, max_size=8), st.integers(0, 2), st.sampled_from([5, 16, 64]))
def test_each_line_is_an_edge_whatever_its_text(tmp_path, notes, place, block_bytes):
    rows = [["src", "dst"], *([str(n), str(n + 1)] for n in range(len(notes)))]
    for row, note in zip(rows, ["note", *notes], strict=True):
        row.insert(place, note)
    path = _write(tmp_path, "e.txt", "\n".join(map(",".join, rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_table, "_READ_BYTES", block_bytes)
        assert _read(path)[1] == list(range(len(notes)))


@given(
    st.lists(st.sampled_from(["1", "2", "", "#N/A", "NULL", "# c", "  # c", "%c"]), max_size=8),
    st.sampled_from(["", "label\n", "\n# c\nlabel\n"]),
    st.sampled_from([2, 5, 64]),
)
def test_no_label_is_lost(tmp_path, lines, header, block_bytes):
    path = _write(tmp_path, "y.csv", header + "\n".join([*lines, "3"]))
    expected = [int(line) if line.isdigit() else -1 for line in [*lines, "3"] if not line.endswith("c")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_table, "_READ_BYTES", block_bytes)
        assert read_labels(path).tolist() == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            'src,dst,t\n1,2,"a, b"\n3,4,"c\n5,6,d\n',
            "line 3: expected quotes that are closed on their line, found '3,4,\"c'",
        ),
        ('src,dst,t\n1,2,"a\nb"\n3,4,c\n', "line 3: expected 3 fields, .* found 1: .*; quotes must be closed"),
        ('src,dst\n1,2\n3,"4\n5,6\n', "line 3: column 'dst': expected whole numbers, found '\"4'"),
    ],
)
def test_a_quote_that_cannot_be_is_refused_with_its_line(tmp_path, text, match):
    with pytest.raises(DataError, match=match) as caught:
        _read(_write(tmp_path, "e.csv", text))
    assert "\n" not in str(caught.value)


def test_types_are_those_of_the_whole_file(tmp_path):
    """The file is longer than a block, and the first block's types do not fit the rest. Weights begin with whole numbers, and a text column with numbers."""
    lines = [f"{n % 1000},{n % 999},{n % 7},7" for n in range(800_000)]
    path = _write(tmp_path, "e.csv", "src,dst,w,kind\n" + "\n".join([*lines, "1,2,0.5,text"]))
    assert path.stat().st_size > 8 << 20
    chunks = list(EdgeListGraph(path, EdgeListOptions(weight="w")).edges(1 << 20))
    assert chunks[-1].weight[-1] == 0.5
    assert sum(len(chunk.src) for chunk in chunks) == 800_001


BAD_IDS = {
    "9223372036854775808": "below 2\\*\\*63, found 9223372036854775808",
    "18446744073709551615": "below 2\\*\\*63",
    "1e17": "whole numbers .below 2\\*\\*53, as floats., got 1e\\+17",
    "2.5": "whole numbers .*, got 2.5",
    "x": "whole numbers, found 'x'",
    "nan": "expected a value, found 'nan'",
    "-1": "expected ids from 0, got -1",
    "12345678901234": "id 12345678901234 would make 12345678901235 nodes of 3 edges; .*compact-ids",
}


@pytest.mark.parametrize("text", ["# c\n\n0 1\n# c\n{} 2\n1 2\n", "# c\n\nsrc,dst\n0,1\n2,{}\n1,2\n"])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_ids_that_cannot_be_are_refused_with_their_line(tmp_path, bad, text):
    path = _write(tmp_path, "e.txt", text.format(bad))
    with pytest.raises(DataError, match=f"e.txt: line 5: .*{BAD_IDS[bad]}") as caught:
        _ = EdgeListGraph(path).info
    assert "\n" not in str(caught.value)


def test_large_ids_are_taken_where_it_is_said_how(tmp_path):
    path = _write(tmp_path, "e.txt", "0 1\n12345678901234 2\n")
    graph, src, _ = _read(path, compact_ids=True)
    assert (graph.info.num_nodes, src) == (4, [0, 3])
    assert EdgeListGraph(path, EdgeListOptions(num_nodes=12345678901235)).info.num_nodes == 12345678901235
    with pytest.raises(DataError, match="line 2: expected ids 0 to 99, got 12345678901234"):
        _read(path, num_nodes=100)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            pa.array([0, 2**63 + 5], pa.uint64()),
            r"row 2: column 'src': expected ids below 2\*\*63, got 9223372036854775813",
        ),
        (pa.array([0.0, 1.5]), "row 2: column 'src': expected whole numbers .*, got 1.5"),
        (pa.array([0, -7]), "row 2: expected ids from 0, got -7"),
        (pa.array([0, None]), "row 2: column 'src': expected an id"),
        (pa.array([0, 10**15]), "row 2: id 1000000000000000 would make"),
    ],
)
def test_ids_in_parquet_that_cannot_be(tmp_path, values, match):
    pa_parquet.write_table(pa.table({"src": values, "dst": [1, 2]}), tmp_path / "e.parquet")
    with pytest.raises(DataError, match=match):
        _ = EdgeListGraph(tmp_path / "e.parquet").info


@pytest.mark.parametrize(
    ("text", "header", "match"),
    [
        ("5,1\n1,2\n", True, "line 1: expected column names, found a row: '5,1'; set --edge-list.header False"),
        ("0,1\n1,2\n", True, "expected one column each of src, dst, found 0, 1; .*set --edge-list.src"),
        ("src,dst\n1,2\n", False, "line 1: expected a row, found column names: 'src,dst'; set --edge-list.header True"),
        ("\n# c\nsrc,src,dst\n1,2,3\n", None, "one column each of src, dst, found src, src, dst"),
        ("1.5,2\n1,2\n", None, "line 1: .* whole numbers .*, got 1.5"),
    ],
)
def test_a_header_is_checked(tmp_path, text, header, match):
    with pytest.raises(DataError, match=match):
        _read(_write(tmp_path, "e.csv", text), header=header)


def test_columns_that_pandas_numbered(tmp_path):
    path = _write(tmp_path, "e.csv", "0,1,2\n5,6,0.5\n2,3,1\n")
    for header in (None, True):
        graph, src, dst = _read(path, src="0", dst="1", weight="2", header=header)
        assert (src, dst) == ([5, 2], [6, 3])
        assert next(graph.edges(9)).weight.tolist() == [0.5, 1]


MATRIX = """%%MatrixMarket matrix coordinate real {kind}
% a comment

 4  4 3
2 1  0.5
% between
3 3 1
4 1 -2e-1
"""


@pytest.mark.parametrize("kind", ["general", "Symmetric"])
@pytest.mark.parametrize("ending", [".mtx", ".mtx.gz", ".txt"])
def test_matrix_market(tmp_path, kind, ending):
    path = tmp_path / f"m{ending}"
    text = MATRIX.format(kind=kind).encode()
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    graph, src, dst = _read(path, weight="2")
    assert (src, dst) == ([1, 2, 3], [0, 2, 0])
    assert np.concatenate([c.weight for c in graph.edges(2)]).tolist() == pytest.approx([0.5, 1, -0.2])
    assert (graph.info.num_nodes, graph.info.num_edges) == (4, 3)
    assert graph.info.undirected_once == (kind == "Symmetric")
    compact = EdgeListGraph(path, EdgeListOptions(compact_ids=True))
    assert [chunk.original_id.tolist() for chunk in compact.nodes(9)] == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("coordinate", "array", "expected '%%MatrixMarket matrix coordinate"),
        ("real", "complex", "expected a pattern, real or integer matrix"),
        ("general", "hermitian", "general or symmetric"),
        ("4  4 3", "4 5 3", "square matrix"),
        ("4  4 3", "4 4 4", "4 entries of its size line, found 3"),
        ("4  4 3", "4 4 99999999", "cannot be in a file of"),
        ("4  4 3", "99999999999 99999999999 3", "99999999999 nodes of 3 entries"),
        ("4  4 3", "x", "a size line"),
        ("2 1  0.5", "0 1  0.5", "line 5: expected ids from 1, got 0"),
        ("2 1  0.5", "2 5  0.5", "line 5: expected ids 1 to 4, got 5"),
        ("2 1  0.5", "2 1", "line 7: expected 2 fields"),
    ],
)
def test_matrix_market_that_cannot_be(tmp_path, old, new, match):
    path = _write(tmp_path, "m.mtx", MATRIX.format(kind="general").replace(old, new))
    with pytest.raises(DataError, match=match) as caught:
        list(EdgeListGraph(path).edges(10))
    assert "\n" not in str(caught.value)


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "_MAX_LINE_BYTES", 1000)
    path = _write(tmp_path, "e.csv", "src,dst\n1,2\n" + "7" * 5000)
    with pytest.raises(DataError, match="lines of at most 1000 bytes"):
        list(EdgeListGraph(path).edges(10))


def test_many_blank_lines_are_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "_MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(text_table, "_READ_BYTES", 1000)
    path = _write(tmp_path, "e.csv", "src,dst\n1,2\n" + "\n" * 5000 + "3,4\n")
    with pytest.raises(DataError, match="expected a row in each 1000 bytes, found only blank lines; remove"):
        list(EdgeListGraph(path).edges(10))


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


NODE_FILES = [
    # option, text, header, values
    ("labels", "5\n0\n1\n", None, [5, 0, 1]),
    ("labels", "\ufeff5\n0\n1\n", None, [5, 0, 1]),
    ("labels", "label\n5\n0\n1\n", None, [5, 0, 1]),
    ("labels", "label\n5\n\n1\n", None, [5, -1, 1]),
    ("labels", "5\n\n1\n\n\n", None, [5, -1, 1]),
    ("labels", "# made by hand\n5\n0\n1", None, [5, 0, 1]),
    ("labels", "# made by hand\n\n5\n0\n1", None, [-1, 5, 0, 1]),
    ("labels", "\n# made by hand\n1\n0\n", None, [-1, 1, 0]),
    ("labels", "\n1\n0\n", None, [-1, 1, 0]),
    ("labels", "\n\nlabel\n\n1\n0\n", None, [-1, 1, 0]),
    ("labels", "\r\n0.5\r\n1\r\n", None, [np.nan, 0.5, 1]),
    ("labels", "label\n1\n#N/A\n2\n# made by me\n0\n", None, [1, -1, 2, 0]),
    ("labels", "#N/A\n1\n2\n", None, [-1, 1, 2]),
    ("labels", "# made by me\n#N/A\n1\n2\n", None, [-1, 1, 2]),
    ("labels", "null\n1\n2\n", None, [-1, 1, 2]),
    ("labels", "5\n# in between\n0\n1", None, [5, 0, 1]),
    ("labels", "0.5\n1\nnan\n", None, [0.5, 1, np.nan]),
    ("labels", "true\nfalse\ntrue\n", None, [1, 0, 1]),
    ("labels", "id,label\n#a,2\nb,\nc,1\n", None, [2, -1, 1]),
    ("labels", "id,label\n#a,2\n\nc,1\n", None, [2, -1, 1]),
    ("labels", "x\n2\n5\n", True, [2, 5]),
    ("labels", "0\n2\n5\n", True, [2, 5]),
    ("features", "1,2\n3,4.5\n", None, [[1, 2], [3, 4.5]]),
    ("features", "a,b\n1,2\n3,4.5\n", None, [[1, 2], [3, 4.5]]),
    ("features", "0,1\n1,2\n3,4.5\n", True, [[1, 2], [3, 4.5]]),
    ("features", "0,1\n1,2\n3,4.5\n", False, [[0, 1], [1, 2], [3, 4.5]]),
    ("features", "1 2\n 3   4.5\n", None, [[1, 2], [3, 4.5]]),
    ("features", "1,2\n3,\n5,4\n", None, [[1, 2, 0], [3, 3, 1], [5, 4, 0]]),
    ("splits", "train\n\nval\ntest\n", None, [[1], [0], [2], [3]]),
    ("splits", "split\n1\n\n3\n", None, [[1], [0], [3]]),
    ("splits", "a,b\ntrain,none\n,test\n", None, [[1, 0], [0, 3]]),
    ("splits", "0\n1\n3\n", True, [[1], [3]]),
    ("splits", "1,3\n2,0\n", None, [[1, 3], [2, 0]]),
    ("splits", "\n1\n3\n", None, [[0], [1], [3]]),
    ("splits", "1.0\n\n2.0\n3.0\n", None, [[1], [0], [2], [3]]),
    ("splits", "train_mask,val_mask,test_mask\n1,0,0\n0,1,0\n0,0,1\n0,0,0\n", None, [[1], [2], [3], [0]]),
    ("splits", "test_mask,train_mask,val_mask\nTrue,False,False\nFalse,True,\n", None, [[3], [1]]),
    ("splits", "train_mask_0,test_mask_0,train_mask_1,val_mask_1\n1,0,0,1\n0,1,1,0\n", None, [[1, 2], [3, 1]]),
    ("splits", "train,val,test\n1,0,0\n0,1,0\n0,0,1\n", True, [[1], [2], [3]]),
    ("splits", "\ntrain\ntest\n", None, [[0], [1], [3]]),
    ("splits", "train\n#N/A\n# made by me\ntest\n", None, [[1], [0], [3]]),
    ("splits", "a b\n#N/A 1\n# made by me\n2 3\n", None, [[0, 1], [2, 3]]),
    ("splits", "a,b\n#N/A,1\n# made by me\n2,3\n", None, [[0, 1], [2, 3]]),
    ("splits", "a,b\n1,train\n2,test\n", None, [[1, 1], [2, 3]]),
]


@pytest.mark.parametrize(("ending", "block_bytes"), [("csv", 5), ("txt.gz", 8 << 20)])
@pytest.mark.parametrize(("option", "text", "header", "expected"), NODE_FILES)
def test_node_text_files(tmp_path, monkeypatch, option, text, header, expected, ending, block_bytes):
    monkeypatch.setattr(text_table, "_READ_BYTES", block_bytes)
    path = tmp_path / f"n.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    read = {"labels": read_labels, "features": read_features, "splits": read_splits}[option]
    values = read(path, header)
    np.testing.assert_array_equal(values, expected)
    assert option != "labels" or values.dtype == (np.float32 if 0.5 in expected else np.int64)


@pytest.mark.parametrize(
    ("option", "text", "header", "match"),
    [
        (
            "labels",
            "5\n0\n",
            True,
            "line 1: expected column names, found a row: '5'; set --edge-list.node-header False",
        ),
        (
            "labels",
            "y\n0\n",
            False,
            "line 1: expected a row, found column names: 'y'; set --edge-list.node-header True",
        ),
        ("labels", "a,b\n0,1\n", None, "expected a column 'label' or one column, found a, b"),
        ("labels", "2,1\n0,1\n", None, "expected a column 'label' or one column, found 0, 1"),
        ("labels", "label\n0\nx\n", None, "line 3: column 'label': expected numbers, found 'x'"),
        (
            "features",
            "0,1,2\n1,2,3\n",
            None,
            "cannot tell column names from a row in '0,1,2'; set --edge-list.node-header",
        ),
        ("features", "id,2\n1,2\n", None, "cannot tell column names"),
        ("features", "1,2\n3\n", None, "line 2: expected 2 fields"),
        ("features", "1,2\n\n3,4\n", None, "line 2: expected a row, found a blank line"),
        ("features", "1,2\n3,x\n", None, "line 2: column '1': expected numbers, found 'x'"),
        ("splits", "train\nholdout\n", None, "got 'holdout'"),
        ("splits", "", None, "expected a column of splits, found none"),
        ("splits", "1\n1\n\n", None, "split codes 1 may be a mask"),
        ("splits", "1\n0\n", None, "split codes 0, 1 may be a mask"),
        ("splits", "split\n0\n1\n2\n", None, "split codes 0, 1, 2 may be .* 0 train, 1 valid, 2 test"),
        ("splits", "train,val,test\n1,0,0\n0,0,1\n", None, "cannot tell column names from a row"),
        (
            "splits",
            "train_mask,val_mask\n1,1\n0,0\n",
            None,
            "splits overlap: 1 rows are in train and in valid, the first is row 0",
        ),
        ("splits", "train_mask,val_mask\n1,2\n0,0\n", None, "column 'val_mask': a mask has .* got 2"),
        (
            "splits",
            "train_mask,good_mask\n1,0\n0,0\n",
            None,
            "expected masks in columns train_mask, .* found train_mask, good_mask",
        ),
        ("splits", "flag\ntrue\nfalse\n", None, "expected masks in columns train_mask"),
        ("splits", "0\n57\n9\n", False, "lists of node ids are no codes"),
        ("labels", "", None, "found none"),
    ],
)
def test_node_text_files_that_are_refused(tmp_path, option, text, header, match):
    path = _write(tmp_path, "n.csv", text)
    with pytest.raises(DataError, match=match) as caught:
        {"labels": read_labels, "features": read_features, "splits": read_splits}[option](path, header)
    assert "\n" not in str(caught.value)


def test_masks_in_arrays_and_parquet(tmp_path):
    masks = np.eye(3, dtype=bool)[[0, 1, 2, 0]]
    np.save(tmp_path / "masks.npy", masks)
    names = ("train_mask", "val_mask", "test_mask")
    pa_parquet.write_table(pa.table(dict(zip(names, masks.T, strict=True))), tmp_path / "masks.parquet")
    for name in ("masks.npy", "masks.parquet"):
        assert read_splits(tmp_path / name).tolist() == [[1], [2], [3], [1]]
    for bad, match in ((masks.astype(np.uint8), "may be a mask"), (masks[:, 0], r"shape \[num_nodes, 3\]")):
        np.save(tmp_path / "bad.npy", bad)
        with pytest.raises(DataError, match=match):
            read_splits(tmp_path / "bad.npy")


def test_node_types_are_those_of_the_whole_file(tmp_path):
    path = _write(tmp_path, "y.csv", "label\n" + "1234567\n" * 1_200_000 + "0.5\n")
    assert path.stat().st_size > 8 << 20
    assert read_labels(path)[[0, -1]].tolist() == [1234567, 0.5]


def _stored_edges(source, folder) -> tuple[list[str], set[tuple[str, str, float]]]:
    """Checks the stored graph. Returns names by row, and the set of (source, destination, first feature)."""
    ingest(source, str(folder / "graph"), IngestOptions(num_partitions=2, overwrite=True))
    graph = open_graph(str(folder / "graph"))
    graph.verify()
    names = np.array(source_ids(graph).of(np.arange(graph.num_nodes)).to_pylist())
    stored = np.concatenate([graph.original_id(index) for index in range(2)])
    edges = set()
    for part in graph.partitions():
        ends = np.stack([names[stored[part.indices]], names[np.repeat(part.original_id, np.diff(part.indptr))]])
        edges |= {(*pair, value) for pair, value in zip(ends.T.tolist(), part.edge_feature[:, 0].tolist(), strict=True)}
    return names.tolist(), edges


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_strings_as_ids(tmp_path, ending):
    edges = pa.table({"src": ["b", "007", "b"], "dst": ["007", "a", "a"], "e": [1.5, 2.5, 3.5]})
    nodes = pa.table({"id": ["a", "b", "007", "alone"]})
    for name, table in (("edges", edges), ("nodes", nodes)):
        path = tmp_path / f"{name}.{ending}"
        pa_csv.write_csv(table, path) if ending == "csv" else pa_parquet.write_table(table, path)
    np.save(tmp_path / "y.npy", [3, 1, 2, 0])
    path, expected = tmp_path / f"edges.{ending}", {("b", "007", 1.5), ("007", "a", 2.5), ("b", "a", 3.5)}
    ids = EdgeListOptions(
        ids=str(tmp_path / f"nodes.{ending}"), labels=str(tmp_path / "y.npy"), edge_features=("e",), node_header=True
    )
    assert _stored_edges(EdgeListGraph(path, ids), tmp_path) == (["a", "b", "007", "alone"], expected)
    numbered = EdgeListOptions(compact_ids=True, string_ids=True if ending == "csv" else None, edge_features=("e",))
    names, found = _stored_edges(EdgeListGraph(path, numbered), tmp_path)
    assert (sorted(names), found) == (["007", "a", "b"], expected)


def test_numbers_as_ids_in_any_order(tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst\n50,7\n7,9\n")
    (tmp_path / "ids.csv").write_text("id\n50\n7\n9\n")
    np.save(tmp_path / "y.npy", [0, 1, 2])
    options = EdgeListOptions(ids=str(tmp_path / "ids.csv"), labels=str(tmp_path / "y.npy"))
    (nodes,) = EdgeListGraph(tmp_path / "edges.csv", options).nodes(10)
    assert (nodes.original_id.tolist(), nodes.label.tolist()) == ([7, 9, 50], [1, 2, 0])


@pytest.mark.parametrize(
    ("edges", "ids", "options", "match"),
    [
        ("src,dst\na,b\nb,c\n", "id\na\nb\n", {}, r"e\.csv: line 3: expected one of the ids of .*ids\.csv, got 'c'"),
        ("src,dst\na,\n", "id\na\nb\n", {}, "line 2: column 'dst': expected a value, found an empty field"),
        ("a,b\n", "id\na\nb\n", {}, "cannot tell column names from a row in 'a,b'"),
        ("src,dst\na,b\n", "id\na\nb\na\n", {}, r"ids\.csv: line 4: column 'id': expected each id once, found 'a' twice"),
        ("src,dst\na,b\n", "id\na\nb\n", {"string_ids": False}, "line 2: column 'id': expected whole numbers, found 'a'"),
        ("src,dst\n1,2\n", "id\n1\n3\n", {}, r"e\.csv: line 2: expected one of the ids of .*, got 2"),
        ("src,dst\na,b\n", None, {}, "line 2: column 'src': expected whole numbers, found 'a'"),
        ("src,dst\na,b\n", None, {"compact_ids": True, "string_ids": True, "labels": "y.npy"}, "name the nodes' ids with --edge-list.ids"),
        ("src,dst\n", None, {"compact_ids": True, "string_ids": True}, "expected at least one"),
        ("src,dst\na,b\n", None, {"string_ids": True}, "expected a file of the nodes' ids"),
        ("src,dst\na,b\n", "id\na\n", {"compact_ids": True}, "leave --edge-list.compact-ids"),
        ("src,dst,e\n0,1,x\n", None, {"edge_features": ("e",)}, "line 2: column 'e': expected numbers, found 'x'"),
        ("src,dst,e\n0,1,2\n", None, {"edge_features": ("f",)}, "expected one column each of src, dst, f, found src, dst, e"),
    ],
)  # fmt: skip
def test_bad_ids_and_features(tmp_path, edges, ids, options, match):
    path = _write(tmp_path, "e.csv", edges)
    if ids is not None:
        options = {**options, "ids": str(_write(tmp_path, "ids.csv", ids))}
    if "labels" in options:
        np.save(tmp_path / "y.npy", [0, 1])
        options = {**options, "labels": str(tmp_path / "y.npy")}
    with pytest.raises(GraphmillError, match=match) as caught:
        list(EdgeListGraph(path, EdgeListOptions(**options)).edges(10))
    assert "\n" not in str(caught.value)


def test_damaged_strings_are_seen(tmp_path):
    edges = _write(tmp_path, "e.csv", "src,dst\na,b\n")
    ingest(EdgeListGraph(edges, EdgeListOptions(compact_ids=True, string_ids=True)), str(tmp_path / "graph"))
    graph = open_graph(str(tmp_path / "graph"))
    entry = next(entry for name, entry in graph.manifest.files.items() if name.endswith("ids.arrow"))
    file = tmp_path / "graph" / entry.path
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content.replace(b"ab", b"aa", 1))
    with pytest.raises(FormatError, match="sha256"):
        graph.verify()


@pytest.mark.parametrize(("kept_bytes", "reads"), [(1 << 20, [1, 1, 2, 3]), (0, [1, 2, 3, 4])])
def test_edges_that_were_read_for_the_number_of_nodes_are_not_read_again(tmp_path, monkeypatch, kept_bytes, reads):
    pa_csv.write_csv(pa.table({"src": SRC, "dst": DST, "w": WEIGHT}), tmp_path / "edges.csv")
    monkeypatch.setattr(text_table, "_READ_BYTES", 8)  # a block for each line or two
    opened = []
    read = edge_file.EdgeFile.raw_edges
    monkeypatch.setattr(edge_file.EdgeFile, "raw_edges", lambda file: [opened.append(file), read(file)][1])
    graph = EdgeListGraph(tmp_path / "edges.csv", EdgeListOptions(weight="w"), kept_bytes=kept_bytes)
    assert graph.info.num_nodes == 11
    counts = [len(opened)]
    copied = copy(graph)  # it shares the kept edges
    readers = [graph.edges(2), graph.edges(3), copied.edges(1000)]
    firsts = []
    for reader in readers:  # several readers at a time
        firsts.append(next(reader))
        counts.append(len(opened))
    for first, reader in zip(firsts, readers, strict=True):
        chunks = [first, *reader]
        assert np.concatenate([chunk.src for chunk in chunks]).tolist() == SRC
        assert np.concatenate([chunk.weight for chunk in chunks]).tolist() == WEIGHT
    assert counts == reads
