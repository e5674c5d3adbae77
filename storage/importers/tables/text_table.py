"""Reads one text file in blocks of whole lines. The file is CSV, TSV, or has columns between blanks (spaces or tabs). It may be compressed.

Real files have a byte order mark, comments (lines that begin with `#` or `%`), blank lines, and runs of blanks that mean one delimiter. The caller gives the
column types for the whole file. Each line is a row. A quote that is not closed on its line is a plain character. Errors name the line that does not fit. A
block is first parsed unchanged. Only if that fails, it is cleaned and parsed again.
"""

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from graphmill.core.errors import DataError
from graphmill.core.parallel_map import ordered_map
from graphmill.storage.format.arrow_files import array_from_numpy
from graphmill.storage.importers.columns.column_roles import NULLS, is_number
from graphmill.storage.importers.tables.table_files import TableFile

_READ_BYTES = 8 << 20
_MAX_LINE_BYTES = 8 << 20
_BOM = b"\xef\xbb\xbf"
_COMMENT = re.compile(rb"^[ \t]*(?!#N/A\b)[#%][^\n]*(?:\n|\Z)", re.MULTILINE)  # a first field #N/A is a value
_BLANK = re.compile(rb"^[ \t\r]*(?:\n|\Z)", re.MULTILINE)
_BLANKS = " \t"
_FIELD_MARKS = "\t,; |"  # delimiters that cannot be a part of a number


class FieldError(DataError):
    """A field does not have its column's type."""

    def __init__(self, message: str, place: int, field: str) -> None:
        super().__init__(message)
        self.place, self.field = place, field  # the index of the column, and the text of the field


@dataclass(frozen=True)
class TextFormat:
    """The format of a table's text files; all files of the table have the same format."""

    is_row: Callable[
        [list[str]], bool | None
    ]  # a function: whether the first line's fields are values (None: they may also be column names)
    option: str  # name of the option `header` in messages
    header: bool | None = None  # whether column names come first; None: `is_row` decides
    # one character; None: tab, comma, semicolon or space, the first of these that the first line has
    delimiter: str | None = None
    preamble: int = 0  # number of lines after the first comments that do not belong to the table


@dataclass(frozen=True)
class TextBlock:
    """Consecutive rows of a file."""

    table: pa.Table  # the requested columns; their names are their indices
    line_of: Callable[[int], int]  # returns the number, from 1, of the file's line that holds a row of this block


@dataclass(frozen=True)
class _Asked:
    """The columns that a reader requests, and the kinds of lines that it skips."""

    columns: Mapping[int, pa.DataType]
    required: bool
    skip_blank: bool
    comments: bool  # whether lines that begin with # or % are comments

    def is_passed_over(self, line: bytes) -> bool:
        """Whether the line is skipped because it is not a row."""
        return bool(self.comments and _COMMENT.match(line)) or (self.skip_blank and not line.strip())


@dataclass(frozen=True)
class _Parsed:
    raw: bytes
    table: pa.Table | None
    cleaned: bool
    problem: str


