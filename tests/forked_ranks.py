"""Starts real processes for tests of several ranks. They are forked from a server process that has imported torch and the trainer, so they start quickly."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing


def run_ranks(body: Callable[..., None], args: tuple[Any, ...], num_ranks: int) -> None:
    """Runs `body(rank, *args)` in `num_ranks` processes and waits until all have ended. If a process fails, raises the first error."""
    multiprocessing.set_forkserver_preload(
        ["torch.distributed", "graphmill.cluster.training.train_loop"]
    )  # imported before the first process starts
    torch.multiprocessing.start_processes(body, args=args, nprocs=num_ranks, join=True, start_method="forkserver")
