"""Tests how columns become features, which facts about them the graph stores, and how later tables reuse these facts."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.jobs import ingest as ingest_job
from graphmill.jobs.config.config import NodeDataOptions
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.config.standard_columns import feature_names, standard_choice, with_standard_columns
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.importers.tables.typed_tables import typed_tables
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.splits.split_options import SplitOptions
from tests.job_in_process import output_of

COLUMNS = {
    "user": ["u1", "u2", "u3", "u4"],
    "country": ["NA", "DE", None, "FR"],
    "age": [30.0, None, 50.0, 99.0],
    "plan": [1, 2, 1, 3],
    "active": [True, False, True, True],
    "signup": pa.array([0, 1, 2, 3], pa.timestamp("s")),
    "venue": ["kdd", "www", None, "kdd"],
    "split": ["train", "train", "train", "test"],
}


def write(folder, columns=COLUMNS, name="nodes.parquet"):
    pa_parquet.write_table(pa.table(columns), folder / name)
    pa_parquet.write_table(pa.table({"from": ["u1", "u2"], "to": ["u2", "u3"]}), folder / "edges.parquet")
    return str(folder / name)


def read(folder, **options) -> EdgeListGraph:
    return EdgeListGraph(folder / "edges.parquet", EdgeListOptions(**options))


def test_a_warehouses_table(tmp_path) -> None:
    path = write(tmp_path)
    graph = read(tmp_path, nodes=path, id_column="user", categories=("plan",), label_columns=("venue",))
    (nodes,) = graph.nodes(9)
    assert nodes.string_id.to_pylist() == COLUMNS["user"]
    assert graph.info.class_names == ("kdd", "www")
    assert nodes.label.tolist() == [0, 1, -1, 0]
    np.testing.assert_array_equal(
        # learnt from the training rows: the countries DE and NA (not a missing value), the mean of 30 and 50, the plans 1 and 2
        nodes.feature,
        [[0, 1, 30, 0, 1, 0, 1], [1, 0, 40, 1, 0, 1, 0], [0, 0, 50, 0, 1, 0, 1], [0, 0, 99, 0, 0, 0, 1]],
    )
    became = {role.column: (role.role, role.nulls, role.became) for role in graph.roles}
    assert became["country"] == ("feature", "1", "2 categories, 1 fields of others")
    assert became["age"] == ("feature", "1", "number, a hole is 40 and 1 in a feature of its own")
    assert became["plan"] == ("feature", "0", "2 categories, 1 fields of others")
    assert became["signup"] == ("none", "", "not read")
    assert became["venue"] == ("label", "1", "2 classes: kdd, www")
    assert became["split"] == ("split", "0", "train 3, valid 0, test 1")
    assert became["from"][0] == "source"


def test_the_manifest_keeps_what_was_learnt_and_later_tables_are_read_by_it(tmp_path) -> None:
    path = write(tmp_path)
    options = {"nodes": path, "id_column": "user", "label_columns": ("venue",)}
    manifest = ingest(read(tmp_path, **options), str(tmp_path / "graph"))
    assert open_graph(str(tmp_path / "graph")).manifest.feature_columns == manifest.feature_columns
    assert [column.name for column in manifest.feature_columns] == ["country", "age", "plan", "active"]
    told = with_standard_columns(Inputs(), [manifest], NodeDataOptions(standardise="yes"))
    assert standard_choice(told).startswith(
        "6 columns of features to mean 0 and deviation 1 (country DE: mean 0.3333, "
    )
    assert told.standard_names == ("country DE", "country NA", "age")
    assert feature_names(manifest.feature_columns)[3:] == ["age is empty", "plan", "active"]
    text = manifest.to_json()
    for wrong in (text.replace('"width": 2', '"width": 3', 1), text.replace('"kind": "number"', '"kind": "word"', 1)):
        with pytest.raises(FormatError, match="feature_columns"):
            parse_manifest(wrong, "here")
    later = {
        "age": [None, 70.0, 20.0, 1.0],
        "new": [1, 2, 3, 4],
        "active": [True, True, False, True],
        "plan": [9, None, 1, 2],
        "country": ["DE", "IT", "NA", None],
        "user": ["v1", "u2", "u1", "u3"],
        "venue": ["www", None, None, "kdd"],
    }
    path = write(tmp_path, later, "later.parquet")
    graph = read(tmp_path, **{**options, "nodes": path}, features_as=str(tmp_path / "graph"))
    (nodes,) = graph.nodes(9)
    assert nodes.feature[:, :4].tolist() == [[1, 0, 40, 1], [0, 0, 70, 0], [0, 1, 20, 0], [0, 0, 1, 0]]
    assert nodes.feature[:, 4:].tolist() == [[9, 1], [np.float32(4 / 3), 1], [1, 0], [2, 1]]
    assert nodes.label.tolist() == [1, -1, -1, 0]
    roles = {role.column: role.became for role in graph.roles}
    assert roles["new"] == "not read"
    assert roles["country"] == "2 categories, 1 fields of others"
    for change, match in (({"age": None}, "expected the columns age, as in the graph"), ({"venue": ["x"] * 4}, "expected the classes kdd, www, found 'x'")):  # fmt: skip
        wrong = {name: values for name, values in {**later, **change}.items() if values is not None}
        path = write(tmp_path, wrong, "wrong.parquet")
        with pytest.raises(DataError, match=match):
            _ = read(tmp_path, **{**options, "nodes": path}, features_as=str(tmp_path / "graph")).info


def test_a_graph_of_an_array_has_learnt_nothing(tmp_path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n")
    np.save(tmp_path / "x.npy", np.eye(2))
    ingest(
        EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(features=str(tmp_path / "x.npy"))), str(tmp_path / "graph")
    )
    with pytest.raises(ConfigError, match="features_as: expected a graph whose features came from a table"):
        EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(features_as=str(tmp_path / "graph")))


@pytest.mark.parametrize(("most", "kind", "width"), [(3, "categories", 3), (2, "hashed", 2), (1, "hashed", 1)])
def test_one_hot_up_to_a_bound_and_hashed_above(tmp_path, most, kind, width) -> None:
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "x.csv").write_text("color\nred\ngreen\nblue\nred\n")
    graph = EdgeListGraph(
        tmp_path / "e.csv", EdgeListOptions(features=str(tmp_path / "x.csv"), most_categories=most, node_header=True)
    )
    (nodes,) = graph.nodes(9)
    (column,) = graph.info.feature_columns
    assert (column.kind, column.width) == (kind, width)
    assert nodes.feature.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert nodes.feature[0].tolist() == nodes.feature[3].tolist()


def test_an_embedded_column_is_one_number_of_a_category(tmp_path, monkeypatch) -> None:
    """The sorted values of the training rows, which may be numbers, get 1, 2 …. An empty field, or a value that no training row has, gets 0."""
    path = write(tmp_path)
    options = {"nodes": path, "id_column": "user", "label_columns": ("venue",), "categories": ("active",)}
    graph = read(tmp_path, **options, embedding_columns=("country", "plan"))
    (nodes,) = graph.nodes(9)
    assert nodes.feature[:, 0].tolist() == [2, 1, 0, 0]
    assert nodes.feature[:, 3].tolist() == [1, 2, 1, 0]
    became = {role.column: role.became for role in graph.roles}
    assert became["country"] == "2 categories, each a trainable row, 1 fields of others"
    kept = ingest(graph, str(tmp_path / "graph"), IngestOptions(num_partitions=1)).feature_columns
    assert [(own.kind, own.width, own.values) for own in (kept[0], kept[2])] == [
        ("embedded", 1, ("DE", "NA")),
        ("embedded", 1, ("1", "2")),
    ]
    (again,) = read(tmp_path, **options, features_as=str(tmp_path / "graph")).nodes(9)
    np.testing.assert_array_equal(again.feature, nodes.feature)
    with pytest.raises(
        ConfigError, match=r"feature_dtype: expected float32, .* of 'country', got float16; leave it out"
    ):
        ingest(graph, str(tmp_path / "half"), IngestOptions(num_partitions=1, feature_dtype="float16"))
    with pytest.raises(
        ConfigError, match=r"those of the graph of features_as; leave --edge-list.embedding-columns out"
    ):
        read(tmp_path, **options, features_as=str(tmp_path / "graph"), embedding_columns=("country",))
    with pytest.raises(ConfigError, match=r"categories: expected columns of features of .*, got 'venue'"):
        read(tmp_path, **options, embedding_columns=("venue",))
    monkeypatch.setattr("graphmill.storage.importers.columns.feature_table._MOST_EMBEDDED", 1)
    with pytest.raises(DataError, match=r"column 'country': expected at most 1 categories.*, found 2; take it out of"):
        _ = read(tmp_path, **options, embedding_columns=("country",)).info


def test_types_of_tables_have_the_same_rules(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("key,city,size,kind\n7,Rome,1,x\n5,,,y\n6,Oslo,3,x\n")
    (tmp_path / "graph.yaml").write_text("nodes: {a: {file: a.csv, id: key, label: kind, features: [city, size]}}\n")
    (nodes,) = (source := typed_tables(tmp_path).nodes["a"]).nodes(9)
    np.testing.assert_array_equal(nodes.feature, [[0, 0, 2, 1], [1, 0, 3, 0], [0, 1, 1, 0]])
    assert (nodes.label.tolist(), source.info.class_names) == ([1, 0, 0], ("x", "y"))
    assert [role[3:] for role in source.roles[1:3]] == [
        ("feature", "1", "2 categories"),
        ("feature", "1", "number, a hole is 2 and 1 in a feature of its own"),
    ]


FORMS = ("nodes", "features", "typed", "typed features", "typed plain")


def tables(folder, form: str, ending: str, rows: pa.Table, features_as: str | None = None):
    """Makes a source from these rows, with or without a column `split`, in one of the forms that node tables may have."""
    folder.mkdir()
    write = (lambda table, path: pa_csv.write_csv(table, path)) if ending == ".csv" else pa_parquet.write_table
    ids, has_split = rows["id"], "split" in rows.column_names
    names = [name for name in rows.column_names if name not in ("id", "split")]
    write(rows, folder / f"n{ending}")
    write(rows.select(["id", *names]).take(list(range(len(rows)))[::-1]), folder / f"x{ending}")
    write(pa.table({"src": ids, "dst": ids}), folder / f"e{ending}")
    if "typed" not in form:
        only = {"id_column": "id", "features_as": features_as}
        learns = {} if features_as else {"most_categories": 4, "embedding_columns": ("shop",)}
        if form == "nodes":
            options = EdgeListOptions(nodes=str(folder / f"n{ending}"), **only, **learns)
        else:
            files = {"ids": f"n{ending}", "features": f"x{ending}"} | ({"splits": f"n{ending}"} if has_split else {})
            files = {role: str(folder / name) for role, name in files.items()}
            said = ("split",) if has_split else ()
            options = EdgeListOptions(**files, **only, **learns, split_columns=said, node_header=True)
        return EdgeListGraph(folder / f"e{ending}", options)
    features = f"x{ending}" if "features" in form else f"[{', '.join(names)}]"
    text = (
        f"nodes:\n  a: {{file: n{ending}, id: id, features: {features}, most_categories: 4, embedding_columns: [shop]"
    )
    text += f"{', split: split' if has_split else ''}}}\n  b: {{count: 2}}\n"
    text = text.replace("  b: {count: 2}\n", "") if "plain" in form else text
    text += f"edges:\n  - {{source: a, relation: to, target: a, file: e{ending}}}\n"
    (folder / "graph.yaml").write_text(text + (f"features_as: {features_as}\n" if features_as else ""))
    return typed_tables(folder)


def features_of(source, ids: list[str]) -> np.ndarray:
    (chunk,) = (source.nodes["a"] if hasattr(source, "relations") else source).nodes(999)
    found = chunk.string_id.to_pylist()
    return chunk.feature[[found.index(each) for each in ids]]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_a_later_table_is_as_if_stored_with_the_first(tmp_path, form, ending) -> None:
    """If the training rows are the same, then new words, missing values, and another order of columns do not change any feature."""
    rng = np.random.default_rng(0)

    def drawn(first: int, count: int, words: str) -> dict[str, list]:
        some = lambda: [None if rng.random() < 0.2 else f"{rng.choice([*words])}" for _ in range(count)]  # noqa: E731
        return {
            "id": [f"n{first + row}" for row in range(count)],
            "colour": some(),
            "shop": some(),
            "size": [None if rng.random() < 0.3 else float(size) for size in rng.normal(size=count).round(3)],
            "whole": rng.integers(0, 9, count).tolist(),
            "code": [f"c{code}" for code in rng.integers(0, 12, count)],
        }

    own, later = drawn(0, 30, "xyz"), drawn(30, 20, "wxyv")
    train = {"split": ["train"] * 30}
    ingest(tables(tmp_path / "own", form, ending, pa.table(own | train)), url := str(tmp_path / "stored"))
    both = {name: own[name] + later[name] for name in own} | {"split": ["train"] * 30 + ["none"] * 20}
    wanted = features_of(tables(tmp_path / "both", form, ending, pa.table(both)), later["id"])
    source = tables(tmp_path / "later", form, ending, pa.table(later).select([*reversed(own)]), url)
    np.testing.assert_array_equal(features_of(source, later["id"]), wanted)
    kept = open_graph(url).manifest.node_types[("a", "node")["typed" not in form or "plain" in form]].feature_columns
    assert [column.name for column in kept] == ["colour", "shop", "size", "whole", "code"]
    assert (source.nodes["a"] if "typed" in form else source).info.feature_columns == kept


def test_later_types_are_the_earlier_ones(tmp_path) -> None:
    """A type that the earlier typed graph lacks is refused with a one-line error. The YAML file may omit columns. Types and relations keep their order."""
    (tmp_path / "a.csv").write_text("key,city,size,kind\n7,Rome,1,x\n5,,,y\n6,Oslo,3,x\n")
    (tmp_path / "e.csv").write_text("src,dst\n0,5\n1,7\n")
    a = "{file: a.csv, id: key, label: kind, features: [city, size]}"
    edges = [f"{{source: {ends[0]}, relation: r{ends}, target: {ends[1]}, file: e.csv}}" for ends in ("ba", "ca")]

    def read(earlier: str = "", types=(("a", a), ("b", "{count: 2}"), ("c", "{count: 2}")), edges=edges, **said):
        nodes = "".join(f"  {name}: {text}\n" for name, text in types)
        text = f"nodes:\n{nodes}edges: [{', '.join(edges)}]\n"
        (tmp_path / "graph.yaml").write_text(text + (f"features_as: {earlier}\n" if earlier else ""))
        return typed_tables(tmp_path, **said)

    ingest(first := read(), str(tmp_path / "stored"), IngestOptions(num_partitions=1))
    bare = "{file: a.csv, id: key}"
    later = read("stored", [("c", "{count: 1}"), ("a", bare), ("b", "{count: 2}")], edges[::-1])
    assert ([*later.nodes], [*later.relations]) == ([*first.nodes], [*first.relations])
    for ours, theirs in zip(later.nodes["a"].nodes(9), first.nodes["a"].nodes(9), strict=True):
        np.testing.assert_array_equal(ours.feature, theirs.feature)
    (tmp_path / "text.csv").write_text("key,city,size\n1,Rome,big\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    for text, match in (
        ("{file: a.csv, id: key, features: [size]}", "a.csv: expected the columns city, size, as in the graph of features_as, found size"),
        ("{file: e.csv, id: src}", "e.csv: expected the columns city, size, as in the graph of features_as, found src, dst"),
        ("{file: a.csv, id: key, embedding_columns: [city]}", "a.csv: column 'city': expected categories, as in the graph"),
        ("{file: a.csv, id: key, categories: [size]}", "a.csv: column 'size': expected number, as in the graph of features_as, got another"),
        ("{count: 3}", "a: expected the columns city, size, as in the graph of features_as, found no features"),
        ("{features: x.npy}", "a: expected the columns city, size, as in the graph of features_as, found 2 features"),
        ("{file: text.csv, id: key}", "text.csv: column 'size': expected numbers, found string"),
        ("{file: a.csv, id: key, label: city}", "a.csv: column 'city': expected the classes x, y, found 'Oslo'"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=match):
            read("stored", [("a", text)], [])
    for types, match in (
        ([("d", bare)], "graph.yaml: expected types among a, b, c, as in the graph of features_as, got d"),
        (
            [("b", "{file: a.csv, id: key, features: [size]}")],
            "b: expected no features, as in .* found columns of a table",
        ),
    ):
        with pytest.raises((ConfigError, DataError), match=match):
            read("stored", types, [])
    with pytest.raises(
        ConfigError, match=r"features_as: expected one earlier graph, got .*stored there and other; leave"
    ):
        read("stored", features_as="other")
    assert read("stored", features_as=str(tmp_path / "stored")).nodes.keys() == first.nodes.keys()


def test_a_drawn_split_of_a_type_says_what_is_learnt(tmp_path) -> None:
    (tmp_path / "a.csv").write_text(
        "key,city,label,part\n" + "".join(f"{i},city {i},{i % 2},{i % 3 + 1}\n" for i in range(20))
    )
    for more in ("", "b: {count: 2}, "):
        text = f"nodes: {{{more}a: {{file: a.csv, id: key, label: label, features: [city]}}}}\n"
        (tmp_path / "graph.yaml").write_text(
            text + "edges: [{source: a, relation: to, target: a, file: a.csv, src: key, dst: key}]\n"
        )
        options = IngestOptions(num_partitions=1, overwrite=True, split=SplitOptions(shares=(0.5, 0.25, 0.25)))
        ingest(typed_tables(tmp_path), str(tmp_path / "graph"), options)
        (nodes,) = (
            (part for part in open_graph(str(tmp_path / "graph")).nodes("a").partitions())
            if more
            else open_graph(str(tmp_path / "graph")).partitions()
        )
        trains = nodes.original_id[nodes.split[0] == 1]
        row = open_graph(str(tmp_path / "graph")).manifest.node_types["a" if more else "node"]
        assert row.feature_columns[0].values == tuple(sorted(f"city {i}" for i in trains))
    (tmp_path / "graph.yaml").write_text(
        (tmp_path / "graph.yaml").read_text().replace("features", "split: part, features")
    )
    with pytest.raises(ConfigError, match=r"split: expected .* or the splits of a in a.csv, got both"):
        ingest(typed_tables(tmp_path), str(tmp_path / "graph"), options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"label_columns": ("y",)}, "label_columns: expected a table, --edge-list.labels or --edge-list.nodes"),
        ({"nodes": "x.npy"}, "nodes: expected a table"),
        ({"features": "x.npy", "categories": ("f",)}, "categories: expected columns of features of x.npy, none, got 'f'"),
        ({"embedding_columns": ("f",)}, "categories: expected a table of features, .* got none; leave the columns f out"),
        ({"features": "mixed.csv"}, r"mixed.csv: line 3: column 'f': expected numbers, found 'two'; .*--edge-list.categories"),
        ({"labels": "mixed.csv"}, r"line 3: column 'f': expected numbers, found 'two', beside numbers; .*label-kind class"),
        ({"labels": "mixed.csv", "label_kind": "number"}, "expected numbers, found 'two'; label_kind is number"),
        ({"features": "mixed.csv", "feature_columns": ("g",)}, "expected one column 'g', found f"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(tmp_path, monkeypatch, options, match) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "mixed.csv").write_text("f\n1\ntwo\n")
    np.save(tmp_path / "x.npy", np.eye(2))
    with pytest.raises((ConfigError, DataError), match=match) as caught:
        _ = EdgeListGraph("e.csv", EdgeListOptions(**options)).info
    assert "\n" not in str(caught.value)


def test_times_of_text_and_ids_written_as_floats(tmp_path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,when\n0.0,1,2024-05-31\n1,2.0,2024-05-31T00:00:01+00:00\n")
    graph = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(time="when"))
    (edges,) = graph.edges(9)
    assert (edges.src.tolist(), edges.dst.tolist()) == ([0, 1], [1, 2])
    assert np.diff(edges.time).tolist() == [1_000_000]
    (tmp_path / "e.csv").write_text("src,dst,when\n0,1,5\n1,2,6.0\n")
    (edges,) = EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(time="when")).edges(9)
    assert edges.time.tolist() == [5, 6]
    (tmp_path / "e.csv").write_text("src,dst,when\n0,1,5\n1,2,tomorrow\n")
    with pytest.raises(DataError, match="line 3: column 'when': expected whole numbers, or dates as 2024-05-31"):
        list(EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(time="when")).edges(9))


def test_ingestion_prints_the_roles(tmp_path) -> None:
    write(tmp_path)
    words = [
        "edges.parquet",
        "graph",
        "--partitions",
        "1",
        "--edge-list.nodes",
        "nodes.parquet",
        "--edge-list.id-column",
        "user",
    ]
    said = output_of(ingest_job.main, *words, cwd=tmp_path)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "file column type role nulls became" in lines
    assert "nodes.parquet signup timestamp[ms] none not read" in lines
    assert "nodes.parquet user string id 4 nodes" in lines


@pytest.mark.parametrize("where", ["memory", "folder with two kinds", "folder without tables", "other columns"])
def test_places_and_parts(tmp_path, where) -> None:
    if where == "memory":
        import fsspec

        with (
            fsspec.open("memory://tables/part-0.csv.gz", "wb") as stream,
            pa.CompressedOutputStream(stream, "gzip") as packed,
        ):
            packed.write(b"src,dst\n0,1\n1,2\n")
        with (
            fsspec.open("memory://tables/part-1.csv.gz", "wb") as stream,
            pa.CompressedOutputStream(stream, "gzip") as packed,
        ):
            packed.write(b"src,dst\n2,3\n")
        for path in ("memory://tables", "memory://tables/part-*.csv.gz"):
            graph = EdgeListGraph(path)
            assert [chunk.dst.tolist() for chunk in graph.edges(9)] == [[1, 2], [3]]
        return
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "_SUCCESS").touch()
    match = "no such file"
    if where != "folder without tables":
        (tmp_path / "e" / "a.csv").write_text("src,dst\n0,1\n")
    if where == "folder with two kinds":
        pa_parquet.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "e" / "b.parquet")
        match = "expected part files of one kind, found a.csv and others"
    if where == "other columns":
        (tmp_path / "e" / "b.csv").write_text("dst,src\n0,1\n")
        match = r"b\.csv: expected the columns of .*a\.csv, src, dst, found dst, src"
    with pytest.raises(DataError, match=match):
        list(EdgeListGraph(tmp_path / "e").edges(9))


def test_what_is_learnt_is_learnt_of_the_split_that_is_drawn(tmp_path) -> None:
    """A mean over validation and test rows would leak information about these rows to the model."""
    ages = [None, *range(1, 40)]
    columns = {"user": [f"u{i}" for i in range(40)], "age": ages, "venue": ["a", "b"] * 20}
    graph = read(tmp_path, nodes=write(tmp_path, columns), id_column="user", label_columns=("venue",))
    options = IngestOptions(num_partitions=1, split=SplitOptions(shares=(0.5, 0.25, 0.25), by="label"))
    manifest = ingest(graph, str(tmp_path / "graph"), options)
    part = open_graph(str(tmp_path / "graph")).partition(0)
    age, hole = part.feature.T
    trains = (part.split[0] == 1) & (hole == 0)
    assert (part.split[0] == 1).sum() == 20
    assert manifest.feature_columns[0].mean == pytest.approx(age[trains].mean())
    assert age[hole == 1].tolist() == [np.float32(manifest.feature_columns[0].mean)]
    both = read(tmp_path, nodes=write(tmp_path, columns | {"split": ["train", "test"] * 20}), id_column="user")
    with pytest.raises(ConfigError, match=r"or the splits in .*nodes\.parquet, got both"):
        ingest(both, str(tmp_path / "both"), options)
