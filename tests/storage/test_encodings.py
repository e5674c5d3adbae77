"""Encodings beside a stored graph: computed once, the same however it is partitioned, refused when damaged or of another graph."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import storage.encode
from storage.encode import encode
from storage.encodings import (
    EncodingOptions,
    check_encoding_names,
    encoding_columns,
    encoding_dim,
    find_encoding,
    list_encodings,
    parse_encoding_name,
    store_encoding,
)
from storage.errors import ConfigError, FormatError
from storage.graph import open_graph
from storage.ingest import IngestOptions, ingest
from storage.spectral import laplacian_modes, symmetric_adjacency
from storage.walk_returns import return_probabilities
from tests.listed_graph import random_listed_graph

GRAPH = replace(random_listed_graph(60, 200, seed=3), original_id=None)
LAPLACIAN, RWSE = EncodingOptions("laplacian", 6, "both_ends"), EncodingOptions("rwse", 5)


@pytest.fixture
def stored(tmp_path: Path):
    """The graph in 1 and in 3 partitions."""

    def build(num_partitions: int, name: str = "", **options):
        url = str(tmp_path / (name or str(num_partitions)))
        ingest(GRAPH, url, IngestOptions(num_partitions=num_partitions, **options))
        return open_graph(url)

    return build


def rows_by_id(graph, name: str) -> np.ndarray:
    """The encoding's rows in ascending original id."""
    partitions = list(graph.partitions(verify=True))
    rows = np.concatenate([partition.encodings[name] for partition in partitions])
    return rows[np.argsort(np.concatenate([partition.original_id for partition in partitions]))]


def expected(options: EncodingOptions) -> np.ndarray:
    ends = np.asarray(GRAPH.edges_listed)
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    source, destination = ends[order].T
    if options.kind == "rwse":
        return return_probabilities(source, destination, 60, options.dim)
    return laplacian_modes(symmetric_adjacency(source, destination, 60), options.dim, options.which)[0]


@pytest.mark.parametrize("options", [LAPLACIAN, RWSE, EncodingOptions("laplacian", 3)], ids=lambda o: o.name)
def test_the_same_rows_however_the_graph_is_partitioned(stored, options):
    found = {}
    for partitions in (1, 3):
        graph = stored(partitions)
        manifest, computed = encode(graph, options)
        assert computed
        assert manifest.dim == options.dim
        found[partitions] = rows_by_id(graph, options.name)
        assert found[partitions].dtype == np.float32
    np.testing.assert_array_equal(found[1], found[3])
    np.testing.assert_allclose(found[1], expected(options), atol=1e-5)


def test_computed_once(stored, monkeypatch):
    graph = stored(2)
    before = graph.manifest.content_hash
    first, computed = encode(graph, LAPLACIAN)
    assert computed
    monkeypatch.setattr(storage.encode, "laplacian_modes", None)
    again, computed = encode(open_graph(graph.url), LAPLACIAN)
    assert not computed
    assert again == first
    assert open_graph(graph.url).manifest.content_hash == before
    assert float(first.provenance["eigenvalues"].split()[0]) == pytest.approx(0, abs=1e-9)
    monkeypatch.undo()
    anew, computed = encode(graph, LAPLACIAN, overwrite=True)
    assert computed
    assert anew.files == first.files


def test_several_side_by_side_and_later_ones_are_seen(stored):
    graph = stored(2)
    partition = graph.partition(0)
    assert list(partition.encodings) == []
    assert "rwse-5" not in partition.encodings
    with pytest.raises(KeyError):
        partition.encodings["rwse-5"]
    for options in (LAPLACIAN, RWSE):
        encode(graph, options)
    assert list_encodings(graph) == ("laplacian-6-both_ends", "rwse-5") == tuple(partition.encodings)
    assert len(partition.encodings) == 2
    rows = partition.encodings["rwse-5"]
    assert rows.shape == (partition.num_nodes, 5)
    assert not rows.flags.writeable
    assert partition.encodings["rwse-5"] is rows
    graph.verify()


