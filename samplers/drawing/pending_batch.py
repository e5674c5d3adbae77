"""A batch between its draws and its rows: which nodes it has is known, what is stored of them is still to be fetched."""

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
    """A batch that lacks its rows."""

    wanted: tuple[Wanted, ...]  # of each type, in the graph's order, distinct nodes; a plain graph has one
    complete: Callable[..., Any]  # the batch, from the rows of each of `wanted`
    num_bytes: int  # that it keeps in memory

    @property
    def node(self) -> np.ndarray:
        """Of a plain graph, the stored ids."""
        return self.wanted[0][1]

    @property
    def columns(self) -> Columns:
        """Of a plain graph, what is fetched of each."""
        return self.wanted[0][2]

    def then(self, change: Callable[[Any], Any]) -> "PendingBatch":
        """The same, with the batch changed at the end."""
        return replace(self, complete=lambda *rows: change(self.complete(*rows)))


@runtime_checkable
class DrawingSampler(Protocol):
    """A sampler that can tell a batch's nodes before their rows are fetched."""

    @property
    def router(self) -> Router | TypedRouter: ...

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """These batches, in one go: with joined requests where the sampler can."""
        ...


def with_rows(drawn: PendingBatch) -> Any:
    """The batch, with its rows fetched: one request to each owner for all types."""
    with stage("fetch"):
        rows = fetch_rows(drawn.wanted)
    return drawn.complete(*rows)


def sample_drawn(sampler: Any, epoch: int, batch: int) -> Any:
    """The batch; the same for the same arguments, always."""
    return with_rows(*sampler.draw(epoch, [batch]))


# The `router` of a sampler that keeps it as `_router`; `sample_drawn` is its `sample`.
own_router = property(attrgetter("_router"))
