"""What edges in a file call the nodes: rows, whole numbers, or strings; and the rows that they mean."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.importers.tables.edge_file import EdgeEnds, RawEdges
from graphmill.storage.ingestion.string_ids import StringIds


@dataclass(frozen=True)
class NodeIds:
    """The ids of the nodes of one type, by row."""

    whose: str  # for people
    num_nodes: int
    numbers: np.ndarray | None = None  # int64 [num_nodes], ascending
    strings: StringIds | None = None  # neither: an id is a row

    @property
    def is_row(self) -> bool:
        return self.numbers is None and self.strings is None

    def rows(self, ids: EdgeEnds, raw: RawEdges) -> np.ndarray:
        """int64: the rows of an end of some edges. Raises DataError, with the line of the file, for an id that no node has."""
        rows = self.find(ids)
        known = rows >= 0
        if not known.all():
            bad = int(np.argmin(known))
            raise DataError(f"{raw.where(bad)}: expected {self.expected}, got {shown_id(ids[bad])}")
        return rows

    @property
    def expected(self) -> str:
        return f"an id of {self.whose}, 0 to {self.num_nodes - 1}" if self.is_row else f"one of the ids of {self.whose}"

    def find(self, ids: EdgeEnds) -> np.ndarray:
        """int64: the rows of some ids, -1 for one that no node has."""
        if self.strings is not None:
            assert isinstance(ids, pa.LargeStringArray)
            return self.strings.find(ids)
        rows = np.asarray(ids if self.numbers is None else np.searchsorted(self.numbers, ids))
        known = (rows >= 0) & (rows < self.num_nodes)
        if self.numbers is not None:
            known &= self.numbers[np.minimum(rows, self.num_nodes - 1)] == ids
        return rows if known.all() else np.where(known, rows, -1)

    def id_of(self, row: int) -> str:
        """The id of a node, for people."""
        if self.strings is not None:
            return shown_id(self.strings.strings.part(row, row + 1)[0])
        return str(row if self.numbers is None else self.numbers[row])


def shown_id(value: Any) -> str:
    """An id of an edge or a table, for people."""
    return repr(value.as_py()) if isinstance(value, pa.Scalar) else str(value)


def rows_by_key(nodes: NodeIds, key: EdgeEnds, num_rows: int, path: object, *, may_miss: bool = False) -> np.ndarray:
    """int64 [num_nodes]: the row of each node in a file whose rows have these ids; with `may_miss` -1 where a node has none.

    Raises DataError for a row without a node, an id twice, and, without `may_miss`, a node without a row, each with the first and their number.
    """
    if len(key) != num_rows:
        raise DataError(f"{path}: expected an id in each of {num_rows} rows, found {len(key)} ids")
    node = nodes.find(key)
    if (node < 0).any():
        row = int(np.argmax(node < 0))
        hint = "; ids that are no rows are named with --edge-list.ids" if nodes.is_row else ""
        raise DataError(
            f"{path}: row {row + 1} without a node: expected {nodes.expected}, got {shown_id(key[row])}, {int((node < 0).sum())} such rows{hint}"
        )
    rows = np.full(nodes.num_nodes, -1, np.int64)
    rows[node[::-1]] = np.arange(num_rows)[::-1]  # the first row of each id
    twice = rows[node] != np.arange(num_rows)
    if twice.any():
        row = int(np.argmax(twice))
        raise DataError(
            f"{path}: row {row + 1}: expected each id once, got {shown_id(key[row])} as in row {rows[node[row]] + 1}, {int(twice.sum())} such rows"
        )
    if (rows < 0).any() and not may_miss:
        missing = int(np.argmax(rows < 0))
        raise DataError(
            f"{path}: node without a row: expected a row for each of {nodes.num_nodes} nodes, found none for id {nodes.id_of(missing)}, "
            f"{int((rows < 0).sum())} such nodes; add rows"
        )
    return rows


def reordered(column: Any, order: np.ndarray, missing: float = 0, *, lazy: bool = False) -> Any:
    """The rows of a column (or None) in this order, `missing` where it is -1; with `lazy` they are taken when they are read, as of a matrix of features."""
    if column is None:
        return None
    if (there := order >= 0).all():
        return _Reordered(column, order) if lazy else column[order]
    rows = np.full((len(order), *column.shape[1:]), missing, column.dtype)
    rows[there] = column[order[there]]
    return rows


class _Reordered:
    """Rows of a matrix in another order, taken when they are asked for."""

    def __init__(self, matrix: np.ndarray, order: np.ndarray) -> None:
        self._matrix, self._order, self.shape = matrix, order, matrix.shape

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._matrix[self._order[rows]]
