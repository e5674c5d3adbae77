"""Reads tables of SMILES and targets (text, Parquet or Arrow). A column, a file of row numbers, or a hash of the SMILES gives the split.

A row that cannot be read, for example because it has too few fields or a target is not a number, is rejected with its line. Blank lines are skipped.
"""

import csv
import hashlib
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.format.graph_set_manifest import Reject
from graphmill.storage.graph_sets.graph_set import ID_TYPES
from graphmill.storage.importers.columns.column_roles import NULLS, SPLIT_COLUMNS, is_number
from graphmill.storage.importers.files.npz_members import open_npz
from graphmill.storage.importers.tables.table import ColumnarFile
from graphmill.storage.importers.tables.table_files import TableFile, table_files
from graphmill.storage.molecules.molecule_source import HASHED, THREE_PARTS, MoleculeInfo, MoleculeRows, hashed_split
from graphmill.storage.molecules.smiles_columns import BOOLEANS, column_roles
from graphmill.storage.molecules.smiles_options import AUTO, TABLE_ENDINGS, SmilesOptions

_ALIASES = {"val": "valid", "validation": "valid", "dev": "valid"}
_MAX_TARGET = float(np.finfo(np.float32).max)
_MAX_FIELD = 2**24  # longest field; csv's default of 131,072 is too short for the CXSMILES of a protein


@dataclass(frozen=True)
class RowSplit:
    """A split that a file gives as row numbers of each part. Rows that the file does not name are in no part."""

    names: tuple[str, ...]
    row: np.ndarray  # int64, ascending
    code: np.ndarray  # int8, for each entry of `row`: 1 + index of the row's part in `names`
    provenance: str

    @staticmethod
    def of(parts: Mapping[str, np.ndarray], where: str) -> "RowSplit":
        """Makes a split from the row numbers of each part. Raises DataError unless they are distinct row numbers."""
        for name, rows in parts.items():
            whole = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer)
            if not whole or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < 2**63):
                raise DataError(f"{where}: part {name!r}: expected row numbers [k], got {rows.dtype} {rows.shape}")
        row = np.concatenate([np.empty(0, np.int64), *(rows.astype(np.int64) for rows in parts.values())])
        code = np.repeat(np.arange(1, len(parts) + 1, dtype=np.int8), [len(rows) for rows in parts.values()])
        order = np.argsort(row, kind="stable")
        row, code = row[order], code[order]
        repeated = np.flatnonzero(row[1:] == row[:-1])
        if len(repeated):
            name = list(parts)[code[repeated[0] + 1] - 1]
            raise DataError(
                f"{where}: part {name!r}: expected each row in one part and once, got row {row[repeated[0]]} again"
            )
        digest = hashlib.sha256(row.tobytes() + code.tobytes()).hexdigest()
        return RowSplit(tuple(parts), row, code, f"rows of {Path(where).name}, sha256 of rows and codes {digest}")

    @property
    def end(self) -> int:
        """The last row number that is in a part, plus 1."""
        return int(self.row[-1]) + 1 if len(self.row) else 0

    def codes(self, num_rows: int) -> np.ndarray:
        """Returns the code of each row, int8 [num_rows]. 0: the row is in no part."""
        codes = np.zeros(num_rows, np.int8)
        inside = self.row < num_rows
        codes[self.row[inside]] = self.code[inside]
        return codes


def split_from_file(path: str) -> RowSplit:
    """Reads a split from an .npz file with arrays of row numbers named train, valid (or val) and test. Raises DataError for other content."""
    with open_npz(path) as arrays:
        if not arrays.names or not {_ALIASES.get(name, name) for name in arrays.names} <= set(THREE_PARTS):
            names = ", ".join(arrays.names)[:200] or "none"
            raise DataError(f"{path}: expected arrays train, valid (or val) and test, found {names}")
        parts = {_ALIASES.get(name, name): arrays[name] for name in arrays.names}
    return RowSplit.of({name: parts.get(name, np.empty(0, np.int64)) for name in THREE_PARTS}, path)


