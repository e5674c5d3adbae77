"""Tables in the forms that programs write. No value is silently misread."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from graphmill.core.errors import ConfigError, DataError, GraphmillError
from graphmill.jobs.ingest import IngestConfig
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.importers.tables.triples import read_triples
from graphmill.storage.importers.tables.typed_tables import typed_tables
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.molecules.smiles import SmilesTable
from graphmill.storage.molecules.smiles_options import SmilesOptions
from graphmill.storage.splits.split_options import SplitOptions

CYCLE = "src,dst\n0,1\n1,2\n2,3\n3,0\n"


def read(folder, text=None, edges=CYCLE, **options) -> EdgeListGraph:
    (folder / "e.csv").write_text(edges)
    if text is not None:
        (folder / "n.csv").write_text(text)
        options = {key: str(folder / "n.csv") if value == "n.csv" else value for key, value in options.items()}
    return EdgeListGraph(folder / "e.csv", EdgeListOptions(**options))


def nodes(graph):
    (chunk,) = graph.nodes(99)
    return chunk


@pytest.mark.parametrize("name", ["user_id", "accountId", "paper-id", "UUID", "order key"])
def test_a_column_that_looks_like_ids_is_the_key(tmp_path, name) -> None:
    text = f"{name},label\n3,0\n2,1\n1,0\n0,1\n"
    assert nodes(read(tmp_path, text, labels="n.csv", num_nodes=4)).label.tolist() == [1, 0, 1, 0]
    chunk = nodes(read(tmp_path, text.replace("label", "x"), features="n.csv", id_column="none"))
    assert chunk.feature[:, 0].tolist() == [3, 2, 1, 0]


def test_an_index_of_pandas_is_no_row_and_no_feature(tmp_path) -> None:
    assert nodes(read(tmp_path, ",0,1\n0,1.5,2\n1,3,4\n2,5,6\n3,7,8\n", features="n.csv")).feature.shape == (4, 2)
    chunk = nodes(read(tmp_path, ",id,x,label\n0,3,1,0\n1,2,2,1\n2,1,3,0\n3,0,4,1\n", nodes="n.csv"))
    assert chunk.feature[:, 0].tolist() == [4, 3, 2, 1]
    assert nodes(read(tmp_path, ",label\n0,1\n1,0\n2,1\n3,0\n", labels="n.csv")).label.tolist() == [1, 0, 1, 0]


def test_labels_and_masks_are_no_features_and_masks_no_labels(tmp_path) -> None:
    text = "id,f1,label,train_mask,val_mask,test_mask\n0,1,1,1,0,0\n1,0,0,0,1,0\n2,1,1,0,0,1\n3,1,0,1,0,0\n"
    chunk = nodes(read(tmp_path, text, nodes="n.csv", label_columns=("label",)))
    assert (chunk.feature.shape[1], chunk.split[:, 0].tolist()) == (1, [1, 2, 3, 1])
    (tmp_path / "y.csv").write_text("id,label\n0,1\n1,1\n2,0\n3,0\n")
    chunk = nodes(read(tmp_path, text, nodes="n.csv", labels=str(tmp_path / "y.csv")))
    assert (chunk.feature.shape[1], chunk.label.tolist()) == (1, [1, 1, 0, 0])


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("id,x,x\n0,1,10\n1,2,20\n2,3,30\n3,4,40\n", {"features": "n.csv"}, "expected different names of columns"),
        ('id,x\n0,"1,234"\n1,"2,345"\n2,"3,456"\n3,"4,567"\n', {"features": "n.csv"}, "write numbers as 1234.5"),
        ("id;x\n0;1,25\n1;10,5\n2;3,0\n3;4,5\n", {"features": "n.csv"}, "write numbers as 1234.5"),
        ("id,x\n0,12%\n1,13%\n2,14%\n3,15%\n", {"features": "n.csv"}, "write numbers as 1234.5"),
        ("id,x\n0,2024-05-31\n1,2024-06-01\n2,2024-06-02\n3,2024-06-03\n", {"features": "n.csv"}, "expected columns of features, found dates, x"),
        ("id;label\n0;1,25\n1;10,5\n2;3,0\n3;4,5\n", {"labels": "n.csv"}, "expected numbers or words as labels"),
        ("#id,x,label\n3,1,2\n1,2,3\n2,3,4\n0,4,5\n", {"features": "n.csv"}, "take the # out of column names"),
        ("id,x,label\n0,1,2\n1,2,3\n2,3,4\n3,4,5\n", {"features": "n.csv"}, "found a name of labels"),
        ("id,a,b\n0,1,1\n", {"nodes": "n.csv", "feature_columns": ("a", "b"), "label_columns": ("b",)}, "expected one role"),
        ("id,x\n0,1\n1,2\n2,3\n3,4\n", {"features": "n.csv", "categories": ("zpi",)}, "categories: expected columns of"),
        ("", {"nodes": "n.csv"}, "got an empty file"),
    ],
)  # fmt: skip
def test_what_may_be_something_else_is_refused(tmp_path, text, options, match) -> None:
    with pytest.raises(GraphmillError, match=match) as caught:
        _ = read(tmp_path, text, num_nodes=4 if "nodes" not in options else None, **options).info
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_used_are_named_with_their_row(tmp_path) -> None:
    columns = {"src": [0, 1, 2], "dst": [1, 2, 0], "w": [1.0, None, -2.0], "f": [None, 1.0, 1.0]}
    pa_parquet.write_table(pa.table(columns), tmp_path / "e.parquet")
    for options, row, name in (({"weight": "w"}, 2, "w"), ({"edge_features": ("f",)}, 1, "f")):
        graph = EdgeListGraph(tmp_path / "e.parquet", EdgeListOptions(**options))
        with pytest.raises(
            DataError, match=rf"e.parquet: row {row}: column '{name}': expected a value, found an empty"
        ):
            list(graph.edges(9))
    text = "src,dst,w\n0,1,3\n1,2,-1\n2,0,-2\n"
    graph = read(tmp_path, edges=text, weight="w")
    list(graph.edges(9))
    assert graph.roles[2].became == f"-1 in {tmp_path}/e.csv: line 3: runs read weights of at least 0"
    src, dst, weight = np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([1.0, np.nan, np.inf])
    with pytest.raises(
        DataError, match="2 non-finite values in one chunk, the first on the edge 1 -> 2 between rows of"
    ):
        ingest(ArrayGraph("a", 3, src, dst, edge_weight=weight), str(tmp_path / "g"), IngestOptions(num_partitions=1))


def test_dates_beside_features_are_not_read_as_those_of_parquet(tmp_path) -> None:
    text = "id,x,day\n0,1,2024-05-31\n1,2,\n2,3,2024-06-02T10:00:00\n3,4,2024-06-03\n"
    for options in ({"nodes": "n.csv"}, {"features": "n.csv"}):
        graph = read(tmp_path, text, **options)
        assert nodes(graph).feature[:, 0].tolist() == [1, 2, 3, 4]
        assert [role[3:] for role in graph.roles if role.column == "day"] == [("none", "", "not read")]
    with pytest.raises(DataError, match="column 'day': expected numbers or words, found '2024-05-31'"):
        _ = read(tmp_path, text, nodes="n.csv", feature_columns=("x", "day")).info
    assert read(tmp_path, text, nodes="n.csv", categories=("day",)).info.feature_dim == 4
    graph = read(tmp_path, text.replace("x", "label"), nodes="n.csv")
    assert (graph.info.feature_dim, nodes(graph).label.tolist()) == (0, [1, 2, 3, 4])
    assert [role[3:] for role in graph.roles if role.column == "day"] == [("none", "", "not read")]


def test_the_first_of_a_column_of_words_is_no_name(tmp_path) -> None:
    words = "Rome\nOslo\nRome\nBern\n"
    for role in ("features", "labels"):
        with pytest.raises(
            DataError, match=r"line 1: cannot tell .*, 'Rome' is below again; set --edge-list.node-header"
        ):
            _ = read(tmp_path, words, **{role: "n.csv"}).info
    assert nodes(read(tmp_path, words, labels="n.csv", node_header=False)).label.tolist() == [2, 1, 2, 0]
    assert nodes(read(tmp_path, f"city\n{words}", labels="n.csv")).label.tolist() == [2, 1, 2, 0]


def test_names_that_also_mean_other_things_stay_features(tmp_path) -> None:
    chunk = nodes(read(tmp_path, "id,fold,valid,partition\n0,1,1,0\n1,2,0,3\n2,0,1,1\n3,3,1,2\n", nodes="n.csv"))
    assert chunk.feature.shape == (4, 3)
    assert chunk.split is None


def test_ids_keep_their_zeros(tmp_path) -> None:
    graph = read(tmp_path, "id,x\n00501,1\n08001,2\n", "src,dst\n00501,08001\n", nodes="n.csv")
    assert nodes(graph).string_id.to_pylist() == ["00501", "08001"]
    assert next(graph.edges(9)).dst.tolist() == [1]


def test_parts_in_their_numbers_order_and_times_of_one_kind(tmp_path) -> None:
    (tmp_path / "x").mkdir()
    for part in range(12):
        pa_parquet.write_table(pa.table({"f": [float(part)]}), tmp_path / "x" / f"part.{part}.parquet")
    chunk = nodes(read(tmp_path, features=str(tmp_path / "x")))
    assert chunk.feature[:, 0].tolist() == list(range(12))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.csv").write_text("src,dst,t\n0,1,1717113600\n")
    (tmp_path / "t" / "b.csv").write_text("src,dst,t\n1,2,2024-05-31T00:00:02\n")
    with pytest.raises(DataError, match=r"b\.csv: line 2: column 't': expected whole numbers as before"):
        list(EdgeListGraph(tmp_path / "t", EdgeListOptions(time="t")).edges(9))


def test_lists_of_words_are_no_features(tmp_path) -> None:
    table = {"id": [0, 1], "tags": [["a"], ["b", "c"]], "x": [1.0, 2.0]}
    pa_parquet.write_table(pa.table(table), tmp_path / "n.parquet")
    chunk = nodes(read(tmp_path, edges="src,dst\n0,1\n", nodes=str(tmp_path / "n.parquet")))
    assert chunk.feature.tolist() == [[1], [2]]
    with pytest.raises(DataError, match="expected lists of numbers, found list"):
        _ = read(tmp_path, edges="src,dst\n0,1\n", nodes=str(tmp_path / "n.parquet"), feature_columns=("tags",)).info


def test_many_columns_of_text_are_found_at_once(tmp_path, monkeypatch) -> None:
    from graphmill.storage.importers.tables.node_columns import NodeFile

    parses = []
    whole = NodeFile._feature_columns
    monkeypatch.setattr(NodeFile, "_feature_columns", lambda self, kinds: parses.append(1) or whole(self, kinds))
    names = [f"c{number}" for number in range(50)]
    text = "\n".join([",".join(names), *(",".join(f"w{row}" for _ in names) for row in range(4))]) + "\n"
    assert nodes(read(tmp_path, text, features="n.csv", node_header=True)).feature.shape == (4, 200)
    assert len(parses) <= 3


def test_the_last_field_is_blamed_where_it_is_empty(tmp_path) -> None:
    with pytest.raises(DataError, match="line 3: column 'dst': expected a value, found an empty field"):
        list(read(tmp_path, edges="src,dst\n0,1.0\n1,\n").edges(9))


def test_an_index_beside_the_id_of_a_typed_table(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("index,id,x\n0,7,1\n1,5,2\n")
    (tmp_path / "graph.yaml").write_text("nodes: {a: {file: a.csv, id: id, features: [x]}}\n")
    (chunk,) = typed_tables(tmp_path).nodes["a"].nodes(9)
    assert (chunk.original_id.tolist(), chunk.feature[:, 0].tolist()) == ([5, 7], [2, 1])


def test_options_of_another_kind_of_source_are_refused() -> None:
    for source in ("graph.yaml", "cora", "a.npz"):
        with pytest.raises(ConfigError, match="edge_list: expected a table of edges as the source"):
            IngestConfig(source=source, url="out", edge_list=EdgeListOptions(weight="w"))


def test_names_of_columns_are_no_triple(tmp_path) -> None:
    (tmp_path / "train.txt").write_text("head\trelation\ttail\na\tr\tb\n")
    with pytest.raises(DataError, match="line 1: expected a triple, found names of columns"):
        read_triples(tmp_path)


def test_parts_of_molecules_have_the_same_columns(tmp_path) -> None:
    for name, columns in (("a", ["smiles", "homo", "gap"]), ("b", ["smiles", "gap", "homo"])):
        values = [["C"], [1.0], [2.0]]
        pa_parquet.write_table(pa.table(dict(zip(columns, values, strict=True))), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: expected the columns of .*a\.parquet, smiles, homo, gap"):
        list(SmilesTable(str(tmp_path / "*.parquet"), SmilesOptions(targets=("homo", "gap"))).chunks(9))


def test_a_split_beside_molecules_is_theirs_and_prices_are_no_ids(tmp_path) -> None:
    (tmp_path / "m.csv").write_text("smiles, y,split\nC,1,test\nCC,2,train\nCCC,3,valid\n")
    table = SmilesTable(str(tmp_path / "m.csv"))
    (chunk,) = table.chunks(9)
    assert (chunk.split.tolist(), table.info.target_names) == ([3, 1, 2], ("y",))
    (tmp_path / "p.csv").write_text('smiles,price\nC,"1,234"\nCC,"2,345"\n')
    assert SmilesTable(str(tmp_path / "p.csv")).info.id_kind is None


def test_split_words_in_capitals(tmp_path) -> None:
    text = "id,split\n0,Train\n1,VAL\n2,Test\n3,\n"
    np.testing.assert_array_equal(nodes(read(tmp_path, text, splits="n.csv", num_nodes=4)).split[:, 0], [1, 2, 3, 0])


def test_masks_are_no_codes_in_arrays() -> None:
    masks = np.eye(3, dtype=np.int64)
    with pytest.raises(DataError, match="got three columns of 0 and 1, which are masks"):
        ArrayGraph("a", 3, np.array([0, 1]), np.array([1, 2]), split=masks)
    parts = dict(zip(("train", "valid", "test"), masks.astype(bool), strict=True))
    assert ArrayGraph("a", 3, np.array([0, 1]), np.array([1, 2]), split=parts).split[:, 0].tolist() == [1, 2, 3]


def test_parts_whose_numbers_pandas_wrote_in_two_ways(tmp_path) -> None:
    (tmp_path / "n").mkdir()
    parts = (
        {"id": [0, 1], "x": pa.array([1, 2])},
        {"id": [2, 3], "x": pa.array([None, 4.5])},
        {"id": [4], "x": pa.nulls(1)},
    )
    for number, columns in enumerate(parts):
        pa_parquet.write_table(pa.table(columns), tmp_path / "n" / f"part-{number}.parquet")
    chunk = nodes(read(tmp_path, nodes=str(tmp_path / "n")))
    assert chunk.feature.tolist() == [[1, 0], [2, 0], [2.5, 1], [4.5, 0], [2.5, 1]]


def test_truth_values_are_targets_of_molecules(tmp_path) -> None:
    (tmp_path / "m.csv").write_text("smiles,active\nC,True\nCC,false\nCCC,\n")
    table = SmilesTable(str(tmp_path / "m.csv"))
    (chunk,) = table.chunks(9)
    np.testing.assert_array_equal(chunk.target[:, 0], [1, 0, np.nan])
    assert table.info.target_names == ("active",)


def test_several_numbers_with_a_drawn_split(tmp_path) -> None:
    text = "id,f1,f2\n" + "".join(f"{i},{i}.5,{2 * i}.25\n" for i in (3, 2, 1, 0))
    graph = read(tmp_path, text, nodes="n.csv", label_columns=("f1", "f2")).with_split(
        SplitOptions(shares=(0.5, 0.25, 0.25))
    )
    chunk = nodes(graph)
    assert chunk.label.tolist() == [[i + 0.5, 2 * i + 0.25] for i in range(4)]
    assert sorted(chunk.split[:, 0].tolist()) == [1, 1, 2, 3]


def test_a_misspelt_column_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match="expected one column 'churnd', found id, churned"):
        read(tmp_path, "id,churned\n0,yes\n1,no\n2,no\n3,yes\n", nodes="n.csv", label_columns=("churnd",))


def test_a_line_with_a_named_column_is_a_header(tmp_path) -> None:
    graph = read(tmp_path, "name,age,churned\na,3,yes\nb,4,no\n", "src,dst\na,b\n", nodes="n.csv", id_column="name")
    assert nodes(graph).string_id.to_pylist() == ["a", "b"]


def test_yes_and_no_are_answers(tmp_path) -> None:
    text = "id,a,b\n0,yes,no\n1,No,\n2,no,YES\n3,yes,yes\n"
    chunk = nodes(read(tmp_path, text, nodes="n.csv", label_columns=("a", "b"), label_kind="several"))
    assert chunk.label.tolist() == [[1, 0], [0, -1], [0, 1], [1, 1]]
    with pytest.raises(DataError, match="expected numbers, or yes and no in each of several labels, found 'maybe'"):
        _ = read(tmp_path, text.replace("No,", "maybe,"), nodes="n.csv", label_columns=("a", "b")).info
