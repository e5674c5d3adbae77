"""Decides when checkpoints are due, and writes them. Rank 0 copies the state that training will change, and a thread writes the copy.

Within an epoch rank 0 decides by its clock, and sends its decision to the other ranks with the sums of the step (`CheckpointRequest`). The result of training
does not depend on the steps after which checkpoints are saved.
"""

import threading
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from pathlib import Path

import torch

from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, moments_of
from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S
from graphmill.cluster.process.outcome import located
from graphmill.cluster.training.train_session import Register
from graphmill.core.errors import StageError

# Longest wait for the previous checkpoint. It is shorter than the longest wait of the other ranks for rank 0.
_WRITE_TIMEOUT_S = COLLECTIVE_TIMEOUT_S - 60.0


class CheckpointRequest(IntEnum):
    """A rank's request to all ranks after a step. Rank 0 makes requests by its clock and for the driver. Any rank asks to stop if its process must leave."""

    NONE = 0
    SAVE = 1
    SAVE_AND_STOP = 2  # save, and end

    @classmethod
    def of(cls, total: float) -> "CheckpointRequest":
        """Returns the strongest request in the sum of all ranks' `shares`."""
        return cls.NONE if not total else cls.SAVE if total < _STOP_SHARE else cls.SAVE_AND_STOP

    @property
    def share(self) -> float:
        """The number that a rank adds for its request."""
        return _STOP_SHARE if self == CheckpointRequest.SAVE_AND_STOP else float(self)


_STOP_SHARE = 2.0  # more than the sum of requests to save, which rank 0 alone makes


class CheckpointWriter:
    """Writes one rank's part of a checkpoint. Every rank calls `save` after the same steps."""

    def __init__(self, checkpoints: Checkpoints, rank: int, minutes: float | None, register: Register) -> None:
        self._checkpoints, self._rank, self._register = checkpoints, rank, register
        self._period_s = None if minutes is None else 60 * minutes
        self._last = time.monotonic()
        self._idle = threading.Event()
        self._idle.set()
        self._stall_s = 0.0

    def is_due(self) -> bool:
        """Returns whether the period is over and no checkpoint is being written."""
        late = self._period_s is not None and time.monotonic() - self._last >= self._period_s
        return late and self.is_idle

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._idle.is_set()

    def wait(self) -> None:
        """Waits until the last checkpoint is written. Raises StageError if it is not written in time."""
        if not self._idle.wait(_WRITE_TIMEOUT_S):
            raise StageError(f"{self._checkpoints.store.url}: a checkpoint is not written after {_WRITE_TIMEOUT_S:g} s")

    def take_stall_s(self) -> float:
        """Returns the seconds that training has waited for checkpoints since the last call."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def save(
        self,
        state: TrainState,
        model: torch.nn.Module,
        best: Mapping[str, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        average: torch.nn.Module | None,
        settle: Callable[[str, str], None],
        table: Path | None = None,
    ) -> str:
        """Registers a checkpoint and returns the name that rank 0 chose. A collective call, which returns when rank 0 has copied the state.

        `settle(name, digest of state.json)` writes the records that must be on the disk before the checkpoint may be used; the writing thread calls it.
        `table`: the folder of an embedding table's files. An error in the writing thread ends the attempt. Raises StageError if the previous checkpoint is not written in time.
        """
        start = time.monotonic()
        name, write = state.name, None
        if self._rank == 0:
            self.wait()
            name = self._checkpoints.unused_name(state.name)
            snapshot = Snapshot(
                state,
                model=_copied(model.state_dict()),
                best=best,  # not copied, because these tensors are never changed, only replaced
                moments=_copied(moments_of(optimizer)),
                average=None if average is None else _copied(average.state_dict()),
                table=table,
            )
            write = self._begin(name, snapshot, settle)
        self._register(state.next_epoch, name, write)
        self._last = time.monotonic()
        self._stall_s += self._last - start
        return name

    def _begin(self, name: str, snapshot: Snapshot, settle: Callable[[str, str], None]) -> Callable[[], None]:
        """Returns the function that writes the checkpoint. The next checkpoint waits until this function has ended."""
        self._idle.clear()

        def write() -> None:
            try:
                with located("checkpoint", f"rank {self._rank}"):
                    self._checkpoints.save(name, snapshot, partial(settle, name))
            finally:
                self._idle.set()

        return write


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies the tensors to the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