class SmilesTable:
    """A `MoleculeSource` from a table at a path or fsspec URL. The table is read once for the checksum, and again for the chunks."""

    def __init__(
        self,
        path: str,
        options: SmilesOptions | None = None,
        row_split: RowSplit | None = None,
        name: str | None = None,
    ) -> None:
        """`row_split` takes precedence over the options' split. Raises DataError for an unreadable table, ConfigError for missing columns."""
        self._path, self._options = path, options or SmilesOptions()
        self._files = table_files(path, TABLE_ENDINGS)
        self._names: tuple[int, list[str]] | None = None  # line and fields of the first file's header
        self._has_header = self._options.header or not self._files[0].is_text
        if row_split is None and self._options.split_file is not None:
            row_split = split_from_file(self._options.split_file)
        self._row_split = row_split
        digest, num_lines = self._checksum()
        # The table's number of lines limits the length, not the row numbers in the split. The last line may have no line break.
        self._row_code = None if row_split is None else row_split.codes(num_lines + 1)
        header = self._first_line()
        self._num_columns = len(header)
        names = (
            [name.strip() for name in header] if self._has_header else [str(column) for column in range(len(header))]
        )
        named = [name for name in names if name.lower() in SPLIT_COLUMNS]
        if self._has_header and len(named) == 1 and not (row_split or self._options.split_column):
            self._options = replace(self._options, split_column=named[0])
        self._smiles = self._column(names, self._options.smiles)
        self._split = None if self._options.split_column is None else self._column(names, self._options.split_column)
        for target in self._options.targets if self._options.targets != (AUTO,) else ():
            self._column(names, target)
        used = (self._options.smiles, self._options.split_column)
        roles = column_roles(path, names, used, self._options, (fields for _, fields in self._rows()))
        self._targets = [self._column(names, target) for target in roles.targets]
        self._id = None if roles.id is None else self._column(names, roles.id)
        if row_split is not None:
            split = row_split.provenance
        elif self._options.split_column is not None:
            split = f"column {self._options.split_column}"
        else:
            split = HASHED if roles.targets else "none, as there are no targets"
        self.info = MoleculeInfo(
            name=name or Path(split_url(path)[1]).name.split(".")[0],
            identity=repr((digest, sorted(asdict(self._options).items()), roles.targets, roles.id, split)),
            target_names=roles.targets,
            split_names=THREE_PARTS if row_split is None else row_split.names,
            num_rows=max(num_lines - self._has_header * len(self._files), 0),
            provenance={
                "source": Path(path).name,
                "source_sha256": digest,
                "split": split,
                **({"columns": str(roles)} if roles.id is not None or roles.unused else {}),
            },
            id_kind=roles.id_kind,
            columns=str(roles),
        )

    def chunks(self, rows: int) -> Iterator[MoleculeRows]:
        count = 0
        reader = self._rows()
        for index in itertools.count():
            values: list[tuple] = []
            rejects, first = [], count
            for number, fields in itertools.islice(reader, rows):
                parsed = self._parse(fields, count)
                if isinstance(parsed, str):
                    code = 0 if self._row_code is None else int(self._row_code[count : count + 1].sum())
                    rejects.append(Reject(number, ",".join(fields), parsed, code))
                else:
                    own = None if self._id is None else fields[self._id].strip()
                    values.append((count, number, *parsed, own))
                count += 1
            if count == first:
                break
            row, line, smiles, target, split, ids = zip(*values, strict=True) if values else ((), (), (), (), (), ())
            yield MoleculeRows(
                index=index,
                row=np.array(row, np.int64),
                line=np.array(line, np.int64),
                smiles=list(smiles),
                target=np.array(target, np.float32).reshape(len(row), len(self._targets)),
                split=np.array(split, np.int8),
                ids=self._ids(ids),
                rejects=tuple(rejects),
            )
        if self._row_split is not None and self._row_split.end > count:
            raise DataError(
                f"{self._path}: expected the rows that the split names, up to {self._row_split.end - 1}, got {count} rows; "
                "the split is of another table"
            )

    def _parse(self, fields: list[str], row: int) -> tuple[str, list[float], int] | str:
        """Returns (SMILES, targets, split code) of a row, or the reason to reject the row."""
        if len(fields) != self._num_columns:
            return f"expected {self._num_columns} fields, got {len(fields)}"
        smiles, targets = fields[self._smiles], []
        for column in self._targets:
            text = fields[column].strip()
            if text not in NULLS and not is_number(text) and text.lower() not in BOOLEANS:
                return f"target {text[:40]!r} is not a number"
            value = math.nan if text in NULLS else float(BOOLEANS.get(text.lower(), text))
            if abs(value) > _MAX_TARGET:
                return f"target {text[:40]!r} is not finite"
            targets.append(value)
        if self._row_code is not None:
            return smiles, targets, int(self._row_code[row]) if row < len(self._row_code) else 0
        if self._split is None:
            return smiles, targets, hashed_split(smiles) if targets else 0
        part = fields[self._split].strip()
        part = "" if part in NULLS else _ALIASES.get(part.lower(), part.lower())
        if part and part not in THREE_PARTS:
            return f"split {part[:40]!r} is none of train, valid and test"
        return smiles, targets, THREE_PARTS.index(part) + 1 if part else 0

    def _ids(self, texts: Sequence[str | None]) -> pa.Array | None:
        if self.info.id_kind is None:
            return None
        is_number = self.info.id_kind == "number"
        return pa.array([int(text) if is_number and text else text for text in texts], ID_TYPES[self.info.id_kind])

    def _column(self, names: list[str], name: str) -> int:
        if names.count(name) != 1:
            kind = "the header has" if self._has_header else "there are the columns"
            raise ConfigError(
                f"{self._path}: expected one column {name!r}, {kind} {', '.join(names)[:200]}; "
                "set --table.smiles, --table.targets, --table.split_column or --table.header no"
            )
        return names.index(name)

    def _first_line(self) -> list[str]:
        if (first := next(self._rows(skip_header=False), None)) is not None:
            return first[1]
        raise DataError(f"{self._path}: expected a table of SMILES, got an empty file")

    def _rows(self, skip_header: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yields (line number, fields) of each row. Skips blank lines. Line numbers continue from one file to the next."""
        done = 0
        for file in self._files:
            rows = self._text_rows(file) if file.is_text else self._columnar_rows(file)
            if skip_header and self._has_header:
                first = next(rows, None)
                self._names = self._names or first
                if first and [name.strip() for name in first[1]] != [
                    name.strip() for name in (self._names or first)[1]
                ]:
                    raise DataError(
                        f"{file.name}: expected the columns of {self._files[0].name}, {', '.join((self._names or first)[1])[:100]}, found {', '.join(first[1])[:100]}"
                    )
            line = 0
            for line, fields in rows:
                yield done + line, fields
            done += line

    def _text_rows(self, file: TableFile) -> Iterator[tuple[int, list[str]]]:
        delimiter = "\t" if self._options.delimiter == "tab" else self._options.delimiter
        csv.field_size_limit(_MAX_FIELD)
        with file.opened() as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=delimiter)
            try:
                yield from ((reader.line_num, fields) for fields in reader if fields)
            except (UnicodeDecodeError, csv.Error) as error:
                raise DataError(
                    f"{file.name}: line {reader.line_num + 1}: expected UTF-8 text in columns: {one_line(error)}"
                ) from error

    @staticmethod
    def _columnar_rows(file: TableFile) -> Iterator[tuple[int, list[str]]]:
        """Yields the rows of a Parquet or Arrow file as text. Line 1 has the column names."""
        table = ColumnarFile(file)
        yield 1, table.names
        line = 1
        for block in table.blocks(range(len(table.names)), rows=10_000):
            try:
                columns = [
                    [""] * len(column)
                    if pa.types.is_nested(column.type)
                    else column.cast(pa.string()).fill_null("").to_pylist()
                    for column in block.table.columns
                ]
            except pa.ArrowException as error:
                raise DataError(f"{file.name}: expected columns of text and numbers: {one_line(error)}") from error
            for fields in zip(*columns, strict=True):
                line += 1
                yield line, list(fields)

    def _checksum(self) -> tuple[str, int]:
        """Returns the SHA-256 of the uncompressed text (of other files: of their bytes), and an upper bound on the number of lines."""
        digest, lines = hashlib.sha256(), 0
        for file in self._files:
            if not file.is_text:
                lines += ColumnarFile(file).num_rows or sum(1 for _ in self._columnar_rows(file))
            with file.opened() as stream:
                while block := stream.read(2**20):
                    digest.update(block)
                    lines += block.count(b"\n") if file.is_text else 0
        return digest.hexdigest(), lines + sum(not file.is_text for file in self._files)
