"""Reads a table, which is one or several files of text, Parquet or Arrow, in blocks of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from graphmill.core.errors import DataError
from graphmill.storage.importers.columns.column_roles import listed
from graphmill.storage.importers.tables.edge_list_options import TABLE_ENDINGS
from graphmill.storage.importers.tables.table_files import UNREADABLE, TableFile, table_files
from graphmill.storage.importers.tables.text_table import TextFormat, TextTable

READ_ROWS = 1 << 20


@dataclass(frozen=True)
class TableBlock:
    """Consecutive rows of a table."""

    table: pa.Table  # the requested columns; their names are their indices
    where: Callable[[int], str]  # returns the place of a row for messages, such as "edges.csv: line 7"


class ColumnarFile:
    """A Parquet or Arrow file."""

    has_header = True

    def __init__(self, file: TableFile) -> None:
        self.file = file
        with _Opened(file) as (schema, _, self._metadata):
            self.names, self.num_rows = schema.names, self._metadata and self._metadata.num_rows
            # Arrow gives a column of nulls alone the type null.
            self.types = [pa.float64() if pa.types.is_null(kind) else kind for kind in schema.types]
        if len(set(self.names)) < len(self.names):
            raise DataError(f"{file.name}: expected different names of columns, found {listed(self.names)}")

    def stated_bounds(self, place: int) -> tuple[int, int] | None:
        """The least and the largest value of a column of integers without nulls, as Parquet's metadata states them; else None."""
        if self._metadata is None or not pa.types.is_integer(self.types[place]):
            return None
        named = [i for i, leaf in enumerate(self._metadata.schema) if leaf.path == self.names[place]]
        groups = range(self._metadata.num_row_groups)
        stated = [self._metadata.row_group(group).column(named[0]).statistics for group in groups]
        if (
            len(named) > 1
            or not stated
            or not all(each and each.has_min_max and each.null_count == 0 for each in stated)
        ):
            return None
        return min(each.min for each in stated), max(each.max for each in stated)

    def blocks(self, places: Sequence[int], rows: int = READ_ROWS) -> Iterator[TableBlock]:
        done = 0
        with _Opened(self.file) as (_, batches, _):
            for batch in batches([self.names[place] for place in places], rows):
                columns = {str(place): batch.column(self.names[place]) for place in places}
                columns |= {
                    name: column.cast(pa.float64()) for name, column in columns.items() if pa.types.is_null(column.type)
                }
                yield TableBlock(pa.table(columns), partial(_row_of, self.file.name, done))
                done += batch.num_rows


class _Opened:
    """Context of an open file: (schema, function from column names and a number of rows to batches, Parquet's metadata)."""

    def __init__(self, file: TableFile) -> None:
        self._file = file

    def __enter__(
        self,
    ) -> tuple[pa.Schema, Callable[[list[str], int], Iterator[pa.RecordBatch]], pa_parquet.FileMetaData | None]:
        file, kind = self._file, "a Parquet" if self._file.path.endswith(".parquet") else "an Arrow"
        try:
            if kind == "a Parquet":
                self._reader = parquet = pa_parquet.ParquetFile(file.source())
                return parquet.schema_arrow, _parquet_batches(parquet), parquet.metadata
            source = file.source()
            source = pa.memory_map(source) if isinstance(source, str) else pa.PythonFile(source)
            self._reader = source
            try:
                reader = pa.ipc.open_file(source)
                return reader.schema, _arrow_batches(map(reader.get_batch, range(reader.num_record_batches))), None
            except pa.ArrowInvalid:  # the file is an Arrow stream, or is not an Arrow file
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                return stream.schema, _arrow_batches(stream), None
        except UNREADABLE as error:
            raise DataError(f"{file.name}: expected {kind} file, got: {error}") from error

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._reader.close()
        if isinstance(error, (*UNREADABLE, MemoryError)) and not isinstance(error, DataError):
            problem = "too little memory, or a damaged" if isinstance(error, MemoryError) else "damaged"
            raise DataError(f"{self._file.name}: {problem} file: {error}") from error


def _parquet_batches(file: pa_parquet.ParquetFile) -> Callable[[list[str], int], Iterator[pa.RecordBatch]]:
    return lambda names, rows: file.iter_batches(batch_size=rows, columns=names)


