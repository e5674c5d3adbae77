"""Runs the test cases of a module on real gloo processes. The processes start once per module."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.shards import Shards
from tests.forked_ranks import run_ranks

SIZES = (1, 2, 4)
DEADLINE = timedelta(seconds=120)


def on_workers(body: Callable[[Peers], Any], sizes: Sequence[int] = SIZES) -> dict[int, list[Any]]:
    """Runs `body` in groups of workers, one group for each of these sizes. Returns {size: [the result of each rank]}; results are tensors and plain values."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_worker, (body, folder, sizes), max(sizes))
        return {
            size: [torch.load(Path(folder, f"{size}-{rank}.pt"), weights_only=True) for rank in range(size)]
            for size in sizes
        }


def shards_of(num_nodes: int, size: int, *, lopsided: bool) -> Shards:
    """Divides the rows into even shards. With `lopsided` and more than two workers, the first and the last worker have empty shards."""
    if not lopsided or size < 3:
        return Shards.even(num_nodes, size)
    return Shards((0, *Shards.even(num_nodes, size - 2).bounds, num_nodes))


def check_parts(parts: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> None:
    """Compares the ranks' results with the expected ones, in float64. Outputs `y` and gradients `x` are concatenated over ranks. Every other tensor must be
    equal on all ranks."""
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([part[key] for part in parts]), expected[key], rtol=1e-10, atol=1e-10)
    for key, value in expected.items():
        if key in ("y", "x") or not isinstance(value, torch.Tensor):
            continue
        scale = max(1.0, float(value.abs().max()))
        for part in parts:
            torch.testing.assert_close(part[key], value, rtol=1e-10, atol=1e-10 * scale, msg=key)


def _worker(rank: int, body: Callable[[Peers], Any], folder: str, sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=max(sizes), timeout=DEADLINE
    )
    groups = {size: dist.new_group(list(range(size)), timeout=DEADLINE) for size in sizes}
    for size, group in groups.items():
        if rank < size:
            torch.save(body(Peers.of_group(group)), Path(folder, f"{size}-{rank}.pt"))
    dist.barrier()  # a worker stays until all have finished
    dist.destroy_process_group()
