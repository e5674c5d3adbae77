"""Tests servers with TLS. Clients with valid certificates get the same answers as without TLS. Changed bytes are detected, and wrong variables refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ray.util import get_node_ip_address

from graphmill.cluster.embeddings.rows import TableConfig
from graphmill.cluster.embeddings.server import TableServer
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.serving.partition_server import PartitionServer
from graphmill.cluster.transport.connection import Endpoint, connect
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.tls import tls_context
from graphmill.core.errors import ConfigError, DeadlineError
from graphmill.samplers.vocabulary.messages import FetchRows, NodeRows
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.replicas.file_stamps import unseen_stamps
from tests.certificates import certificates
from tests.cluster.transport.test_remote_owner import Proxy, ask
from tests.listed_graph import random_listed_graph
from tests.waiting import wait_until

HOSTS = "127.0.0.1", get_node_ip_address()
NODE = np.arange(100_000, 400_000)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """A function that sets environment variables for the test."""

    def put(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def fitting(tmp_path: Path, use) -> None:
    use(certificates(tmp_path / "ours", HOSTS))


def rows_of(request: FetchRows) -> NodeRows:
    return NodeRows(request.node, -request.node[:, None], None, None)


def serving() -> MessageServer:
    return MessageServer(rows_of, "127.0.0.1", None, 2, tls=True)


def test_messages_of_all_sizes_arrive_and_connections_stay_open(fitting) -> None:
    with serving() as server:
        owner = ask(server.endpoint)
        for number in (0, 1, 1000, 300_000):
            for pending in [owner.submit(FetchRows(NODE[:number])) for _ in range(2)]:
                reply = pending.result()
                np.testing.assert_array_equal(reply.original_id, NODE[:number])
                np.testing.assert_array_equal(reply.feature, -NODE[:number, None])
        assert server.num_connections == 2
        del owner, pending
        wait_until(lambda: server.num_connections == 0)


def test_a_server_that_stops_ends_its_connections(fitting) -> None:
    with serving() as server:
        line = connect(server.endpoint, 30.0, 30.0)
    with pytest.raises(ConnectionResetError):
        line.receive(30.0)


class Changing(Proxy):
    """A proxy that changes one bit in the middle of the bytes from the server."""

    def passed(self, data: bytearray, seen: bytearray, left: list[int]) -> bool:
        if seen is self.seen[1] and len(seen) <= 65_000 < len(seen) + len(data):
            data[65_000 - len(seen)] ^= 1
        return False


@pytest.mark.parametrize("tls", [False, True])
def test_with_tls_alone_traffic_is_secret_and_a_changed_byte_is_noticed(fitting, tls: bool) -> None:
    with MessageServer(rows_of, "127.0.0.1", None, 2, tls=tls) as server:
        between = Changing(server.endpoint.port)
        line = connect(Endpoint("127.0.0.1", between.port, server.endpoint.token, tls), 30.0, 30.0)
        line.send(FetchRows(NODE), 30.0)
        if tls:
            with pytest.raises(OSError, match=r"(?i)bad record mac"):
                line.receive(30.0)
        else:
            assert (line.receive(30.0).original_id != NODE).sum() == 1  # without TLS: one wrong row, no error
        assert (b"FetchRows" in between.seen[0]) != tls
        between.close()


@pytest.mark.parametrize("who", ["the client", "the server"])
def test_a_certificate_of_another_authority_is_refused(fitting, use, tmp_path: Path, who: str) -> None:
    others = certificates(tmp_path / "others", HOSTS)
    if who == "the client":  # the client still trusts the server
        del others["RAY_TLS_CA_CERT"]
    with serving() as server:
        use(others)
        with pytest.raises(
            DeadlineError, match=r"nothing answers at 127\.0\.0\.1.*see that the certificates fit"
        ) as raised:
            ask(server.endpoint, 1.0).submit(FetchRows(NODE[:1])).result()
        assert who == "the client" or "CERTIFICATE_VERIFY_FAILED" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_servers_certificate_names_its_address(use, tmp_path: Path) -> None:
    use(certificates(tmp_path, ["192.0.2.1"]))
    with serving() as server, pytest.raises(OSError, match=r"not valid for '127\.0\.0\.1'"):
        connect(server.endpoint, 30.0, 30.0)


def test_who_has_the_token_alone_is_not_answered(fitting) -> None:
    with serving() as server:
        plain = Endpoint("127.0.0.1", server.endpoint.port, server.endpoint.token)
        with pytest.raises(TimeoutError):
            connect(plain, 0.5, 0.5)


@pytest.mark.parametrize("is_server", [True, False])
@pytest.mark.parametrize("name", ["RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"])
@pytest.mark.parametrize("fault", ["unset", "missing", "a folder", "junk", "locked"])
def test_a_variable_that_names_no_certificate_is_one_line(
    fitting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, fault: str, is_server: bool
) -> None:
    wrong = tmp_path / "wrong"
    match fault:
        case "unset":
            monkeypatch.delenv(name)
        case "a folder":
            monkeypatch.setenv(name, str(tmp_path))
        case "junk" | "locked":
            locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
            wrong.write_bytes(b"junk" if fault == "junk" else locked)
    if fault not in ("unset", "a folder"):
        monkeypatch.setenv(name, str(wrong))
    with pytest.raises(ConfigError, match=f"^tls: expected .*{name}.*leave out --servers.tls$") as raised:
        tls_context(is_server=is_server)
    assert "\n" not in str(raised.value)


def test_the_option_reaches_every_server_and_by_its_endpoint_all_who_ask(
    fitting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("return_freed_blocks", "share_heap"):  # they would change this test process
        monkeypatch.setattr(f"graphmill.cluster.embeddings.server.{name}", lambda *_: None)
    url, options = str(tmp_path / "graph"), ServerOptions(tls=True)
    ingest(random_listed_graph(20, 60), url, IngestOptions(num_partitions=1))
    graph = open_graph(url)
    stamps = unseen_stamps(url, graph.partition_files(0))
    partition = PartitionServer(graph.pin(), (0,), stamps, options).endpoint()
    table = TableServer(TableConfig(3, "adagrad", 5, 20, True, 1), 0, 1, options).endpoint()
    assert partition.has_tls
    assert table.has_tls
    connect(partition, 30.0, 30.0).close()
    connect(table, 30.0, 30.0).close()
