"""PyTorch's global generators, which weights, dropout and modules of a user's own draw from: of one training or prediction of a process at a time.

They cannot be made explicit: `nn.Linear`, `nn.init` and `nn.Dropout` take no generator. The trainer seeds them at each step, so a second training, in
another thread, would change the numbers of both (docs/decisions/0105-one-training-of-a-process-at-a-time.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphmill.core.errors import ConflictError

_HELD = threading.RLock()  # a callback of the training may predict: the block puts back what the training had


@contextmanager
def own_random_state(what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Inside the block the generators are this thread's to seed; afterwards they are as they were. Raises ConflictError where another thread is inside,
    and stays there for `wait_s`."""
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
        if not started and torch.cuda.is_initialized():  # as they would have started
            torch.cuda.manual_seed_all(torch.initial_seed())
        _HELD.release()
