"""Tells within seconds that a host of the cluster does not answer, and when it is back.

Ray gives a host up after about a minute (`RAY_health_check_failure_threshold` times `RAY_health_check_timeout_ms`), and until then shows
nothing. Here each host's Ray is knocked at every two seconds. This only looks and tells; what to do about it is Ray's and the trainer's.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

_PERIOD_S = 2.0
_KNOCK_S = 2.0  # longest wait for an answer
_SILENT_S = 4.0  # how long a host has not answered when the user is told

Address = tuple[str, int]


@dataclass
class _Seen:
    name: str
    answered_s: float  # when it answered last
    is_told: bool = False
    is_given_up: bool = False


class HostStates:
    """What is known of each host, by its IP address; times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def update(self, now: float, live: Mapping[str, str], answered: Collection[str]) -> list[str]:
        """What to tell the user. `live`: names of the hosts that Ray counts on; `answered`: those that have answered just now."""
        told = []
        for address, name in live.items():
            self._seen.setdefault(address, _Seen(name, now))
        for address, seen in self._seen.items():
            host, silent_s = f"{seen.name} ({address})", now - seen.answered_s
            if address in live and address in answered:
                if seen.is_told:
                    told.append(f"{host} answers again, after {silent_s:.0f} s")
                seen.answered_s, seen.is_told, seen.is_given_up = now, False, False
                continue
            if silent_s >= _SILENT_S and not seen.is_told:
                told.append(
                    f"{host} has not answered for {silent_s:.0f} s; the run goes on when it is back, or without it"
                )
                seen.is_told = True
            if address not in live and not seen.is_given_up:
                told.append(f"Ray has given up {host}, {silent_s:.0f} s after its last answer")
                seen.is_told = seen.is_given_up = True
        return told

    def lost(self, now: float) -> str:
        """The hosts that do not answer, for people; empty where all do."""
        hosts = [
            f"{seen.name} ({address}) has not answered for {now - seen.answered_s:.0f} s"
            for address, seen in self._seen.items()
            if seen.is_told
        ]
        return "; ".join(hosts)


class HostWatch:
    """A thread that looks at the connected cluster's hosts, this one apart."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._states, self._ended = tell, HostStates(), threading.Event()
        self._lock = threading.Lock()

    def lost(self) -> str:
        with self._lock:
            return self._states.lost(time.monotonic())

    def run(self) -> None:
        """Until `end`."""
        here = ray.get_runtime_context().get_node_id()
        while not self._ended.wait(_PERIOD_S):
            with suppress(RayError, RuntimeError):  # the cluster's head does not answer, which ends the run elsewhere
                nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
                live = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in nodes}
                doors = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes]
                answered = {address for address, _ in knock(doors, _KNOCK_S)}
                with self._lock:
                    told = self._states.update(time.monotonic(), live, answered)
                for what in told:
                    self._tell(what)

    def end(self) -> None:
        self._ended.set()


@contextmanager
def watched_hosts(tell: Callable[[str], None]) -> Iterator[HostWatch]:
    """Watches during the block; `tell` is called from a thread, and must not wait."""
    watch = HostWatch(tell)
    thread = threading.Thread(target=watch.run, name="graphmill-hosts", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join(timeout=_PERIOD_S + _KNOCK_S)


def knock(doors: Collection[Address], timeout_s: float) -> set[Address]:
    """Those of these TCP ports that take a connection within the time; all are tried at once."""
    answered: set[Address] = set()
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for door in doors:
            family = socket.AF_INET6 if ":" in door[0] else socket.AF_INET
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            connection.connect_ex(door)
            selector.register(connection, selectors.EVENT_WRITE, door)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                connection = key.fileobj  # type: ignore[assignment]
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    answered.add(key.data)
                selector.unregister(connection)
                connection.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return answered
