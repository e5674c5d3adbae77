"""Runs loaders on emulated hosts, without a model. Also defines the ways to load that `tests.netlab.links` compares."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions

if TYPE_CHECKING:
    from graphmill.samplers.drawing.pending_batch import DrawingSampler
    from graphmill.samplers.loading.scheduled_rows import SharedRows
    from graphmill.storage.graph import StoredGraph

FANOUTS = (15, 10, 5)
TURN_S = 1200.0
AHEAD = 32  # Number of batches that a plan knows. Sixteen are drawn at a time.
EPOCHS_AFTER = 2  # The plan knows two more epochs, so at the end of the measurement it still draws ahead.
LOOK_S, JOIN_S = 0.25, 120.0
JOIN_PORT = 29517


@dataclass(frozen=True)
class Way:
    """A way in which a host's loaders get their rows."""

    partitioner: str = "random"  # ldg: also uses roots by locality groups
    feature_dtype: str = "float32"
    room: float = 0.0  # each loader's room for rows by plan, as a share of all rows
    shared: float = 0.0  # room that a host's loaders share, as a share of all rows
    loaders: int = 1  # number of loaders on each host

    @property
    def options(self) -> dict[str, str]:
        return {"root_order": "groups" if self.partitioner == "ldg" else "shuffled"}


WAYS = {
    "off": Way(),
    "plan": Way(room=0.2),
    **{f"{dtype}-off": Way(feature_dtype=dtype) for dtype in ("float16", "int8")},
    **{f"{dtype}-plan": Way(feature_dtype=dtype, room=0.2) for dtype in ("float16", "int8")},
    "groups-off": Way("ldg"),
    "groups-plan": Way("ldg", room=0.2),
    **{f"groups-{dtype}-plan": Way("ldg", dtype, room=0.2) for dtype in ("float16", "int8")},
    "two-off": Way(loaders=2),
    "two-plan": Way(room=0.2, loaders=2),
    "two-shared": Way(room=0.05, shared=0.3, loaders=2),  # memory as in two-plan; three quarters are shared
}


@dataclass(frozen=True)
class Load:
    """The work of all loaders in one measurement."""

    way: Way
    batch_size: int
    epochs: int  # number of measured epochs; one epoch runs before them
    threads: int  # number of threads of each loader
    roots: int  # number of training nodes that are roots; 0: all

    def neighbors(self) -> NeighborOptions:
        return NeighborOptions(fanouts=FANOUTS, batch_size=self.batch_size, features=True, **self.way.options)


def training_nodes(graph: "StoredGraph", count: int = 0) -> np.ndarray:
    """The permanent ids of the training nodes, ascending. `count`: take only this many, evenly spaced; 0: take all."""
    parts = graph.partitions(verify=False)
    found = np.sort(np.concatenate([part.original_id[part.split[0] == 1] for part in parts]))
    return found[np.linspace(0, len(found) - 1, count, dtype=np.int64)] if count else found


