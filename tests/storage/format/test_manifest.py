"""Written manifests are read back unchanged. Every other text is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.manifest import (
    EncodingEntry,
    Manifest,
    expected_files,
    parse_head,
    parse_manifest,
    partition_dir,
)

FOLDER = "data/000001-0123abcd"


def entry_of(name: str, sha256: str = "0" * 64) -> FileEntry:
    return FileEntry(num_bytes=10_000, sha256=sha256, path=f"{FOLDER}/{name}")


def make_manifest(**facts) -> Manifest:
    manifest = Manifest(
        **{
            "name": "npz:amazon",
            "num_nodes": 10,
            "num_edges": 20,
            "partition_offsets": (0, 4, 10),
            "feature_dim": 3,
            "feature_dtype": "float16",
            "label_kind": "class",
            "num_classes": 5,
            "num_split_sets": 2,
            "provenance": {"partitioner": "random", "source": "ogb 1.3.6, größer"},
            "snapshot": 3,
            "created": 1.5,
            **facts,
        }
    )
    names = [name for p in range(manifest.num_partitions) for name in expected_files(manifest, p)]
    return replace(manifest, files={name: entry_of(name) for name in names})


def with_encoding(manifest: Manifest) -> Manifest:
    """A manifest with an encoding, whose rows were stored by a later snapshot."""
    names = [f"{partition_dir(p)}/encodings/rwse-5.arrow" for p in range(manifest.num_partitions)]
    files = {name: FileEntry(7, "2" * 64, f"data/000002-00000000/{name}") for name in names}
    return replace(manifest, encodings={"rwse-5": EncodingEntry(1, files, {"seconds": "3"})})


@given(
    offsets=st.lists(st.integers(0, 100), min_size=1, max_size=5).map(lambda cuts: (0, *sorted(cuts))),
    feature_dim=st.integers(0, 3),
    edge_feature_dim=st.integers(0, 3),
    flags=st.lists(st.booleans(), min_size=2, max_size=2),
    labels=st.sampled_from([(None, None), ("class", 7), ("value", None)]),
    name=st.text(),
)
def test_a_manifest_survives_its_text(offsets, feature_dim, edge_feature_dim, flags, labels, name) -> None:
    manifest = make_manifest(
        name=name,
        num_nodes=offsets[-1],
        partition_offsets=offsets,
        feature_dim=feature_dim,
        feature_dtype="float32" if feature_dim else None,
        edge_feature_dim=edge_feature_dim,
        has_edge_id=flags[0],
        has_edge_weight=flags[1],
        label_kind=labels[0],
        num_classes=labels[1],
    )
    assert parse_manifest(manifest.to_json(), "here") == manifest
    encoded = with_encoding(manifest)
    assert parse_manifest(encoded.to_json(), "here") == encoded
    assert encoded.content_hash == manifest.content_hash


def test_the_head_of_a_manifest_of_any_kind_names_all_its_files() -> None:
    manifest = with_encoding(make_manifest())
    head = parse_head(manifest.to_json(), "here")
    assert (head.kind, head.snapshot, head.created) == ("one-graph", 3, 1.5)
    encoding = manifest.encodings["rwse-5"].files
    assert head.paths == {entry.path for entry in (*manifest.files.values(), *encoding.values())}
    body = json.loads(manifest.to_json())
    body["kind"] = "graphs-of-tomorrow"
    assert parse_head(json.dumps(body), "here").paths == head.paths


def test_ids_are_narrow_while_they_fit() -> None:
    for num_nodes, dtype in ((2**31 - 1, "int32"), (2**31, "int64")):
        assert make_manifest(num_nodes=num_nodes, partition_offsets=(0, num_nodes)).index_dtype == dtype


def test_the_content_hash_sees_names_and_checksums_only() -> None:
    manifest = make_manifest()
    assert replace(manifest, name="other", provenance={}).content_hash == manifest.content_hash
    elsewhere = {name: entry._replace(path=f"data/000002-00000000/{name}") for name, entry in manifest.files.items()}
    assert replace(manifest, files=elsewhere, snapshot=2, created=7.0).content_hash == manifest.content_hash
    changed = dict(manifest.files) | {"part-00001/nodes.arrow": entry_of("part-00001/nodes.arrow", "1" * 64)}
    assert replace(manifest, files=changed).content_hash != manifest.content_hash
    moved = {name.replace("part-00001", "part-00002"): entry for name, entry in manifest.files.items()}
    assert replace(manifest, files=moved).content_hash != manifest.content_hash


def test_directories_sort_by_partition() -> None:
    assert [partition_dir(p) for p in (0, 7, 12345)] == ["part-00000", "part-00007", "part-12345"]


Change = Callable[[dict[str, Any]], object]


def table(body: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the part of a manifest that `where` names: the manifest itself, the type of nodes, the type of edges, or the encoding."""
    inner = {"": body, "nodes": body["node_types"], "edges": body["edge_types"], "encoding": body["encodings"]}[where]
    return inner["rwse-5"] if where == "encoding" else inner[0] if where else inner


