"""Measures how much processor time sampled training takes with more workers: `python -m benchmarks weak --graph path/to/graph`.

    python -m benchmarks weak --graph graphs/embedded                        # 1 and 2 workers by turns, about two minutes
    python -m benchmarks weak --graph graphs/embedded --workers 1 2 4 --rounds 5

Each worker is a process with one thread of computation, pinned to one core. It runs the trainer's own epochs (`Worker.train_epoch`) with neighbor batches. All
rows come from one process that serves every partition, and workers sum their gradients over gloo. A batch has the same size for any number of workers.
Numbers of workers take turns. Ray is not needed, and its own processes do not count.

You should see a table: CPU ms of a batch, in the workers and in the server, and the efficiency, which is the CPU time of one worker's batch (with its server)
divided by that of N workers (with theirs). CPU time hardly depends on other work, so the machine may be busy. The first epoch is not counted. The table is
also written to results.md and results.json under --out.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.parallel import results_of_ranks
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.cluster.data.training_data import OpenNodes
    from graphmill.cluster.training.train_spec import TrainSpec
    from graphmill.storage.graph import StoredGraph

_SERVER = """
import json, sys
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.storage.graph import open_graph
graph = open_graph(sys.argv[1])
server = MessageServer(open_parts(graph, range(graph.num_partitions)).answer, "127.0.0.1", None, 2)
where = server.endpoint
print(json.dumps([where.host, where.port, where.token.hex()]), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class WeakConfig:
    """Measure the processor time of sampled training with several workers."""

    graph: str
    """A prepared graph's path. It needs labels and a split."""
    workers: tuple[Count, ...] = (1, 2)
    """Numbers of workers, by turns; the first is the base of the efficiency."""
    batch_size: Count = 256
    """Roots of a batch."""
    fanouts: tuple[int, ...] = (10, 5)
    """Neighbors to draw per hop."""
    width: Count = 64
    """GECO's channels."""
    layers: Count = 2
    """GECO's layers."""
    epochs: Count = 2
    """Counted epochs of a turn, after a first epoch that is not counted."""
    rounds: Count = 3
    """Turns of each number of workers. Figures are medians over turns."""
    timeout_s: Positive = 900.0
    """Longest wait in one collective call."""
    out: Path = Path("runs/bench-weak")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class _FromServer:
    """Data of which every partition is in a server."""

    graph: "StoredGraph"
    endpoint: tuple[str, int, str]

    def open(self) -> "OpenNodes":
        from graphmill.cluster.data.training_data import OpenNodes
        from graphmill.cluster.transport.connection import Endpoint
        from graphmill.cluster.transport.remote_owner import RemoteOwner
        from graphmill.samplers.access.router import local_router

        host, port, token = self.endpoint
        owner = RemoteOwner(lambda _: Endpoint(host, port, bytes.fromhex(token)), "the server", 60.0)
        return OpenNodes(local_router(self.graph, far=dict.fromkeys(range(self.graph.num_partitions), owner)))


@contextmanager
def server_process(graph: str) -> Iterator[tuple[int, tuple[str, int, str]]]:
    """Yields (process id, endpoint) of a process that serves all partitions."""
    command = [sys.executable, "-c", _SERVER, graph]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, port, token = json.loads(process.stdout.readline())
            yield process.pid, (host, port, token)
        finally:
            process.kill()


def train_spec(config: WeakConfig, data: Any, graph: "StoredGraph") -> "TrainSpec":
    """The run that workers train."""
    from graphmill.cluster.options import TrainOptions
    from graphmill.cluster.tasks import Classification
    from graphmill.cluster.training.train_spec import TrainSpec
    from graphmill.jobs.config.config import config_tree, read_config
    from graphmill.jobs.config.registry import Inputs
    from graphmill.jobs.tasks.build_model import build_model
    from graphmill.models.options.features import Features
    from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions, full_evaluation

    manifest = graph.manifest
    model = {"name": "geco", "width": config.width, "num_layers": config.layers}
    component = read_config(config_tree("nodes", {"model": model, "run": {"defaults": "recipe"}})).model
    inputs = Inputs(node=Features(dim=manifest.feature_dim), out_dim=manifest.num_classes or 1, task="node")
    return TrainSpec(
        data=data,
        build_model=lambda: build_model(component, "nodes", inputs),
        task=Classification(manifest.num_classes or 1),
        model_config={},
        identity={},
        sampler=NeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size),
        evaluation=full_evaluation(0, 1),
        options=TrainOptions(epochs=config.epochs + 1, schedule="constant", checkpoint_minutes=None),
        loader=LoaderOptions(),
    )


