"""Stamps show which files changed during a run. Whether a changed file is accepted depends on its bytes."""

import os
import shutil
from pathlib import Path

import pytest

from graphmill.core.errors import FormatError
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps, unseen_stamps
from tests.listed_graph import random_listed_graph
from tests.stored_files import stored_file

NAME = "part-00001/features.arrow"


@pytest.fixture
def stored(tmp_path: Path) -> tuple[StoredGraph, FileStamps]:
    ingest(random_listed_graph(40, 160), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    graph = open_graph(str(tmp_path / "graph"))
    return graph, take_stamps(graph.url, graph.manifest.files.values())


def damage(path: Path) -> None:
    with open(path, "r+b") as stream:
        stream.seek(-9, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-9, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))


def test_unchanged_files_are_not_read(stored, monkeypatch):
    def digest(path):
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("graphmill.storage.replicas.file_stamps.file_digest", digest)
    assert stored[1].renewed() == stored[1]
    stored[1].check_untouched()


def test_a_byte_that_changes_in_place_is_found(stored):
    graph, stamps = stored
    stamps.verify()
    damage(stored_file(graph.path, NAME))
    for check in (stamps.verify, stamps.renewed, stamps.check_untouched):
        with pytest.raises(FormatError, match=f"{NAME}: expected the bytes that its manifest names") as raised:
            check()
        assert "\n" not in str(raised.value)
    take_stamps(graph.url, graph.partition_files(0)).verify()
    with pytest.raises(FormatError, match="features"):
        take_stamps(graph.url, graph.partition_files(1)).verify()


def test_stamps_that_no_file_has_make_the_first_look_read_all(stored):
    graph, stamps = stored
    unseen = unseen_stamps(graph.url, graph.manifest.files.values())
    assert unseen.renewed() == stamps
    damage(stored_file(graph.path, NAME))
    with pytest.raises(FormatError, match="features"):
        unseen.renewed()
    unseen.renewed(verified={graph.manifest.files[NAME].path})


def test_damage_from_before_the_stamps_is_found_by_reading(stored):
    graph, _ = stored
    damage(stored_file(graph.path, NAME))
    stamps = take_stamps(graph.url, graph.manifest.files.values())
    stamps.check_untouched()
    with pytest.raises(FormatError, match=NAME):
        stamps.verify()


def test_the_same_bytes_do_for_a_start_and_not_for_what_was_read_meanwhile(stored):
    graph, stamps = stored
    path = stored_file(graph.path, NAME)
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)
    with pytest.raises(FormatError, match=r"changed meanwhile .and holds the same bytes again"):
        stamps.check_untouched()
    stamps.renewed().check_untouched()


def test_a_file_that_goes_is_missed(stored):
    graph, stamps = stored
    stored_file(graph.path, NAME).unlink()
    with pytest.raises(FormatError, match="expected the file that the run began with, got: No such file"):
        stamps.check_untouched()
    with pytest.raises(FormatError, match="No such file"):
        take_stamps(graph.url, graph.manifest.files.values())


def test_files_of_other_filesystems_are_their_owners_affair():
    assert take_stamps("memory://nowhere/graph", []).stamps == ()
