"""Tests commands on typed graphs: ingest, inspect_graph and encode accept them, and refuse wrong options with one line."""

from pathlib import Path

import pytest

from graphmill.jobs import encode, ingest, inspect_graph
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import open_graph
from tests.job_in_process import output_of, run_job

TABLES = """\
nodes:
  paper: {file: papers.csv, id: paper, features: [words, pages], label: venue, split: part}
  author: {file: authors.csv, id: author}
edges:
  - {source: author, relation: writes, target: paper, file: writes.csv, src: author, dst: paper}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and the graph that ingestion makes from them."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "graph.yaml").write_text(TABLES)
    papers = [f"{10 * i},{i % 3},{'train' if i < 8 else 'valid'},{i}.5,{i}" for i in range(12)]
    (folder / "papers.csv").write_text("\n".join(["paper,venue,part,words,pages", *papers]) + "\n")
    (folder / "authors.csv").write_text("author,name\n" + "".join(f"{i},n{i}\n" for i in range(5)))
    (folder / "writes.csv").write_text("author,paper\n" + "".join(f"{i % 5},{10 * i}\n" for i in range(12)))
    said = output_of(ingest.main, "graph.yaml", "stored", "--partitions", "2", "--reverse-edges", "add", cwd=folder)
    assert f"tables:{folder.name}: 17 nodes (paper 12, author 5), 24 edges (author--writes--paper 12" in said
    return folder


def test_a_folder_of_tables_is_ingested(folder: Path) -> None:
    graph = open_graph(str(folder / "stored"))
    assert graph.num_partitions == 2
    assert graph.relations == (Relation("author", "writes", "paper"), Relation("paper", "rev_writes", "author"))
    output_of(ingest.main, ".", "again", cwd=folder)
    assert open_graph(str(folder / "again")).relations == graph.relations[:1]


def test_inspect_graph_shows_types_and_relations(folder: Path) -> None:
    said = output_of(inspect_graph.main, "stored", "--verify", cwd=folder)
    for line in (
        "17 of 2 types",
        "24 of 2 relations",
        "paper  12 nodes, 6 to 6 (max/mean 1.000) in a partition",
        "train 8, valid 4",
        "3, largest 33.33%, smallest 4 nodes",
        "author--writes--paper  12 edges (0 duplicates)",
        "every checksum matches",
    ):
        assert line in said


def test_a_damaged_file_ends_inspect_graph_with_one_line(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(folder / "stored", tmp_path / "stored"))
    (file,) = copy.glob("data/*/part-00001/author--writes--paper/topology.arrow")
    file.write_bytes(file.read_bytes()[:-8])
    done = run_job(inspect_graph.main, [str(copy), "--verify"])
    assert done.returncode == 1
    assert "part-00001/author--writes--paper/topology.arrow: expected" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_encode_stores_rows_of_every_type(folder: Path) -> None:
    output_of(ingest.main, "graph.yaml", "encoded", "--partitions", "2", cwd=folder)
    assert "rwse-4: computed" in output_of(encode.main, "encoded", "rwse", "--dim", "4", cwd=folder)
    assert "rwse-4: found" in output_of(encode.main, "encoded", "rwse", "--dim", "4", cwd=folder)
    graph = open_graph(str(folder / "encoded"))
    assert {tuple(graph.nodes(name).manifest.encodings) for name in graph.node_types} == {("rwse-4",)}
    assert "every checksum matches" in output_of(inspect_graph.main, "encoded", "--verify", cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graph.yaml", "new", "--out-edges"], "pass --reverse-edges add"),
        (
            ["graph.yaml", "new", "--links.valid", "0.1", "--links.relation", "a--b--c"],
            "got a--b--c; set --links.relation",
        ),
        (["graph.yaml", "new", "--per-class", "3"], "leave --per-class out"),
        (["no/graph.yaml", "new"], "no/graph.yaml: expected a YAML file that names node and edge tables, found none"),
        (["synthetic-mag", "new", "--mag.scale", "0"], "scale: expected 0.00001 to 1000, got 0.0; set --mag.scale"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments: list[str], message: str, folder: Path) -> None:
    done = run_job(ingest.main, arguments, folder)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "new").exists()
