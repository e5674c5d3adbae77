"""All transports to a partition's owner return bit for bit the same replies, even if the server in another process fails or its connection breaks."""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock

import graphmill.cluster.transport.remote_owner
import graphmill.cluster.transport.wire
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving import partition_server
from graphmill.cluster.serving.partition_server import PartitionServer
from graphmill.cluster.transport.connection import Connection as Line
from graphmill.cluster.transport.connection import Endpoint, connect
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.cluster.transport.wire import Failure
from graphmill.core.errors import ConfigError, DeadlineError, StageError
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.owners import LocalOwner, Owner, PartOfOwner, submit_together
from graphmill.samplers.access.partition_owner import PartitionOwner, PartsOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.traffic import COLUMNS, Traffic, array_bytes
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    FindNodes,
    ForParts,
    InducedEdges,
    InducedSubgraphs,
    ListChunk,
    ListGroups,
    ListLinks,
    ListNeighbors,
    ListSplit,
    NodeList,
    NodeRows,
    PartRequest,
    Reply,
    Request,
    SampleForBatches,
    SampleNeighbors,
    StepWalks,
    part_name,
)
from graphmill.storage.encoding.encode import encode
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.encoding_names import parse_encoding_name
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from graphmill.storage.replicas.file_stamps import take_stamps
from tests.listed_graph import random_listed_graph
from tests.waiting import wait_until

NODE = np.array([150, 110, 199, 110])  # nodes of partition 1, which has 97 to 103 nodes
REQUESTS: tuple[Request, ...] = (
    SampleNeighbors(NODE, 3, 2**64 - 1),
    SampleNeighbors(NODE.astype(np.int32), -1, 5, "both", "uniform", columns=("weight",)),
    SampleNeighbors(NODE, 4, 5, scheme="weight", replace=True, columns=("id", "weight", "feature")),
    SampleNeighbors(NODE, 2, 7, "out", scheme="degree"),
    SampleNeighbors(NODE, 2, 7, scheme="labor"),
    SampleNeighbors(NODE, 2, 7, "both", columns=("time",), until=np.array([5, -(2**63), 2**63 - 1, 30])),
    SampleNeighbors(NODE, 2, 7, scheme="last", until=np.array([5, 20, 40, 10])),
    SampleNeighbors(NODE[:0], 2, 7),
    SampleForBatches(NODE, np.array([0, 3, 3, 4]), np.array([2**64 - 1, 0, 5], np.uint64), 3, columns=("id",)),
    SampleForBatches(
        NODE, np.array([0, 3, 4]), np.array([1, 5], np.uint64), 3, columns=("time",), until=np.array([5, 20, 40, 10])
    ),
    InducedEdges(np.array([150, 3, 110, 60]), columns=("id",)),
    FetchRows(NODE, split_set=1),
    FetchRows(NODE, feature=False),
    FetchRows(NODE, encodings=("rwse-3",)),
    FetchRows(NODE[:0], encodings=("rwse-3",)),
    ListSplit(0, 1),
    ListChunk(2**64 - 1, 1, 3),
    FindNodes(np.array([3, 180])),
    ListGroups(NODE),
    ListLinks(3),
    ListNeighbors(NODE, "both", np.full(4, 12)),
    InducedSubgraphs(np.array([150, 3, 110]), np.array([0, 2, 3])),
    StepWalks(NODE, np.arange(4), 9),
)


