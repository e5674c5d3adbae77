"""Which servers a group starts, keeps and ends when hosts join and leave, without a cluster."""

import os
import threading
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import graphmill.cluster.serving.partition_server as partition_server
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving.partition_server import PartitionServer, ServerGroup, ServerInfo, _ranges
from graphmill.cluster.serving.server_placement import Host
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import ConfigError, DeadlineError, FormatError
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps
from tests.listed_graph import random_listed_graph

A, B, C = (Host(name, name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))


@dataclass(eq=False)
class FakeActor:
    """A server's actor; `remote` of a method returns the value that the method would have."""

    node_id: str = ""
    partitions: tuple[int, ...] = ()
    stamps: FileStamps | None = None
    calls: Any = None
    method: str = ""

    def options(self, scheduling_strategy: Any) -> "FakeActor":
        return FakeActor(scheduling_strategy.node_id, calls=self.calls)

    def remote(self, *arguments: Any) -> Any:
        if not self.partitions:
            _, self.partitions, self.stamps, _ = arguments
            self.calls.append(("start", self.node_id, self.partitions))
            return self
        return self.method, self

    def __getattr__(self, method: str) -> "FakeActor":
        return FakeActor(self.node_id, self.partitions, self.stamps, self.calls, method)


class FakeContext:
    """What Ray tells an actor about itself."""

    def get_node_id(self) -> str:
        return "a"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    calls: list[tuple] = []

    def answer(reference: Any, name: str, *_: object) -> Any:
        method, actor = reference
        if actor.node_id == "late":
            raise DeadlineError(f"{name}: no answer")
        calls.append((method, name))
        return ServerInfo(actor.node_id, 1, actor.stamps) if method == "open" else 0

    def seen(hosts: Any, url: str, files: Any) -> list[dict[str, FileStamps]]:
        return [{host.node_id: take_stamps(url, entries) for host in hosts} for entries in files]

    monkeypatch.setattr(partition_server, "answer", answer)
    monkeypatch.setattr(partition_server, "look_for_files", seen)
    monkeypatch.setattr(partition_server, "answers_in_time", lambda *_: [])
    monkeypatch.setattr(partition_server, "on_host", lambda host, or_elsewhere: host)
    monkeypatch.setattr(
        partition_server.ray, "kill", lambda actor, no_restart: calls.append(("end", actor.node_id, actor.partitions))
    )
    monkeypatch.setattr(partition_server.ray, "wait", lambda waiting, **_: ([], waiting))
    return calls


@pytest.fixture
def group(tmp_path: Path, calls: list[tuple]) -> ServerGroup:
    ingest(random_listed_graph(60, 200), str(tmp_path / "graph"), IngestOptions(num_partitions=4))
    group = ServerGroup(open_graph(str(tmp_path / "graph")), ServerOptions())
    group._actor = FakeActor(calls=calls)
    return group


def use(monkeypatch: pytest.MonkeyPatch, *hosts: Host) -> None:
    monkeypatch.setattr(partition_server, "live_hosts", lambda: hosts)


