"""Chooses the number and devices of the workers from the options and the cluster's resources.

`resolve` is a pure function. A run, its `--plan`, a prediction and a sweep of trials use it. The first row that applies sets the number of workers:

    1. --workers N              N; on GPUs at most the number of GPUs, but an error instead with --workers.device gpu
    2. GPUs                     one worker for each GPU, each worker with its CPUs
    3. no cluster to join, and
       data that fit a process  one worker, which is this process
    4. several hosts with CPUs  one worker for each host, if there are enough CPUs; at least two
    5. one host                 two
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.ray.session import may_grow
from graphmill.core.errors import ConfigError, DeadlineError
from graphmill.core.summaries import counted

_SAY_AFTER_S, _SAY_AGAIN_S = 5.0, 60.0  # after a failure the workers' places become free within seconds
_SHARE = 0.25  # share of free memory that a graph may take in one process; batches and model need the rest


@dataclass(frozen=True)
class Resources:
    """All resources of a cluster, used or free. If there is no cluster to join: the resources of this machine."""

    cpus: int
    gpus: int
    free_bytes: int | None = None
    """Free memory of this machine. None: the resources are a cluster's, or the memory is unknown."""
    hosts: int = 1
    """Number of hosts with CPUs."""

    def __str__(self) -> str:
        return f"{counted(self.cpus, 'CPU')} and {counted(self.gpus, 'GPU')}"


def resolve(
    asked: WorkerOptions, available: Resources, data_bytes: int | None = None
) -> tuple[WorkerOptions, str | None]:
    """Returns the options with a number of workers, a device and a launcher, and a note of one line on that choice, or None.

    GPUs are used unless the options request CPUs. A worker takes its CPUs and, if it computes on a GPU, one GPU. If there are fewer GPUs (or CPUs for
    them) than requested workers, fewer workers train; with `device="gpu"` this is an error instead. If there are no GPUs and no requested number, one
    process trains if data of `data_bytes` fit into it. A single worker is this process, unless there is a cluster or the options request Ray. Options
    that are already resolved do not change. Raises ConfigError if the cluster does not have the requested resources.
    """
    alone = asked.launcher == "process" or (
        asked.launcher == "auto" and available.free_bytes is not None and asked.min_workers is None
    )
    resolved, note = _number(
        asked, available, one_is_enough=alone and (asked.launcher == "process" or _fits(available, data_bytes))
    )
    alone = alone and resolved.num_workers == 1
    if alone and asked.num_workers is None and resolved.device == "cpu":
        hint = "" if asked.launcher == "process" else " (--workers 2 starts it)"
        note = f"the data fits this process: this is the one worker, without Ray{hint}"
    return replace(resolved, launcher="process" if alone else "ray"), note


def _fits(available: Resources, data_bytes: int | None) -> bool:
    return available.free_bytes is not None and data_bytes is not None and data_bytes <= _SHARE * available.free_bytes


def _number(asked: WorkerOptions, available: Resources, *, one_is_enough: bool) -> tuple[WorkerOptions, str | None]:
    """Returns the options with a number of workers and a device, and a note if the number differs from the requested number."""
    slots = available.cpus // asked.cpus_per_worker
    if asked.device == "cpu" or (asked.device == "auto" and available.gpus == 0):
        if one_is_enough and asked.num_workers is None:
            asked = replace(asked, num_workers=1)
        by_hosts = 0 if asked.num_workers else min(available.hosts, slots)
        most = max(asked.most, by_hosts)
        _check_cpus(asked, asked.min_workers or most, available)
        note = f"training on {most} workers: one for each host" if most == by_hosts > asked.most else None
        return replace(asked, num_workers=most, device="cpu"), note
    if asked.launcher == "process":  # one worker, for any number of GPUs
        asked = replace(asked, num_workers=1)
    usable, needed, is_elastic = min(available.gpus, slots), asked.fewest, asked.min_workers is not None
    if available.gpus < needed and asked.device == "gpu":
        raise ConfigError(
            f"expected {counted(needed, 'GPU')}, the cluster has {available.gpus}; "
            + ("lower --workers or set device to cpu" if available.gpus else "set device to cpu")
        )
    _check_cpus(asked, needed if asked.device == "gpu" else 1, available)
    fewest = min(needed, usable)
    most = asked.num_workers or usable
    if not is_elastic:  # an elastic run takes more GPUs as nodes join
        most = min(most, usable)
    resolved = replace(asked, num_workers=most, min_workers=fewest if is_elastic else None, device="gpu")
    if fewest == needed:
        return resolved, None
    lacking, why = counted(available.gpus, "GPU"), "set device to cpu to use CPUs"
    if slots < available.gpus:
        lacking, why = str(available), f"each takes {_cpus(asked)} and a GPU"
    return resolved, f"{counted(needed, 'worker')} asked for, {lacking}: training on {counted(fewest, 'worker')}; {why}"