# For each form: the stored type, a function that changes the random features, and the layout of the changed features.
FORMS: dict[str, tuple[FeatureDtype, Callable[[np.ndarray], np.ndarray], str]] = {
    "float32": ("float32", lambda x: x, "dense"),
    "float16": ("float16", lambda x: x, "dense"),
    "int8": ("int8", lambda x: x, "dense"),
    "zeros and ones": ("float32", lambda x: (x > 0).astype(np.float32), "bits"),
    "few ones": ("int8", lambda x: np.pad((x > 0.8).astype(np.float32), ((0, 0), (0, 400))), "indices"),
    "few numbers": ("float16", lambda x: np.pad(x, ((0, 0), (0, 50))).astype(np.float16).astype(np.float32), "entries"),
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    url = str(tmp_path_factory.mktemp("asked") / "graph")
    rng = np.random.default_rng(1)
    listed = replace(
        random_listed_graph(200, 1500),
        weight=rng.random(1500).tolist(),
        edge_feature=rng.random((1500, 2)).tolist(),
        edge_feature_dim=2,
        edge_time=rng.integers(0, 50, 1500).tolist(),
        node_time=rng.integers(0, 50, 200).tolist(),
    )
    options = IngestOptions(num_partitions=2, partitioner="ldg", edge_ids=True, out_edges=True)
    ingest(listed, url, replace(options, links=LinkSplitOptions(valid=0.05, test=0.1)))
    encode(open_graph(url), parse_encoding_name("rwse-3"))
    return open_graph(url)


def partition_owner(graph: StoredGraph, index: int = 1) -> PartitionOwner:
    return PartitionOwner(graph.partition(index), graph.manifest.num_nodes, NodeTables(graph))


@contextlib.contextmanager
def serving(answer: Callable[[Request], Reply], work_threads: int = 2) -> Iterator[MessageServer]:
    """Runs a server in this process, without Ray."""
    with MessageServer(answer, "127.0.0.1", None, work_threads) as server:
        yield server


def ask(endpoint: Endpoint, timeout_s: float = 30.0) -> RemoteOwner:
    return RemoteOwner(lambda _: endpoint, "partition server 1", timeout_s)


@pytest.fixture(scope="module", params=["in this process", "over TCP"])
def owner(request: pytest.FixtureRequest, graph: StoredGraph) -> Iterator[Owner]:
    asked = partition_owner(graph)
    if request.param == "over TCP":
        with serving(asked.answer) as server:
            yield ask(server.endpoint, 250.0)  # a long deadline: loops compile first
    else:
        yield LocalOwner(asked)


def content(reply: Reply) -> dict[str, Any]:
    """All parts of a reply as bytes."""
    return {"kind": type(reply)} | {
        name: (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in vars(reply).items()
    }


class TestEveryOwner:
    def test_every_request_is_tried(self) -> None:
        assert {type(request) for request in REQUESTS} == set(get_args(PartRequest))

    @pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
    def test_replies_are_those_of_the_partition(self, owner: Owner, graph: StoredGraph, request_: Request) -> None:
        assert content(owner.submit(request_).result()) == content(partition_owner(graph).answer(request_))

    def test_replies_come_to_whoever_asked(self, owner: Owner, graph: StoredGraph) -> None:
        """Many threads have several open requests each. They take the replies in another order than they sent the requests."""

        def ask_some(thread: int) -> None:
            rng = np.random.default_rng(thread)
            for _ in range(5):
                node = [rng.integers(100, 200, rng.integers(0, 3000)) for _ in range(4)]
                pending = [owner.submit(FetchRows(some)) for some in node]
                for index in rng.permutation(4):
                    reply = pending[index].result()
                    assert isinstance(reply, NodeRows)
                    np.testing.assert_array_equal(reply.original_id, graph.partition(1).original_id[node[index] - 100])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask_some, range(16)))

    def test_errors_are_the_owners_own(self, owner: Owner) -> None:
        with pytest.raises(ConfigError, match=r"partition 1 owns the nodes \[100, 200\), got 5") as raised:
            owner.submit(FetchRows(np.array([150, 5]))).result()
        assert "\n" not in str(raised.value)
        with pytest.raises(ConfigError, match="encoding 'rwse-9': expected it in the graph's snapshot"):
            owner.submit(FetchRows(NODE, encodings=("rwse-9",))).result()

    def test_traffic_is_counted_alike(self, owner: Owner) -> None:
        traffic, sent, received = Traffic(2), 0, 0
        watched = traffic.watch(owner, 1)
        for request in REQUESTS:
            reply = watched.submit(request).result()
            sent, received = sent + array_bytes(request), received + array_bytes(reply)
        counts = dict(zip(COLUMNS, traffic.by_partition()[1].tolist(), strict=True))
        is_local = isinstance(owner, LocalOwner)
        remote = (0, 0, 0) if is_local else (len(REQUESTS), sent, received)
        local = (len(REQUESTS), sent + received) if is_local else (0, 0)
        assert tuple(counts.values()) == remote + local


