"""Runs the main commands on a cluster, as a user would: `python -m tests.netlab.mission --hosts 1 2 4 --out runs/mission`.

For each number of emulated hosts, it submits four jobs by `ray job submit` on the first host: products_geco with
neighbor sampling, products_geco with random partitions, PPGT on subgraphs of Node2Subgraph, and TokenGT on molecules.
Each host has one worker, and its partitions are on its own disk. A step has four micro-batches. `--what jobs sweeps`
also runs sweeps over sizes and workers. The command prints a table and writes it to results.md under --out. It fails
unless losses are equal for all numbers of hosts.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmill.cluster.ingestion.molecules import ingest_molecules
from graphmill.cluster.options import MoleculeIngestOptions
from graphmill.jobs.bench.results import keep, machine, table
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.disturbed_job import epochs
from tests.netlab.hosts import DISK, Hosts, end_on_signals, why_not
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

JOB_S, SWEEP_S = 900.0, 3600.0
DASHBOARD = "http://127.0.0.1:8265"
EPOCHS = 3
COMMON = (*("--fit.epochs", str(EPOCHS), "--fit.micro_batches", "4"), "--run.defaults", "recipe")
NODES = {
    "products_geco, neighbor": (
        *("products_geco", "--model.num_layers", "2", "--sampler", "neighbor", "--sampler.fanouts", "10", "5"),
    ),
    "products_geco, random partition": ("products_geco", "--sampler", "random-partition", "--sampler.num_chunks", "8"),
    "PPGT, Node2Subgraph": (
        *("train_nodes", "--model", "ppgt", "--model.num_layers", "2", "--workers.launcher", "ray"),
        *("--sampler", "node2subgraph", "--sampler.batch_size", "64"),
    ),
}
MOLECULES = (
    *("pcqm4m_tokengt", "--model.width", "32", "--model.num_layers", "2"),
    *("--sampler.max_graphs", "32"),
)
SWEPT = (
    *("--workers", "1", "2", "--nodes", "4000", "16000", "--baseline", "none", "--"),
    *("--fit.epochs", "3", "--workers.launcher", "ray"),
)
SWEEPS = {
    "GECO and Primphormer, neighbor": ("--grid", "model=geco,primphormer", *SWEPT, "--sampler", "neighbor"),
    "PPGT, Node2Subgraph": (
        *("--grid", "model=ppgt", *SWEPT, "--model.num_layers", "2"),
        *("--sampler", "node2subgraph", "--sampler.batch_size", "64"),
    ),
}


@dataclass(frozen=True)
class Row:
    """The result of one job on one number of hosts."""

    job: str
    hosts: int
    seconds: float
    epoch_seconds: float
    losses: list[float]
    link_bytes: int


def submit(cluster: RayHosts, script: str, *words: str, within_s: float = JOB_S) -> tuple[float, str]:
    """Submits a job to the cluster as the README says. Returns (seconds, output). If the job fails, raises RuntimeError with its output."""
    begun = time.monotonic()
    command = ["ray", "job", "submit", "--address", DASHBOARD, "--working-dir", str(REPOSITORY), "--", "python"]
    done = cluster.run(
        "h0",
        [*command, f"jobs/{script}.py", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=within_s,
    )
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(words)}: status {done.returncode}\n{done.stdout}")
    return time.monotonic() - begun, done.stdout


def shortest_epoch_s(run: Path) -> float:
    """Training seconds of the shortest epoch. The first epoch does not count, because it warms up."""
    return min(json.loads(line)["train_s"] for line in (run / "metrics.jsonl").read_text().splitlines()[1:])


def rows(count: int, shared: Path, what: Sequence[str]) -> list[Row]:
    """Runs the jobs, the sweeps, or both on `count` hosts. Returns a row for each job."""
    found = []
    with Hosts(count, shared=[shared, REPOSITORY]) as hosts:
        cluster = RayHosts(hosts, takes_jobs=True)
        cluster.start()
        placed = f"{DISK}/graph"
        molecules = f"{DISK}/molecules"
        submit(cluster, "ingest", str(shared / "origin"), placed, "--place", "hosts")
        submit(cluster, "ingest", str(shared / "molecules"), molecules, "--place", "hosts")
        jobs = {name: (*words, "--data", placed) for name, words in NODES.items()} | {
            "molecules, TokenGT": (*MOLECULES, "--data", molecules)
        }
        for number, (name, (script, *words)) in enumerate(jobs.items() if "jobs" in what else ()):
            run = shared / f"{count}-{number}"
            before = hosts.bytes()
            seconds, _ = submit(cluster, script, *words, *COMMON, "--workers", str(count), "--run.dir", str(run))
            moved = sum(received - before[host][1] for host, (_, received) in hosts.bytes().items())
            losses = [epoch["train_loss"] for epoch in epochs(run)]
            found.append(Row(name, count, seconds, shortest_epoch_s(run), losses, moved))
            print(found[-1], flush=True)
        for number, (name, words) in enumerate(SWEEPS.items() if "sweeps" in what else ()):
            out = str(shared / f"{count}-sweep-{number}")
            folder = ("--data.folder", str(shared / "graphs"))  # all hosts can read this folder
            seconds, said = submit(cluster, "sweep", "--out", out, *words, *folder, within_s=SWEEP_S)
            print(f"sweep of {name} on {count} hosts: {seconds:.0f} s\n{said}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--what", nargs="+", choices=["jobs", "sweeps"], default=["jobs"])
    parser.add_argument("--out", type=Path, default=Path("runs/mission"))
    said = parser.parse_args()
    end_on_signals()
    if why_not() is not None:
        print(why_not(), file=sys.stderr)
        return 1
    shared = (said.out / "files").resolve()
    if shared.exists():  # the files may belong to someone
        print(f"{shared}: expected nothing there; choose another --out", file=sys.stderr)
        return 1
    shared.mkdir(parents=True)
    graph = SyntheticGraph(SyntheticOptions(num_nodes=said.nodes))
    ingest(graph, str(shared / "origin"), IngestOptions(num_partitions=4))
    ingest_molecules(EnumeratedMolecules(600), str(shared / "molecules"), MoleculeIngestOptions())
    found = [row for count in said.hosts for row in rows(count, shared, said.what)]
    if not found:  # only sweeps ran; they have printed their results
        return 0
    names = dict.fromkeys(row.job for row in found)
    losses = {name: {json.dumps(row.losses) for row in found if row.job == name} for name in names}
    unequal = [name for name, seen in losses.items() if len(seen) > 1]
    columns = {
        "job": "",
        "hosts": "",
        "seconds": ".0f",
        "shortest epoch, s": ".2f",
        "MB over links": ".1f",
        "losses": "",
    }
    text = [
        f"{EPOCHS} epochs with a worker a host, by `ray job submit`; {said.nodes:,} nodes; {machine()}",
        "",
        *table(
            columns,
            [
                (
                    row.job,
                    row.hosts,
                    row.seconds,
                    row.epoch_seconds,
                    row.link_bytes / 1e6,
                    ", ".join(map(str, row.losses)),
                )
                for row in found
            ],
        ),
        "",
        f"losses differ: {', '.join(unequal)}" if unequal else "losses equal to the last digit on all numbers of hosts",
    ]
    keep(said.out, vars(said), "\n".join(text), rows=found)
    print("\n".join(text))
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
