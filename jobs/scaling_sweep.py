"""How training scales: a grid of points, each measured in a fresh Ray by a process of its own; a table, a CSV and an HTML report.

    python jobs/scaling_sweep.py --workers 1 2 --scalings weak strong --samplers neighbor random-partition
    python jobs/scaling_sweep.py --workers 1 2 4 8 --nodes 2 --placement store       # servers on a node of their own
    python jobs/scaling_sweep.py --nodes 1 2 4 --workers 2 --steps 40

Every finished point is a line of OUT/points.jsonl under its settings, so a second run measures only what is missing, and Ctrl-C loses
only the point under way. A point that fails, or hangs past --point-timeout-s, is recorded with its cause, and the sweep goes on; the exit
status is then 1. Failed points are tried again with --retry.

Weak scaling keeps a worker's roots constant, strong scaling the roots of all workers together. Efficiency is roots/s per worker, against
the point with fewest workers of the same kind. Without --address, several --nodes are raylets on this machine: their requests pass
through sockets and object stores, but no network, and they share its cores. Every worker computes on one thread. A point takes a minute or
two, most of it for Ray to start; nothing else should run meanwhile. Repeats run after one another over the whole grid, so that a slow
moment meets different points; the report shows medians.
"""

import itertools
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.reporting.record_lines import append_record, load_records
from jobs.reporting.scaling_report import print_table, write_report
from jobs.run.child_process import run_process
from jobs.run.exit_codes import run
from jobs.run.reader import parse
from jobs.sweeps.scaling_point import PointSettings
from storage.errors import ConfigError

_SCRIPT = Path(__file__).with_name("sweeps") / "scaling_point.py"


@dataclass(frozen=True)
class SweepConfig:
    """The grid is the product of the lists; everything else is the same at every point."""

    workers: tuple[int, ...] = (1, 2)
    """DDP workers."""
    scalings: tuple[str, ...] = ("weak",)
    """weak: --batch-size roots per worker; strong: that many over all workers."""
    samplers: tuple[str, ...] = ("neighbor",)
    """neighbor, random-partition or node2subgraph."""
    models: tuple[str, ...] = ("geco",)
    """geco, primphormer, tokengt or ppgt (with node2subgraph)."""
    partitions: tuple[int, ...] = (2,)
    """Partitions of the graph, where the sweep prepares it."""
    nodes: tuple[int, ...] = (1,)
    """Ray nodes; without --address raylets on this machine."""
    placement: str = "spread"
    """spread: servers on all nodes; store: on the first, and workers on the others."""
    repeats: int = 1
    """How often each point is measured."""
    graph: str | None = None
    """A prepared graph's path or URL; without it a synthetic one."""
    graph_nodes: int = 100_000
    """Nodes of the synthetic graph."""
    partitioner: str = "random"
    """How the synthetic graph is partitioned: random, range, ldg or metis."""
    batch_size: int = 512
    """Roots."""
    chunks: int = 16
    """random-partition: chunks of the cut; strong scaling has --workers times as many, which keep fewer of the edges."""
    fanouts: tuple[int, ...] = (10, 5)
    """neighbor: per hop."""
    width: int = 64
    """Of the model."""
    layers: int = 2
    """Of the model."""
    max_nodes: int = 32
    """node2subgraph: of a subgraph."""
    steps: int = 20
    """Of an epoch, at most."""
    epochs: int = 2
    """Measured, after one that warms up."""
    loader_threads: int = 1
    """Sampling threads per worker."""
    prefetch: int = 2
    """Batches that a loader works ahead."""
    cache_mb: int = 0
    """Cache of remote feature rows, per worker."""
    local_reads: bool = True
    """Read partitions of the worker's own node in process."""
    seed: int = 0
    """Of everything random."""
    cpus: int | None = None
    """Refuse points with more workers than this; by default a local Ray is told that it has a CPU for each."""
    address: str | None = None
    """A running Ray cluster, host:port or auto; its nodes are what they are, so leave out --nodes and --placement."""
    point_timeout_s: float = 900.0
    """Longest a point may take."""
    retry: bool = False
    """Measure failed points again."""
    data_dir: str = "data/scaling"
    """Where synthetic graphs are kept."""
    out: str = "runs/scaling"
    """Where points, logs and the report go."""


def check(config: SweepConfig) -> None:
    """Raises ConfigError for an empty grid, and for options that contradict each other."""
    lists = ("workers", "scalings", "samplers", "models", "partitions", "nodes")
    empty = [f"--{name}" for name in lists if not getattr(config, name)]
    if empty or config.repeats < 1:
        raise ConfigError(f"the grid is empty: give {', '.join(empty) or '--repeats'} at least one value")
    if config.cpus is not None and max(config.workers) > config.cpus:
        raise ConfigError(
            f"expected a CPU per worker ({max(config.workers)}), Ray has {config.cpus}; lower --workers or raise --cpus"
        )
    if config.address is not None and (config.nodes != (1,) or config.placement != "spread"):
        raise ConfigError(
            f"--address: the nodes are those of the cluster at {config.address}; leave out --nodes and --placement"
        )
    if not config.point_timeout_s > 0:
        raise ConfigError(f"point_timeout_s: expected more than 0 seconds, got {config.point_timeout_s}")


