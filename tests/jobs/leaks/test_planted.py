"""Tests `graphmill audit`: a dozen graphs with one planted leak each, and the same graphs without it, on which no check may find anything."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill.jobs.audit import audit
from graphmill.jobs.leaks.audit import Audit
from graphmill.jobs.leaks.beside_run import audit_lines
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.importers.tables.triples import read_triples
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.knowledge_graphs import triples, write_layout

NODES, CLASSES = 400, 4


def honest(seed: int = 0) -> ArrayGraph:
    """A graph of two partitions whose features tell the classes weakly, with splits and several in-edges for each node."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, NODES)
    feature = rng.normal(size=(NODES, 6)).astype(np.float32)
    feature[:, 0] += label / 2
    src, dst = rng.integers(0, NODES, (2, 8 * NODES))
    split = rng.permutation(np.repeat([1, 2, 3], [200, 100, 100]))
    return ArrayGraph(
        "honest", NODES, src, dst, feature=feature, label=label, split=split[:, None], num_classes=CLASSES
    )


def stored(graph: Any, folder: Path, **options: Any) -> Audit:
    ingest(graph, str(folder / "graph"), IngestOptions(num_partitions=2, **options))
    return audit(folder / "graph")


def found(result: Audit) -> set[str]:
    """Names of the checks that found something."""
    return {each.check for each in result.outcomes if each.findings}


def with_column(graph: ArrayGraph, column: np.ndarray) -> ArrayGraph:
    return replace(graph, feature=np.concatenate([graph.feature, column.astype(np.float32)[:, None]], axis=1))


def label_column() -> ArrayGraph:
    graph = honest()
    return with_column(graph, (7 * graph.label + 3) % 5)


def id_column() -> ArrayGraph:
    return with_column(honest(), np.random.default_rng(1).permutation(NODES) + 1000)


def row_column() -> ArrayGraph:
    return with_column(honest(), np.arange(NODES) / NODES - 0.5)


def split_column() -> ArrayGraph:
    graph = honest()
    assert graph.split is not None
    return with_column(
        graph, np.where(graph.split[:, 0] == 1, 0.3, 0.7) + 0.01 * np.random.default_rng(2).random(NODES)
    )


def copied_nodes() -> ArrayGraph:
    """A tenth of the test nodes are copies of training nodes, with their features and their in-edges."""
    graph = honest()
    assert graph.split is not None
    assert graph.label is not None
    train, test = np.flatnonzero(graph.split[:, 0] == 1)[:15], np.flatnonzero(graph.split[:, 0] == 3)[:15]
    feature, label = graph.feature.copy(), graph.label.copy()
    feature[test], label[test] = feature[train], label[train]
    kept = ~np.isin(graph.dst, test)
    pairs = [(graph.src[graph.dst == one], other) for one, other in zip(train, test, strict=True)]
    src = np.concatenate([graph.src[kept], *(sources for sources, _ in pairs)])
    dst = np.concatenate([graph.dst[kept], *(np.full(len(sources), other) for sources, other in pairs)])
    return replace(graph, feature=feature, label=label, src=src, dst=dst)


def unseen_class() -> ArrayGraph:
    graph = honest()
    assert graph.split is not None
    assert graph.label is not None
    return replace(
        graph,
        label=np.where((graph.split[:, 0] == 3) & (graph.label == 0), CLASSES, graph.label),
        num_classes=CLASSES + 1,
    )


def standardised() -> ArrayGraph:
    graph = honest()
    return replace(graph, feature=(graph.feature - graph.feature.mean(axis=0)) / graph.feature.std(axis=0))


def test_no_check_finds_anything_on_an_honest_graph(tmp_path: Path) -> None:
    result = stored(honest(), tmp_path)
    assert found(result) == set(), result
    assert {each.check for each in result.outcomes if each.applies} == {
        "twins",
        "labels",
        "ids",
        "splits",
        "classes",
        "statistics",
    }


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        ("labels", label_column),
        ("ids", id_column),
        ("ids", row_column),
        ("ids", split_column),
        ("twins", copied_nodes),
        ("classes", unseen_class),
        ("statistics", standardised),
    ],
)
def test_a_leak_among_the_nodes_is_found(check: str, plant: Callable[[], ArrayGraph], tmp_path: Path) -> None:
    result = stored(plant(), tmp_path)
    assert found(result) == {check}, result
    (finding,) = (finding for each in result.outcomes for finding in each.findings)
    assert finding.examples or check == "classes"


