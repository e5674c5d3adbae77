"""The owner of a partition in another process: asks its server over Arrow Flight, at the endpoint that the server's actor tells.

Requests are idempotent. One whose connection is lost is sent again, to the endpoint that the actor tells then, until its deadline. Each piece of
a reply that arrives moves the deadline: a slow link is no reason to give up, a silent one is.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
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
_LOOK_S = 60.0  # between two looks at calls, where there are none
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
        self._options = flight.FlightCallOptions(headers=[(TOKEN_HEADER.encode(), endpoint.token.encode())])
        self._client = flight.FlightClient(endpoint.location, generic_options=_CHANNEL)

    def exchange(self) -> tuple[Any, Any]:
        """(writer, reader) of a new call."""
        return self._client.do_exchange(_DESCRIPTOR, self._options)


class _Deadlines:
    """Cancels calls whose deadline is over, in a thread of its own: gRPC's deadlines cannot be moved."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_s = 0.0  # when the thread looks next

    def add(self, call: "_Call") -> None:
        with self._changed:
            self._calls.add(call)
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._wakes_s = call.until
                self._thread = threading.Thread(target=self._run, name="graphmill-deadlines", daemon=True)
                self._thread.start()
            elif call.until < self._wakes_s:
                self._changed.notify()

    def remove(self, call: "_Call") -> None:
        with self._changed:
            self._calls.discard(call)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                late = [call for call in self._calls if call.until <= now]
                self._calls.difference_update(late)
                self._wakes_s = min((call.until for call in self._calls), default=now + _LOOK_S)
                if not late:
                    self._changed.wait(max(0.0, self._wakes_s - now))
            for call in late:
                call.cancel()


_deadlines = _Deadlines()


class RemoteOwner:
    """Asks one server; safe to use from several threads, which share a connection.

    `find` asks the server's actor for its endpoint, within so many seconds, and raises what is to be said where there is no server. Every
    request has its reply, or an error that begins with `who`, within `timeout_s` of the last piece that came since it was waited for.
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
        self.until = time.monotonic() + owner.timeout_s
        self._is_late = False
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
            self._streams = writer, _ = self._connection.exchange()
            _deadlines.add(self)
            for index, batch in enumerate(pack(self._request)):
                if index == 0:
                    writer.begin(batch.schema)
                writer.write_batch(batch)
            writer.done_writing()
            _deadlines.remove(self)  # until somebody waits
        except _ERRORS as error:
            self._fail(error)

    def result(self) -> Reply:
        pause_s, self.until = _FIRST_PAUSE_S, time.monotonic() + self._owner.timeout_s
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
        _deadlines.add(self)
        try:
            reply = unpack(self._pieces(reader))
            writer.close()
        except _ERRORS as error:
            self._fail(error)
            return None
        except StageError as error:
            raise StageError(f"{self._owner.who}: {error}") from error
        finally:
            _deadlines.remove(self)
        if isinstance(reply, Failure):
            raise self._failure(reply) from _ServerTraceback(reply.trace)
        return reply  # type: ignore[return-value]

    def _pieces(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for chunk in reader:
            self.until = time.monotonic() + self._owner.timeout_s
            if chunk.data is not None:
                yield chunk.data

    def cancel(self) -> None:
        """Ends the call: its deadline is over. Called by another thread than the one that waits."""
        streams = self._streams
        if streams is not None:
            self._is_late = True
            streams[1].cancel()

    def _fail(self, error: Exception) -> None:
        """Keeps what says that the connection is lost, raises any other error; the call is over."""
        _deadlines.remove(self)
        if self._streams is not None:
            with contextlib.suppress(*_ERRORS):  # or Arrow prints the error when the call's memory is freed
                self._streams[0].close()
        self._streams, self._lost = None, error
        if self._is_late:
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
        return max(0.001, self.until - time.monotonic())


def _line(error: BaseException | None) -> str:
    """What gRPC says, without the context that it appends."""
    return " ".join(str(error).partition(". gRPC client debug context")[0].split())[:300]
