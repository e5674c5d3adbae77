"""Represents the owner of a partition in another process. Sends requests to its server over persistent connections. The server's actor returns the endpoint.

A request uses a connection alone until its reply has arrived; then another request may use the connection. Requests are idempotent. If a connection is lost,
its request is sent again on a new connection, to the actor's current endpoint, until the request's deadline. Every arriving byte of a reply moves the deadline:
a slow link does not end a request, a silent link does. A server that compiles its loops, or opens its files after a restart, says so, and gets more time (`COMPILE_S`).
"""

import math
import time
from collections.abc import Callable
from typing import Any

import graphmill.core.errors
from graphmill.cluster.transport.connection import Connection, Endpoint, connect
from graphmill.cluster.transport.embedding_messages import TableRequest
from graphmill.cluster.transport.wire import Compiling, Failure, Message
from graphmill.core.compile_cache import COMPILE_S
from graphmill.core.errors import DeadlineError, GraphmillError, StageError
from graphmill.samplers.vocabulary.messages import Request
from graphmill.samplers.vocabulary.stage_clock import excuse

_CONNECT_S = 10.0  # longest time of one try; the next try asks the actor for the endpoint again
_KEPT = 16  # largest number of idle connections that are kept; each uses a thread of the server
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0  # time between two tries


class RemoteOwner:
    """Sends requests to one server. Several threads may use it at the same time.

    `find(within_s)` gets the endpoint from the server's actor. If there is no server, it raises the error for the user. Every request returns its reply,
    or raises an error that begins with `who`, at most `timeout_s` after the last received bytes.
    """

    def __init__(self, find: Callable[[float], Endpoint], who: str, timeout_s: float) -> None:
        self._find, self.who, self.timeout_s = find, who, timeout_s
        self._endpoint: Endpoint | None = None
        # Idle connections; needs no lock, because append and pop are atomic
        self._waiting: list[tuple[Endpoint, Connection]] = []

    def submit(self, request: Request | TableRequest) -> "_Call":
        call = _Call(self, request)
        call.send()
        return call

    def endpoint(self, timeout_s: float) -> Endpoint:
        """Returns the server's endpoint. Raises the errors of `find`."""
        endpoint = self._endpoint
        if endpoint is None:
            endpoint = self._endpoint = self._find(timeout_s)
        return endpoint

    def connection(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """Returns an idle or a new connection. Raises OSError if nothing answers."""
        while self._waiting:
            try:
                known, connection = self._waiting.pop()
            except IndexError:  # another thread has taken the last idle connection
                break
            if known == endpoint and not connection.is_readable():
                return connection
            connection.close()  # the connection belongs to an earlier server, or the server has ended it
        return connect(endpoint, min(timeout_s, _CONNECT_S), self.timeout_s)

    def keep(self, endpoint: Endpoint, connection: Connection) -> None:
        """Keeps an idle connection for the next request."""
        if len(self._waiting) < _KEPT:
            self._waiting.append((endpoint, connection))
        else:
            connection.close()

    def lose(self, endpoint: Endpoint) -> None:
        """Forgets the endpoint. The next call gets it from the actor again."""
        if self._endpoint is endpoint:
            self._endpoint = None


class _ServerTraceback(Exception):
    """Holds the server's traceback. It is the cause of the error that is raised in this process."""


class _Call:
    """One request. It is sent again if its connection is lost, until its deadline."""

    def __init__(self, owner: RemoteOwner, request: Request | TableRequest) -> None:
        self._owner, self._request = owner, request
        self._until = time.monotonic() + owner.timeout_s
        self._endpoint: Endpoint | None = None
        self._connection: Connection | None = None
        self._lost = ""
        self._compiled_until = (
            math.inf
        )  # set by the first `Compiling`; a server that dies again and again while it compiles has no more time

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
        """Waits for the reply to the request and returns it."""
        pause_s, self._until = _FIRST_PAUSE_S, time.monotonic() + self._owner.timeout_s
        while (reply := self._receive()) is None:
            assert self._endpoint is not None
            if time.monotonic() > self._compiled_until:
                raise self._not_compiled()
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
        """Returns the reply, or None if the connection was lost."""
        connection, endpoint = self._connection, self._endpoint
        if connection is None:
            return None
        try:
            reply = connection.receive(self._left_s())
            while isinstance(reply, Compiling) and time.monotonic() < self._compiled_until:
                self._compiled_until = min(self._compiled_until, time.monotonic() + COMPILE_S)
                excuse()
                reply = connection.receive(self._owner.timeout_s)
        except OSError as error:
            self._fail(error)
            return None
        except StageError as error:  # the meaning of later bytes on this connection is unknown
            self._connection = None
            connection.close()
            raise StageError(f"{self._owner.who}: {error}") from error
        assert endpoint is not None
        self._connection = None
        if isinstance(reply, Compiling):
            connection.close()
            raise self._not_compiled()
        self._owner.keep(endpoint, connection)
        if isinstance(reply, Failure):
            raise self._failure(reply) from _ServerTraceback(reply.trace)
        return reply

    def _fail(self, error: OSError) -> None:
        """Records that the connection is lost; the server then drops the request. Raises DeadlineError if no bytes moved in time."""
        assert self._connection is not None
        self._connection.close()
        self._until = max(self._until, self._connection.replied_s + self._owner.timeout_s)
        self._connection, self._lost = None, _line(error)
        if isinstance(error, TimeoutError) and error.errno is None:  # ours, not TCP's own
            raise self._late() from None

    def _failure(self, failure: Failure) -> GraphmillError:
        """Returns the server's error: in its own class if the class is a GraphmillError, else as a StageError."""
        kind = getattr(graphmill.core.errors, failure.kind, None)
        if isinstance(kind, type) and issubclass(kind, GraphmillError):
            return kind(f"{self._owner.who}: {failure.text}")
        return StageError(f"{self._owner.who}: {failure.kind}: {failure.text}")

    def _late(self, why: str = "see `ray list actors`, or raise --servers.timeout_s") -> DeadlineError:
        return DeadlineError(f"{self._owner.who}: no answer within {self._owner.timeout_s:g} s; {why}")

    def _not_compiled(self) -> DeadlineError:
        return DeadlineError(
            f"{self._owner.who}: expected open files and compiled loops within {COMPILE_S:g} s; see its host's load"
        )

    def _left_s(self) -> float:
        return max(0.001, self._until - time.monotonic())


def _line(error: OSError) -> str:
    return " ".join(str(error).split())[:300]