class TextTable:
    """A text file with the same number of fields in each line. Raises DataError for a file that cannot be read, and for a first line that contradicts the
    format's `header`."""

    def __init__(self, file: TableFile, form: TextFormat) -> None:
        self.file, self.path = file, file.name
        delimiter, preamble = form.delimiter, form.preamble
        lines, self._top, self._bom = self._first_lines(preamble + 1)
        self.preamble = [text.split() for _, _, text in lines[:preamble]]
        if len(lines) <= preamble:
            self.names, self.has_header = [], False
            return
        self._first_line, self._start, text = lines[preamble]
        mark = delimiter or next((mark for mark in "\t,; " if mark in text.strip(_BLANKS)), ",")
        # A run of blanks is one delimiter. But in a file with column names, two tabs in a row may enclose an empty field.
        ragged = mark in _BLANKS and re.search(r"[ \t]{2}|^[ \t]|[ \t]$", text) is not None
        self._delimiter, self._runs = mark, mark == " " or (delimiter is None and ragged)
        fields = self._fields(text, self._first_line)
        self._num_fields = len(fields)
        self.has_header = self._check_header(fields, form)
        if mark == "\t" and delimiter is None and not self.has_header:
            self._runs = True
        self.names = fields if self.has_header else [str(index) for index in range(len(fields))]
        if self.has_header:
            self._first_line += 1
            self._start += len(text.encode()) + 1
        # after a block that had to be cleaned, the next blocks are cleaned before their first parse
        self._dirty = False

    def blocks(
        self,
        columns: Mapping[int, pa.DataType],
        *,
        required: bool,
        skip_blank: bool = False,
        num_threads: int = 1,
        hashes: bool = False,
    ) -> Iterator[TextBlock]:
        """Yields the rows, one block after another. The file's columns have the names 0, 1 …

        `required`: no field of these columns may be empty. `skip_blank`: blank lines are skipped. Otherwise a blank line is a row of empty fields, except
        before column names, at the end of the file and, if fields are required, before the first row. `hashes`: a row may begin with `#` or `%`, so only
        lines above the first row are comments. Raises a DataError that names the first line that does not fit. A file without lines gives no block.
        """
        if not self.names:
            return
        # If the first column is text and is not read, a row may begin like a comment.
        asked = _Asked(columns, required, skip_blank, comments=not hashes and (self._runs or 0 in columns))
        from_top = not (self.has_header or required or skip_blank)
        line, start = self._top if from_top else (self._first_line, self._start)
        for parsed in ordered_map(partial(self._parse, asked), self._raw_blocks(start), num_threads):
            if parsed.table is None:
                raise self._located(parsed, line, asked)
            if parsed.cleaned:
                yield TextBlock(parsed.table, partial(_line_of, asked, parsed.raw, line))
                line += parsed.raw.count(b"\n")
            else:
                yield TextBlock(parsed.table, partial(int.__add__, line))
                line += parsed.table.num_rows

    def _parse(self, asked: _Asked, raw: bytes) -> _Parsed:
        problem = ""
        # In a column of text, comments and blanks would be parsed as values.
        dirty = self._dirty or any(map(pa.types.is_string, asked.columns.values()))
        for cleaned in (True,) if dirty else (False, True):
            try:
                table = self._converted(self._cleaned(raw, asked) if cleaned else raw, asked.columns)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                problem = str(error)
                continue
            # If a run of blanks is one delimiter, an empty field may be an error of parsing such a run.
            whole = asked.required or (self._runs and not cleaned)
            if not whole or not any(map(_has_hole, table.columns)):
                self._dirty = cleaned
                return _Parsed(raw, table, cleaned, "")
        return _Parsed(raw, None, True, problem)

    def _converted(self, text: bytes, columns: Mapping[int, pa.DataType]) -> pa.Table:
        asked = {str(index): kind for index, kind in columns.items()}
        if not text:
            return pa.table({name: pa.array([], kind) for name, kind in asked.items()})
        only_whole_numbers = len(asked) == self._num_fields and all(map(pa.types.is_int64, asked.values()))
        if only_whole_numbers and (numbers := _whole_numbers(text, self._delimiter, self._num_fields)) is not None:
            return pa.table({name: array_from_numpy(numbers[int(name)]) for name in asked})
        num_lines = text.count(b"\n") + (not text.endswith(b"\n"))
        try:
            # For this parser a quoted field may contain line breaks, so one open quote could swallow the rest of the block.
            if (table := self._read(text, asked, '"')).num_rows == num_lines:
                return table
        except (pa.ArrowException, UnicodeDecodeError):
            if b'"' not in text or not any(map(_has_open_quote, text.split(b"\n"))):
                raise
        if (table := self._read(text, asked, False)).num_rows == num_lines:
            return table
        raise pa.ArrowInvalid(f"expected {num_lines} rows, got {table.num_rows}")

    def _read(self, text: bytes, asked: Mapping[str, pa.DataType], quote: str | bool) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(
                use_threads=False,
                block_size=len(text) + 1,
                column_names=[str(index) for index in range(self._num_fields)],
            ),
            pa_csv.ParseOptions(delimiter=self._delimiter, quote_char=quote, ignore_empty_lines=False),
            pa_csv.ConvertOptions(
                column_types=asked, include_columns=list(asked), null_values=list(NULLS), strings_can_be_null=False
            ),
        )

    def _cleaned(self, raw: bytes, asked: _Asked) -> bytes:
        if asked.comments and (b"#" in raw or b"%" in raw):
            raw = _COMMENT.sub(b"", raw)
        if self._runs:
            mark = self._delimiter.encode()
            raw = raw.replace(b" " if mark == b"\t" else b"\t", mark)
            while mark * 2 in raw:
                raw = raw.replace(mark * 2, mark)
            for end in (b"\n", b"\r\n"):
                raw = raw.replace(mark + end, end)
            raw = raw.replace(b"\n" + mark, b"\n").strip(mark)
        return _BLANK.sub(b"", raw) if asked.skip_blank else raw

    def _raw_blocks(self, start: int) -> Iterator[bytes]:
        """Yields the file from byte `start` on, in blocks that end with a line that is not blank."""
        rest = b""
        with self.file.opened() as stream:
            stream.read(self._bom + start)
            while more := stream.read(_READ_BYTES):
                end = more.rfind(b"\n") + 1
                lines = b"".join([rest, memoryview(more)[:end]]) if end else b""
                rest = more[end:] if end else rest + more
                last = lines[-4:]  # mostly the end of a line that is not blank; stripping all lines would copy them
                text = len(lines) - len(last) + len(last.rstrip()) if last.strip() else len(lines.rstrip())
                if text:
                    end = lines.find(b"\n", text) + 1
                    yield lines[:end]
                rest = lines[end if text else 0 :] + rest
                if len(rest.lstrip()) > _MAX_LINE_BYTES:
                    raise DataError(
                        f"{self.path}: expected lines of at most {_MAX_LINE_BYTES} bytes, found a longer one"
                    )
                if len(rest) > _MAX_LINE_BYTES:
                    raise DataError(
                        f"{self.path}: expected a row in each {_MAX_LINE_BYTES} bytes, found only blank lines; remove them"
                    )
        if rest.strip():
            yield rest

    def _first_lines(self, count: int) -> tuple[list[tuple[int, int, str]], tuple[int, int], int]:
        """Returns three values: (number, offset, text) of each of the first lines that are neither blank nor comments; (number, offset) of the first line that
        is not a comment; the length of the byte order mark."""
        with self.file.opened() as stream:
            head = stream.read(_MAX_LINE_BYTES)
        bom = len(_BOM) if head.startswith(_BOM) else 0
        head = head[bom:]
        self.banner = head[: head.find(b"\n") if b"\n" in head else len(head)][:200].decode("utf-8", "replace").strip()
        lines: list[tuple[int, int, str]] = []
        top: tuple[int, int] | None = None
        start = number = 0
        while start < len(head) and len(lines) < count:
            end = head.find(b"\n", start)
            end = len(head) if end < 0 else end
            number += 1
            line = head[start:end]
            if top is None and not _COMMENT.match(line):
                top = number, start
            if line.strip() and not _COMMENT.match(line):
                try:
                    lines.append((number, start, line.decode("utf-8")))
                except UnicodeDecodeError as error:
                    raise DataError(f"{self.path}: line {number}: expected UTF-8 text, got: {error}") from error
            start = end + 1
        if len(lines) < count and len(head) == _MAX_LINE_BYTES - bom:
            raise DataError(f"{self.path}: expected a row in the first {_MAX_LINE_BYTES} bytes, found none")
        return lines, top or (1, 0), bom

    def _fields(self, line: str, number: int) -> list[str]:
        line = line.rstrip("\r\n")
        if self._runs:
            return [field.strip('"') for field in line.split()]
        try:
            return [field.strip() for field in next(csv.reader([line], delimiter=self._delimiter), [])]
        except csv.Error as error:
            raise DataError(f"{self.path}: line {number}: cannot read this line: {error}") from error

    def _check_header(self, fields: list[str], form: TextFormat) -> bool:
        where, first_row = f"{self.path}: line {self._first_line}", repr(self._delimiter.join(fields)[:60])
        is_row = form.is_row(fields)
        if form.header is None:
            if is_row is None:
                raise DataError(
                    f"{where}: cannot tell column names from a row in {first_row}; set {form.option} True or False"
                )
            return not is_row
        # names that pandas writes for unnamed columns
        numbered = fields == [str(index) for index in range(len(fields))]
        if form.header and is_row and not numbered:
            raise DataError(f"{where}: expected column names, found a row: {first_row}; set {form.option} False")
        if not form.header and is_row is False:
            raise DataError(f"{where}: expected a row, found column names: {first_row}; set {form.option} True")
        return form.header

    def _located(self, parsed: _Parsed, line: int, asked: _Asked) -> DataError:
        """Returns the error for the first line in a block that does not fit."""
        lines = parsed.raw.removesuffix(b"\n").split(b"\n")
        open_quote = ""
        for number, raw in enumerate(lines, line):
            where, text = f"{self.path}: line {number}", raw.decode("utf-8", "replace").strip("\r")
            if asked.is_passed_over(raw) or not (text.strip() or asked.required):
                continue
            if not text.strip():
                return DataError(f"{where}: expected a row, found a blank line; remove it")
            hint = ""
            if _has_open_quote(raw) and not self._runs:
                hint = "; quotes must be closed on their line"
                unclosed = f"{where}: expected quotes that are closed on their line, found {text[:60]!r}"
                open_quote = open_quote or unclosed
                fields = [field.strip() for field in text.split(self._delimiter)]
            else:
                fields = self._fields(text, number)
            if len(fields) != self._num_fields:
                expected = f"{self._num_fields} fields, as many as in the first line"
                return DataError(f"{where}: expected {expected}, found {len(fields)}: {text[:60]!r}{hint}")
            for index, kind in asked.columns.items():
                if problem := _misfit(fields[index], kind, asked.required):
                    return FieldError(f"{where}: column {self.names[index]!r}: {problem}", index, fields[index])
        if open_quote:
            return DataError(open_quote)
        last = line + len(lines) - 1
        return DataError(f"{self.path}: lines {line} to {last}: cannot read these lines: {parsed.problem}")


