"""Real processes for tests of several ranks. They are forked from one server that has imported torch and the trainer, so each starts at once."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing


def run_ranks(body: Callable[..., None], args: tuple[Any, ...], num_ranks: int) -> None:
    """Runs `body(rank, *args)` in `num_ranks` processes until all have ended. Raises the first error of a process."""
    multiprocessing.set_forkserver_preload(
        ["torch.distributed", "graphmill.cluster.training.train_loop"]
    )  # before the first process
    torch.multiprocessing.start_processes(body, args=args, nprocs=num_ranks, join=True, start_method="forkserver")
