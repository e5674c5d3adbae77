"""Tests class names, and the source's ids of graphs. The manifests of graphs, typed graphs and sets store them. They are read back unchanged, and refused
if they do not match the data."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from graphmill.core.errors import DataError, FormatError
from graphmill.storage.format.graph_set_manifest import parse_graph_set_manifest
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import open_graph, source_ids
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.ingestion.ingest import ingest

NAMES = ("blau", "grün", "rot")


def _graph(label=(0, 2, 2, -1), **changes) -> ArrayGraph:
    ends = np.arange(4)
    return ArrayGraph("colours", 4, ends, ends[::-1].copy(), label=np.array(label), **{"class_names": NAMES, **changes})


def _write_set(url, **facts) -> str:
    one = np.ones(4, np.int64)
    target = np.array([[0], [2], [2], [np.nan]], np.float32) if "target_names" in facts else None
    label = np.array([0, 2, 2, -1], np.int16) if "labelled" in facts else None
    packed = PackedGraphs(one, 0 * one, np.empty((2, 0), np.int32), None, None, target, label)
    write_graphs(str(url), GraphSetInfo("colours", **facts), [shard_batch(packed, "uint16")])
    return str(url)


def test_a_graph_has_as_many_classes_as_names(tmp_path):
    ingest(_graph(), str(tmp_path))
    graph = open_graph(str(tmp_path))
    assert (graph.class_names, graph.num_classes) == (NAMES, 3)
    ingest(_graph([[0, 1, 1]] * 4), str(tmp_path / "several"))
    assert open_graph(str(tmp_path / "several")).class_names == NAMES


def test_a_manifest_without_names_is_as_it_was(tmp_path):
    ingest(_graph(class_names=()), str(tmp_path))
    assert "class_names" not in open_graph(str(tmp_path)).manifest.to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"class_names": NAMES[:2]},
        {"class_names": ("a", "b", "a")},
        {"num_classes": 4},
        {"label": [0.5, 1.5, 2.5, 3.5]},
        {"label": None},
    ],
)
def test_names_that_do_not_fit_are_refused(changes, tmp_path):
    graph = _graph()
    if "label" in changes:
        changes = {"label": None if changes["label"] is None else np.array(changes["label"])}
    with pytest.raises(DataError, match=r"class_names: expected|labels: expected -1"):
        ingest(replace(graph, **changes), str(tmp_path / "graph"))


def test_a_type_of_nodes_has_names(tmp_path):
    relation = Relation("thing", "likes", "thing")
    ends = np.arange(4)
    nodes = {"thing": _graph(), "other": array_nodes("other", 1)}
    ingest(TypedSource("t", nodes, {relation: array_edges("likes", ends, ends)}), str(tmp_path))
    assert open_graph(str(tmp_path)).manifest.node_types["thing"].class_names == NAMES


@pytest.mark.parametrize("facts", [{"target_names": ("colour",)}, {"labelled": "nodes", "num_classes": 3}])
def test_a_set_has_names(facts, tmp_path):
    assert open_graphs(_write_set(tmp_path / "set", class_names=NAMES, **facts)).class_names == NAMES
    assert "class_names" not in open_graphs(_write_set(tmp_path / "none", **facts)).manifest.to_json()


@pytest.mark.parametrize("ids", [pa.array(["c", "a", "b"], pa.large_string()), pa.array([30, 10, 20]), None])
def test_graphs_of_a_set_are_found_by_their_ids_in_the_source(ids, tmp_path):
    ones = np.ones(1, np.int64)
    one = PackedGraphs(ones, 0 * ones, np.empty((2, 0), np.int32), None, None, None)
    shards = [
        shard_batch(one, "uint16", original_id=row * ones, ids=None if ids is None else ids[place : place + 1])
        for place, row in enumerate((0, 4, 7))
    ]
    kind = None if ids is None else "string" if pa.types.is_large_string(ids.type) else "number"
    write_graphs(str(tmp_path / "set"), GraphSetInfo("three", id_kind=kind), shards)
    found = source_ids(open_graphs(str(tmp_path / "set")))
    if ids is None:
        assert found is None
        return
    assert found.of(np.array([7, 0, 7])).to_pylist() == ids.take(pa.array([2, 0, 2])).to_pylist()
    with pytest.raises(FormatError, match="expected the permanent id of a graph, got 5"):
        found.of(np.array([0, 5]))


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"target_names": ("a", "b")}, NAMES),
        ({}, NAMES),
        ({"target_names": ("a",)}, ("x", "x")),
        ({"labelled": "nodes", "num_classes": 4}, NAMES),
        ({"labelled": "pairs"}, NAMES),
    ],
)
def test_names_that_do_not_fit_a_set_are_refused(facts, names):
    with pytest.raises(DataError, match=r"class_names: expected (\d|no) "):
        GraphSetInfo("colours", class_names=names, **facts)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "b"], ["a", "b", 3], "abc", None, ["a", "b", "c" * 70_000]])
@pytest.mark.parametrize("of_set", [False, True])
def test_a_manifest_of_other_names_is_refused(names, of_set, tmp_path):
    ingest(_graph(), str(tmp_path / "graph"))
    manifest = open_graph(str(tmp_path / "graph")).manifest
    if of_set:
        manifest = open_graphs(_write_set(tmp_path / "set", labelled="nodes", num_classes=3)).manifest
    body = json.loads(manifest.to_json())
    (body if of_set else body["node_types"][0])["class_names"] = names
    with pytest.raises(FormatError, match="field 'class_names'"):
        (parse_graph_set_manifest if of_set else parse_manifest)(json.dumps(body), "here")
