"""Honest clients get their answers, even if other clients have no token, send nothing, or send slowly."""

import contextlib
import itertools
import multiprocessing
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill.cluster.transport import message_server
from graphmill.cluster.transport.connection import Endpoint, connect
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.samplers.vocabulary.messages import FetchRows, NodeRows
from tests.certificates import certificates
from tests.waiting import wait_until

DESCRIPTORS = 64
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)  # a valid beginning of a TLS handshake


def rows_of(request: Any) -> NodeRows:
    return NodeRows(request.node, None, None, None)


def ask(endpoint: Endpoint) -> None:
    line, node = connect(endpoint, 30.0, 30.0), np.arange(7)
    line.send(FetchRows(node), 30.0)
    np.testing.assert_array_equal(line.receive(30.0).original_id, node)
    line.close()


def serve(pipe: Connection) -> None:
    """What the server's process runs.

    A message on the pipe sets the limit of file descriptors. None sets it to the number of open descriptors; 0 does not
    change it. The answer is the process's CPU time so far.
    """
    message_server._TOKEN_S = 600.0  # so only the bound on connections closes them
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
    server = MessageServer(rows_of, "127.0.0.1", None, 2)
    pipe.send(server.endpoint)
    while True:
        limit = pipe.recv()
        if limit is None:
            limit = os.dup(0)
            os.close(limit)
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        pipe.send(time.process_time())


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Endpoint, Callable[[int | None], float]]]:
    """The server's endpoint, and a function that sets the server's limit of file descriptors."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()

    def limit(most: int | None) -> float:
        ours.send(most)
        assert ours.poll(60)
        return ours.recv()

    try:
        assert ours.poll(120)
        yield ours.recv(), limit
    finally:
        process.kill()
        process.join(30)


@contextlib.contextmanager
def hostile(endpoint: Endpoint, number: int) -> Iterator[list[socket.socket]]:
    """Opens connections in small groups. The system queues only 128 connections; with more, the order in which they are accepted is random."""
    with contextlib.ExitStack() as stack:
        lines: list[socket.socket] = []
        for _ in range(number):
            lines.append(stack.enter_context(socket.create_connection((endpoint.host, endpoint.port), 60)))
            if len(lines) % 32 == 0:
                # When the greeting arrives, the server has accepted this connection and all earlier ones.
                lines[-1].recv(1, socket.MSG_PEEK)
        yield lines


def is_open(one: socket.socket) -> bool:
    """Reads everything that the server has sent. Returns whether the connection is still open."""
    one.settimeout(0.0)
    try:
        while one.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def test_honest_clients_are_answered_beside_more_hostile_connections_than_there_are_descriptors(server) -> None:
    endpoint, _ = server
    with hostile(endpoint, 3 * DESCRIPTORS) as lines:
        for _ in range(20):
            ask(endpoint)
            for line in lines[::2]:
                with contextlib.suppress(OSError):
                    line.send(b"x")
        wait_until(lambda: sum(map(is_open, lines)) <= DESCRIPTORS // 2)
        kept = [is_open(line) for line in lines]
    assert kept[-1]
    assert kept == sorted(kept)  # the oldest are closed


def test_without_a_descriptor_left_the_oldest_unproven_connections_make_room(server) -> None:
    endpoint, limit = server
    with hostile(endpoint, 6) as lines:
        wait_until(lambda: all(line.recv(1, socket.MSG_PEEK) for line in lines))
        limit(None)
        held = [
            connect(endpoint, 30.0, 30.0) for _ in range(2)
        ]  # two: the first may use the descriptor that a waiting `accept` has reserved
        kept = [is_open(line) for line in lines]
    assert not kept[0]
    assert kept[-1]
    assert kept == sorted(kept)
    for line in held:
        line.close()
    limit(DESCRIPTORS)


def test_a_server_without_a_descriptor_waits_and_goes_on(server) -> None:
    endpoint, limit = server
    limit(None)
    held = []
    # To make room for the newest connection, the server closes the oldest connection that has not proved its token.
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while True:
            held.append(connect(endpoint, 1.0, 30.0))
    with hostile(endpoint, 1):
        before = limit(0)
        time.sleep(1.0)
        assert limit(DESCRIPTORS) - before < 0.5  # seconds of CPU time
    for line in held:
        line.close()
    ask(endpoint)


def test_a_server_without_a_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "graphmill-answers" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with MessageServer(rows_of, "127.0.0.1", None, 2) as server:
        with pytest.raises(ConnectionError):
            connect(server.endpoint, 30.0, 30.0)
        assert refused
        ask(server.endpoint)


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    for name, path in certificates(tmp_path).items():
        monkeypatch.setenv(name, path)
    return request.param


def drip(line: socket.socket, data: bytes) -> None:
    """Sends ten bytes per second until the other side closes the connection."""
    with contextlib.suppress(OSError):
        for byte in itertools.chain(data, itertools.repeat(0)):
            line.send(bytes([byte]))
            time.sleep(0.1)


def test_a_server_waits_once_for_the_token_not_for_each_byte(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    monkeypatch.setattr(message_server, "_TOKEN_S", 0.5)
    with MessageServer(rows_of, "127.0.0.1", None, 2, tls=tls) as server, hostile(server.endpoint, 1) as (line,):
        threading.Thread(target=drip, args=(line, HELLO if tls else b""), daemon=True).start()
        wait_until(lambda: server.num_connections == 1)
        begun = time.monotonic()
        wait_until(lambda: server.num_connections == 0)
        assert 0.3 < time.monotonic() - begun < 4.0  # the 64 bytes of a token would take 6.4 s


def test_a_client_waits_once_for_the_servers_proof_not_for_each_byte(tls: bool) -> None:
    said = b"\x16\x03\x03\x02\x00" if tls else b"graphmill 1\n"
    with socket.create_server(("127.0.0.1", 0)) as other:
        accepting = threading.Thread(target=lambda: drip(other.accept()[0], said), daemon=True)
        accepting.start()
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            connect(Endpoint("127.0.0.1", other.getsockname()[1], bytes(32), tls), 0.5, 30.0)
        assert 0.3 < time.monotonic() - begun < 4.0  # the 44 bytes of a greeting would take 4.4 s
        accepting.join(30)