def test_a_router_of_both_is_a_router_of_one_process(graph: StoredGraph) -> None:
    with serving(partition_owner(graph).answer) as server:
        owners = [LocalOwner(partition_owner(graph, 0)), ask(server.endpoint)]
        mixed, local = Router(graph.manifest, owners), local_router(graph)
        node = np.random.default_rng(0).integers(0, 200, 500)
        assert content(mixed.fetch(node, split_set=0)) == content(local.fetch(node, split_set=0))
        assert content(mixed.sample_neighbors(node, 3, 7)) == content(local.sample_neighbors(node, 3, 7))


@pytest.mark.parametrize("form", FORMS)
def test_features_arrive_the_same_from_near_and_far_whatever_they_are_stored_as(form: str, tmp_path: Path) -> None:
    dtype, change, layout = FORMS[form]
    listed = random_listed_graph(200, 900, feature_dim=7)
    numbers = change(np.asarray(listed.feature, np.float32))
    fetched = []
    for partitions in (1, 2):
        url = str(tmp_path / f"{partitions}")
        source = replace(listed, feature=numbers.tolist())
        manifest = ingest(source, url, IngestOptions(num_partitions=partitions, feature_dtype=dtype))
        assert manifest.feature_layout == layout
        stored, node = open_graph(url), np.random.default_rng(0).integers(0, 200, 500)
        local, traffic = local_router(stored), Traffic(2)
        near = local.fetch(local.find_nodes(node), split_set=0)
        if partitions == 2:
            with serving(partition_owner(stored).answer) as server:
                far = traffic.watch(ask(server.endpoint), 1)
                mixed = Router(stored.manifest, [LocalOwner(partition_owner(stored, 0)), far])
                assert content(mixed.fetch(local.find_nodes(node), split_set=0)) == content(near)
            assert stored.manifest.feature_rows is not None
            rows = int(np.sum(local.find_nodes(node) >= 100))
            received = traffic.columns()["received_bytes"][1]
            assert received == rows * (1 + stored.manifest.feature_rows.row_bytes + 1 + 1)  # id, features, label, split
        fetched.append(near)
    assert content(fetched[0]) == content(fetched[1])
    if layout != "dense":
        assert fetched[0].feature is not None
        assert fetched[0].feature.tobytes() == numbers[node].tobytes()


def rows_of(request: Request) -> NodeRows:
    """Answers with rows whose values are the requested node ids."""
    assert isinstance(request, FetchRows)
    wide = np.repeat(request.node[:, None], 100, axis=1).astype(np.float32)
    return NodeRows(request.node, wide, None, None)


def test_large_messages_arrive_whole() -> None:
    node = np.arange(1_500_000)
    with serving(lambda request: NodeRows(request.node, -request.node[:, None], None, None)) as server:
        reply = ask(server.endpoint).submit(FetchRows(node)).result()
    assert isinstance(reply, NodeRows)
    assert np.array_equal(reply.original_id, node)
    assert np.array_equal(reply.feature, -node[:, None])


def test_a_message_above_the_bound_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    node = np.arange(3000)
    with serving(rows_of) as server:
        owner = ask(server.endpoint)
        monkeypatch.setattr("graphmill.cluster.transport.wire.MESSAGE_BYTES", 5000)
        with pytest.raises(StageError) as sent:
            owner.submit(FetchRows(node))
        assert str(sent.value) == (
            "partition server 1: expected at most 5000 bytes of FetchRows, got 6000; ask for fewer nodes at once"
        )
        with pytest.raises(StageError) as received:
            owner.submit(FetchRows(node[:200])).result()
        assert str(received.value).startswith("partition server 1: expected at most 5000 bytes of NodeRows, got 80")
        assert isinstance(owner.submit(FetchRows(node[:5])).result(), NodeRows)
        wide = graphmill.cluster.transport.wire.pack(FetchRows(node[:200]))
        monkeypatch.setattr("graphmill.cluster.transport.wire.MESSAGE_BYTES", 100)
        line = connect(server.endpoint, 20.0, 20.0)
        line._send(wide, 20.0)
        reply = line.receive(20.0)
        assert isinstance(reply, Failure)
        assert reply.text.startswith("expected at most 100 bytes of FetchRows, got 200")


