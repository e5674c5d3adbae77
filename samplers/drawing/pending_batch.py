"""A batch between its draws and its rows: its nodes are known, their rows are still to be fetched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.samplers.access.router import Columns, Router, Wanted, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.vocabulary.stage_clock import stage


@dataclass(frozen=True)
class PendingBatch:
    """A batch without its rows."""

    wanted: tuple[Wanted, ...]  # distinct nodes of each type, in the graph's order
    complete: Callable[..., Any]  # makes the batch from the rows of each entry of `wanted`
    num_bytes: int  # in memory

    @property
    def node(self) -> np.ndarray:
        """Stored ids of the nodes, in a plain graph."""
        return self.wanted[0][1]

    @property
    def columns(self) -> Columns:
        """Columns to fetch, in a plain graph."""
        return self.wanted[0][2]

    def then(self, change: Callable[[Any], Any]) -> "PendingBatch":
        """This batch with `change` applied when it is complete."""
        return replace(self, complete=lambda *rows: change(self.complete(*rows)))


@runtime_checkable
class DrawingSampler(Protocol):
    """A sampler that knows a batch's nodes before their rows are fetched."""

    @property
    def router(self) -> Router | TypedRouter: ...

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """These batches, drawn with joined requests if the sampler can join them."""
        ...


def with_rows(drawn: PendingBatch) -> Any:
    """The batch with its rows, fetched with one request per owner for all types."""
    with stage("fetch"):
        rows = fetch_rows(drawn.wanted)
    return drawn.complete(*rows)


def sample_drawn(sampler: Any, epoch: int, batch: int) -> Any:
    """`Sampler.sample` of a sampler that draws pending batches."""
    return with_rows(*sampler.draw(epoch, [batch]))


# The property `router` of a sampler that keeps its router as `_router`.
own_router = property(attrgetter("_router"))
