"""Tests knowledge graphs from triples: the stored graph, and files that are refused."""

import gzip
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphmill.core.errors import DataError, FormatError
from graphmill.jobs import ingest as ingest_job
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.format.source import SPLITS
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.tables.triples import INVERSE, knowledge_graph, read_triples
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.job_in_process import output_of, run_job
from tests.knowledge_graphs import triples, write_layout


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> tuple[Path, dict[str, set]]:
    folder = tmp_path_factory.mktemp("triples") / "small"
    return folder, write_layout(folder, triples())


def names_of(graph: StoredGraph) -> list[str]:
    """Returns the names of nodes, by the nodes' numbers."""
    ids, numbers = [], []
    for index in range(graph.num_partitions):
        ids += graph.string_ids(index).to_pylist()
        numbers += graph.partition(index).original_id.tolist()
    return [name for _, name in sorted(zip(numbers, ids, strict=True))]


def stored_triples(graph: StoredGraph) -> list[tuple[str, str, str]]:
    """Returns all stored edges as (source, relation, destination)."""
    edges, names = [], names_of(graph)
    order = np.concatenate([graph.partition(index).original_id for index in range(graph.num_partitions)])
    for index in range(graph.num_partitions):
        part = graph.partition(index)
        target = np.repeat(part.original_id, np.diff(part.indptr))
        for u, v, r in zip(order[part.indices], target, part.edge_feature[:, 0], strict=True):
            edges.append((names[u], graph.manifest.relations[int(r)], names[v]))
    return edges


def both_ways(rows: set) -> set:
    return rows | {(tail, INVERSE + relation, head) for head, relation, tail in rows}


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_layout_is_read(layout, tmp_path, partitions: int) -> None:
    folder, parts = layout
    ingest(read_triples(folder), str(tmp_path / "graph"), IngestOptions(num_partitions=partitions))
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    manifest = graph.manifest
    lines = (folder / "train.txt").read_text().splitlines()
    assert manifest.relations[:3] == tuple(dict.fromkeys(line.split("\t")[1] for line in lines))
    assert manifest.relations[3:] == tuple(INVERSE + name for name in manifest.relations[:3])
    assert parse_manifest(manifest.to_json(), "").relations == manifest.relations
    assert not manifest.symmetric
    edges = stored_triples(graph)
    assert len(edges) == len(set(edges))
    assert set(edges) == both_ways(parts["train"])
    names = names_of(graph)
    links = Links.join([graph.partition(index).links for index in range(graph.num_partitions)])
    for split in ("valid", "test"):
        own = links.split == SPLITS[split]
        told = zip(links.source[own], links.relation[own], links.destination[own], strict=True)
        assert {(names[u], manifest.relations[r], names[v]) for u, r, v in told} == both_ways(parts[split])
        assert manifest.links.positives[SPLITS[split]] == 2 * len(parts[split])


def test_an_older_reader_refuses_it_and_a_damaged_manifest_is_refused(layout, tmp_path) -> None:
    ingest(read_triples(layout[0]), str(tmp_path / "graph"))
    text = open_graph(str(tmp_path / "graph")).manifest.to_json()
    assert '"requires": [\n  "relations"\n ]' in text
    with pytest.raises(FormatError, match="one column, the relations' numbers"):
        parse_manifest(text.replace('"feature_dim": 1', '"feature_dim": 2'), "")


def test_links_are_held_out_where_the_publisher_has_not(tmp_path) -> None:
    """A pair of nodes is held out with all its triples, in both directions."""
    rows = triples()
    (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    options = IngestOptions(num_partitions=2, links=LinkSplitOptions(valid=0.1, test=0.1))
    ingest(read_triples(tmp_path), str(tmp_path / "graph"), options)
    graph = open_graph(str(tmp_path / "graph"))
    left, names = set(stored_triples(graph)), names_of(graph)
    links = Links.join([graph.partition(index).links for index in range(2)])
    told = zip(links.source, links.relation, links.destination, strict=True)
    held = {(names[u], graph.manifest.relations[r], names[v]) for u, r, v in told}
    assert left | held == both_ways(set(rows))
    assert 0.1 < len(held) / (2 * len(rows)) < 0.3
    assert not {frozenset((u, v)) for u, _, v in left} & {frozenset((u, v)) for u, _, v in held}


def refused(folder: Path, **files: str) -> str:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    with pytest.raises(DataError) as caught:
        ingest(read_triples(folder), str(folder / "graph"))
    assert not (folder / "graph").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"valid": "a\tr\tb\n", "test": ""}, "train.txt: expected a file of triples"),
        ({"train": "a\tr\tb\na\tr\n"}, "expected head, relation and tail, between tabs or blanks, in each line"),
        ({"train": "a\tr\tb\n\tr\tc\n"}, "triple 2: head: expected an id, found an empty field"),
        ({"train": "a\tr\tb\n", "entity2id": "1\na\t0\n"}, "expected entity2id.txt and relation2id.txt, or neither"),
        (
            {"train2id": "1\n0 0 0\n", "entity2id": "2\na\t0\nb\t2\n", "relation2id": "1\nr\t0\n"},
            "entity2id.txt: expected numbers 0 to 1 and different names",
        ),
        ({"train": "a\tr\tb\n", "test": "b\tr\ta\n"}, "got test.txt alone; add the other one"),
        ({"train": ""}, "train: expected at least one triple, got none"),
        ({"train": "a\tr\tb\nb\tinverse of r\ta\n"}, "relations: expected different names"),
    ],
)
def test_what_is_no_knowledge_graph_is_refused_in_one_line(tmp_path, files, message) -> None:
    assert message in refused(tmp_path / "bad", **files)


