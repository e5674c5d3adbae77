"""Measures full evaluation on 1, 2 … workers of this machine: CPU time relative to an epoch of training, bytes read and sent, and memory of a worker.

    python -m benchmarks evaluation --graph path/to/graph --workers 1 2 --models geco sage

Needs no Ray: workers are processes with one thread each, over gloo, and run the trainer's own epoch and evaluation. CPU seconds cover all threads
of a worker's process. On a machine with a core for each worker, CPU seconds equal wall seconds. Two processes slow each other down, because they
share caches and memory. Therefore one worker is also measured while a second run of one worker is active (row 1 + 1), and ratios are to this row.
With 2 workers, expect about half the CPU time, bytes and memory of one worker, and the same scores to about 1e-6.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.parallel import results_of_ranks
from graphmill.cluster.process.malloc_trim import return_freed_blocks
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.core.process_memory import own_bytes
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.machine.memory_check import reset_peak


@dataclass(frozen=True)
class Config:
    """Measure full evaluation."""

    graph: str
    """A prepared graph's path."""
    workers: tuple[Count, ...] = (1, 2)
    """Numbers of workers to measure, one after another."""
    models: tuple[str, ...] = ("geco",)
    """Models to measure, each with its default recipe."""
    train: bool = True
    """Also train an epoch with the recipe's sampler."""
    timeout_s: Positive = 3600.0
    """Longest wait in one collective call."""
    out: Path = Path("runs/bench-evaluation")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)


def worker(rank: int, size: int, name: str, config: Config, folder: str) -> None:
    import torch
    import torch.distributed as dist

    from graphmill.cluster.training.train_loop import Worker
    from graphmill.cluster.training.train_spec import TrainSpec
    from graphmill.jobs.config.config import config_tree, read_config
    from graphmill.jobs.subjects.nodes import Nodes
    from graphmill.jobs.tasks.node_task import node_task
    from graphmill.storage.graph import open_graph

    torch.set_num_threads(1)
    if size > 1:
        timeout = timedelta(seconds=config.timeout_s)
        dist.init_process_group("gloo", f"file://{folder}/peers", timeout, world_size=size, rank=rank)
    graph = open_graph(config.graph)
    resolved = Nodes(graph).resolve(read_config(config_tree("nodes", {"model": {"name": name}})), None)
    data = _Watched(graph)
    spec = TrainSpec(
        data=data,
        build_model=resolved.build_model,
        task=node_task(resolved.config, resolved.inputs, graph.manifest),
        model_config={},
        identity={},
        sampler=resolved.training,
        evaluation=resolved.evaluation,
        options=replace(resolved.fit, epochs=1, precision="float32"),
        loader=resolved.config.loader,
    )
    trainer = Worker(spec, _Silent(), rank, size, torch.device("cpu"))  # type: ignore[arg-type]

    def evaluate() -> dict[str, Any]:
        bytes_before, cpu = data.bytes(), time.process_time()
        with trainer.split_loader(spec.evaluation["valid"]) as loader:
            scores = {
                split: metrics.compute() for split, metrics in trainer._evaluate(trainer.model, loader, "valid").items()
            }
        spent = {kind: count - bytes_before.get(kind, 0) for kind, count in data.bytes().items()}
        return {"cpu_s": time.process_time() - cpu, "bytes": spent, "scores": scores}

    return_freed_blocks()
    idle = own_bytes("VmRSS")
    reset_peak()
    result = {"model": name, "workers": size, "rank": rank, "idle_bytes": idle, **evaluate()}
    result["peak_bytes"] = own_bytes("VmHWM") - idle
    if config.train:
        with trainer.loader(spec.sampler) as loader:
            cpu = time.process_time()
            trainer.train_epoch(loader, 0)
            result["train_cpu_s"] = time.process_time() - cpu
        result["trained"] = evaluate()
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


class _Silent:
    """A reporter that drops all records."""

    def push(self, record: Any) -> None: ...

    def stop_asked(self) -> bool:
        return False


class _Watched:
    """Reads the graph's files. Counts the bytes that are read from partitions, and the bytes that are sent to other workers."""

    def __init__(self, graph: Any) -> None:
        from graphmill.cluster.data.training_data import OpenNodes
        from graphmill.models.parallel.collectives import Peers
        from graphmill.samplers.access.router import local_router
        from graphmill.samplers.access.traffic import Traffic

        self._traffic = Traffic(graph.manifest.num_partitions)
        self._nodes = OpenNodes(local_router(graph, watch=self._traffic.watch), traffic=self._traffic)
        self._peers = Peers.of_group()

    def open(self) -> "_Watched":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    def collate(self, minibatch: Any) -> Any:
        """Runs in the loader's thread while the trainer waits for it, so no other thread makes a collective call."""
        from graphmill.jobs.tasks.model_inputs import PlannedShard, plan_shard

        batch = self._nodes.collate(minibatch)
        return batch if batch.shard is None else PlannedShard(**vars(batch), graph=plan_shard(batch, self._peers))

    def bytes(self) -> dict[str, int]:
        return {"partitions": int(self._traffic.by_partition()[:, [1, 2, 4]].sum()), **self._peers.sent_bytes}


def measure_two(name: str, config: Config) -> list[dict[str, Any]]:
    """Returns the results of one worker, measured while a second run of one worker is active."""
    with ThreadPoolExecutor(2) as both:
        first, _ = (both.submit(results_of_ranks, worker, 1, name, config) for _ in range(2))
        return first.result()


def main() -> None:
    config = parse(Config, __doc__)
    from graphmill.storage.graph import open_graph

    check_results(config.out)
    manifest = open_graph(config.graph).manifest
    results: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for name in config.models:
        first: tuple[float, ...] = ()
        for size in (*config.workers[:1], None, *config.workers[1:]):
            if size is None and config.workers[0] > 1:
                continue
            ranks = measure_two(name, config) if size is None else results_of_ranks(worker, size, name, config)
            results += ranks
            last = [rank.get("trained", rank) for rank in ranks]
            cpu = max(result["cpu_s"] for result in last)
            epoch = max(rank.get("train_cpu_s", float("nan")) for rank in ranks)
            asked = max(result["bytes"]["partitions"] for result in last) / 1e6
            sent = max(sum(result["bytes"].values()) - result["bytes"]["partitions"] for result in last) / 1e6
            peak = max(rank["peak_bytes"] for rank in ranks) / 1e6
            if size is None or not first:
                first = cpu, asked, peak
            ratios = (cpu / first[0], asked / first[1], peak / first[2])
            who = "1 + 1" if size is None else str(size)
            rows.append((name, who, cpu, cpu / epoch, asked, sent, peak, *ratios, ranks[0]["scores"]["valid"]["loss"]))
            print(f"{name}, workers {who}: {cpu:.1f} s of CPU, {asked:.0f} MB asked, peak {peak:.0f} MB", flush=True)
    head = f"{manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges; {machine()}"
    columns = {"model": "", "workers": "", "CPU s": ".1f", "of an epoch": ".2f", "asked MB": ".0f", "sent MB": ".0f"}
    columns |= {"peak MB": ".0f", "CPU ratio": ".2f", "asked ratio": ".2f", "peak ratio": ".2f", "valid loss": ".9f"}
    text = "\n".join([head, "", *table(columns, rows)])
    keep(config.out, config, text, results=results)
    print(text)


if __name__ == "__main__":
    run(main)
