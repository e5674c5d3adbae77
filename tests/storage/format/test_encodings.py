"""Encodings of a stored graph are computed once and are the same for any partitions. Damaged encodings, and encodings of another graph, are refused."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphmill.storage.encoding.encode
from graphmill.core.errors import ConfigError, ConflictError, FormatError
from graphmill.storage.encoding.encode import encode, store_encoding
from graphmill.storage.encoding.spectral import laplacian_modes, symmetric_adjacency
from graphmill.storage.encoding.walk_returns import return_probabilities
from graphmill.storage.format.encoding_names import (
    EncodingOptions,
    check_encoding_names,
    encoding_columns,
    encoding_dim,
    parse_encoding_name,
)
from graphmill.storage.format.encodings import ALGORITHM_VERSION, find_encoding, stored_encodings
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.snapshots.prune import prune
from tests.listed_graph import random_listed_graph
from tests.stored_files import all_files, edit_manifest, stored_file

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
    """Returns the encoding's rows, in ascending order of original ids."""
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


TYPES = {
    "one type": ({"paper": 60}, [("paper", "paper"), ("paper", "paper")]),
    "several": (
        {"paper": 30, "author": 20, "place": 10},
        [("author", "paper"), ("paper", "author"), ("paper", "paper"), ("author", "place")],
    ),
}


@pytest.mark.parametrize("options", [LAPLACIAN, RWSE], ids=lambda options: options.name)
@pytest.mark.parametrize("name", TYPES)
def test_a_typed_graph_has_the_rows_of_the_plain_graph_of_all_its_nodes_and_edges(name, options, tmp_path):
    """Rows are equal byte for byte. A prune and another ingestion keep them. They are verified with the other files."""
    sizes, relations = TYPES[name]
    rng, first = np.random.default_rng(0), dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    ends = {
        Relation(source, f"r{i}", target): (rng.integers(0, sizes[source], 60), rng.integers(0, sizes[target], 60))
        for i, (source, target) in enumerate(relations)
    }
    nodes = {each: array_nodes(each, size) for each, size in sizes.items()}
    source = TypedSource("typed", nodes, {each: array_edges(each.name, *own) for each, own in ends.items()})
    of_all = [
        own + first[side]
        for each, pair in ends.items()
        for own, side in zip(pair, (each.source, each.target), strict=True)
    ]
    plain = ArrayGraph("plain", 60, np.concatenate(of_all[::2]), np.concatenate(of_all[1::2]))
    found = []
    for graph, partitions in ((plain, 1), (source, 1), (source, 3)):
        url = str(tmp_path / f"{graph.name if graph is source else 'plain'}-{partitions}")
        ingest(graph, url, IngestOptions(num_partitions=partitions))
        encoded, _ = encode(open_graph(url), options)
        assert encode(open_graph(url), options) == (encoded, False)
        rows = [rows_by_id(encoded.nodes(each), options.name) for each in encoded.node_types]
        found.append(np.concatenate(rows).tobytes())
    assert found[0] == found[1] == found[2]
    assert set(encoded.nodes("paper").manifest.encodings) == {options.name}
    assert not encoded.relation(next(iter(ends))).manifest.encodings
    ingest(source, url, IngestOptions(num_partitions=3, overwrite=True))
    prune(url, keep=1)
    kept = open_graph(url, kind=TypedGraph)
    kept.verify()
    assert kept.manifest.encodings == encoded.manifest.encodings
    (file,) = tmp_path.glob(f"typed-3/data/*/part-00001/paper/encodings/{options.name}.arrow")
    assert str(file.relative_to(url)) in {each.path for each in kept.partition_files(1)}
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(FormatError, match=f"part-00001/paper/encodings/{options.name}.arrow"):
        kept.verify()


@pytest.mark.parametrize("options", [LAPLACIAN, RWSE, EncodingOptions("laplacian", 3)], ids=lambda o: o.name)
def test_the_same_rows_however_the_graph_is_partitioned(stored, options):
    found = {}
    for partitions in (1, 3):
        graph = stored(partitions)
        graph, computed = encode(graph, options)
        assert computed
        assert graph.partition(0).encodings[options.name].shape == (graph.partition(0).num_nodes, options.dim)
        found[partitions] = rows_by_id(graph, options.name)
        assert found[partitions].dtype == np.float32
    np.testing.assert_array_equal(found[1], found[3])
    np.testing.assert_allclose(found[1], expected(options), atol=1e-5)


def test_computed_once(stored, monkeypatch):
    graph = stored(2)
    before = graph.manifest.content_hash
    told: list[tuple[str, int, int | None]] = []
    first, computed = encode(graph, LAPLACIAN, lambda *what: told.append(what))
    assert computed
    assert told[:2] == [("reading", 0, 2), ("reading", 1, 2)]
    monkeypatch.setattr(graphmill.storage.encoding.encode, "laplacian_modes", None)
    again, computed = encode(open_graph(graph.url), LAPLACIAN)
    assert not computed
    assert again.manifest == first.manifest == open_graph(graph.url).manifest
    assert first.manifest.snapshot == 2
    assert open_graph(graph.url).manifest.content_hash == before
    stored_once = find_encoding(first, LAPLACIAN.name)
    assert float(stored_once.provenance["eigenvalues"].split()[0]) == pytest.approx(0, abs=1e-9)
    monkeypatch.undo()
    anew, computed = encode(first, LAPLACIAN, overwrite=True)
    assert computed
    assert anew.manifest.snapshot == 3
    sums = [[file.sha256 for file in find_encoding(each, LAPLACIAN.name).files.values()] for each in (first, anew)]
    assert sums[0] == sums[1]