def test_each_host_has_one_server_and_only_changed_hosts_get_another(
    group: ServerGroup, calls: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    use(monkeypatch, A, B)
    servers = group.running(say=said.append)
    assert [(server.info.node_id, server.partitions) for server in servers.servers] == [("a", (0, 1)), ("b", (2, 3))]
    assert [call for call in calls if call[0] == "start"] == [("start", "a", (0, 1)), ("start", "b", (2, 3))]
    assert ("compile", "partition server on b (10.0.0.2), partitions 2 to 3") in calls
    assert said == ["partition servers compile their loops, once for each host and version of Graphmill"]
    assert group.where() == "partitions 0 to 1 on a (10.0.0.1), 2 to 3 on b (10.0.0.2)"
    for server in servers.servers:  # the stamps of all files of all its partitions
        files = [entry.path for each in server.partitions for entry in group._graph.partition_files(each)]
        assert [stamp.name for stamp in server.info.stamps.stamps] == files

    calls.clear()
    assert group.running() == servers  # the hosts are the same
    assert calls == []
    use(monkeypatch, A, B, C)
    moved = group.running()
    by_host = {server.info.node_id: server.partitions for server in moved.servers}
    assert sorted(each for partitions in by_host.values() for each in partitions) == [0, 1, 2, 3]
    changed = {host for host in "ab" if by_host[host] != {"a": (0, 1), "b": (2, 3)}[host]}
    assert {call[1] for call in calls if call[0] == "end"} == changed
    assert {call[1] for call in calls if call[0] == "start"} == {*changed, "c"}
    assert len(changed) == 1

    calls.clear()
    use(monkeypatch, C)
    left = group.running().servers
    rest = tuple(each for each in range(4) if each not in by_host["c"])
    assert {(server.info.node_id, server.partitions) for server in left} == {("c", by_host["c"]), ("c", rest)}
    assert [call for call in calls if call[0] == "start"] == [("start", "c", rest)]  # its own partitions stay open
    calls.clear()
    group.stop()
    assert sorted(calls) == sorted([("end", "c", by_host["c"]), ("end", "c", rest)])


def test_a_server_that_did_not_open_is_ended_before_the_next_try(
    group: ServerGroup, calls: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Host("late", "late", "10.0.0.9")
    use(monkeypatch, A, late)
    with pytest.raises(DeadlineError, match=r"partition server on late \(10.0.0.9\), partitions 2 to 3: no answer"):
        group.running()
    calls.clear()
    use(monkeypatch, A, B)
    assert [server.info.node_id for server in group.running().servers] == ["a", "b"]
    assert {call[1] for call in calls if call[0] == "end"} == {"a", "late"}
    calls.clear()
    group.stop()
    assert sorted(call[1] for call in calls) == ["a", "b"]


def come_later(monkeypatch: pytest.MonkeyPatch, first: tuple[Host, ...], then: tuple[Host, ...]) -> None:
    """The hosts `then` are there after the group has waited once."""
    use(monkeypatch, *first)
    monkeypatch.setattr(partition_server.time, "sleep", lambda _: use(monkeypatch, *then))


def test_a_lost_host_with_the_labels_is_waited_for(
    group: ServerGroup, calls: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    group._options = ServerOptions(label_selector=("role=storage",))
    store = Host("store", "store", "10.0.0.8", labels={"role": "storage"})
    use(monkeypatch, A, B)
    with pytest.raises(ConfigError, match="expected a host with the labels role=storage, found none among a "):
        group.running(say=said.append)
    assert said == []
    come_later(monkeypatch, (A, B), (A, store))
    assert [server.info.node_id for server in group.running(60.0, said.append).servers] == ["store"]
    assert len([line for line in said if line.endswith("; waiting up to 60 s for such hosts")]) == 1


def test_memory_that_is_too_little_after_a_loss_is_waited_for(
    group: ServerGroup, calls: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(partition_server, "is_local", lambda _: False)  # a store: partitions are kept in memory
    need = sum(entry.num_bytes for each in range(4) for entry in group._graph.partition_files(each))
    # Each host has room for three quarters of the partitions: half of its memory.
    small, other = (Host(name, name, f"10.0.1.{name[-1]}", memory_bytes=need * 3 // 2) for name in ("s1", "s2"))
    use(monkeypatch, small)
    with pytest.raises(ConfigError, match=r"expected memory for .* GB of partitions, found no room for "):
        group.running(say=said.append)
    come_later(monkeypatch, (small,), (small, other))
    assert {server.info.node_id for server in group.running(60.0, said.append).servers} == {"s1", "s2"}
    assert said[0].endswith("; waiting up to 60 s for such hosts")


def test_opening_takes_any_time_and_neither_a_check_nor_an_endpoint_waits_for_it(
    group: ServerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_server, "COMPILE_S", 0.2)
    monkeypatch.setattr(partition_server.ray, "get_runtime_context", FakeContext)
    monkeypatch.setattr(partition_server, "get_node_ip_address", lambda: "127.0.0.1")
    graph, go_on = group._graph, threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go_on.wait(60)
        return open_parts(*arguments, **named)

    monkeypatch.setattr(partition_server, "open_parts", slow)
    stamps = take_stamps(graph.url, graph.partition_files(1))
    server = PartitionServer(graph.pin(), (1,), stamps, ServerOptions())
    server.check()
    with pytest.raises(DeadlineError, match=r"expected the files of partitions 1 to be open within 0\.2 s"):
        server._owner()
    opened = begin(lambda: server.open(False), "open")
    assert wait([opened], 1.0).not_done
    assert server.endpoint().host == "127.0.0.1"
    go_on.set()
    assert opened.result(60).stamps == stamps
    server.check()
    os.utime(f"{stamps.path}/{stamps.stamps[0].name}")
    with pytest.raises(FormatError, match="expected the file that the run reads to stay untouched"):
        server.check()
    server._serve().stop()


@pytest.mark.parametrize(
    ("partitions", "text"), [((0,), "0"), ((0, 1), "0 to 1"), ((0, 1, 2, 5, 7, 8), "0 to 2, 5, 7 to 8"), ((), "")]
)
def test_partitions_are_named_by_ranges(partitions: tuple[int, ...], text: str) -> None:
    assert _ranges(partitions) == text
