"""The interface between the training loop and its launcher: a small session for each rank, from one of two launchers.

    cluster/training/ray_train.py      Ray Train, for each of its workers
    cluster/training/one_process.py    this process, which is the only worker; Ray is not imported

The loop, its numbers and its files are the same with both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.process.outcome import Outcome
from graphmill.cluster.runs.records import AttemptRecords, Record, Recorder
from graphmill.cluster.training.train_spec import TrainSpec

Register = Callable[[int, str, Callable[[], None] | None], None]


@dataclass(frozen=True)
class TrainSession:
    """One rank's session."""

    rank: int
    world_size: int
    device: torch.device
    host: str  # for messages
    checkpoints: Checkpoints
    reporter: Recorder
    register: Register
    """register(next epoch, name, write) adds a checkpoint; every rank calls it. Only rank 0 has a `write` function: it writes the checkpoint, in a
    thread, and its error ends the attempt."""


class Launcher(Protocol):
    """Starts a run's workers, for each attempt."""

    @property
    def workers(self) -> WorkerOptions:
        """The resolved options."""
        ...

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """One start of the workers, until they end."""
        ...

    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None]
    ) -> AbstractContextManager[Callable[[], str]]:
        """Inside the block calls `say` with hosts that do not answer, and with what an attempt waits for. Yields a function that returns the lost
        hosts, for messages; empty if there are none. Raises ClusterLostError, by `end_now`, if the cluster's head is lost."""
        ...

    def watch(self, record: Record) -> None:
        """Receives each record of rank 0."""
        ...
