"""Measures how fast loaders get minibatches over links: `python -m tests.netlab.links --hosts 4 --rates 1gbit --ways off plan --out runs/links`.

There is no model. Each emulated host has a partition server and a loader. They make batches of a synthetic graph by
neighbor sampling, --threads batches at a time. --ways names the ways to measure (`tests.netlab.link_loaders.WAYS`):
without a plan; with rows by plan and room for a fifth of all rows; from ldg partitions with roots by locality groups;
with rows stored as float16 or int8; with two loaders on a host. The ways run one after another on the same hosts. Each
way loads one epoch to fill its cache, and then the measured epochs. The plan knows as many batches at the end of the
measurement as at its beginning. The way `distdgl` runs DistDGL (`tests.netlab.distdgl_peer`) on the same hosts and
graph; --peer-python is an interpreter that has DistDGL. The table also has the prediction of `--plan`
(`graphmill.jobs.plan.settings_search`, with unchanged rates; the hosts share the machine's cores). --prepare makes the
graphs and prints only the prediction.

Seconds are the time that one loader takes for one of its batches. The CPU time of a batch is the CPU time of all
loaders and servers, divided by the number of all batches. `planner %` is the plan's share of the CPU time of a loader's
process. The command prints the table and writes it to results.md under --out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from graphmill.jobs.bench.results import keep, machine, table
from graphmill.jobs.plan.cost_model import DRAWN_BYTES, BatchShape, Link, Rates, step_cost
from graphmill.jobs.plan.needs import Needs, seen_needs
from graphmill.jobs.plan.settings_search import Settings, Setup
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.netlab.hosts import Hosts, end_on_signals, why_not
from tests.netlab.link_loaders import AHEAD, FANOUTS, WAYS, Load, Way, run_loaders, training_nodes, wait_for
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

PEER = REPOSITORY / "tests" / "netlab" / "distdgl_peer.py"
LOOK_S = 10.0  # seconds of drawing batches, from which the model gets its counts
# The share of a link's rate that `python -m benchmarks transport` reaches: 150,000 rows of 413 bytes in 0.53 s at 1 Gb/s.
TCP_SHARE = 0.94
OURS = ("ray::PartitionServer", "ray::load_batches")  # Ray's names for our processes
COLUMNS = {
    "way": "",
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
    "planner %": ".0f",
}


def turn(
    hosts: Hosts,
    folder: Path,
    commands: Mapping[str, Sequence[tuple[str, Sequence[str]]]],
    names: Sequence[str],
    count: int,
) -> dict[str, float]:
    """Starts `servers`, then `clients`. Measures from the time when all `count` loaders are warm to the time when all are done.

    `names`: names of the processes whose CPU time counts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if re.fullmatch(r"(warm|done)\d+|go|stop", old.name):  # left by the measurement before
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
        "planner %": mean("planner") or None,
    }


def predicted(needs: Needs, graph: StoredGraph, hosts: int, way: Way, gigabits: float, threads: int) -> dict[str, Any]:
    """What the cost model of `--plan` predicts for a batch, on the host that receives most bytes."""
    rows, dtype = graph.manifest.feature_rows, graph.manifest.feature_rows.dtype
    loaders = hosts * way.loaders
    setup = Setup(
        needs=needs,
        micro_batches=loaders,
        num_batches=AHEAD * loaders,
        num_epochs=1000,  # predicts the middle of a long run
        hosts=hosts,
        cores=os.cpu_count() or 1,
        most_workers=way.loaders,
        num_parameters=0,
        rates=Rates(),
        loader_threads=threads,
        row_bytes={dtype: rows.row_bytes},
        free_bytes=0,
        host_bytes=lambda settings: 0,
    )
    all_bytes = graph.manifest.num_nodes * (rows.row_bytes + needs.kept_bytes)
    plan_bytes = int(AHEAD * DRAWN_BYTES * needs.nodes)
    settings = Settings(loaders, int(way.room * all_bytes), plan_bytes, dtype, int(way.shared * all_bytes))
    remote = setup.traffic(settings)
    cost = step_cost(
        BatchShape((), (), needs.nodes),
        remote,
        0,
        loaders,
        Rates(),
        Link(gigabits / way.loaders, share=TCP_SHARE),
        setup.cores / loaders,
        train_s=0.0,
        loader_threads=threads,
    )
    return {"model": cost.step_s, "bound": cost.bound, "model MB": remote.total / 1e6, "model's": remote.requests}


def peer_graph(graph: StoredGraph, path: Path, count: int) -> None:
    """Writes the same graph as arrays for DistDGL: src, dst, feat, label, and roots (the ids of the training nodes)."""
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


def prepared(shared: Path, said: argparse.Namespace, count: int, way: Way) -> StoredGraph:
    """Makes the graph with one partition for each host."""
    url = shared / f"graph-{said.nodes}-{said.degree:g}-{count}-{way.partitioner}-{way.feature_dtype}"
    if not url.exists():
        source = SyntheticGraph(SyntheticOptions(num_nodes=said.nodes, mean_degree=said.degree))
        options = IngestOptions(num_partitions=count, partitioner=way.partitioner, feature_dtype=way.feature_dtype)
        ingest(source, str(url), options)
    return open_graph(str(url))


def prepared_for_peer(shared: Path, said: argparse.Namespace, count: int) -> Path:
    """Makes the folder with DistDGL's partitions."""
    name = f"{said.nodes}-{said.degree:g}-{said.roots}"
    work, arrays = shared / f"peer-{name}-{count}", shared / f"graph-{name}.npz"
    if not arrays.exists():
        peer_graph(prepared(shared, said, count, Way()), arrays, said.roots)
    if not work.exists():
        subprocess.run([said.peer_python, PEER, "partition", str(work), str(arrays), str(count)], check=True)
    return work


