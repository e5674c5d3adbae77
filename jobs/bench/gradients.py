"""A training step whose gradients are added along the fixed tree, beside DDP's ring: `python -m jobs.bench gradients`.

    python -m jobs.bench gradients --workers 2 4                                    processes of this machine, over loopback
    python -m jobs.bench gradients --rank 0 --ranks 2 --meet tcp://10.0.0.1:29500   this process is one of two, on hosts of their own

A step is the forward and backward pass of a perceptron, the sum of its gradients, and AdamW. Both ways train the same model on the same rows,
in turns of a few steps; a third one, alone, sums nothing. Needs no Ray; gloo, one thread a process. Prints medians over the turns, and the
ratio of the tree to the ring with its quartiles. The three losses differ in the last digits; the tree's is the same for any number of workers.
results.md and results.json go to --out.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from jobs.bench.results import check_results, keep, machine, table
from jobs.run.exit_codes import run
from jobs.run.reader import parse
from storage.errors import ConfigError
from storage.option_checks import at_least, check_options, more_than_0

WAYS = ("tree", "ring", "alone")


@dataclass(frozen=True)
class Config:
    """What to measure."""

    workers: tuple[int, ...] = (2, 4)
    """Numbers of processes to start here, one after another; each has one micro-batch of a step."""
    ranks: int | None = None
    """In place of that, how many processes there are on other hosts and here."""
    rank: int | None = None
    """Which of them this one is."""
    meet: str | None = None
    """Where they meet: tcp://HOST:PORT of rank 0."""
    layers: int = 5
    """Of the perceptron."""
    width: int = 1000
    """Of its layers: layers x width x width parameters, 5 million."""
    rows: int = 256
    """Of a micro-batch."""
    turns: int = 30
    """Of each way."""
    steps: int = 3
    """In one turn."""
    timeout_s: float = 120.0
    """Longest wait in one collective call."""
    out: Path = Path("runs/bench-gradients")
    """Where the table goes."""

    def __post_init__(self) -> None:
        check_options(
            self,
            at_least(self, 1, "workers", "ranks", "layers", "width", "rows", "turns", "steps")
            | at_least(self, 0, "rank")
            | more_than_0(self, "timeout_s"),
        )
        given = [value is not None for value in (self.ranks, self.rank, self.meet)]
        if any(given) and not all(given):
            raise ConfigError("ranks, rank and meet: expected all of them or none; set ranks, rank and meet")


@dataclass(frozen=True)
class Measured:
    """What rank 0 saw: seconds of a step in each turn, by way, and the last loss."""

    ranks: int
    wall_s: dict[str, list[float]]
    cpu_s: dict[str, list[float]]
    losses: dict[str, float]


def measure(config: Config, rank: int, ranks: int, meet: str) -> Measured:
    """One process's part; all have the same result."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", meet, timedelta(seconds=config.timeout_s), world_size=ranks, rank=rank)
    steps = {way: _step_of(way, config, rank, ranks) for way in WAYS}
    wall_s: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu_s: dict[str, list[float]] = {way: [] for way in WAYS}
    losses: dict[str, float] = {}
    for turn in range(-1, config.turns):  # the first only warms up
        for way in random.Random(turn).sample(WAYS, len(WAYS)):
            dist.barrier()
            began, began_cpu = time.perf_counter(), time.process_time()
            for _ in range(config.steps):
                losses[way] = steps[way]()
            spent = torch.tensor([time.perf_counter() - began, time.process_time() - began_cpu], dtype=torch.float64)
            dist.all_reduce(spent)
            if turn >= 0:
                wall, cpu = (spent / ranks / config.steps).tolist()
                wall_s[way].append(wall)
                cpu_s[way].append(cpu)
    dist.destroy_process_group()
    return Measured(ranks, wall_s, cpu_s, losses)


def _step_of(way: str, config: Config, rank: int, ranks: int) -> Callable[[], float]:
    """One training step, which returns the loss of this rank's rows."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from cluster.gradient_tree import GradientTree
    from cluster.position_tree import Seat

    torch.manual_seed(0)
    layers = [nn.Linear(config.width, config.width, bias=False) for _ in range(config.layers)]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(config.rows, config.width, generator=generator)
    tree = GradientTree(model, Seat(rank, ranks, ranks)) if way == "tree" else None
    forward = DistributedDataParallel(model) if way == "ring" else model

    def step() -> float:
        loss = (forward(x) - x).square().mean()
        if tree is None:
            loss.backward()
        else:
            tree.backward(loss / ranks)
            tree.end()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _here(rank: int, config: Config, ranks: int, folder: str) -> None:
    measured = measure(config, rank, ranks, f"file://{folder}/meet")
    if rank == 0:
        Path(folder, "measured.json").write_text(json.dumps(vars(measured)))


def measure_here(config: Config, ranks: int) -> Measured:
    """What processes of this machine measure."""
    import torch.multiprocessing as multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_here, args=(config, ranks, folder), nprocs=ranks, start_method="spawn")
        return Measured(**json.loads(Path(folder, "measured.json").read_text()))


def row(measured: Measured) -> tuple[Any, ...]:
    """A line of the table: milliseconds of a step, and ratios."""
    ms = {way: 1e3 * float(np.median(seconds)) for way, seconds in measured.wall_s.items()}
    cpu = {way: 1e3 * float(np.median(seconds)) for way, seconds in measured.cpu_s.items()}
    low, ratio, high = np.quantile(np.divide(measured.wall_s["tree"], measured.wall_s["ring"]), [0.25, 0.5, 0.75])
    quartiles = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
    return (measured.ranks, ms["tree"], ms["ring"], ms["alone"], quartiles, cpu["tree"], cpu["ring"])


def main() -> None:
    config = parse(Config, __doc__)
    if config.rank is None or config.ranks is None or config.meet is None:
        check_results(config.out)
        results = [measure_here(config, ranks) for ranks in config.workers]
    else:
        results = [measure(config, config.rank, config.ranks, config.meet)]
        if config.rank > 0:  # the first one tells
            return
        check_results(config.out)
    columns = {"workers": "", "tree ms": ".1f", "ring ms": ".1f", "no sum ms": ".1f", "tree / ring": ""}
    columns |= {"tree CPU ms": ".1f", "ring CPU ms": ".1f"}
    size = f"{config.layers * config.width**2:,} parameters, {config.rows} rows a worker, {config.turns} turns of {config.steps} steps"
    text = "\n".join([f"{size}; {machine()}", "", *table(columns, map(row, results))])
    keep(config.out, config, text, results=results)
    print(text)


if __name__ == "__main__":
    run(main)
