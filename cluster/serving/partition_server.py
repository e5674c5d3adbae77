"""Runs one read-only Ray actor per host, for all partitions that the host serves. A restarted actor maps the same files again.

The actor returns the endpoint of its server. Ray restarts an actor that dies. The server answers requests over TCP
(`graphmill.cluster.transport.message_server`). Requests are idempotent and may be sent again. Every wait has a deadline.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.process.answers import answer, answers_in_time
from graphmill.cluster.serving.server_placement import (
    Host,
    assign,
    live_hosts,
    look_for_files,
    on_host,
    preferred,
    room_bytes,
)
from graphmill.cluster.transport.connection import Endpoint
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.compile_cache import COMPILE_S, compiled_loops
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import ClusterLostError, ConfigError, DeadlineError, FormatError, GraphmillError, StageError
from graphmill.core.parallel_map import num_cores, ordered_map
from graphmill.core.summaries import counted
from graphmill.samplers.access.owners import Owner
from graphmill.samplers.access.partition_owner import PartsOwner, open_parts
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.access.warm_up import warm_up
from graphmill.storage.filesystem.disk_space import full_disk
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.urls import absolute_url, is_local
from graphmill.storage.graph import PinnedGraph, StoredGraph, TypedGraph
from graphmill.storage.replicas.copied_files import CopiedPartition, copy_partition
from graphmill.storage.replicas.copy_cache import COPY_BYTES_PER_S
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps, unseen_stamps

_VERIFY_BYTES_PER_S = 50e6  # a slow disk's
_LOOK_AGAIN_S = 3.0
_SILENT_S = 5.0  # time after which the user is told that loops are compiled
_FEWEST_THREADS = 2
_COPY_THREADS = 8
_DISKS_S = 5.0  # longest wait for the reports of the hosts about full disks


@dataclass(frozen=True)
class ServerInfo:
    """The process and the files of a server."""

    node_id: str
    pid: int
    stamps: FileStamps  # stamps of the partitions' files on that node when the server opened them


class PartitionServer:
    """The Ray actor of a server. Opening is a separate call: a bad file then raises an error in that call, and the actor does not die."""

    def __init__(
        self, graph: PinnedGraph, partitions: tuple[int, ...], stamps: FileStamps, options: ServerOptions
    ) -> None:
        """`stamps`: stamps of the files when they were last checked. After a restart only changed files are read again."""
        self._graph, self._partitions, self._stamps, self._options = graph, partitions, stamps, options
        self._lock = threading.Lock()
        self._opened: Future[PartsOwner] | None = None
        self._server: MessageServer | None = None
        self._held = ExitStack()  # closes with the process

    def open(self, verify: bool) -> ServerInfo:
        """Opens the partitions. Does not limit the time: a first copy may take hours, and the driver has a deadline for the size of the files."""
        self._opening(verify).result()
        self._serve()
        return ServerInfo(ray.get_runtime_context().get_node_id(), os.getpid(), self._stamps)

    def compile(self, asked: tuple[str, ...] | None) -> int:
        """Compiles the loops for these requests, if no process of this host has compiled them. Returns the number of loops that this process has compiled."""
        warm_up(self._owner(), self._graph.open(), self._partitions[0], asked)
        return len(compiled_loops())

    def check(self) -> None:
        """Raises FormatError naming a file that was changed since it was opened. Does not wait for files that are being opened after a restart, because calls of
        `endpoint` would wait too: opening checks the files."""
        if self._opened is None or not self._opened.done():
            self._opening(verify=False)
            return
        self._owner()
        self._stamps.check_untouched()

    def endpoint(self) -> Endpoint:
        """Returns the server's endpoint. Only callers of the actor get the token of the endpoint. After a restart, does not wait for the files: clients are told
        that they are being opened."""
        self._opening(verify=False)
        return self._serve().endpoint

    def full_disks(self) -> list[str]:
        """Returns messages about full disks of this host: the disks with Ray's session and with the graph."""
        node: Any = ray._private.worker.global_worker.node
        folders = [Path(node.get_session_dir_path())]
        if is_local(self._graph.open().filesystem):
            folders.append(Path(self._graph.url))
        return [message for message in map(full_disk, folders) if message is not None]

    def _opening(self, verify: bool) -> Future[PartsOwner]:
        """Begins to open the partitions, also after an error. `verify` is false after a restart: the files were verified at the beginning of the run."""
        with self._lock:
            if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
                self._opened = begin(lambda: self._open(verify), "open")
            return self._opened

    def _owner(self) -> PartsOwner:
        """Raises the error of opening; DeadlineError if the partitions are not open in time."""
        opening = self._opening(verify=False)
        if not wait([opening], COMPILE_S).done:
            raise DeadlineError(
                f"expected the files of partitions {_ranges(self._partitions)} to be open within {COMPILE_S:g} s, they are still being opened; see its "
                "host's disk and network"
            )
        return opening.result()

    def _serve(self) -> MessageServer:
        if self._server is None:
            options = self._options
            self._server = MessageServer(
                lambda request: self._owner().answer(request),
                get_node_ip_address(),
                options.ports,
                options.work_threads or max(_FEWEST_THREADS, num_cores()),
                tls=options.tls,
                is_opening=lambda: self._opened is not None and not self._opened.done(),
            )
        return self._server

    def _open(self, verify: bool) -> PartsOwner:
        graph = self._graph.open()
        if graph.manifest.origin is not None:  # a graph with an origin: missing files are copied and verified once
            self._stamps, verify = self._stamps.renewed(self._copied(graph)), False
        elif verify:
            self._stamps = take_stamps(graph.url, chain.from_iterable(map(graph.partition_files, self._partitions)))
        else:
            self._stamps = self._stamps.renewed()
        # After a restart, files that are not local are read again. Therefore they are verified again.
        return open_parts(graph, self._partitions, verify=verify or not self._stamps.stamps)

    def _copied(self, graph: StoredGraph | TypedGraph) -> frozenset[str]:
        """Completes the copies of the partitions on this host. Returns the names of their verified files."""
        cache = self._options.disk_cache

        def copy_one(index: int) -> CopiedPartition:
            if cache is None or not cache.has(graph):
                return copy_partition(graph, index)
            return self._held.enter_context(cache.holding(graph, [index]))[0]

        copied = ordered_map(copy_one, self._partitions, min(len(self._partitions), _COPY_THREADS))
        return frozenset(name for partition in copied for name in partition.verified)


