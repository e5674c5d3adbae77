"""The owner of a partition in another process: asks its server over persistent connections, at the endpoint that the server's actor gives.

A request has a connection to itself until its reply has arrived; then the next request uses it. Requests are idempotent: if its connection is lost, a
request is sent again on a new one, to the actor's current endpoint, until its deadline. Every arriving byte of a reply moves the deadline: a slow link
is no reason to give up, a silent one is.
"""

import time
from collections.abc import Callable
from typing import Any

import graphmill.core.errors
from graphmill.cluster.transport.connection import Connection, Endpoint, connect
from graphmill.cluster.transport.embedding_messages import TableRequest
from graphmill.cluster.transport.wire import Failure, Message
from graphmill.core.errors import DeadlineError, GraphmillError, StageError
from graphmill.samplers.vocabulary.messages import Request

_CONNECT_S = 10.0  # then the next try asks for the endpoint again
_KEPT = 16  # idle connections that are kept; each occupies a thread of the server
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0  # between two tries


class RemoteOwner:
    """Asks one server; safe to use from several threads.

    `find(within_s)` asks the server's actor for its endpoint, and raises the error to report if there is no server. Every request gets its reply, or
    an error that begins with `who`, within `timeout_s` of the last received bytes.
    """

    def __init__(self, find: Callable[[float], Endpoint], who: str, timeout_s: float) -> None:
        self._find, self.who, self.timeout_s = find, who, timeout_s
        self._endpoint: Endpoint | None = None
        self._waiting: list[tuple[Endpoint, Connection]] = []  # idle connections; append and pop are atomic

    def submit(self, request: Request | TableRequest) -> "_Call":
        call = _Call(self, request)
        call.send()
        return call

    def endpoint(self, timeout_s: float) -> Endpoint:
        """The server's endpoint. Raises as `find`."""
        endpoint = self._endpoint
        if endpoint is None:
            endpoint = self._endpoint = self._find(timeout_s)
        return endpoint

    def connection(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """An idle or new connection. Raises OSError if nothing answers."""
        while self._waiting:
            try:
                known, connection = self._waiting.pop()
            except IndexError:  # another thread was faster
                break
            if known == endpoint and not connection.is_readable():
                return connection
            connection.close()  # to an earlier server, or ended by this one
        return connect(endpoint, min(timeout_s, _CONNECT_S), self.timeout_s)

    def keep(self, endpoint: Endpoint, connection: Connection) -> None:
        """Keeps an idle connection for the next request."""
        if len(self._waiting) < _KEPT:
            self._waiting.append((endpoint, connection))
        else:
            connection.close()

    def lose(self, endpoint: Endpoint) -> None:
        """Forgets the endpoint: the next call asks for it again."""
        if self._endpoint is endpoint:
            self._endpoint = None


class _ServerTraceback(Exception):
    """The server's traceback, as the cause of the error that is raised here."""


class _Call:
    """A request that is sent, if need be again, until its deadline."""

    def __init__(self, owner: RemoteOwner, request: Request | TableRequest) -> None:
        self._owner, self._request = owner, request
        self._until = time.monotonic() + owner.timeout_s
        self._endpoint: Endpoint | None = None
        self._connection: Connection | None = None
        self._lost = ""

    def send(self) -> None:
        """Sends the request. `result` sends it again if the connection is lost."""
        owner = self._owner
        try:
            self._endpoint = owner.endpoint(self._left_s())
        except DeadlineError:
            raise self._late() from None
        try:
            self._connection = owner.connection(self._endpoint, self._left_s())
        except OSError as error:
            self._lost = _line(error)
            return
        try:
            self._connection.send(self._request, self._left_s())
        except OSError as error:
            self._fail(error)
        except StageError as error:
            raise StageError(f"{owner.who}: {error}") from error

    def result(self) -> Any:
        """The reply to the request."""
        pause_s, self._until = _FIRST_PAUSE_S, time.monotonic() + self._owner.timeout_s
        while (reply := self._receive()) is None:
            assert self._endpoint is not None
            self._owner.lose(self._endpoint)
            if self._left_s() < pause_s:
                tls = "; with --servers.tls, see that the certificates fit" if self._endpoint.has_tls else ""
                raise self._late(
                    f"its actor is there, but nothing answers at {self._endpoint} ({self._lost}); open this port "
                    f"between the nodes, or set --servers.ports to some that are{tls}"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.send()
        return reply

    def _receive(self) -> Message | None:
        """The reply; None if the connection was lost."""
        connection, endpoint = self._connection, self._endpoint
        if connection is None:
            return None
        try:
            reply = connection.receive(self._left_s())
        except OSError as error:
            self._fail(error)
            return None
        except StageError as error:  # later bytes on this connection are unknown
            self._connection = None
            connection.close()
            raise StageError(f"{self._owner.who}: {error}") from error
        assert endpoint is not None
        self._connection = None
        self._owner.keep(endpoint, connection)
        if isinstance(reply, Failure):
            raise self._failure(reply) from _ServerTraceback(reply.trace)
        return reply

    def _fail(self, error: OSError) -> None:
        """Notes that the connection is lost; raises DeadlineError if no bytes moved in time. The server drops the request."""
        assert self._connection is not None
        self._connection.close()
        self._until = max(self._until, self._connection.replied_s + self._owner.timeout_s)
        self._connection, self._lost = None, _line(error)
        if isinstance(error, TimeoutError) and error.errno is None:  # ours, not TCP's own
            raise self._late() from None

    def _failure(self, failure: Failure) -> GraphmillError:
        """The server's error: of the same class if that is a GraphmillError, else a StageError."""
        kind = getattr(graphmill.core.errors, failure.kind, None)
        if isinstance(kind, type) and issubclass(kind, GraphmillError):
            return kind(f"{self._owner.who}: {failure.text}")
        return StageError(f"{self._owner.who}: {failure.kind}: {failure.text}")

    def _late(self, why: str = "see `ray list actors`, or raise --servers.timeout_s") -> DeadlineError:
        return DeadlineError(f"{self._owner.who}: no answer within {self._owner.timeout_s:g} s; {why}")

    def _left_s(self) -> float:
        return max(0.001, self._until - time.monotonic())


def _line(error: OSError) -> str:
    return " ".join(str(error).split())[:300]
