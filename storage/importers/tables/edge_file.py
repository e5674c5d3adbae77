"""One file of edges, Parquet, CSV, SNAP text or Matrix Market, read in record batches and never held as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from graphmill.core.errors import DataError
from graphmill.storage.format.source import EdgeChunk
from graphmill.storage.importers.tables.edge_list_options import EDGE_ENDINGS, EdgeListOptions
from graphmill.storage.importers.tables.matrix_market import MatrixMarket, read_matrix_market
from graphmill.storage.importers.tables.node_columns import (
    arrow_times,
    is_list_type,
    line_of_file,
    list_rows,
    number_columns,
    row_of_file,
)
from graphmill.storage.importers.tables.text_table import TextTable, column_values, is_number
from graphmill.storage.ingestion.string_ids import id_strings, is_text_type

READ_EDGES = 1 << 20

EdgeEnds: TypeAlias = Any  # int64 [k], not negative, or a pa.LargeStringArray
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last for a column's name
# A number of nodes above these, from ids or from a size line, is accepted only with that many edges.
_SPARSE_NODES, _NODES_PER_EDGE = 1 << 24, 128


@dataclass(frozen=True)
class RawEdges:
    """Some consecutive edges as the file has them."""

    src: EdgeEnds
    dst: EdgeEnds
    weight: np.ndarray | None
    time: np.ndarray | None
    feature: np.ndarray | None  # float32 [k, feature_dim]
    base: int  # the file's number of node 0
    where: Callable[[int], str]  # "edges.csv: line 7", for one of these edges

    def __len__(self) -> int:
        return len(self.src)

    def chunks(self, src: np.ndarray, dst: np.ndarray, chunk_edges: int) -> Iterator[EdgeChunk]:
        """The edges between these rows of nodes, with their columns."""
        columns = {"weight": self.weight, "feature": self.feature, "time": self.time}
        for start in range(0, len(self), chunk_edges):
            some = slice(start, start + chunk_edges)
            of_some = {name: column[some] for name, column in columns.items() if column is not None}
            yield EdgeChunk(src[some], dst[some], **of_some)


class EdgeFile:
    """The columns that `options` name. `flag` begins an option's name in what is said to the user. `strings`: whether ids of sources, and of destinations, are strings.

    Errors: DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), and for negative ids.
    """

    def __init__(
        self,
        path: Path,
        options: EdgeListOptions,
        flag: str = "--edge-list.",
        strings: tuple[bool, bool] = (False, False),
    ) -> None:
        self.path, self.options, self._flag, self.strings = path, options, flag, strings
        if not path.name.endswith(EDGE_ENDINGS):
            raise DataError(f"{path}: expected an edge file ending in {', '.join(EDGE_ENDINGS)}")
        if not path.is_file():
            raise DataError(f"{path}: no such file; give the path of an edge list")

    @cached_property
    def num_edges(self) -> int | None:
        """None: the file does not say it."""
        if self.path.suffix == ".parquet":
            return self._parquet().metadata.num_rows
        return None if self.matrix is None else self.matrix.num_entries

    def raw_edges(self) -> Iterator[RawEdges]:
        """The file's edges, batch by batch."""
        batches = self._parquet_batches() if self.path.suffix == ".parquet" else self._text_batches()
        for raw in batches:
            for column in (raw.src, raw.dst):
                if isinstance(column, np.ndarray) and len(column) and int(column.min()) < 0:
                    row = int(column.argmin())
                    raise DataError(f"{raw.where(row)}: expected ids from {raw.base}, got {column[row] + raw.base}")
            yield raw

    @property
    def names_strings(self) -> bool:
        """Whether it is a Parquet file whose sources or destinations are strings."""
        if self.path.suffix != ".parquet":
            return False
        with self._parquet() as file:
            self._check_columns(file.schema_arrow.names)
            return any(is_text_type(file.schema_arrow.field(name).type) for name in self._wanted[:2])

    @property
    def _wanted(self) -> list[str]:
        options = self.options
        named = [options.src, options.dst, *(name for name in (options.weight, options.time) if name)]
        return named + [name for name in options.edge_features if name not in named]

    @cached_property
    def feature_dim(self) -> int:
        """How many features an edge has."""
        names = self.options.edge_features
        if len(names) == 1 and self.path.suffix == ".parquet":
            with self._parquet() as file:
                self._check_columns(file.schema_arrow.names)
                if is_list_type(file.schema_arrow.field(names[0]).type):
                    with self._readable():
                        for batch in file.iter_batches(batch_size=1, columns=[names[0]]):
                            return list_rows(batch.column(0), f"{self.path}").shape[1]
        return len(names)

    def _check_columns(self, names: list[str]) -> None:
        if any(names.count(name) != 1 for name in self._wanted):
            raise DataError(
                f"{self.path}: expected one column each of {', '.join(self._wanted)}, found {', '.join(names)[:200]}; "
                f"set {self._flag}src, {self._flag}dst, {self._flag}weight and {self._flag}time"
            )

    def _parquet(self) -> pa_parquet.ParquetFile:
        try:
            return pa_parquet.ParquetFile(self.path)
        except _UNREADABLE as error:
            raise DataError(f"{self.path}: expected a Parquet file, got: {error}") from error

    def _parquet_batches(self) -> Iterator[RawEdges]:
        done = 0
        with self._parquet() as file, self._readable():
            self._check_columns(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=READ_EDGES, columns=self._wanted):
                where = partial(row_of_file, self.path, done)
                src, dst = (
                    self._strings(batch, name, where) if is_text else self._integers(batch, name, where)
                    for name, is_text in zip(self._wanted[:2], self.strings, strict=True)
                )
                others = self._weights(batch), self._edge_times(batch), self._features(batch)
                yield RawEdges(src, dst, *others, 0, where)
                done += batch.num_rows

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            problem = "too little memory, or a damaged" if isinstance(error, MemoryError) else "damaged"
            raise DataError(f"{self.path}: {problem} Parquet file: {error}") from error

    def _integers(self, batch: pa.RecordBatch, name: str, where: Callable[[int], str]) -> np.ndarray:
        column = batch.column(name)
        if not pa.types.is_integer(column.type):
            hint = f"; name the nodes' ids with {self._flag}ids" if self._flag and is_text_type(column.type) else ""
            raise DataError(f"{self.path}: column {name!r}: expected integer ids, found {column.type}{hint}")
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"{where(row)}: column {name!r}: expected an id, found an empty field")
        ids = column.to_numpy(zero_copy_only=False)
        if ids.dtype == np.uint64 and len(ids) and int(ids.max()) >= 2**63:
            row = int(ids.argmax())
            raise DataError(f"{where(row)}: column {name!r}: expected ids below 2**63, got {ids[row]}")
        return ids.astype(np.int64)

    def _strings(self, batch: pa.RecordBatch, name: str, where: Callable[[int], str]) -> pa.LargeStringArray:
        column = batch.column(name)
        if not is_text_type(column.type):
            raise DataError(
                f"{self.path}: column {name!r}: expected strings, as the nodes' ids are, found {column.type}"
            )
        return id_strings(column, where, f"column {name!r}")

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

    def _features(self, batch: pa.RecordBatch) -> np.ndarray | None:
        names = list(self.options.edge_features)
        if not names:
            return None
        if len(names) == 1 and is_list_type(batch.schema.field(names[0]).type):
            rows = list_rows(batch.column(names[0]), f"{self.path}: column {names[0]!r}")
            if len(rows) and rows.shape[1] != self.feature_dim:
                raise DataError(
                    f"{self.path}: column {names[0]!r}: expected lists of one length, found {self.feature_dim} and {rows.shape[1]}"
                )
            return rows.reshape(len(rows), self.feature_dim)
        return number_columns(batch.select(names), f"{self.path}")

    @cached_property
    def _text(self) -> TextTable:
        def table(preamble: int) -> TextTable:
            return TextTable(
                self.path,
                self._is_row,
                option=f"{self._flag}header",
                header=self.options.header,
                delimiter=self.options.delimiter,
                preamble=preamble,
            )

        text = table(0)
        return table(1) if text.banner.startswith("%%MatrixMarket") else text

    def _is_row(self, fields: list[str]) -> bool | None:
        named = self.options.src in fields and self.options.dst in fields
        if not named and any(self.strings):
            return None  # strings may be names of columns as well
        return not named and all(map(is_number, fields[:2]))

    @cached_property
    def matrix(self) -> MatrixMarket | None:
        """What a Matrix Market file says of itself."""
        if self.path.suffix == ".parquet" or not self._text.preamble:
            return None
        matrix = read_matrix_market(self.path, self._text.banner, self._text.preamble[0])
        if matrix.num_nodes > most_nodes(matrix.num_entries):
            raise DataError(f"{self.path}: size line: {matrix.num_nodes} nodes of {matrix.num_entries} entries")
        return matrix

    def _text_batches(self) -> Iterator[RawEdges]:
        text, matrix = self._text, self.matrix
        names = text.names
        if names and not text.has_header:
            names = [self.options.src, self.options.dst, *names[2:]][: len(names)]
        if not names:
            return
        self._check_columns(names)
        place = {name: names.index(name) for name in self._wanted}
        kinds = dict.fromkeys(place.values(), pa.int64())
        ends = dict(zip((self.options.src, self.options.dst), self.strings, strict=True))
        kinds |= {place[name]: pa.string() for name, is_text in ends.items() if is_text}
        if self.options.weight:
            kinds[place[self.options.weight]] = pa.float64()
        kinds |= {place[name]: pa.float64() for name in self.options.edge_features}
        done, base = 0, 0 if matrix is None or self.options.compact_ids else 1
        for block in text.blocks(kinds, required=True, skip_blank=True, hashes=any(self.strings)):
            where = partial(line_of_file, self.path, block.line_of)
            columns = {name: block.table.column(str(index)) for name, index in place.items()}
            strings = {
                name: id_strings(columns.pop(name), where, f"column {name!r}")
                for name, is_text in ends.items()
                if is_text
            }
            column = {name: column_values(values) for name, values in columns.items()}
            src, dst = ((strings if name in strings else column)[name] for name in (self.options.src, self.options.dst))
            if base:
                src, dst = src - base, dst - base
            weight = column[self.options.weight].astype(np.float32) if self.options.weight else None
            time = column[self.options.time] if self.options.time else None
            features = [column[name].astype(np.float32) for name in self.options.edge_features]
            done += len(src)
            yield RawEdges(src, dst, weight, time, np.stack(features, axis=1) if features else None, base, where)
        if matrix is not None and done != matrix.num_entries:
            raise DataError(f"{self.path}: expected the {matrix.num_entries} entries of its size line, found {done}")


def most_nodes(num_edges: int) -> int:
    return max(_SPARSE_NODES, _NODES_PER_EDGE * num_edges)
