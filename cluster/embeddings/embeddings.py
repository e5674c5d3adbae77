"""A trainable embedding of nodes beside the model: rows of a table are columns of a batch, and what the loss says of them goes back to the table.

A batch's rows stand beside its features, or in their place. Each step reads the rows of its own batches once, at the table of that step, and sends
the gradients of its micro-batches along the tree of `graphmill.cluster.reduction.position_tree`, so that the table is the same for any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graphmill.cluster.embeddings.client import AsksOwner, OwnerHere, SavedAt, TableClient, next_attempt
from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import SparseRows, TableConfig, add_rows
from graphmill.cluster.metrics.class_scores import gather_objects
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S, EmbeddingOptions
from graphmill.cluster.reduction.position_tree import Seat, leaf
from graphmill.core.daemon_threads import beside

# Shorter than the wait of a worker for the others, which wait for the one that waits for an owner.
_DEADLINE_S = COLLECTIVE_TIMEOUT_S - 60.0


class TableOwners(Protocol):
    """Where a table's owners are: a small value that the driver sends to every worker."""

    def open(self, config: TableConfig) -> Sequence[AsksOwner]: ...

    @property
    def may_die_alone(self) -> bool: ...


@dataclass(frozen=True)
class OwnersHere:
    """In the worker's own process."""

    may_die_alone = False

    def open(self, config: TableConfig) -> Sequence[AsksOwner]:
        return [OwnerHere(TableOwner(config))]


@dataclass(frozen=True)
class TableSpec:
    """The table of a run."""

    options: EmbeddingOptions
    num_nodes: int
    seed: int
    owners: TableOwners = OwnersHere()

    def config(self, num_positions: int) -> TableConfig:
        options = self.options
        is_exact = options.mode == "exact"
        return TableConfig(options.width, options.optimizer, self.seed, self.num_nodes, is_exact, num_positions)


class Embeddings:
    """One rank's part. What every rank calls at the same place is said to be a collective call."""

    def __init__(self, spec: TableSpec, seat: Seat, device: torch.device) -> None:
        self._spec, self._seat, self._device = spec, seat, device
        config = spec.config(seat.num_positions)
        self._owners, self._config = spec.owners.open(config), config
        self._client: TableClient | None = None
        self._ending = ExitStack()
        self._leaves: list[tuple[np.ndarray, Tensor]] = []  # of the step's batches: ids, and their rows

    def begin(self, base: SavedAt) -> None:
        """The table as it was saved there, for this start of the workers: a collective call."""
        attempt = gather_objects(next_attempt(self._owners) if self._seat.rank == 0 else None)[0]
        may_die = self._spec.owners.may_die_alone
        self._client = TableClient(self._owners, self._config, attempt, base, _DEADLINE_S, keeps_log=may_die)
        self._attempt = attempt
        if may_die:
            self._ending.enter_context(beside(self._client.watch, "table", end_s=0))

    def close(self) -> None:
        self._ending.close()

    @property
    def client(self) -> TableClient:
        assert self._client is not None, "begin first"
        return self._client

    @property
    def is_log_full(self) -> bool:
        """Whether a checkpoint should let go of what is kept for owners that die: two stretches of it are kept."""
        return self.client.log_bytes > self._spec.options.log_bytes // 2

    def for_step(self, batches: Sequence[Any]) -> list[Any]:
        """The batches of this rank's positions with their rows, of which `push` will send the gradients."""
        own = [np.unique(batch.node_id.cpu().numpy(), return_inverse=True) for batch in batches]
        ids = np.unique(np.concatenate([unique for unique, _ in own]))
        rows = self.client.read(ids)
        self._leaves, complete = [], []
        for batch, (unique, inverse) in zip(batches, own, strict=True):
            tensor = torch.from_numpy(rows[np.searchsorted(ids, unique)]).to(self._device).requires_grad_()
            self._leaves.append((unique, tensor))
            complete.append(_with_rows(batch, tensor, inverse))
        return complete

    def push(self, rate: float, *, learns: bool) -> None:
        """Ends the step that `for_step` began, after the backward pass. `learns`: no: no target was known, and no row changes."""
        leaves, self._leaves = self._leaves, []
        nodes = []
        for position, (ids, tensor) in zip(self._seat.positions, leaves, strict=True):
            if not learns or tensor.grad is None:
                ids, values = ids[:0], np.empty((0, self._config.width), np.float32)
            else:
                values = tensor.grad.cpu().numpy()
            nodes.append(leaf(position, SparseRows(ids, values)))
        self.client.push(rate * self._spec.options.learning_rate, self._seat.fold(nodes, add_rows))

    def evaluated(self, batches: Iterable[Any], *, best: bool) -> Iterator[Any]:
        """Batches with their rows as they are now, or as they were in the best epoch."""
        return embedded(batches, lambda ids: self.client.read(ids, best=best))

    def keep_best(self) -> None:
        """The rows of now are the best: every rank says it."""
        self.client.keep_best()

    def save(self, train: Path) -> Path:
        """Writes the table to a folder beside the checkpoints, and returns it: every rank says it."""
        folder = train / f".table-{self._attempt}-{self.client.step}"
        self.client.save(str(folder))
        return folder


def embedded(batches: Iterable[Any], read: Callable[[np.ndarray], np.ndarray]) -> Iterator[Any]:
    """Batches with the rows that `read` gives for distinct ids, ascending."""
    for batch in batches:
        unique, inverse = np.unique(batch.node_id.cpu().numpy(), return_inverse=True)
        yield _with_rows(batch, torch.from_numpy(read(unique)).to(batch.node_id.device), inverse)


def _with_rows(batch: Any, rows: Tensor, inverse: np.ndarray) -> Any:
    # `index_select`, whose gradient is a sum in the order of the batch's nodes.
    columns = rows.index_select(0, torch.from_numpy(inverse).to(rows.device))
    return replace(batch, x=columns if batch.x is None else torch.cat([batch.x, columns], dim=1))
