"""Copies graphs to the hosts' disks (`jobs/ingest.py ORIGIN URL --place hosts`). Each partition of a graph goes to the host that will serve it. A set of
graphs goes to every host.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.process.answers import answer
from graphmill.cluster.serving.server_placement import Host, assign, live_hosts, look_for_files, on_host, preferred
from graphmill.core.errors import ConfigError, DeadlineError
from graphmill.storage.filesystem.urls import absolute_url, is_local, split_url
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, parse_any_manifest
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.graph import PLAIN_OR_TYPED, copy_of, open_graph
from graphmill.storage.replicas.copied_files import copy_here
from graphmill.storage.replicas.copy_cache import COPY_BYTES_PER_S
from graphmill.storage.snapshots.snapshots import read_manifest

_START_S = 120.0


@dataclass(frozen=True)
class PlacedHost:
    """A host and the partitions that it will serve."""

    host: Host
    partitions: tuple[int, ...]
    num_bytes: int  # copied by this call


def place_graph(
    origin: str, url: str, report: Callable[[str, int, int | None], None]
) -> tuple[Manifest | GraphSetManifest, list[PlacedHost]]:
    """Copies the newest snapshot at `origin` to `url`, a path on each host's own disk. Each host gets its partitions of a graph. A set of graphs is copied
    whole to each host, because any worker may draw any graph.

    Files that a host already has are not copied again. Needs a Ray session. Raises ConfigError if `url` is not a path or holds another graph,
    FormatError if the origin is damaged or a disk is full, DeadlineError after the time that a link of 5 MB/s would need.
    """
    filesystem, path = split_url(origin)
    manifest = parse_any_manifest(*read_manifest(filesystem, path, origin, None, "graphmill ingest <source>"))
    url, hosts = _own_path(origin, url), live_hosts()
    chosen: tuple[Host | None, ...] = ()
    if isinstance(manifest, Manifest):
        copy = copy_of(open_graph(origin, manifest.snapshot, kind=PLAIN_OR_TYPED), url)
        files = [copy.partition_files(partition) for partition in range(copy.num_partitions)]
        groups = preferred(hosts, WorkerOptions(), ServerOptions())
        chosen = assign(groups, look_for_files(hosts, url, files), [None] * len(files), can_fetch=True)
        num_bytes = sum(entry.num_bytes for entries in files for entry in entries)
    else:
        num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    task_options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
    place: Any = ray.remote(**task_options)(copy_here)
    asked = {}
    for host in hosts:  # hosts without a partition too, because their workers open the manifest
        partitions = tuple(partition for partition, each in enumerate(chosen) if each == host)
        where = place.options(scheduling_strategy=on_host(host, or_elsewhere=False))
        asked[where.remote(absolute_url(origin), manifest.snapshot, url, partitions)] = host, partitions
    return manifest, _placed(asked, num_bytes, report)


def _own_path(origin: str, url: str) -> str:
    if not is_local(split_url(url)[0]):
        raise ConfigError(
            f"{url}: expected a path on the hosts' own disks, got a URL; all hosts read the graph at {origin}"
        )
    url = absolute_url(url)
    if url == absolute_url(origin):
        raise ConfigError(f"{url}: expected another path than the origin's")
    return url


def _placed(
    asked: Mapping[Any, tuple[Host, tuple[int, ...]]], num_bytes: int, report: Callable[[str, int, int | None], None]
) -> list[PlacedHost]:
    """Waits until the hosts have copied their files, and returns the hosts with their results in the order of `asked`."""
    waiting, placed = list(asked), []
    while waiting:
        done, waiting = ray.wait(waiting, timeout=_START_S + num_bytes / COPY_BYTES_PER_S)
        if not done:
            raise DeadlineError(
                f"{', '.join(str(asked[each][0]) for each in waiting)}: no copy in time; see `ray status`"
            )
        host, theirs = asked[done[0]]
        placed.append(PlacedHost(host, theirs, answer(done[0], str(host), 0, died="lost while it copied")))
        report("hosts", len(placed), len(asked))
    hosts = [host for host, _ in asked.values()]
    return sorted(placed, key=lambda each: hosts.index(each.host))
