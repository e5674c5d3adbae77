"""Chooses the host that serves each partition: a host whose workers read it, if the partition's files and the host's memory allow that.

`preferred` and `assign` are the decision, pure functions. Ray's SPREAD strategy is not used, because it chooses random hosts for actors that reserve no CPU.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.process.answers import answers_in_time
from graphmill.cluster.process.draining import draining_nodes
from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps

_LOOK_S = 60.0  # longest wait for the reports of the hosts about their files
_HEAD = "node:__internal_head__"  # Ray's resource of the head
# Share of a host's memory that partitions may fill. Where workers run, batches and models need the rest.
_SHARE_BESIDE_WORKERS, _SHARE_ALONE = 0.5, 0.9


@dataclass(frozen=True)
class Host:
    """A live node of the cluster."""

    node_id: str
    name: str
    address: str
    cpus: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    """Memory that Ray counts for the host. None: unknown, no limit."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_head: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def live_hosts() -> tuple[Host, ...]:
    """Returns the cluster's live nodes, in a stable order. Nodes that are being drained are left out, unless all are."""
    leaving = draining_nodes()
    hosts = [_host(node) for node in ray.nodes() if node["Alive"]]
    stay = [host for host in hosts if host.node_id not in leaving]
    return tuple(sorted(stay or hosts, key=lambda host: (host.address, host.node_id)))


def _host(node: Mapping[str, Any]) -> Host:
    resources = node["Resources"]
    return Host(
        node["NodeID"],
        node["NodeManagerHostname"],
        node["NodeManagerAddress"],
        int(resources.get("CPU", 0)),
        int(resources.get("GPU", 0)),
        int(resources["memory"]) if "memory" in resources else None,
        dict(node.get("Labels") or {}),
        _HEAD in resources,
    )


def on_host(host: Host, *, or_elsewhere: bool) -> NodeAffinitySchedulingStrategy:
    """Returns Ray's scheduling strategy for this host. `or_elsewhere`: another host is allowed if this host is gone."""
    return NodeAffinitySchedulingStrategy(host.node_id, soft=or_elsewhere)


def has_labels(host: Host, selector: Mapping[str, str]) -> bool:
    """Returns whether the host's labels fit a selector in Ray's syntax: `H100`, `!H100`, `in(H100,H200)`, `!in(H100,H200)`."""
    for key, wanted in selector.items():
        negated, values = wanted.startswith("!"), wanted.removeprefix("!")
        listed = re.fullmatch(r"in\((.*)\)", values)
        allowed = [each.strip() for each in listed[1].split(",")] if listed else [values]
        if (host.labels.get(key) in allowed) == negated:
            return False
    return True


def worker_slots(host: Host, workers: WorkerOptions, *, on_gpus: bool) -> int:
    """Returns how many workers the host has room for."""
    slots = host.cpus // workers.cpus_per_worker if has_labels(host, workers.labels) else 0
    return min(slots, host.gpus) if on_gpus else slots


def preferred(hosts: Sequence[Host], workers: WorkerOptions, options: ServerOptions) -> tuple[tuple[Host, ...], ...]:
    """Returns the hosts that may serve partitions, in groups: a later group serves only what the earlier groups have no files, no CPU or no memory for.

    With `--servers.label_selector`: one group, the hosts with these labels. Otherwise first the hosts on which workers can run, if they have a CPU that no
    worker takes, or if workers run on CPUs anyway; then hosts with CPUs that are not the head; then hosts of workers without a free CPU; then the others. So
    the head serves partitions only if workers can run there, or if nothing else can.
    """
    if options.labels:
        return (tuple(host for host in hosts if has_labels(host, options.labels)),)
    on_gpus = _are_on_gpus(hosts, workers)
    groups: tuple[list[Host], ...] = ([], [], [], [])
    for host in hosts:
        slots = worker_slots(host, workers, on_gpus=on_gpus)
        if slots:
            has_spare = not on_gpus or host.cpus > slots * workers.cpus_per_worker
            groups[0 if has_spare else 2].append(host)
        else:
            groups[1 if host.cpus and not host.is_head else 3].append(host)
    return tuple(tuple(group) for group in groups if group)


