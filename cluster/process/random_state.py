"""Reserves PyTorch's global random generators of a process for one training or prediction at a time.

Initial weights, dropout and users' modules draw from these generators, because `nn.Linear`, `nn.init` and `nn.Dropout` accept no other generator. The
trainer seeds the generators at each step. Therefore a second training in another thread would change the random numbers of both trainings
(docs/decisions/0105-one-training-of-a-process-at-a-time.md).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphmill.core.errors import ConflictError

# Reentrant: a callback of a training may predict; afterwards the training's state is restored
_HELD = threading.RLock()


@contextmanager
def own_random_state(what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Lets this thread seed the generators inside the block, and restores their state afterwards. Raises ConflictError if another thread keeps the
    generators for longer than `wait_s`."""
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
        # CUDA was initialised inside the block: its generators get the state that they would have had before the block
        if not started and torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.initial_seed())
        _HELD.release()
