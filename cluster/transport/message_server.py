"""Answers requests over TCP. Clients must have the server's token (`graphmill.cluster.transport.connection`).

Each connection stays open and has its own thread. A connection carries a request, then its reply, then the next request, packed by
`graphmill.cluster.transport.wire`. At most `work_threads` requests are answered at the same time; further requests wait. A waiting request is dropped if its
client has gone. While this process compiles loops or opens its files, the clients of all unanswered requests are sent `Compiling` every few seconds.

Connections that have not proved the token take at most half of the process's free file descriptors. If there are more, the oldest are closed.
"""

import os
import resource
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from graphmill.cluster.transport.connection import Connection, Endpoint
from graphmill.cluster.transport.tls import tls_context
from graphmill.cluster.transport.wire import ROOM, Compiling, Failure, Message
from graphmill.core.compile_cache import is_compiling
from graphmill.core.errors import ConfigError, GraphmillError, StageError
from graphmill.samplers.access.array_pool import ArrayPool

_SAY_S = 2.0  # time between two messages `Compiling`
_LOOK_S = 1.0  # time between two checks that the client of a waiting request is still connected
_TOKEN_S = 10.0  # longest time in which a new client must prove the token
_UNPROVEN = 256  # largest number of connections without proof; each has a thread
_QUIET_S = 300.0  # after this time a connection without traffic is closed and its thread ends
_FINISH_S = 2.0  # time for a client to read the reason why it is refused
_STOP_S = 5.0  # time for the threads of the connections to end
_AGAIN_S = 0.02  # pause if a connection cannot be accepted because too many files are open