@dataclass(frozen=True)
class Server:
    """A running server, for all partitions that its host serves. A host has two servers only if partitions of a lost host were moved to it."""

    name: str  # in messages
    partitions: tuple[int, ...]
    handle: Any
    info: ServerInfo


@dataclass(frozen=True)
class PartitionServers:
    """The running servers of one graph, plain or typed. The object is small and can be sent to workers."""

    graph: PinnedGraph
    servers: tuple[Server, ...]
    options: ServerOptions

    @property
    def num_partitions(self) -> int:
        return sum(len(server.partitions) for server in self.servers)

    def near(self) -> tuple[Server, ...]:
        """Returns the servers whose partitions this process reads itself."""
        if not self.options.local_reads:
            return ()
        own_node = ray.get_runtime_context().get_node_id()
        return tuple(server for server in self.servers if server.info.node_id == own_node and server.info.stamps.stamps)


class ServedFiles:
    """Checks that the files of a process's batches are unchanged. Checks the files that the process reads itself, and lets the servers check the others."""

    def __init__(self, servers: PartitionServers) -> None:
        """Raises FormatError if a file that this process will read itself has changed since its server opened it. The message names the file."""
        self._servers, near = servers, servers.near()
        self._near = [server.info.stamps.renewed() for server in near]
        self._far = [None if server in near else server for server in servers.servers]

    def check(self, rank: int, num_ranks: int) -> None:
        """Raises FormatError naming a file that was changed since it was opened. Only one rank calls each server."""
        asked = [
            (server.handle.check.remote(), server.name) for server in self._far[rank::num_ranks] if server is not None
        ]
        for stamps in self._near:
            stamps.check_untouched()
        for reference, name in asked:
            answer(reference, name, self._servers.options.timeout_s, "raise --servers.timeout_s")


def remote_owner(handle: Any, who: str, timeout_s: float) -> RemoteOwner:
    """Returns the owner that sends requests to the server of this actor. Errors name the server `who`."""

    def find(within_s: float) -> Endpoint:
        return answer(handle.endpoint.remote(), who, within_s, "raise --servers.timeout_s")

    return RemoteOwner(find, who, timeout_s)


