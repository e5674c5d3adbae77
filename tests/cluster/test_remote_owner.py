"""Every way to ask a partition's owner gives the same replies to the bit; over Arrow Flight also whatever happens to server and connection."""

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
import pyarrow.flight as flight
import pytest

import cluster.remote_owner
from cluster.flight_server import TOKEN_HEADER, Endpoint, FlightServer
from cluster.options import ServerOptions
from cluster.remote_owner import RemoteOwner
from cluster.wire import MESSAGE_BYTES, Failure, pack, unpack
from samplers.messages import (
    FetchRows,
    FindNodes,
    InducedEdges,
    InducedSubgraphs,
    ListChunk,
    ListGroups,
    ListLinks,
    ListNeighbors,
    ListSplit,
    NodeRows,
    Reply,
    Request,
    SampleForBatches,
    SampleNeighbors,
    StepWalks,
)
from samplers.node_tables import NodeTables
from samplers.partition_owner import PartitionOwner
from samplers.router import LocalOwner, Owner, Router, local_router
from samplers.traffic import COLUMNS, Traffic, array_bytes
from storage.encode import encode
from storage.encoding_names import parse_encoding_name
from storage.errors import ConfigError, DeadlineError, StageError
from storage.graph import StoredGraph, open_graph
from storage.ingest import IngestOptions, ingest
from storage.ingest_options import FeatureDtype, LinkSplitOptions
from tests.listed_graph import random_listed_graph

NODE = np.array([150, 110, 199, 110])  # of partition 1, of 97 to 103 nodes
REQUESTS: tuple[Request, ...] = (
    SampleNeighbors(NODE, 3, 2**64 - 1),
    SampleNeighbors(NODE.astype(np.int32), -1, 5, "both", "uniform", columns=("weight",)),
    SampleNeighbors(NODE, 4, 5, scheme="weight", replace=True, columns=("id", "weight", "feature")),
    SampleNeighbors(NODE, 2, 7, "out", scheme="degree"),
    SampleNeighbors(NODE, 2, 7, scheme="labor"),
    SampleNeighbors(NODE[:0], 2, 7),
    SampleForBatches(NODE, np.array([0, 3, 3, 4]), np.array([2**64 - 1, 0, 5], np.uint64), 3, columns=("id",)),
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


# Stored type, what becomes of random features, and the layout that they are then stored in.
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
    )
    options = IngestOptions(num_partitions=2, partitioner="ldg", edge_ids=True, out_edges=True)
    ingest(listed, url, replace(options, links=LinkSplitOptions(valid=0.05, test=0.1)))
    encode(open_graph(url), parse_encoding_name("rwse-3"))
    return open_graph(url)


def partition_owner(graph: StoredGraph, index: int = 1) -> PartitionOwner:
    return PartitionOwner(graph.partition(index), graph.manifest.num_nodes, NodeTables(graph))


@contextlib.contextmanager
def serving(answer: Callable[[Request], Reply], work_threads: int = 2) -> Iterator[FlightServer]:
    """In this process, without Ray."""
    server = FlightServer(answer, "127.0.0.1", None, work_threads)
    try:
        yield server
    finally:
        server.shutdown()


def ask(endpoint: Endpoint, timeout_s: float = 30.0) -> RemoteOwner:
    return RemoteOwner(lambda _: endpoint, "partition server 1", timeout_s)


@pytest.fixture(scope="module", params=["in this process", "Flight"])
def owner(request: pytest.FixtureRequest, graph: StoredGraph) -> Iterator[Owner]:
    asked = partition_owner(graph)
    if request.param == "Flight":
        with serving(asked.answer) as server:
            yield ask(server.endpoint, 250.0)  # compiled loops
    else:
        yield LocalOwner(asked)


