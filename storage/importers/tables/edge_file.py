"""Reads one table of edges (Parquet, Arrow, CSV, SNAP text or Matrix Market) as a stream of record batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.format.source import EdgeChunk
from graphmill.storage.importers.columns.column_roles import END_NAMES, is_number
from graphmill.storage.importers.columns.column_values import (
    Column,
    are_dates,
    check_no_null,
    is_list_type,
    list_rows,
    numbers,
    times,
    whole_numbers,
)
from graphmill.storage.importers.columns.role_table import ColumnRole, base_name
from graphmill.storage.importers.tables.edge_list_options import EDGE_ENDINGS, EdgeListOptions
from graphmill.storage.importers.tables.matrix_market import MatrixMarket, read_matrix_market
from graphmill.storage.importers.tables.table import READ_ROWS, Table, TableBlock
from graphmill.storage.importers.tables.table_files import table_files
from graphmill.storage.importers.tables.text_table import FieldError, TextFormat, TextTable
from graphmill.storage.ingestion.string_ids import id_strings, is_text_type

READ_EDGES = READ_ROWS

EdgeEnds: TypeAlias = Any  # int64 [k] without negative numbers, or a pa.LargeStringArray
# If ids or a size line claim more than 2**24 nodes, there must be at least one edge for every 128 nodes.
_SPARSE_NODES, _NODES_PER_EDGE = 1 << 24, 128


@dataclass(frozen=True)
class RawEdges:
    """Consecutive edges, with the ids that the file has."""

    src: EdgeEnds
    dst: EdgeEnds
    weight: np.ndarray | None
    time: np.ndarray | None
    feature: np.ndarray | None  # float32 [k, feature_dim]
    base: int  # the id that the file gives to node 0
    where: Callable[[int], str]  # returns the place of an edge for messages, such as "edges.csv: line 7"

    def __len__(self) -> int:
        return len(self.src)

    @property
    def num_bytes(self) -> int:
        """Most memory that these edges hold, if their ends are numbers. Counted twice, because `where` may hold the text of the edges."""
        columns = (self.src, self.dst, self.weight, self.time, self.feature)
        return 2 * sum(column.nbytes for column in columns if column is not None)

    def chunks(self, src: np.ndarray, dst: np.ndarray, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields the edges in chunks. `src` and `dst`: the rows of the nodes at the ends of the edges."""
        columns = {"weight": self.weight, "feature": self.feature, "time": self.time}
        for start in range(0, len(self), chunk_edges):
            chunk = slice(start, start + chunk_edges)
            yield EdgeChunk(
                src[chunk],
                dst[chunk],
                **{name: column[chunk] for name, column in columns.items() if column is not None},
            )


