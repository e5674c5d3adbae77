"""Tests many partitions on several hosts with many workers: start, requests of a batch, memory of a host beyond its mapped files, and connections.

A host is a process with one server for its partitions (`python -m tests.cluster.serving.test_many_partitions WORDS`). A worker is a sampler with own connections to
all hosts. Prints the figures of docs/guides/cluster.md.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphmill.cluster.transport.connection import Endpoint
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.process_memory import own_bytes
from graphmill.samplers.access.owners import Owner
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.access.typed_router import whole_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.reference_sampler import same_bytes

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = NeighborOptions(fanouts=(10, 5), batch_size=64)
MOST_BYTES = 2**30
THREADS = 8  # threads that draw batches at the same time, for all workers


class HostProcess:
    """The test's connection to the process of a host."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        host, port, token, self.start_s = self._line()
        self.endpoint = Endpoint(host, port, bytes.fromhex(token))

    def look(self) -> dict[str, int]:
        """Bytes of the process's own memory, and its numbers of connections, threads and open files."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def host_process(url: str, partitions: range) -> Iterator[HostProcess]:
    command = [sys.executable, "-m", __spec__.name, url, str(partitions.start), str(partitions.stop)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(600, process.kill)  # also ends a blocked read of its output
        watchdog.start()
        try:
            yield HostProcess(process)
        finally:
            watchdog.cancel()
            process.kill()


def main() -> None:
    url, first, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began, graph = time.process_time(), open_graph(url, kind=StoredGraph)
    owner = open_parts(graph, list(range(first, stop)), verify=True)
    server = MessageServer(owner.answer, "127.0.0.1", None, 2)
    end = server.endpoint
    print(json.dumps([end.host, end.port, end.token.hex(), time.process_time() - began]), flush=True)
    for _ in sys.stdin:
        told = {
            "own_bytes": own_bytes("RssAnon"),
            "connections": server.num_connections,
            "threads": threading.active_count(),
            "files": len(os.listdir("/proc/self/fd")),
        }
        print(json.dumps(told), flush=True)


def sampler_of(graph: StoredGraph, owned: list[tuple[range, Endpoint]]) -> tuple[NeighborSampler, Traffic]:
    """A worker without near partitions."""
    traffic, far = Traffic(graph.num_partitions), dict[int, Owner]()
    for partitions, endpoint in owned:
        remote = RemoteOwner(lambda _, endpoint=endpoint: endpoint, f"host of {partitions}", 120.0)
        far |= dict.fromkeys(partitions, traffic.watch(remote, partitions[0]))
    return NeighborSampler(whole_router(graph, watch=traffic.watch, far=far), OPTIONS), traffic


@pytest.mark.parametrize(
    ("num_partitions", "hosts", "workers"),
    [
        (48, 2, 4),
        pytest.param(256, 8, 64, marks=pytest.mark.long),
        pytest.param(1000, 8, 64, marks=pytest.mark.long),
    ],
)
def test_requests_and_memory_do_not_grow_with_the_partitions(tmp_path, num_partitions, hosts, workers):
    nodes = max(2000, 20 * num_partitions)
    source = SyntheticGraph(SyntheticOptions(num_nodes=nodes, mean_degree=10.0, feature_dim=16))
    ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=num_partitions))
    graph = open_graph(str(tmp_path / "graph"), kind=StoredGraph)
    cuts = [num_partitions * host // hosts for host in range(hosts + 1)]
    own = [range(start, stop) for start, stop in itertools.pairwise(cuts)]
    expected = NeighborSampler(local_router(graph), OPTIONS)
    with ExitStack() as stack:
        processes = [stack.enter_context(host_process(graph.url, partitions)) for partitions in own]
        owned = [(partitions, process.endpoint) for partitions, process in zip(own, processes, strict=True)]
        began, before = time.process_time(), own_bytes("RssAnon")
        made = [sampler_of(graph, owned) for _ in range(workers)]
        made[0][0].sample(0, 0)  # loads the loops
        start_s, grown = time.process_time() - began, own_bytes("RssAnon") - before
        earlier = made[0][1].by_partition().sum(axis=0)[0]
        with ThreadPoolExecutor(THREADS) as pool:
            drawn = list(
                pool.map(lambda worker: made[worker][0].sample(1, worker % made[0][0].num_batches), range(workers))
            )
        for worker in (0, workers - 1):
            same_bytes(drawn[worker], expected.sample(1, worker % expected.num_batches))
        looks = [process.look() for process in processes]
    requests = [int(traffic.by_partition().sum(axis=0)[0]) for _, traffic in made]
    requests[0] -= int(earlier)
    most = {name: max(look[name] for look in looks) for name in looks[0]}
    print(
        f"{num_partitions} partitions, {hosts} hosts, {workers} workers: a host opens in {max(each.start_s for each in processes):.1f} CPU s, has "
        f"{most['own_bytes'] / 2**20:.0f} MiB beyond its maps, {most['connections']} connections, {most['threads']} threads, {most['files']} open files; "
        f"a batch sends {max(requests)} requests; a worker starts in {start_s / workers:.2f} CPU s and has {grown / workers / 2**20:.1f} MiB"
    )
    # One message for each host and hop, and one for each host's rows. The first batch also asks each host for its roots.
    assert max(requests[1:]) <= hosts * len(OPTIONS.fanouts) + hosts + hosts
    assert requests[0] <= hosts * len(OPTIONS.fanouts) + hosts
    assert most["own_bytes"] < MOST_BYTES
    assert most["connections"] <= workers + THREADS


if __name__ == "__main__":
    main()
