"""Stores the rows of an embedding table that one owner holds: weights, the best epoch's weights, and the optimizer's state.

A row that no step has touched is a pure function of (seed, id, column) and takes no memory. Touched rows are kept in the order of their first use. The
system allocates the pages of their arrays at the first write. A saved table has one set of npy files per owner; any number of owners can load it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphmill.cluster.embeddings.sparse_optimizers import SPARSE_OPTIMIZERS
from graphmill.core.counter_random import derive_key, hash_counters, unit_interval
from graphmill.core.errors import FormatError, StageError

_ROW, _COLUMN, _OWNER = 0x726F77, 0x636F6C, 0x6F776E  # "row", "col", "own": keys of separate random streams
_FEW = 4096  # new ids are merged into the large array when there are at least this many
# Numbers per block of computation. The intermediate results of a block fit into the CPU's cache, and take far less memory than a message.
BLOCK_NUMBERS = 1 << 14


@dataclass(frozen=True)
class TableConfig:
    """Settings that all owners of a table share."""

    width: int
    optimizer: str
    seed: int
    num_nodes: int
    is_exact: bool
    num_positions: int
    """Number of micro-batches of a step."""


@dataclass(frozen=True)
class SparseRows:
    """A subset of a table's rows."""

    ids: np.ndarray  # int64 [n], distinct and ascending
    values: np.ndarray  # float32 [n, width]

    def take(self, where: np.ndarray) -> "SparseRows":
        return SparseRows(self.ids[where], self.values[where])


def add_rows(left: SparseRows, right: SparseRows) -> SparseRows:
    """Adds the rows with equal ids. A row whose id is only in `left` or only in `right` stays as it is."""
    ids = np.union1d(left.ids, right.ids)
    values = np.zeros((len(ids), left.values.shape[1]), np.float32)
    values[np.searchsorted(ids, left.ids)] = left.values
    values[np.searchsorted(ids, right.ids)] += right.values
    return SparseRows(ids, values)


def in_blocks(parts: Sequence[SparseRows], ids: np.ndarray, width: int) -> Iterator[list[SparseRows]]:
    """Cuts all parts at the same ids and yields, block by block, views of the parts. `ids` is the union of the parts' ids; a cut is at the first id of each of
    its blocks (`blocks_of`).
    """
    cuts = ids[[block.start for block in blocks_of(len(ids), width)]]
    places = [np.append(np.searchsorted(part.ids, cuts), len(part.ids)).tolist() for part in parts]
    for i in range(len(cuts)):
        slices = [slice(at[i], at[i + 1]) for at in places]
        yield [SparseRows(part.ids[own], part.values[own]) for part, own in zip(parts, slices, strict=True)]


