"""Keeps the partitions of a graph open in a cluster, for all jobs that use the graph.

A service is a named, detached Ray actor. It owns the partition servers of one graph (`graphmill.cluster.serving.partition_server`), counts the jobs that use them,
and ends when no job has used them for a while. A job finds the service by the graph's digest, so a service never gives a job another graph. Everything is
read-only: batches are equal with and without a service. A killed server is restarted and opens the same files again. A killed service is restarted too; its
servers die with it, and jobs get the new ones with their next attempt.
"""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import ActorDiedError, RayError

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.process.answers import answer, answers_in_time
from graphmill.cluster.serving.partition_server import PartitionServers, ServerGroup, server_group
from graphmill.cluster.serving.server_placement import live_hosts
from graphmill.cluster.transport.remote_owner import COMPILE_S
from graphmill.core.errors import ConfigError, StageError
from graphmill.core.summaries import counted
from graphmill.storage.graph import PinnedGraph, StoredGraph, TypedGraph

_NAMESPACE = "graphmill"
_ANSWER_S = 30.0  # longest wait for an answer that needs no work
_OPEN_BYTES_PER_S = 10e6  # a slow store's
_AGAIN_S = 0.1
_LOOKS = 4  # a job renews its use, and a service looks for use, this many times in `idle_s`
_OF_THE_JOB = (
    "timeout_s",
    "start_timeout_s",
    "local_reads",
    "service",
)  # server options that each job decides for itself
_CALLS = 16  # calls of jobs that the service answers at the same time


class Uses:
    """Counts the jobs that use a service. A job that has not renewed its use for `idle_s` counts no more."""

    def __init__(self, idle_s: float, now_s: float) -> None:
        self._idle_s, self._last_s = idle_s, now_s
        self._renewed: dict[str, float] = {}

    def renew(self, job: str, now_s: float) -> None:
        self._renewed[job] = self._last_s = now_s

    def leave(self, job: str, now_s: float) -> None:
        if self._renewed.pop(job, None) is not None:
            self._last_s = now_s

    def count(self, now_s: float) -> int:
        return sum(now_s - at_s <= self._idle_s for at_s in self._renewed.values())

    def is_over(self, now_s: float) -> bool:
        """Whether no job has used the service for `idle_s`."""
        return now_s - self._last_s > self._idle_s


@dataclass(frozen=True)
class ServiceState:
    """What a service tells about itself."""

    url: str
    jobs: int
    idle_s: float
    num_partitions: int
    options: ServerOptions


class GraphService:
    """The Ray actor of a service."""

    def __init__(self, graph: PinnedGraph, options: ServerOptions, idle_s: float) -> None:
        self._graph, self._options, self._idle_s = graph, options, idle_s
        self._uses, self._counting, self._opening = Uses(idle_s, time.monotonic()), threading.Lock(), threading.Lock()
        self._group: ServerGroup | None = None
        self._up: PartitionServers | None = None
        self._myself = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_when_idle, name="idle", daemon=True).start()

    def join(self, job: str, wait_s: float) -> tuple[PartitionServers, list[str]]:
        """Counts a job, and returns the running servers with messages for the user. Opens the partitions first, if they are not open on live hosts. Errors: see
        `ServerGroup.running`."""
        self.renew(job)
        said: list[str] = []
        with self._opening:
            live = {host.node_id for host in live_hosts()}
            # Servers move only if they lost a host. A move to a host that has joined would end the servers under other jobs.
            if self._up is None or not all(server.info.node_id in live for server in self._up.servers):
                self._group = self._group or ServerGroup(self._graph.open(), self._options)
                self._up = self._group.running(wait_s, said.append)
            self.renew(job)  # opening may have taken long
            return self._up, said

    def renew(self, job: str) -> None:
        with self._counting:
            self._uses.renew(job, time.monotonic())

    def leave(self, job: str) -> None:
        with self._counting:
            self._uses.leave(job, time.monotonic())

    def where(self) -> str:
        return "" if self._group is None else self._group.where()

    def full_disks(self) -> str:
        return "" if self._group is None else self._group.full_disks()

    def state(self) -> ServiceState:
        with self._counting:
            jobs = self._uses.count(time.monotonic())
        partitions = 0 if self._up is None else self._up.num_partitions
        return ServiceState(self._graph.url, jobs, self._idle_s, partitions, self._options)

    def end(self) -> None:
        """Ends the servers and this actor."""
        if self._group is not None:
            self._group.stop()
        ray.kill(self._myself, no_restart=True)

    def _end_when_idle(self) -> None:
        while True:
            time.sleep(self._idle_s / _LOOKS)
            with self._counting:
                if self._uses.is_over(time.monotonic()):
                    break
        with self._opening:
            self.end()


