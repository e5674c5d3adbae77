"""A graph from plain files: edges as Parquet, CSV, SNAP text or Matrix Market, node columns as `.npy`, Parquet or CSV. Streamed.

Edges are read in record batches and never held as a whole. With `compact_ids`, the ids that occur (8 bytes each) are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from storage.errors import DataError
from storage.importers.array_graph import node_chunks
from storage.importers.edge_list_options import EDGE_ENDINGS, EdgeListOptions
from storage.importers.matrix_market import MatrixMarket, read_matrix_market
from storage.importers.node_columns import arrow_times, read_features, read_labels, read_splits, read_times
from storage.importers.text_table import TextTable, column_values, is_number
from storage.source import EdgeChunk, NodeChunk, SourceInfo

_READ_EDGES = 1 << 20
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last for a column's name
# A number of nodes above these, from ids or from a size line, is accepted only with that many edges.
_SPARSE_NODES, _NODES_PER_EDGE = 1 << 24, 128


@dataclass(frozen=True)
class _RawEdges:
    """Some consecutive edges as the file has them."""

    src: np.ndarray  # int64 [k], not negative
    dst: np.ndarray
    weight: np.ndarray | None
    time: np.ndarray | None
    base: int  # the file's number of node 0
    where: Callable[[int], str]  # "line 7" of the file, for one of these edges

    def __len__(self) -> int:
        return len(self.src)


class EdgeListGraph:
    """The `GraphSource` of one edge file and the node files that go with it.

    Errors: DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), for node columns whose
    rows do not match the nodes, and for ids that are negative, do not fit 0 … num_nodes - 1, or are so large and so few that the nodes
    between them would fill the memory (with the line, or the row of a Parquet file).
    """

    def __init__(self, path: str | Path, options: EdgeListOptions | None = None) -> None:
        self.path = Path(path)
        self.options = EdgeListOptions() if options is None else options
        if not self.path.name.endswith(EDGE_ENDINGS):
            raise DataError(f"{self.path}: expected an edge file ending in {', '.join(EDGE_ENDINGS)}")
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such file; give the path of an edge list")
        node_header = self.options.node_header
        self._features = None if self.options.features is None else read_features(self.options.features, node_header)
        self._labels = None if self.options.labels is None else read_labels(self.options.labels, node_header)
        self._splits = None if self.options.splits is None else read_splits(self.options.splits, node_header)
        self._times = None if self.options.node_times is None else read_times(self.options.node_times, node_header)

    @cached_property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=f"edges:{self.path.name.split('.')[0]}",
            num_nodes=self._num_nodes,
            num_edges=self._num_edges,
            feature_dim=0 if self._features is None else self._features.shape[1],
            has_edge_weight=self.options.weight is not None,
            has_edge_time=self.options.time is not None,
            has_node_time=self._times is not None,
            has_label=self._labels is not None,
            num_split_sets=0 if self._splits is None else self._splits.shape[1],
            undirected_once=self.options.undirected_once or (self._matrix is not None and self._matrix.symmetric),
            provenance={
                "file": self.path.name,
                "file_bytes": str(self.path.stat().st_size),
                "compact_ids": str(self.options.compact_ids).lower(),
            },
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        ids = self._ids
        num_nodes = self._num_nodes
        for raw in self._raw_edges():
            src, dst = raw.src, raw.dst
            if ids is not None:
                src, dst = np.searchsorted(ids, src), np.searchsorted(ids, dst)
            else:
                self._check_range(raw, num_nodes)
            for start in range(0, len(src), chunk_edges):
                some = slice(start, start + chunk_edges)
                weight, time = (None if column is None else column[some] for column in (raw.weight, raw.time))
                yield EdgeChunk(src[some], dst[some], weight=weight, time=time)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        columns = (self._features, self._labels, self._splits, self._ids, self._times)
        if all(column is None for column in columns):
            yield NodeChunk()  # an empty chunk means that nodes have no columns
            return
        yield from node_chunks(self._num_nodes, chunk_nodes, *columns)

    @cached_property
    def _first_pass(self) -> tuple[np.ndarray | None, int, int]:
        """(the ids that occur, ascending, under compact_ids; highest id; number of edges)."""
        ids = np.empty(0, np.int64) if self.options.compact_ids else None
        pending: list[np.ndarray] = []
        highest, count, where = -1, 0, ""
        for raw in self._raw_edges():
            count += len(raw)
            for column in (raw.src, raw.dst):
                if len(column) and int(column.max()) > highest:
                    highest, where = int(column.max()), raw.where(int(column.argmax()))
            if ids is not None and len(raw):
                pending.append(np.unique(np.concatenate([raw.src, raw.dst])))
                # Merging rarely keeps the whole pass O(n log n).
                if sum(map(len, pending)) > max(len(ids), _READ_EDGES):
                    ids, pending = np.unique(np.concatenate([ids, *pending])), []
        if ids is not None and pending:
            ids = np.unique(np.concatenate([ids, *pending]))
        if ids is None and highest >= _most_nodes(count):
            raise DataError(
                f"{self.path}: {where}: id {highest} would make {highest + 1} nodes of {count} edges; correct it, number the ids that "
                "occur with --edge-list.compact-ids, or say how many nodes there are with --edge-list.num-nodes"
            )
        return ids, highest, count

    @property
    def _ids(self) -> np.ndarray | None:
        return self._first_pass[0] if self.options.compact_ids else None

    @cached_property
    def _num_edges(self) -> int | None:
        if self.path.suffix == ".parquet":
            return self._parquet().metadata.num_rows
        if self._matrix is not None:
            return self._matrix.num_entries
        return self._first_pass[2] if "_first_pass" in self.__dict__ else None

    @cached_property
    def _num_nodes(self) -> int:
        named = ((self.options.features, self._features), (self.options.labels, self._labels))
        rows = [(file, len(column)) for file, column in named if column is not None]
        for name, column in ((self.options.splits, self._splits), (self.options.node_times, self._times)):
            if column is not None:
                rows.append((name, len(column)))
        if self.options.compact_ids:
            num_nodes, counted = len(cast(np.ndarray, self._ids)), "ids occur in the edges"
        elif self.options.num_nodes is not None:
            num_nodes, counted = self.options.num_nodes, "nodes are set by num_nodes"
        elif self._matrix is not None:
            num_nodes, counted = self._matrix.num_nodes, "are in its size line"
        elif rows:
            num_nodes, counted = rows[0][1], f"rows are in {rows[0][0]}"
        else:
            num_nodes, counted = self._first_pass[1] + 1, "is the highest id + 1"
        for file, count in rows:
            if count != num_nodes:
                raise DataError(f"{file}: expected one row per node ({num_nodes} {counted}), got {count} rows")
        if num_nodes < 1:
            raise DataError(f"{self.path}: expected at least one edge or a num_nodes, found neither")
        return num_nodes

    def _check_range(self, raw: _RawEdges, num_nodes: int) -> None:
        for column in (raw.src, raw.dst):
            if len(column) and int(column.max()) >= num_nodes:
                row = int(column.argmax())
                raise DataError(
                    f"{self.path}: {raw.where(row)}: expected ids {raw.base} to {num_nodes - 1 + raw.base}, "
                    f"got {column[row] + raw.base}; "
                    "with ids of another kind, set --edge-list.compact-ids"
                )

    def _raw_edges(self) -> Iterator[_RawEdges]:
        """The file's edges, batch by batch."""
        batches = self._parquet_batches() if self.path.suffix == ".parquet" else self._text_batches()
        for raw in batches:
            for column in (raw.src, raw.dst):
                if len(column) and int(column.min()) < 0:
                    row = int(column.argmin())
                    raise DataError(
                        f"{self.path}: {raw.where(row)}: expected ids from {raw.base}, got {column[row] + raw.base}"
                    )
            yield raw

    @property
    def _wanted(self) -> list[str]:
        options = self.options
        return [options.src, options.dst, *(name for name in (options.weight, options.time) if name)]

    def _check_columns(self, names: list[str]) -> None:
        if any(names.count(name) != 1 for name in self._wanted):
            raise DataError(
                f"{self.path}: expected one column each of {', '.join(self._wanted)}, found {', '.join(names)[:200]}; "
                "set --edge-list.src, --edge-list.dst, --edge-list.weight and --edge-list.time"
            )

    def _parquet(self) -> pa_parquet.ParquetFile:
        try:
            return pa_parquet.ParquetFile(self.path)
        except _UNREADABLE as error:
            raise DataError(f"{self.path}: expected a Parquet file, got: {error}") from error

    def _parquet_batches(self) -> Iterator[_RawEdges]:
        done = 0
        with self._parquet() as file:
            try:
                self._check_columns(file.schema_arrow.names)
                for batch in file.iter_batches(batch_size=_READ_EDGES, columns=self._wanted):
                    where = partial(_row, done)
                    src, dst = (self._integers(batch, name, where) for name in self._wanted[:2])
                    yield _RawEdges(src, dst, self._weights(batch), self._edge_times(batch), 0, where)
                    done += batch.num_rows
            except _UNREADABLE as error:
                problem = "too little memory, or a damaged" if isinstance(error, MemoryError) else "damaged"
                raise DataError(f"{self.path}: {problem} Parquet file: {error}") from error

    def _integers(self, batch: pa.RecordBatch, name: str, where: Callable[[int], str]) -> np.ndarray:
        column = batch.column(name)
        if not pa.types.is_integer(column.type):
            raise DataError(f"{self.path}: column {name!r}: expected integer ids, found {column.type}")
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"{self.path}: {where(row)}: column {name!r}: expected an id, found an empty field")
        ids = column.to_numpy(zero_copy_only=False)
        if ids.dtype == np.uint64 and len(ids) and int(ids.max()) >= 2**63:
            row = int(ids.argmax())
            raise DataError(f"{self.path}: {where(row)}: column {name!r}: expected ids below 2**63, got {ids[row]}")
        return ids.astype(np.int64)

    def _weights(self, batch: pa.RecordBatch) -> np.ndarray | None:
        if not self.options.weight:
            return None
        column = batch.column(self.options.weight)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise DataError(f"{self.path}: column {self.options.weight!r}: expected numbers, found {column.type}")
        return column.to_numpy(zero_copy_only=False).astype(np.float32)

    def _edge_times(self, batch: pa.RecordBatch) -> np.ndarray | None:
        if not self.options.time:
            return None
        return arrow_times(batch.column(self.options.time), f"{self.path}: column {self.options.time!r}")

    @cached_property
    def _text(self) -> TextTable:
        def table(preamble: int) -> TextTable:
            return TextTable(
                self.path,
                self._is_row,
                option="--edge-list.header",
                header=self.options.header,
                delimiter=self.options.delimiter,
                preamble=preamble,
            )

        text = table(0)
        return table(1) if text.banner.startswith("%%MatrixMarket") else text

    def _is_row(self, fields: list[str]) -> bool:
        named = self.options.src in fields and self.options.dst in fields
        return not named and all(map(is_number, fields[:2]))

    @cached_property
    def _matrix(self) -> MatrixMarket | None:
        """What a Matrix Market file says of itself."""
        if self.path.suffix == ".parquet" or not self._text.preamble:
            return None
        matrix = read_matrix_market(self.path, self._text.banner, self._text.preamble[0])
        if matrix.num_nodes > _most_nodes(matrix.num_entries):
            raise DataError(f"{self.path}: size line: {matrix.num_nodes} nodes of {matrix.num_entries} entries")
        return matrix

    def _text_batches(self) -> Iterator[_RawEdges]:
        text, matrix = self._text, self._matrix
        names = text.names
        if names and not text.has_header:
            names = [self.options.src, self.options.dst, *names[2:]][: len(names)]
        if not names:
            return
        self._check_columns(names)
        place = {name: names.index(name) for name in self._wanted}
        kinds = dict.fromkeys(place.values(), pa.int64())
        if self.options.weight:
            kinds[place[self.options.weight]] = pa.float64()
        done, base = 0, 0 if matrix is None or self.options.compact_ids else 1
        for block in text.blocks(kinds, required=True, skip_blank=True):
            column = {name: column_values(block.table.column(str(index))) for name, index in place.items()}
            src, dst = column[self.options.src], column[self.options.dst]
            if base:
                src, dst = src - base, dst - base
            weight = column[self.options.weight].astype(np.float32) if self.options.weight else None
            time = column[self.options.time] if self.options.time else None
            done += len(src)
            yield _RawEdges(src, dst, weight, time, base, partial(_line, block.line_of))
        if matrix is not None and done != matrix.num_entries:
            raise DataError(f"{self.path}: expected the {matrix.num_entries} entries of its size line, found {done}")


def _most_nodes(num_edges: int) -> int:
    return max(_SPARSE_NODES, _NODES_PER_EDGE * num_edges)


def _row(first: int, row: int) -> str:
    return f"row {first + row + 1}"


def _line(line_of: Callable[[int], int], row: int) -> str:
    return f"line {line_of(row)}"
