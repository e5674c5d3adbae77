"""TCP connections between processes that share a token: opened once, then messages go to and fro, one at a time.

Who connects and who accepts prove to each other that they have the token, by HMAC-SHA256 over random numbers of both; the token itself does not travel. All of that has one
deadline. Afterwards nothing waits longer than its time: the next bytes move within it, or the wait ends. What follows the proof is neither encrypted nor
protected against changes, unless the endpoint has TLS (`graphmill.cluster.transport.tls`).
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

# A host that vanishes closes no connection: it is given up when it answers no probe either.
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 10, 5, 4
_GIVEN_UP_S = _PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S
_READ_BYTES = 1 << 20  # more at once took twice as long where the memory is fresh
_GREETING = b"graphmill 1\n"
_NONCE_BYTES = _PROOF_BYTES = 32


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers, and what it wants to be shown."""

    host: str
    port: int
    token: bytes = field(repr=False)
    has_tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    """One end. Raises OSError where the connection is lost; TimeoutError without an errno where no bytes move in time."""

    def __init__(self, opened: socket.socket, quiet_s: float, room: ArrayPool = ROOM) -> None:
        """`quiet_s`: longest time in which no bytes move while some should. `room`: of what is received."""
        self._socket, self.quiet_s, self._room = opened, quiet_s, room
        self.replied_s = -math.inf  # when bytes came last, since a message was sent
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _set_where_known(opened, TCP_KEEPIDLE=_PROBE_AFTER_S, TCP_KEEPINTVL=_PROBE_EVERY_S, TCP_KEEPCNT=_PROBES)

    def send(self, message: Message, within_s: float) -> None:
        """`within_s`: until the first bytes have left. Raises what `pack` raises before any has."""
        self.replied_s = -math.inf
        self._send(pack(message), within_s)

    def receive(self, within_s: float) -> Message:
        """The other side's next message. `within_s`: until its first bytes are here. Raises what `unpack` raises."""
        self._socket.settimeout(within_s)
        return unpack(self._fill, self._room)

    def is_readable(self) -> bool:
        """Whether bytes have come, or the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def has_ended(self) -> bool:
        """Whether the other side has gone. What it sent before stays to be received."""
        try:
            return self.is_readable() and not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def shut(self) -> None:
        """Ends the connection for both sides; whoever waits on it, in any thread, wakes."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):  # it has ended already
                raise

    def finish(self, within_s: float) -> None:
        """Sends no more. What still comes is read and dropped for so long: TCP would drop what was sent, too."""
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
            sent = self._socket.sendmsg(left)
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
        """As who has connected, by then (`time.monotonic`). Raises ConnectionAbortedError where the other side does not have the token."""
        self._secure(deadline)
        theirs, ours = self._read(len(_GREETING) + _NONCE_BYTES, deadline), secrets.token_bytes(_NONCE_BYTES)
        if not theirs.startswith(_GREETING):
            raise ConnectionAbortedError("what answers is no partition server of this version")
        self._send([memoryview(ours + _proof(token, b"client", theirs, ours))], _left_s(deadline))
        if not hmac.compare_digest(self._read(_PROOF_BYTES, deadline), _proof(token, b"server", theirs, ours)):
            raise ConnectionAbortedError("what answers is another server")

    def check_token(self, token: bytes, deadline: float) -> None:
        """As who has accepted, by then. Raises ConnectionAbortedError where the other side does not have the token."""
        self._secure(deadline)
        ours = _GREETING + secrets.token_bytes(_NONCE_BYTES)
        self._send([memoryview(ours)], _left_s(deadline))
        theirs = self._read(_NONCE_BYTES, deadline)
        if not hmac.compare_digest(self._read(_PROOF_BYTES, deadline), _proof(token, b"client", ours, theirs)):
            raise ConnectionAbortedError("expected the server's token")
        self._send([memoryview(_proof(token, b"server", ours, theirs))], _left_s(deadline))

    def _secure(self, deadline: float) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(_left_s(deadline))  # of the whole TLS handshake
            self._socket.do_handshake()

    def _read(self, num_bytes: int, deadline: float) -> bytes:
        told = b""
        while len(told) < num_bytes:
            self._socket.settimeout(_left_s(deadline))
            more = self._socket.recv(num_bytes - len(told))
            if not more:
                raise ConnectionResetError("the other side has closed the connection")
            told += more
        return told


def connect(endpoint: Endpoint, within_s: float, quiet_s: float) -> Connection:
    """To a server that has the endpoint's token. `within_s`: until it has shown that. Raises OSError where there is none, ConfigError as `tls_context`."""
    deadline = time.monotonic() + within_s
    context = tls_context(is_server=False) if endpoint.has_tls else None
    opened = socket.create_connection((endpoint.host, endpoint.port), within_s)
    with ExitStack() as undo:
        undo.callback(opened.close)
        # What was sent and is not acknowledged; where somebody waits to send more, probes do not tell.
        _set_where_known(opened, TCP_USER_TIMEOUT=1000 * _GIVEN_UP_S)
        if context is not None:
            opened = context.wrap_socket(opened, do_handshake_on_connect=False, server_hostname=endpoint.host)
        connection = Connection(opened, quiet_s)
        undo.callback(connection.close)
        connection.show_token(endpoint.token, deadline)
        undo.pop_all()
    return connection


def _left_s(deadline: float) -> float:
    """Raises TimeoutError where the deadline has passed."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the token was not shown in time")
    return left_s


def _proof(token: bytes, side: bytes, servers: bytes, clients: bytes) -> bytes:
    return hmac.digest(token, side + servers + clients, "sha256")


def _set_where_known(opened: socket.socket, **options: int) -> None:
    """Sets what this operating system has."""
    for name, value in options.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
