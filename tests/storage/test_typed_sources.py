"""Tests sources of typed graphs: PyG's and DGL's objects, tables that a YAML file names, ogbn-mag's raw files, and the synthetic graph."""

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import open_graph, source_ids
from graphmill.storage.importers.memory.from_dgl import typed_dgl_graph
from graphmill.storage.importers.memory.from_pyg import pyg_graph, typed_pyg_graph
from graphmill.storage.importers.public.ogb_mag import ogb_mag
from graphmill.storage.importers.tables.typed_tables import typed_tables
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.synthetic.mag_like import RELATIONS, TYPES, SyntheticMagOptions, synthetic_mag
from tests.listed_graph import TypedLists, stored_lists

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")


def ingested(source: TypedSource, folder: Path, **options) -> TypedLists:
    ingest(source, str(folder / "graph"), IngestOptions(num_partitions=2, overwrite=True, **options))
    graph = open_graph(str(folder / "graph"))
    graph.verify()
    return stored_lists(graph)


# PyG and DGL


@pytest.fixture
def hetero_data():
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["paper"].x = torch.arange(12.0).reshape(4, 3)
    data["paper"].y = torch.tensor([0, 2, 1, -1])
    for code, part in enumerate(("train", "val", "test")):
        data["paper"][f"{part}_mask"] = torch.arange(4) == code
    data["author"].num_nodes = 3
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 2, 2, 0], [3, 1, 0, 1]])
    data["author", "writes", "paper"].edge_weight = torch.tensor([0.5, 1.0, 2.0, 4.0])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1, 2], [0, 0]])
    data["paper", "cites", "paper"].edge_attr = torch.tensor([7.0, 8.0])
    return data


def check_hetero(lists: TypedLists, feature_of_cites) -> None:
    assert lists.nodes["paper"] == {
        0: ((0.0, 1.0, 2.0), 0, (1,)),
        1: ((3.0, 4.0, 5.0), 2, (2,)),
        2: ((6.0, 7.0, 8.0), 1, (3,)),
        3: ((9.0, 10.0, 11.0), -1, (0,)),
    }
    assert lists.nodes["author"] == dict.fromkeys(range(3), (None, None, None))
    assert lists.edges == {
        WRITES: {
            0: [(2, None, 2.0, None)],
            1: [(0, None, 4.0, None), (2, None, 1.0, None)],
            2: [],
            3: [(0, None, 0.5, None)],
        },
        CITES: {
            0: [(1, None, None, feature_of_cites(7.0)), (2, None, None, feature_of_cites(8.0))],
            1: [],
            2: [],
            3: [],
        },
    }


def test_hetero_data(hetero_data, tmp_path: Path) -> None:
    check_hetero(ingested(typed_pyg_graph(hetero_data), tmp_path), lambda value: (value,))


def test_the_reverses_are_those_of_pyg(hetero_data, tmp_path: Path) -> None:
    """As in PyG's ToUndirected, a relation within one type gets reverses, and equal edges are summed. Any other relation NAME gets a relation rev_NAME."""
    transforms = pytest.importorskip("torch_geometric.transforms")
    of_pyg = ingested(typed_pyg_graph(transforms.ToUndirected()(hetero_data.clone())), tmp_path / "pyg")
    (tmp_path / "ours").mkdir()
    ours = ingested(typed_pyg_graph(hetero_data), tmp_path / "ours", undirected=True)
    assert ours == of_pyg
    assert Relation("paper", "rev_writes", "author") in ours.edges


def test_hetero_data_and_data_are_told_apart(hetero_data) -> None:
    with pytest.raises(DataError, match="take typed_pyg_graph for it"):
        pyg_graph(hetero_data)
    with pytest.raises(DataError, match="expected a HeteroData, got Data; take pyg_graph for it"):
        typed_pyg_graph(pytest.importorskip("torch_geometric.data").Data())
    del hetero_data["author", "writes", "paper"].edge_index
    with pytest.raises(DataError, match="author--writes--paper: expected edge_index, found none"):
        typed_pyg_graph(hetero_data)


