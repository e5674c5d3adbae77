"""What edges in a file call the nodes: rows, whole numbers, or strings; and the rows that they mean."""

from collections.abc import Sequence
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
        if self.strings is not None:
            assert isinstance(ids, pa.LargeStringArray)
            rows = self.strings.find(ids)
            known = rows >= 0
        else:
            assert isinstance(ids, np.ndarray)
            rows = ids if self.numbers is None else np.searchsorted(self.numbers, ids)
            known = rows < self.num_nodes
            if self.numbers is not None:
                known &= self.numbers[np.minimum(rows, self.num_nodes - 1)] == ids
        if not known.all():
            bad = int(np.argmin(known))
            got = int(ids[bad]) if isinstance(ids, np.ndarray) else repr(ids[bad].as_py())
            expected = (
                f"an id of {self.whose}, 0 to {self.num_nodes - 1}"
                if self.is_row
                else f"one of the ids of {self.whose}"
            )
            raise DataError(f"{raw.where(bad)}: expected {expected}, got {got}")
        return rows


def in_ascending_id(ids: np.ndarray, columns: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """The ids ascending, and columns (or None) in their order; matrices of features are taken from when they are read."""
    if not np.any(np.diff(ids) < 0):
        return ids, list(columns)
    order = np.argsort(ids)
    return ids[order], [_reordered(column, order) for column in columns]


def _reordered(column: Any, order: np.ndarray) -> Any:
    if column is None:
        return None
    return column[order] if column.ndim == 1 or column.dtype == np.int8 else _Reordered(column, order)


class _Reordered:
    """Rows of a matrix in another order, taken when they are asked for."""

    def __init__(self, matrix: np.ndarray, order: np.ndarray) -> None:
        self._matrix, self._order, self.shape = matrix, order, matrix.shape

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._matrix[self._order[rows]]