def test_columns_that_are_standardised_by_the_training_rows_are_clean(tmp_path: Path) -> None:
    graph = honest()
    assert graph.split is not None
    train = graph.feature[graph.split[:, 0] == 1]
    assert (
        found(stored(replace(graph, feature=(graph.feature - train.mean(axis=0)) / train.std(axis=0)), tmp_path))
        == set()
    )


def linked(repeats: str | None) -> ArrayGraph:
    """A graph with 60 held-out links. `repeats`: which of them are also edges."""
    rng = np.random.default_rng(3)
    pairs = np.unique(np.sort(rng.integers(0, NODES, (3000, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    held, edges = np.split(rng.permutation(pairs), [60])
    links = Links.of(*held.T, np.repeat([2, 3], 30))
    src, dst = edges.T
    more = {
        None: held[:0],
        "same": held[:7],
        "few reversed": held[:3, ::-1],
        "some reversed": held[:7, ::-1],
        "reversed": held[:31, ::-1],
    }[repeats]
    return ArrayGraph(
        "linked", NODES, np.append(src, more[:, 0]), np.append(dst, more[:, 1]), links=links, repeats_links=True
    )


@pytest.mark.parametrize(
    ("repeats", "severity", "said"),
    [
        ("same", "leak", "7 of 60 held-out links"),
        ("some reversed", "warning", "the reverse of 7 of 60"),
        ("reversed", "leak", "the reverse of 31 of 60"),
    ],
)
def test_held_out_links_among_the_edges_are_found(repeats: str, severity: str, said: str, tmp_path: Path) -> None:
    result = stored(linked(repeats), tmp_path)
    assert found(result) == {"links"}
    (finding,) = (finding for each in result.outcomes for finding in each.findings)
    assert (finding.severity, said in finding.text, len(finding.examples)) == (severity, True, 5)
    line = audit_lines(open_graph(result.url, kind=StoredGraph), "node", 0)[2]
    assert line.startswith(f"audit links: {severity}: "), line


@pytest.mark.parametrize("repeats", [None, "few reversed"])
def test_links_without_repeats_are_clean(repeats: str | None, tmp_path: Path) -> None:
    """Links of a direction: that a few of them have an edge back is no leak."""
    result = stored(linked(repeats), tmp_path)
    assert found(result) == set()
    assert "60 held-out links looked up" in str(result)


def test_a_link_of_two_splits_is_found(tmp_path: Path) -> None:
    graph = linked(None)
    assert graph.links is not None
    pair = graph.links.source[:1], graph.links.destination[:1]
    twice = Links.join([graph.links, Links.of(pair[1], pair[0], 5 - int(graph.links.split[0]))])
    assert found(stored(replace(graph, links=twice), tmp_path)) == {"splits"}


def shop(copies: bool) -> TypedSource:
    """Users like items; another relation from items to users has the same pairs, or other pairs."""
    rng = np.random.default_rng(4)
    pairs = np.unique(rng.integers(0, (90, 60), (1500, 2)), axis=0)
    others = pairs if copies else np.unique(rng.integers(0, (90, 60), (300, 2)), axis=0)
    nodes = {"user": array_nodes("user", 90), "item": array_nodes("item", 60)}
    edges = {
        Relation("user", "likes", "item"): array_edges("likes", *pairs.T),
        Relation("item", "seen_by", "user"): array_edges("seen_by", *others.T[::-1]),
    }
    return TypedSource("shop", nodes, edges)


@pytest.mark.parametrize("copies", [True, False])
def test_a_relation_that_repeats_the_held_out_links_is_found(copies: bool, tmp_path: Path) -> None:
    held = LinkSplitOptions(valid=0.1, test=0.1, relation="user--likes--item", reverse="none")
    result = stored(shop(copies), tmp_path, links=held)
    assert found(result) == ({"links"} if copies else set())
    assert ("of item--seen_by--user (100.0%" in str(result)) == copies


@pytest.mark.parametrize("copies", [True, False])
def test_a_relation_of_a_knowledge_graph_that_is_the_inverse_of_another_is_found(copies: bool, tmp_path: Path) -> None:
    """As in FB15k, whose inverse relations FB15k-237 leaves out."""
    rows = triples(num_entities=400, count=1500)
    write_layout(tmp_path / "kg", rows)
    if copies:
        text = (tmp_path / "kg/train.txt").read_text()
        more = "".join(f"{tail}\tinverted\t{head}\n" for head, name, tail in rows if name == "opposite")
        (tmp_path / "kg/train.txt").write_text(text + more)
    result = stored(read_triples(tmp_path / "kg"), tmp_path)
    assert found(result) == ({"links"} if copies else set()), result
    assert ("opposite: 100% in inverted" in str(result)) == copies


def test_a_triple_of_training_and_test_is_found(tmp_path: Path) -> None:
    rows = triples(num_entities=400, count=1500)
    write_layout(tmp_path / "kg", [*rows, *rows[:3]])
    result = stored(read_triples(tmp_path / "kg"), tmp_path)
    assert {"links"} == found(result)
    assert "held-out triples among the edges" in str(result)
    assert "looks the held-out links up" in audit_lines(open_graph(result.url, kind=StoredGraph), "node", 0)[2]


@pytest.mark.parametrize(
    ("options", "expected"), [({"valid": 0.1, "test": 0.1}, {"times"}), ({"by_time": (0.8, 0.9)}, set())]
)
def test_edges_later_than_a_held_out_link_are_found(
    options: dict[str, Any], expected: set[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    pairs = np.unique(rng.integers(0, NODES, (3000, 2)), axis=0)
    graph = ArrayGraph("timed", NODES, *pairs.T, edge_time=rng.integers(0, 1000, len(pairs)))
    assert found(stored(graph, tmp_path, links=LinkSplitOptions(**options))) == expected


@pytest.mark.parametrize("late", [True, False])
def test_edges_later_than_a_node_are_found(late: bool, tmp_path: Path) -> None:
    graph = honest()
    node_time = np.arange(NODES) * 10
    edge_time = node_time[graph.dst] + (np.arange(len(graph.dst)) == 17) * 5 * late
    result = stored(replace(graph, edge_time=edge_time, node_time=node_time), tmp_path)
    assert found(result) == ({"times"} if late else set()), result
    assert (f"for example: {graph.dst[17]}\n" in str(result)) == late


SMILES = ("C[C@H](N)C(=O)O", "CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CCN(CC)CC", "OC1CCCCC1")
WRITTEN_ANEW = ("OC(=O)[C@@H](N)C", "OCC", "Oc1ccccc1", "OC(=O)c1ccccc1OC(C)=O", "C(C)N(CC)CC", "C1CCCCC1O")


@pytest.mark.parametrize("copies", [3, 0])
def test_molecules_of_two_splits_are_found_however_they_are_written(copies: int, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.molecules.smiles import SmilesTable

    others = ("C[C@@H](N)C(=O)O", "CCCO", "CCCCO", "CCCCCO", "C1CCC2CCCCC2C1", "CCCCCCO")  # the first: the mirror image
    test = (*WRITTEN_ANEW[:copies], *others[: 6 - copies]) if copies else others
    rows = [*((s, "train") for s in (*SMILES, "C1CCCC1C1CCCC1")), *((s, "test") for s in test), ("CCCCCCCO", "valid")]
    lines = [f"{smiles},{number}.5,{split}" for number, (smiles, split) in enumerate(rows)]
    (tmp_path / "m.csv").write_text("\n".join(["smiles,y,split", *lines]))
    ingest_molecules(SmilesTable(str(tmp_path / "m.csv")), str(tmp_path / "set"))
    result = audit(tmp_path / "set")
    assert found(result) == ({"twins"} if copies else set()), result
    assert (f"{copies} of 7 scored molecules" in str(result)) == bool(copies)


def test_equal_graphs_of_two_splits_are_found(tmp_path: Path) -> None:
    """Graphs without molecules' features: two triangles and a hexagon have equal hashes of color refinement, and are told apart."""
    from torch import arange, tensor
    from torch_geometric.data import Data

    from graphmill.storage.importers.memory.graph_list import ingest_graphs

    def ring(nodes: list[int]) -> list[tuple[int, int]]:
        pairs = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
        return [*pairs, *((b, a) for a, b in pairs)]

    def graph(edges: list[tuple[int, int]], split: str) -> Data:
        return Data(edge_index=tensor(edges).T, num_nodes=6, y=arange(1).float() + len(edges) / 7, split=split)

    triangles, hexagon = ring([0, 1, 2]) + ring([3, 4, 5]), ring([0, 1, 2, 3, 4, 5])
    clean = [graph(triangles, "train"), graph(hexagon, "test"), graph(hexagon[:-2], "valid")]
    ingest_graphs(clean, str(tmp_path / "clean"), split="split")
    assert found(audit(tmp_path / "clean")) == set()
    ingest_graphs([*clean, graph(ring([5, 0, 3, 1, 4, 2]), "train")], str(tmp_path / "copied"), split="split")
    assert found(audit(tmp_path / "copied")) == {"twins"}