class MessageServer:
    """A server with its own token. It runs as soon as it is constructed. It uses `host` and the first free port of `ports` (None: any free port).

    Its daemon threads end with the process at the latest. Raises ConfigError if no port is free.
    """

    def __init__(
        self,
        answer: Callable[[Any], Message],
        host: str,
        ports: tuple[int, ...] | None,
        work_threads: int,
        room: ArrayPool = ROOM,
        *,
        tls: bool = False,
        is_opening: Callable[[], bool] = lambda: False,
    ) -> None:
        """`room`: the pool from which the requests' arrays take memory. `is_opening`: whether requests wait for files. `tls`: encrypt all connections; raises ConfigError as
        `graphmill.cluster.transport.tls.tls_context` does."""
        self._tls = tls_context(is_server=True) if tls else None
        self._is_opening = is_opening
        self._answer, self._working, self._room = answer, threading.Semaphore(work_threads), room
        self._listening = _listen(host, ports)
        self.endpoint = Endpoint(host, self._listening.getsockname()[1], secrets.token_bytes(32), tls)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._unproven: dict[threading.Thread, Connection] = {}  # open connections without proof, oldest first
        self._asked_lock = threading.Lock()  # held while `Compiling` is sent, so that it never mixes with a reply
        self._asked: set[Connection] = set()  # connections with a request that is not answered yet
        self._own = [
            threading.Thread(target=run, name=f"graphmill-{name}", daemon=True)
            for name, run in (("accept", self._accept), ("compiling", self._say_compiling))
        ]
        for thread in self._own:
            thread.start()

    def __enter__(self) -> "MessageServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def num_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def stop(self) -> None:
        """Ends all connections. Raises StageError if a thread still computes an answer after a few seconds. Such a thread ends after its answer."""
        self._stopping.set()
        _wake(self._listening)
        with self._lock:
            threads = [*self._own, *self._open]
            for connection in self._open.values():
                connection.shut()
        deadline = time.monotonic() + _STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if busy := sum(thread.is_alive() for thread in threads):
            raise StageError(f"{busy} of the server's threads have not ended within {_STOP_S:g} s")

    def _accept(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        while not self._stopping.is_set():
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                self._drop_unproven(len(self._unproven) - 1)
                self._stopping.wait(_AGAIN_S)
                continue
            # A new descriptor gets the lowest free number, so all descriptors below this number are in use.
            left = _UNPROVEN if limit == resource.RLIM_INFINITY else limit - accepted.fileno() + len(self._unproven)
            try:
                self._begin(accepted)
            except (OSError, RuntimeError):  # the client has gone, or no thread can be started
                accepted.close()
            self._drop_unproven(max(1, min(_UNPROVEN, left // 2)))
        self._listening.close()

    def _begin(self, accepted: socket.socket) -> None:
        if self._tls is not None:
            accepted = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        connection = Connection(accepted, _QUIET_S, self._room)
        thread = threading.Thread(target=self._serve, args=(connection,), name="graphmill-answers", daemon=True)
        # With the lock, either `stop` finds the new thread, or the thread finds that the server is stopping
        with self._lock:
            thread.start()
            self._open[thread] = self._unproven[thread] = connection

    def _drop_unproven(self, most: int) -> None:
        """Ends the oldest connections without proof, until at most `most` of them are open."""
        with self._lock:
            while len(self._unproven) > max(0, most):
                self._unproven.pop(next(iter(self._unproven))).shut()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.check_token(self.endpoint.token, time.monotonic() + _TOKEN_S)
            with self._lock:
                self._unproven.pop(threading.current_thread(), None)
            while not self._stopping.is_set():
                self._answer_one(connection)
        except OSError:  # the client has gone, or did not prove the token
            pass
        except GraphmillError as error:  # bytes that are no message: it is unknown where the next message begins
            with suppress(OSError):
                connection.send(_failure(error), _TOKEN_S)
                connection.finish(_FINISH_S)
        finally:
            with self._lock:
                del self._open[threading.current_thread()]
                self._unproven.pop(threading.current_thread(), None)
            connection.close()

    def _answer_one(self, connection: Connection) -> None:
        """Receives a request and sends its reply, or a Failure. Raises OSError if the client has gone, StageError if the bytes are not a request."""
        request = connection.receive(_QUIET_S)
        with self._asked_lock:
            self._asked.add(connection)
        try:
            reply = self._reply(connection, request)
        finally:
            with self._asked_lock:
                self._asked.discard(connection)
        try:
            connection.send(reply, _QUIET_S)
        except StageError as error:  # the reply is too large
            connection.send(_failure(error), _QUIET_S)

    def _reply(self, connection: Connection, request: Any) -> Message:
        self._wait_for_turn(connection)
        try:
            return self._answer(request)
        except Exception as error:  # noqa: BLE001  every error goes to the client
            return _failure(error)
        finally:
            self._working.release()

    def _say_compiling(self) -> None:
        while not self._stopping.wait(_SAY_S):
            if is_compiling() or self._is_opening():
                with self._asked_lock:
                    for connection in self._asked:
                        try:
                            connection.send(Compiling(), _LOOK_S)
                        except OSError:  # the client has gone or does not read; half a message may be sent
                            connection.shut()

    def _wait_for_turn(self, connection: Connection) -> None:
        has_turn = False
        while not has_turn:
            has_turn = self._working.acquire(timeout=_LOOK_S)
            if connection.has_ended():
                if has_turn:
                    self._working.release()
                raise ConnectionResetError("nobody waits for the answer")


def _failure(error: Exception) -> Failure:
    trace = f"server, pid={os.getpid()}\n{''.join(traceback.format_exception(error))}"
    return Failure(type(error).__name__, str(error), trace)


def _listen(host: str, ports: tuple[int, ...] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if ports is None:
        return socket.create_server((host, 0), family=family)
    first, last = ports
    for port in range(first, last + 1):
        try:
            return socket.create_server((host, port), family=family)
        except OSError:
            continue
    raise ConfigError(f"ports: expected a free one of {first} to {last} on {host}, found none; set --servers.ports")


def _wake(listening: socket.socket) -> None:
    """Wakes the thread that accepts on this socket."""
    try:
        listening.shutdown(socket.SHUT_RDWR)
    except OSError:  # on macOS shutdown fails, and closing the socket wakes the thread
        listening.close()
