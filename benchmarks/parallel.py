"""Measures graph-parallel GECO on 1, 2, 4 … workers of this machine: the loss, the memory of each worker, and the sent bytes, compared to a formula.

    python -m benchmarks parallel --graph path/to/graph --workers 1 2 4

Ray is not needed: workers are processes with one thread each, which communicate over gloo. Times are not shown, because the workers share the
machine's cores. Expect equal losses to about 1e-6, and the predicted number of sent bytes (the first step also sends the degrees). With more
workers, each has a lower peak of memory.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.core.process_memory import own_bytes
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.machine.memory_check import reset_peak


@dataclass(frozen=True)
class Config:
    """Measure graph-parallel GECO."""

    graph: str
    """A prepared graph's path."""
    workers: tuple[Count, ...] = (1, 2, 4)
    """Numbers of workers to measure, one after another."""
    steps: Count = 2
    """Optimizer steps for each number of workers."""
    width: Count = 128
    """Channels."""
    layers: Count = 3
    """Layers."""
    dropout: float = 0.0
    """Dropout of the layers."""
    recompute: bool = False
    """Compute each layer again in the backward pass instead of keeping it."""
    timeout_s: Positive = 900.0
    """Longest wait in one collective call."""
    out: Path = Path("runs/bench-parallel")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)


def worker(rank: int, size: int, config: Config, folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    from graphmill.cluster.data.training_data import StoredNodes
    from graphmill.jobs.subjects.graph_parallel import ShardMemory, WholeGraphData
    from graphmill.jobs.tasks.model_inputs import GECOClassifier
    from graphmill.models.geco.network import FilterConfig
    from graphmill.models.geco.options import GECOConfig
    from graphmill.models.parallel.collectives import sum_gradients
    from graphmill.models.parallel.shards import NUM_BLOCKS
    from graphmill.models.parallel_cost import sent_bytes, training_bytes
    from graphmill.samplers.vocabulary.options import FullGraphOptions
    from graphmill.storage.graph import open_graph

    torch.set_num_threads(1)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group("gloo", f"file://{folder}/peers", timeout, world_size=size, rank=rank)
    graph = open_graph(config.graph)
    manifest = graph.manifest
    model_config = GECOConfig(
        in_dim=manifest.feature_dim,
        out_dim=manifest.num_classes or 1,
        width=config.width,
        num_layers=config.layers,
        dropout=config.dropout,
        recompute=config.recompute,
        filter=FilterConfig(scale="length"),
    )
    torch.manual_seed(0)
    model = GECOClassifier(model_config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up(model, model_config)
    reset_peak()
    baseline = own_bytes("VmRSS")
    options = FullGraphOptions(num_blocks=NUM_BLOCKS, alone="shard")
    memory = ShardMemory((model_config,), manifest.num_nodes, manifest.num_edges)
    opened = WholeGraphData(StoredNodes.of(graph, verify=False), options, memory).open()
    shard, batch = opened.shard.graph, opened.sampler(options, size).sample(0, rank)
    assert shard is not None
    peers = shard.peers
    losses = []
    target = opened.target(batch)
    count = float(peers.sum(torch.tensor(float(len(target)))))
    for step in range(config.steps):
        if step == config.steps - 1:
            peers.sent_bytes.clear()
        loss = cross_entropy(model(batch), target, reduction="sum") / count
        loss.backward()
        sum_gradients(list(model.parameters()), peers)
        # plans are left out: one byte per parameter
        sent = {kind: count for kind, count in peers.sent_bytes.items() if kind != "plan"}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(peers.sum(loss.detach().double())))
    plan = shard.adjacency.plan
    predicted = sent_bytes(
        model_config, shard.shards, rank, sum(plan.send), plan.num_halo, symmetric=manifest.symmetric
    )
    result = {
        "workers": size,
        "rank": rank,
        "losses": losses,
        "nodes": batch.num_nodes,
        "edges": batch.num_edges,
        "halo": plan.num_halo,
        "peak_bytes": own_bytes("VmHWM") - baseline,
        "estimated_bytes": training_bytes(model_config, manifest.num_nodes, manifest.num_edges, size),
        "sent": sent,
        "predicted": predicted,
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def warm_up(model: Any, config: Any) -> None:
    """Runs one step on a small graph first. So memory that libraries allocate once does not count as memory for the measured graph."""
    import torch

    from graphmill.models.parallel.collectives import Peers
    from graphmill.models.parallel.halo import ShardedAdjacency
    from graphmill.models.parallel.sequences import ShardedLayout
    from graphmill.models.parallel.shards import Shards

    num_nodes, alone = 64, Peers()
    shards = Shards.even(num_nodes, 1)
    adjacency = ShardedAdjacency(torch.arange(num_nodes + 1), torch.arange(num_nodes), shards, alone, symmetric=True)
    x, layout = torch.zeros(num_nodes, config.in_dim), ShardedLayout(shards, alone)
    model.model(x, adjacency, layout=layout).sum().backward()
    model.zero_grad(set_to_none=True)


def results_of_ranks(worker: Callable[..., None], size: int, *arguments: Any) -> list[dict[str, Any]]:
    """Runs `worker(rank, size, *arguments, folder)` in `size` processes. Returns the content of each file `folder`/RANK.json."""
    import torch.multiprocessing as multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(worker, args=(size, *arguments, folder), nprocs=size, start_method="spawn")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def main() -> None:
    config = parse(Config, __doc__)
    from graphmill.storage.graph import open_graph

    check_results(config.out)
    manifest = open_graph(config.graph).manifest
    results: list[dict[str, Any]] = []
    rows: list[tuple[float, ...]] = []
    for size in config.workers:
        ranks = results_of_ranks(worker, size, config)
        results += ranks
        sent, predicted = (max(sum(rank[key].values()) for rank in ranks) / 1e6 for key in ("sent", "predicted"))
        peak, estimate = (max(rank[key] for rank in ranks) / 1e6 for key in ("peak_bytes", "estimated_bytes"))
        loss = ranks[0]["losses"][-1]
        rows.append((size, loss, peak, peak / (rows[0][2] if rows else peak), estimate, sent, predicted))
        print(f"{size} workers: loss {loss:.9f}, peak {peak:.0f} MB", flush=True)
    size_of_graph = f"{manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges"
    head = f"{manifest.name}: {size_of_graph}; {config.layers} x {config.width}"
    columns = {"workers": "", "loss of the last step": ".9f", "peak MB": ".0f", "of the first peak": ".2f"}
    columns |= {"estimate MB": ".0f", "sent MB": ".1f", "predicted MB": ".1f"}
    text = "\n".join([f"{head}; {machine()}", "", *table(columns, rows)])
    keep(config.out, config, text, results=results)
    print(text)


if __name__ == "__main__":
    run(main)
