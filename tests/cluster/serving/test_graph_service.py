"""Tests a graph service: jobs find it by the graph's digest, get the same batches, read the store once, and leave it running. It ends when nobody uses it."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray

from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving import graph_service
from graphmill.cluster.serving.graph_service import Uses, end_service, find_service, shared_or_own, start_service
from graphmill.cluster.serving.partition_server import connect
from graphmill.core.errors import ConfigError
from graphmill.jobs import serve_graph, train_nodes
from graphmill.samplers.access.router import local_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.job_in_process import output_of, run_job
from tests.listed_graph import random_listed_graph
from tests.reference_sampler import same_bytes
from tests.runs import curve
from tests.waiting import wait_until

REMOTE = ServerOptions(local_reads=False)
SAMPLER = NeighborOptions(fanouts=(4, 3), batch_size=30, scheme="labor")


def test_a_service_is_over_when_no_job_has_used_it_for_a_while():
    uses = Uses(idle_s=10.0, now_s=0.0)
    assert not uses.is_over(9.0)
    assert uses.is_over(11.0)
    uses.renew("a", 11.0)
    uses.renew("b", 12.0)
    assert uses.count(13.0) == 2
    uses.leave("a", 13.0)
    assert uses.count(13.0) == 1
    assert uses.count(23.0) == 0  # b was killed: it renews no more
    assert not uses.is_over(23.0)
    uses.leave("a", 23.0)  # a job that has left does not prolong the service
    assert uses.is_over(24.0)


@pytest.fixture
def graph(shared_ray, tmp_path: Path) -> Iterator[StoredGraph]:
    ingest(random_listed_graph(200, 1500), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    graph = open_graph(str(tmp_path / "graph"))
    yield graph
    end_service(graph)


def jobs(graph: StoredGraph) -> int:
    return ray.get(find_service(graph).state.remote(), timeout=30).jobs


def pids(group: Any) -> list[int]:
    return [server.info.pid for server in group.running().servers]


@pytest.mark.ray
def test_jobs_share_a_service_and_leave_it_alive(graph):
    expected = NeighborSampler(local_router(graph), SAMPLER).sample(0, 0)
    said: list[str] = []
    state, _ = start_service(graph, REMOTE, idle_s=600.0)
    assert (state.jobs, state.num_partitions) == (0, 2)
    with shared_or_own(graph, REMOTE, said.append) as first, shared_or_own(graph, REMOTE, said.append) as second:
        assert pids(first) == pids(second)
        assert jobs(graph) == 2
        same_bytes(NeighborSampler(connect(first.running()), SAMPLER).sample(0, 0), expected)
        os.kill(pids(first)[0], signal.SIGKILL)
        same_bytes(NeighborSampler(connect(second.running()), SAMPLER).sample(0, 0), expected)
    wait_until(lambda: jobs(graph) == 0)
    assert "beside 0 other jobs" in said[0]
    assert "beside 1 other job" in said[1]
    never, other = ServerOptions(service="never"), ServerOptions(work_threads=3)
    for options in (never, other):
        with shared_or_own(graph, options, said.append) as own:
            assert not isinstance(own, graph_service.JoinedService)
    assert "other values of --servers.work_threads" in said[2]
    with pytest.raises(ConfigError, match=r"other values of work_threads; end it first: --end"):
        start_service(graph, other, idle_s=600.0)
    end_service(graph)
    with (
        pytest.raises(ConfigError, match="start one: graphmill serve-graph"),
        shared_or_own(graph, ServerOptions(service="always"), said.append),
    ):
        pass


@pytest.mark.ray
def test_a_service_ends_without_jobs_and_a_job_goes_on_without_its_service(graph):
    said: list[str] = []
    expected = NeighborSampler(local_router(graph), SAMPLER).sample(0, 0)
    start_service(graph, REMOTE, idle_s=3.0)
    with shared_or_own(graph, REMOTE, said.append) as joined:
        before = pids(joined)
        threading.Event().wait(5.0)  # longer than idle_s: the job renews its use
        assert pids(joined) == before
        end_service(graph)
        wait_until(lambda: find_service(graph) is None)
        same_bytes(NeighborSampler(connect(joined.running(say=said.append)), SAMPLER).sample(0, 0), expected)
        assert "this job starts its own partition servers" in said[-1]
    start_service(graph, REMOTE, idle_s=5.0)
    wait_until(lambda: find_service(graph) is None)


@contextmanager
def counted_store(folder: Path) -> Iterator[tuple[str, Counter]]:
    """Serves a folder over HTTP. Yields its URL, and a counter of the bytes that were read from each file."""
    read: Counter = Counter()

    class Store(SimpleHTTPRequestHandler):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            content = source.read()
            read[self.path] += len(content)
            outputfile.write(content)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Store, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", read
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.ray
@pytest.mark.long
def test_two_jobs_read_the_store_once_and_train_the_same(shared_ray, tmp_path):
    """Two jobs with a service read at most 1.05 times the bytes of one job without it, and all of them have the same losses."""
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=12_000)), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    run = [
        *(
            "--model.width",
            "8",
            "--model.num_layers",
            "1",
            "--fit.epochs",
            "2",
            "--workers",
            "1",
            "--workers.launcher",
            "ray",
        ),
        *("--sampler", "neighbor", "--sampler.fanouts", "3", "--evaluation", "sampled"),
    ]
    with counted_store(tmp_path) as (url, read):
        words = [*run, "--data", f"{url}/graph"]
        output_of(train_nodes.main, *words, "--run.dir", "alone", "--servers.service", "never", cwd=tmp_path)
        alone, _ = read.total(), read.clear()
        said = output_of(serve_graph.main, f"{url}/graph", "--idle_s", "600", cwd=tmp_path)
        assert "2 partitions on one host; 0 jobs now, ends after 600 s without a job" in said
        for name in ("first", "second"):
            said = output_of(train_nodes.main, *words, "--run.dir", name, cwd=tmp_path)
            assert "using the graph service" in said
            assert curve(tmp_path / name, "train_loss") == curve(tmp_path / "alone", "train_loss")
        assert "is ended" in output_of(serve_graph.main, f"{url}/graph", "--end", cwd=tmp_path)
    print(f"bytes: one job alone {alone:,}, service and two jobs {read.total():,}, ratio {read.total() / alone:.4f}")
    assert read.total() <= 1.05 * alone


def test_a_service_needs_a_cluster(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("graphmill.cluster.ray.session.joins_a_cluster", lambda options: False)
    done = run_job(serve_graph.main, [str(tmp_path / "graph")])
    assert done.returncode == 1
    assert "expected a running Ray cluster, since the service outlives this command" in done.stderr
