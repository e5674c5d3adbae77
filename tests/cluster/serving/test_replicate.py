"""Tests a graph whose partitions are on the disks of the hosts. They are copied from the origin, served, lost and copied again."""

import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from graphmill.cluster.data.graph_set_data import GraphData
from graphmill.cluster.ingestion.molecules import ingest_molecules
from graphmill.cluster.options import MoleculeIngestOptions, ServerOptions
from graphmill.cluster.serving.partition_server import connect, connect_any, partition_servers, server_group
from graphmill.cluster.serving.replicate import place_graph
from graphmill.core.errors import ConfigError, FormatError
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from tests.listed_graph import random_listed_graph
from tests.reference_sampler import same_bytes
from tests.stored_files import stored_file

pytestmark = pytest.mark.ray


@pytest.fixture
def origin(shared_ray, tmp_path: Path) -> StoredGraph:
    ingest(random_listed_graph(200, 1500), str(tmp_path / "origin"), IngestOptions(num_partitions=2))
    return open_graph(str(tmp_path / "origin"))


def place(origin: StoredGraph, url: Path):
    told = []
    _, hosts = place_graph(origin.url, str(url), lambda *what: told.append(what))
    assert told == [("hosts", 1, 1)]
    return open_graph(str(url)), hosts


def test_a_placed_graph_gives_the_batches_of_its_origin(origin, tmp_path):
    copy, hosts = place(origin, tmp_path / "copy")
    assert [each.partitions for each in hosts] == [(0, 1)]
    assert hosts[0].num_bytes == sum(entry.num_bytes for index in (0, 1) for entry in origin.partition_files(index))
    assert place(origin, tmp_path / "copy")[1][0].num_bytes == 0
    options = NeighborOptions(fanouts=(4, 3), batch_size=30, scheme="labor")
    with partition_servers(open_graph(copy.url), ServerOptions(local_reads=False)) as servers:
        there = NeighborSampler(connect(servers), options)
        same_bytes(there.sample(0, 0), NeighborSampler(local_router(origin), options).sample(0, 0))


def test_what_the_disk_has_lost_comes_from_the_origin_again(origin, tmp_path):
    copy, _ = place(origin, tmp_path / "copy")
    expected = local_router(origin).fetch(np.arange(200)).feature
    lost = stored_file(copy.path, "part-00001/features.arrow")
    lost.unlink()
    with partition_servers(open_graph(copy.url), ServerOptions(local_reads=False)) as servers:
        assert lost.exists()
        shutil.rmtree(tmp_path / "copy")  # as on a new host without the files
        for server in servers.servers:
            os.kill(server.info.pid, signal.SIGKILL)
        np.testing.assert_array_equal(connect(servers).fetch(np.arange(200)).feature, expected)
        assert lost.exists()


def held(options: ServerOptions, graph: StoredGraph):
    """Copies the graph into the disk cache of these options. While the returned context is open, the cache keeps its first partition."""
    cache = options.disk_cache
    assert cache is not None
    return cache.holding(cache.copy_of(graph), [0])


def test_servers_keep_a_store_s_partitions_on_their_host_s_disk_for_all_its_processes(origin, tmp_path):
    stored = open_graph(f"simplecache::file://{origin.path}")  # not local, but actors can read it
    folder, options = tmp_path / "cache", NeighborOptions(fanouts=(4, 3), batch_size=30, scheme="labor")
    expected = NeighborSampler(local_router(origin), options).sample(0, 0)
    ingest(random_listed_graph(50, 90), str(tmp_path / "other"), IngestOptions(num_partitions=1))
    other = open_graph(f"simplecache::file://{tmp_path / 'other'}")
    whole = sum(entry.num_bytes for index in (0, 1) for entry in origin.partition_files(index))
    for local_reads in (True, False):
        kept = ServerOptions(local_reads=local_reads, disk_cache_dir=folder, disk_cache_bytes=whole)
        with partition_servers(stored, kept) as servers:
            assert [server.partitions for server in servers.near()] == (
                [(0, 1)] if local_reads else []
            )  # this process maps the files itself
            same_bytes(NeighborSampler(connect(servers), options).sample(0, 0), expected)
            with pytest.raises(ConfigError, match="graphs that other processes read"), held(kept, other):
                pass
        if local_reads:
            files = {path: path.stat().st_ino for path in folder.rglob("*.arrow")}
            assert len(files) == sum(len(origin.partition_files(index)) for index in (0, 1))
        else:
            assert files == {path: path.stat().st_ino for path in folder.rglob("*.arrow")}  # copied only once


