"""A graph from plain files: edges as Parquet, CSV, SNAP text or Matrix Market, node columns as `.npy`, Parquet or CSV. Streamed.

Edges are read in record batches and never held as a whole. The ids of nodes are, where they are no rows: 8 bytes each, of strings up to 24.
"""

from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.importers.memory.array_graph import node_chunks
from graphmill.storage.importers.tables.edge_file import READ_EDGES, EdgeFile, RawEdges, most_nodes
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.importers.tables.node_columns import (
    has_key,
    read_features,
    read_ids,
    read_key,
    read_labels,
    read_splits,
    read_times,
)
from graphmill.storage.importers.tables.node_ids import NodeIds, reordered, rows_by_key
from graphmill.storage.ingestion.string_ids import StringIds

_READERS: dict[str, Callable[..., np.ndarray]] = {
    "features": read_features,
    "labels": read_labels,
    "splits": read_splits,
    "node_times": read_times,
}


class EdgeListGraph:
    """The `GraphSource` of one edge file and the node files that go with it.

    Errors: DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), for node columns whose
    rows do not match the nodes, and for ids that are negative, do not fit 0 … num_nodes - 1, or are so large and so few that the nodes
    between them would fill the memory (with the line, or the row of a Parquet file). `scratch`: a folder for ids that are strings; None: the system's.
    """

    def __init__(self, path: str | Path, options: EdgeListOptions | None = None, scratch: str | None = None) -> None:
        self.path, self._scratch = Path(path), scratch
        self.options = EdgeListOptions() if options is None else options
        self._file = EdgeFile(self.path, self.options)
        files = {name: path for name in _READERS if (path := getattr(self.options, name)) is not None}
        self._keyed = {name for name, path in files.items() if has_key(path, *self._said)}
        named, header, id_column = None, *self._said
        if self.options.ids is not None:
            named = read_ids(self.options.ids, header, self.options.string_ids, scratch, id_column)
        self._strings = named if isinstance(named, StringIds) else None
        if self.options.compact_ids and self._has_strings_of_its_own(files):
            self._strings = StringIds(scratch)
        others = [name for name, path in files.items() if path == self.options.features and name != "features"]
        more = {"features": (others,), "labels": (self.options.label_kind,)}
        self._rows = {name: _READERS[name](path, *self._said, *more.get(name, ())) for name, path in files.items()}
        self._file.strings = (self._strings is not None,) * 2
        self._numbers = named if isinstance(named, np.ndarray) else None
        self._num_named = None if named is None else len(named)
        self._order = None  # of rows without ids, where the ids of nodes are not in ascending order
        if self._numbers is not None and np.any(np.diff(self._numbers) < 0):
            self._order = np.argsort(self._numbers)
            self._numbers = self._numbers[self._order]

    @property
    def _said(self) -> tuple[bool | None, str | None]:
        return self.options.node_header, self.options.id_column

    @cached_property
    def _columns(self) -> dict[str, Any]:
        """Features, labels, splits and times by the option's name, in the order of the nodes. Raises DataError for rows that do not fit them."""
        nodes, columns = self._node_ids, {}
        for name, column in self._rows.items():
            path, order = getattr(self.options, name), self._order
            if name in self._keyed:
                key = read_key(path, *self._said, strings=self._strings is not None)
                order = rows_by_key(nodes, key, len(column), path)
            columns[name] = column if order is None else reordered(column, order)
        return columns

    def _has_strings_of_its_own(self, files: Collection[str]) -> bool:
        """Whether ids that are to be numbered are strings. Raises ConfigError where columns of nodes could not be told to belong to them."""
        options = self.options
        strings = options.string_ids if options.string_ids is not None else self._file.names_strings
        beside = [name for name in files if name not in self._keyed]
        if strings and beside:
            raise ConfigError(
                f"compact_ids: strings are numbered as the edges name them, which says nothing of the rows of {', '.join(beside)}; name the "
                "nodes' ids with --edge-list.ids in place of --edge-list.compact-ids, or give these files a column of ids"
            )
        return bool(strings)

    @cached_property
    def info(self) -> SourceInfo:
        columns = self._columns
        return SourceInfo(
            name=f"edges:{self.path.name.split('.')[0]}",
            num_nodes=self._num_nodes,
            num_edges=self._num_edges,
            feature_dim=columns["features"].shape[1] if "features" in columns else 0,
            edge_feature_dim=self._file.feature_dim,
            has_edge_weight=self.options.weight is not None,
            has_edge_time=self.options.time is not None,
            has_node_time="node_times" in columns,
            has_string_id=self._strings is not None,
            has_label="labels" in columns,
            num_split_sets=columns["splits"].shape[1] if "splits" in columns else 0,
            undirected_once=self.options.undirected_once
            or (self._file.matrix is not None and self._file.matrix.symmetric),
            provenance={
                "file": self.path.name,
                "file_bytes": str(self.path.stat().st_size),
                "compact_ids": str(self.options.compact_ids).lower(),
            },
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        ids = self._node_ids
        for raw in self._file.raw_edges():
            if ids.is_row:
                self._check_range(raw, ids.num_nodes)
            src, dst = ids.rows(raw.src, raw), ids.rows(raw.dst, raw)
            yield from raw.chunks(src, dst, chunk_edges)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        features, labels, splits, times = (self._columns.get(name) for name in _READERS)
        yield from node_chunks(
            self._num_nodes, chunk_nodes, features, labels, splits, self._ids, times, strings=self._strings
        )

    @property
    def _node_ids(self) -> NodeIds:
        whose = "the nodes" if self.options.ids is None else self.options.ids
        return NodeIds(whose, self._num_nodes, self._ids, self._strings)

    @cached_property
    def _first_pass(self) -> tuple[np.ndarray | None, int, int]:
        """(the numbers that occur, ascending, under compact_ids; highest id; number of edges). Strings that occur are numbered."""
        ids = np.empty(0, np.int64) if self.options.compact_ids and self._strings is None else None
        pending: list[np.ndarray] = []
        highest, count, where = -1, 0, ""
        for raw in self._file.raw_edges():
            count += len(raw)
            for column in (raw.src, raw.dst):
                if self._strings is not None:
                    self._strings.add(column)
                elif len(column) and int(column.max()) > highest:
                    highest, where = int(column.max()), raw.where(int(column.argmax()))
            if ids is not None and len(raw):
                pending.append(np.unique(np.concatenate([raw.src, raw.dst])))
                # Merging rarely keeps the whole pass O(n log n).
                if sum(map(len, pending)) > max(len(ids), READ_EDGES):
                    ids, pending = np.unique(np.concatenate([ids, *pending])), []
        if ids is not None and pending:
            ids = np.unique(np.concatenate([ids, *pending]))
        if ids is None and highest >= most_nodes(count):
            raise DataError(
                f"{where}: id {highest} would make {highest + 1} nodes of {count} edges; correct it, number the ids that "
                "occur with --edge-list.compact-ids, or say how many nodes there are with --edge-list.num-nodes"
            )
        return ids, highest, count

    @property
    def _ids(self) -> np.ndarray | None:
        """int64, ascending; None: ids are rows, or strings."""
        return self._first_pass[0] if self.options.compact_ids else self._numbers

    @property
    def _num_edges(self) -> int | None:
        known = self._file.num_edges
        return self._first_pass[2] if known is None and "_first_pass" in self.__dict__ else known

    @cached_property
    def _num_nodes(self) -> int:
        rows = [(getattr(self.options, name), len(column)) for name, column in self._rows.items()]
        if self.options.compact_ids:
            numbers = self._first_pass[0]
            num_nodes, counted = (
                len(self._strings if self._strings is not None else cast(np.ndarray, numbers)),
                "ids occur in the edges",
            )
        elif self._num_named is not None:
            num_nodes, counted = self._num_named, f"ids are in {self.options.ids}"
        elif self.options.num_nodes is not None:
            num_nodes, counted = self.options.num_nodes, "nodes are set by num_nodes"
        elif self._file.matrix is not None:
            num_nodes, counted = self._file.matrix.num_nodes, "are in its size line"
        elif rows:
            num_nodes, counted = rows[0][1], f"rows are in {rows[0][0]}"
        else:
            num_nodes, counted = self._first_pass[1] + 1, "is the highest id + 1"
        unkeyed = {getattr(self.options, name) for name in self._rows if name not in self._keyed}
        for file, count in rows:
            if count != num_nodes and file in unkeyed:
                raise DataError(f"{file}: expected one row per node ({num_nodes} {counted}), got {count} rows")
        if num_nodes < 1:
            raise DataError(f"{self.path}: expected at least one edge or a num_nodes, found neither")
        return num_nodes

    def _check_range(self, raw: RawEdges, num_nodes: int) -> None:
        for column in (raw.src, raw.dst):
            if len(column) and int(column.max()) >= num_nodes:
                row = int(column.argmax())
                raise DataError(
                    f"{raw.where(row)}: expected ids {raw.base} to {num_nodes - 1 + raw.base}, "
                    f"got {column[row] + raw.base}; "
                    "with ids of another kind, set --edge-list.ids or --edge-list.compact-ids"
                )