def test_without_the_token_nothing_is_answered(graph: StoredGraph) -> None:
    asked = []

    def answer(request: Request) -> Reply:
        asked.append(request)
        return partition_owner(graph).answer(request)

    with serving(answer) as server:
        endpoint = server.endpoint
        assert repr(endpoint.token) not in repr(endpoint)
        wrong = bytes(32)
        for token in (wrong, b"", endpoint.token[:-1], endpoint.token + b"0"):
            with pytest.raises(ConnectionResetError):  # the server closes the connection
                connect(replace(endpoint, token=token), 20.0, 20.0)
        with socket.create_connection((endpoint.host, endpoint.port), 20.0) as bare:
            bare.sendall(bytes(64))
            told = b"".join(iter(lambda: bare.recv(4096), b""))
        assert told.startswith(b"graphmill 1\n")
        assert len(told) == 44  # only the greeting, without the server's proof
        assert not asked
        line = connect(endpoint, 20.0, 20.0)
        line.send(FetchRows(NODE), 20.0)
        assert isinstance(line.receive(20.0), NodeRows)


def test_the_token_does_not_travel_and_proofs_are_good_once() -> None:
    with serving(rows_of) as server:
        proxy = Proxy(server.endpoint.port)
        endpoint = replace(server.endpoint, port=proxy.port)
        assert isinstance(ask(endpoint).submit(FetchRows(NODE)).result(), NodeRows)
        sent, told = proxy.seen
        assert server.endpoint.token not in bytes(sent) + bytes(told)
        with socket.create_connection((server.endpoint.host, server.endpoint.port), 20.0) as again:
            again.sendall(bytes(sent[:64]))
            assert len(b"".join(iter(lambda: again.recv(4096), b""))) == 44
        proxy.close()


def test_what_answers_in_a_servers_place_is_found_out() -> None:
    """Another program listens on the port. It does not have the token, or it is not a partition server."""
    for greeting in (b"graphmill 1\n" + bytes(32) + bytes(32), b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(32)):
        with socket.create_server(("127.0.0.1", 0)) as other:

            def answer(other: socket.socket = other, greeting: bytes = greeting) -> None:
                with contextlib.suppress(OSError):
                    while True:
                        other.accept()[0].sendall(greeting)

            threading.Thread(target=answer, daemon=True).start()
            owner = ask(Endpoint("127.0.0.1", other.getsockname()[1], bytes(32)), 0.5)
            with pytest.raises(DeadlineError, match=r"what answers is (another|no partition) server"):
                owner.submit(FetchRows(NODE)).result()
            other.shutdown(socket.SHUT_RDWR)


def test_garbage_is_answered_by_an_error(graph: StoredGraph) -> None:
    whole = b"".join(graphmill.cluster.transport.wire.pack(FetchRows(NODE)))
    with serving(partition_owner(graph).answer) as server:
        for wrong in (b"\xff" * 9, b"\x02\0\0\0[]", whole.replace(b"FetchRows", b"StepWalks")):
            line = connect(server.endpoint, 20.0, 20.0)
            line._send([memoryview(wrong)], 20.0)
            reply = line.receive(20.0)
            assert isinstance(reply, Failure)
            assert reply.kind == "StageError"
            with pytest.raises(ConnectionResetError):  # the next message cannot be found
                line.receive(20.0)
        # Next: a client sends a reply instead of a request.
        line = connect(server.endpoint, 20.0, 20.0)
        line.send(rows_of(FetchRows(NODE)), 20.0)
        reply = line.receive(20.0)
        assert isinstance(reply, Failure)
        assert (reply.kind, reply.text) == (
            "ConfigError",
            "expected a request of graphmill.samplers.vocabulary.messages, got NodeRows",
        )


def test_connections_stay_open() -> None:
    """Each simultaneous request has its own connection, and each connection has a thread in the server.

    If there are more connections than a bound, the additional ones close after their request.
    """
    with serving(rows_of) as server:
        owner = ask(server.endpoint)
        for _ in range(20):
            owner.submit(FetchRows(NODE)).result()
        assert server.num_connections == 1
        for _ in range(2):
            for pending in [owner.submit(FetchRows(NODE)) for _ in range(40)]:
                pending.result()
        kept = graphmill.cluster.transport.remote_owner._KEPT
        wait_until(lambda: server.num_connections <= kept)
        assert server.num_connections == kept
        del owner, pending
        wait_until(lambda: server.num_connections == 0)