def test_splits_by_rows_in_place_of_masks(hetero_data, tmp_path: Path) -> None:
    rows = {"paper": {"train": np.array([3]), "valid": np.array([0]), "test": np.array([1])}}
    lists = ingested(typed_pyg_graph(hetero_data, split_idx=rows), tmp_path)
    assert [lists.nodes["paper"][node][2] for node in range(4)] == [(2,), (3,), (0,), (1,)]
    by_part = {part: {"paper": of} for part, of in rows["paper"].items()}  # the form that OGB gives
    assert ingested(typed_pyg_graph(hetero_data, split_idx=by_part), tmp_path / "by_part").nodes == lists.nodes
    for wrong in ({"papers": rows["paper"]}, {"train": {"papers": [3]}}):
        with pytest.raises(DataError, match=r"split_idx: expected types of paper, author, got \['papers'\]"):
            typed_pyg_graph(hetero_data, split_idx=wrong)


def heterograph(data):
    """Wraps a `HeteroData` in an object with the methods of `dgl.DGLGraph` that the importer calls."""
    ends = {each: tuple(data[each].edge_index) for each in data.edge_types}
    paper = {"feat": data["paper"].x, "label": data["paper"].y}
    paper |= {f"{part}_mask": data["paper"][f"{part}_mask"] for part in ("train", "val", "test")}
    edges = {
        tuple(WRITES): SimpleNamespace(data={"w": data["author", "writes", "paper"].edge_weight[:, None]}),
        tuple(CITES): SimpleNamespace(data={"e": data["paper", "cites", "paper"].edge_attr}),
    }

    class Edges(dict):
        def __call__(self, etype):
            return ends[etype]

    return SimpleNamespace(
        ntypes=["author", "paper"],
        canonical_etypes=[tuple(WRITES), tuple(CITES)],
        num_nodes=lambda name: {"author": 3, "paper": 4}[name],
        nodes={"author": SimpleNamespace(data={}), "paper": SimpleNamespace(data=paper)},
        edges=Edges(edges),
    )


def test_a_dgl_heterograph(hetero_data, tmp_path: Path) -> None:
    graph = heterograph(hetero_data)
    check_hetero(ingested(typed_dgl_graph(graph, edge_weight="w", edge_feature="e"), tmp_path), lambda value: (value,))
    assert not typed_dgl_graph(graph).relations[WRITES].info.has_edge_weight
    with pytest.raises(DataError, match="no relation's edge data has 'weight'"):
        typed_dgl_graph(graph, edge_weight="weight")


