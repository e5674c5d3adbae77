"""Counts the rows that workers find on their own hosts.

    python -m tests.netlab.near_rows --gpus 8 --partitions 8 64                   # on emulated hosts
    python -m tests.netlab.near_rows --here --synthetic 20000 --partitions 8      # with one router, without hosts

A head with CPUs and several hosts with a pretended GPU each serve one graph, whose files all hosts see. A reader that
holds the GPU of each host then draws the batches of its rank, with roots by locality group. The command prints how many
partitions each host serves, and the share of each reader's rows that lie in partitions of its own host. The graph has
clear communities; `--synthetic` names the number of nodes of the synthetic graph instead.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.samplers.access.router import local_router
from graphmill.samplers.methods.registry import build_sampler
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.netlab.hosts import Hosts, end_on_signals, why_not
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

NUM_NODES, DEGREE, STEPS = 16_000, 12, 4
OPTIONS = NeighborOptions(fanouts=(10, 5), batch_size=64, root_order="groups")


def communities(num_nodes: int = NUM_NODES, size: int = 200, far_share: float = 0.03, seed: int = 0) -> ArrayGraph:
    """A graph of communities whose nodes have random ids. `far_share`: share of the edges whose source is any node."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(num_nodes)  # the nodes of a community follow each other here, and nowhere else
    dst = np.repeat(np.arange(num_nodes), DEGREE)
    src = dst // size * size + rng.integers(0, size, len(dst))
    far = rng.random(len(dst)) < far_share
    src[far] = rng.integers(0, num_nodes, far.sum())
    feature = rng.normal(size=(num_nodes, 8)).astype(np.float32)
    split = rng.choice([1, 1, 2, 3], (num_nodes, 1)).astype(np.int8)
    return ArrayGraph(
        "communities",
        num_nodes,
        place[src],
        place[dst],
        feature=feature,
        label=rng.integers(0, 4, num_nodes),
        split=split,
    )


def write_graph(url: Path, num_partitions: int, num_synthetic: int | None = None) -> None:
    """`num_synthetic`: nodes of the synthetic graph; None: communities."""
    graph = communities() if num_synthetic is None else SyntheticGraph(SyntheticOptions(num_synthetic, feature_dim=8))
    ingest(graph, str(url), IngestOptions(num_partitions=num_partitions, partitioner="metis"))


def partition_of_node(url: str) -> np.ndarray:
    """int64 [num_nodes]: the partition of each node, by permanent id."""
    graph = open_graph(url)
    partition = np.empty(graph.manifest.num_nodes, np.int64)
    for index in range(graph.num_partitions):
        partition[graph.original_id(index)] = index
    return partition


def near_share(router: Any, partition: np.ndarray, near: np.ndarray, rank: int, num_ranks: int) -> float:
    """Share of the rows in a rank's first batches that lie in the partitions `near` (bool [partitions])."""
    sampler = build_sampler(OPTIONS, router, num_ranks)
    ids = np.concatenate([sampler.sample(0, step * num_ranks + rank).node_id for step in range(STEPS)])
    return float(near[partition[ids]].mean())


@dataclass(frozen=True)
class Seen:
    """What was measured with one number of partitions."""

    partitions: dict[str, int]  # by name of the host
    shares: dict[str, float]

    def line(self) -> str:
        shares = list(self.shares.values())
        return f"partitions {self.partitions}, near rows {min(shares):.3f} to {max(shares):.3f}, mean {np.mean(shares):.3f}"


def look(address: str, url: str) -> None:
    """Serves the graph on the cluster for workers on its GPUs, and prints what the readers find, as JSON. Runs on a host."""
    import ray

    from graphmill.cluster.options import ServerOptions, SessionOptions, WorkerOptions
    from graphmill.cluster.ray.session import ray_session
    from graphmill.cluster.serving.partition_server import PartitionServers, connect, server_group
    from graphmill.cluster.serving.server_placement import live_hosts, on_host

    @ray.remote(num_cpus=1, num_gpus=1)
    class Reader:
        def __init__(self, servers: PartitionServers) -> None:
            self._router, self._partition = connect(servers), partition_of_node(url)

        def middle(self) -> float:
            return float(np.flatnonzero(self._router.is_near).mean()) if self._router.is_near.any() else 0.0

        def share(self, rank: int, num_ranks: int) -> float:
            return near_share(self._router, self._partition, self._router.is_near, rank, num_ranks)

    with ray_session(SessionOptions(address=address)):
        gpus = [host for host in live_hosts() if host.gpus]
        workers = WorkerOptions(len(gpus), "gpu")
        with server_group(open_graph(url), ServerOptions(verify=False), workers=workers) as group:
            servers = group.running()
            names = {host.node_id: host.name for host in live_hosts()}
            partitions = dict.fromkeys(names.values(), 0)
            for server in servers.servers:
                partitions[names[server.info.node_id]] += len(server.partitions)
            readers = [
                Reader.options(scheduling_strategy=on_host(host, or_elsewhere=False)).remote(servers) for host in gpus
            ]
            middles = ray.get([reader.middle.remote() for reader in readers], timeout=300)
            ranks = np.argsort(np.argsort(middles, kind="stable"))  # as the trainer gives its ranks their places
            shares = ray.get(
                [reader.share.remote(int(rank), len(gpus)) for reader, rank in zip(readers, ranks, strict=True)],
                timeout=300,
            )
        print(json.dumps([partitions, dict(zip([host.name for host in gpus], shares, strict=True))]))


def shares_here(url: str, num_hosts: int) -> list[float]:
    """The near share of each rank, if each of the hosts has an even share of the partitions."""
    graph = open_graph(url)
    router, partition = local_router(graph), partition_of_node(url)
    host = np.arange(graph.num_partitions) * num_hosts // graph.num_partitions
    return [near_share(router, partition, host == rank, rank, num_hosts) for rank in range(num_hosts)]


def measure(num_gpus: int, counts: Sequence[int], folder: Path) -> list[Seen]:
    """Emulates a head and hosts with a GPU each, and measures each number of partitions."""
    for count in counts:
        write_graph(folder / f"graph-{count}", count)
    seen = []
    with Hosts(1 + num_gpus, shared=[folder, REPOSITORY]) as hosts:
        resources = ["--num-cpus=4"] + ["--num-cpus=2 --num-gpus=1"] * num_gpus
        cluster = RayHosts(hosts, resources=resources)
        cluster.start()
        for count in counts:
            command = [
                sys.executable,
                "-m",
                "tests.netlab.near_rows",
                "--at",
                cluster.address,
                str(folder / f"graph-{count}"),
            ]
            done = cluster.run("h0", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            seen.append(Seen(*json.loads(done.stdout.splitlines()[-1])))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--partitions", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--synthetic", type=int)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.at:
        look(*said.at)
        return 0
    if said.here:
        for count in said.partitions:
            with tempfile.TemporaryDirectory() as folder:
                write_graph(Path(folder) / "graph", count, said.synthetic)
                shares = shares_here(f"{folder}/graph", said.gpus)
                print(
                    f"{count} partitions: near rows {min(shares):.3f} to {max(shares):.3f}, mean {np.mean(shares):.3f}"
                )
        return 0
    if why := why_not():
        sys.exit(why)
    end_on_signals()
    with tempfile.TemporaryDirectory() as folder:
        for count, seen in zip(said.partitions, measure(said.gpus, said.partitions, Path(folder)), strict=True):
            print(f"{count} partitions: {seen.line()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
