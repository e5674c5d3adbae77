"""A batch between its draws and its rows: which nodes it has is known, what is stored of them is still to be fetched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.samplers.access.router import Columns, Router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.vocabulary.messages import NodeRows
from graphmill.samplers.vocabulary.stage_clock import stage


@dataclass(frozen=True)
class PendingBatch:
    """A minibatch that lacks its rows."""

    node: np.ndarray  # [n], stored ids, distinct
    columns: Columns
    complete: Callable[[NodeRows], MiniBatch]  # from the rows of `node`, in its order
    num_bytes: int  # that it keeps in memory

    def then(self, change: Callable[[MiniBatch], MiniBatch]) -> "PendingBatch":
        """The same, with the minibatch changed at the end."""
        return replace(self, complete=lambda rows: change(self.complete(rows)))


@runtime_checkable
class DrawingSampler(Protocol):
    """A sampler that can tell a batch's nodes before their rows are fetched."""

    @property
    def router(self) -> Router: ...

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """These batches, in one go: with joined requests where the sampler can."""
        ...


def with_rows(router: Router, drawn: PendingBatch) -> MiniBatch:
    """The minibatch, with its rows fetched in one question."""
    with stage("fetch"):
        rows = router.fetch(drawn.node, **vars(drawn.columns))
    return drawn.complete(rows)


def sample_drawn(sampler: Any, epoch: int, batch: int) -> MiniBatch:
    """The minibatch; the same for the same arguments, always."""
    return with_rows(sampler.router, *sampler.draw(epoch, [batch]))


# The `router` of a sampler that keeps it as `_router`; `sample_drawn` is its `sample`.
own_router = property(attrgetter("_router"))