class ServerGroup:
    """Starts the servers, from the driver: one per host. A host serves partitions whose files it has, as evenly spread as the files allow. If any host can have
    the files, the hosts of the workers serve them (`graphmill.cluster.serving.server_placement`)."""

    def __init__(
        self,
        graph: StoredGraph | TypedGraph,
        options: ServerOptions,
        workers: WorkerOptions | None = None,
        asked: tuple[str, ...] | None = None,
    ) -> None:
        """Starts no server yet. `workers`: the workers that will read; None: workers on GPUs if the cluster has GPUs, else on CPUs. `asked`: the requests whose loops are compiled at the start (`asked_by`); other loops are compiled when they are needed. Raises ConfigError if other processes cannot read the graph, or if the options request reads by range and the graph does not
        allow them."""
        if graph.url.startswith("memory://"):
            raise ConfigError(
                f"{graph.url}: memory:// lives in one process, so actors cannot read it; use a path or s3://"
            )
        self._graph = graph
        if options.disk_cache is not None:
            self._graph = options.disk_cache.copy_of(graph)
        if options.range_reads:
            self._graph = graph.features_by_range()
        self._options, self._workers, self._asked = options, workers or WorkerOptions(), asked
        self._hosts: tuple[Host, ...] = ()
        self._handles: list[Any] = []  # all actors, also actors that have not opened their partitions yet
        self._servers: tuple[Server, ...] = ()
        # Servers reserve no CPU: they wait for memory and disk, and the CPUs are for the trainers.
        actor_options: dict[str, Any] = {
            "num_cpus": 0,
            # One byte, because Ray chooses a random host for an actor that reserves nothing, even with soft affinity.
            "memory": 1,
            "max_restarts": -1,
            "max_task_retries": -1,
        }
        self._actor: Any = ray.remote(**actor_options)(PartitionServer)

    def running(self, wait_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> PartitionServers:
        """Returns the running servers. First starts the servers that have no live host or should move to another host.

        If no host has the files of a partition, the labels or the memory, calls `say` and waits up to `wait_s` for such hosts. Raises FormatError naming a
        damaged file, or the partitions whose files no host has; ConfigError if no host has the labels, or the memory for a partition; DeadlineError if a
        server does not start in time.
        """
        hosts, graph, options = live_hosts(), self._graph, self._options
        if hosts != self._hosts:
            files = [graph.partition_files(partition) for partition in range(graph.num_partitions)]
            serves = {partition: server.info.node_id for server in self._servers for partition in server.partitions}
            now = [serves.get(partition) for partition in range(graph.num_partitions)]
            deadline, reported = time.monotonic() + wait_s, ""
            while True:
                seen = self._look(hosts, files)
                chosen, lack = self._assign(hosts, seen, now, files)
                if lack is None:
                    break
                if time.monotonic() >= deadline:
                    raise lack
                if str(lack) != reported:
                    reported = str(lack)
                    say(f"{reported}; waiting up to {wait_s:g} s for such hosts")
                time.sleep(_LOOK_AGAIN_S)  # Ray offers no call that waits for a node to join
                hosts = live_hosts()
            try:
                self._move(chosen, seen, files)
                if not (len(hosts) == 1 and options.local_reads and is_local(graph.filesystem)):
                    _compile(self._servers, say, self._asked)
            except (DeadlineError, StageError) as error:
                full = self.full_disks()
                if not full:
                    raise
                raise type(error)(f"{full}; {error}") from error
            self._hosts = hosts
        return PartitionServers(graph.pin(), self._servers, options)

    def nodes(self) -> frozenset[str]:
        """Returns the ids of the nodes that serve partitions."""
        return frozenset(server.info.node_id for server in self._servers)

    def where(self) -> str:
        """Returns the partitions of each server's host, as text for messages. Empty with one host."""
        if len(self._hosts) == 1:
            return ""
        hosts = {host.node_id: host for host in self._hosts}
        on_hosts = [(server.partitions, hosts.get(server.info.node_id)) for server in self._servers]
        return f"partitions {', '.join(f'{_ranges(partitions)} on {host}' for partitions, host in on_hosts if host)}"

    def full_disks(self) -> str:
        """Returns the joined messages about full disks of the hosts that serve partitions. Hosts that do not answer are left out.

        These messages are needed because Ray cannot start a process on a host with a full disk, and reports only that the process died.
        """
        if len(self._hosts) == 1:
            return ""
        asked = [handle.full_disks.remote() for handle in self._handles]
        return "; ".join(dict.fromkeys(disk for disks in answers_in_time(asked, _DISKS_S) for disk in disks or ()))

    @property
    def _can_fetch(self) -> bool:
        """Whether a host can get the files of a partition that it does not have."""
        return not is_local(self._graph.filesystem) or self._graph.manifest.origin is not None

    def stop(self) -> None:
        for handle in self._handles:
            ray.kill(handle, no_restart=True)

    def _look(self, hosts: Sequence[Host], files: list[list[FileEntry]]) -> list[Mapping[str, FileStamps]]:
        """Returns for each partition the stamps of its files on each host that has the files, by node id."""
        url = self._graph.url
        if not is_local(self._graph.filesystem):
            return [{} for _ in files]
        if len(hosts) == 1 and not self._can_fetch:  # this one
            return [{hosts[0].node_id: take_stamps(url, entries)} for entries in files]
        return look_for_files(hosts, absolute_url(url), files)

    def _assign(
        self,
        hosts: Sequence[Host],
        seen: Sequence[Mapping[str, FileStamps]],
        now: Sequence[str | None],
        files: Sequence[Sequence[FileEntry]],
    ) -> tuple[tuple[Host | None, ...], GraphmillError | None]:
        """Returns the host of each partition, and the error if there are not hosts for all: ConfigError if no host has the labels, or the memory; FormatError
        if no host has the files."""
        groups = preferred(hosts, self._workers, self._options)
        if not any(groups):
            return (), ConfigError(
                f"expected a host with the labels {' '.join(self._options.label_selector)}, found none among {_listed(hosts)}; start Ray there "
                "with --labels, or change --servers.label_selector"
            )
        in_memory = not is_local(self._graph.filesystem)  # other files are mapped, and the system may drop their pages
        needs = [sum(entry.num_bytes for entry in entries if self._is_kept(entry)) * in_memory for entries in files]
        room = room_bytes(hosts, self._workers)
        chosen = assign(groups, seen, now, can_fetch=self._can_fetch, needs=needs, room=room)
        missing = [partition for partition, host in enumerate(chosen) if host is None]
        if missing and self._can_fetch:
            free = ", ".join(f"{host} {(room[host.node_id] or 0) / 1e9:.1f} GB" for group in groups for host in group)
            return chosen, ConfigError(
                f"{self._graph.url}: expected memory for {sum(needs) / 1e9:.1f} GB of partitions, found no room for "
                f"{counted(len(missing), 'partition')}; hosts have {free[:500]}; keep them on disks (--servers.disk_cache_dir), leave the features "
                "on the store (--servers.range_reads yes), or add hosts"
            )
        return chosen, FormatError(self._not_found(missing, hosts)) if missing else None

    def _is_kept(self, entry: FileEntry) -> bool:
        """Whether a server keeps the file in memory. Features that are read by range stay on the store."""
        return not (self._graph.by_range and Path(entry.path).name.startswith("feature"))

    def _not_found(self, missing: Sequence[int], hosts: Sequence[Host]) -> str:
        """Returns the message about partitions that no host can serve."""
        before = {host.node_id: str(host) for host in self._hosts}
        lay = sorted(
            before[server.info.node_id]
            for server in self._servers
            if server.info.node_id in before and not set(missing).isdisjoint(server.partitions)
        )
        lost = f"; they lay on {', '.join(lay)}, which is gone" if lay else ""
        return (
            f"{self._graph.url}: expected the files of partitions {_ranges(missing)} on a host of the cluster, found none on "
            f"{_listed(hosts)}{lost}; start Ray on the hosts that have them, or put the graph where all hosts read it"
        )

    def _move(
        self,
        chosen: Sequence[Host | None],
        seen: Sequence[Mapping[str, FileStamps]],
        files: Sequence[Sequence[FileEntry]],
    ) -> None:
        """Makes each host serve the partitions for which it was chosen. A server keeps running if its host was chosen for all its partitions; other servers are
        ended. A host with further partitions gets one new server for them."""
        graph, options = self._graph, self._options
        node_of = [host.node_id for host in chosen if host is not None]
        kept = [server for server in self._servers if all(node_of[p] == server.info.node_id for p in server.partitions)]
        served = {partition for server in kept for partition in server.partitions}
        further: dict[Host, tuple[int, ...]] = {}
        for partition, host in enumerate(chosen):
            if host is not None and partition not in served:
                further[host] = (*further.get(host, ()), partition)
        handles = [server.handle for server in kept]
        for handle in self._handles:
            if handle not in handles:
                ray.kill(handle, no_restart=True)
        self._servers, self._handles = tuple(kept), handles
        opening, num_bytes = [], 0
        for host, partitions in further.items():
            stamps = [seen[each].get(host.node_id) or unseen_stamps(graph.url, files[each]) for each in partitions]
            joined = FileStamps(stamps[0].path, tuple(stamp for each in stamps for stamp in each.stamps))
            where = self._actor.options(scheduling_strategy=on_host(host, or_elsewhere=True))
            handle = where.remote(graph.pin(), partitions, joined, options)
            handles.append(handle)
            name = f"partition server on {host}, partitions {_ranges(partitions)}"
            opening.append((name, partitions, handle, handle.open.remote(options.verify)))
            num_bytes += sum(entry.num_bytes for each in partitions for entry in files[each])
        copies = graph.manifest.origin is not None
        rate = COPY_BYTES_PER_S if copies else _VERIFY_BYTES_PER_S if options.verify else math.inf
        start_s = options.start_timeout_s + num_bytes / rate
        advice = "raise --servers.start_timeout_s, or leave out the checksums: --servers.verify no"
        new = [
            Server(name, partitions, handle, answer(reference, name, start_s, advice))
            for name, partitions, handle, reference in opening
        ]
        self._servers = tuple(sorted((*kept, *new), key=lambda server: server.partitions))


def _compile(servers: Sequence[Server], say: Callable[[str], None], asked: tuple[str, ...] | None) -> None:
    """Compiles the loops of the servers, which takes a moment if the loops are on the host's disk. A request's deadline does not count this time."""
    compiling = [server.handle.compile.remote(asked) for server in servers]
    if ray.wait(compiling, num_returns=len(compiling), timeout=_SILENT_S)[1]:
        say("partition servers compile their loops, once for each host and version of Graphmill")
    deadline = time.monotonic() + COMPILE_S
    advice, compiled = "see whether its host is overloaded", 0
    for server, reference in zip(servers, compiling, strict=True):
        compiled += answer(reference, server.name, max(1.0, deadline - time.monotonic()), advice)
    if compiled:
        say(f"partition servers have compiled {compiled} loops")


@contextmanager
def server_group(
    graph: StoredGraph | TypedGraph,
    options: ServerOptions | None = None,
    say: Callable[[str], None] = lambda _: None,
    workers: WorkerOptions | None = None,
    asked: tuple[str, ...] | None = None,
) -> Iterator[ServerGroup]:
    """Starts the servers of all partitions, and ends them after the block. `say` and errors: see `ServerGroup.running`; `workers`, `asked`: see `ServerGroup`."""
    group = ServerGroup(graph, options or ServerOptions(), workers, asked)
    try:
        group.running(say=say)
        yield group
    except ClusterLostError:  # the actors cannot be ended any more: a request would wait without bound
        raise
    except BaseException:
        group.stop()
        raise
    group.stop()


@contextmanager
def partition_servers(
    graph: StoredGraph | TypedGraph, options: ServerOptions | None = None
) -> Iterator[PartitionServers]:
    """Starts the servers of all partitions and ends them after the block. For work that cannot go on if a host is lost."""
    with server_group(graph, options) as group:
        yield group.running()


def _listed(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:20])) + (" …" if len(things) > 20 else "")


