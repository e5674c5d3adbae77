"""Minibatches over links, without a model: `python -m tests.netlab.links --hosts 1 2 4 --rates none 1gbit --out runs/links`.

On each number of emulated hosts, a partition server and a loader on each host make batches of a synthetic graph: nodes and rows by neighbor sampling, --threads
batches at a time. Beside what was measured stands what the cost model says (`jobs.plan.cost_model`, its rates as they are, the cores shared by the hosts).
With --peer-python and --peer, a rival does the same in turns on the same hosts and graph: PEER `partition FOLDER GRAPH.npz HOSTS` prepares it, and
`commands FOLDER HOSTS` prints a line `HOST: COMMAND` for each of its servers and clients. A client touches FOLDER/warmRANK after an epoch, waits for FOLDER/go,
loads as many epochs as its last word says, prints one line of JSON (batches, s_per_batch, nodes), touches FOLDER/doneRANK and waits for FOLDER/stop.

A batch's CPU time is that of the loaders and servers of all hosts together, over the batches of all. Prints a table, kept as results.md under --out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from jobs.bench.results import keep, machine, table
from jobs.plan.cost_model import (
    Degrees,
    Link,
    Rates,
    Widths,
    expected_batch,
    neighbor_traffic,
    remote_traffic,
    step_cost,
)
from storage.graph import StoredGraph, open_graph
from storage.ingest import IngestOptions, ingest
from storage.synthetic import SyntheticGraph, SyntheticOptions
from tests.netlab.hosts import Hosts, end_on_signals, why_not
from tests.netlab.ray_hosts import RayHosts

FANOUTS, ROOTS = (15, 10, 5), 1000
TURN_S = 1200.0
TCP_SHARE = 0.94  # of a link's rate that `jobs.bench transport` reaches at 1 Gb/s: 150,000 rows of 413 bytes in 0.53 s
OURS = ("ray::PartitionServer", "ray::load")  # what Ray calls the processes
COLUMNS = {
    "who": "",
    "hosts": "",
    "link": "",
    "nodes a batch": ",.0f",
    "s a batch": ".3f",
    "model": ".3f",
    "bound": "",
    "MB on links": ".2f",
    "MB counted": ".2f",
    "model MB": ".2f",
    "requests": ".1f",
    "model's": ".1f",
    "CPU s": ".3f",
}


def load(folder: Path, url: str, address: str, epochs: int, threads: int, count: int) -> None:
    """The driver on h0: a server and a loader on each host."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from cluster.options import ServerOptions
    from cluster.partition_server import connect, partition_servers
    from samplers.loader import Loader
    from samplers.neighbor import NeighborSampler
    from samplers.options import LoaderOptions, NeighborOptions
    from samplers.traffic import Traffic

    @ray.remote(num_cpus=0)
    def load(servers: Any, rank: int, ranks: int) -> dict[str, Any]:
        traffic = Traffic(len(servers.handles))
        router = connect(servers, traffic.watch)
        sampler = NeighborSampler(
            router, NeighborOptions(fanouts=FANOUTS, batch_size=ROOTS, features=True), ranks, roots=chosen
        )
        options = LoaderOptions(threads=threads, prefetch=threads + 1)
        loader = Loader(sampler, options, rank=rank, num_ranks=ranks, num_epochs=1 + epochs)

        def epoch(number: int) -> list[int]:
            return [batch.num_nodes for batch in loader.epoch(number)]

        epoch(0)
        (folder / f"warm{rank}").touch()
        wait_for([folder / "go"])
        before, began = traffic.by_partition().sum(0), time.perf_counter()
        nodes = [count for number in range(epochs) for count in epoch(1 + number)]
        seconds = (time.perf_counter() - began) / len(nodes)
        spent = (traffic.by_partition().sum(0) - before) / len(nodes)
        (folder / f"done{rank}").touch()
        wait_for([folder / "stop"])
        loader.close()
        return {
            "batches": len(nodes),
            "s_per_batch": seconds,
            "nodes": sum(nodes) / len(nodes),
            "requests": spent[0],
            "bytes": spent[1] + spent[2],
        }

    graph = open_graph(url)
    chosen = training_nodes(graph, count) if count else None
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    nodes = sorted((node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
    with partition_servers(graph, ServerOptions(verify=False)) as servers:
        found = [
            load.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                servers, rank, len(nodes)
            )
            for rank, (_, node) in enumerate(nodes)
        ]
        for each in ray.get(found, timeout=2 * TURN_S):
            print(json.dumps(each), flush=True)


def wait_for(paths: Sequence[Path], processes: Sequence["subprocess.Popen[Any]"] = ()) -> None:
    """Raises RuntimeError after a time, or where one of the processes has failed."""
    deadline = time.monotonic() + TURN_S
    while not all(path.exists() for path in paths):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            raise RuntimeError(f"expected {', '.join(map(str, paths))}, got none: see the logs beside")
        time.sleep(0.02)


def turn(
    hosts: Hosts, folder: Path, commands: Mapping[str, Sequence[tuple[str, Sequence[str]]]], names: Sequence[str]
) -> dict[str, float]:
    """Starts `servers`, then `clients`, and measures between their warm-up and their end. `names`: what the processes that count are called."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if re.fullmatch(r"(warm|done)\d+|go|stop", old.name):  # of the turn before
            old.unlink()
    processes, logs = [], []
    for role, host, command in [(kind, *each) for kind in commands for each in commands[kind]]:
        logs.append((role, folder / f"{len(logs)}.log"))
        with logs[-1][1].open("w") as sink:
            processes.append(hosts.popen(host, command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink))
        time.sleep(0.3)

    def cpu_s() -> float:
        total = 0.0
        for pid in (pid for host in hosts.names for pid in hosts.pids(host)):
            try:
                process = psutil.Process(pid)
                if any(name in " ".join(process.cmdline()) for name in names):
                    total += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
        return total

    count = len(hosts.names)
    wait_for([folder / f"warm{k}" for k in range(count)], processes)
    cpu, moved = cpu_s(), hosts.bytes()
    (folder / "go").touch()
    wait_for([folder / f"done{k}" for k in range(count)], processes)
    moved = sum(received - moved[host][1] for host, (_, received) in hosts.bytes().items())
    cpu = cpu_s() - cpu
    (folder / "stop").touch()
    for process in processes[len(commands["servers"]) :]:
        process.wait(timeout=300)
    for process in processes[: len(commands["servers"])]:
        process.terminate()
        process.wait(timeout=60)
    lines = [line for role, log in logs if role == "clients" for line in log.read_text().splitlines()]
    each = [json.loads(line) for line in lines if line.startswith("{")]
    batches = sum(one["batches"] for one in each)

    def mean(name: str) -> float | None:
        return sum(one[name] * one["batches"] for one in each) / batches if name in each[0] else None

    return {
        "nodes a batch": mean("nodes"),
        "s a batch": mean("s_per_batch"),
        "MB on links": moved / batches / 1e6,
        "MB counted": None if mean("bytes") is None else mean("bytes") / 1e6,
        "requests": mean("requests"),
        "CPU s": cpu / batches,
    }


def predicted(graph: StoredGraph, hosts: int, gigabits: float, threads: int) -> dict[str, Any]:
    """What the cost model says of a batch."""
    manifest = graph.manifest
    degrees = Degrees.of(np.concatenate([np.diff(partition.indptr) for partition in graph.partitions(verify=False)]))
    shape, _ = expected_batch(degrees, ROOTS, FANOUTS)
    rows = manifest.feature_rows
    widths = Widths(rows.row_bytes if rows else 0, np.dtype(manifest.index_dtype).itemsize)
    remote = remote_traffic(neighbor_traffic(shape, widths, hosts), 1 / hosts, 1, hosts)
    cores = (os.cpu_count() or 1) / hosts
    cost = step_cost(
        shape, remote, 0, hosts, Rates(), Link(gigabits, share=TCP_SHARE), cores, train_s=0.0, loader_threads=threads
    )
    return {"model": cost.step_s, "bound": cost.bound, "model MB": remote.total / 1e6, "model's": remote.requests}


def training_nodes(graph: StoredGraph, count: int = 0) -> np.ndarray:
    """The permanent ids of all of them, ascending, or of `count` that lie evenly among them."""
    parts = graph.partitions(verify=False)
    found = np.sort(np.concatenate([part.original_id[part.split[0] == 1] for part in parts]))
    return found[np.linspace(0, len(found) - 1, count, dtype=np.int64)] if count else found


def peer_graph(graph: StoredGraph, path: Path, count: int) -> None:
    """The same graph as arrays: src, dst, feat, label, and the ids of the training nodes as roots."""
    parts = list(graph.partitions(verify=False))
    original = np.concatenate([part.original_id for part in parts])
    feat = np.empty((graph.manifest.num_nodes, graph.manifest.feature_dim), np.float32)
    label = np.empty(len(feat), np.int64)
    for part in parts:
        feat[part.original_id], label[part.original_id] = part.feature, part.label
    np.savez(
        path,
        src=np.concatenate([original[part.indices] for part in parts]),
        dst=np.concatenate([np.repeat(part.original_id, np.diff(part.indptr)) for part in parts]),
        feat=feat,
        label=label,
        roots=training_nodes(graph, count),
    )


def prepared(shared: Path, said: argparse.Namespace, count: int) -> Path:
    """The graph in a partition for each host."""
    url = shared / f"graph-{said.nodes}-{said.degree:g}-{count}"
    if not url.exists():
        source = SyntheticGraph(SyntheticOptions(num_nodes=said.nodes, mean_degree=said.degree))
        ingest(source, str(url), IngestOptions(num_partitions=count))
    return url


def prepared_for_peer(shared: Path, said: argparse.Namespace, count: int, graph: StoredGraph) -> Path:
    """The rival's folder."""
    name = f"{said.nodes}-{said.degree:g}-{said.roots}"
    work, arrays = shared / f"peer-{name}-{count}", shared / f"graph-{name}.npz"
    if not arrays.exists():
        peer_graph(graph, arrays, said.roots)
    if not work.exists():
        subprocess.run([said.peer_python, said.peer, "partition", str(work), str(arrays), str(count)], check=True)
    return work


def rows(said: argparse.Namespace, count: int, shared: Path) -> list[dict[str, Any]]:
    """All turns on so many hosts."""
    url = prepared(shared, said, count)
    graph, turns = open_graph(str(url)), dict[str, Callable[[Hosts, RayHosts], dict[str, float]]]()

    def ours(hosts: Hosts, cluster: RayHosts) -> dict[str, float]:
        command = [
            sys.executable,
            "-m",
            "tests.netlab.links",
            "--load",
            str(url),
            cluster.address,
            str(said.epochs),
            str(said.threads),
            str(said.roots),
        ]
        environment = ["env", *cluster.environment()]
        work = shared / f"ours-{count}"
        return turn(
            hosts, work, {"servers": [], "clients": [("h0", [*environment, *command, "--out", str(work)])]}, OURS
        )

    turns["ours"] = ours
    if said.peer is not None and count > 1:
        work = prepared_for_peer(shared, said, count, graph)
        listed = subprocess.run(
            [said.peer_python, said.peer, "commands", str(work), str(count)], check=True, capture_output=True, text=True
        ).stdout.splitlines()

        def peer(hosts: Hosts, cluster: RayHosts) -> dict[str, float]:
            commands: dict[str, list[tuple[str, list[str]]]] = {"servers": [], "clients": []}
            for line in listed:
                host, _, command = line.partition(": ")
                words = [said.peer_python if word == "python" else word for word in command.split()]
                is_client = "client" in words
                if is_client:
                    words[-1] = str(said.epochs)
                commands["clients" if is_client else "servers"].append((host, words))
            return turn(hosts, work, commands, (said.peer,))

        turns["peer"] = peer
    found = []
    with Hosts(count, shared=[shared]) as hosts:
        cluster = RayHosts(hosts)
        cluster.start()
        for rate in said.rates:
            for host in hosts.names:
                hosts.rate(host, None if rate == "none" else rate)
            gigabits = {"gbit": 1.0, "mbit": 1e-3}.get(rate[-4:], 0) * float(rate[:-4] or 0) if rate != "none" else 1e3
            model = predicted(graph, count, gigabits, said.threads)
            for _ in range(said.turns):
                for who, act in turns.items():
                    row = (
                        {"who": who, "hosts": count, "link": rate}
                        | act(hosts, cluster)
                        | (model if who == "ours" else {})
                    )
                    found.append({name: row.get(name) for name in COLUMNS})
                    print("\n".join(table(COLUMNS, found[-1:])[2:]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit"], help="of each link: none, 1gbit, 200mbit, ...")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=float, default=50.0, help="mean, of a node")
    parser.add_argument(
        "--prepare", action="store_true", help="make the graphs that are not there, and measure nothing"
    )
    parser.add_argument(
        "--roots", type=int, default=0, help="so many training nodes are roots of an epoch; 0: all of them"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each loader")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--peer-python", help="an interpreter that has the rival")
    parser.add_argument("--peer", help="the rival's script")
    parser.add_argument("--out", type=Path, default=Path("runs/links"))
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    said = parser.parse_args()
    end_on_signals()
    if said.load:
        load(said.out, *said.load[:2], *map(int, said.load[2:]))
        return 0
    if why_not() is not None:
        print(why_not(), file=sys.stderr)
        return 1
    shared = (said.out / "files").resolve()
    shared.mkdir(parents=True, exist_ok=True)
    if said.prepare:
        for count in said.hosts:
            graph = open_graph(str(prepared(shared, said, count)))
            if said.peer is not None and count > 1:
                prepared_for_peer(shared, said, count, graph)
        return 0
    found = [row for count in said.hosts for row in rows(said, count, shared)]
    text = [
        f"{said.nodes:,} nodes of mean degree {said.degree:g}, {ROOTS} roots, fan-outs {FANOUTS}; {machine()}",
        "",
        *table(COLUMNS, found),
    ]
    keep(said.out, vars(said), "\n".join(text), rows=found)
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