def test_servers_leave_the_features_of_a_graph_on_its_store(origin):
    stored = open_graph(f"simplecache::file://{origin.path}")
    options = NeighborOptions(fanouts=(4, 3), batch_size=30, scheme="labor")
    with partition_servers(stored, ServerOptions(range_reads=True)) as servers:
        assert servers.graph.by_range
        there = NeighborSampler(connect(servers), options)
        same_bytes(there.sample(0, 0), NeighborSampler(local_router(origin), options).sample(0, 0))
    with (
        pytest.raises(ConfigError, match=r"leave out --servers\.range_reads"),
        server_group(origin, ServerOptions(range_reads=True)),
    ):
        pass


def test_partitions_that_no_host_has_are_named(origin, tmp_path):
    copy, _ = place(origin, tmp_path / "copy")
    stored_file(copy.path, "part-00001/features.arrow").unlink()
    shutil.rmtree(tmp_path / "origin")
    copied = open_graph(copy.url)
    with (
        pytest.raises(FormatError, match=r"partition server on .*, partitions 0 to 1: .*origin: expected") as raised,
        server_group(copied),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_a_typed_graph_is_placed_and_served_from_its_copy(shared_ray, tmp_path):
    origin, copy = str(tmp_path / "mag"), str(tmp_path / "copy")
    ingest(synthetic_mag(SyntheticMagOptions(scale=0.0004)), origin, IngestOptions(num_partitions=2))
    _, hosts = place_graph(origin, copy, lambda *what: None)
    assert [each.partitions for each in hosts] == [(0, 1)]
    lost = stored_file(copy, "part-00001/paper/features.arrow")
    lost.unlink()
    with partition_servers(open_graph(copy), ServerOptions(local_reads=False)) as servers:
        assert lost.exists()
        there, here = (router.nodes["paper"] for router in (connect_any(servers), typed_router(open_graph(origin))))
        np.testing.assert_array_equal(there.fetch(np.arange(90)).feature, here.fetch(np.arange(90)).feature)


@pytest.mark.parametrize("url", ["s3://bucket/copy", "origin"])
def test_a_place_that_is_no_disk_of_a_host_is_refused(origin, tmp_path, url):
    with pytest.raises(ConfigError, match=r"expected (a path on the hosts' own disks|another path)"):
        place(origin, tmp_path / url if url == "origin" else url)


def test_a_set_of_graphs_is_placed_on_every_host(shared_ray, tmp_path):
    origin, copy = str(tmp_path / "molecules"), str(tmp_path / "copy")
    ingest_molecules(EnumeratedMolecules(30), origin, MoleculeIngestOptions())
    told = []
    manifest, hosts = place_graph(origin, copy, lambda *what: told.append(what))
    assert told == [("hosts", 1, 1)]
    assert [each.num_bytes for each in hosts] == [sum(entry.num_bytes for entry in manifest.files.values())]
    assert open_graphs(copy).content_hash == manifest.content_hash
    with pytest.raises(ConfigError, match="expected another path than the origin's"):
        place_graph(origin, origin, lambda *what: None)


def test_a_worker_without_the_set_says_so(tmp_path):
    url = str(tmp_path / "molecules")
    ingest_molecules(EnumeratedMolecules(30), url, MoleculeIngestOptions())
    sent = pickle.dumps(GraphData(open_graphs(url)))
    assert len(pickle.loads(sent).open().store) == 30  # noqa: S301 - our own bytes
    shutil.rmtree(url)
    with pytest.raises(ConfigError, match=r"expected the run's graphs, found none; .*--place hosts"):
        pickle.loads(sent).open()  # noqa: S301
