"""Adds trainable embeddings of nodes to batches, and sends the gradients of the embeddings back to the table.

A node's row is appended to its features, or replaces missing features. In a typed graph, all node types with rows share one table: a node's id in the table
combines the node's own id with the index of its type. Each step reads the rows of its batches once. The gradients of its micro-batches are added along the
tree of `graphmill.cluster.reduction.position_tree`. Therefore the table is the same for any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from graphmill.samplers.batches.typed_batch import node_tables, with_node_tables

# Shorter than the deadline of collective calls: while one worker waits for an owner, the other workers wait for this worker in a collective call.
_DEADLINE_S = COLLECTIVE_TIMEOUT_S - 60.0


class TableOwners(Protocol):
    """The owners of a table. The object is small, and the driver sends it to every worker."""

    def open(self, config: TableConfig) -> Sequence[AsksOwner]: ...

    @property
    def may_die_alone(self) -> bool: ...


@dataclass(frozen=True)
class OwnersHere:
    """One owner in the worker's own process."""

    may_die_alone = False

    def open(self, config: TableConfig) -> Sequence[AsksOwner]:
        return [OwnerHere(TableOwner(config))]


@dataclass(frozen=True)
class TableSpec:
    """The embedding table of a run: its options, size and owners."""

    options: EmbeddingOptions
    num_nodes: int
    seed: int
    owners: TableOwners = OwnersHere()

    def config(self, num_positions: int) -> TableConfig:
        options = self.options
        is_exact = options.mode == "exact"
        return TableConfig(options.width, options.optimizer, self.seed, self.num_nodes, is_exact, num_positions)


class Embeddings:
    """One rank's access to the embeddings. All ranks make a collective call at the same point; the docstring of a method says if the method is one."""

    def __init__(self, spec: TableSpec, seat: Seat, device: torch.device) -> None:
        self._spec, self._seat, self._device = spec, seat, device
        config = spec.config(seat.num_positions)
        self._owners, self._config = spec.owners.open(config), config
        self._client: TableClient | None = None
        self._ending = ExitStack()
        self._leaves: list[tuple[np.ndarray, Tensor]] = []  # (ids, rows) of each batch of the step

    def begin(self, base: SavedAt) -> None:
        """Opens the table as saved at `base`, for this start of the workers. A collective call."""
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
        """Returns whether the log of requests has reached half of its largest size. Then a checkpoint is due, because the log spans two checkpoints."""
        return self.client.log_bytes > self._spec.options.log_bytes // 2

    def for_step(self, batches: Sequence[Any]) -> list[Any]:
        """Reads the rows of the batches of this rank's positions and adds them to the batches. `push` later sends the gradients of these rows."""
        types = self._spec.options.node_types
        own = [np.unique(_row_ids(batch, types), return_inverse=True) for batch in batches]
        ids = np.unique(np.concatenate([unique for unique, _ in own]))
        rows = self.client.read(ids)
        self._leaves, complete = [], []
        for batch, (unique, inverse) in zip(batches, own, strict=True):
            tensor = torch.from_numpy(rows[np.searchsorted(ids, unique)]).to(self._device).requires_grad_()
            self._leaves.append((unique, tensor))
            complete.append(_with_rows(batch, tensor, inverse, types))
        return complete

    def push(self, rate: float, *, learns: bool) -> None:
        """Ends the step that `for_step` began; call it after the backward pass. `learns` is false if no target was known; then no row changes."""
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
        """Yields the batches with the current rows, or with the rows of the best epoch."""
        return embedded(batches, lambda ids: self.client.read(ids, best=best), self._spec.options.node_types)

    def keep_best(self) -> None:
        """Keeps the current rows as the best rows. Every rank calls this method."""
        self.client.keep_best()

    def save(self, train: Path) -> Path:
        """Writes the table to a folder next to the checkpoints, and returns the folder. Every rank calls this method."""
        folder = train / f".table-{self._attempt}-{self.client.step}"
        self.client.save(str(folder))
        return folder


def embedded(
    batches: Iterable[Any], read: Callable[[np.ndarray], np.ndarray], node_types: tuple[str, ...] = ()
) -> Iterator[Any]:
    """Yields the batches with rows. `read` returns the rows of distinct, ascending ids. In a typed graph only nodes of `node_types` have rows."""
    for batch in batches:
        unique, inverse = np.unique(_row_ids(batch, node_types), return_inverse=True)
        yield _with_rows(batch, torch.from_numpy(read(unique)), inverse, node_types)


def _row_ids(batch: Any, node_types: tuple[str, ...]) -> np.ndarray:
    """int64: the table's id of each node of a batch, one node type after another."""
    tables, names = node_tables(batch), node_types or ("",)
    ids = [tables[name].node_id.cpu().numpy() * len(names) + place for place, name in enumerate(names)]
    return np.concatenate(ids)


def _with_rows(batch: Any, rows: Tensor, inverse: np.ndarray, node_types: tuple[str, ...]) -> Any:
    tables = {name: node_tables(batch)[name] for name in node_types or ("",)}
    device = next(iter(tables.values())).node_id.device
    # `index_select` sums gradients in the order of the batch's nodes, so the sum is the same in every run.
    columns = rows.to(device).index_select(0, torch.from_numpy(inverse).to(device))
    return with_columns(
        batch, dict(zip(tables, columns.split([len(own.node_id) for own in tables.values()]), strict=True))
    )


def with_columns(batch: Any, columns: Mapping[str, Tensor]) -> Any:
    """Returns a copy of the batch. `columns` holds new feature columns by node type; they are appended to the nodes' features."""
    tables = node_tables(batch)
    return with_node_tables(
        batch,
        {
            name: replace(tables[name], x=own if tables[name].x is None else torch.cat([tables[name].x, own], dim=1))
            for name, own in columns.items()
        },
    )
