"""Measures the cost of trials as workers and graphs grow. Writes one line per trial to OUT/points.jsonl, for the scaling report and the cost model.

Throughput, traffic and CPU time of the worker come from the run's records (metrics.jsonl, events.jsonl, summary.json). The cores in use are measured from
outside the run at the end of each epoch. The first epoch warms up and does not count. Traffic counts only epochs without validation.
"""

import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.data.prepare_graph import prepare_graph
from graphmill.jobs.reporting.record_lines import append_record, load_records
from graphmill.jobs.reporting.scaling_report import write_report
from graphmill.jobs.sweeps.design import SCALING, Slot, SweepDesign
from graphmill.samplers.access.traffic import COLUMNS
from graphmill.samplers.methods.random_partition import count_chunks
from graphmill.samplers.vocabulary.options import RandomPartitionOptions
from graphmill.storage.graph import StoredGraph

FILE = "points.jsonl"
_SERVER, _WORKER = "ray::PartitionServer", "ray::RayTrainWorker"  # process titles of Ray's own processes


class ScalingClock:
    """Watches trials and records the cost of each trial."""

    def __init__(self, plan: SweepDesign, out: Path) -> None:
        self._plan, self._out = plan, out
        self._looks: dict[int, list[dict[str, float]]] = {}  # trial -> one entry for each epoch that has ended

    def look(self, number: int, pid: int) -> None:
        """Measures a trial's processes if another epoch has ended. Called often while the trial runs."""
        epochs = len(RunDirectory(self._out / f"trial-{number:03d}").metrics())
        looks = self._looks.setdefault(number, [])
        if epochs > len(looks):
            looks += [_cpu_seconds(pid)] * (epochs - len(looks))

    def keep(self, slot: Slot, record: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Appends the point of a trial that has ended, if the trial is a run on one graph."""
        config = self._plan.config(values, slot.seed)
        if not find_kind(config.kind).is_one_graph:
            return
        point = {
            "settings": _settings(config, slot, values),
            "status": "ok" if record["status"] == "finished" else "failed",
            "cause": record["cause"],
            "date": record["date"],
            "load": os.getloadavg()[0],
        }
        if record["status"] == "finished":
            cores = _cores(self._looks.get(slot.number, []))
            point |= cores | measures(self._out / slot.name, point["settings"]["workers"]) | _graph_facts(config)
        append_record(self._out / FILE, point)

    def write_report(self) -> None:
        """Writes points.csv and report.html."""
        points = load_records(
            self._out / FILE, lambda one: json.dumps(one["settings"], sort_keys=True), "a point of this sweep"
        )
        if points:
            machine = {
                "cores": os.cpu_count(),
                "processor": platform.processor() or platform.machine(),
                "python": platform.python_version(),
            }
            write_report(self._out, points, machine)


def _settings(config: RunConfig, slot: Slot, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that identify a point: names that the cost model reads, and all options that the sweep varies."""
    scaling, sampler = slot.values.get(SCALING, "weak"), config.sampler.options
    graph = prepare_graph(config.data, kind=StoredGraph)
    workers = config.workers.most
    chunks = count_chunks(sampler, graph.manifest) if isinstance(sampler, RandomPartitionOptions) else None
    return {
        "sampler": config.sampler.name,
        "model": config.model.name,
        "scaling": scaling,
        "workers": workers,
        "partitions": graph.manifest.num_partitions,
        "local_reads": config.servers.local_reads,
        "fanouts": list(getattr(sampler, "fanouts", None) or ()),
        "batch_size": getattr(sampler, "batch_size", None),
        "chunks": chunks // workers if chunks and scaling == "strong" else chunks,
        "graph": config.data.path,
        "graph_nodes": graph.manifest.num_nodes,
        "address": config.ray.address,
        **{path: value for path, value in values.items() if path not in (SCALING, "workers.num_workers", "data.nodes")},
        "repeat": slot.seed or 0,
    }


def measures(run: Path, workers: int) -> dict[str, Any]:
    """Cost of the epochs of a finished run, except the first epoch."""
    summary = json.loads((run / "summary.json").read_text())
    epochs = RunDirectory(run).metrics()[1:]
    seconds = sum(one["train_s"] for one in epochs)
    batches = sum(one["batches"] for one in epochs)
    steps = int(batches) // workers

    def total(rate: str) -> float:
        return float(sum(one[rate] * one["train_s"] for one in epochs))

    quiet = {one["epoch"]: one["batches"] for one in epochs if "valid_loss" not in one}
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    recorded = {
        one["epoch"]: one
        for one in events
        if one["kind"] == "traffic" and one["epoch"] in quiet and one.get("epochs", 1) == 1
    }
    counted = sum(quiet[epoch] for epoch in recorded)
    traffic = {name: sum(sum(one[name]) for one in recorded.values()) / counted for name in COLUMNS} if counted else {}
    return {
        "steps": steps,
        "seconds": seconds,
        "step_s": seconds / steps,
        "epoch_s": seconds / len(epochs),
        **{rate: total(rate) / seconds for rate in ("roots_per_s", "nodes_per_s", "edges_per_s")},
        **{f"{unit}_per_batch": total(f"{unit}_per_s") / batches for unit in ("roots", "nodes", "edges")},
        "wait_s": sum(one["wait_s"] for one in epochs),
        "wait_share": sum(one["wait_s"] for one in epochs) / seconds,
        **{f"{name}_per_batch": value for name, value in traffic.items()},
        # Times of rank 0: all workers do the same work.
        "train_cpu_s_per_batch": sum(one["train_cpu_s"] for one in epochs) / steps,
        "worker_cpu_s_per_step": sum(one["cpu_s"] for one in epochs) / steps * workers,
        "num_parameters": summary["num_parameters"],
    }


def _graph_facts(config: RunConfig) -> dict[str, Any]:
    from graphmill.jobs.plan.cost_model import Degrees

    graph = prepare_graph(config.data, kind=StoredGraph)
    manifest = graph.manifest
    bins = Degrees.of(np.concatenate([np.diff(partition.indptr) for partition in graph.partitions(verify=False)]))
    return {
        "graph_edges": manifest.num_edges,
        "degrees": (bins.degree.tolist(), bins.count.tolist()),
        "feature_bytes": manifest.feature_rows.row_bytes if manifest.feature_rows else 0,
        "index_bytes": np.dtype(manifest.index_dtype).itemsize,
        "cores": os.cpu_count(),
    }


def _cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds since the start: of a trial's processes ("own"), of its servers, of the machine, and the seconds that the hypervisor stole. Also the largest
    resident memory of a worker."""
    own = servers = peak = 0.0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        processes = []
    for process in processes:
        try:
            times, title = process.cpu_times(), " ".join(process.cmdline()[:1])
            own += times.user + times.system
            servers += (times.user + times.system) * title.startswith(_SERVER)
            peak = max(peak, process.memory_info().rss * title.startswith(_WORKER))
        except psutil.NoSuchProcess:
            continue
    machine = psutil.cpu_times()
    stolen = getattr(machine, "steal", 0.0)
    idle = machine.idle + getattr(machine, "iowait", 0.0) + stolen
    twice = getattr(machine, "guest", 0.0) + getattr(
        machine, "guest_nice", 0.0
    )  # Linux adds the time of guests also to user and nice
    return {
        "own": own,
        "server": servers,
        "machine": sum(machine) - idle - twice,
        "stolen": stolen,
        "peak": peak,
        "time": time.monotonic(),
    }


def _cores(looks: list[dict[str, float]]) -> dict[str, float]:
    """Mean number of cores in use between the end of the first and the end of the last epoch. Empty if less than half a second lies between them."""
    if len(looks) < 2 or looks[-1]["time"] - looks[0]["time"] < 0.5:
        return {}
    elapsed = looks[-1]["time"] - looks[0]["time"]
    cores = {
        f"{name}_cores": (looks[-1][name] - looks[0][name]) / elapsed for name in ("own", "server", "machine", "stolen")
    }
    return cores | {"peak_bytes_per_worker": max(look["peak"] for look in looks)}
