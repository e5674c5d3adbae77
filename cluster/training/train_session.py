"""What the training loop knows of where it runs: a small session, which either of two provides.

    cluster/training/ray_train.py      Ray Train, to each of its workers
    cluster/training/one_process.py    this process itself, which is then the one worker; Ray is not even imported

The loop is the same, and so are its numbers and the files that it leaves.
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
    """One rank's."""

    rank: int
    world_size: int
    device: torch.device
    host: str  # that it runs on, for people
    checkpoints: Checkpoints
    reporter: Recorder
    register: Register
    """A checkpoint of this name is among them, by which training goes on at this epoch: every rank says it. The function is rank 0's and writes the
    checkpoint; it is called in a thread. What it raises ends the attempt."""


class Launcher(Protocol):
    """Starts a run's workers, as often as the driver asks."""

    @property
    def workers(self) -> WorkerOptions:
        """Resolved."""
        ...

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """One start of the workers, which ends as they do."""
        ...

    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None]
    ) -> AbstractContextManager[Callable[[], str]]:
        """Inside the block `say` is told of hosts that do not answer, and what an attempt waits for; yields what names the hosts that are
        lost, for people, and is empty where none is. Raises ClusterLostError, by `end_now`, where the cluster's head is lost."""
        ...

    def watch(self, record: Record) -> None:
        """Is shown what rank 0 records."""
        ...
