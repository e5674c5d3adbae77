"""Reports within seconds that a host of the cluster does not answer or answers again. Ends a run whose cluster has lost its head.

Ray gives up a host after about a minute (`RAY_health_check_failure_threshold` times `RAY_health_check_timeout_ms`), and shows nothing before that. The
watch tries each host's Ray port every two seconds. For hosts other than the head it only reports: Ray and the trainer react. It also reports hosts whose loss
is announced: Ray marks them as draining for a spot notice, for `ray drain-node`, and when their `ray start --block` gets SIGTERM.

For the head the watch does more. A process that sends a request to a lost head waits without bound, or Ray aborts the process after a minute or when another
head answers at the same address. Therefore the watch ends the run before that.
"""

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

import ray
from ray.exceptions import RayError

from graphmill.cluster.process.draining import draining_nodes
from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.core.errors import ClusterLostError

_PERIOD_S = 2.0
_KNOCK_S = 2.0  # longest wait for a host's answer
_SILENT_S = 4.0  # silence after which the user gets a message
_HEAD_PERIOD_S = 0.5
_CLOSED_S = 1.5  # a head is lost after this time without a listener at its port; a new Ray takes longer to start
_RAYS_PATIENCE = ("RAY_gcs_rpc_server_reconnect_timeout_s", "60")  # the name of Ray's variable, and its default
_KEPT_BY = ("RAY_REDIS_ADDRESS", "RAY_gcs_storage")  # Ray's variables for a head whose state survives the head's end

Address = tuple[str, int]


@dataclass
class _Seen:
    name: str
    answered_s: float  # time of the last answer
    is_told: bool = False
    is_given_up: bool = False


class HostStates:
    """The state of each host, by IP address. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def update(self, now: float, live: Mapping[str, str], answered: Collection[str]) -> list[str]:
        """Updates the states and returns messages for the user. `live`: names, by address, of the hosts that Ray regards as alive. `answered`: addresses of the
        hosts that have just answered."""
        messages = []
        for address, name in live.items():
            self._seen.setdefault(address, _Seen(name, now))
        for address, seen in self._seen.items():
            host, silent_s = f"{seen.name} ({address})", now - seen.answered_s
            if address in live and address in answered:
                if seen.is_told:
                    messages.append(f"{host} answers again, after {silent_s:.0f} s")
                seen.answered_s, seen.is_told, seen.is_given_up = now, False, False
                continue
            if silent_s >= _SILENT_S and not seen.is_told:
                messages.append(
                    f"{host} has not answered for {silent_s:.0f} s; the run goes on when it is back, or without it"
                )
                seen.is_told = True
            if address not in live and not seen.is_given_up:
                messages.append(f"Ray has given up {host}, {silent_s:.0f} s after its last answer")
                seen.is_told = seen.is_given_up = True
        return messages

    def lost(self, now: float) -> str:
        """Returns the hosts that do not answer, as text for messages. Empty if all hosts answer."""
        hosts = [
            f"{seen.name} ({address}) has not answered for {now - seen.answered_s:.0f} s"
            for address, seen in self._seen.items()
            if seen.is_told
        ]
        return "; ".join(hosts)


class Knock(Enum):
    """The result of connecting to a port."""

    ANSWERS = "answers"
    CLOSED = "closed"  # the host answers, but no process listens at the port
    SILENT = "silent"


class HeadState:
    """The state of the cluster's head. Times are seconds of a monotonic clock."""

    def __init__(self, now: float, patience_s: float, is_kept: bool) -> None:
        """`patience_s`: time in which a silent head may come back. `is_kept`: the head's state survives its end, so a closed head may come back too."""
        self._answered_s, self._patience_s, self._is_kept = now, patience_s, is_kept
        self._closed_s: float | None = None
        self._is_told = False

    def update(self, now: float, knock: Knock) -> tuple[str | None, str | None]:
        """Returns (message for the user, reason why the head is lost for ever). Each of them may be None."""
        if knock is Knock.ANSWERS:
            message = f"the head answers again, after {now - self._answered_s:.0f} s" if self._is_told else None
            self._answered_s, self._closed_s, self._is_told = now, None, False
            return message, None
        silent_s = now - self._answered_s
        self._closed_s = (self._closed_s or now) if knock is Knock.CLOSED else None
        if self._closed_s is not None and now - self._closed_s >= _CLOSED_S and not self._is_kept:
            return None, "nothing listens at its port any more"
        if silent_s >= self._patience_s:
            return None, f"it has not answered for {silent_s:.0f} s"
        if silent_s >= _SILENT_S and not self._is_told:
            self._is_told = True
            return (
                f"the head has not answered for {silent_s:.0f} s; the run ends if it is not back within {self._patience_s:.0f} s",
                None,
            )
        return None, None