def room_bytes(hosts: Sequence[Host], workers: WorkerOptions) -> dict[str, int | None]:
    """Returns the bytes of partitions that each host's memory has room for, by node id. None: no limit is known."""
    on_gpus, room = _are_on_gpus(hosts, workers), dict[str, int | None]()
    for host in hosts:
        share = _SHARE_BESIDE_WORKERS if worker_slots(host, workers, on_gpus=on_gpus) else _SHARE_ALONE
        room[host.node_id] = None if host.memory_bytes is None else int(share * host.memory_bytes)
    return room


def _are_on_gpus(hosts: Sequence[Host], workers: WorkerOptions) -> bool:
    return workers.device == "gpu" or (workers.device == "auto" and any(host.gpus for host in hosts))


def assign(
    groups: Sequence[Sequence[Host]],
    holders: Sequence[Collection[str]],
    now: Sequence[str | None],
    *,
    can_fetch: bool,
    needs: Sequence[int] = (),
    room: Mapping[str, int | None] | None = None,
) -> tuple[Host | None, ...]:
    """Returns the host of each partition. None if no host can serve the partition.

    `groups`: the hosts, best group first (`preferred`). `holders`: for each partition the node ids of the hosts with its files; these hosts come before hosts
    that must fetch the files. `now`: for each partition the node id of the host that serves it already. The partition stays on that host if the load is as
    even as with another host. `can_fetch`: a host without the files can get them. `needs`: bytes of memory that each partition takes (none: its files are
    mapped from a disk). `room`: bytes that each host has for them, by node id. If several hosts can serve, each gets consecutive partitions, because these are
    close to each other in a graph with locality groups.
    """
    best, room, needs = groups[0] if groups else (), room or {}, needs or [0] * len(holders)
    choices: list[Sequence[Host]] = []
    others: list[list[Sequence[Host]]] = []
    for held in holders:
        with_files = [found for group in groups if (found := [host for host in group if host.node_id in held])]
        possible: list[Sequence[Host]] = [*with_files, *(groups if can_fetch else ())]
        choices.append(possible[0] if possible else ())
        others.append(possible[1:])
    load = dict.fromkeys((host.node_id for group in groups for host in group), 0)
    taken = dict(load)
    chosen: list[Host | None] = [None] * len(holders)

    def fits(host: Host, partition: int) -> bool:
        limit = room.get(host.node_id)
        return limit is None or not needs[partition] or taken[host.node_id] + needs[partition] <= limit

    def choose(partition: int, host: Host) -> None:
        chosen[partition] = host
        load[host.node_id] += 1
        taken[host.node_id] += needs[partition]

    fewest_choices_first = sorted(range(len(holders)), key=lambda partition: len(choices[partition]))
    for partition in fewest_choices_first:
        stay = next((host for host in choices[partition] if host.node_id == now[partition]), None)
        if stay is not None and load[stay.node_id] < len(holders) // max(1, len(best)) and fits(stay, partition):
            choose(partition, stay)
    even = [best[partition * len(best) // len(holders)] for partition in range(len(holders))] if best else []
    for partition, host in sorted(enumerate(even), key=lambda each: len(choices[each[0]])):
        is_served = now[partition] in {each.node_id for each in choices[partition]}
        if (
            not is_served
            and host in choices[partition]
            and load[host.node_id] < even.count(host)
            and fits(host, partition)
        ):
            choose(partition, host)
    for partition in fewest_choices_first:
        for group in (choices[partition], *others[partition]):
            with_room = [host for host in group if fits(host, partition)]
            if chosen[partition] is None and with_room:
                choose(partition, min(with_room, key=lambda host: (load[host.node_id], host.node_id != now[partition])))
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