def service_name(graph: StoredGraph | TypedGraph) -> str:
    """The name of the graph's service: a digest of the files that servers read."""
    manifest = graph.manifest
    encodings = sorted(entry.sha256 for each in manifest.encodings.values() for entry in each.files.values())
    return f"graph-{hashlib.sha256(' '.join([manifest.content_hash, *encodings]).encode()).hexdigest()[:24]}"


def find_service(graph: StoredGraph | TypedGraph) -> Any:
    """Returns the handle of the graph's service in the connected cluster. None if there is no service."""
    try:
        return ray.get_actor(service_name(graph), namespace=_NAMESPACE)
    except ValueError:
        return None


def _running(graph: StoredGraph | TypedGraph) -> tuple[Any, ServiceState] | None:
    """Returns (handle, state) of the graph's service. None if there is none, or if it has just ended. Raises the errors of a call to an actor."""
    until = time.monotonic() + _ANSWER_S
    while (handle := find_service(graph)) is not None:
        try:
            return handle, ray.get(handle.state.remote(), timeout=_ANSWER_S)
        except ActorDiedError:
            if time.monotonic() > until:
                raise
        time.sleep(_AGAIN_S)  # the cluster forgets the name a moment later
    return None


def start_service(graph: StoredGraph | TypedGraph, options: ServerOptions, idle_s: float) -> tuple[ServiceState, str]:
    """Starts the graph's service in the connected cluster, or finds the running one. Returns (its state, text that names the hosts of the partitions).

    The service outlives this process. Raises ConfigError if other processes cannot read the graph, or if a service with other options runs; the errors of
    `ServerGroup.running` if the partitions cannot be opened, and then ends the service.
    """
    ServerGroup(graph, options)  # refuses options that cannot work, before anything starts
    name, found = service_name(graph), _running(graph)
    if found is not None:
        running = found[1]
        if different := _differences(options, running.options):
            raise ConfigError(
                f"{graph.url}: expected the options of the running graph service, got other values of {', '.join(different)}; end it first: --end"
            )
        if running.idle_s != idle_s:
            raise ConfigError(
                f"{graph.url}: expected --idle_s {running.idle_s:g} of the running graph service, got {idle_s:g}; end it first: --end"
            )
    actor_options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": _CALLS,
        "lifetime": "detached",
        "namespace": _NAMESPACE,
        "name": name,
        "get_if_exists": True,
    }
    actor: Any = ray.remote(**actor_options)(GraphService)
    handle = actor.remote(graph.pin(), options, idle_s) if found is None else found[0]
    job = _new_job()
    try:
        _join(handle, job, graph, options, 0.0)
    except BaseException:
        if found is None:
            answers_in_time([handle.end.remote()], _ANSWER_S)
        raise
    state, where = (answer(call.remote(), name, _ANSWER_S) for call in (handle.state, handle.where))
    handle.leave.remote(job)
    return replace(state, jobs=max(0, state.jobs - 1)), where  # without this process's own use


def end_service(graph: StoredGraph | TypedGraph) -> bool:
    """Ends the graph's service, also if jobs use it. Returns whether there was one."""
    handle = find_service(graph)
    if handle is None:
        return False
    answers_in_time([handle.end.remote()], _ANSWER_S)  # the actor ends before it answers
    until = time.monotonic() + _ANSWER_S
    while find_service(graph) is not None and time.monotonic() < until:
        time.sleep(_AGAIN_S)  # the cluster forgets the name a moment later
    return True


