"""Copies of partitions have whole files of the origin. Each file is read once. Other files are refused."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphmill.cluster.ingestion.molecules import ingest_molecules
from graphmill.cluster.options import MoleculeIngestOptions
from graphmill.core.errors import ConfigError, FormatError
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.router import local_router
from graphmill.storage.encoding.encode import encode
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.graph import StoredGraph, copy_of, open_graph
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
from graphmill.storage.replicas import copied_files, file_stamps
from graphmill.storage.replicas.copied_files import copy_here, copy_manifest, copy_partition
from tests.listed_graph import random_listed_graph
from tests.stored_files import stored_file


@pytest.fixture
def origin(tmp_path: Path) -> StoredGraph:
    ingest(random_listed_graph(60, 300), str(tmp_path / "origin"), IngestOptions(num_partitions=3))
    return encode(open_graph(str(tmp_path / "origin")), EncodingOptions("rwse", 4))[0]


@pytest.fixture
def copy(origin: StoredGraph, tmp_path: Path) -> StoredGraph:
    copy = copy_of(origin, str(tmp_path / "copy"))
    copy_manifest(copy.url, copy.manifest)
    return copy


def test_a_copy_has_the_partitions_that_it_was_given_and_knows_its_origin(origin, copy):
    copied = copy_partition(copy, 1)
    assert copied.num_bytes == sum(entry.num_bytes for entry in origin.partition_files(1))
    opened = open_graph(copy.url)
    assert opened.manifest.origin == origin.path
    assert opened.manifest.content_hash == origin.manifest.content_hash
    np.testing.assert_array_equal(opened.partition(1, verify=True).feature, origin.partition(1).feature)
    np.testing.assert_array_equal(opened.partition(1).encodings["rwse-4"], origin.partition(1).encodings["rwse-4"])
    with pytest.raises(FormatError, match=r"part-00000/.*: expected a file"):
        opened.partition(0)
    assert not opened.is_here
    assert opened.whole().path == origin.path
    np.testing.assert_array_equal(NodeTables(opened).permanent_id, NodeTables(origin).permanent_id)


def test_a_copy_of_all_partitions_is_the_graph(origin, copy):
    for index in range(3):
        copy_partition(copy, index)
    opened = open_graph(copy.url)
    shutil.rmtree(origin.path)
    assert opened.is_here
    assert opened.whole() is opened
    opened.verify()
    ids = np.concatenate([each.original_id for each in opened.partitions()])
    np.testing.assert_array_equal(local_router(opened).fetch(np.arange(60)).original_id, ids)


def test_no_file_is_read_twice(copy, monkeypatch):
    first = copy_partition(copy, 1)

    def read(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(copied_files, "_copy_file", read)
    monkeypatch.setattr(copied_files.hashlib, "file_digest", read)
    monkeypatch.setattr(file_stamps, "file_digest", read)
    again = copy_partition(copy, 1)
    assert (again.verified, again.num_bytes) == (first.verified, 0)


@pytest.mark.parametrize("damage", ["bytes", "size", "gone"])
def test_what_is_not_the_origins_is_copied_again(origin, copy, damage):
    copy_partition(copy, 1)
    path = stored_file(copy.path, "part-00001/features.arrow")
    whole = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(whole[:-9] if damage == "size" else whole[:-9] + b"123456789")
    assert copy_partition(copy, 1).num_bytes == len(whole)
    assert path.read_bytes() == whole


def test_files_that_came_another_way_are_verified_and_kept(origin, copy):
    for entry in origin.partition_files(1):
        target = Path(copy.path, entry.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(origin.path, entry.path), target)
    assert copy_partition(copy, 1).num_bytes == 0
    assert copy_partition(copy, 1).verified == {entry.path for entry in origin.partition_files(1)}


def test_a_damaged_origin_leaves_nothing(origin, copy):
    path = stored_file(origin.path, "part-00001/features.arrow")
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"features\.arrow: expected sha256"):
        copy_partition(copy, 1)
    left = [name for _, _, names in os.walk(copy.path) for name in names if "features" in name]
    assert left == []


def test_a_full_disk_is_one_line_that_names_the_host(copy, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        FormatError, match=rf"on {os.uname().nodename}: cannot write this file: No space left"
    ) as raised:
        copy_partition(copy, 1)
    assert "\n" not in str(raised.value)
    assert not [name for _, _, names in os.walk(f"{copy.path}/data") for name in names]


def test_an_origin_that_is_gone_is_named(origin, copy):
    shutil.rmtree(origin.path)
    with pytest.raises(FormatError, match="origin: expected"):
        copy_partition(copy, 1)


def test_a_place_where_another_graph_is_is_refused(origin, tmp_path):
    ingest(random_listed_graph(60, 300, seed=1), str(tmp_path / "other"), IngestOptions(num_partitions=3))
    with pytest.raises(ConfigError, match="choose another url"):
        copy_manifest(str(tmp_path / "other"), copy_of(origin, "elsewhere").manifest)


def test_a_newer_snapshot_of_the_origin_copies_only_its_own_files(origin, copy, tmp_path):
    copy_partition(copy, 1)
    newer = encode(origin, EncodingOptions("rwse", 5))[0]
    later = copy_of(newer, copy.url)
    copy_manifest(later.url, later.manifest)
    assert copy_partition(later, 1).num_bytes == newer.manifest.encodings["rwse-5"].files_of(1)[0].num_bytes
    assert open_graph(copy.url).manifest.snapshot == newer.manifest.snapshot


@pytest.fixture
def molecules(tmp_path: Path) -> StoredGraphs:
    ingest_molecules(
        EnumeratedMolecules(30), str(tmp_path / "molecules"), MoleculeIngestOptions(chunk_rows=10, shard_rows=10)
    )
    return open_graphs(str(tmp_path / "molecules"))


def test_a_set_of_graphs_is_copied_whole_and_once(molecules, tmp_path):
    url = str(tmp_path / "copy")
    whole = sum(entry.num_bytes for entry in molecules.manifest.files.values())
    assert copy_here(molecules.url, 1, url) == whole
    copied = open_graphs(url)
    copied.verify()
    assert copied.content_hash == molecules.content_hash
    assert copied.manifest == replace(molecules.manifest, origin=molecules.url)
    assert molecules.manifest.origin is None
    assert copy_here(molecules.url, 1, url) == 0
    stored_file(url, "part-00001/graphs.arrow").write_bytes(b"damaged")
    assert copy_here(molecules.url, 1, url) == molecules.manifest.files["part-00001/graphs.arrow"].num_bytes
    open_graphs(url).verify()


def test_a_set_is_not_copied_over_anything_else(molecules, origin, tmp_path):
    before = sorted(Path(origin.path).rglob("*"))
    with pytest.raises(ConfigError, match="choose another url"):
        copy_here(molecules.url, 1, origin.url)
    assert sorted(Path(origin.path).rglob("*")) == before
    notes = tmp_path / "mine" / "data" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with pytest.raises(ConfigError, match=r"found other files \('data/notes\.txt'\); choose another url"):
        copy_here(molecules.url, 1, str(tmp_path / "mine"))
    assert list((tmp_path / "mine").rglob("*.arrow")) == []
    other = str(tmp_path / "other")
    copy_here(molecules.url, 1, other)
    for manifest in (replace(origin.manifest, snapshot=1), replace(molecules.manifest, name="an original, not a copy")):
        Path(other, "manifests", "000001.json").write_text(manifest.to_json())
        with pytest.raises(ConfigError, match=r"found the graph .*; choose another url"):
            copy_here(molecules.url, 1, other)


def test_a_damaged_origin_of_a_set_is_named(molecules, tmp_path):
    file = stored_file(molecules.url, "part-00002/graphs.arrow")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(FormatError, match=r"part-00002/graphs\.arrow: expected sha256"):
        copy_here(molecules.url, 1, str(tmp_path / "copy"))
    with pytest.raises(FormatError):
        open_graphs(str(tmp_path / "copy"))
