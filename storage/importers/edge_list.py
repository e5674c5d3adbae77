"""A graph from plain files: edges as Parquet, CSV or SNAP text, node columns as `.npy`, Parquet or CSV. Streamed.

Edges are read in record batches and never held as a whole. With `compact_ids`, the ids that occur (8 bytes each) are.
"""

import gzip
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from storage.errors import DataError
from storage.importers.array_graph import dense_rows
from storage.importers.edge_list_options import EDGE_ENDINGS, EdgeListOptions
from storage.importers.node_columns import read_features, read_labels, read_splits
from storage.source import EdgeChunk, NodeChunk, SourceInfo

_CSV_BLOCK_BYTES = 8 << 20
_READ_EDGES = 1 << 20
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)  # of a name, the last


class EdgeListGraph:
    """The `GraphSource` of one edge file and the node files that go with it.

    Errors: DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), for node columns whose
    rows do not match the nodes, and for ids that do not fit 0 … num_nodes - 1 (found by ingestion).
    """

    def __init__(self, path: str | Path, options: EdgeListOptions | None = None) -> None:
        self.path = Path(path)
        self.options = EdgeListOptions() if options is None else options
        if not self.path.name.endswith(EDGE_ENDINGS):
            raise DataError(f"{self.path}: expected an edge file ending in {', '.join(EDGE_ENDINGS)}")
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such file; give the path of an edge list")
        self._features = None if self.options.features is None else read_features(self.options.features)
        self._labels = None if self.options.labels is None else read_labels(self.options.labels)
        self._splits = None if self.options.splits is None else read_splits(self.options.splits)

    @cached_property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=f"edges:{self.path.name.split('.')[0]}",
            num_nodes=self._num_nodes,
            num_edges=self._num_edges,
            feature_dim=0 if self._features is None else self._features.shape[1],
            has_edge_weight=self.options.weight is not None,
            has_label=self._labels is not None,
            num_split_sets=0 if self._splits is None else self._splits.shape[1],
            undirected_once=self.options.undirected_once,
            provenance={
                "file": self.path.name,
                "file_bytes": str(self.path.stat().st_size),
                "compact_ids": str(self.options.compact_ids).lower(),
            },
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        ids = self._ids
        for src, dst, weight in self._raw_edges():
            if ids is not None:
                src, dst = np.searchsorted(ids, src), np.searchsorted(ids, dst)
            for start in range(0, len(src), chunk_edges):
                some = slice(start, start + chunk_edges)
                yield EdgeChunk(src[some], dst[some], weight=None if weight is None else weight[some])

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        columns = (self._features, self._labels, self._splits, self._ids)
        if all(column is None for column in columns):
            yield NodeChunk()  # how a source says that its nodes have no columns
            return
        for start in range(0, self._num_nodes, chunk_nodes):
            some = slice(start, min(start + chunk_nodes, self._num_nodes))
            yield NodeChunk(
                feature=None if self._features is None else dense_rows(self._features, some),
                label=None if self._labels is None else self._labels[some],
                split=None if self._splits is None else self._splits[some],
                original_id=None if self._ids is None else self._ids[some],
            )

    @cached_property
    def _first_pass(self) -> tuple[np.ndarray | None, int, int]:
        """(the ids that occur, ascending, under compact_ids; highest id; number of edges)."""
        ids = np.empty(0, np.int64) if self.options.compact_ids else None
        pending: list[np.ndarray] = []
        highest, count = -1, 0
        for src, dst, _ in self._raw_edges():
            if not len(src):
                continue
            count += len(src)
            highest = max(highest, int(src.max()), int(dst.max()))
            if ids is not None:
                pending.append(np.unique(np.concatenate([src, dst])))
                if sum(map(len, pending)) > max(
                    len(ids), _READ_EDGES
                ):  # merging rarely keeps the whole pass O(n log n)
                    ids, pending = np.unique(np.concatenate([ids, *pending])), []
        if ids is not None and pending:
            ids = np.unique(np.concatenate([ids, *pending]))
        return ids, highest, count

    @property
    def _ids(self) -> np.ndarray | None:
        return self._first_pass[0] if self.options.compact_ids else None

    @cached_property
    def _num_edges(self) -> int | None:
        if self.path.suffix == ".parquet":
            return self._parquet().metadata.num_rows
        return self._first_pass[2] if "_first_pass" in self.__dict__ else None

    @cached_property
    def _num_nodes(self) -> int:
        named = ((self.options.features, self._features), (self.options.labels, self._labels))
        rows = [(file, len(column)) for file, column in named if column is not None]
        if self._splits is not None:
            rows.append((self.options.splits, len(self._splits)))
        if self.options.compact_ids:
            num_nodes, counted = len(cast(np.ndarray, self._ids)), "ids occur in the edges"
        elif self.options.num_nodes is not None:
            num_nodes, counted = self.options.num_nodes, "nodes are set by num_nodes"
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

    def _raw_edges(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """(src, dst, weight) as the file has them, batch by batch."""
        done = 0
        for batch in self._parquet_batches() if self.path.suffix == ".parquet" else self._text_batches():
            names = [self.options.src, self.options.dst, *([self.options.weight] if self.options.weight else [])]
            missing = [name for name in names if name not in batch.schema.names]
            if missing:
                raise DataError(
                    f"{self.path}: expected columns {', '.join(names)}, found {', '.join(batch.schema.names)}; "
                    "set --edge-list.src and --edge-list.dst"
                )
            src, dst = (self._integers(batch, name, done) for name in names[:2])
            weight = None
            if self.options.weight:
                column = batch.column(self.options.weight)
                if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
                    raise DataError(
                        f"{self.path}: column {self.options.weight!r}: expected numbers, found {column.type}"
                    )
                weight = column.to_numpy(zero_copy_only=False).astype(np.float32)
            done += batch.num_rows
            yield src, dst, weight

    def _integers(self, batch: pa.RecordBatch, name: str, done: int) -> np.ndarray:
        column = batch.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            found = f"{column.null_count} empty fields" if column.null_count else str(column.type)
            raise DataError(f"{self.path}: column {name!r} after edge {done}: expected integer ids, found {found}")
        return column.to_numpy(zero_copy_only=False).astype(np.int64)

    def _parquet(self) -> pa_parquet.ParquetFile:
        try:
            return pa_parquet.ParquetFile(self.path)
        except _UNREADABLE as error:
            raise DataError(f"{self.path}: expected a Parquet file, got: {error}") from error

    def _parquet_batches(self) -> Iterator[pa.RecordBatch]:
        wanted = [self.options.src, self.options.dst, *([self.options.weight] if self.options.weight else [])]
        with self._parquet() as file:
            try:
                present = [name for name in wanted if name in file.schema_arrow.names]
                columns = present if len(present) == len(wanted) else None  # None: all, so that the error can name them
                yield from file.iter_batches(batch_size=_READ_EDGES, columns=columns)
            except _UNREADABLE as error:
                what = "too little memory, or a damaged" if isinstance(error, MemoryError) else "damaged"
                raise DataError(f"{self.path}: {what} Parquet file: {error}") from error

    def _text_batches(self) -> Iterator[pa.RecordBatch]:
        comments, first_line = self._head()
        if not first_line:
            return
        delimiter = self.options.delimiter or next((mark for mark in "\t,; " if mark in first_line), ",")
        fields = [field.strip().strip('"') for field in first_line.split(delimiter)]
        header = self.options.header
        if header is None:
            header = not fields[0].lstrip("+-").isdigit()
        names = None
        if not header:
            names = [self.options.src, self.options.dst, *(str(index) for index in range(2, len(fields)))]
        read = pa_csv.ReadOptions(
            use_threads=False, block_size=_CSV_BLOCK_BYTES, skip_rows=comments, column_names=names
        )
        parse = pa_csv.ParseOptions(delimiter=delimiter)
        try:
            with pa.input_stream(str(self.path)) as stream:
                yield from pa_csv.open_csv(stream, read_options=read, parse_options=parse)
        except (*_UNREADABLE, EOFError) as error:
            raise DataError(f"{self.path}: expected lines of equally many fields, got: {error}") from error

    def _head(self) -> tuple[int, str]:
        """(number of leading lines that start with '#' or are empty, the first other line)."""
        opened: Callable[..., IO[str]] = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opened(self.path, "rt", encoding="utf-8") as file:
                for number, line in enumerate(file):
                    if line.strip() and not line.startswith("#"):
                        return number, line.rstrip("\r\n")
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: expected UTF-8 text, got: {error}") from error
        return 0, ""
