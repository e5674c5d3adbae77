"""Answers requests over Arrow Flight, to those who have the server's token.

One `do_exchange` is one request and its reply, both as `cluster.wire` packs them. No more than `work_threads` requests are answered at
once, the others wait; a request whose asker has gone meanwhile is dropped.
"""

import hmac
import os
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from cluster.wire import MESSAGE_BYTES, Failure, Message, pack, unpack
from samplers.messages import Reply, Request
from storage.errors import ConfigError, StageError

TOKEN_HEADER = "authorization"
_LOOK_S = 1.0  # between two looks whether a waiting request's asker is still there


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers, and what it wants to be shown."""

    location: str
    token: str = field(repr=False)


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Refuses calls without the token, before any of their data are read."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        shown = headers.get(TOKEN_HEADER, [])
        if len(shown) != 1 or not hmac.compare_digest(shown[0].encode(), self._token):
            raise flight.FlightUnauthenticatedError("expected the server's token")


class FlightServer(flight.FlightServerBase):
    """Serves from the moment it is made, with a token of its own, on `host` at the first free port of `ports` (None: any free one).

    Raises ConfigError where none of the ports is free.
    """

    def __init__(
        self, answer: Callable[[Request], Reply], host: str, ports: tuple[int, ...] | None, work_threads: int
    ) -> None:
        self._answer, self._working = answer, threading.Semaphore(work_threads)
        token = secrets.token_hex(32)
        port = 0 if ports is None else _free_port(host, *ports)
        host = f"[{host}]" if ":" in host else host
        super().__init__(f"grpc://{host}:{port}", middleware={"token": _TokenCheck(token)})
        self.endpoint = Endpoint(f"grpc://{host}:{self.port}", token)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Reads a request and writes its reply, or a Failure."""
        try:
            request = unpack(_batches(reader))
            self._wait_for_turn(context)
            try:
                reply: Message = self._answer(request)  # type: ignore[arg-type]
            finally:
                self._working.release()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the asker's to know
            trace = f"partition server, pid={os.getpid()}\n{traceback.format_exc()}"
            reply = Failure(type(error).__name__, str(error), trace)
        for index, batch in enumerate(pack(reply)):
            if index == 0:
                writer.begin(batch.schema)
            writer.write_batch(batch)

    def _wait_for_turn(self, context: Any) -> None:
        has_turn = False
        while not has_turn:
            has_turn = self._working.acquire(timeout=_LOOK_S)
            if context.is_cancelled():
                if has_turn:
                    self._working.release()
                raise StageError("the asker has gone")


def _free_port(host: str, first: int, last: int) -> int:
    for port in range(first, last + 1):
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError:
            continue
        return port
    raise ConfigError(f"ports: expected a free one of {first} to {last} on {host}, found none; set --servers.ports")


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """What the other side sends. Raises StageError for a message above the bound."""
    for chunk in reader:
        if chunk.data is not None and chunk.data.nbytes > MESSAGE_BYTES:
            raise StageError(f"expected messages of at most {MESSAGE_BYTES} bytes, got {chunk.data.nbytes}")
        if chunk.data is not None:
            yield chunk.data
