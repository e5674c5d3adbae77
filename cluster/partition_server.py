"""One Ray actor per partition: a thin shell over `PartitionOwner`, read-only, so that a restart is a re-map of unchanged files.

Requests are idempotent and may be retried; every wait has a deadline.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from cluster.options import ServerOptions
from samplers.messages import Reply, Request
from samplers.node_tables import NodeTables
from samplers.partition_owner import PartitionOwner
from samplers.router import LocalOwner, Owner, Pending, Router
from samplers.row_cache import CachedOwner
from samplers.warm_up import warm_up
from storage.arrow_files import is_local
from storage.encodings import encoding_files
from storage.errors import ConfigError, DeadlineError, GraphmillError, StageError
from storage.file_stamps import FileStamps, take_stamps
from storage.graph import PinnedGraph, StoredGraph

_VERIFY_BYTES_PER_S = 50e6  # a slow disk's


@dataclass(frozen=True)
class ServerInfo:
    """Where a server lives."""

    partition: int
    node_id: str
    pid: int


class PartitionServer:
    """The actor. Opening is its own call, so that a bad file is that call's error and not a dead actor."""

    def __init__(self, graph: PinnedGraph, partition: int, stamps: FileStamps) -> None:
        self._graph, self._index, self._stamps = graph, partition, stamps
        self._owner: PartitionOwner | None = None

    def open(self, verify: bool) -> ServerInfo:
        self._load(verify)
        return ServerInfo(self._index, ray.get_runtime_context().get_node_id(), os.getpid())

    def answer(self, request: Request) -> Reply:
        if self._owner is None:  # after a restart: the files were verified when the run began
            self._load(verify=False)
        assert self._owner is not None
        return self._owner.answer(request)

    def _load(self, verify: bool) -> None:
        graph = self._graph.open()
        if self._stamps.stamps and not verify:
            self._stamps.renewed(graph.partition_files(self._index))
        # After a restart, files that are not local are read anew, so they are verified anew.
        partition = graph.partition(self._index, verify=verify or not self._stamps.stamps)
        owner = PartitionOwner(partition, graph.manifest.num_nodes, NodeTables(graph))
        warm_up(owner, graph.manifest)
        self._owner = owner


@dataclass(frozen=True)
class PartitionServers:
    """Handles of all servers of one graph; small, and safe to send to workers."""

    graph: PinnedGraph
    handles: tuple[Any, ...]
    infos: tuple[ServerInfo, ...]
    options: ServerOptions
    stamps: FileStamps  # of the files that the servers verified


class _RemotePending:
    """A reply on its way from a server."""

    def __init__(self, reference: ray.ObjectRef, partition: int, timeout_s: float) -> None:
        self._reference, self._partition, self._timeout_s = reference, partition, timeout_s

    def result(self) -> Reply:
        return _get(
            self._reference, self._timeout_s, f"partition server {self._partition}", "raise --servers.timeout_s"
        )


class RemoteOwner:
    """Asks a partition server."""

    def __init__(self, handle: Any, partition: int, timeout_s: float) -> None:
        self._handle, self._partition, self._timeout_s = handle, partition, timeout_s

    def submit(self, request: Request) -> Pending:
        return _RemotePending(self._handle.answer.remote(request), self._partition, self._timeout_s)


def _get(reference: ray.ObjectRef, timeout_s: float, who: str, more: str = "free its machine") -> Any:
    """The value, or an error of ours that names who failed and why."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except GetTimeoutError:
        raise DeadlineError(f"{who}: no answer within {timeout_s:g} s; see `ray list actors`, or {more}") from None
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, GraphmillError):
            raise type(cause)(f"{who}: {cause}") from error
        raise StageError(f"{who}: {type(cause).__name__}: {cause}") from error
    except RayActorError as error:
        raise StageError(f"{who}: the server is gone: {' '.join(str(error).split())[:300]}") from error
    except RayError as error:  # a lost object, a node out of memory …
        raise StageError(f"{who}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


@contextmanager
def partition_servers(graph: StoredGraph, options: ServerOptions | None = None) -> Iterator[PartitionServers]:
    """Starts one server per partition, spread over the nodes, and stops them at the end.

    Raises FormatError naming the file where a partition is damaged, DeadlineError where a server does not start in time.
    """
    options = options or ServerOptions()
    if graph.url.startswith("memory://"):
        raise ConfigError(f"{graph.url}: memory:// lives in one process, so actors cannot read it; use a path or s3://")
    # No CPU: servers wait for memory and disk; the trainers' CPUs must stay free for the trainers.
    actor_options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": "SPREAD",
        "max_concurrency": options.work_threads,
        # Every request is a task, and Ray's GCS would remember the latest 100,000 of all at 3 KB each.
        "enable_task_events": False,
    }
    actor: Any = ray.remote(**actor_options)(PartitionServer)
    pinned, encodings = graph.pin(), encoding_files(graph)
    stamps = take_stamps(graph.url, [*graph.manifest.files.values(), *encodings])
    if options.verify:
        stamps.verify({entry.path for entry in encodings})  # the other files are the servers' to verify
    handles = tuple(actor.remote(pinned, partition, stamps) for partition in range(graph.manifest.num_partitions))
    try:
        references = [handle.open.remote(options.verify) for handle in handles]
        stored = sum(entry.num_bytes for entry in graph.manifest.files.values()) if options.verify else 0
        start_s = options.start_timeout_s + stored / _VERIFY_BYTES_PER_S
        infos = tuple(
            _get(
                reference,
                start_s,
                f"partition server {partition}",
                "leave out its checksums: --servers.verify no",
            )
            for partition, reference in enumerate(references)
        )
        yield PartitionServers(pinned, handles, infos, options, stamps)
    finally:
        for handle in handles:
            ray.kill(handle, no_restart=True)


def connect(servers: PartitionServers, watch: Callable[[Owner, int], Owner] = lambda owner, _: owner) -> Router:
    """The router of this process: partitions on this node are read in process, the others asked for.

    `watch` may put something around the owner of each partition, a `LocalOwner` or a `RemoteOwner`, that sees its messages
    (`samplers.traffic.Traffic`); a cache stands before it.
    """
    graph = servers.graph.open()
    here = ray.get_runtime_context().get_node_id()
    tables, manifest = NodeTables(graph), graph.manifest
    is_near = [
        servers.options.local_reads and info.node_id == here and is_local(graph.filesystem) for info in servers.infos
    ]
    num_owned = np.diff(graph.offsets)
    num_far = sum(int(count) for count, near in zip(num_owned, is_near, strict=True) if not near)
    servers.stamps.renewed()
    owners: list[Owner] = []
    for info, handle, near in zip(servers.infos, servers.handles, is_near, strict=True):
        if near:
            local = PartitionOwner(graph.partition(info.partition), manifest.num_nodes, tables)
            owners.append(watch(LocalOwner(local), info.partition))
            continue
        far = watch(RemoteOwner(handle, info.partition, servers.options.timeout_s), info.partition)
        if servers.options.cache_bytes:
            budget = servers.options.cache_bytes * int(num_owned[info.partition]) // max(num_far, 1)
            far = CachedOwner(far, manifest, info.partition, budget)
        owners.append(far)
    return Router(manifest, owners, servers.options.feature_dtype)
