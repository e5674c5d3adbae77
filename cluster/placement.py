"""Where training runs: how many workers, on which devices, by what was asked for and what the cluster has.

`resolve` decides, from numbers alone: a run, its `--plan`, a prediction and a sweep of trials all ask it.
"""

import time
from dataclasses import dataclass, replace

from cluster.options import WorkerOptions
from cluster.session import may_grow
from storage.errors import ConfigError

_JOIN_S = 60.0  # for the nodes of a cluster that has just been started
_SHARE = 0.25  # of free memory, that a graph may take of one process: its batches and the model come on top


@dataclass(frozen=True)
class Resources:
    """What a cluster has in all, in use or not; or this machine, where no cluster is there to be joined."""

    cpus: int
    gpus: int
    free_bytes: int | None = None
    """This machine's free memory; None: a cluster, or not looked at."""

    def __str__(self) -> str:
        return f"{_count(self.cpus, 'CPU')} and {_count(self.gpus, 'GPU')}"


def resolve(asked: WorkerOptions, there: Resources, data_bytes: int | None = None) -> tuple[WorkerOptions, str | None]:
    """The options with a number of workers, a device and a launcher, and what there is to say of that choice, in one line.

    GPUs that are there are used, except where CPUs were asked for. A worker takes one CPU, and one GPU where it computes on one. Where
    GPUs, or CPUs beside them, are fewer than the workers asked for, fewer workers train; only `device="gpu"` insists. On CPUs one process
    trains on data of `data_bytes` that fits it, where no number was asked for. One worker is this process, unless a cluster is there or Ray
    was asked for. Resolved options stay what they are. Raises ConfigError where the cluster lacks what was asked for.
    """
    alone = asked.launcher == "process" or (
        asked.launcher == "auto" and there.free_bytes is not None and asked.min_workers is None
    )
    resolved, note = _number(
        asked, there, one_is_enough=alone and (asked.launcher == "process" or _fits(there, data_bytes))
    )
    alone = alone and resolved.num_workers == 1
    if alone and asked.num_workers is None and resolved.device == "cpu":
        note = (
            "the data fits this process: training here, without Ray (--workers 2 or --workers.launcher ray starts it)"
        )
    return replace(resolved, launcher="process" if alone else "ray"), note


def _fits(there: Resources, data_bytes: int | None) -> bool:
    return there.free_bytes is not None and data_bytes is not None and data_bytes <= _SHARE * there.free_bytes


def _number(asked: WorkerOptions, there: Resources, *, one_is_enough: bool) -> tuple[WorkerOptions, str | None]:
    """The options with a number of workers and a device, and what differs from the number asked for."""
    if asked.device == "cpu" or (asked.device == "auto" and there.gpus == 0):
        if one_is_enough and asked.num_workers is None:
            asked = replace(asked, num_workers=1)
        _check_cpus(asked.min_workers or asked.most, there)
        return replace(asked, num_workers=asked.most, device="cpu"), None
    if asked.launcher == "process":  # one, of the GPUs that there may be
        asked = replace(asked, num_workers=1)
    usable, needed, is_elastic = min(there.gpus, there.cpus), asked.fewest, asked.min_workers is not None
    if there.gpus < needed and asked.device == "gpu":
        raise ConfigError(
            f"expected {_count(needed, 'GPU')}, the cluster has {there.gpus}; "
            + ("lower --workers or set device to cpu" if there.gpus else "set device to cpu")
        )
    _check_cpus(needed if asked.device == "gpu" else 1, there)
    fewest = min(needed, usable)
    most = asked.num_workers or usable
    if not is_elastic:  # an elastic run takes more where they join
        most = min(most, usable)
    resolved = replace(asked, num_workers=most, min_workers=fewest if is_elastic else None, device="gpu")
    if fewest == needed:
        return resolved, None
    lacking, why = _count(there.gpus, "GPU"), "set device to cpu to use CPUs"
    if there.cpus < there.gpus:
        lacking, why = str(there), "each takes a CPU and a GPU"
    return resolved, f"{_count(needed, 'worker')} asked for, {lacking}: training on {_count(fewest, 'worker')}; {why}"


def _check_cpus(needed: int, there: Resources) -> None:
    if there.cpus < needed:
        raise ConfigError(
            f"expected a CPU per worker ({needed}), there are {there.cpus}; lower --workers, "
            f"or start a Ray that counts more (ray start --head --num-cpus {needed}) and set --ray.address auto"
        )


def place(asked: WorkerOptions, there: Resources | None = None) -> WorkerOptions:
    """`resolve` with these resources, or those of the connected cluster; prints what differs from what was asked for.

    Raises ConfigError where they lack what was asked for; of a cluster, after `cluster_resources` has waited for it.
    """
    resolved, note = resolve(asked, cluster_resources(asked) if there is None else there)
    if note is not None:
        print(note, flush=True)
    return resolved


def cluster_resources(asked: WorkerOptions) -> Resources:
    """What the connected cluster has. Waits a minute for nodes that are joining, where it lacks what was asked for."""
    deadline = time.monotonic() + _JOIN_S
    is_told = False
    while True:
        there = _resources()
        try:
            resolve(asked, there)
        except ConfigError:
            if not may_grow() or time.monotonic() > deadline:
                return there
            if not is_told:
                print(f"the cluster has {there}: waiting up to {_JOIN_S:g} s for more", flush=True)
                is_told = True
            time.sleep(0.5)  # Ray offers no call that waits for a node to join
        else:
            return there


def _resources() -> Resources:
    import ray

    total = ray.cluster_resources()
    return Resources(int(total.get("CPU", 0)), int(total.get("GPU", 0)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
