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
from graphmill.core.errors import ClusterLostError, ConfigError, DeadlineError, StageError
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
    made_by: str
    """The process that started the service."""


class GraphService:
    """The Ray actor of a service."""

    def __init__(self, graph: PinnedGraph, options: ServerOptions, idle_s: float, made_by: str) -> None:
        self._graph, self._options, self._idle_s, self._made_by = graph, options, idle_s, made_by
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
        return ServiceState(self._graph.url, jobs, self._idle_s, partitions, self._options, self._made_by)

    def end(self) -> None:
        """Ends the servers and this actor."""
        if self._group is not None:
            self._group.stop()
        ray.kill(self._myself, no_restart=True)

    def _end_when_idle(self) -> None:
        while True:
            time.sleep(self._idle_s / _LOOKS)
            # No job joins or renews between the look and the end: its call gets no answer, so it knows that the service is gone.
            with self._opening, self._counting:
                if self._uses.is_over(time.monotonic()):
                    self.end()
                    return


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

    The service outlives this process. Raises ConfigError if other processes cannot read the graph, or if a service with other options runs, also if another
    process has started it at the same time; the errors of `ServerGroup.running` if the partitions cannot be opened. Then ends the service, if this call started it.
    """
    ServerGroup(graph, options)  # refuses options that cannot work, before anything starts
    name, found, job = service_name(graph), _running(graph), _new_job()
    if found is not None:
        _check_same(graph, options, idle_s, found[1])
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
    handle = actor.remote(graph.pin(), options, idle_s, job) if found is None else found[0]
    try:
        _join(handle, job, graph, options, 0.0)
        state, where = (answer(call.remote(), name, _ANSWER_S) for call in (handle.state, handle.where))
        _check_same(graph, options, idle_s, state)
    except BaseException:
        seen = next(iter(answers_in_time([handle.state.remote()], _ANSWER_S)))
        is_own = seen is not None and seen.made_by == job
        answers_in_time([handle.end.remote() if is_own else handle.leave.remote(job)], _ANSWER_S)
        raise
    handle.leave.remote(job)
    return replace(state, jobs=max(0, state.jobs - 1)), where  # without this process's own use


def _check_same(graph: StoredGraph | TypedGraph, options: ServerOptions, idle_s: float, running: ServiceState) -> None:
    """Raises ConfigError if the running service has other options."""
    if different := _differences(options, running.options):
        raise ConfigError(
            f"{graph.url}: expected the options of the running graph service, got other values of {', '.join(different)}; end it first: --end"
        )
    if running.idle_s != idle_s:
        raise ConfigError(
            f"{graph.url}: expected --idle_s {running.idle_s:g} of the running graph service, got {idle_s:g}; end it first: --end"
        )


def end_service(graph: StoredGraph | TypedGraph) -> bool:
    """Ends the graph's service, also if jobs use it. Returns whether there was one. Raises DeadlineError if it is still there after a while."""
    handle = find_service(graph)
    if handle is None:
        return False
    answers_in_time([handle.end.remote()], _ANSWER_S)  # the actor ends before it answers
    until = time.monotonic() + _ANSWER_S
    while find_service(graph) is not None:
        if time.monotonic() > until:
            raise DeadlineError(
                f"{graph.url}: the graph service has not ended within {_ANSWER_S:g} s; see `ray list actors`, and end it again"
            )
        time.sleep(_AGAIN_S)  # the cluster forgets the name a moment later
    return True


class JoinedService:
    """A job's use of a service: offers what the job would ask of its own `ServerGroup`."""

    def __init__(
        self,
        handle: Any,
        graph: StoredGraph | TypedGraph,
        options: ServerOptions,
        idle_s: float,
        workers: WorkerOptions | None = None,
        asked: tuple[str, ...] | None = None,
    ) -> None:
        """`workers`, `asked`: for servers of this job, if the service is gone (`ServerGroup`)."""
        self._graph, self._options, self._workers, self._asked = graph, options, workers, asked
        self._job, self._name = _new_job(), service_name(graph)
        self._own: ServerGroup | None = None
        self._nodes = frozenset[str]()
        self._left = threading.Event()
        answer(handle.renew.remote(self._job), self._name, _ANSWER_S)
        self._use(handle, idle_s)

    def running(self, wait_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> PartitionServers:
        """Returns the running servers. If the service is gone, joins the one that was started since, or starts servers of this job. Errors: see
        `ServerGroup.running`; StageError if the service is gone and the options demand one."""
        if self._own is not None:
            return self._own.running(wait_s, say)
        try:
            servers, said = _join(self._handle, self._job, self._graph, self._options, wait_s)
        except StageError as error:
            found = _fitting(self._graph, self._options, say)
            if found is None:
                if self._options.service == "always":
                    raise
                say(f"the graph service is gone, this job starts its own partition servers ({error})")
                self._left.set()
                self._own = ServerGroup(self._graph, self._options, self._workers, self._asked)
                return self._own.running(wait_s, say)
            handle, state = found
            self._use(handle, state.idle_s)
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
        self.renew_no_more()
        self._handle.leave.remote(self._job)
        if self._own is not None:
            self._own.stop()

    def renew_no_more(self) -> None:
        """Ends this use without a request to the cluster; the service counts the use for a while."""
        self._left.set()

    def _use(self, handle: Any, idle_s: float) -> None:
        """Renews this job's use of this service, and of no other."""
        self._left.set()
        self._handle, self._left = handle, threading.Event()
        threading.Thread(
            target=self._renew, args=(handle, idle_s / _LOOKS, self._left), name="service", daemon=True
        ).start()

    def _renew(self, handle: Any, each_s: float, left: threading.Event) -> None:
        while not left.wait(each_s):
            handle.renew.remote(self._job)


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
    found = None if options.service == "never" else _fitting(graph, options, say)
    if found is None:
        if options.service == "always":
            raise ConfigError(
                f"service: expected a running graph service of {graph.url}, found none; start one: graphmill serve-graph {graph.url}"
            )
        with server_group(graph, options, say, workers, asked) as group:
            yield group
        return
    handle, state = found
    say(f"using the graph service of {graph.url} beside {counted(state.jobs, 'other job')}")
    joined = JoinedService(handle, graph, options, state.idle_s, workers, asked)
    try:
        yield joined
    except ClusterLostError:  # a request would wait without bound
        joined.renew_no_more()
        raise
    except BaseException:
        joined.leave()
        raise
    joined.leave()


def _fitting(
    graph: StoredGraph | TypedGraph, options: ServerOptions, say: Callable[[str], None]
) -> tuple[Any, ServiceState] | None:
    """Returns (handle, state) of the graph's service. None if there is none. If it does not answer or has other options: raises StageError or ConfigError if the
    options demand a service, else says so and returns None."""
    try:
        found = _running(graph)
    except RayError as error:
        why = f"the graph service of {graph.url} does not answer ({type(error).__name__})"
        if options.service == "always":
            raise StageError(f"{why}; see `ray list actors`") from error
        say(f"{why}; this job starts its own partition servers")
        return None
    if found is None or not (different := _differences(options, found[1].options)):
        return found
    flags = ", ".join(f"--servers.{name}" for name in different)
    if options.service == "always":
        raise ConfigError(
            f"service: expected the options of the graph service, got other values of {flags}; leave them out"
        )
    say(f"a graph service of {graph.url} runs with other values of {flags}; this job starts its own partition servers")
    return None


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
