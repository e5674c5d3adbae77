"""Keeps PyTorch's global random generators to one training or prediction of a process at a time.

Weights, dropout and users' modules draw from them: `nn.Linear`, `nn.init` and `nn.Dropout` take no generator. The trainer seeds them at each step, so a
second training in another thread would change the numbers of both (docs/decisions/0105-one-training-of-a-process-at-a-time.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphmill.core.errors import ConflictError

_HELD = threading.RLock()  # reentrant: a training's callback may predict, and restores the training's state


@contextmanager
def own_random_state(what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Inside the block this thread may seed the generators; afterwards their state is restored. Raises ConflictError if another thread stays
    inside for `wait_s`."""
    if not _HELD.acquire(timeout=wait_s):
        raise ConflictError(
            f"{what}: expected no other training or prediction in this process, found one in another thread; PyTorch's random numbers are the whole "
            "process's: wait for its end, or start this one in a process of its own"
        )
    started = torch.cuda.is_initialized()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else ()):
            yield
    finally:
        if not started and torch.cuda.is_initialized():  # the state with which they would have started
            torch.cuda.manual_seed_all(torch.initial_seed())
        _HELD.release()