def content(reply: Reply) -> dict[str, Any]:
    """All of a reply, down to the bytes."""
    return {"kind": type(reply)} | {
        name: (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in vars(reply).items()
    }


class TestEveryOwner:
    def test_every_request_is_tried(self) -> None:
        assert {type(request) for request in REQUESTS} == set(get_args(Request))

    @pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
    def test_replies_are_those_of_the_partition(self, owner: Owner, graph: StoredGraph, request_: Request) -> None:
        assert content(owner.submit(request_).result()) == content(partition_owner(graph).answer(request_))

    def test_replies_come_to_whoever_asked(self, owner: Owner, graph: StoredGraph) -> None:
        """Many threads, each with several requests under way, taken in another order than sent."""

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
    """Rows that tell which nodes were asked for."""
    assert isinstance(request, FetchRows)
    wide = np.repeat(request.node[:, None], 100, axis=1).astype(np.float32)
    return NodeRows(request.node, wide, None, None)


def test_large_messages_travel_in_pieces() -> None:
    node = np.arange(2 * MESSAGE_BYTES // 8)
    with serving(lambda request: NodeRows(request.node, -request.node[:, None], None, None)) as server:
        reply = ask(server.endpoint).submit(FetchRows(node)).result()
    assert isinstance(reply, NodeRows)
    assert np.array_equal(reply.original_id, node)
    assert np.array_equal(reply.feature, -node[:, None])


def test_a_message_above_the_bound_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    node = np.arange(MESSAGE_BYTES // 4 + 1)
    with serving(rows_of) as server:
        (whole,) = _in_one_piece(monkeypatch, FetchRows(node))
        reply = exchange(server.endpoint, [whole], server.endpoint.token)
        assert isinstance(reply, Failure)
        assert reply.kind == "StageError"
        assert reply.text == f"expected messages of at most {MESSAGE_BYTES} bytes, got {whole.nbytes}"
        with pytest.raises(StageError, match=r"partition server 1: ArrowInvalid: .*larger than max") as sent:
            ask(server.endpoint).submit(FetchRows(node)).result()
        with pytest.raises(StageError, match="partition server 1: ") as received:
            ask(server.endpoint).submit(FetchRows(node[:20_000])).result()
        assert "\n" not in str(sent.value) + str(received.value)


def _in_one_piece(monkeypatch: pytest.MonkeyPatch, message: Request) -> list[Any]:
    """From now on no side cuts its messages."""
    monkeypatch.setattr("cluster.wire.PIECE_BYTES", 1 << 40)
    return list(pack(message))


def exchange(endpoint: Endpoint, batches: list[Any], *tokens: str) -> Any:
    """A call by Arrow's own client."""
    headers = [(TOKEN_HEADER.encode(), token.encode()) for token in tokens]
    options = flight.FlightCallOptions(timeout=20, headers=headers)
    with flight.FlightClient(endpoint.location) as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
        with writer:
            writer.begin(batches[0].schema)
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()
            return unpack(chunk.data for chunk in reader)


def test_without_the_token_nothing_is_answered(graph: StoredGraph) -> None:
    batches, asked = list(pack(FetchRows(NODE))), []

    def answer(request: Request) -> Reply:
        asked.append(request)
        return partition_owner(graph).answer(request)

    with serving(answer) as server:
        endpoint = server.endpoint
        assert endpoint.token not in repr(endpoint)
        wrong = "0" * len(endpoint.token)
        for tokens in ((), (wrong,), ("",), (endpoint.token[:-1],), (wrong, endpoint.token)):
            with pytest.raises(flight.FlightUnauthenticatedError, match="expected the server's token"):
                exchange(endpoint, batches, *tokens)
        for call in ("list_flights", "list_actions"):
            with flight.FlightClient(endpoint.location) as client, pytest.raises(flight.FlightUnauthenticatedError):
                list(getattr(client, call)())
        assert not asked
        assert isinstance(exchange(endpoint, batches, endpoint.token), NodeRows)


def test_garbage_is_answered_by_an_error(graph: StoredGraph) -> None:
    (batch,) = pack(FetchRows(NODE))
    with serving(partition_owner(graph).answer) as server:
        for wrong in (batch.replace_schema_metadata({}), batch.replace_schema_metadata({b"message": b"StepWalks"})):
            reply = exchange(server.endpoint, [wrong], server.endpoint.token)
            assert isinstance(reply, Failure)
            assert reply.kind == "StageError"
        # A reply in place of a request.
        reply = exchange(server.endpoint, list(pack(rows_of(FetchRows(NODE)))), server.endpoint.token)
        assert isinstance(reply, Failure)
        assert (reply.kind, reply.text) == ("ConfigError", "expected a request of samplers.messages, got NodeRows")


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
        ask(Endpoint(f"grpc://127.0.0.1:{port}", "token"), 1.0).submit(FetchRows(NODE)).result()
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


def test_a_request_whose_asker_has_gone_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    first, answered, dropped = threading.Event(), [], threading.Event()
    wait_for_turn = FlightServer._wait_for_turn

    def watched(server: FlightServer, context: object) -> None:
        try:
            wait_for_turn(server, context)
        except StageError:
            dropped.set()
            raise

    def answer(request: Request) -> Reply:
        answered.append(request)
        assert first.wait(30)
        return rows_of(request)

    monkeypatch.setattr(FlightServer, "_wait_for_turn", watched)
    with serving(answer, work_threads=1) as server:
        busy = ask(server.endpoint).submit(FetchRows(NODE))
        given_up = ask(server.endpoint, 0.3).submit(FetchRows(NODE))
        with pytest.raises(DeadlineError):
            given_up.result()
        assert dropped.wait(30)  # the server looks every second
        first.set()
        assert isinstance(busy.result(), NodeRows)
        assert isinstance(ask(server.endpoint).submit(FetchRows(NODE)).result(), NodeRows)
    assert len(answered) == 2


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = FlightServer(rows_of, "127.0.0.1", (port, min(port + 50, 65535)), 1)
        try:
            assert port < server.port <= port + 50
            assert server.endpoint.location == f"grpc://127.0.0.1:{server.port}"
        finally:
            server.shutdown()
        with pytest.raises(
            ConfigError, match=f"ports: expected a free one of {port} to {port} on 127.0.0.1, found none"
        ):
            FlightServer(rows_of, "127.0.0.1", (port, port), 1)
    for wrong in ((5,), (5, 4), (0, 5), (1, 65536), ()):
        with pytest.raises(ConfigError, match="ports: expected the first and the last"):
            ServerOptions(ports=wrong)


# What follows needs servers in processes of their own.


def _serve(pipe: Connection, ports: tuple[int, int] | None) -> None:
    server = FlightServer(rows_of, "127.0.0.1", ports, 2)
    pipe.send(server.endpoint)
    server.serve()


class Restarted:
    """A server that is killed and started again, as Ray does it with the actors of partition servers."""

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
    """Its token is another: whoever asks it for the dead one's partition goes back to the actor."""
    owner = RemoteOwner(restarted.find, "partition server 1", 60.0)
    owner.submit(FetchRows(NODE)).result()
    port = int(restarted.endpoint.location.rpartition(":")[2])
    restarted.kill()
    restarted.start()
    other = Restarted((port, port))
    try:
        reply = owner.submit(FetchRows(NODE)).result()
        assert isinstance(reply, NodeRows)
        assert restarted.times_asked >= 2
    finally:
        other.kill()


def test_a_server_that_stood_still_goes_on(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a connection without a sign of life is kept."""
    soon = {"grpc.keepalive_time_ms": 300, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    channel = dict(cluster.remote_owner._CHANNEL) | soon
    monkeypatch.setattr(cluster.remote_owner, "_CHANNEL", list(channel.items()))
    owner = RemoteOwner(restarted.find, "partition server 1", 60.0)
    owner.submit(FetchRows(NODE)).result()
    assert restarted.process.pid is not None
    os.kill(restarted.process.pid, signal.SIGSTOP)
    pending = owner.submit(FetchRows(NODE))
    threading.Timer(3.0, os.kill, (restarted.process.pid, signal.SIGCONT)).start()
    start = time.perf_counter()
    assert isinstance(pending.result(), NodeRows)
    assert time.perf_counter() - start > 2
    assert restarted.times_asked >= 2


class Cutting:
    """Forwards connections to a port, and cuts each after some bytes in either direction."""

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._random = port, random.Random(seed)
        self.cuts = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                left = [self._random.randrange(200, 3_000_000)]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(*pair, left), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data[: max(0, left[0])])
                left[0] -= len(data)
                if left[0] < 0:
                    self.cuts += 1
                    break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def test_lost_calls_cost_no_answer() -> None:
    """Connections break in the middle of requests and replies; every request has its own reply all the same."""
    with serving(rows_of) as server:
        proxy = Cutting(server.port, seed=3)
        owner = ask(Endpoint(f"grpc://127.0.0.1:{proxy.port}", server.endpoint.token), 120.0)

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


class _TricklingServer(FlightServer):
    """Pauses before each piece of a reply."""

    pause_s = 0.3

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        unpack(chunk.data for chunk in reader if chunk.data is not None)
        for index, batch in enumerate(pack(self.reply)):
            time.sleep(self.pause_s)
            if index == 0:
                writer.begin(batch.schema)
            writer.write_batch(batch)

    reply = NodeRows(np.arange(4_000_000), None, None, None)


def test_a_slow_link_is_waited_for_as_long_as_pieces_arrive_and_a_silent_one_is_not():
    with _TricklingServer(lambda request: request, "127.0.0.1", None, 2) as server:
        pieces = len(list(pack(server.reply)))
        owner = ask(server.endpoint, timeout_s=1.0)
        pending, begun = [owner.submit(FetchRows(NODE)) for _ in range(2)], time.monotonic()
        for each in pending:
            np.testing.assert_array_equal(each.result().original_id, server.reply.original_id)
        assert time.monotonic() - begun > pieces * server.pause_s > 1.5
        server.pause_s = 5.0
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="partition server 1: no answer within 1 s"):
            owner.submit(FetchRows(NODE)).result()
        assert time.monotonic() - begun < 3.5