class HostWatch:
    """Watches the connected cluster's other hosts and its head, in two threads."""

    def __init__(
        self,
        tell: Callable[[str], None],
        end_now: Callable[[], None],
        see_drains: Callable[[Mapping[str, str]], None],
    ) -> None:
        """`end_now` is called if the head is lost and makes the main thread raise KeyboardInterrupt. `head_lost` then holds the reason. `see_drains` gets the
        names of all draining hosts, by node id, every two seconds."""
        self._tell, self._end_now, self._states, self._ended = tell, end_now, HostStates(), threading.Event()
        self._see_drains = see_drains
        self._lock = threading.Lock()
        address = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        self._head: Address = (host.strip("[]"), int(port))
        names = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in ray.nodes()}
        self._head_name = f"{names.get(self._head[0], 'the host')} ({self._head[0]})"
        self.head_lost: str | None = None
        self._head_answers = True

    def lost(self) -> str:
        with self._lock:
            return self._states.lost(time.monotonic())

    def run_head(self) -> None:
        """Watches the head until `end` is called or the head is lost."""
        patience_s = 2 / 3 * float(os.environ.get(*_RAYS_PATIENCE))
        state = HeadState(time.monotonic(), patience_s, any(map(os.environ.get, _KEPT_BY)))
        while not self._ended.wait(_HEAD_PERIOD_S):
            now_knock = _knock_at(self._head, _KNOCK_S)
            self._head_answers = now_knock is Knock.ANSWERS
            message, lost = state.update(time.monotonic(), now_knock)
            if message is not None:
                self._tell(f"{self._head_name}: {message}")
            if lost is not None:
                self.head_lost = (
                    f"{self._head_name}, port {self._head[1]}: the head of the Ray cluster is lost: {lost}; Ray keeps the cluster's state "
                    "there alone, so the run ends; start Ray on all hosts again"
                )
                self._end_now()
                return

    def run(self) -> None:
        """Watches the other hosts until `end` is called."""
        own_node = ray.get_runtime_context().get_node_id()
        while not self._ended.wait(_PERIOD_S):
            if not self._head_answers:
                continue
            with suppress(RayError, RuntimeError):  # the head does not answer; `run_head` then ends the run
                alive = [node for node in ray.nodes() if node["Alive"]]
                nodes = [node for node in alive if node["NodeID"] != own_node]
                live = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in nodes}
                doors = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes]
                answered = {address for address, _ in knock(doors, _KNOCK_S)}
                with self._lock:
                    messages = self._states.update(time.monotonic(), live, answered)
                for message in messages:
                    self._tell(message)
                names = {
                    node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in alive
                }
                self._see_drains({node: names.get(node, node) for node in draining_nodes()})

    def end(self) -> None:
        self._ended.set()


@contextmanager
def watched_hosts(
    tell: Callable[[str], None],
    end_now: Callable[[], None] = interrupt_main,
    see_drains: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> Iterator[HostWatch]:
    """Watches the hosts during the block. `tell` and `see_drains` are called from threads, and must not wait.

    If the head is lost, `end_now` ends the block by KeyboardInterrupt, which is replaced by ClusterLostError.
    """
    watch = HostWatch(tell, end_now, see_drains)
    threads = [threading.Thread(target=run, name="graphmill-hosts", daemon=True) for run in (watch.run, watch.run_head)]
    for thread in threads:
        thread.start()
    try:
        yield watch
    except KeyboardInterrupt:
        if watch.head_lost is not None:
            raise ClusterLostError(watch.head_lost) from None
        raise
    finally:
        watch.end()
        if watch.head_lost is None:  # if the head is lost, the threads may still wait for it: do not join them
            for thread in threads:
                thread.join(timeout=_PERIOD_S + _KNOCK_S)


def _knock_at(door: Address, timeout_s: float) -> Knock:
    try:
        socket.create_connection(door, timeout=timeout_s).close()
    except ConnectionRefusedError:
        return Knock.CLOSED
    except OSError:
        return Knock.SILENT
    return Knock.ANSWERS


def knock(doors: Collection[Address], timeout_s: float) -> set[Address]:
    """Returns the TCP ports among `doors` that accept a connection in time. All ports are tried at the same time."""
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