def test_a_real_dgl_heterograph(hetero_data, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DGLBACKEND", "pytorch")  # otherwise the import writes a file to the home directory
    monkeypatch.setenv("DGL_BACKEND", "pytorch")
    dgl = pytest.importorskip("dgl")
    ends = {each: tuple(hetero_data[each].edge_index) for each in hetero_data.edge_types}
    graph = dgl.heterograph(ends, num_nodes_dict={"author": 3, "paper": 4})
    stand_in = heterograph(hetero_data)
    graph.nodes["paper"].data.update(stand_in.nodes["paper"].data)
    for each, edges in stand_in.edges.items():
        graph.edges[each].data.update(edges.data)
    check_hetero(ingested(typed_dgl_graph(graph, edge_weight="w", edge_feature="e"), tmp_path), lambda value: (value,))


# Tables

YAML = """\
nodes:
  paper: {file: papers.csv, id: paper_id, features: [x0, x1], label: venue, split: part}
  author: {file: authors.parquet, id: author_id, features: [embedding]}
  institution: {count: 3}
edges:
  - {source: author, relation: writes, target: paper, file: writes.csv, src: author, dst: paper, weight: share}
  - source: author
    relation: affiliated_with
    target: institution
    file: at.parquet
  - {source: paper, relation: cites, target: paper, file: cites.txt, undirected_once: true}
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "graph.yaml").write_text(YAML)
    rows = ["30,one,0.5,1,train", "10,zero,0.25,2,valid", "20,,0,3,test"]
    rows = [row.replace("one", "1").replace("zero", "0") for row in rows]
    (folder / "papers.csv").write_text("\n".join(["paper_id,venue,x0,x1,part", *rows]) + "\n")
    authors = {"author_id": [7, 5], "embedding": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}
    pa_parquet.write_table(pa.table(authors), folder / "authors.parquet")
    (folder / "writes.csv").write_text("author,paper,share\n5,10,0.5\n7,30,1\n7,10,0.25\n")
    pa_parquet.write_table(pa.table({"src": [7, 5], "dst": [2, 0]}), folder / "at.parquet")
    (folder / "cites.txt").write_text("# SNAP text\n30\t10\n20\t30\n")
    return folder


def test_tables(tables: Path, tmp_path: Path) -> None:
    expected = TypedLists(
        {
            "paper": {10: ((0.25, 2.0), 0, (2,)), 20: ((0.0, 3.0), -1, (3,)), 30: ((0.5, 1.0), 1, (1,))},
            "author": {5: ((4.0, 5.0, 6.0), None, None), 7: ((1.0, 2.0, 3.0), None, None)},
            "institution": dict.fromkeys(range(3), (None, None, None)),
        },
        {
            WRITES: {
                10: [(5, None, 0.5, None), (7, None, 0.25, None)],
                20: [],
                30: [(7, None, 1.0, None)],
            },
            Relation("author", "affiliated_with", "institution"): {
                0: [(5, None, None, None)],
                1: [],
                2: [(7, None, None, None)],
            },
            CITES: {
                10: [(30, None, None, None)],
                20: [(30, None, None, None)],
                30: [(10, None, None, None), (20, None, None, None)],
            },
        },
    )
    for source in (tables, tables / "graph.yaml", str(tables)):
        assert ingested(typed_tables(source), tmp_path) == expected
    # Features in a separate file are in the order of the table's rows.
    np.save(tables / "x.npy", np.array([[0.5, 1], [0.25, 2], [0, 3]], np.float32))
    (tables / "graph.yaml").write_text(YAML.replace("[x0, x1]", "x.npy"))
    assert ingested(typed_tables(tables), tmp_path) == expected


WRONG = {
    "no file": (None, "expected a YAML file that names node and edge tables, found none"),
    "empty": ("", "expected nodes and edges, found an empty file"),
    "no mapping": ("- 1", "line 1: expected names and values"),
    "broken": ("nodes: {paper: [", "cannot be read as YAML"),
    "no nodes": ("edges: []", "line 1: expected nodes, a table for each type, got 'none'"),
    "unknown part": (YAML + "graphs: 1\n", "line 12: expected one of nodes, edges, features_as, got 'graphs'"),
    "unknown key": (YAML.replace("label: venue", "lable: venue"), "line 2: expected one of file, id, string_ids, features, categories, most_categories, embedding_columns, label, label_kind, split, time, count, got 'lable'"),
    "a type twice": (YAML.replace("  institution:", "  author:"), "line 4: expected each name once, got 'author again'"),
    "a list as a label": (YAML.replace("label: venue", "label: [venue]"), "line 2: expected label: a single value, got 'a list'"),
    "no number": (YAML.replace("count: 3", "count: three"), "line 4: expected count: a whole number of at most 18 digits, got 'three'"),
    "no nodes of a type": (YAML.replace("count: 3", "count: 0"), "line 4: expected a count of at least 1, got 0"),
    "no categories": (YAML.replace("count: 3", "count: 3, most_categories: 0"), "line 4: expected most_categories of at least 1, got 0"),
    "nothing said of a type": (YAML.replace("{count: 3}", "{}"), "line 4: expected one of id, features, label, split, time and count for institution"),
    "no table": (YAML.replace("file: papers.csv, ", ""), "line 2: expected a file beside id, label, split, features, got 'none'"),
    "another kind of table": (YAML.replace("papers.csv", "papers.xlsx"), "line 2: expected a file ending in .parquet, .arrow"),
    "edges as names": (YAML.replace("edges:\n  - {source: author", "edges:\n    writes: {source: author").split("  - source")[0], "line 6: expected a list (- …)"),
    "no target": (YAML.replace("target: paper, file: writes", "file: writes"), "line 6: expected target beside source, relation, file, src, dst, weight, got 'none'"),
    "an unknown type": (YAML.replace("source: author, ", "source: venue, "), "line 6: expected types among paper, author, institution, got 'venue'"),
    "a relation twice": (YAML + "  - {source: paper, relation: cites, target: paper, file: cites.txt}\n", "line 12: expected each relation once"),
    "undirected between two types": (YAML.replace("weight: share", "undirected_once: true"), "line 6: expected undirected_once in a relation of one type"),
    "no truth value": (YAML.replace("undirected_once: true", "undirected_once: maybe"), "line 11: expected undirected_once: true or false, got 'maybe'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_yaml_file_is_refused_with_its_line(name: str, tables: Path) -> None:
    text, message = WRONG[name]
    if text is None:
        (tables / "graph.yaml").unlink()
    else:
        (tables / "graph.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        typed_tables(tables)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_TABLES = {
    "no file": ("papers.csv", None, "papers.csv: no such file"),
    "no edges": ("writes.csv", None, "writes.csv: no such file"),
    "a column too few": ("papers.csv", "paper_id,x0,x1,part\n1,1,1,train\n", "expected one column 'venue', found paper_id, x0, x1, part"),
    "no names": ("papers.csv", "1,2,3,4,5\n", "expected column names, found a row"),
    "numbers beside strings": ("papers.csv", "paper_id,venue,x0,x1,part\np1,1,1,1,train\n10,1,1,1,train\n", "writes.csv: line 3: expected one of the ids of paper, got '30'"),
    "an empty string": ("papers.csv", "paper_id,venue,x0,x1,part\np1,1,1,1,train\n,1,1,1,train\n", "line 3: column 'paper_id': expected a value, found an empty field"),
    "a string twice": ("papers.csv", "paper_id,venue,x0,x1,part\np1,1,1,1,train\np1,1,1,1,train\n", "papers.csv: line 3: column 'paper_id': expected each id once, found 'p1' twice"),
    "a string that no node has": ("authors.parquet", {"author_id": ["5", "6"], "embedding": [[1.0], [1.0]]}, "writes.csv: line 3: expected one of the ids of author, got '7'"),
    "numbers where nodes have strings": ("authors.parquet", {"author_id": ["5", "7"], "embedding": [[1.0], [1.0]]}, "at.parquet: column 'src': expected strings, as the nodes' ids are, found int64"),
    "a string twice in Parquet": ("authors.parquet", {"author_id": ["5", "5"], "embedding": [[1.0], [1.0]]}, "authors.parquet: row 2: column 'author_id': expected each id once, found '5' twice"),
    "an empty string in Parquet": ("authors.parquet", {"author_id": ["5", ""], "embedding": [[1.0], [1.0]]}, "authors.parquet: row 2: column 'author_id': expected an id, found an empty field"),
    "an id twice": ("papers.csv", "paper_id,venue,x0,x1,part\n4,1,1,1,train\n4,1,1,1,train\n", "'paper_id': expected each id once, found 4 twice"),
    "a negative id": ("papers.csv", "paper_id,venue,x0,x1,part\n-4,1,1,1,train\n", "'paper_id': expected ids from 0, found -4"),
    "numbers and text": ("papers.csv", "paper_id,venue,x0,x1,part\n4,1,1,1,train\n5,1,x,1,train\n", "line 3: column 'x0': expected numbers, found 'x'"),
    "an unknown split": ("papers.csv", "paper_id,venue,x0,x1,part\n4,1,1,1,dev\n", "splits must be none, train, valid, test, got 'dev'"),
    "an unknown source": ("writes.csv", "author,paper,share\n5,10,1\n6,10,1\n", "writes.csv: line 3: expected one of the ids of author, got 6"),
    "an unknown target": ("writes.csv", "author,paper,share\n5,11,1\n", "writes.csv: line 2: expected one of the ids of paper, got 11"),
    "a column of edges too few": ("writes.csv", "author,paper\n5,10\n", "expected one column each of author, paper, share, found author, paper; set src, dst, weight and time"),
    "a row too large": ("at.parquet", {"src": [7, 5], "dst": [2, 3]}, "row 2: expected an id of institution, 0 to 2, got 3"),
    "text in Parquet": ("at.parquet", {"src": ["a", "b"], "dst": [2, 1]}, "column 'src': expected integer ids, found string"),
    "lists of several lengths": ("authors.parquet", {"author_id": [1, 2], "embedding": [[1.0], [1.0, 2.0]]}, "expected lists of one length"),
    "an empty id": ("authors.parquet", {"author_id": [1, None], "embedding": [[1.0], [1.0]]}, "row 2: column 'author_id': expected an id, found an empty field"),
}  # fmt: skip


def test_string_ids_and_features_of_edges(tables: Path, tmp_path: Path) -> None:
    """Tests text, with rows that begin like comments, and Parquet. One of the names is a whole number."""
    (tables / "graph.yaml").write_text(
        """\
nodes:
  tag: {file: tags.csv, id: name, string_ids: true, features: [uses]}
  user: {file: users.parquet, id: user}
edges:
  - {source: user, relation: follows, target: tag, file: follows.csv, src: who, dst: what, features: [stars, days]}
  - {source: user, relation: knows, target: user, file: knows.parquet, features: vector, weight: w}
"""
    )
    (tables / "tags.csv").write_text("# all tags\nname,uses\n#python,3\n007,1\n%,0.5\n")
    pa_parquet.write_table(pa.table({"user": ["Zoë", "ann", "a,b"]}), tables / "users.parquet")
    (tables / "follows.csv").write_text('who,what,days,stars\nann,#python,2,5\n"a,b",%,4,1\nZoë,#python,8,0\n')
    knows = {"src": ["ann", "a,b"], "dst": ["Zoë", "Zoë"], "vector": [[1.0, 2.0], [3.0, 4.0]], "w": [7, 8]}
    pa_parquet.write_table(pa.table(knows), tables / "knows.parquet")
    ingest(typed_tables(tables), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    names = {name: source_ids(graph.nodes(name)).of(np.arange(3)).to_pylist() for name in graph.node_types}
    assert names == {"tag": ["#python", "007", "%"], "user": ["Zoë", "ann", "a,b"]}
    edges = {}
    for relation in graph.relations:
        for index in range(2):
            part = graph.relation(relation).partition(index)
            source = np.concatenate([graph.nodes(relation.source).original_id(p) for p in range(2)])[part.indices]
            of_target = names[relation.target]
            targets = np.repeat([of_target[i] for i in part.original_id], np.diff(part.indptr))
            for row, (end, target) in enumerate(zip(source, targets, strict=True)):
                edges[names[relation.source][end], str(target)] = tuple(part.edge_feature[row].tolist())
    assert edges == {
        ("ann", "#python"): (5, 2),
        ("a,b", "%"): (1, 4),
        ("Zoë", "#python"): (0, 8),
        ("ann", "Zoë"): (1, 2),
        ("a,b", "Zoë"): (3, 4),
    }
    with pytest.raises(FormatError, match="expected the permanent id of a node, got 3"):
        source_ids(graph.nodes("tag")).of(np.array([3]))


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_refused_in_one_line(name: str, tables: Path, tmp_path: Path) -> None:
    file, content, message = BAD_TABLES[name]
    if content is None:
        (tables / file).unlink()
    elif isinstance(content, dict):
        pa_parquet.write_table(pa.table(content), tables / file)
    else:
        (tables / file).write_text(content)
    with pytest.raises(DataError) as caught:
        ingested(typed_tables(tables), tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_of_different_lengths_are_refused(tables: Path) -> None:
    np.save(tables / "x.npy", np.zeros((4, 2), np.float32))
    (tables / "graph.yaml").write_text(YAML.replace("[x0, x1]", "x.npy"))
    with pytest.raises(
        DataError, match="paper: expected equally many rows of each column, found id 3, label 3, split 3, features 4"
    ):
        typed_tables(tables)


# ogbn-mag


def write_mag(folder: Path) -> dict[Relation, np.ndarray]:
    """Writes a small graph in OGB's raw layout. Returns the edges, [num_edges, 2]."""
    random = np.random.default_rng(3)
    counts = {"author": 9, "field_of_study": 3, "institution": 2, "paper": 7}

    def write(name: str, rows, header: str = "") -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            np.savetxt(file, np.asarray(rows), fmt="%s", delimiter=",", header=header, comments="")

    (folder / "RELEASE_v2.txt").parent.mkdir(parents=True)
    (folder / "RELEASE_v2.txt").touch()
    write("raw/num-node-dict.csv.gz", [list(counts.values())], ",".join(counts))
    write("raw/triplet-type-list.csv.gz", [list(each) for each in RELATIONS])
    edges = {}
    for relation in RELATIONS:
        pairs = random.integers(0, (counts[relation.source], counts[relation.target]), (12, 2))
        edges[relation] = pairs
        write(f"raw/relations/{'___'.join(relation)}/edge.csv.gz", pairs)
        write(f"raw/relations/{'___'.join(relation)}/edge_reltype.csv.gz", np.zeros((12, 1), int))
        write(f"raw/relations/{'___'.join(relation)}/num-edge-list.csv.gz", [[12]])
    write("raw/node-feat/paper/node-feat.csv.gz", np.arange(14).reshape(7, 2) / 4)
    write("raw/node-feat/paper/node_year.csv.gz", np.full((7, 1), 2017))
    write("raw/node-label/paper/node-label.csv.gz", np.arange(7)[:, None] % 4)
    for part, rows in {"train": [0, 1, 2, 6], "valid": [3], "test": [4, 5]}.items():
        write(f"split/time/paper/{part}.csv.gz", np.array(rows)[:, None])
    return edges


def test_ogbn_mags_layout(tmp_path: Path) -> None:
    pytest.importorskip("ogb")
    edges = write_mag(tmp_path / "ogbn_mag")
    lists = ingested(ogb_mag(tmp_path, download=False), tmp_path)
    assert list(lists.nodes) == ["author", "field_of_study", "institution", "paper"]
    assert [lists.nodes["paper"][node] for node in (0, 6)] == [((0.0, 0.25), 0, (1,)), ((3.0, 3.25), 2, (1,))]
    for relation, pairs in edges.items():
        found = Counter((edge[0], node) for node, row in lists.edges[relation].items() for edge in row)
        assert found == Counter(map(tuple, pairs.tolist()))


def test_ogbn_mag_that_is_not_whole(tmp_path: Path) -> None:
    pytest.importorskip("ogb")
    with pytest.raises(DataError, match=r"ogbn-mag is not at .* and downloading is off; download http.*mag.zip"):
        ogb_mag(tmp_path, download=False)
    write_mag(tmp_path / "ogbn_mag")
    (tmp_path / "ogbn_mag/raw/relations/author___writes___paper/edge.csv.gz").unlink()
    with pytest.raises(DataError, match=r"author___writes___paper/edge.csv.gz: no such file"):
        ogb_mag(tmp_path, download=False)
    (tmp_path / "ogbn_mag/RELEASE_v2.txt").unlink()
    with pytest.raises(DataError, match=r"not the current release of ogbn-mag, RELEASE_v2.txt missing"):
        ogb_mag(tmp_path, download=False)


# Synthetic


def test_the_synthetic_mag_has_its_shape(tmp_path: Path) -> None:
    options = SyntheticMagOptions(scale=0.001, feature_dim=8, num_classes=20)
    ingest(synthetic_mag(options), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    assert {name: graph.nodes(name).num_nodes for name in graph.node_types} == {
        name: round(n / 1000) for name, n in TYPES.items()
    }
    assert {each: graph.relation(each).num_edges for each in graph.relations} == {
        each: round(n / 1000) for each, n in RELATIONS.items()
    }
    papers = graph.nodes("paper").manifest
    assert (papers.feature_dim, papers.num_classes) == (8, 20)
    assert min(papers.measured.class_counts or ()) > 10
    assert [graph.nodes(name).manifest.feature_dim for name in ("author", "institution", "field_of_study")] == [0, 0, 0]
    cites = graph.relation(CITES).manifest.measured
    assert cites.splits[0].homophily == pytest.approx(0.5 * 0.9 * 0.9 + 0.03, abs=0.05)
    assert cites.in_degree.maximum > 10 * cites.in_degree.mean


def test_the_synthetic_mag_does_not_depend_on_chunks() -> None:
    source = synthetic_mag(SyntheticMagOptions(scale=0.0005, feature_dim=4))
    for part in (source, synthetic_mag(SyntheticMagOptions(scale=0.0005, feature_dim=4))):
        for relation, edges in part.relations.items():
            (whole,), pieces = source.relations[relation].edges(1 << 20), list(edges.edges(7))
            np.testing.assert_array_equal(whole.src, np.concatenate([piece.src for piece in pieces]))
            np.testing.assert_array_equal(whole.dst, np.concatenate([piece.dst for piece in pieces]))
        (whole,), pieces = source.nodes["paper"].nodes(1 << 20), list(part.nodes["paper"].nodes(5))
        np.testing.assert_array_equal(whole.feature, np.concatenate([piece.feature for piece in pieces]))
        np.testing.assert_array_equal(whole.label, np.concatenate([piece.label for piece in pieces]))
    other = next(synthetic_mag(SyntheticMagOptions(scale=0.0005, seed=1)).relations[CITES].edges(1 << 20))
    assert not np.array_equal(other.src, next(source.relations[CITES].edges(1 << 20)).src)
    with pytest.raises(ConfigError, match="scale: expected"):
        replace(SyntheticMagOptions(), scale=0.0)