def test_several_side_by_side_and_an_open_graph_keeps_those_of_its_snapshot(stored):
    graph = stored(2)
    partition = graph.partition(0)
    assert list(partition.encodings) == []
    assert "rwse-5" not in partition.encodings
    with pytest.raises(KeyError):
        partition.encodings["rwse-5"]
    encoded = [encode(graph, options)[0] for options in (LAPLACIAN, RWSE)]  # both begin with the first snapshot
    assert tuple(stored_encodings(encoded[0])) == ("laplacian-6-both_ends",)
    assert tuple(stored_encodings(graph)) == () == tuple(partition.encodings)
    partition = encoded[1].partition(0)
    assert tuple(stored_encodings(encoded[1])) == ("laplacian-6-both_ends", "rwse-5") == tuple(partition.encodings)
    assert len(partition.encodings) == 2
    rows = partition.encodings["rwse-5"]
    assert rows.shape == (partition.num_nodes, 5)
    assert not rows.flags.writeable
    assert partition.encodings["rwse-5"] is rows
    for each in (graph, *encoded):
        each.verify()
    assert open_graph(graph.url).manifest == encoded[1].manifest


def test_in_memory_filesystem():
    url = "memory://encoded/graph"
    ingest(GRAPH, url, IngestOptions(num_partitions=2, overwrite=True))
    graph = open_graph(url)
    graph, _ = encode(graph, RWSE)
    assert tuple(stored_encodings(open_graph(url))) == ("rwse-5",)
    np.testing.assert_allclose(rows_by_id(graph, "rwse-5"), expected(RWSE), atol=1e-6)


def test_the_same_graph_again_keeps_its_encodings_and_another_has_none(stored):
    graph, _ = encode(stored(1, "graph"), RWSE)
    ingest(GRAPH, graph.url, IngestOptions(overwrite=True))
    again = open_graph(graph.url)
    assert again.manifest.snapshot == 3
    assert tuple(stored_encodings(again)) == ("rwse-5",)
    np.testing.assert_array_equal(rows_by_id(again, "rwse-5"), rows_by_id(graph, "rwse-5"))
    other = replace(GRAPH, edges_listed=GRAPH.edges_listed[:-1])
    ingest(other, graph.url, IngestOptions(overwrite=True))
    changed = open_graph(graph.url)
    assert tuple(stored_encodings(changed)) == ()
    assert find_encoding(changed, "rwse-5") is None
    with pytest.raises(
        ConflictError, match=r"expected the graph that was encoded .* as its newest snapshot, found another"
    ):
        encode(graph, LAPLACIAN)
    assert open_graph(graph.url).manifest == changed.manifest
    assert find_encoding(open_graph(graph.url, 2), "rwse-5") is not None


def test_damage_is_named(stored):
    graph, _ = encode(stored(2, "graph"), RWSE)
    file = stored_file(graph.url, "part-00001/encodings/rwse-5.arrow")
    whole = file.read_bytes()

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


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_of_other_shapes_are_refused(stored, swapped):
    """If a file with this name is the file of another partition or encoding, it is refused, although its checksum is right."""
    graph, _ = encode(stored(7, "graph"), RWSE)
    graph, _ = encode(graph, EncodingOptions("rwse", 6))
    sizes = [partition.num_nodes for partition in graph.partitions()]
    other = next(index for index, size in enumerate(sizes) if size != sizes[1])
    name = "part-00001/encodings/rwse-5.arrow"
    content = stored_file(
        graph.url, f"part-0000{other}/encodings/rwse-5.arrow" if swapped else name.replace("rwse-5", "rwse-6")
    ).read_bytes()
    stored_file(graph.url, name).write_bytes(content)

    def seal(body):
        sha256 = hashlib.sha256(content).hexdigest()
        body["encodings"]["rwse-5"]["files"][name].update(num_bytes=len(content), sha256=sha256)

    edit_manifest(graph.url, seal)
    message = (
        f"expected {sizes[1]} rows, found {sizes[other]}" if swapped else "column 'encoding': expected fixed_size_list"
    )
    with pytest.raises(FormatError, match=message):
        open_graph(graph.url).partition(1).encodings["rwse-5"]


def test_an_older_algorithms_rows_are_not_found(stored):
    graph, _ = encode(stored(2, "graph"), RWSE)
    edit_manifest(graph.url, lambda body: body["encodings"]["rwse-5"].update(version=ALGORITHM_VERSION + 1))
    assert find_encoding(open_graph(graph.url), "rwse-5") is None
    assert tuple(stored_encodings(open_graph(graph.url))) == ()


def test_a_failed_write_leaves_no_encoding(stored, monkeypatch):
    graph = stored(2, "graph")
    before = all_files(graph.url)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in (
        "graphmill.storage.encoding.encode.write_batch",
        "graphmill.storage.snapshots.snapshot_writer.synced_entry",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(FormatError, match="cannot write this file: No space left on device"):
                encode(graph, RWSE)
    assert find_encoding(open_graph(graph.url), "rwse-5") is None
    assert all_files(graph.url) == before


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
    for bad, message in (({"dim": 0}, "set --dim"), ({"which": "largest"}, "set --which"), ({"kind": "orf"}, "kind: ")):
        with pytest.raises(ConfigError, match=message):
            EncodingOptions(**bad)


def test_rows_must_fit(stored):
    graph = stored(1)
    for rows in (np.zeros((60, 4), np.float32), np.zeros((59, 5), np.float32), np.zeros((60, 5))):
        with pytest.raises(ConfigError, match="expected float32 rows of shape"):
            store_encoding(graph, "rwse-5", rows)
