"""The vocabulary between a worker and the owners of an embedding table: frozen requests, and replies of plain numpy arrays.

`docs/decisions/0073` has the protocol. Every request is idempotent and may be sent again, late, or twice. Ids are permanent ids of nodes that the asked
owner owns (`graphmill.cluster.embeddings.rows.owner_of`), distinct and ascending.
"""

from dataclasses import dataclass

import numpy as np

KEEP_BEST, SAVE, PUSH = range(3)  # what a table does at a step, in this order
FIRST_LIFE = 0  # that no owner has: who sends it does not know whom it asks


def event_number(step: int, kind: int) -> int:
    """Of one of the things that a table does at a step: they ascend in the order in which they are done."""
    return 3 * step + kind


@dataclass(frozen=True)
class BeginTable:
    """Be the table of an attempt, as it was saved at a step. An owner that has come further in the same attempt stays as it is."""

    attempt: int
    """Ascends from one start of the workers to the next: what an earlier one sends late is refused."""
    step: int
    folder: str
    """The checkpoint's; empty: at step 0 all rows are initial ones."""


@dataclass(frozen=True)
class ReadRows:
    """Tell rows."""

    attempt: int
    life: int
    """Of the owner's process, as its replies tell it."""
    step: int
    """Steps that the table must have: it is waited for. An asynchronous table tells what it has."""
    is_best: bool
    """Of the best epoch's table."""
    ids: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class PushRows:
    """Take a step's gradients of some of its micro-batches: sums over the positions [start[i], stop[i]), which have the next count[i] rows."""

    attempt: int
    life: int
    step: int
    after: int
    """Number of the last `MarkTable` before it, which must be done first."""
    rate: float
    """The step's learning rate."""
    start: tuple[int, ...]
    stop: tuple[int, ...]
    count: tuple[int, ...]
    ids: np.ndarray  # int64 [sum(count)]
    gradient: np.ndarray  # float32 [sum(count), width]


@dataclass(frozen=True)
class MarkTable:
    """Before a step is applied: keep the weights as the best ones (KEEP_BEST), or write the table to a folder (SAVE)."""

    attempt: int
    life: int
    step: int
    kind: int
    after: int
    """Number of the last one before it."""
    folder: str = ""
    """Of SAVE. Empty: all owners have written their files already."""


@dataclass(frozen=True)
class TableRows:
    """Reply: rows in the order asked for."""

    rows: np.ndarray  # float32 [n, width]


@dataclass(frozen=True)
class TableStatus:
    """Reply: where an owner stands."""

    is_done: bool
    """Whether it has what it was sent; else its attempt or life is another, or it waits for others' gradients."""
    attempt: int
    life: int
    step: int


TableRequest = BeginTable | ReadRows | PushRows | MarkTable
TableReply = TableRows | TableStatus