def setting(key: str, value: object, where: str = "") -> Change:
    return lambda body: table(body, where).__setitem__(key, value)


def nodes(key: str, value: object) -> Change:
    return setting(key, value, "nodes")


def edges(key: str, value: object) -> Change:
    return setting(key, value, "edges")


def dropping(key: str, where: str = "") -> Change:
    return lambda body: table(body, where).__delitem__(key)


def adding_file(name: str, entry: object = None, where: str = "", path: str = "") -> Change:
    """A change that adds an entry for a file, by default a valid entry of another file."""
    valid = {"num_bytes": 1, "sha256": "0" * 64, "path": path or f"{FOLDER}/part-00000/nodes.arrow"}
    return lambda body: table(body, where)["files"].__setitem__(name, valid if entry is None else entry)


def changing_file(**facts: object) -> Change:
    """A change of an entry in the manifest. None removes the entry."""

    def change(body: dict[str, Any]) -> None:
        entry = body["files"][NODES] | facts
        body["files"][NODES] = {key: value for key, value in entry.items() if value is not None}

    return change


NODES = "part-00000/nodes.arrow"

REFUSED_BODIES = {
    "version of before": (setting("format_version", 1), "expected format_version 2, got 1"),
    "unknown version": (setting("format_version", 3), "expected format_version 2, got 3"),
    "version of another type": (setting("format_version", "2"), "expected format_version 2, got '2'"),
    "version true": (setting("format_version", True), "expected format_version 2, got True"),
    "no version": (dropping("format_version"), "expected format_version 2, got None"),
    "other format": (setting("format", "parquet"), "expected format 'graphmill-graph', got 'parquet'"),
    "no format": (dropping("format"), "got None; this is not a Graphmill graph"),
    "many graphs": (setting("kind", "many-graphs"), "expected kind 'one-graph', got 'many-graphs'"),
    "what only later versions know": (
        setting("requires", ["string-ids"]),
        "requires ['string-ids'], which this version",
    ),
    "requirements of another type": (setting("requires", {}), "this graph requires {}"),
    "snapshot of another type": (setting("snapshot", "1"), "'snapshot': expected a count"),
    "negative snapshot": (setting("snapshot", -1), "'snapshot': expected a count"),
    "a date as text": (setting("created", "today"), "'created': expected seconds since 1970"),
    "a date that is none": (setting("created", float("nan")), "'created': expected seconds since 1970"),
    "a date before 1970": (setting("created", -1), "'created': expected seconds since 1970"),
    "a date beyond the calendar": (setting("created", 1e300), "'created': expected seconds since 1970"),
    "true as a date": (setting("created", True), "'created': expected seconds since 1970"),
    "types of nodes not a list": (setting("node_types", {}), "'node_types': expected a list of one object"),
    "no type of nodes": (setting("node_types", []), "'node_types': expected a list of one object"),
    "several types of edges": (
        lambda body: body["edge_types"].append({}),
        "'edge_types': expected a list of one object",
    ),
    "a type that is no object": (setting("node_types", [7]), "'node_types': expected an object"),
    "ids as text": (nodes("ids", "string"), "field 'files': expected an entry for part-00000/ids.arrow, got 'none'"),
    "another type of nodes": (nodes("name", "paper"), "'name': expected 'node', got 'paper'"),
    "edges from other nodes": (edges("source", "author"), "'source': expected 'node', got 'author'"),
    "edges to other nodes": (edges("target", 7), "'target': expected 'node', got 7"),
    "another relation": (edges("relation", "writes"), "'relation': expected 'edge', got 'writes'"),
    "no count": (dropping("num_nodes", "nodes"), "'num_nodes': expected a count (integer >= 0), got None"),
    "negative count": (edges("num_edges", -1), "'num_edges': expected a count"),
    "fractional count": (edges("num_edges", 1.5), "'num_edges': expected a count"),
    "true as a count": (edges("num_edges", True), "'num_edges': expected a count"),
    "text as a count": (edges("num_edges", "20"), "'num_edges': expected a count"),
    "huge count": (edges("num_edges", 2**63), "'num_edges': expected a count"),
    "huge width": (nodes("feature_dim", 2**40), "node_types: field 'feature_dim': expected a width"),
    "huge edge width": (edges("feature_dim", 2**31), "edge_types: field 'feature_dim': expected a width"),
    "huge number of splits": (nodes("num_split_sets", 2**40), "'num_split_sets': expected a width"),
    "negative classes": (nodes("num_classes", -5), "'num_classes': expected a count"),
    "classes without a number": (nodes("num_classes", None), "'num_classes': expected a count exactly where"),
    "a number without classes": (nodes("label_kind", "value"), "'num_classes': expected a count exactly where"),
    "offsets not a list": (nodes("partition_offsets", 3), "'partition_offsets': expected a list"),
    "no partition": (nodes("partition_offsets", [0]), "'partition_offsets': expected a list of at least 2"),
    "offsets not from 0": (nodes("partition_offsets", [1, 4, 10]), "ascending integers from 0 to num_nodes = 10"),
    "offsets not to the end": (nodes("partition_offsets", [0, 4, 9]), "ascending integers from 0"),
    "offsets descending": (nodes("partition_offsets", [0, 7, 4, 10]), "ascending integers from 0"),
    "offsets of floats": (nodes("partition_offsets", [0, 4.0, 10]), "'partition_offsets': expected a list"),
    "offsets of booleans": (nodes("partition_offsets", [False, 4, 10]), "'partition_offsets': expected a list"),
    "more partitions than files": (nodes("partition_offsets", [0, 4, 8, 10]), "one file for each partition"),
    "more partitions than files, without encodings": (
        lambda body: (setting("encodings", {})(body), nodes("partition_offsets", [0, 4, 8, 10])(body)),
        "an entry for part-00002/topology",
    ),
    "unknown dtype": (nodes("feature_dtype", "float64"), "'feature_dtype': expected null or one of"),
    "dtype without features": (nodes("feature_dim", 0), "a dtype exactly where feature_dim is positive"),
    "features without dtype": (nodes("feature_dtype", None), "a dtype exactly where feature_dim is positive"),
    "unknown labels": (nodes("label_kind", ["class"]), "'label_kind': expected null or one of"),
    "flag of another type": (edges("has_edge_id", 0), "'has_edge_id': expected true or false"),
    "name of another type": (setting("name", 7), "'name': expected a string"),
    "provenance of another type": (setting("provenance", {"seed": 7}), "'provenance': expected an object of strings"),
    "files not an object": (setting("files", []), "'files': expected an object"),
    "name upwards": (adding_file("../../etc/passwd"), "only file names of the format"),
    "name upwards in disguise": (adding_file("part-00000/../../x/nodes.arrow"), "only file names of the format"),
    "absolute name": (adding_file("/etc/passwd"), "only file names of the format"),
    "file with a line break": (adding_file("part-00000/nodes.arrow\n"), "only file names of the format"),
    "URL as a file": (adding_file("s3://bucket/part-00000/nodes.arrow"), "only file names of the format"),
    "encoding among the files": (adding_file("part-00000/encodings/rwse-5.arrow"), "only file names of the format"),
    "path upwards": (changing_file(path="data/000001-0123abcd/../../etc/passwd"), "paths below data/"),
    "path upwards in disguise": (changing_file(path=f"{FOLDER}/part-00000/../../x/{NODES}"), "paths below data/"),
    "absolute path": (changing_file(path="/etc/passwd"), "paths below data/"),
    "URL as a path": (changing_file(path=f"s3://bucket/{NODES}"), "paths below data/"),
    "path outside the data": (changing_file(path=NODES), "paths below data/"),
    "path in a folder of another name": (changing_file(path=f"data/mine/{NODES}"), "paths below data/"),
    "path with a line break": (changing_file(path=f"{FOLDER}/{NODES}\n"), "paths below data/"),
    "path that is no text": (changing_file(path=7), "paths below data/"),
    "no path": (changing_file(path=None), "paths below data/"),
    "path of another file": (changing_file(path=f"{FOLDER}/part-00001/nodes.arrow"), f"a path that ends in {NODES}"),
    "path with more before the name": (changing_file(path=f"{FOLDER}/x/{NODES}"), f"a path that ends in {NODES}"),
    "entry not an object": (adding_file(NODES, 7), "paths below data/"),
    "entry without a checksum": (changing_file(sha256=None), "num_bytes and sha256 for part-00000/nodes.arrow"),
    "entry with a short checksum": (changing_file(sha256="abc"), "num_bytes and sha256"),
    "entry without a size": (changing_file(num_bytes=None), "num_bytes and sha256"),
    "entry of negative size": (changing_file(num_bytes=-7), "num_bytes and sha256"),
    "changed checksum": (changing_file(sha256="1" * 64), "'content_hash': expected"),
    "changed content hash": (setting("content_hash", "0" * 64), "'content_hash': expected"),
    "no content hash": (dropping("content_hash"), "'content_hash': expected"),
    "encodings not an object": (setting("encodings", []), "'encodings': expected an object"),
    "an encoding that is no object": (setting("encodings", {"rwse-5": 7}), "'encodings: rwse-5': expected an object"),
    "encoding of no version": (dropping("version", "encoding"), "'version': expected a count"),
    "encoding of no provenance": (dropping("provenance", "encoding"), "'provenance': expected an object of strings"),
    "encoding without files": (setting("files", {}, "encoding"), "one file for each partition"),
    "encoding of one partition": (
        lambda body: table(body, "encoding")["files"].popitem(),
        "encodings: rwse-5: field 'files': expected one file for each partition",
    ),
    "encoding twice": (
        adding_file("part-00000/encodings/x.arrow", where="encoding", path=f"{FOLDER}/part-00000/encodings/x.arrow"),
        "one file for each partition",
    ),
    "encoding upwards": (adding_file("part-00000/encodings/../../x.arrow", where="encoding"), "only file names of the"),
    "encoding that is a folder": (adding_file("part-00000/encodings/a/b.arrow", where="encoding"), "only file names"),
    "a graph's file as an encoding": (adding_file(NODES, where="encoding"), "only file names of the format"),
    "encoding at another's path": (
        adding_file("part-00000/encodings/rwse-5.arrow", where="encoding"),
        "a path that ends in part-00000/encodings/rwse-5.arrow",
    ),
    "encoding outside": (
        adding_file("part-00000/encodings/rwse-5.arrow", where="encoding", path="/etc/passwd"),
        "paths below data/",
    ),
}