def _arrow_batches(batches: Iterator[pa.RecordBatch]) -> Callable[[list[str], int], Iterator[pa.RecordBatch]]:
    def read(names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # the Parquet reader checks this, too: in a damaged file, offsets may point anywhere
            batch.validate(full=True)
            chosen = batch.select(names)
            yield from (chosen.slice(start, rows) for start in range(0, chosen.num_rows, rows))

    return read


class Table:
    """A table of one or several files. Columns have the indices 0, 1 …. All files have the same columns. Rows are in the order of the files' names.

    Raises DataError for files that are missing, unreadable, or have other columns than the first file.
    """

    def __init__(self, path: str | Path, form: TextFormat, endings: tuple[str, ...] = TABLE_ENDINGS) -> None:
        self.path = str(path)
        self.files = table_files(path, endings)
        parts = [TextTable(file, form) if file.is_text else ColumnarFile(file) for file in self.files]
        self.parts = [part for part in parts if part.names] or parts[:1]
        first = self.parts[0]
        for part in self.parts[1:]:
            if part.names != first.names or part.has_header != first.has_header:
                raise DataError(
                    f"{part.file.name}: expected the columns of {first.file.name}, {listed(first.names)}, found {listed(part.names)}"
                )
        self.names, self.has_header = list(first.names), first.has_header

    @property
    def is_text(self) -> bool:
        return isinstance(self.parts[0], TextTable)

    @cached_property
    def types(self) -> list[pa.DataType]:
        """Types of the columns; in a text file, all are strings."""
        first = self.parts[0]
        return list(first.types) if isinstance(first, ColumnarFile) else [pa.string()] * len(self.names)

    @property
    def type_names(self) -> list[str]:
        """Types of the columns, in a form for people."""
        return ["text" if self.is_text else str(kind) for kind in self.types]

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None if the files do not state it."""
        counts = [part.num_rows for part in self.parts if isinstance(part, ColumnarFile)]
        return None if self.is_text or None in counts else sum(count or 0 for count in counts)

    def stated_bounds(self, place: int) -> tuple[int, int] | None:
        """See `ColumnarFile.stated_bounds`; None also if a part does not state them."""
        bounds = [part.stated_bounds(place) if isinstance(part, ColumnarFile) else None for part in self.parts]
        known = [each for each in bounds if each is not None]
        return (min(known)[0], max(high for _, high in known)) if len(known) == len(bounds) else None

    def blocks(
        self,
        columns: Mapping[int, pa.DataType],
        *,
        required: bool,
        skip_blank: bool = False,
        num_threads: int = 1,
        hashes: bool = False,
        rows: int = READ_ROWS,
    ) -> Iterator[TableBlock]:
        """Yields the rows of these columns. A text file is read with the given types (see `TextTable.blocks`); other files keep their types."""
        for part in self.parts:
            if isinstance(part, ColumnarFile):
                yield from part.blocks(list(columns), rows)
                continue
            for block in part.blocks(
                columns, required=required, skip_blank=skip_blank, num_threads=num_threads, hashes=hashes
            ):
                yield TableBlock(block.table, partial(_line_of, part.path, block.line_of))

    def columns(
        self,
        places: Sequence[int],
        kinds: Sequence[pa.DataType],
        *,
        required: bool = False,
        hashes: bool = False,
    ) -> pa.Table:
        """Returns these columns as one table. A text file's columns get the first of `kinds` that fits all values. If none fits, raises the last DataError."""
        for kind in kinds:
            try:
                asked = dict.fromkeys(places, kind)
                tables = [block.table for block in self.blocks(asked, required=required, hashes=hashes)]
            except DataError:
                if not self.is_text or kind is kinds[-1]:
                    raise
                continue
            types = [kind if self.is_text else self.types[place] for place in places]
            empty = pa.schema([(str(place), each) for place, each in zip(places, types, strict=True)]).empty_table()
            try:
                return pa.concat_tables([empty, *tables], promote_options="permissive")
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{self.path}: expected columns of the same types in all parts: {' '.join(str(error).split())}"
                ) from error
        raise AssertionError("no type was given")


def _row_of(name: str, first: int, row: int) -> str:
    return f"{name}: row {first + row + 1}"


def _line_of(name: str, line_of: Callable[[int], int], row: int) -> str:
    return f"{name}: line {line_of(row)}"