def test_the_same_pair_by_another_relation_is_no_repetition(tmp_path) -> None:
    (tmp_path / "train.txt").write_text("a\tr\tb\na\ts\tb\nb\tr\tb\n")
    (tmp_path / "test.txt").write_text("b\ts\tb\nb\tr\ta\n")
    (tmp_path / "valid.txt").write_text("")
    ingest(read_triples(tmp_path), str(tmp_path / "graph"))
    graph = open_graph(str(tmp_path / "graph"))
    assert graph.manifest.num_edges == 6
    assert graph.manifest.links.positives[SPLITS["test"]] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reverse-edges", "add"], "leave out --reverse-edges add"),
        (["--drop-duplicates"], "leave out --drop-duplicates"),
        (["--links.valid", "0.1"], "the set has splits of its links"),
    ],
)
def test_options_that_would_lose_relations(layout, tmp_path, words, message) -> None:
    done = run_job(ingest_job.main, [f"triples:{layout[0]}", "graph", *words], tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "graph").exists()


def test_numbers_that_are_no_relations() -> None:
    for wrong in (np.zeros((4, 3), int), np.zeros((3, 2)), np.zeros(3, int)):
        with pytest.raises(DataError, match=r"expected integers of shape \[3, m\]"):
            knowledge_graph("numbers", ["r"], wrong, num_nodes=2)
    with pytest.raises(DataError, match="expected relations 0 to 1, got 0 to 2"):
        knowledge_graph("numbers", ["r", "s"], np.array([[0, 1], [0, 2], [1, 0]]), num_nodes=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"edge_feature": np.array([[0.5], [0.0]])}, "expected numbers 0 to 1"),
        ({"edge_feature": np.array([[2.0], [0.0]])}, "expected numbers 0 to 1"),
        ({"edge_time": np.array([1, 2])}, "got both"),
        ({"node_time": np.array([1, 2, 3])}, "got both"),
        ({"relations": ("r", "r")}, "got 'r' twice"),
        ({"links": Links.of([0], [2], 3)}, "links: expected relations, got none"),
        (
            {"relations": (), "links": Links.of([0], [2], 3, relation=np.array([0]))},
            "links: expected none with a relation, got some",
        ),
    ],
)
def test_columns_that_do_not_fit_the_relations_are_refused(tmp_path, wrong, message) -> None:
    source = knowledge_graph("numbers", ["r"], np.array([[0], [0], [1]]), num_nodes=3)
    with pytest.raises(DataError, match=message):
        ingest(replace(source, **wrong), str(tmp_path / "graph"))
    assert not (tmp_path / "graph").exists()


ROWS = {
    "train": [("a b", "r", "c"), ("c", "s", "a b"), ("c", "r", "d")],
    "valid": [("d", "r", "c"), ("c", "s", "a b")],
    "test": [("e", "s", "c"), ("d", "r", "c")],
}


@pytest.mark.parametrize("drop", [False, True])
def test_a_triple_in_two_splits_is_told_and_kept_or_dropped(tmp_path, drop) -> None:
    (tmp_path / "kg").mkdir()
    for split, rows in ROWS.items():
        (tmp_path / "kg" / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    words = ["triples:kg", "graph", "--partitions", "1", *(["--repeated-triples", "drop"] if drop else [])]
    printed = output_of(ingest_job.main, *words, cwd=tmp_path)
    fate = "2, left in the later one" if drop else "2, kept in both"
    assert f"triples in two splits: {fate}\nentities of no training triple: 1\n" in printed
    graph = open_graph(str(tmp_path / "graph"))
    assert set(stored_triples(graph)) == both_ways(set(ROWS["train"][:: 2 if drop else 1]))
    assert graph.manifest.links.positives[SPLITS["valid"]] == (2 if drop else 4)
    assert graph.manifest.links.positives[SPLITS["test"]] == 4


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".tsv.xz", ".txt.zst"])
@pytest.mark.parametrize("layout", ["tabs", "blanks", "numbers"])
def test_every_layout_gives_the_same_graph(tmp_path, ending, layout) -> None:
    rows = {split: [tuple(field.replace(" ", "_") for field in row) for row in some] for split, some in ROWS.items()}
    names = [list(dict.fromkeys(row[place] for some in rows.values() for row in some for place in places)) for places in ((0, 2), (1,))]  # fmt: skip
    texts = {}
    for split, some in rows.items():
        mark = "\t" if layout == "tabs" else "  "
        lines = [mark.join(row) for row in some]
        if layout == "numbers":
            lines = [f"{len(some)}"] + [
                f"{names[0].index(u)} {names[0].index(v)} {names[1].index(r)}" for u, r, v in some
            ]
        texts[split + "2id" * (layout == "numbers")] = lines
    if layout == "numbers":
        for name, known in zip(("entity", "relation"), names, strict=True):
            numbered = [f"{each}\t{number}" for number, each in enumerate(known)]
            texts[f"{name}2id"] = [f"{len(known)}", *reversed(numbered)]
    for name, lines in texts.items():
        content = ("\n".join(lines) + "\n").encode()
        packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(ending[4:])
        if ending.endswith("zst"):
            with pa.output_stream(str(tmp_path / (name + ending)), compression="zstd") as stream:
                stream.write(content)
        else:
            (tmp_path / (name + ending)).write_bytes(packed(content) if packed else content)
    graph = read_triples(tmp_path)
    edges = [graph.strings.strings.part(0, graph.num_nodes).to_pylist()[row] for row in graph.src]
    assert sorted(edges) == sorted(each for u, _, v in rows["train"] for each in (u, v))
    assert (graph.num_nodes, len(graph.relations)) == (4, 4)
    assert graph.provenance["triples_in_two_splits"] == "2, kept in both"
