"""Where training runs: how many workers, on which devices, by what was asked for and what the cluster has.

`resolve` decides, from numbers alone: a run, its `--plan`, a prediction and a sweep of trials all ask it.
"""

import time
from dataclasses import dataclass, replace

from cluster.options import WorkerOptions
from cluster.session import may_grow
from storage.errors import ConfigError

_JOIN_S = 60.0  # for the nodes of a cluster that has just been started


@dataclass(frozen=True)
class Resources:
    """What a cluster has in all, in use or not."""

    cpus: int
    gpus: int

    def __str__(self) -> str:
        return f"{_count(self.cpus, 'CPU')} and {_count(self.gpus, 'GPU')}"


def resolve(asked: WorkerOptions, there: Resources) -> tuple[WorkerOptions, str | None]:
    """The options with a number of workers and a device, and what differs from the number asked for, to be said in one line.

    GPUs that are there are used, except where CPUs were asked for. A worker takes one CPU, and one GPU where it computes on one. Where
    GPUs, or CPUs beside them, are fewer than the workers asked for, fewer workers train; only `device="gpu"` insists. Resolved options
    stay what they are. Raises ConfigError where the cluster lacks what was asked for.
    """
    if asked.device == "cpu" or (asked.device == "auto" and there.gpus == 0):
        _check_cpus(asked.min_workers or asked.most, there)
        return replace(asked, num_workers=asked.most, device="cpu"), None
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