class JoinedService:
    """A job's use of a service: offers what the job would ask of its own `ServerGroup`."""

    def __init__(self, handle: Any, graph: StoredGraph | TypedGraph, options: ServerOptions, idle_s: float) -> None:
        self._handle, self._graph, self._options = handle, graph, options
        self._job, self._name = _new_job(), service_name(graph)
        self._own: ServerGroup | None = None
        self._nodes = frozenset[str]()
        answer(handle.renew.remote(self._job), self._name, _ANSWER_S)
        self._left = threading.Event()
        self._renewing = threading.Thread(target=self._renew, args=(idle_s / _LOOKS,), name="service", daemon=True)
        self._renewing.start()

    def running(self, wait_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> PartitionServers:
        """Returns the running servers. If the service is gone, joins the one that was started since, or starts servers of this job. Errors: see
        `ServerGroup.running`."""
        if self._own is not None:
            return self._own.running(wait_s, say)
        try:
            servers, said = _join(self._handle, self._job, self._graph, self._options, wait_s)
        except StageError as error:
            handle = find_service(self._graph)
            if handle is None:
                say(f"the graph service is gone, this job starts its own partition servers ({error})")
                self._own = ServerGroup(self._graph, self._options)
                return self._own.running(wait_s, say)
            self._handle = handle
            servers, said = _join(handle, self._job, self._graph, self._options, wait_s)
        for line in said:
            say(line)
        self._nodes = frozenset(server.info.node_id for server in servers.servers)
        kept = {name: getattr(self._options, name) for name in _OF_THE_JOB}
        return replace(servers, options=replace(servers.options, **kept))

    def nodes(self) -> frozenset[str]:
        return self._nodes if self._own is None else self._own.nodes()

    def where(self) -> str:
        if self._own is not None:
            return self._own.where()
        return next(iter(answers_in_time([self._handle.where.remote()], _ANSWER_S))) or ""

    def full_disks(self) -> str:
        if self._own is not None:
            return self._own.full_disks()
        return next(iter(answers_in_time([self._handle.full_disks.remote()], _ANSWER_S))) or ""

    def leave(self) -> None:
        """Ends this use; the service stays."""
        self._left.set()
        self._handle.leave.remote(self._job)
        if self._own is not None:
            self._own.stop()

    def _renew(self, each_s: float) -> None:
        while not self._left.wait(each_s):
            self._handle.renew.remote(self._job)


@contextmanager
def shared_or_own(
    graph: StoredGraph | TypedGraph,
    options: ServerOptions,
    say: Callable[[str], None],
    workers: WorkerOptions | None = None,
    asked: tuple[str, ...] | None = None,
) -> Iterator[ServerGroup | JoinedService]:
    """Joins the graph's service, or starts servers for this job alone, for the length of the block (`ServerOptions.service`). `workers`, `asked`: see `ServerGroup`.

    Raises ConfigError if the options demand a service and none fits; otherwise the errors of `ServerGroup.running`.
    """
    joined = None if options.service == "never" else _joined(graph, options, say)
    if joined is None:
        with server_group(graph, options, say, workers, asked) as group:
            yield group
        return
    try:
        yield joined
    finally:
        joined.leave()


def _joined(
    graph: StoredGraph | TypedGraph, options: ServerOptions, say: Callable[[str], None]
) -> JoinedService | None:
    try:
        found = _running(graph)
    except RayError as error:
        why = f"the graph service of {graph.url} does not answer ({type(error).__name__})"
        if options.service == "always":
            raise StageError(f"{why}; see `ray list actors`") from error
        say(f"{why}; this job starts its own partition servers")
        return None
    if found is None:
        if options.service == "always":
            raise ConfigError(
                f"service: expected a running graph service of {graph.url}, found none; start one: graphmill serve-graph {graph.url}"
            )
        return None
    handle, state = found
    if different := _differences(options, state.options):
        flags = ", ".join(f"--servers.{name}" for name in different)
        if options.service == "always":
            raise ConfigError(
                f"service: expected the options of the graph service, got other values of {flags}; leave them out"
            )
        say(
            f"a graph service of {graph.url} runs with other values of {flags}; this job starts its own partition servers"
        )
        return None
    say(f"using the graph service of {graph.url} beside {counted(state.jobs, 'other job')}")
    return JoinedService(handle, graph, options, state.idle_s)


def _differences(options: ServerOptions, others: ServerOptions) -> list[str]:
    """Names of the options of a service that differ."""
    names = [field.name for field in fields(ServerOptions) if field.name not in _OF_THE_JOB]
    return [name for name in names if getattr(options, name) != getattr(others, name)]


def _new_job() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


def _join(
    handle: Any, job: str, graph: StoredGraph | TypedGraph, options: ServerOptions, wait_s: float
) -> tuple[PartitionServers, list[str]]:
    opening_s = graph.manifest.num_bytes / _OPEN_BYTES_PER_S + options.start_timeout_s + COMPILE_S
    joined: tuple[PartitionServers, list[str]] = answer(
        handle.join.remote(job, wait_s),
        f"graph service of {graph.url}",
        wait_s + opening_s,
        "raise --servers.start_timeout_s",
    )
    return joined
