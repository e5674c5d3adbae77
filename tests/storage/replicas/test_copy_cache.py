"""A cache on this host's disk for graphs of an object store. Batches equal those of a local graph, files are copied once, the size is limited, and graphs in
use are not removed."""

import json
import os
import uuid
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.errors import ConfigError, DeadlineError, FormatError
from graphmill.core.files.file_lock import locked
from graphmill.samplers.access.router import local_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.encoding.encode import encode
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.replicas import copied_files, copy_cache
from graphmill.storage.replicas.copied_files import CopiedPartition
from graphmill.storage.replicas.copy_cache import CopyCache
from tests.listed_graph import random_listed_graph
from tests.reference_sampler import same_bytes

PLENTY = 1 << 30


def store(seed: int = 0) -> StoredGraph:
    url = f"memory://{uuid.uuid4().hex}/graph"
    ingest(random_listed_graph(200, 1500, seed=seed), url, IngestOptions(num_partitions=2))
    return open_graph(url)


def size(graph: StoredGraph) -> int:
    return sum(entry.num_bytes for index in range(2) for entry in graph.partition_files(index))


def copied(cache: CopyCache, graph: StoredGraph) -> int:
    """Uses the graph once. Returns the bytes that were read from the store."""
    with cache.holding(cache.copy_of(graph), range(2)) as copies:
        return sum(each.num_bytes for each in copies)


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.arrow*"))


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Records the reads of the store's files."""
    reads, read = list[str](), MemoryFileSystem.cat_file

    def counted(self, path, start=None, end=None, **more):
        reads.append(path)
        return read(self, path, start, end, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    return reads


def test_the_batches_are_those_of_the_graph_on_a_local_disk(tmp_path):
    ingest(random_listed_graph(200, 1500), str(tmp_path / "local"), IngestOptions(num_partitions=2))
    local, cache = open_graph(str(tmp_path / "local")), CopyCache(str(tmp_path / "cache"), PLENTY)
    copy = cache.copy_of(store())
    for scheme in ("uniform", "labor"):
        options = NeighborOptions(fanouts=(4, 3), batch_size=30, scheme=scheme)
        with cache.holding(copy, range(2)):
            kept = NeighborSampler(local_router(copy), options)
            for batch in range(3):
                same_bytes(kept.sample(0, batch), NeighborSampler(local_router(local), options).sample(0, batch))
    assert cache.copy_of(local) is local


def test_what_lies_here_is_not_read_from_the_store_again(tmp_path, reads):
    cache, graph = CopyCache(str(tmp_path), PLENTY), store()
    assert copied(cache, graph) == size(graph)
    reads.clear()
    assert copied(CopyCache(str(tmp_path), PLENTY), graph) == 0
    assert not [path for path in reads if path.endswith(".arrow")]
    later = encode(graph, EncodingOptions("rwse", 4))[0]  # from a later snapshot, only the new files are copied
    assert copied(cache, later) == size(later) - size(graph)
    assert on_disk(tmp_path) == size(later)


def test_a_process_copies_the_partitions_that_it_asks_for(tmp_path):
    cache, graph = CopyCache(str(tmp_path), PLENTY), store()
    copy = cache.copy_of(graph)
    with cache.holding(copy, [1]) as (one,):
        assert isinstance(one, CopiedPartition)
        assert one.num_bytes == on_disk(tmp_path) == sum(entry.num_bytes for entry in graph.partition_files(1))
        np.testing.assert_array_equal(copy.partition(1).feature, graph.partition(1).feature)


def test_the_graph_that_was_used_longest_ago_makes_room(tmp_path):
    graphs = [store(seed) for seed in range(3)]
    cache = CopyCache(str(tmp_path), sum(map(size, graphs)) - 1)
    for graph in (*graphs[:2], graphs[0]):
        copied(cache, graph)
    assert copied(cache, graphs[2]) == size(graphs[2])
    assert on_disk(tmp_path) <= cache.num_bytes
    assert copied(cache, graphs[0]) == 0
    assert copied(cache, graphs[1]) == size(graphs[1])


def test_a_graph_that_is_read_stays_and_a_new_one_is_refused(tmp_path, reads):
    first, second = store(0), store(1)
    cache = CopyCache(str(tmp_path), size(first) + size(second) - 1)
    with cache.holding(cache.copy_of(first), range(2)):
        reads.clear()
        with pytest.raises(ConfigError, match=r"graphs that other processes read; raise --servers\.disk_cache_bytes"):
            copied(cache, second)
        assert reads == []
    assert copied(cache, second) == size(second)
    assert on_disk(tmp_path) == size(second)


def test_a_graph_larger_than_the_bound_is_refused_before_anything_is_copied(tmp_path, reads):
    graph = store()
    reads.clear()
    with pytest.raises(ConfigError, match=r"found it too small; raise --servers\.disk_cache_bytes") as raised:
        copied(CopyCache(str(tmp_path), size(graph) - 1), graph)
    assert "\n" not in str(raised.value)
    assert reads == []
    assert on_disk(tmp_path) == 0
    assert copied(CopyCache(str(tmp_path), size(graph)), graph) == size(graph)


def test_what_a_killed_process_left_is_removed(tmp_path):
    first, second = store(0), store(1)
    cache = CopyCache(str(tmp_path), size(first) + size(second) - 1)
    copied(cache, first)
    entry = Path(cache.copy_of(first).path)
    some = next(entry.rglob("features.arrow"))
    unfinished = some.with_name(f".{some.name}.0123abcd")
    some.rename(unfinished)  # as if the process was killed while it copied
    removed = tmp_path / f"removed-{'0' * 32}"
    (removed / "data").mkdir(parents=True)  # as if the process was killed while it removed a graph
    assert copied(cache, first) == some.stat().st_size
    assert not unfinished.exists()
    copied(cache, second)
    assert not removed.exists()
    assert not entry.exists()


def test_a_damaged_copy_comes_from_the_store_again_and_a_damaged_store_is_named(tmp_path):
    cache, graph = CopyCache(str(tmp_path), PLENTY), store()
    copied(cache, graph)
    some = next(tmp_path.rglob("features.arrow"))
    some.write_bytes(some.read_bytes()[:-1])
    assert copied(cache, graph) == some.stat().st_size
    name = next(entry for entry in graph.partition_files(0) if entry.path.endswith("features.arrow")).path
    content = bytearray(graph.filesystem.cat_file(f"{graph.path}/{name}"))
    content[-9] ^= 1
    graph.filesystem.pipe_file(f"{graph.path}/{name}", bytes(content))
    with pytest.raises(FormatError, match=r"features\.arrow: expected sha256"):
        copied(CopyCache(str(tmp_path / "other"), PLENTY), graph)


def test_a_store_that_is_away_for_a_moment_is_asked_again_and_one_that_stays_away_is_one_line(tmp_path, monkeypatch):
    cache, graph, read = CopyCache(str(tmp_path), PLENTY), store(), MemoryFileSystem.cat_file
    away = [2]

    def absent(self, path, start=None, end=None, **more):
        if path.endswith(".arrow") and away[0]:
            away[0] -= 1
            raise ConnectionError("Could not connect to the endpoint URL")
        return read(self, path, start, end, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", absent)
    assert copied(cache, graph) == size(graph)
    assert away == [0]
    monkeypatch.setattr(copied_files, "_DEADLINE_S", 0.3)
    away[0] = 1000
    with pytest.raises(DeadlineError, match=r"cannot copy this file within 0\.3 s: .*Could not connect") as raised:
        copied(cache, store(1))
    assert "\n" not in str(raised.value)


def test_a_folder_that_another_process_holds_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(copy_cache, "_LOCK_S", 0.2)
    with ExitStack() as stack:
        stack.enter_context(locked(tmp_path / "lock", 1))
        with pytest.raises(DeadlineError, match="another process holds this lock"):
            copied(CopyCache(str(tmp_path), PLENTY), store())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=f"on {os.uname().nodename}: cannot use this folder as a cache") as raised:
        copied(CopyCache(str(tmp_path / "file"), PLENTY), store())
    assert "\n" not in str(raised.value)


def test_claims_are_the_sizes_that_the_manifest_names(tmp_path):
    cache, graph = CopyCache(str(tmp_path), PLENTY), store()
    copied(cache, graph)
    claimed = json.loads((Path(cache.copy_of(graph).path) / "claimed.json").read_text())
    assert sum(claimed.values()) == size(graph) == on_disk(tmp_path)


def test_folders_that_no_claim_of_ours_names_stay(tmp_path):
    own = tmp_path / "cache" / ("a" * 32)
    own.mkdir(parents=True)
    notes = [tmp_path / "cache" / name / "notes.txt" for name in ("b" * 32, "removed-mine")]
    for note in notes:
        note.parent.mkdir()
        note.write_text("mine")
    CopyCache(str(tmp_path / "cache"), 10)._make_room(own, 10)
    assert [note.read_text() for note in notes] == ["mine", "mine"]