def test_a_connection_that_nobody_uses_is_closed_and_another_one_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphmill.cluster.transport.message_server._QUIET_S", 0.2)
    with serving(rows_of) as server:
        owner = ask(server.endpoint)
        for _ in range(2):
            assert isinstance(owner.submit(FetchRows(NODE)).result(), NodeRows)
            wait_until(lambda: server.num_connections == 0)


def test_a_server_that_stops_ends_its_open_connections() -> None:
    """An idle connection closes at once. A connection with an answer in progress closes after the answer."""
    begun, release = threading.Event(), threading.Event()

    def answer(request: Request) -> Reply:
        begun.set()
        release.wait(30)
        return rows_of(request)

    with serving(answer) as server:
        owner = ask(server.endpoint, 1.0)
        lines = [connect(server.endpoint, 20.0, 20.0) for _ in range(3)]
        pending = owner.submit(FetchRows(NODE))
        assert begun.wait(30)
        threading.Timer(0.1, release.set).start()
        start = time.perf_counter()
    assert time.perf_counter() - start < 3
    assert server.num_connections == 0
    for line in lines:
        with pytest.raises(ConnectionResetError):
            line.receive(20.0)
    with pytest.raises(DeadlineError, match="nothing answers at 127"):
        pending.result()


def test_a_server_that_cannot_stop_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphmill.cluster.transport.message_server._STOP_S", 0.1)
    begun, release = threading.Event(), threading.Event()

    def answer(request: Request) -> Reply:
        begun.set()
        release.wait(30)
        return rows_of(request)

    server = MessageServer(answer, "127.0.0.1", None, 2)
    pending = ask(server.endpoint).submit(FetchRows(NODE))
    assert begun.wait(30)
    with pytest.raises(StageError, match=r"1 of the server's threads have not ended within 0\.1 s"):
        server.stop()
    release.set()
    del pending


def test_a_slow_answer_meets_the_deadline() -> None:
    release = threading.Event()

    def answer(request: Request) -> Reply:
        release.wait(30)
        return rows_of(request)

    with serving(answer) as server:
        start = time.perf_counter()
        with pytest.raises(DeadlineError) as raised:
            ask(server.endpoint, 0.7).submit(FetchRows(NODE)).result()
        assert 0.6 < time.perf_counter() - start < 10
        assert str(raised.value).startswith(
            "partition server 1: no answer within 0.7 s; see `ray list actors`, or raise"
        )
        assert "\n" not in str(raised.value)
        release.set()


