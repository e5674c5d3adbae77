"""A batch whose nodes are drawn, but whose rows are not fetched yet."""

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
    """A batch whose rows are not fetched."""

    wanted: tuple[Wanted, ...]  # distinct nodes of each type, in the graph's order
    complete: Callable[..., Any]  # makes the batch from the rows of each entry of `wanted`
    num_bytes: int  # size of this object in memory

    @property
    def node(self) -> np.ndarray:
        """The stored ids of the batch's nodes. Only for a plain graph."""
        return self.wanted[0][1]

    @property
    def columns(self) -> Columns:
        """The columns to fetch. Only for a plain graph."""
        return self.wanted[0][2]

    def then(self, change: Callable[[Any], Any]) -> "PendingBatch":
        """Returns this batch such that `change` is applied to the complete batch."""
        return replace(self, complete=lambda *rows: change(self.complete(*rows)))


@runtime_checkable
class DrawingSampler(Protocol):
    """A sampler that knows a batch's nodes before their rows are fetched."""

    @property
    def router(self) -> Router | TypedRouter: ...

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Draws these batches. Joins their requests if the sampler can."""
        ...


def with_rows(drawn: PendingBatch) -> Any:
    """Fetches the batch's rows and returns the complete batch. Each owner gets one request for all types."""
    with stage("fetch"):
        rows = fetch_rows(drawn.wanted)
    return drawn.complete(*rows)


def sample_drawn(sampler: Any, epoch: int, batch: int) -> Any:
    """Implements `Sampler.sample` for a sampler that draws pending batches."""
    return with_rows(*sampler.draw(epoch, [batch]))


# The property `router` for a sampler that stores its router as `_router`.
own_router = property(attrgetter("_router"))