class EdgeFile:
    """Reads from a table of edges the columns that `options` name. `flag`: prefix of option names in messages. `strings`: two flags, whether the ids of sources
    and the ids of destinations are strings.

    Raises DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), and for negative ids.
    """

    def __init__(
        self,
        path: str | Path,
        options: EdgeListOptions,
        flag: str = "--edge-list.",
        strings: tuple[bool, bool] = (False, False),
    ) -> None:
        self.path, self.options, self._flag, self.strings = str(path), options, flag, strings
        self.files = table_files(path, EDGE_ENDINGS)
        self._below_0 = ""  # describes the first negative weight, after it was read

    @cached_property
    def _table(self) -> Table:
        form = TextFormat(self._is_row, f"{self._flag}header", self.options.header, self.options.delimiter)
        table = Table(self.path, form, EDGE_ENDINGS)
        first = table.parts[0]
        is_matrix = isinstance(first, TextTable) and first.banner.startswith("%%MatrixMarket")
        return Table(self.path, replace(form, preamble=1), EDGE_ENDINGS) if is_matrix else table

    def _is_row(self, fields: list[str]) -> bool | None:
        """Whether the first line holds values, which means that its first two fields are numbers and it has no usual column names. None: unclear."""
        named = (self.options.src in fields and self.options.dst in fields) or _ends_by_name(fields) is not None
        if not named and any(self.strings):
            return None  # strings may be ids, or names of columns
        return not named and all(map(is_number, fields[:2]))

    @cached_property
    def names(self) -> list[str]:
        """Names of all columns. Without a header, the first two columns get the names in the options, and the others get their numbers as names."""
        names = self._table.names
        return names if self._table.has_header else [self.options.src, self.options.dst, *names[2:]][: len(names)]

    @property
    def roles(self) -> list[ColumnRole]:
        """The role of each column of the file."""
        options, file = self.options, base_name(self.path)
        roles = dict.fromkeys(options.edge_features, "edge feature") | dict.fromkeys(self.ends[:1], "source")
        roles |= {name: role for name, role in ((options.weight, "weight"), (options.time, "time")) if name}
        roles |= {self.ends[1]: "destination"}
        became = dict.fromkeys(roles, "") | {options.weight or "": self._below_0}
        return [
            ColumnRole(file, name, kind, roles.get(name, "none"), "", became.get(name, "not read"))
            for name, kind in zip(self.names, self._table.type_names, strict=True)
        ]

    @property
    def types(self) -> list[pa.DataType]:
        return self._table.types

    @cached_property
    def ends(self) -> tuple[str, str]:
        """Names of the columns of sources and destinations: the names in the options, if they are not the defaults or if the file has one of them; else a usual
        pair of names."""
        options = self.options
        asked = (options.src, options.dst)
        if asked != (EdgeListOptions.src, EdgeListOptions.dst) or set(asked) & set(self.names):
            return asked
        return _ends_by_name(self.names) or asked

    @cached_property
    def _place(self) -> dict[str, int]:
        """Maps the name of each column that is read to the column's index."""
        options = self.options
        columns = dict.fromkeys(filter(None, (*self.ends, options.weight, options.time, *options.edge_features)))
        if any(self.names.count(name) != 1 for name in columns):
            raise DataError(
                f"{self.path}: expected one column each of {', '.join(columns)}, found {', '.join(self.names)[:200]}; "
                f"set {self._flag}src, {self._flag}dst, {self._flag}weight and {self._flag}time"
            )
        return {name: self.names.index(name) for name in columns}

    @cached_property
    def num_edges(self) -> int | None:
        """Number of edges; None if the file does not state it."""
        return self._table.num_rows if self.matrix is None else self.matrix.num_entries

    @property
    def stated_ids(self) -> tuple[int, int] | None:
        """The lowest and the highest id, if Parquet's metadata states them; else None."""
        bounds = [self._table.stated_bounds(self._place[name]) for name in self.ends] if self.names else []
        known = [each for each in bounds if each is not None]
        if not known or len(known) < len(bounds):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    @property
    def names_strings(self) -> bool:
        """Whether sources or destinations are strings by the types of a Parquet or Arrow file. False for a text file, which has no types."""
        return not self._table.is_text and any(is_text_type(self.types[self._place[name]]) for name in self.ends)

    @cached_property
    def _lists(self) -> bool:
        """Whether the edge features are one column of lists."""
        features = self.options.edge_features
        return len(features) == 1 and bool(self.names) and is_list_type(self.types[self._place[features[0]]])

    @cached_property
    def feature_dim(self) -> int:
        """Number of features of an edge."""
        if self._lists:
            place = self._place[self.options.edge_features[0]]
            for block in self._table.blocks({place: pa.float64()}, required=True, skip_blank=True, rows=1):
                return list_rows(block.table.column(0), self.path).shape[1]
        return len(self.options.edge_features)

    @cached_property
    def matrix(self) -> MatrixMarket | None:
        """The header of a Matrix Market file; None for other files."""
        text = self._table.parts[0]
        if not isinstance(text, TextTable) or not text.preamble:
            return None
        if len(self.files) > 1:
            raise DataError(f"{self.path}: expected one Matrix Market file, found {len(self.files)}; join them")
        matrix = read_matrix_market(self.files[0], text.banner, text.preamble[0])
        if matrix.num_nodes > most_nodes(matrix.num_entries):
            raise DataError(f"{self.path}: size line: {matrix.num_nodes} nodes of {matrix.num_entries} entries")
        return matrix

    def raw_edges(self) -> Iterator[RawEdges]:
        """Yields the file's edges, one batch after another."""
        if not self.names:
            return
        matrix, place, done = self.matrix, self._place, 0
        base = 0 if matrix is None or self.options.compact_ids else 1
        weight, time, features = self.options.weight, self.options.time, list(self.options.edge_features)
        dated: bool | None = None
        for block in self._blocks():
            columns = {name: block.table.column(str(index)) for name, index in place.items()}
            src, dst = (
                self._strings(columns[name], name, block.where)
                if is_text
                else self._numbers(columns[name], name, block.where)
                for name, is_text in zip(self.ends, self.strings, strict=True)
            )
            if time:
                dates = are_dates(columns[time])
                if dated not in (None, dates):
                    raise DataError(
                        f"{block.where(0)}: column {time!r}: expected {'dates' if dated else 'whole numbers'} as before, found others"
                    )
                dated = dates
            if base:
                src, dst = src - base, dst - base
            for column in (src, dst):
                if isinstance(column, np.ndarray) and len(column) and int(column.min()) < 0:
                    row = int(column.argmin())
                    raise DataError(f"{block.where(row)}: expected ids from {base}, got {column[row] + base}")
            yield RawEdges(
                src,
                dst,
                self._weights(columns[weight], block.where) if weight else None,
                times(columns[time], self.path, block.where, f"column {time!r}") if time else None,
                self._features(columns, block.where) if features else None,
                base,
                block.where,
            )
            done += block.table.num_rows
        if matrix is not None and done != matrix.num_entries:
            raise DataError(f"{self.path}: expected the {matrix.num_entries} entries of its size line, found {done}")

    def _blocks(self) -> Iterator[TableBlock]:
        """Yields the rows. If a text column that is read as integers has a float or a date, the rest of the file is read again with that type."""
        place, kinds = self._place, dict.fromkeys(self._place.values(), pa.float64())
        wider = {place[name]: pa.float64() for name in self.ends}
        kinds |= {
            place[name]: pa.string() if is_text else pa.int64()
            for name, is_text in zip(self.ends, self.strings, strict=True)
        }
        if self.options.time:
            kinds[place[self.options.time]], wider[place[self.options.time]] = pa.int64(), pa.string()
        problem: FieldError | None = None
        done = 0
        while True:
            passed = 0
            try:
                for block in self._table.blocks(
                    kinds, required=True, skip_blank=True, hashes=any(self.strings), rows=READ_EDGES
                ):
                    passed += block.table.num_rows
                    if passed > done:
                        done = passed
                        yield block
                return
            except FieldError as error:
                if not error.field.strip():
                    raise
                if (
                    kinds[error.place] != pa.int64() or error.field.lstrip("-").isdigit()
                ):  # the type cannot be widened, or the whole number is too large
                    raise problem or error from None
                problem, kinds[error.place] = error, wider[error.place]

    def _numbers(self, column: Column, name: str, where: Callable[[int], str]) -> np.ndarray:
        if is_text_type(column.type) and self._flag:
            raise DataError(
                f"{self.path}: column {name!r}: expected integer ids, found {column.type}; name the nodes' ids with {self._flag}ids"
            )
        return whole_numbers(column, where, f"column {name!r}")

    def _strings(self, column: Column, name: str, where: Callable[[int], str]) -> pa.LargeStringArray:
        if not is_text_type(column.type):
            raise DataError(
                f"{self.path}: column {name!r}: expected strings, as the nodes' ids are, found {column.type}"
            )
        return id_strings(column, where, f"column {name!r}")

    def _values(self, column: Column, name: str, where: Callable[[int], str]) -> np.ndarray:
        check_no_null(column, where, f"column {name!r}", "a value")
        return numbers(column, f"{self.path}: column {name!r}")

    def _weights(self, column: Column, where: Callable[[int], str]) -> np.ndarray:
        weight = self._values(column, self.options.weight or "", where)
        if not self._below_0 and (weight < 0).any():
            row = int(np.argmax(weight < 0))
            self._below_0 = f"{weight[row]:g} in {where(row)}: runs read weights of at least 0"
        return weight

    def _features(self, columns: dict[str, Column], where: Callable[[int], str]) -> np.ndarray:
        names = self.options.edge_features
        if self._lists:
            rows = list_rows(columns[names[0]], f"{self.path}: column {names[0]!r}")
            if len(rows) and rows.shape[1] != self.feature_dim:
                raise DataError(
                    f"{self.path}: column {names[0]!r}: expected lists of one length, found {self.feature_dim} and {rows.shape[1]}"
                )
            return rows.reshape(len(rows), self.feature_dim)
        return np.stack([self._values(columns[name], name, where) for name in names], axis=1)


def _ends_by_name(names: Sequence[str]) -> tuple[str, str] | None:
    """Returns the two names that are a usual pair for the ends of edges. Returns None unless there is exactly one such pair."""
    small = [name.strip().lower() for name in names]
    pairs = [(names[small.index(u)], names[small.index(v)]) for u, v in END_NAMES if u in small and v in small]
    return pairs[0] if len(pairs) == 1 else None


def most_nodes(num_edges: int) -> int:
    return max(_SPARSE_NODES, _NODES_PER_EDGE * num_edges)