@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_a_changed_field_is_refused_in_one_line(name: str) -> None:
    change, message = REFUSED_BODIES[name]
    body = json.loads(with_encoding(make_manifest()).to_json())
    change(body)
    refuse(json.dumps(body), message)


OF_0_3 = ("feature_layout", "feature_slots", "num_groups", "has_node_time", "has_edge_time")
WHOLE = json.loads(with_encoding(make_manifest()).to_json())


@pytest.mark.parametrize(
    ("where", "key"),
    [
        (where, key)
        for where in ("", "nodes", "edges", "encoding")
        for key in sorted(table(WHOLE, where))
        if key not in OF_0_3
    ],
)
def test_every_field_is_needed(where: str, key: str) -> None:
    body = json.loads(json.dumps(WHOLE))
    del table(body, where)[key]
    refuse(json.dumps(body), "")


def test_a_graph_of_0_2_has_dense_features_and_no_groups() -> None:
    body = json.loads(json.dumps(WHOLE))
    for key in OF_0_3:
        del table(body, "edges" if key == "has_edge_time" else "nodes")[key]
    manifest = parse_manifest(json.dumps(body), "here")
    assert manifest.feature_rows == FeatureRows(3, "float16")
    assert manifest.num_groups == 0


@pytest.mark.parametrize(("layout", "slots"), [("indices", 0), ("entries", 4), ("bits", 1), ("csr", 0)])
def test_feature_rows_that_cannot_be(layout: str, slots: int) -> None:
    body = json.loads(json.dumps(WHOLE))
    table(body, "nodes").update(feature_layout=layout, feature_slots=slots)
    refuse(json.dumps(body), "feature_layout")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON, got broken text"),
        ("{", "expected JSON, got broken text"),
        (make_manifest().to_json()[:-40], "expected JSON, got broken text"),
        ("[1, 2]", "expected format 'graphmill-graph', got 'list'"),
        ("null", "got 'NoneType'"),
        ('{"nodes": 3}', "got None; this is not a Graphmill graph"),
        ("[" * 100_000, "expected JSON, got broken text"),
        ('{"num_nodes": ' + "9" * 5000 + "}", "expected JSON, got broken text"),
    ],
    ids=["empty", "open", "cut short", "list", "null", "other JSON", "deep", "endless number"],
)
def test_other_text_is_refused_in_one_line(text: str, message: str) -> None:
    refuse(text, message)


def refuse(text: str, message: str) -> None:
    with pytest.raises(FormatError) as refused:
        parse_manifest(text, "graph/manifests/000003.json")
    assert message in str(refused.value)
    assert str(refused.value).startswith("graph/manifests/000003.json: ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
