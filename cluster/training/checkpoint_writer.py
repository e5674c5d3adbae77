"""When a worker's checkpoints are due, and how they are written: rank 0 copies what training will change, and a thread writes the copy.

Whether one is due within an epoch is rank 0's to say, by its clock; it tells the others with the step's sums
(`CheckpointRequest`). Which steps that happens after changes nothing that is computed.
"""

import threading
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

import torch

from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, moments_of
from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S
from graphmill.cluster.process.outcome import located
from graphmill.cluster.training.train_session import Register
from graphmill.core.errors import StageError

# Longest wait for the checkpoint before this one. The other ranks wait for rank 0 meanwhile, and would give up first.
_WRITE_TIMEOUT_S = COLLECTIVE_TIMEOUT_S - 60.0


class CheckpointRequest(IntEnum):
    """What rank 0 asks all ranks to do after a step."""

    NONE = 0
    SAVE = 1
    SAVE_AND_STOP = 2  # save, and end


class CheckpointWriter:
    """One rank's part; every rank calls `save` after the same steps."""

    def __init__(self, checkpoints: Checkpoints, rank: int, minutes: float | None, register: Register) -> None:
        self._checkpoints, self._rank, self._register = checkpoints, rank, register
        self._period_s = None if minutes is None else 60 * minutes
        self._last = time.monotonic()
        self._idle = threading.Event()
        self._idle.set()
        self._stall_s = 0.0

    def is_due(self) -> bool:
        """Whether the period is over; not while the last one is being written."""
        late = self._period_s is not None and time.monotonic() - self._last >= self._period_s
        return late and self.is_idle

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._idle.is_set()

    def wait(self) -> None:
        """Until the last checkpoint is written. Raises StageError where it never is."""
        if not self._idle.wait(_WRITE_TIMEOUT_S):
            raise StageError(f"{self._checkpoints.url}: a checkpoint is not written after {_WRITE_TIMEOUT_S:g} s")

    def take_stall_s(self) -> float:
        """Seconds that training has stood still for checkpoints since the last call."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def save(
        self,
        state: TrainState,
        model: torch.nn.Module,
        best: Mapping[str, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        average: torch.nn.Module | None,
        flush: Callable[[], None],
        table: Path | None = None,
    ) -> str:
        """Reports a checkpoint, and returns its name, which is rank 0's to choose: a collective call, which returns when rank 0 has copied what
        training changes. `table`: the folder of an embedding table's files.

        `flush` puts on the disk what must be there before the checkpoint may be used; the writing thread calls it first.

        What goes wrong in the writing thread ends the run's attempt. Raises StageError where the last one never ends.
        """
        start = time.monotonic()
        name, write = state.name, None
        if self._rank == 0:
            self.wait()
            name = self._checkpoints.unused_name(state.name)
            snapshot = Snapshot(
                state,
                model=_copied(model.state_dict()),
                best=best,  # never changed, only replaced
                moments=_copied(moments_of(optimizer)),
                average=None if average is None else _copied(average.state_dict()),
                table=table,
            )
            write = self._begin(name, snapshot, flush)
        self._register(state.next_epoch, name, write)
        self._last = time.monotonic()
        self._stall_s += self._last - start
        return name

    def _begin(self, name: str, snapshot: Snapshot, flush: Callable[[], None]) -> Callable[[], None]:
        """What writes the checkpoint; until it has been called, another is not begun."""
        self._idle.clear()

        def write() -> None:
            try:
                with located("checkpoint", f"rank {self._rank}"):
                    flush()
                    self._checkpoints.save(name, snapshot)
            finally:
                self._idle.set()

        return write


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On the CPU, whatever happens to them there."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
