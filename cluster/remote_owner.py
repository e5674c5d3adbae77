"""The owner of a partition in another process: asks its server over Arrow Flight, at the endpoint that the server's actor tells.

Requests are idempotent. One whose connection is lost is sent again, to the endpoint that the actor tells then, until its deadline.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

import storage.errors
from cluster.flight_server import TOKEN_HEADER, Endpoint
from cluster.wire import MESSAGE_BYTES, Failure, pack, unpack
from samplers.messages import Reply, Request
from samplers.router import Pending
from storage.errors import DeadlineError, GraphmillError, StageError

# A host that vanishes closes no connection: it is given up when it does not answer a ping either.
_PING_AFTER_S, _PING_TIMEOUT_S = 10, 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0  # between two tries
_CHANNEL = [
    ("grpc.keepalive_time_ms", 1000 * _PING_AFTER_S),
    ("grpc.keepalive_timeout_ms", 1000 * _PING_TIMEOUT_S),
    ("grpc.http2.ping_timeout_ms", 1000 * _PING_TIMEOUT_S),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection shares no failures with the lost one
    ("grpc.enable_http_proxy", 0),  # the nodes of a cluster reach each other
]
_DESCRIPTOR = flight.FlightDescriptor.for_command(b"answer")
# The token is refused where another server has taken the port of one that died.
_LOST = (flight.FlightUnavailableError, flight.FlightUnauthenticatedError)
_ERRORS = (flight.FlightError, pa.ArrowException)


class _Connection:
    """A client of one server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.location = endpoint.location
        self._header = [(TOKEN_HEADER.encode(), endpoint.token.encode())]
        self._client = flight.FlightClient(endpoint.location, generic_options=_CHANNEL)

    def exchange(self, timeout_s: float) -> tuple[Any, Any]:
        """(writer, reader) of a new call."""
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._header)
        return self._client.do_exchange(_DESCRIPTOR, options)


class RemoteOwner:
    """Asks one server; safe to use from several threads, which share a connection.

    `find` asks the server's actor for its endpoint, within so many seconds, and raises what is to be said where there is no server. Every
    request has its reply, or an error that begins with `who`, within `timeout_s`.
    """

    def __init__(self, find: Callable[[float], Endpoint], who: str, timeout_s: float) -> None:
        self._find, self.who, self.timeout_s = find, who, timeout_s
        self._connection: _Connection | None = None

    def submit(self, request: Request) -> Pending:
        call = _Call(self, request)
        call.send()
        return call

    def connection(self, timeout_s: float) -> _Connection:
        """To the server; a new one where there is none. Raises what `find` raises."""
        connection = self._connection
        if connection is None:
            connection = self._connection = _Connection(self._find(timeout_s))
        return connection

    def lose(self, connection: _Connection) -> None:
        """The next call shall ask for the endpoint again."""
        if self._connection is connection:
            self._connection = None


class _ServerTraceback(Exception):
    """Where an error happened, in the server: the cause of the error that is raised here."""


class _Call:
    """A request on its way, and again, until its deadline."""

    def __init__(self, owner: RemoteOwner, request: Request) -> None:
        self._owner, self._request = owner, request
        self._until = time.monotonic() + owner.timeout_s
        self._connection: _Connection | None = None
        self._streams: tuple[Any, Any] | None = None
        self._lost: Exception | None = None

    def send(self) -> None:
        """Sends the request. A lost connection is for `result` to mend."""
        try:
            self._connection = self._owner.connection(self._left_s())
        except DeadlineError:
            raise self._late() from None
        self._lost = None
        try:
            self._streams = writer, _ = self._connection.exchange(self._left_s())
            for index, batch in enumerate(pack(self._request)):
                if index == 0:
                    writer.begin(batch.schema)
                writer.write_batch(batch)
            writer.done_writing()
        except _ERRORS as error:
            self._fail(error)

    def result(self) -> Reply:
        pause_s = _FIRST_PAUSE_S
        while (reply := self._receive()) is None:
            assert self._connection is not None
            self._owner.lose(self._connection)
            if self._left_s() < pause_s:
                raise self._late(
                    f"its actor is there, but nothing answers at {self._connection.location} ({_line(self._lost)}); open this port "
                    "between the nodes, or set --servers.ports to some that are"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.send()
        return reply

    def _receive(self) -> Reply | None:
        """The reply; None where the connection was lost."""
        if self._lost is not None:
            return None
        assert self._streams is not None
        writer, reader = self._streams
        try:
            reply = unpack(chunk.data for chunk in reader if chunk.data is not None)
            writer.close()
        except _ERRORS as error:
            self._fail(error)
            return None
        except StageError as error:
            raise StageError(f"{self._owner.who}: {error}") from error
        if isinstance(reply, Failure):
            raise self._failure(reply) from _ServerTraceback(reply.trace)
        return reply  # type: ignore[return-value]

    def _fail(self, error: Exception) -> None:
        """Keeps what says that the connection is lost, raises any other error; the call is over."""
        if self._streams is not None:
            with contextlib.suppress(*_ERRORS):  # or Arrow prints the error when the call's memory is freed
                self._streams[0].close()
        self._streams, self._lost = None, error
        if isinstance(error, flight.FlightTimedOutError):
            raise self._late() from None
        if not isinstance(error, _LOST):
            raise StageError(f"{self._owner.who}: {type(error).__name__}: {_line(error)}") from error

    def _failure(self, failure: Failure) -> GraphmillError:
        """The server's error as one of the same class, where it is ours."""
        kind = getattr(storage.errors, failure.kind, None)
        if isinstance(kind, type) and issubclass(kind, GraphmillError):
            return kind(f"{self._owner.who}: {failure.text}")
        return StageError(f"{self._owner.who}: {failure.kind}: {failure.text}")

    def _late(self, why: str = "see `ray list actors`, or raise --servers.timeout_s") -> DeadlineError:
        return DeadlineError(f"{self._owner.who}: no answer within {self._owner.timeout_s:g} s; {why}")

    def _left_s(self) -> float:
        return max(0.001, self._until - time.monotonic())


def _line(error: BaseException | None) -> str:
    """What gRPC says, without the context that it appends."""
    return " ".join(str(error).partition(". gRPC client debug context")[0].split())[:300]
