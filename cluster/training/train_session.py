"""Defines the interface between the training loop and its launcher. A launcher gives each rank a small session. There are two launchers:

    cluster/training/ray_train.py      Ray Train, which starts a process for each worker
    cluster/training/one_process.py    this process, which is the only worker; Ray is not imported

The loop, its numbers and its files are the same with both launchers.
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
    """The objects that one rank needs for training."""

    rank: int
    world_size: int
    device: torch.device
    host: str  # for messages
    checkpoints: Checkpoints
    reporter: Recorder
    register: Register
    """register(next epoch, name, write) adds a checkpoint. Every rank calls it. Only rank 0 passes a function `write`, which writes the checkpoint in a
    thread. An error in `write` ends the attempt."""
    is_leaving: Callable[[], bool] = lambda: False
    """Whether this rank's process was asked to leave. All ranks then save at the next step and end."""
    node: str = ""
    """Ray's id of the rank's node; empty without Ray."""


class Launcher(Protocol):
    """Starts a run's workers for each attempt."""

    @property
    def workers(self) -> WorkerOptions:
        """The resolved options of the workers."""
        ...

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """Starts the workers once, waits until they end, and returns the outcome."""
        ...

    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None], leave: Callable[[str, str], None]
    ) -> AbstractContextManager[Callable[[], str]]:
        """During the block calls `say` with messages about hosts that do not answer and about resources for which an attempt waits. Calls `leave` with the
        node's id and the name of a host of the attempt whose loss is announced. Yields a function that returns the lost hosts as text for messages (empty: no
        lost host). If the cluster's head is lost, calls `end_now` and raises ClusterLostError."""
        ...

    def watch(self, record: Record) -> None:
        """Gets each record of rank 0."""
        ...

    def uses(self, node: str) -> bool:
        """Returns whether the current attempt has workers or partition servers on the node of this id. Its workers are known from its start record on."""
        ...
