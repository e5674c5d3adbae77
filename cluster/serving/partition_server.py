"""Runs one read-only Ray actor per partition. A restarted actor maps the same files again.

The actor returns the endpoint of its server. Ray restarts an actor that dies. The server answers requests over TCP
(`graphmill.cluster.transport.message_server`). Requests are idempotent and may be sent again. Every wait has a deadline.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from graphmill.cluster.options import ServerOptions
from graphmill.cluster.process.answers import answer, answers_in_time
from graphmill.cluster.serving.server_placement import Host, assign, live_hosts, look_for_files, on_host
from graphmill.cluster.transport.connection import Endpoint
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.errors import ClusterLostError, ConfigError, DeadlineError, FormatError, StageError
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.owners import Owner
from graphmill.samplers.access.partition_owner import PartitionOwner, PartsOwner, open_parts
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.access.warm_up import warm_up, warm_up_parts
from graphmill.storage.filesystem.disk_space import full_disk
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.urls import absolute_url, is_local
from graphmill.storage.graph import PinnedGraph, StoredGraph, TypedGraph
from graphmill.storage.replicas.copied_files import CopiedPartition, copy_partition
from graphmill.storage.replicas.copy_cache import COPY_BYTES_PER_S
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps, unseen_stamps

_VERIFY_BYTES_PER_S = 50e6  # a slow disk's
_LOOK_AGAIN_S = 3.0
_DISKS_S = 5.0  # longest wait for the reports of the hosts about full disks


@dataclass(frozen=True)
class ServerInfo:
    """The process and the files of a server."""

    partition: int
    node_id: str
    pid: int
    stamps: FileStamps  # stamps of the partition's files on that node when the server opened them


class PartitionServer:
    """The Ray actor of a server. Opening is a separate call: a bad file then raises an error in that call, and the actor does not die."""

    def __init__(self, graph: PinnedGraph, partition: int, stamps: FileStamps, options: ServerOptions) -> None:
        """`stamps`: stamps of the files when they were last checked. After a restart only changed files are read again."""
        self._graph, self._index, self._stamps, self._options = graph, partition, stamps, options
        self._server: MessageServer | None = None
        self._held = ExitStack()  # closes with the process

    def open(self, verify: bool, is_asked: bool = True) -> ServerInfo:
        """Opens the partition. `is_asked`: other processes will send requests, so the loops for requests are compiled now."""
        if self._server is None:
            self._start(verify, is_asked)
        return ServerInfo(self._index, ray.get_runtime_context().get_node_id(), os.getpid(), self._stamps)

    def check(self) -> None:
        """Raises FormatError naming a file that was changed since it was opened."""
        self._started()
        self._stamps.check_untouched()

    def endpoint(self) -> Endpoint:
        """Returns the server's endpoint. Only callers of the actor get the token of the endpoint."""
        return self._started().endpoint

    def full_disks(self) -> list[str]:
        """Returns messages about full disks of this host: the disks with Ray's session and with the graph."""
        node: Any = ray._private.worker.global_worker.node
        folders = [Path(node.get_session_dir_path())]
        if is_local(self._graph.open().filesystem):
            folders.append(Path(self._graph.url))
        return [message for message in map(full_disk, folders) if message is not None]

    def _started(self) -> MessageServer:
        if self._server is None:  # after a restart: the files were verified at the beginning of the run
            self._start(verify=False, is_asked=False)
        assert self._server is not None
        return self._server

    def _start(self, verify: bool, is_asked: bool) -> None:
        graph = self._graph.open()
        if graph.manifest.origin is not None:  # a graph with an origin: missing files are copied and verified once
            self._stamps, verify = self._stamps.renewed(self._copied(graph).verified), False
        elif verify:
            self._stamps = take_stamps(graph.url, graph.partition_files(self._index))
        else:
            self._stamps = self._stamps.renewed()
        # After a restart, files that are not local are read again. Therefore they are verified again.
        verified, options = verify or not self._stamps.stamps, self._options
        owner: PartitionOwner | PartsOwner
        if isinstance(graph, TypedGraph):
            owner = open_parts(graph, self._index, verify=verified)
            if is_asked:
                warm_up_parts(owner, graph)
        else:
            partition = graph.partition(self._index, verify=verified)
            if verify and self._stamps.stamps:
                dict(partition.encodings)  # the encodings are mapped and verified too
            owner = PartitionOwner(partition, graph.manifest.num_nodes, NodeTables(graph))
            if is_asked:
                warm_up(owner, graph.manifest)
        self._server = MessageServer(
            owner.answer, get_node_ip_address(), options.ports, options.work_threads, tls=options.tls
        )

    def _copied(self, graph: StoredGraph | TypedGraph) -> CopiedPartition:
        cache = self._options.disk_cache
        if cache is None or not cache.has(graph):
            return copy_partition(graph, self._index)
        return self._held.enter_context(cache.holding(graph, [self._index]))[0]