def blocks_of(count: int, width: int) -> Iterator[slice]:
    """Returns slices of `count` rows; each slice has about `BLOCK_NUMBERS` numbers."""
    most = max(1, BLOCK_NUMBERS // width)
    return (slice(first, min(first + most, count)) for first in range(0, count, most))


def owner_of(ids: np.ndarray, num_owners: int) -> np.ndarray:
    """int64: the owner of each row. A hash of the row's id chooses the owner, because a hash spreads any set of ids evenly."""
    return (hash_counters(_OWNER, ids) % np.uint64(num_owners)).astype(np.int64)


def initial_rows(seed: int, ids: np.ndarray, width: int) -> np.ndarray:
    """float32 [n, width]: uniform in ±√(3 / width), so that a row's expected square is 1."""
    rows, column = np.empty((len(ids), width), np.float32), np.arange(width, dtype=np.uint64)
    for own in blocks_of(len(ids), width):
        row = hash_counters(derive_key(seed, _ROW), ids[own])
        uniform = unit_interval(hash_counters(derive_key(seed, _COLUMN), row[:, None] + column))
        rows[own] = (2 * uniform - 1) * math.sqrt(3 / width)
    return rows


def most_rows(num_nodes: int, num_owners: int) -> int:
    """Returns a bound on the rows of one owner: the mean number of ids per owner plus six standard deviations of that number under the hash."""
    share = num_nodes / num_owners
    return min(num_nodes, math.ceil(share + 6 * math.sqrt(share)) + 8)


def table_bytes(width: int, optimizer: str, num_nodes: int, num_owners: int = 1) -> int:
    """Returns the memory of the owner with the most rows after all rows were touched: weights, best weights, state, and 20 bytes of ids per row."""
    return most_rows(num_nodes, num_owners) * (4 * width * (2 + SPARSE_OPTIMIZERS[optimizer].num_states) + 20)


class RowIndex:
    """Finds the place of an id's row. Most ids are in a large sorted array, and the newest ids in a small sorted array. So adding ids moves few entries."""

    def __init__(self) -> None:
        # (ids, places of their rows): first the large array of most ids, then the small array of the newest ids.
        self._parts = [(np.empty(0, np.int64), np.empty(0, np.int32))] * 2

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n]: the places of the ids' rows; -1 for unknown ids."""
        place = np.full(len(ids), -1, np.int64)
        for block in blocks_of(len(ids), 1):
            asked, of_asked = ids[block], place[block]
            for known, places in self._parts:
                if len(known):
                    at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
                    is_there = known[at] == asked
                    of_asked[is_there] = places[at[is_there]]
        return place

    def add(self, ids: np.ndarray, place: np.ndarray) -> None:
        """Adds ids that are not in the index yet."""
        most, last = self._parts
        order = np.argsort(ids, kind="stable")
        last = _merged(last, (ids[order], place[order].astype(np.int32)))
        if len(last[0]) > max(_FEW, len(most[0]) // 8):
            most, last = _merged(most, last), (last[0][:0], last[1][:0])
        self._parts = [most, last]


def _merged(
    older: tuple[np.ndarray, np.ndarray], newer: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Merges two pairs (ascending ids, places of their rows)."""
    at = np.searchsorted(older[0], newer[0])
    return np.insert(older[0], at, newer[0]), np.insert(older[1], at, newer[1])


class TableShard:
    """One owner's rows."""

    def __init__(self, config: TableConfig, number: int = 0, num_owners: int = 1) -> None:
        self._config, self._number, self._num_owners = config, number, num_owners
        self._optimizer = SPARSE_OPTIMIZERS[config.optimizer]
        most = most_rows(config.num_nodes, num_owners)
        self._index, self._num_rows = RowIndex(), 0
        self._ids = np.zeros(most, np.int64)
        # Zeros take no memory before the first write.
        self._rows, self._best, *self._states = (
            np.zeros((most, config.width), np.float32) for _ in range(2 + self._optimizer.num_states)
        )

    def read(self, ids: np.ndarray, *, best: bool) -> np.ndarray:
        """float32 [n, width]: a copy of these rows."""
        place = self._index.find(ids)
        rows = (self._best if best else self._rows)[place]
        new = place < 0
        if new.any():
            rows[new] = initial_rows(self._config.seed, ids[new], self._config.width)
        return rows

    def update(self, step: int, rate: float, gradient: SparseRows) -> None:
        """Makes one optimizer step on these rows. If a step comes in several parts, call `add` with the ids of the whole step first."""
        place = self._places(gradient.ids)
        changed = [array[place] for array in (self._rows, *self._states)]
        self._optimizer.update(step, rate, gradient.values, *changed)
        for array, values in zip((self._rows, *self._states), changed, strict=True):
            array[place] = values

    def add(self, ids: np.ndarray) -> None:
        """Allocates memory for the rows with these ids, unless they have memory already."""
        self._places(ids)

    def keep_best(self) -> None:
        self._best[: self._num_rows] = self._rows[: self._num_rows]

    def save(self, folder: Path) -> None:
        """Writes this owner's files. Each file appears whole; the checkpoint syncs it later. Raises OSError if writing fails."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in self._arrays().items():
            path = folder / f"table-{self._number:04d}-of-{self._num_owners:04d}.{name}.npy"
            staged = path.with_suffix(".tmp")
            with staged.open("wb") as stream:
                np.save(stream, array[: self._num_rows])
            staged.rename(path)

    def load(self, folder: Path) -> None:
        """Loads this owner's rows of a saved table into a new shard. Raises FormatError if the files are not of this table."""
        for saved in saved_shards(folder):
            own = np.flatnonzero(owner_of(saved.ids, self._num_owners) == self._number)
            self.add(saved.ids[own])
            arrays = [
                (array, saved.array(name, self._config.width))
                for name, array in self._arrays().items()
                if name != "ids"
            ]
            for block in blocks_of(len(own), self._config.width):
                place = self._places(saved.ids[own[block]])
                for array, rows in arrays:
                    array[place] = rows[own[block]]

    def _arrays(self) -> dict[str, np.ndarray]:
        states = {f"state{i}": array for i, array in enumerate(self._states)}
        return {"ids": self._ids, "rows": self._rows, "best": self._best, **states}

    def _places(self, ids: np.ndarray) -> np.ndarray:
        """Returns the places of these rows. Allocates memory for rows that have no memory yet."""
        place = self._index.find(ids)
        new = np.flatnonzero(place < 0)
        if not len(new):
            return place
        first, stop = self._num_rows, self._num_rows + len(new)
        if stop > len(self._rows):
            raise StageError(
                f"embedding table: expected at most {len(self._rows)} of {self._config.num_nodes} rows at owner {self._number}, got {stop}"
            )
        place[new] = np.arange(first, stop)
        self._ids[first:stop] = ids[new]
        for block in blocks_of(len(new), self._config.width):
            rows = initial_rows(self._config.seed, ids[new[block]], self._config.width)
            self._rows[place[new[block]]] = self._best[place[new[block]]] = rows
        self._index.add(ids[new], place[new])
        self._num_rows = stop
        return place


@dataclass(frozen=True)
class SavedShard:
    """The memory-mapped files of one owner."""

    path: Path
    """Returns the path of the file of ids."""
    ids: np.ndarray

    def array(self, name: str, width: int) -> np.ndarray:
        """float32 [n, width]. Raises FormatError for another type or shape."""
        path = self.path.with_name(self.path.name.replace(".ids.", f".{name}."))
        array = _mapped(path)
        if array.dtype != np.float32 or array.shape != (len(self.ids), width):
            raise FormatError(
                f"{path}: expected float32 [{len(self.ids)}, {width}], got {array.dtype} {list(array.shape)}; another table's"
            )
        return array


def saved_shards(folder: Path) -> Iterator[SavedShard]:
    """Opens all owners' files of a saved table, in order. Raises FormatError if files are missing or do not belong to a table."""
    paths = sorted(folder.glob("table-*-of-*.ids.npy"))
    expected = int(paths[0].name.split(".")[0].rpartition("-")[2]) if paths else 1
    if len(paths) != expected:
        raise FormatError(f"{folder}: expected the files of {expected} owners of a table, got {len(paths)}")
    for path in paths:
        ids = _mapped(path)
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise FormatError(f"{path}: expected int64 [n], got {ids.dtype} {list(ids.shape)}")
        yield SavedShard(path, ids)


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{path}: expected an npy array, got none ({' '.join(str(error).split())})") from None


class SavedTable:
    """A saved table, opened for reading. Its rows are memory-mapped."""

    def __init__(
        self, folder: Path | None, width: int, seed: int, column: str = "best", node_types: tuple[str, ...] = ()
    ) -> None:
        """`folder`: None if no table is saved yet; `column`: "best" (best epoch) or "rows" (newest step); `node_types`: a typed graph's types with rows.

        Raises FormatError if the folder has no table.
        """
        self._width, self._seed, self._column, self.node_types = width, seed, column, node_types
        shards = () if folder is None else saved_shards(folder)
        self._shards = [(shard, np.argsort(shard.ids)) for shard in shards if len(shard.ids)]

    def read(self, ids: np.ndarray) -> np.ndarray:
        """float32 [n, width]"""
        rows = initial_rows(self._seed, ids, self._width)
        for shard, order in self._shards:
            at = np.searchsorted(shard.ids, ids, sorter=order)
            place = order[np.minimum(at, len(order) - 1)]
            is_there = shard.ids[place] == ids
            rows[is_there] = shard.array(self._column, self._width)[place[is_there]]
        return rows
