"""Batches from partition servers on a real Ray equal batches that are read in process. Every failure ends in time, with a message of one line."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving.partition_server import (
    PartitionServers,
    ServedFiles,
    connect,
    partition_servers,
    remote_owner,
)
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.errors import ConfigError, DamageError, DeadlineError, FormatError, GraphmillError, StageError
from graphmill.samplers.access.owners import LocalOwner, PartOfOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.vocabulary.messages import FetchRows, NodeRows, SampleNeighbors
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions, RandomPartitionOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph
from tests.reference_sampler import same_bytes
from tests.stored_files import stored_file

pytestmark = pytest.mark.ray
REMOTE = ServerOptions(local_reads=False)


@pytest.fixture(scope="module")
def ray(shared_ray) -> object:
    import ray

    return ray


def store(url: Path, num_partitions: int, seed: int = 0) -> StoredGraph:
    ingest(random_listed_graph(200, 1500, seed), str(url), IngestOptions(num_partitions=num_partitions))
    return open_graph(str(url))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return store(tmp_path_factory.mktemp("served") / "graph", 2)


@pytest.fixture(scope="module")
def servers(ray, graph: StoredGraph) -> Iterator[PartitionServers]:
    with partition_servers(graph, REMOTE) as servers:
        yield servers


def pid_now(ray, servers: PartitionServers) -> int:
    """The process of the only server, after restarts too."""
    (server,) = servers.servers
    return ray.get(server.handle.open.remote(False), timeout=600).pid


def far_owner(servers: PartitionServers, partition: int, timeout_s: float) -> PartOfOwner:
    (server,) = servers.servers
    return PartOfOwner(remote_owner(server.handle, "partition server", timeout_s=timeout_s), str(partition))


@pytest.mark.parametrize("num_partitions", [1, 2, 4])
def test_servers_yield_the_batches_of_one_process(ray, num_partitions: int, tmp_path: Path) -> None:
    whole = local_router(store(tmp_path / "whole", 1))
    with partition_servers(store(tmp_path / "graph", num_partitions), REMOTE) as servers:
        remote = connect(servers)
        assert all(isinstance(owner.whole, RemoteOwner) for owner in remote._owners)
        assert len({id(owner.whole) for owner in remote._owners}) == len(servers.servers) == 1
        for options in (
            NeighborOptions(fanouts=(4, 0, 3), batch_size=30, seed=5),
            NeighborOptions(fanouts=(-1, 2), batch_size=30, edges="induced"),
        ):
            here, there = NeighborSampler(whole, options, 2), NeighborSampler(remote, options, 2)
            assert here.num_batches == there.num_batches
            for epoch, batch in ((0, 0), (3, here.num_batches - 1)):
                same_bytes(there.sample(epoch, batch), here.sample(epoch, batch))
        for chunks in (1, 3, 64):
            chunked = RandomPartitionOptions(num_chunks=chunks, seed=5)
            here, there = RandomPartitionSampler(whole, chunked), RandomPartitionSampler(remote, chunked)
            same_bytes(there.sample(1, chunks - 1), here.sample(1, chunks - 1))


def test_partitions_on_this_node_are_read_in_process(ray, servers: PartitionServers, graph: StoredGraph) -> None:
    near = connect(replace(servers, options=ServerOptions(local_reads=True)))
    assert all(isinstance(owner, LocalOwner) for owner in near._owners)
    options = NeighborOptions(fanouts=(3, 3), batch_size=50)
    same_bytes(NeighborSampler(near, options).sample(0, 0), NeighborSampler(connect(servers), options).sample(0, 0))

    @ray.remote(num_cpus=0)
    def sample_elsewhere(servers: PartitionServers):
        return NeighborSampler(connect(servers), options).sample(0, 0)

    same_bytes(
        ray.get(sample_elsewhere.remote(servers), timeout=600),
        NeighborSampler(local_router(graph), options).sample(0, 0),
    )


def test_a_killed_server_is_back_with_the_next_request(ray, servers: PartitionServers, graph: StoredGraph) -> None:
    before = pid_now(ray, servers)
    os.kill(before, signal.SIGKILL)
    reply = far_owner(servers, 1, timeout_s=60).submit(FetchRows(np.array([150, 101]))).result()
    assert isinstance(reply, NodeRows)
    assert reply.original_id.tolist() == graph.partition(1).original_id[[50, 1]].tolist()
    assert pid_now(ray, servers) != before


def test_servers_killed_under_a_loader_cost_no_batch(ray, servers: PartitionServers, graph: StoredGraph) -> None:
    options = NeighborOptions(fanouts=(5, 5), batch_size=4, seed=2)
    undisturbed = NeighborSampler(local_router(graph), options)
    sampler = NeighborSampler(connect(servers), options)
    assert sampler.num_batches > 15
    with Loader(sampler, LoaderOptions(threads=2, prefetch=3)) as loader:
        for step, batch in enumerate(loader.epoch(0)):
            if step in (3, 9):
                os.kill(pid_now(ray, servers), signal.SIGKILL)
            expected = undisturbed.sample(0, step)
            assert batch.node_id.tolist() == expected.node_id.tolist()
            assert batch.indices.tolist() == expected.indices.tolist()
        assert loader.stats.num_batches == sampler.num_batches


def test_a_stopped_server_meets_the_deadline_and_goes_on_after_it(ray, servers: PartitionServers) -> None:
    pid = pid_now(ray, servers)
    node = np.array([1, 2])
    owner = far_owner(servers, 0, timeout_s=0.7)
    os.kill(pid, signal.SIGSTOP)
    try:
        start = time.perf_counter()
        with pytest.raises(DeadlineError) as raised:
            owner.submit(FetchRows(node)).result()
        assert 0.6 < time.perf_counter() - start < 5
        assert str(raised.value).startswith("partition server: no answer within 0.7 s")
        assert "\n" not in str(raised.value)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert isinstance(far_owner(servers, 0, timeout_s=30).submit(FetchRows(node)).result(), NodeRows)
    assert pid_now(ray, servers) == pid


def test_a_stopped_server_ends_a_training_epoch_in_time(ray, servers: PartitionServers) -> None:
    router = connect(replace(servers, options=ServerOptions(local_reads=False, timeout_s=0.7)))
    sampler = NeighborSampler(router, NeighborOptions(fanouts=(5,), batch_size=4))
    assert sampler.num_batches > 3
    pid = pid_now(ray, servers)
    with Loader(sampler) as loader:
        batches = loader.epoch(0)
        next(batches)
        os.kill(pid, signal.SIGSTOP)
        try:
            start = time.perf_counter()
            with pytest.raises(
                GraphmillError, match=r"stage .*partition server on .*, partitions 0 to 1: no answer within"
            ):
                list(batches)
            assert time.perf_counter() - start < 10
        finally:
            os.kill(pid, signal.SIGCONT)


def test_an_error_in_a_request_names_the_server(servers: PartitionServers) -> None:
    owner = far_owner(servers, 0, timeout_s=30)
    with pytest.raises(ConfigError) as raised:
        owner.submit(SampleNeighbors(np.array([150]), 3, 0)).result()
    assert str(raised.value) == "partition server: partition 0 owns the nodes [0, 100), got 150"
    with pytest.raises(StageError, match="partition server: TypeError") as other:
        owner.submit(SampleNeighbors(None, 3, 0)).result()  # type: ignore[arg-type]
    assert "\n" not in str(other.value)


def test_servers_end_with_their_block(ray, graph: StoredGraph) -> None:
    with partition_servers(graph) as servers:
        assert [server.partitions for server in servers.servers] == [(0, 1)]
        processes = [psutil.Process(server.info.pid) for server in servers.servers]
        router = connect(replace(servers, options=replace(REMOTE, timeout_s=20)))
    assert not psutil.wait_procs(processes, timeout=20)[1]
    with pytest.raises(StageError) as raised:
        router.fetch(np.array([1]))
    assert "partitions 0 to 1: the server is gone (ActorDiedError): " in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["topology", "features"])
def test_a_damaged_file_is_refused_at_the_start(ray, name: str, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    path = stored_file(tmp_path / "graph", f"part-00001/{name}.arrow")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(FormatError) as raised, partition_servers(graph):
        pass
    assert str(raised.value).startswith("partition server on ")
    assert f"part-00001/{name}.arrow: expected sha256" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_server_that_comes_back_to_another_graph_refuses_it(ray, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    with partition_servers(graph, REMOTE) as servers:
        router = connect(servers)
        expected = router.fetch(np.array([3, 150]))
        shutil.rmtree(tmp_path / "graph")
        store(tmp_path / "graph", 2, seed=1)
        np.testing.assert_array_equal(router.fetch(np.array([3, 150])).feature, expected.feature)
        os.kill(servers.servers[0].info.pid, signal.SIGKILL)
        with pytest.raises(FormatError) as raised:
            router.fetch(np.array([150]))
        assert str(raised.value).startswith("partition server on ")
        assert "expected the graph that the run began with" in str(raised.value)
        assert "\n" not in str(raised.value)
        with pytest.raises(FormatError, match="expected the graph that the run began with"):
            connect(servers)


def test_a_server_that_comes_back_serves_the_snapshot_that_the_run_began_with(ray, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    with partition_servers(graph, REMOTE) as servers:
        router = connect(servers)
        expected = router.fetch(np.array([3, 150]))
        options = IngestOptions(num_partitions=2, overwrite=True)
        ingest(random_listed_graph(200, 1500, seed=1), str(tmp_path / "graph"), options)
        os.kill(servers.servers[0].info.pid, signal.SIGKILL)
        np.testing.assert_array_equal(router.fetch(np.array([3, 150])).feature, expected.feature)
        np.testing.assert_array_equal(connect(servers).fetch(np.array([3, 150])).feature, expected.feature)


def test_a_server_that_comes_back_to_a_damaged_file_names_it(ray, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    with partition_servers(graph, REMOTE) as servers:
        router = connect(servers)
        path = stored_file(tmp_path / "graph", "part-00001/features.arrow")
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
        os.kill(servers.servers[0].info.pid, signal.SIGKILL)
        with pytest.raises(FormatError, match=r"partition server on .*features\.arrow: expected the bytes") as raised:
            router.fetch(np.array([150]))
        assert "\n" not in str(raised.value)
        with pytest.raises(FormatError, match=r"features\.arrow: expected the bytes that its manifest names"):
            connect(replace(servers, options=ServerOptions(local_reads=True)))


def test_a_file_that_is_cut_or_overwritten_under_a_server_is_named(ray, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    with partition_servers(graph, REMOTE) as servers:
        router = connect(servers)
        router.sample_neighbors(np.array([150]), 3, 0)
        indices = graph.partition(1).indices
        path = stored_file(tmp_path / "graph", "part-00001/topology.arrow")
        place = path.read_bytes().index(indices.tobytes())
        with path.open("r+b") as stream:
            stream.seek(place)
            stream.write(np.full_like(indices, 10**9).tobytes())
        with pytest.raises(
            DamageError, match=r"^partition server on .*part-00001/topology\.arrow: expected the bytes that"
        ):
            router.sample_neighbors(np.array([150]), 3, 0)
        os.truncate(stored_file(tmp_path / "graph", "part-00000/features.arrow"), 0)  # its server dies and is restarted
        with pytest.raises(
            FormatError, match=r"^partition server on .*part-00000/features\.arrow: expected the bytes"
        ) as raised:
            router.fetch(np.array([50]))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("local_reads", [True, False])
def test_a_file_that_changes_under_a_run_is_found_by_whoever_reads_it(ray, local_reads: bool, tmp_path: Path) -> None:
    graph = store(tmp_path / "graph", 2)
    with partition_servers(graph, ServerOptions(local_reads=local_reads)) as servers:
        files = ServedFiles(servers)
        files.check(0, 1)
        path = stored_file(tmp_path / "graph", "part-00001/features.arrow")
        os.utime(path)
        with pytest.raises(
            FormatError, match=r"features\.arrow: expected the file that the run reads to stay untouched"
        ):
            files.check(0, 1)
        if not local_reads:
            files.check(1, 2)  # the other rank asks the server
            with pytest.raises(FormatError, match="partition server on "):
                files.check(0, 2)


def test_memory_urls_cannot_be_served() -> None:
    ingest(random_listed_graph(10, 20), "memory://served/graph")
    with (
        pytest.raises(ConfigError, match="memory:// lives in one process"),
        partition_servers(open_graph("memory://served/graph")),
    ):
        pass


def test_routers_need_an_owner_per_partition(graph: StoredGraph) -> None:
    with pytest.raises(ConfigError, match=r"expected one owner per partition \(2\), got 0"):
        Router(graph.manifest, [])