def _ranges(partitions: Sequence[int]) -> str:
    """Ascending partitions as text: 0 to 7, 12."""
    runs: list[list[int]] = []
    for partition in partitions:
        if runs and runs[-1][1] == partition - 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    return _listed([str(first) if first == last else f"{first} to {last}" for first, last in runs])


def connect(servers: PartitionServers, watch: Callable[[Owner, int], Owner] = lambda owner, _: owner) -> Router:
    """Connects to the servers of a plain graph (`connect_any`)."""
    router = connect_any(servers, watch)
    assert isinstance(router, Router)
    return router


def connect_any(
    servers: PartitionServers, watch: Callable[[Owner, int], Owner] = lambda owner, _: owner
) -> Router | TypedRouter:
    """Returns the router of this process. The router reads the partitions on this node itself, and sends requests to the servers of all other partitions.

    `watch(owner, partition)` may wrap each `LocalOwner` or `RemoteOwner` to see its messages (`graphmill.samplers.access.traffic.Traffic`).
    """
    graph, near, far = servers.graph.open(), servers.near(), dict[int, Owner]()
    for server in servers.servers:
        if server in near:
            server.info.stamps.renewed()
        else:
            asked = remote_owner(server.handle, server.name, servers.options.timeout_s)
            far |= dict.fromkeys(server.partitions, watch(asked, server.partitions[0]))
    return whole_router(graph, watch=watch, far=far)
