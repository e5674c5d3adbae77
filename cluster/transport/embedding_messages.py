"""Messages between a worker and the owners of an embedding table: frozen requests, and replies of plain numpy arrays.

`docs/decisions/0073` has the protocol. Every request is idempotent and may be sent again, late, or twice. Ids are distinct, ascending permanent ids of
nodes that belong to the asked owner (`graphmill.cluster.embeddings.rows.owner_of`).
"""

from dataclasses import dataclass

import numpy as np

KEEP_BEST, SAVE, PUSH = range(3)  # a table's events at a step, in this order
FIRST_LIFE = 0  # no owner has this life: the sender does not know the owner's life yet


def event_number(step: int, kind: int) -> int:
    """The number of a table's event at a step; numbers ascend in the order of events."""
    return 3 * step + kind


@dataclass(frozen=True)
class BeginTable:
    """Load the table as saved at a step, for an attempt. An owner that is further in the same attempt does nothing."""

    attempt: int
    """Ascends from one start of the workers to the next; late requests of earlier attempts are refused."""
    step: int
    folder: str
    """The checkpoint's folder; empty: step 0, at which all rows are initial."""


@dataclass(frozen=True)
class ReadRows:
    """Return rows."""

    attempt: int
    life: int
    """Identifies the owner's process; its replies carry it."""
    step: int
    """Steps that the table must have applied: the owner waits for them. An asynchronous table returns its current rows."""
    is_best: bool
    """Read the best epoch's rows."""
    ids: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class PushRows:
    """Apply gradients of a part of a step's micro-batches: the next count[i] rows are the sum over the positions [start[i], stop[i])."""

    attempt: int
    life: int
    step: int
    after: int
    """Number of the last `MarkTable` before this push, which must be done first."""
    rate: float
    """The step's learning rate."""
    start: tuple[int, ...]
    stop: tuple[int, ...]
    count: tuple[int, ...]
    ids: np.ndarray  # int64 [sum(count)]
    gradient: np.ndarray  # float32 [sum(count), width]


@dataclass(frozen=True)
class MarkTable:
    """Before a step is applied: keep the current weights as the best ones (KEEP_BEST), or write the table to a folder (SAVE)."""

    attempt: int
    life: int
    step: int
    kind: int
    after: int
    """Number of the `MarkTable` before this one."""
    folder: str = ""
    """For SAVE; empty: all owners have already written their files."""


@dataclass(frozen=True)
class TableRows:
    """Reply: rows in the order asked for."""

    rows: np.ndarray  # float32 [n, width]


@dataclass(frozen=True)
class TableStatus:
    """Reply: an owner's state."""

    is_done: bool
    """Whether the request is done. If not, the owner's attempt or life differs, or it waits for gradients of other workers."""
    attempt: int
    life: int
    step: int


TableRequest = BeginTable | ReadRows | PushRows | MarkTable
TableReply = TableRows | TableStatus