def models(said: argparse.Namespace, count: int, shared: Path) -> dict[str, list[dict[str, Any]]]:
    """For each way except DistDGL, what the cost model predicts at each rate."""

    @cache
    def needs(partitioner: str, loaders: int) -> Needs:
        one = Way(partitioner, loaders=loaders)
        return seen_needs(prepared(shared, said, count, one), load(said, one).neighbors(), count * loaders, LOOK_S)

    def of(way: Way) -> list[dict[str, Any]]:
        graph, seen = prepared(shared, said, count, way), needs(way.partitioner, way.loaders)
        return [predicted(seen, graph, count, way, gigabits(rate), said.threads) for rate in said.rates]

    return {name: of(WAYS[name]) for name in said.ways if name in WAYS}


def gigabits(rate: str) -> float:
    return 1e3 if rate == "none" else {"gbit": 1.0, "mbit": 1e-3}[rate[-4:]] * float(rate[:-4])


def load(said: argparse.Namespace, way: Way) -> Load:
    return Load(way, said.batch_size, said.epochs, said.threads, said.roots)


def our_turn(hosts: Hosts, cluster: RayHosts, said: argparse.Namespace, name: str, shared: Path) -> dict[str, float]:
    count, work = len(hosts.names), shared / f"ours-{len(hosts.names)}"
    url = prepared(shared, said, count, WAYS[name]).url
    settings = [f"--{key}={getattr(said, key)}" for key in ("batch_size", "epochs", "threads", "roots")]
    command = [sys.executable, "-m", "tests.netlab.links", "--load", url, cluster.address, "--ways", name, *settings]
    clients = [("h0", ["env", *cluster.environment(), *command, "--out", str(work)])]
    return turn(hosts, work, {"servers": [], "clients": clients}, OURS, count * WAYS[name].loaders)


def peer_turn(hosts: Hosts, said: argparse.Namespace, shared: Path) -> dict[str, float]:
    count = len(hosts.names)
    work = prepared_for_peer(shared, said, count)
    words = [str(PEER), "commands", str(work), str(count), str(said.batch_size), str(said.epochs)]
    listed = subprocess.run([said.peer_python, *words], check=True, capture_output=True, text=True).stdout.splitlines()
    commands: dict[str, list[tuple[str, list[str]]]] = {"servers": [], "clients": []}
    for line in listed:
        host, _, command = line.partition(": ")
        commands["clients" if " client " in command else "servers"].append((host, command.split()))
    return turn(hosts, work, commands, (str(PEER),), count)


def rows(said: argparse.Namespace, count: int, shared: Path) -> list[dict[str, Any]]:
    """Runs all measurements on this number of hosts. Returns the rows of the table."""
    expected, found = models(said, count, shared), []
    with Hosts(count, shared=[shared, REPOSITORY]) as hosts:  # the checkout has the compiled loops
        cluster = RayHosts(hosts)
        cluster.start()
        for at, rate in enumerate(said.rates):
            for host in hosts.names:
                hosts.rate(host, None if rate == "none" else rate)
            for name in said.turns * said.ways:
                row = {"way": name, "hosts": count, "link": rate}
                if name in WAYS:
                    row |= our_turn(hosts, cluster, said, name, shared) | expected[name][at]
                else:
                    row |= peer_turn(hosts, said, shared)
                found.append({name: row.get(name) for name in COLUMNS})
                print("\n".join(table(COLUMNS, found[-1:])[2:]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit"], help="of each link: none, 1gbit, 200mbit, ...")
    parser.add_argument("--ways", nargs="+", default=["off", "plan"], choices=[*WAYS, "distdgl"])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=float, default=50.0, help="mean, of a node")
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="make the graphs that are not there, say what the model says, and measure nothing",
    )
    parser.add_argument(
        "--roots", type=int, default=0, help="so many training nodes are roots of an epoch; 0: all of them"
    )
    parser.add_argument("--batch_size", type=int, default=1000, help="roots of a batch")
    parser.add_argument("--epochs", type=int, default=5, help="measured; one more fills what is kept")
    parser.add_argument("--threads", type=int, default=1, help="of each loader")
    parser.add_argument("--turns", type=int, default=1, help="of each way")
    parser.add_argument("--peer-python", help="an interpreter that has DistDGL")
    parser.add_argument("--out", type=Path, default=Path("runs/links"))
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    said = parser.parse_args()
    end_on_signals()
    if said.load:
        url, address = said.load
        run_loaders(open_graph(url), address, load(said, WAYS[said.ways[0]]), said.out)
        return 0
    if "distdgl" in said.ways and said.peer_python is None:
        parser.error("--ways distdgl: expected an interpreter that has DistDGL; say --peer-python")
    if why_not() is not None:
        print(why_not(), file=sys.stderr)
        return 1
    shared = (said.out / "files").resolve()
    shared.mkdir(parents=True, exist_ok=True)
    if said.prepare:
        for count in said.hosts:
            if "distdgl" in said.ways:
                prepared_for_peer(shared, said, count)
            expected = models(said, count, shared)
            lines = [
                {"way": name, "hosts": count, "link": rate} | model
                for name, each in expected.items()
                for rate, model in zip(said.rates, each, strict=True)
            ]
            print("\n".join(table(COLUMNS, [{name: line.get(name) for name in COLUMNS} for line in lines])), flush=True)
        return 0
    found = [row for count in said.hosts for row in rows(said, count, shared)]
    text = [
        f"{said.nodes:,} nodes of mean degree {said.degree:g}, {said.batch_size} roots, fan-outs {FANOUTS}; {machine()}",
        "",
        *table(COLUMNS, found),
    ]
    keep(said.out, vars(said), "\n".join(text), rows=found)
    print("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
