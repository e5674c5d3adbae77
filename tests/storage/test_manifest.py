"""Manifests: what is written is read back, and nothing else is."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import FormatError
from storage.manifest import FileEntry, Manifest, expected_files, parse_manifest, partition_dir

ENTRY = FileEntry(num_bytes=10, sha256="0" * 64)


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
            **facts,
        }
    )
    files = {name: ENTRY for p in range(manifest.num_partitions) for name in expected_files(manifest, p)}
    return replace(manifest, files=files)


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


def test_ids_are_narrow_while_they_fit() -> None:
    for num_nodes, dtype in ((2**31 - 1, "int32"), (2**31, "int64")):
        assert make_manifest(num_nodes=num_nodes, partition_offsets=(0, num_nodes)).index_dtype == dtype


def test_the_content_hash_sees_names_and_checksums_only() -> None:
    manifest = make_manifest()
    assert replace(manifest, name="other", provenance={}).content_hash == manifest.content_hash
    changed = dict(manifest.files) | {"part-00001/nodes.arrow": FileEntry(10, "1" * 64)}
    assert replace(manifest, files=changed).content_hash != manifest.content_hash
    moved = {name.replace("part-00001", "part-00002"): entry for name, entry in manifest.files.items()}
    assert replace(manifest, files=moved).content_hash != manifest.content_hash


def test_directories_sort_by_partition() -> None:
    assert [partition_dir(p) for p in (0, 7, 12345)] == ["part-00000", "part-00007", "part-12345"]


def setting(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.__setitem__(key, value)


def dropping(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.__delitem__(key)


def adding_file(name: str, entry: object = None) -> Callable[[dict[str, Any]], None]:
    entry = {"num_bytes": 1, "sha256": "0" * 64} if entry is None else entry
    return lambda body: body["files"].__setitem__(name, entry)


NODES = "part-00000/nodes.arrow"

REFUSED_BODIES = {
    "unknown version": (setting("format_version", 2), "expected format_version 1, got 2"),
    "version of another type": (setting("format_version", "1"), "expected format_version 1, got '1'"),
    "version true": (setting("format_version", True), "expected format_version 1, got True"),
    "no version": (dropping("format_version"), "expected format_version 1, got None"),
    "other format": (setting("format", "parquet"), "expected format 'graphmill-graph', got 'parquet'"),
    "no format": (dropping("format"), "got None; this is not a Graphmill graph"),
    "many graphs": (setting("kind", "many-graphs"), "expected kind 'one-graph', got 'many-graphs'"),
    "no count": (dropping("num_nodes"), "'num_nodes': expected a count (integer >= 0), got 'None'"),
    "negative count": (setting("num_edges", -1), "'num_edges': expected a count"),
    "fractional count": (setting("num_edges", 1.5), "'num_edges': expected a count"),
    "true as a count": (setting("num_edges", True), "'num_edges': expected a count"),
    "text as a count": (setting("num_edges", "20"), "'num_edges': expected a count"),
    "huge count": (setting("num_edges", 2**63), "'num_edges': expected a count"),
    "huge width": (setting("feature_dim", 2**40), "'feature_dim': expected a width"),
    "huge edge width": (setting("edge_feature_dim", 2**31), "'edge_feature_dim': expected a width"),
    "huge number of splits": (setting("num_split_sets", 2**40), "'num_split_sets': expected a width"),
    "negative classes": (setting("num_classes", -5), "'num_classes': expected a count"),
    "classes without a number": (setting("num_classes", None), "'num_classes': expected a count exactly where"),
    "a number without classes": (setting("label_kind", "value"), "'num_classes': expected a count exactly where"),
    "offsets not a list": (setting("partition_offsets", 3), "'partition_offsets': expected a list"),
    "no partition": (setting("partition_offsets", [0]), "'partition_offsets': expected a list of at least 2"),
    "offsets not from 0": (setting("partition_offsets", [1, 4, 10]), "ascending integers from 0 to num_nodes = 10"),
    "offsets not to the end": (setting("partition_offsets", [0, 4, 9]), "ascending integers from 0"),
    "offsets descending": (setting("partition_offsets", [0, 7, 4, 10]), "ascending integers from 0"),
    "offsets of floats": (setting("partition_offsets", [0, 4.0, 10]), "'partition_offsets': expected a list"),
    "offsets of booleans": (setting("partition_offsets", [False, 4, 10]), "'partition_offsets': expected a list"),
    "more partitions than files": (setting("partition_offsets", [0, 4, 8, 10]), "an entry for part-00002/topology"),
    "unknown dtype": (setting("feature_dtype", "float64"), "'feature_dtype': expected null or one of"),
    "dtype without features": (setting("feature_dim", 0), "a dtype exactly where feature_dim is positive"),
    "features without dtype": (setting("feature_dtype", None), "a dtype exactly where feature_dim is positive"),
    "unknown labels": (setting("label_kind", ["class"]), "'label_kind': expected null or one of"),
    "flag of another type": (setting("has_edge_id", 0), "'has_edge_id': expected true or false"),
    "name of another type": (setting("name", 7), "'name': expected a string"),
    "provenance of another type": (setting("provenance", {"seed": 7}), "'provenance': expected an object of strings"),
    "files not an object": (setting("files", []), "'files': expected an object"),
    "path upwards": (adding_file("../../etc/passwd"), "only file names of the format"),
    "path upwards in disguise": (adding_file("part-00000/../../x/nodes.arrow"), "only file names of the format"),
    "absolute path": (adding_file("/etc/passwd"), "only file names of the format"),
    "file with a line break": (adding_file("part-00000/nodes.arrow\n"), "only file names of the format"),
    "URL as a file": (adding_file("s3://bucket/part-00000/nodes.arrow"), "only file names of the format"),
    "encoding upwards": (adding_file("part-00000/encodings/../../x.arrow"), "only file names of the format"),
    "encoding that is a folder": (adding_file("part-00000/encodings/a/b.arrow"), "only file names of the format"),
    "entry not an object": (adding_file(NODES, 7), "num_bytes and sha256 for part-00000/nodes.arrow"),
    "entry without a checksum": (adding_file(NODES, {"num_bytes": 7}), "num_bytes and sha256 for"),
    "entry with a short checksum": (adding_file(NODES, {"num_bytes": 7, "sha256": "abc"}), "num_bytes and sha256"),
    "entry of negative size": (adding_file(NODES, {"num_bytes": -7, "sha256": "0" * 64}), "num_bytes and sha256"),
    "changed checksum": (adding_file(NODES, {"num_bytes": 10, "sha256": "1" * 64}), "'content_hash': expected"),
    "changed content hash": (setting("content_hash", "0" * 64), "'content_hash': expected"),
    "no content hash": (dropping("content_hash"), "'content_hash': expected"),
}


@pytest.mark.parametrize("name", REFUSED_BODIES)
def test_a_changed_field_is_refused_in_one_line(name: str) -> None:
    change, message = REFUSED_BODIES[name]
    body = json.loads(make_manifest().to_json())
    change(body)
    refuse(json.dumps(body), message)


@pytest.mark.parametrize("key", sorted(json.loads(make_manifest().to_json()).keys() - {"num_classes", "label_kind"}))
def test_every_field_is_needed(key: str) -> None:
    body = json.loads(make_manifest().to_json())
    del body[key]
    refuse(json.dumps(body), "")


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
        parse_manifest(text, "graph/manifest.json")
    assert message in str(refused.value)
    assert str(refused.value).startswith("graph/manifest.json: ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