def test_where_nobody_answers_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DeadlineError) as raised:
        ask(Endpoint("127.0.0.1", port, b"token"), 1.0).submit(FetchRows(NODE)).result()
    assert str(raised.value).startswith(
        "partition server 1: no answer within 1 s; its actor is there, but nothing answers at "
    )
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "set --servers.ports" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_more_requests_are_answered_at_once_than_threads_work() -> None:
    lock, at_once, most, answered = threading.Lock(), 0, 0, 0

    def answer(request: Request) -> Reply:
        nonlocal at_once, most, answered
        with lock:
            at_once, answered = at_once + 1, answered + 1
            most = max(most, at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1
        return rows_of(request)

    with serving(answer, work_threads=3) as server:
        owner = ask(server.endpoint)
        pending = [owner.submit(FetchRows(NODE)) for _ in range(30)]
        assert all(isinstance(one.result(), NodeRows) for one in pending)
    assert (most, answered) == (3, 30)


@pytest.mark.parametrize("seen", ["while it waits", "when its turn comes"])
def test_a_request_whose_asker_has_gone_is_not_answered(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if seen == "when its turn comes":
        monkeypatch.setattr("graphmill.cluster.transport.message_server._LOOK_S", 60.0)
    first, answered, dropped, received = threading.Event(), [], threading.Event(), []
    wait_for_turn = MessageServer._wait_for_turn

    def watched(server: MessageServer, line: Line) -> None:
        received.append(line)
        try:
            wait_for_turn(server, line)
        except ConnectionResetError:
            dropped.set()
            raise

    def answer(request: Request) -> Reply:
        answered.append(request)
        assert first.wait(30)
        return rows_of(request)

    monkeypatch.setattr(MessageServer, "_wait_for_turn", watched)
    with serving(answer, work_threads=1) as server:
        busy = ask(server.endpoint).submit(FetchRows(NODE))
        wait_until(lambda: answered)
        for _ in range(200):  # a busy server may not read a message in time
            given_up = ask(server.endpoint, 0.3).submit(FetchRows(NODE))
            with pytest.raises(DeadlineError):
                given_up.result()
            if len(received) > 1:
                break
        if seen == "when its turn comes":
            first.set()
        assert dropped.wait(30)  # otherwise at the server's next check, within a second
        first.set()
        assert isinstance(busy.result(), NodeRows)
        assert isinstance(ask(server.endpoint).submit(FetchRows(NODE)).result(), NodeRows)
    assert len(answered) == 2


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with MessageServer(rows_of, "127.0.0.1", (port, min(port + 50, 65535)), 1) as server:
            assert port < server.endpoint.port <= port + 50
            assert str(server.endpoint) == f"127.0.0.1:{server.endpoint.port}"
        with pytest.raises(
            ConfigError, match=f"ports: expected a free one of {port} to {port} on 127.0.0.1, found none"
        ):
            MessageServer(rows_of, "127.0.0.1", (port, port), 1)
    for wrong in ((5,), (5, 4), (0, 5), (1, 65536), ()):
        with pytest.raises(ConfigError, match="ports: expected the first and the last"):
            ServerOptions(ports=wrong)


# For the tests below, servers run in separate processes.


def _serve(pipe: Connection, ports: tuple[int, int] | None) -> None:
    server = MessageServer(rows_of, "127.0.0.1", ports, 2)
    pipe.send(server.endpoint)
    signal.pause()


class Restarted:
    """A server that a test can kill and restart, as Ray restarts the actor of a partition server."""

    def __init__(self, ports: tuple[int, int] | None = None) -> None:
        self._context, self._ports = multiprocessing.get_context("spawn"), ports
        self.times_asked = 0
        self.start()

    def start(self) -> None:
        ours, theirs = self._context.Pipe()
        self.process = self._context.Process(target=_serve, args=(theirs, self._ports), daemon=True)
        self.process.start()
        assert ours.poll(120)
        self.endpoint: Endpoint = ours.recv()

    def find(self, timeout_s: float) -> Endpoint:
        self.times_asked += 1
        return self.endpoint

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)


@pytest.fixture
def restarted() -> Iterator[Restarted]:
    server = Restarted()
    yield server
    server.kill()


def test_a_killed_server_is_found_again(restarted: Restarted) -> None:
    owner = RemoteOwner(restarted.find, "partition server 1", 120.0)
    before = owner.submit(FetchRows(NODE))
    assert isinstance(before.result(), NodeRows)
    under_way = [owner.submit(FetchRows(np.arange(300_000))) for _ in range(2)]
    restarted.kill()
    restarted.start()
    sent_to_the_dead = owner.submit(FetchRows(NODE))
    for pending in (*under_way, sent_to_the_dead):
        assert isinstance(pending.result(), NodeRows)
    assert 2 <= restarted.times_asked <= 10


def test_a_server_on_a_dead_ones_port_is_not_taken_for_it(restarted: Restarted) -> None:
    """A new server on the same port has another token. A client of the dead server notices this and asks the actor for the new endpoint."""
    owner = RemoteOwner(restarted.find, "partition server 1", 60.0)
    owner.submit(FetchRows(NODE)).result()
    port = restarted.endpoint.port
    restarted.kill()
    restarted.start()
    other = Restarted((port, port))
    try:
        reply = owner.submit(FetchRows(NODE)).result()
        assert isinstance(reply, NodeRows)
        assert restarted.times_asked >= 2
    finally:
        other.kill()


def test_a_server_that_stood_still_goes_on(restarted: Restarted) -> None:
    """The server is suspended for a while. One client has an open connection, another one does not."""
    owners = [RemoteOwner(restarted.find, "partition server 1", 60.0) for _ in range(2)]
    owners[0].submit(FetchRows(NODE)).result()
    assert restarted.process.pid is not None
    os.kill(restarted.process.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (restarted.process.pid, signal.SIGCONT)).start()
    start = time.perf_counter()
    for pending in [owner.submit(FetchRows(NODE)) for owner in owners]:
        assert isinstance(pending.result(), NodeRows)
    assert time.perf_counter() - start > 0.8


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_a_server_with_open_connections_ends_with_its_process(signal_: signal.Signals) -> None:
    server = Restarted()
    owner = RemoteOwner(server.find, "partition server 1", 60.0)
    owner.submit(FetchRows(NODE)).result()
    assert server.process.pid is not None
    os.kill(server.process.pid, signal_)
    server.process.join(10)
    assert server.process.exitcode is not None


class Proxy:
    """A proxy that forwards connections to a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.seen = bytearray(), bytearray()  # bytes to the port; bytes from the port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def passed(self, data: bytearray, seen: bytearray, left: list[int]) -> bool:
        """May change `data`, the next bytes of a stream after the bytes `seen`. Returns whether the connection is then closed."""
        return False

    def bytes_of_connection(self) -> int:
        return 0

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listening.accept()[0], socket.create_connection(("127.0.0.1", self._port))
                left = [self.bytes_of_connection()]
                for *pair, seen in ((near, far, self.seen[0]), (far, near, self.seen[1])):
                    threading.Thread(target=self._forward, args=(*pair, left, seen), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, left: list[int], seen: bytearray) -> None:
        with contextlib.suppress(OSError):
            ends = False
            while not ends and (data := bytearray(source.recv(65536))):
                received = bytes(data)
                ends = self.passed(data, seen, left)
                seen += received
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


class Cutting(Proxy):
    """A proxy that cuts each connection after a random number of bytes, in either direction."""

    def __init__(self, port: int, seed: int) -> None:
        self._random, self.cuts = random.Random(seed), 0
        super().__init__(port)

    def bytes_of_connection(self) -> int:
        return self._random.randrange(20, 3_000_000)

    def passed(self, data: bytearray, seen: bytearray, left: list[int]) -> bool:
        length = len(data)
        del data[max(0, left[0]) :]
        left[0] -= length
        self.cuts += left[0] < 0
        return left[0] < 0


def test_lost_calls_cost_no_answer() -> None:
    """Connections break in the middle of requests and replies. Every request still gets the right reply."""
    with serving(rows_of) as server:
        proxy = Cutting(server.endpoint.port, seed=3)
        owner = ask(replace(server.endpoint, port=proxy.port), 120.0)

        def ask_some(thread: int) -> None:
            rng = np.random.default_rng(thread)
            for _ in itertools.repeat(None, 8):
                node = [rng.integers(0, 10**6, rng.integers(0, 4000)) for _ in range(2)]
                for some, pending in zip(node, [owner.submit(FetchRows(some)) for some in node], strict=True):
                    assert content(pending.result()) == content(rows_of(FetchRows(some)))

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask_some, range(3)))
        assert proxy.cuts > 5
        proxy.close()


class _Trickling:
    """A server that sends each reply in pieces, with pauses."""

    reply, pieces = NodeRows(np.arange(100_000), None, None, None), 6

    def __init__(self) -> None:
        self.pause_s, self._listening = 0.3, socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._listening.getsockname()[1], bytes(32))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line = Line(self._listening.accept()[0], 20.0)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: Line) -> None:
        with contextlib.suppress(OSError):
            line.check_token(self.endpoint.token, time.monotonic() + 20.0)
            while True:
                line.receive(20.0)
                told = b"".join(graphmill.cluster.transport.wire.pack(self.reply))
                step = -(-len(told) // self.pieces)
                for start in range(0, len(told), step):
                    time.sleep(self.pause_s)  # like a slow connection
                    line._send([memoryview(told[start : start + step])], 20.0)

    def close(self) -> None:
        self._listening.close()


def test_a_slow_link_is_waited_for_as_long_as_bytes_arrive_and_a_silent_one_is_not():
    server = _Trickling()
    owner = ask(server.endpoint, timeout_s=1.0)
    pending, begun = [owner.submit(FetchRows(NODE)) for _ in range(2)], time.monotonic()
    for each in pending:
        np.testing.assert_array_equal(each.result().original_id, server.reply.original_id)
    assert time.monotonic() - begun > server.pieces * server.pause_s > 1.5
    server.pause_s = 5.0
    begun = time.monotonic()
    with pytest.raises(DeadlineError, match="partition server 1: no answer within 1 s"):
        owner.submit(FetchRows(NODE)).result()
    assert time.monotonic() - begun < 3.5
    server.close()


ROWS = NodeList(NODE, NODE)


@pytest.mark.parametrize("compiles", [True, False])
def test_a_server_that_compiles_gets_more_time(monkeypatch: pytest.MonkeyPatch, compiles: bool) -> None:
    """Also for the requests that wait until the compiling thread is done."""
    monkeypatch.setattr("graphmill.cluster.transport.message_server._SAY_S", 0.1)
    done = threading.Event()

    def answer(request: Request) -> Reply:
        with global_compiler_lock if compiles else contextlib.nullcontext():
            done.wait(60)
        return ROWS

    with serving(answer, work_threads=1) as server:
        owner = ask(server.endpoint, timeout_s=2.0)
        pending = [owner.submit(FindNodes(NODE)) for _ in range(2)]
        threading.Timer(5.0, done.set).start()
        if compiles:
            assert [isinstance(each.result(), NodeList) for each in pending] == [True, True]
            assert isinstance(owner.submit(FindNodes(NODE)).result(), NodeList)  # on a connection that is used again
        else:
            with pytest.raises(DeadlineError, match="no answer within 2 s"):
                pending[0].result()
        done.set()


def test_compiling_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphmill.cluster.transport.message_server._SAY_S", 0.1)
    monkeypatch.setattr("graphmill.cluster.transport.remote_owner.COMPILE_S", 1.0)
    done = threading.Event()

    def answer(request: Request) -> Reply:
        with global_compiler_lock:
            done.wait(60)
        return ROWS

    with serving(answer) as server:
        with pytest.raises(
            DeadlineError, match="partition server 1: expected open files and compiled loops within 1 s"
        ):
            ask(server.endpoint).submit(FindNodes(NODE)).result()
        done.set()


def test_a_server_that_comes_back_tells_its_clients_that_it_opens_its_files(
    graph: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphmill.cluster.transport.message_server._SAY_S", 0.1)
    can_open, open_parts = threading.Event(), partition_server.open_parts

    def open_late(*values: Any, **options: Any) -> PartsOwner:
        can_open.wait(60)
        return open_parts(*values, **options)

    monkeypatch.setattr(partition_server, "open_parts", open_late)
    back = PartitionServer(graph.pin(), (1,), take_stamps(graph.url, graph.partition_files(1)), ServerOptions())
    owner = ask(back.endpoint(), timeout_s=2.0)
    threading.Timer(5.0, can_open.set).start()
    node = np.arange(graph.partition(1).start, graph.partition(1).start + 3)
    reply = PartOfOwner(owner, part_name(1)).submit(FetchRows(node)).result()
    np.testing.assert_array_equal(reply.original_id, partition_owner(graph).answer(FetchRows(node)).original_id)


def test_threads_that_want_parts_of_one_reply_receive_it_once(graph: StoredGraph) -> None:
    partition, node = partition_owner(graph), np.arange(graph.partition(1).start, graph.partition(1).start + 3)
    received: list[str] = []

    class Whole:
        def submit(self, request: Request) -> "Whole":
            self.request = request
            return self

        def result(self) -> Reply:
            received.append(threading.current_thread().name)
            time.sleep(0.2)  # the other threads ask meanwhile
            return PartsOwner({part_name(1): partition}).answer(self.request)

    parts = [PartOfOwner(Whole(), part_name(1))] * 4
    pending = submit_together([(part, FetchRows(node)) for part in parts])
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda each: each.result(), pending))
    assert len(received) == 1
    assert all(np.array_equal(reply.original_id, replies[0].original_id) for reply in replies)


def test_a_message_to_many_parts_arrives_whole(graph: StoredGraph) -> None:
    """With more buffers than one call of the system takes, and more parts than one message has."""
    partition = partition_owner(graph)
    parts = {part_name(1, str(number)): partition for number in range(1200)}
    node = np.arange(graph.partition(1).start, graph.partition(1).start + 3)
    asked: list[int] = []

    def answer(request: Request) -> Reply:
        assert isinstance(request, ForParts)
        asked.append(len(request.parts))
        return PartsOwner(parts).answer(request)

    with serving(answer) as server:
        owner = ask(server.endpoint)
        replies = [
            each.result() for each in submit_together([(PartOfOwner(owner, name), FetchRows(node)) for name in parts])
        ]
    assert sorted(asked) == [176, 512, 512]
    expected = partition.answer(FetchRows(node))
    for reply in replies:
        np.testing.assert_array_equal(reply.feature, expected.feature)
        np.testing.assert_array_equal(reply.original_id, expected.original_id)
