"""Which servers a group starts, keeps and ends when hosts join and leave, without a cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import graphmill.cluster.serving.partition_server as partition_server
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving.partition_server import ServerGroup, ServerInfo, _ranges
from graphmill.cluster.serving.server_placement import Host
from graphmill.core.errors import DeadlineError
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    calls: list[tuple] = []

    def answer(reference: Any, name: str, *_: object) -> Any:
        method, actor = reference
        if actor.node_id == "late":
            raise DeadlineError(f"{name}: no answer")
        calls.append((method, name))
        return ServerInfo(actor.node_id, 1, actor.stamps) if method == "open" else None

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


@pytest.mark.parametrize(
    ("partitions", "text"), [((0,), "0"), ((0, 1), "0 to 1"), ((0, 1, 2, 5, 7, 8), "0 to 2, 5, 7 to 8"), ((), "")]
)
def test_partitions_are_named_by_ranges(partitions: tuple[int, ...], text: str) -> None:
    assert _ranges(partitions) == text