def _check_cpus(asked: WorkerOptions, workers: int, available: Resources) -> None:
    needed = workers * asked.cpus_per_worker
    if available.cpus < needed:
        raise ConfigError(
            f"expected {_cpus(asked)} per worker ({needed}), there are {available.cpus}; lower --workers, "
            f"or start a Ray that counts more (ray start --head --num-cpus {needed}) and set --ray.address auto"
        )


def _cpus(asked: WorkerOptions) -> str:
    return "a CPU" if asked.cpus_per_worker == 1 else f"{asked.cpus_per_worker} CPUs"


def place(asked: WorkerOptions, available: Resources | None = None, data_bytes: int | None = None) -> WorkerOptions:
    """Calls `resolve` with these resources, or with the connected cluster's resources, and prints the note.

    Raises ConfigError if the requested resources are missing; with a cluster, after the wait of `cluster_resources`.
    """
    resolved, note = resolve(asked, cluster_resources(asked) if available is None else available, data_bytes)
    if note is not None:
        print(note, flush=True)
    return resolved


def cluster_resources(asked: WorkerOptions) -> Resources:
    """Returns the connected cluster's resources. If they are not enough, waits up to `asked.wait_s` for nodes that are joining."""
    deadline = time.monotonic() + asked.wait_s
    with ExitStack() as demand:
        is_told = False
        while True:
            available = resources_now()
            try:
                resolve(asked, available)
            except ConfigError:
                if not may_grow() or time.monotonic() > deadline:
                    return available
                if not is_told:
                    print(f"the cluster has {available}: waiting up to {asked.wait_s:g} s for more", flush=True)
                    demand.enter_context(_demand(asked))  # an autoscaler starts no node without it
                    is_told = True
                time.sleep(0.5)  # Ray offers no call that waits for a node to join
            else:
                return available


@contextmanager
def _demand(workers: WorkerOptions) -> Iterator[Any]:
    """Reserves room for `workers.fewest` workers at the same time, during the block. Yields Ray's placement group, which an autoscaler sees as demand."""
    from ray.util.placement_group import placement_group, remove_placement_group

    room = placement_group(
        [workers.bundle] * workers.fewest,
        "SPREAD" if workers.spread else "PACK",
        bundle_label_selector=[workers.labels] * workers.fewest if workers.labels else None,
    )
    try:
        yield room
    finally:
        remove_placement_group(room)


def resources_now() -> Resources:
    """Returns the current resources of the connected cluster."""
    import ray

    total = ray.cluster_resources()
    hosts = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())
    return Resources(int(total.get("CPU", 0)), int(total.get("GPU", 0)), hosts=max(1, hosts))


def wait_for_room(workers: WorkerOptions, say: Callable[[str], None], lost: Callable[[], str]) -> None:
    """Waits until the connected cluster has room for `workers.fewest` workers at the same time. Meanwhile calls `say` with the missing resources.

    Ray's autoscaler sees the demand. `lost` returns the hosts that do not answer, for messages. Raises DeadlineError after `workers.wait_s`.
    """
    if not may_grow():
        return
    import ray

    begun = said_s = time.monotonic()
    said = ""
    with _demand(workers) as room:
        while not room.wait(1):
            free, now = ray.available_resources(), time.monotonic()
            lacking = lacking_room(
                workers, resources_now(), Resources(int(free.get("CPU", 0)), int(free.get("GPU", 0)))
            )
            missing = "; ".join(filter(None, (lacking, lost())))
            if now - begun > workers.wait_s:
                raise DeadlineError(f"{missing}; waited {workers.wait_s:g} s for it (--workers.wait_s)")
            if now - begun > _SAY_AFTER_S and (lacking != said or now - said_s > _SAY_AGAIN_S):
                say(f"{missing}; waiting up to {workers.wait_s - (now - begun):.0f} s more")
                said, said_s = lacking, now
        if said:
            say(f"there is room for {counted(workers.fewest, 'worker')}, after {time.monotonic() - begun:.0f} s")


def lacking_room(workers: WorkerOptions, total: Resources, free: Resources) -> str:
    """Returns the message with the resources that the workers need and the cluster does not have free."""
    needed = Resources(workers.cpus_per_worker * workers.fewest, workers.fewest if workers.device == "gpu" else 0)
    room = f"{counted(workers.fewest, 'worker')} of {_each(workers)}"
    if total.cpus < needed.cpus or total.gpus < needed.gpus:
        return f"expected room for {room}, the cluster has {total}"
    if free.cpus < needed.cpus or free.gpus < needed.gpus:
        return f"expected room for {room}, of {total} in the cluster {free} are free, the rest is in use"
    labels = f" with the labels {' '.join(workers.label_selector)}" if workers.label_selector else ""
    return f"expected room for {room}, {free} are free, but not together on hosts{labels}"


def _each(workers: WorkerOptions) -> str:
    return counted(workers.cpus_per_worker, "CPU") + (" and 1 GPU" if workers.device == "gpu" else "")
