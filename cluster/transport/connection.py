"""Persistent TCP connections between processes that share a token. A connection carries one message at a time.

Each side proves that it has the token, by HMAC-SHA256 over random numbers of both sides; the token itself is not sent. The proof has one deadline.
After the proof every wait has a time limit, and ends if no bytes move in that time. Messages are encrypted and protected against changes only if the endpoint
has TLS (`graphmill.cluster.transport.tls`).
"""

import errno
import hmac
import math
import secrets
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from graphmill.cluster.transport.tls import tls_context
from graphmill.cluster.transport.wire import ROOM, Message, pack, unpack
from graphmill.samplers.access.array_pool import ArrayPool

# A host that disappears does not close its connections. If it answers none of a few probes, the connection counts as lost.
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 10, 5, 4
_GIVEN_UP_S = _PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S
_MOST_BUFFERS = 1024  # Linux takes no more in one call
_READ_BYTES = 1 << 20  # reads of more bytes into newly allocated memory took twice as long
_GREETING = b"graphmill 1\n"
_NONCE_BYTES = _PROOF_BYTES = 32


@dataclass(frozen=True)
class Endpoint:
    """A server's address, and the token that the server expects."""

    host: str
    port: int
    token: bytes = field(repr=False)
    has_tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    """One end of a connection. Its methods raise OSError if the connection is lost, and TimeoutError without an errno if no bytes move in time."""

    def __init__(self, opened: socket.socket, quiet_s: float, room: ArrayPool = ROOM) -> None:
        """`quiet_s`: longest time without moving bytes during a message. `room`: the pool from which received arrays take memory."""
        self._socket, self.quiet_s, self._room = opened, quiet_s, room
        self.replied_s = -math.inf  # time when bytes were last received since the last sent message
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _set_where_known(opened, TCP_KEEPIDLE=_PROBE_AFTER_S, TCP_KEEPINTVL=_PROBE_EVERY_S, TCP_KEEPCNT=_PROBES)

    def send(self, message: Message, within_s: float) -> None:
        """Sends a message. `within_s`: longest time until the first bytes are sent. Raises the errors of `pack` before any byte is sent."""
        self.replied_s = -math.inf
        self._send(pack(message), within_s)

    def receive(self, within_s: float) -> Message:
        """Returns the other side's next message. `within_s`: longest time until the first bytes arrive. Raises the errors of `unpack`."""
        self._socket.settimeout(within_s)
        return unpack(self._fill, self._room)

    def is_readable(self) -> bool:
        """Returns whether bytes have arrived or the connection has ended."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def has_ended(self) -> bool:
        """Returns whether the other side has closed the connection and all its bytes are read."""
        try:
            return self.is_readable() and not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def shut(self) -> None:
        """Ends the connection for both sides, and wakes all threads that wait on it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            # With these errors the connection has already ended, which is fine
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def finish(self, within_s: float) -> None:
        """Ends sending. Reads and drops arriving bytes for up to `within_s`, because otherwise TCP would drop bytes that were sent to the other side."""
        self._socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            if not self._socket.recv(_READ_BYTES):
                break

    def close(self) -> None:
        self._socket.close()

    __del__ = close

    def _send(self, parts: Sequence[memoryview], within_s: float) -> None:
        self._socket.settimeout(within_s)
        left = list(parts)
        while left:
            sent = self._socket.sendmsg(left[:_MOST_BUFFERS])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]
                self._socket.settimeout(self.quiet_s)

    def _fill(self, memory: memoryview) -> None:
        while len(memory):
            count = self._socket.recv_into(memory[:_READ_BYTES])
            if not count:
                raise ConnectionResetError("the other side has closed the connection")
            memory, self.replied_s = memory[count:], time.monotonic()
            if self._socket.gettimeout() != self.quiet_s:
                self._socket.settimeout(self.quiet_s)

    def show_token(self, token: bytes, deadline: float) -> None:
        """Exchanges the proofs, on the connecting side, before `deadline` (`time.monotonic`). Raises ConnectionAbortedError if the other side does not have the
        token."""
        self._secure(deadline)
        theirs, ours = self._read(len(_GREETING) + _NONCE_BYTES, deadline), secrets.token_bytes(_NONCE_BYTES)
        if not theirs.startswith(_GREETING):
            raise ConnectionAbortedError("what answers is no partition server of this version")
        self._send([memoryview(ours + _proof(token, b"client", theirs, ours))], _left_s(deadline))
        if not hmac.compare_digest(self._read(_PROOF_BYTES, deadline), _proof(token, b"server", theirs, ours)):
            raise ConnectionAbortedError("what answers is another server")

    def check_token(self, token: bytes, deadline: float) -> None:
        """Exchanges the proofs, on the accepting side, before `deadline`. Raises ConnectionAbortedError if the other side does not have the token."""
        self._secure(deadline)
        ours = _GREETING + secrets.token_bytes(_NONCE_BYTES)
        self._send([memoryview(ours)], _left_s(deadline))
        theirs = self._read(_NONCE_BYTES, deadline)
        if not hmac.compare_digest(self._read(_PROOF_BYTES, deadline), _proof(token, b"client", ours, theirs)):
            raise ConnectionAbortedError("expected the server's token")
        self._send([memoryview(_proof(token, b"server", ours, theirs))], _left_s(deadline))

    def _secure(self, deadline: float) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(_left_s(deadline))  # time limit of the whole TLS handshake
            self._socket.do_handshake()

    def _read(self, num_bytes: int, deadline: float) -> bytes:
        received = b""
        while len(received) < num_bytes:
            self._socket.settimeout(_left_s(deadline))
            more = self._socket.recv(num_bytes - len(received))
            if not more:
                raise ConnectionResetError("the other side has closed the connection")
            received += more
        return received


def connect(endpoint: Endpoint, within_s: float, quiet_s: float) -> Connection:
    """Connects to a server that has the endpoint's token. `within_s`: longest time until the proof is complete. Raises OSError if no such server answers,
    ConfigError as `tls_context` does."""
    deadline = time.monotonic() + within_s
    context = tls_context(is_server=False) if endpoint.has_tls else None
    opened = socket.create_connection((endpoint.host, endpoint.port), within_s)
    with ExitStack() as undo:
        undo.callback(opened.close)
        # Limits the wait for the acknowledgement of sent bytes, because TCP sends no keep-alive probes during that wait.
        _set_where_known(opened, TCP_USER_TIMEOUT=1000 * _GIVEN_UP_S)
        if context is not None:
            opened = context.wrap_socket(opened, do_handshake_on_connect=False, server_hostname=endpoint.host)
        connection = Connection(opened, quiet_s)
        undo.callback(connection.close)
        connection.show_token(endpoint.token, deadline)
        undo.pop_all()
    return connection


def _left_s(deadline: float) -> float:
    """Returns the seconds until the deadline. Raises TimeoutError if the deadline has passed."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the token was not shown in time")
    return left_s


def _proof(token: bytes, side: bytes, servers: bytes, clients: bytes) -> bytes:
    return hmac.digest(token, side + servers + clients, "sha256")


def _set_where_known(opened: socket.socket, **options: int) -> None:
    """Sets those socket options that this operating system has."""
    for name, value in options.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