@dataclass(frozen=True)
class PartitionServers:
    """Handles of all servers of one graph, plain or typed. The object is small and can be sent to workers."""

    graph: PinnedGraph
    handles: tuple[Any, ...]
    infos: tuple[ServerInfo, ...]
    options: ServerOptions

    def near(self) -> tuple[int, ...]:
        """Returns the partitions that this process reads itself."""
        if not self.options.local_reads:
            return ()
        own_node = ray.get_runtime_context().get_node_id()
        return tuple(info.partition for info in self.infos if info.node_id == own_node and info.stamps.stamps)


class ServedFiles:
    """Checks that the files of a process's batches are unchanged. Checks the files that the process reads itself, and lets the servers check the others."""

    def __init__(self, servers: PartitionServers) -> None:
        """Raises FormatError if a file that this process will read itself has changed since its server opened it. The message names the file."""
        self._servers = servers
        self._near = {partition: servers.infos[partition].stamps.renewed() for partition in servers.near()}

    def check(self, rank: int, num_ranks: int) -> None:
        """Raises FormatError naming a file that was changed since it was opened. Only one rank calls each server."""
        servers = self._servers
        asked = [
            (servers.handles[partition].check.remote(), partition)
            for partition in range(rank, len(servers.handles), num_ranks)
            if partition not in self._near
        ]
        for stamps in self._near.values():
            stamps.check_untouched()
        for reference, partition in asked:
            answer(reference, _name(partition), servers.options.timeout_s, "raise --servers.timeout_s")


def remote_owner(handle: Any, who: str, timeout_s: float) -> RemoteOwner:
    """Returns the owner that sends requests to the server of this actor. Errors name the server `who`."""

    def find(within_s: float) -> Endpoint:
        return answer(handle.endpoint.remote(), who, within_s, "raise --servers.timeout_s")

    return RemoteOwner(find, who, timeout_s)


def _name(partition: int) -> str:
    return f"partition server {partition}"