def grid(config: SweepConfig) -> list[PointSettings]:
    """All points, each once, repeats last. Raises ConfigError where a value is unknown or cannot work at its point."""
    check(config)
    same = {name: value for name, value in asdict(config).items() if name in PointSettings.__dataclass_fields__}
    for name in ("workers", "partitions", "nodes"):
        same.pop(name)
    axes = (config.nodes, config.partitions, config.samplers, config.models, config.scalings, config.workers)
    points = [
        PointSettings(
            **same,
            repeat=repeat,
            nodes=nodes,
            partitions=partitions,
            sampler=sampler,
            model=model,
            scaling=scaling,
            workers=workers,
        )
        for repeat in range(config.repeats)
        for nodes, partitions, sampler, model, scaling, workers in itertools.product(*axes)
    ]
    return list(dict.fromkeys(points))


def key(settings: PointSettings | Mapping[str, Any]) -> str:
    """What a point is known by: its settings as canonical JSON."""
    values = asdict(settings) if isinstance(settings, PointSettings) else dict(settings)
    return json.dumps(values, sort_keys=True)


def load_points(path: Path) -> list[dict[str, Any]]:
    """The latest record of every point in the file. Raises FormatError where a line is none."""
    return load_records(path, lambda point: key(point["settings"]), "a point of this sweep")


def measure_point(settings: PointSettings, config: SweepConfig, folder: Path) -> dict[str, Any]:
    """The point's record: its measures, or the cause of its failure."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted, result, log = folder / "settings.json", folder / "result.json", folder / "log.txt"
    wanted.write_text(json.dumps({"settings": asdict(settings), "data_dir": config.data_dir}) + "\n")
    started = time.monotonic()
    cause = run_process([sys.executable, str(_SCRIPT), str(wanted), str(result)], log, config.point_timeout_s)
    record: dict[str, Any] = {
        "settings": asdict(settings),
        "status": "failed" if cause else "ok",
        "cause": cause,
        "wall_s": time.monotonic() - started,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
    if cause is None:
        record |= json.loads(result.read_text())
        shutil.rmtree(folder, ignore_errors=True)  # checkpoints of no use; of a failed point all is kept
    return record


def describe_machine(config: SweepConfig) -> dict[str, Any]:
    import ray
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return {
        "cpu": next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
        "command": " ".join(["python", "jobs/scaling_sweep.py", *sys.argv[1:]]),
        "cluster": config.address or "raylets on this machine",
    }


def prepare_graphs(points: list[PointSettings], data_dir: str) -> None:
    """Prepares what the points lack, so that no point's time goes there."""
    from jobs.run.prepare_graph import prepare_graph
    from jobs.sweeps.scaling_point import graph_options

    for options in dict.fromkeys(graph_options(point, data_dir) for point in points):
        prepare_graph(options)


def sweep(config: SweepConfig) -> int:
    """Measures what is missing; 1 where a point of this grid has failed."""
    points = grid(config)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "points.jsonl"
    wanted = {key(settings) for settings in points}
    known = {key(point["settings"]): point for point in load_points(file)}
    missing = [
        settings
        for settings in points
        if key(settings) not in known or (config.retry and known[key(settings)]["status"] != "ok")
    ]
    print(f"{len(points)} points, {len(points) - len(missing)} of them measured before", flush=True)
    if missing:
        prepare_graphs(missing, config.data_dir)
    machine = describe_machine(config)
    try:
        for number, settings in enumerate(missing, 1):
            folder = out / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{number:03d}"
            point = measure_point(settings, config, folder)
            append_record(file, point)
            print(f"[{number}/{len(missing)}] {say(point)}", flush=True)
    finally:
        everything = load_points(file)
        write_report(out, everything, machine)
    ours = [point for point in everything if key(point["settings"]) in wanted]
    print_table(ours)
    failed = [point for point in ours if point["status"] != "ok"]
    print(f"kept in {out}: points.jsonl, points.csv, report.html")
    if failed:
        print(f"error: {len(failed)} of {len(points)} points failed; the report says why", file=sys.stderr)
    return 1 if failed else 0


def say(point: Mapping[str, Any]) -> str:
    """A point in one line."""
    s = point["settings"]
    what = f"{s['sampler']} {s['model']} {s['scaling']}: {s['workers']} workers, {s['nodes']} nodes, {s['partitions']} partitions"
    if point["status"] != "ok":
        return f"{what}: failed: {point['cause']}"
    return f"{what}: {point['roots_per_s']:,.0f} roots/s, {point['edges_per_s']:,.0f} edges/s, waits {point['wait_share']:.0%}"


def main() -> int:
    return sweep(parse(SweepConfig, __doc__))


if __name__ == "__main__":
    run(main)
