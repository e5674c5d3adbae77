"""Chooses the host that serves each partition: a host with the partition's files. If several hosts have files, the partitions are spread evenly.

`assign` is the decision, a pure function. Ray's SPREAD strategy is not used, because it chooses random hosts for actors that reserve no CPU.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphmill.cluster.process.answers import answers_in_time
from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps

_LOOK_S = 60.0  # longest wait for the reports of the hosts about their files


@dataclass(frozen=True)
class Host:
    """A live node of the cluster."""

    node_id: str
    name: str
    address: str
    has_gpus: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def live_hosts() -> tuple[Host, ...]:
    """Returns the cluster's live nodes, in a stable order."""
    hosts = [
        Host(
            node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], node["Resources"].get("GPU", 0) > 0
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return tuple(sorted(hosts, key=lambda host: (host.address, host.node_id)))


def on_host(host: Host, *, or_elsewhere: bool) -> NodeAffinitySchedulingStrategy:
    """Returns Ray's scheduling strategy for this host. `or_elsewhere`: another host is allowed if this host is gone."""
    return NodeAffinitySchedulingStrategy(host.node_id, soft=or_elsewhere)


def assign(
    hosts: Sequence[Host], holders: Sequence[Collection[str]], now: Sequence[str | None], *, can_fetch: bool
) -> tuple[Host | None, ...]:
    """Returns the host of each partition. None if no host can serve the partition.

    `holders`: for each partition the node ids of the hosts with its files. `now`: for each partition the node id of the host that serves it already.
    The partition stays on that host if the load is as even as with another host. `can_fetch`: a host without the files can get them. Hosts with GPUs
    serve only partitions that no other host can serve. If several hosts can serve, each gets consecutive partitions, because these are close to each
    other in a graph with locality groups.
    """
    plain = [host for host in hosts if not host.has_gpus] or list(hosts)
    choices = []
    for held in holders:
        with_files = [host for host in hosts if host.node_id in held]
        choices.append([host for host in with_files if host in plain] or with_files or (plain if can_fetch else []))
    load = dict.fromkeys(hosts, 0)
    chosen: list[Host | None] = [None] * len(holders)
    fewest_choices_first = sorted(range(len(holders)), key=lambda partition: len(choices[partition]))
    for partition in fewest_choices_first:
        stay = next((host for host in choices[partition] if host.node_id == now[partition]), None)
        if stay is not None and load[stay] < len(holders) // len(plain):
            chosen[partition] = stay
            load[stay] += 1
    even = [plain[partition * len(plain) // len(holders)] for partition in range(len(holders))] if plain else []
    for partition, host in sorted(enumerate(even), key=lambda each: len(choices[each[0]])):
        is_served = now[partition] in {each.node_id for each in choices[partition]}
        if not is_served and host in choices[partition] and load[host] < even.count(host):
            chosen[partition] = host
            load[host] += 1
    for partition in fewest_choices_first:
        if chosen[partition] is None and choices[partition]:
            host = min(choices[partition], key=lambda host: (load[host], host.node_id != now[partition]))
            chosen[partition] = host
            load[host] += 1
    return tuple(chosen)


def look_for_files(
    hosts: Sequence[Host], url: str, files: Sequence[Sequence[FileEntry]]
) -> list[Mapping[str, FileStamps]]:
    """Returns for each partition the stamps of its `files` on each host that has all of these files, by node id. The files are not read.

    A host that is lost meanwhile counts as a host without files.
    """
    task_options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0}
    look: Any = ray.remote(**task_options)(_stamps_here)
    asked = [look.options(scheduling_strategy=on_host(host, or_elsewhere=False)).remote(url, files) for host in hosts]
    seen: list[dict[str, FileStamps]] = [{} for _ in files]
    for host, stamps in zip(hosts, answers_in_time(asked, _LOOK_S), strict=True):
        for partition, each in enumerate(stamps or ()):
            if each is not None:
                seen[partition][host.node_id] = each
    return list(seen)


def _stamps_here(url: str, files: Sequence[Sequence[FileEntry]]) -> list[FileStamps | None]:
    """Returns for each partition the stamps of its files on this host. None if a file is missing."""
    stamps: list[FileStamps | None] = []
    for entries in files:
        try:
            stamps.append(take_stamps(url, entries))
        except FormatError:
            stamps.append(None)
    return stamps
