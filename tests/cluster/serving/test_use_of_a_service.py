"""Tests the use of a graph service with a fake in place of Ray: what a job does if the service is gone, is another one or cannot be reached; who may end it."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.serving import graph_service
from graphmill.cluster.serving.graph_service import (
    GraphService,
    ServiceState,
    end_service,
    shared_or_own,
    start_service,
)
from graphmill.cluster.serving.partition_server import PartitionServers
from graphmill.core.errors import ClusterLostError, ConfigError, DeadlineError, StageError
from tests.waiting import wait_until

OPTIONS = ServerOptions()
GRAPH: Any = SimpleNamespace(
    url="graph", manifest=SimpleNamespace(content_hash="a", encodings={}, num_bytes=0), pin=lambda: None
)


class Service:
    """A fake handle of a service. A reference is a function that gives the answer."""

    def __init__(self, options: ServerOptions = OPTIONS, idle_s: float = 600.0, made_by: str = "another") -> None:
        self.told = ServiceState("graph", 0, idle_s, 1, options, made_by)
        self.is_gone = False
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def remote(*_: Any) -> Callable[[], Any]:
            self.calls[name] += 1

            def answer() -> Any:
                if self.is_gone and name == "join":
                    raise StageError("the server is gone")
                return {"state": self.told, "join": (PartitionServers(GRAPH, (), OPTIONS), [])}.get(name, "")

            return answer

        return SimpleNamespace(remote=remote)


class Own:
    """A fake group of a job's own servers."""

    made: list[tuple[Any, ...]] = []  # noqa: RUF012  cleared before each test

    def __init__(self, *words: Any) -> None:
        Own.made.append(words)

    def running(self, *_: Any) -> PartitionServers:
        return PartitionServers(GRAPH, (), OPTIONS)

    def stop(self) -> None:
        """Ends nothing."""


@pytest.fixture
def cluster(monkeypatch) -> SimpleNamespace:
    """A fake cluster with at most one service."""
    fake = SimpleNamespace(service=None, starts=None, killed=[])

    def get_actor(*_: Any, **__: Any) -> Service:
        if fake.service is None:
            raise ValueError("no such name")
        return fake.service

    def start(_graph: Any, options: ServerOptions, idle_s: float, made_by: str) -> Service:
        fake.service = fake.service or fake.starts or Service(options, idle_s, made_by)
        return fake.service

    def answered(reference: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return reference()

    ray = SimpleNamespace(
        get_actor=get_actor,
        get=answered,
        remote=lambda **_: lambda _: SimpleNamespace(remote=start),
        get_runtime_context=lambda: SimpleNamespace(current_actor="service"),
        kill=lambda actor, **_: fake.killed.append(actor),
    )
    monkeypatch.setattr(graph_service, "ray", ray)
    monkeypatch.setattr(graph_service, "answer", answered)
    monkeypatch.setattr(graph_service, "answers_in_time", lambda references, _: [each() for each in references])
    monkeypatch.setattr(graph_service, "ServerGroup", Own)
    Own.made.clear()
    return fake


def test_a_job_without_its_service_starts_servers_for_its_own_workers_and_requests(cluster):
    cluster.service, workers, said = Service(), WorkerOptions(num_workers=3), []
    with shared_or_own(GRAPH, OPTIONS, said.append, workers, ("sample",)) as group:
        cluster.service.is_gone, cluster.service = True, None
        group.running(say=said.append)
    assert Own.made == [(GRAPH, OPTIONS, workers, ("sample",))]
    assert "this job starts its own partition servers" in said[-1]


def test_a_job_that_demands_a_service_does_not_go_on_without_it(cluster):
    cluster.service, always = Service(), replace(OPTIONS, service="always")
    with shared_or_own(GRAPH, always, print) as group:
        cluster.service.is_gone, cluster.service = True, None
        with pytest.raises(StageError, match="the server is gone"):
            group.running()
        cluster.service = Service(replace(OPTIONS, work_threads=3))
        with pytest.raises(ConfigError, match=r"other values of --servers\.work_threads"):
            group.running()
    assert not Own.made


def test_a_job_does_not_join_a_new_service_with_other_options(cluster):
    cluster.service, said = Service(), []
    with shared_or_own(GRAPH, OPTIONS, said.append) as group:
        cluster.service.is_gone, cluster.service = True, Service(replace(OPTIONS, work_threads=3))
        group.running(say=said.append)
    assert len(Own.made) == 1
    assert "other values of --servers.work_threads" in said[1]
    assert not cluster.service.calls["join"]


def test_a_job_renews_its_use_of_a_new_service_as_often_as_that_one_asks(cluster):
    cluster.service = first = Service(idle_s=600.0)
    with shared_or_own(GRAPH, OPTIONS, print) as group:
        first.is_gone, cluster.service = True, Service(idle_s=0.1)
        group.running()
        wait_until(lambda: cluster.service.calls["renew"] >= 2)
    assert first.calls["renew"] == 1
    assert not Own.made


def test_a_job_sends_nothing_to_a_lost_cluster(cluster):
    cluster.service = Service()
    with pytest.raises(ClusterLostError), shared_or_own(GRAPH, OPTIONS, print):
        raise ClusterLostError("the head is lost")
    assert not cluster.service.calls["leave"]
    with pytest.raises(KeyError), shared_or_own(GRAPH, OPTIONS, print):
        raise KeyError
    assert cluster.service.calls["leave"] == 1


def test_a_service_that_a_job_joins_at_the_last_moment_goes_on(cluster):
    service: Any = GraphService(GRAPH, OPTIONS, 0.2, "me")
    with service._opening:  # a job opens partitions, which takes longer than idle_s
        threading.Event().wait(0.5)
        service.renew("job")
        service._uses._idle_s = 600.0
    threading.Event().wait(0.3)
    assert not cluster.killed
    service._uses._idle_s = 0.0
    wait_until(lambda: cluster.killed == ["service"])


def test_of_two_that_start_a_service_the_second_is_told_and_ends_nothing(cluster):
    cluster.starts = Service(replace(OPTIONS, work_threads=3))
    with pytest.raises(ConfigError, match="other values of work_threads; end it first"):
        start_service(GRAPH, OPTIONS, 600.0)
    cluster.service, cluster.starts = None, Service(idle_s=5.0)
    with pytest.raises(ConfigError, match="--idle_s 5 of the running graph service, got 600"):
        start_service(GRAPH, OPTIONS, 600.0)
    cluster.service, cluster.starts = None, Service()
    cluster.starts.is_gone = True
    with pytest.raises(StageError, match="the server is gone"):
        start_service(GRAPH, OPTIONS, 600.0)
    assert (cluster.service.calls["end"], cluster.service.calls["leave"]) == (0, 1)
    cluster.service = cluster.starts = None
    start_service(GRAPH, OPTIONS, 600.0)
    assert (cluster.service.calls["end"], cluster.service.calls["leave"]) == (0, 1)


def test_a_start_that_fails_ends_its_own_service(cluster, monkeypatch):
    def fails(*_: Any) -> Any:
        raise StageError("cannot open")

    monkeypatch.setattr(graph_service, "_join", fails)
    with pytest.raises(StageError, match="cannot open"):
        start_service(GRAPH, OPTIONS, 600.0)
    assert cluster.service.calls["end"] == 1


def test_a_service_that_does_not_end_is_an_error(cluster, monkeypatch):
    monkeypatch.setattr(graph_service, "_ANSWER_S", 0.05)
    assert not end_service(GRAPH)
    cluster.service = Service()
    with pytest.raises(DeadlineError, match=r"has not ended within 0\.05 s"):
        end_service(GRAPH)