def train_rank(
    rank: int, size: int, config: WeakConfig, server: int, endpoint: tuple[str, int, str], folder: str
) -> None:
    """Trains one worker, and writes its CPU seconds and those of the server by epoch to `folder`."""
    import psutil
    import torch
    import torch.distributed as dist

    from graphmill.cluster.runs.records import AttemptRecords, Recorder
    from graphmill.cluster.runs.run_directory import RunDirectory
    from graphmill.cluster.training.train_loop import Worker
    from graphmill.storage.graph import StoredGraph, open_graph

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    if size > 1:
        timeout = timedelta(seconds=config.timeout_s)
        dist.init_process_group("gloo", f"file://{folder}/peers", timeout, world_size=size, rank=rank)
    graph = open_graph(config.graph, kind=StoredGraph)
    spec = train_spec(config, _FromServer(graph, endpoint), graph)
    records = AttemptRecords.create(RunDirectory.create(Path(folder) / f"run-{rank}", {}).place)
    worker = Worker(spec, Recorder(records), rank, size, torch.device("cpu"))

    def spent() -> tuple[float, float]:
        """CPU seconds of this process and of the server."""
        if size > 1:
            dist.barrier()
        own, served = psutil.Process().cpu_times(), psutil.Process(server).cpu_times()
        return own.user + own.system, served.user + served.system

    epochs, losses, done = [], [], 0
    with worker.loader(spec.sampler) as loader:
        for epoch in range(config.epochs + 1):
            before = spent()
            record, _ = worker.train_epoch(loader, epoch)
            assert record is not None
            after = spent()
            done = int(record["batches"])
            losses.append(record["train_loss"])
            epochs.append([(b - a) / done for a, b in zip(before, after, strict=True)])
    Path(folder, f"{rank}.json").write_text(json.dumps({"epochs": epochs[1:], "batches": done, "losses": losses}))
    if size > 1:
        dist.destroy_process_group()


def measure(config: WeakConfig) -> list[dict[str, Any]]:
    """Returns a row for each number of workers, in CPU ms of a batch."""
    turns: dict[int, list[tuple[float, float]]] = {size: [] for size in config.workers}
    for _ in range(config.rounds):
        for size in config.workers:
            with server_process(config.graph) as (server, endpoint):
                ranks = results_of_ranks(train_rank, size, config, server, endpoint)
            workers = sum(statistics.median(own for own, _ in rank["epochs"]) for rank in ranks)
            served = statistics.median(served for _, served in ranks[0]["epochs"])
            turns[size].append((1e3 * workers, 1e3 * served))
    rows, base = [], [sum(each) for each in turns[config.workers[0]]]
    for size, measured in turns.items():
        ratios = [before / sum(now) for before, now in zip(base, measured, strict=True)]
        workers, served = (statistics.median(column) for column in zip(*measured, strict=True))
        rows.append(
            {"workers": size, "in workers": workers, "in the server": served, "efficiency": statistics.median(ratios)}
        )
    return rows


def main() -> None:
    config = parse(WeakConfig, __doc__)
    check_results(config.out)
    on, rows = machine(), measure(config)
    columns = {"workers": "d", "in workers": ".1f", "in the server": ".1f", "efficiency": ".2f"}
    text = "\n".join([f"CPU ms of a batch; {on}", "", *table(columns, rows)])
    keep(config.out, config, text, machine=on, rows=rows)
    print(text)


if __name__ == "__main__":
    run(main)