class ServerGroup:
    """Starts the servers, from the driver: one per partition, on a host with the partition's files, as evenly spread as the files allow."""

    def __init__(self, graph: StoredGraph | TypedGraph, options: ServerOptions) -> None:
        """Starts no server yet. Raises ConfigError if other processes cannot read the graph, or if the options request reads by range and the graph does not
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
        self._options = options
        self._hosts: tuple[Host, ...] = ()
        self._handles: list[Any] = [None] * graph.num_partitions
        self._infos: list[ServerInfo | None] = [None] * graph.num_partitions
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

        If no host has the files of a partition, calls `say` and waits up to `wait_s` for a host that has them. Raises FormatError naming a damaged file, or
        the partitions whose files no host has; DeadlineError if a server does not start in time.
        """
        hosts, graph, options = live_hosts(), self._graph, self._options
        if hosts != self._hosts:
            files = [graph.partition_files(partition) for partition in range(graph.num_partitions)]
            now = [None if info is None else info.node_id for info in self._infos]
            deadline, reported = time.monotonic() + wait_s, list[int]()
            while True:
                seen = self._look(hosts, files)
                chosen = assign(hosts, seen, now, can_fetch=self._can_fetch)
                missing = [partition for partition, host in enumerate(chosen) if host is None]
                if not missing:
                    break
                if time.monotonic() > deadline:
                    raise FormatError(self._not_found(missing, hosts))
                if missing != reported:
                    say(f"{self._not_found(missing, hosts)}; waiting up to {wait_s:g} s for them")
                    reported = missing
                time.sleep(_LOOK_AGAIN_S)  # Ray offers no call that waits for a node to join
                hosts = live_hosts()
            moved = [
                partition for partition, host in enumerate(chosen) if host is None or host.node_id != now[partition]
            ]
            for partition in moved:
                host = chosen[partition]
                assert host is not None
                stamps = seen[partition].get(host.node_id) or unseen_stamps(graph.url, files[partition])
                self._start(partition, host, stamps)
            try:
                self._open(moved, is_alone=len(hosts) == 1)
            except (DeadlineError, StageError) as error:
                full = self.full_disks()
                if not full:
                    raise
                raise type(error)(f"{full}; {error}") from error
            self._hosts = hosts
        infos = tuple(info for info in self._infos if info is not None)
        return PartitionServers(graph.pin(), tuple(self._handles), infos, options)

    def where(self) -> str:
        """Returns the number of servers on each host, as text for messages. Empty with one host."""
        if len(self._hosts) == 1:
            return ""
        nodes = [info.node_id for info in self._infos if info is not None]
        counts = {host: nodes.count(host.node_id) for host in self._hosts}
        return ", ".join(f"{count} on {host}" for host, count in counts.items() if count)

    def full_disks(self) -> str:
        """Returns the joined messages about full disks of the hosts that serve partitions. Hosts that do not answer are left out.

        These messages are needed because Ray cannot start a process on a host with a full disk, and reports only that the process died.
        """
        if len(self._hosts) == 1:
            return ""
        asked = [handle.full_disks.remote() for handle in self._handles if handle is not None]
        return "; ".join(dict.fromkeys(disk for disks in answers_in_time(asked, _DISKS_S) for disk in disks or ()))

    @property
    def _can_fetch(self) -> bool:
        """Whether a host can get the files of a partition that it does not have."""
        return not is_local(self._graph.filesystem) or self._graph.manifest.origin is not None

    def stop(self) -> None:
        for handle in self._handles:
            if handle is not None:
                ray.kill(handle, no_restart=True)

    def _look(self, hosts: Sequence[Host], files: list[list[FileEntry]]) -> list[Mapping[str, FileStamps]]:
        """Returns for each partition the stamps of its files on each host that has the files, by node id."""
        url = self._graph.url
        if not is_local(self._graph.filesystem):
            return [{} for _ in files]
        if len(hosts) == 1 and not self._can_fetch:  # this one
            return [{hosts[0].node_id: take_stamps(url, entries)} for entries in files]
        return look_for_files(hosts, absolute_url(url), files)

    def _not_found(self, missing: Sequence[int], hosts: Sequence[Host]) -> str:
        """Returns the message about partitions that no host can serve."""
        before = {host.node_id: str(host) for host in self._hosts}
        lay = sorted({before[info.node_id] for p in missing if (info := self._infos[p]) and info.node_id in before})
        lost = f"; they lay on {', '.join(lay)}, which is gone" if lay else ""
        return (
            f"{self._graph.url}: expected the files of partitions {_listed(missing)} on a host of the cluster, found none on "
            f"{_listed(hosts)}{lost}; start Ray on the hosts that have them, or put the graph where all hosts read it"
        )

    def _start(self, partition: int, host: Host, stamps: FileStamps) -> None:
        """Starts the partition's server on this host, after ending an earlier server."""
        if self._handles[partition] is not None:
            ray.kill(self._handles[partition], no_restart=True)
        where = self._actor.options(scheduling_strategy=on_host(host, or_elsewhere=True))
        self._handles[partition] = where.remote(self._graph.pin(), partition, stamps, self._options)

    def _open(self, partitions: Sequence[int], *, is_alone: bool) -> None:
        """Waits until the servers of these partitions have opened them. `is_alone`: all processes of the cluster are on one host."""
        graph, options = self._graph, self._options
        is_asked = not (is_alone and options.local_reads and is_local(graph.filesystem))
        opening = [self._handles[partition].open.remote(options.verify, is_asked) for partition in partitions]
        stored = sum(entry.num_bytes for partition in partitions for entry in graph.partition_files(partition))
        copies = graph.manifest.origin is not None
        rate = COPY_BYTES_PER_S if copies else _VERIFY_BYTES_PER_S if options.verify else math.inf
        start_s = options.start_timeout_s + stored / rate
        for partition, reference in zip(partitions, opening, strict=True):
            advice = "leave out its checksums: --servers.verify no"
            self._infos[partition] = answer(reference, _name(partition), start_s, advice)


@contextmanager
def server_group(graph: StoredGraph | TypedGraph, options: ServerOptions | None = None) -> Iterator[ServerGroup]:
    """Starts the servers of all partitions, and ends them after the block. Raises the same errors as `ServerGroup.running`."""
    group = ServerGroup(graph, options or ServerOptions())
    try:
        group.running()
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
    graph, far = servers.graph.open(), dict[int, Owner]()
    for info, handle in zip(servers.infos, servers.handles, strict=True):
        if info.partition in servers.near():
            info.stamps.renewed()
        else:
            asked = remote_owner(handle, _name(info.partition), servers.options.timeout_s)
            far[info.partition] = watch(asked, info.partition)
    return whole_router(graph, watch=watch, far=far)