def run_loaders(graph: "StoredGraph", address: str, load: Load, folder: Path) -> None:
    """Runs on the host of Ray's head. Starts a server and loaders on each host, and prints a line of JSON for each loader."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from graphmill.cluster.options import ServerOptions
    from graphmill.cluster.serving.partition_server import partition_servers

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    nodes = sorted((node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
    roots, task = training_nodes(graph, load.roots) if load.roots else None, ray.remote(num_cpus=0)(load_batches)
    with partition_servers(graph, ServerOptions(verify=False)) as servers:
        found = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[host][1], soft=False)).remote(
                servers, load, roots, folder, rank, [address for address, _ in nodes]
            )
            for rank, host in enumerate(np.repeat(np.arange(len(nodes)), load.way.loaders))
        ]
        for each in ray.get(found, timeout=2 * TURN_S):
            print(json.dumps(each), flush=True)


def load_batches(
    servers: Any, load: Load, roots: np.ndarray | None, folder: Path, rank: int, addresses: Sequence[str]
) -> dict[str, Any]:
    """Runs one loader. It loads one epoch to fill its cache, and then the measured epochs."""
    from graphmill.cluster.serving.partition_server import connect
    from graphmill.samplers.access.traffic import Traffic
    from graphmill.samplers.loading.loader import Loader
    from graphmill.samplers.methods.neighbor import NeighborSampler

    way, ranks = load.way, len(addresses) * load.way.loaders
    traffic = Traffic(servers.num_partitions)
    router = connect(servers, traffic.watch)
    # The loaders of host i must read partition i themselves: with locality groups, their roots are from this partition.
    assert router.is_near[rank // way.loaders], f"expected partition {rank // way.loaders} on this host"
    sampler = NeighborSampler(router, load.neighbors(), ranks, roots=roots)
    (first,) = sampler.draw(0, [rank])
    one = router.empty_rows(1, **vars(first.columns), stored=True)
    all_bytes = router.manifest.num_nodes * sum(column.nbytes for column in vars(one).values() if column is not None)
    options = LoaderOptions(
        threads=load.threads,
        prefetch=load.threads + 1,
        cache_bytes=int(way.room * all_bytes),
        plan_bytes=int(1.1 * AHEAD * first.num_bytes),
    )
    shared = share(sampler, rank, ranks, addresses, int(way.shared * all_bytes)) if way.shared else []
    known = 1 + load.epochs + EPOCHS_AFTER
    with Loader(sampler, options, rank=rank, num_ranks=ranks, num_epochs=known, shared=shared) as loader:

        def epoch(number: int) -> list[int]:
            return [batch.num_nodes for batch in loader.epoch(number)]

        def spent() -> np.ndarray:
            planner_s = loader.planned.stats.plan_cpu_s if loader.planned is not None else 0.0
            loaders_s = time.process_time() - time.thread_time()
            requests, sent, received = traffic.by_partition().sum(0)[:3]
            return np.array([time.perf_counter(), loaders_s, planner_s, requests, sent + received])

        epoch(0)
        until_still(lambda: spent()[3])
        (folder / f"warm{rank}").touch()
        wait_for([folder / "go"])
        before = spent()
        nodes = [count for number in range(load.epochs) for count in epoch(1 + number)]
        seconds, cpu_s, planner_s, requests, moved = (spent() - before) / len(nodes)
        (folder / f"done{rank}").touch()
        wait_for([folder / "stop"])
    return {
        "batches": len(nodes),
        "s_per_batch": seconds,
        "nodes": sum(nodes) / len(nodes),
        "requests": requests,
        "bytes": moved,
        "planner": 100 * planner_s / cpu_s,
    }


def share(
    sampler: "DrawingSampler", rank: int, ranks: int, addresses: Sequence[str], num_bytes: int
) -> "list[SharedRows]":
    """Chooses and fetches the rows that the loaders of a host share, in the same way as the workers of a training run."""
    import torch.distributed as dist

    from graphmill.cluster.serving.shared_rows import HostMates, share_rows

    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}:{JOIN_PORT}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=JOIN_S),
    )
    own = range(rank, sampler.num_batches, ranks)
    shared = share_rows(sampler, 0, own, num_bytes, HostMates.of(rank, addresses[rank * len(addresses) // ranks]))
    dist.destroy_process_group()
    return shared


def until_still(count: Callable[[], float]) -> None:
    """Waits until `count` no longer changes, which means that no more batches are drawn ahead."""
    seen, now = -1.0, count()
    while now != seen:
        time.sleep(LOOK_S)
        seen, now = now, count()


def wait_for(paths: Sequence[Path], processes: Sequence["subprocess.Popen[Any]"] = ()) -> None:
    """Waits until all these files exist. Raises RuntimeError after TURN_S seconds, or if one of the processes has failed."""
    deadline = time.monotonic() + TURN_S
    while not all(path.exists() for path in paths):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            raise RuntimeError(f"expected {', '.join(map(str, paths))}, got none: see the logs beside")
        time.sleep(0.02)