def test_in_memory_filesystem():
    url = "memory://encoded/graph"
    ingest(GRAPH, url, IngestOptions(num_partitions=2, overwrite=True))
    graph = open_graph(url)
    encode(graph, RWSE)
    assert list_encodings(open_graph(url)) == ("rwse-5",)
    np.testing.assert_allclose(rows_by_id(graph, "rwse-5"), expected(RWSE), atol=1e-6)


def test_another_graph_at_the_place_has_none(stored, tmp_path):
    graph = stored(1, "graph")
    encode(graph, RWSE)
    kept = shutil.copytree(tmp_path / "graph" / "encodings", tmp_path / "kept")
    other = replace(GRAPH, edges_listed=GRAPH.edges_listed[:-1])
    ingest(other, graph.url, IngestOptions(overwrite=True))
    changed = open_graph(graph.url)
    assert list_encodings(changed) == ()
    shutil.copytree(kept, tmp_path / "graph" / "encodings")
    assert list_encodings(changed) == ()
    assert find_encoding(changed, "rwse-5") is None


def test_damage_is_named(stored, tmp_path):
    graph = stored(2, "graph")
    manifest, _ = encode(graph, RWSE)
    file = tmp_path / "graph" / manifest.file(1)
    text = next((tmp_path / "graph" / "encodings").glob("*.json"))
    whole, described = file.read_bytes(), text.read_text()

    file.write_bytes(whole[:-8])
    with pytest.raises(FormatError, match=f"{file}: expected {len(whole)} bytes"):
        graph.partition(1).encodings["rwse-5"]
    file.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    with pytest.raises(FormatError, match="sha256"):
        graph.verify()
    with pytest.raises(FormatError, match="sha256"):
        graph.partition(1, verify=True).encodings["rwse-5"]
    file.unlink()
    with pytest.raises(FormatError, match="found none"):
        graph.partition(1).encodings["rwse-5"]
    file.write_bytes(whole)
    graph.verify()

    for change, message in (
        (lambda body: body.update(name="rwse-6"), "field 'name'"),
        (lambda body: body.update(num_nodes=61), "field 'num_nodes'"),
        (lambda body: body["files"].popitem(), "one file for each partition"),
        (lambda body: body.update(files={"../x.arrow": {"num_bytes": 1, "sha256": "0" * 64}}), "field 'files'"),
        (lambda body: body.update(format_version=2), "format_version"),
        (lambda body: body.update(kind="one-graph"), "kind"),
        (lambda body: body.update(content_hash="0"), "content_hash"),
    ):
        body = json.loads(described)
        change(body)
        text.write_text(json.dumps(body))
        with pytest.raises(FormatError, match=message):
            find_encoding(graph, "rwse-5")
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="UTF-8"):
        find_encoding(graph, "rwse-5")


def test_a_failed_write_leaves_no_encoding(stored, tmp_path, monkeypatch):
    graph = stored(2, "graph")
    (tmp_path / "graph" / "encodings").write_text("a file where the folder should be")
    with pytest.raises(FormatError, match="write this file"):
        encode(graph, RWSE)
    (tmp_path / "graph" / "encodings").unlink()
    assert find_encoding(graph, "rwse-5") is None
    assert not list(tmp_path.rglob(".*rwse*"))


def test_names():
    for options in (LAPLACIAN, RWSE, EncodingOptions("laplacian", 16)):
        assert parse_encoding_name(options.name) == options
        assert encoding_dim(options.name) == options.dim
    assert encoding_columns(("rwse-5", "laplacian-16-smallest")) == 21
    for name in ("laplacian-16", "laplacian-0-smallest", "rwse-05", "../rwse-5", "rwse-5-smallest", ""):
        with pytest.raises(ConfigError, match="expected names such as"):
            parse_encoding_name(name)
    with pytest.raises(ConfigError, match="each name once"):
        check_encoding_names(("rwse-5", "rwse-5"))
    for bad in ({"dim": 0}, {"which": "largest"}, {"kind": "orf"}):
        with pytest.raises(ConfigError):
            EncodingOptions(**bad)


def test_rows_must_fit(stored):
    graph = stored(1)
    for rows in (np.zeros((60, 4), np.float32), np.zeros((59, 5), np.float32), np.zeros((60, 5))):
        with pytest.raises(ConfigError, match="expected float32 rows of shape"):
            store_encoding(graph, "rwse-5", rows)
