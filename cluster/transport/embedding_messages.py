"""Defines the messages between a worker and the owners of an embedding table. Requests are frozen; replies hold plain numpy arrays.

`docs/decisions/0073` has the protocol. Every request is idempotent and may be sent again, late, or twice. Ids are the permanent ids of nodes, distinct and in
ascending order. A request holds only ids that belong to the receiving owner (`graphmill.cluster.embeddings.rows.owner_of`).
"""

from dataclasses import dataclass

import numpy as np

KEEP_BEST, SAVE, PUSH = range(3)  # the events of a table at a step, in this order
FIRST_LIFE = 0  # no owner has this `life`; it means that the sender does not know the owner's `life` yet


def event_number(step: int, kind: int) -> int:
    """Returns the number of an event of a table at a step. The numbers ascend in the order of events."""
    return 3 * step + kind


@dataclass(frozen=True)
class BeginTable:
    """Request: load the table as saved at a step, for an attempt. If the owner has already passed this step in the same attempt, it does nothing."""

    attempt: int
    """Each start of the workers has a higher number. Late requests of earlier attempts are refused."""
    step: int
    folder: str
    """The checkpoint's folder. Empty: step 0, when all rows have their initial values."""


@dataclass(frozen=True)
class ReadRows:
    """Request: return rows."""

    attempt: int
    life: int
    """Id of the owner's process, which the owner puts into its replies."""
    step: int
    """Number of steps that the table must have applied; the owner waits for them. An asynchronous table returns its current rows."""
    is_best: bool
    """Whether to read the best epoch's rows."""
    ids: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class PushRows:
    """Request: apply gradients of a part of a step's micro-batches. Part i has the next count[i] rows: the sum over the positions [start[i], stop[i])."""

    attempt: int
    life: int
    step: int
    after: int
    """Event number of the last `MarkTable` before this push. That `MarkTable` must be done first."""
    rate: float
    """The learning rate of the step."""
    start: tuple[int, ...]
    stop: tuple[int, ...]
    count: tuple[int, ...]
    ids: np.ndarray  # int64 [sum(count)]
    gradient: np.ndarray  # float32 [sum(count), width]


@dataclass(frozen=True)
class MarkTable:
    """Request: before a step is applied, keep the current weights as the best weights (KEEP_BEST), or write the table to a folder (SAVE)."""

    attempt: int
    life: int
    step: int
    kind: int
    after: int
    """Event number of the previous `MarkTable`."""
    folder: str = ""
    """Folder for SAVE. Empty: all owners have already written their files."""


@dataclass(frozen=True)
class TableRows:
    """Reply: the rows, in the order of the requested ids."""

    rows: np.ndarray  # float32 [n, width]


@dataclass(frozen=True)
class TableStatus:
    """Reply: the state of an owner."""

    is_done: bool
    """Whether the request is done. If not, the owner has another attempt or `life`, or the owner waits for requests of other workers."""
    attempt: int
    life: int
    step: int


TableRequest = BeginTable | ReadRows | PushRows | MarkTable
TableReply = TableRows | TableStatus