def _whole_numbers(text: bytes, delimiter: str, num_fields: int) -> np.ndarray | None:
    """int64 [num_fields, num_lines] if all fields are digits, perhaps after a minus sign; None for other text, which needs Arrow's slower parser."""
    from graphmill.storage.importers.columns.whole_number_kernels import count_lines, read_whole_numbers

    if delimiter not in _FIELD_MARKS:
        return None
    characters = np.frombuffer(text, np.uint8)
    columns = np.empty((num_fields, count_lines(characters) + (not text.endswith(b"\n"))), np.int64)
    return columns if read_whole_numbers(characters, ord(delimiter), columns) >= 0 else None


def _line_of(asked: _Asked, raw: bytes, line: int, row: int) -> int:
    """Returns the line number of a row in a cleaned block that begins at line number `line`."""
    rows = (number for number, text in enumerate(raw.split(b"\n"), line) if not asked.is_passed_over(text))
    return next(itertools.islice(rows, row, None), line)


def _has_hole(column: pa.ChunkedArray) -> bool:
    """Whether some field is empty. In a column of text only "" is empty, because `NA` may be a name."""
    if pa.types.is_string(column.type):
        return bool(pc.any(pc.equal(pc.binary_length(column), 0)).as_py())
    return column.null_count > 0


def _has_open_quote(line: bytes) -> bool:
    return line.count(b'"') % 2 == 1


def _misfit(field: str, kind: pa.DataType, required: bool) -> str | None:
    """Explains why a field does not have this type. Returns None if it does."""
    if not field or (field in NULLS and not pa.types.is_string(kind)):
        return f"expected a value, found {repr(field) if field else 'an empty field'}" if required else None
    if pa.types.is_integer(kind) and not re.fullmatch("-?[0-9]+", field):
        return f"expected whole numbers, found {field[:40]!r}"
    if pa.types.is_integer(kind) and not -(2**63) <= int(field[:40]) < 2**63:
        return f"expected whole numbers below 2**63, found {field[:40]}"
    if pa.types.is_floating(kind) and not is_number(field):
        return f"expected numbers, found {field[:40]!r}"
    if pa.types.is_boolean(kind) and field not in (
        "0",
        "1",
        *(word for word in ("true", "false") for word in (word, word.title(), word.upper())),
    ):
        return f"expected true or false, found {field[:40]!r}"
    return None
