"""Maps the ids that edges in files use for nodes (row numbers, whole numbers or strings) to rows, and puts the nodes' columns in the order of these ids."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.format.source import SPLIT_TRAIN, FeatureColumn, NodeChunk, SourceInfo
from graphmill.storage.importers.columns.feature_table import FeatureTable, Learnt
from graphmill.storage.importers.columns.role_table import feature_became, label_became, split_became
from graphmill.storage.importers.memory.array_graph import node_chunks
from graphmill.storage.importers.tables.edge_file import EdgeEnds, RawEdges
from graphmill.storage.ingestion.string_ids import StringIds
from graphmill.storage.splits.drawn_split import split_of_nodes
from graphmill.storage.splits.split_options import SplitOptions


@dataclass(frozen=True)
class NodeIds:
    """The ids of the nodes of one type, by row."""

    whose: str  # names the nodes in messages
    num_nodes: int
    numbers: np.ndarray | None = None  # int64 [num_nodes], ascending
    strings: StringIds | None = None  # if there are neither numbers nor strings, an id is a row number

    @property
    def is_row(self) -> bool:
        return self.numbers is None and self.strings is None

    def rows(self, ids: EdgeEnds, raw: RawEdges) -> np.ndarray:
        """Returns the rows (int64) of the nodes at one end of the edges. Raises DataError, with the line of the file, for an id that no node has."""
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
        """Returns the row of each id (int64), -1 for an id that no node has."""
        if self.strings is not None:
            assert isinstance(ids, pa.LargeStringArray)
            return self.strings.find(ids)
        rows = np.asarray(ids if self.numbers is None else np.searchsorted(self.numbers, ids))
        known = (rows >= 0) & (rows < self.num_nodes)
        if self.numbers is not None:
            known &= self.numbers[np.minimum(rows, self.num_nodes - 1)] == ids
        return rows if known.all() else np.where(known, rows, -1)

    def id_of(self, row: int) -> str:
        """Returns the id of the node in this row, for messages."""
        if self.strings is not None:
            return shown_id(self.strings.strings.part(row, row + 1)[0])
        return str(row if self.numbers is None else self.numbers[row])


def shown_id(value: Any) -> str:
    """Formats an id, from an edge or a table, for messages."""
    return repr(value.as_py()) if isinstance(value, pa.Scalar) else str(value)


def ascending(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the ids in ascending order, and the row of each id. The second is None if the rows already have this order."""
    if not np.any(np.diff(numbers) < 0):
        return numbers, None
    order = np.argsort(numbers)
    return numbers[order], order


def rows_by_key(nodes: NodeIds, key: EdgeEnds, num_rows: int, path: object, *, may_miss: bool = False) -> np.ndarray:
    """Returns each node's row in a file (int64 [num_nodes]). `key`: the ids of the file's rows. With `may_miss`, a node may have no row, and gets -1.

    Raises DataError for a row without a node, for an id that occurs twice, and, unless `may_miss`, for a node without a row. The message has the first case
    and the number of cases.
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
    rows[node[::-1]] = np.arange(num_rows)[::-1]  # if an id has several rows, the first row stays
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


def _reordered(column: np.ndarray, order: np.ndarray | None, missing: float) -> np.ndarray:
    """Returns the rows of a column in this order (None: unchanged). Where the order has -1, the result has `missing`."""
    if order is None or (known := order >= 0).all():
        return column if order is None else column[order]
    rows = np.full((len(order), *column.shape[1:]), missing, column.dtype)
    rows[known] = column[order[known]]
    return rows


class _Reordered:
    """A matrix with its rows in another order. Rows are copied only when they are read."""

    def __init__(self, matrix: np.ndarray, order: np.ndarray) -> None:
        self._matrix, self._order, self.shape = matrix, order, matrix.shape

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._matrix[self._order[rows]]


@dataclass(frozen=True)
class OrderedNodes:
    """A `NodeSource`: the nodes of one type, in the order of their ids. The files of their columns may have other orders."""

    name: str
    ids: NodeIds
    rows: Mapping[
        str, Any
    ]  # columns by role, in the order of their file: features (an array or a FeatureTable), labels, splits, node_times
    orders: Mapping[
        str, np.ndarray | None
    ]  # for each role, the file's row of each node (-1: no row); None: the file already has the order of the nodes
    class_names: tuple[str, ...]
    earlier: Learnt  # what an earlier graph stores about the columns of features; empty: it is learnt from these nodes
    most_categories: int
    embedding_columns: tuple[str, ...]
    split: SplitOptions | None = None  # options of a split that replaces the split in the file

    @cached_property
    def _others(self) -> dict[str, np.ndarray]:
        """Labels, splits and times, by role, in the order of the nodes."""
        columns = {}
        for role, rows in self.rows.items():
            if role != "features":
                missing = 0 if role == "splits" else np.nan if rows.dtype.kind == "f" else -1
                columns[role] = _reordered(rows, self.orders[role], missing)
        if self.split:
            label, time = columns.get("labels"), columns.get("node_times")
            columns["splits"] = split_of_nodes(self.name, self.split, self.ids.num_nodes, label, time)[:, None]
        return columns

    @cached_property
    def learnt(self) -> tuple[FeatureColumn, ...]:
        """How the columns of a table of features become features. Taken from the earlier graph if there is one, else decided from the training rows."""
        features, splits, train = self.rows.get("features"), self._others.get("splits"), None
        if not isinstance(features, FeatureTable):
            return ()
        if splits is not None and splits.shape[1]:
            train, order = np.flatnonzero(splits[:, 0] == SPLIT_TRAIN), self.orders["features"]
            train = train if order is None else order[train]
        return self.earlier.columns or features.learn(train, self.most_categories, self.embedding_columns)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Features, labels, splits and times, by role, in the order of the nodes. Features are reordered when they are read."""
        if "features" not in self.rows:
            return dict(self._others)
        features, order = self.rows["features"], self.orders["features"]
        matrix = features.matrix(self.learnt) if isinstance(features, FeatureTable) else features
        return {**self._others, "features": matrix if order is None else _Reordered(matrix, order)}

    @cached_property
    def info(self) -> SourceInfo:
        columns = self.columns
        return SourceInfo(
            name=self.name,
            num_nodes=self.ids.num_nodes,
            feature_dim=columns["features"].shape[1] if "features" in columns else 0,
            feature_columns=self.learnt,
            has_node_time="node_times" in columns,
            has_string_id=self.ids.strings is not None,
            has_label="labels" in columns,
            class_names=self.class_names,
            num_split_sets=columns["splits"].shape[1] if "splits" in columns else 0,
        )

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        feature, label, split, time = map(self.columns.get, ("features", "labels", "splits", "node_times"))
        columns = (feature, label, split, self.ids.numbers, time)
        return node_chunks(self.ids.num_nodes, chunk_nodes, *columns, strings=self.ids.strings)

    def became(self, role: str, index: int = 0) -> tuple[str, str]:
        """Describes the role's column `index` for people: returns the number of its empty fields, and how the column is used."""
        values = self.columns[role]
        if role == "features":
            features = self.rows[role]
            if not isinstance(features, FeatureTable):
                return "", f"{values.shape[1]} features"
            column = self.learnt[index]
            return str(features.num_nulls[index]), feature_became(column, features.num_unknown(column))
        if role == "labels":
            return label_became(values, self.class_names) if values.ndim == 1 else label_became(values[:, index], ())
        return split_became(values[:, min(index, values.shape[1] - 1)]) if role == "splits" else ("0", "int64")
