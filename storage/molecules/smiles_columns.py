"""Finds the columns of ids and targets in a table of SMILES by the options, or else by names and values.

Unclear columns are never chosen. A column with the name of an id is not a target, text is not a target, and several columns of numbers are an error.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.importers.columns.column_roles import NULLS, is_number, is_otherwise_written
from graphmill.storage.molecules.smiles_options import AUTO, SmilesOptions

# Matches names of ids, such as `id`, `mol_id`, `PUBCHEM_CID`, `compoundId`, `Molecule Name`. pandas names an index "" or "Unnamed: 0".
_ID_NAME = re.compile(
    r"(?i:(.*[ _.-])?(id|cid|sid|uid|uuid|idx|index|name|identifier)|(mol|molecule|compound)id|unnamed: [0-9]+|)|.*[a-z]I[dD]"
)
BOOLEANS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}  # values of these words as targets, in lower case
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # whole numbers in their only spelling, without leading zeros


@dataclass(frozen=True)
class ColumnRoles:
    """The roles of a table's columns, by name."""

    targets: tuple[str, ...]
    id: str | None
    id_kind: str | None  # "number" or "string"; None: there is no column of ids
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = {"targets": self.targets, "id": () if self.id is None else (self.id,), "unused": self.unused}
        return "; ".join(f"{part} {', '.join(map(_printable, names)) or 'none'}" for part, names in parts.items())


def _printable(name: str) -> str:
    return name or "''"


class _Column:
    """Observes the fields of a column. The column is open while it may still be a column of ids."""

    def __init__(self, name: str, *, named: bool) -> None:
        self.name, self.is_named_id = name, named
        self.has_empty = self.has_number = self.has_text = False
        self.is_digits = self.is_whole = self.is_otherwise = True
        self._digests = array("Q")

    def look(self, field: str) -> bool:
        """Observes one field. Returns whether the column is still open."""
        text = field.strip()
        self.has_empty |= not text
        if text not in NULLS:
            number = is_number(text) or text.lower() in BOOLEANS
            self.has_number |= number
            self.has_text |= not number
        self.is_otherwise &= not self.is_named_id and text not in NULLS and is_otherwise_written(text)
        self.is_digits &= text.isdecimal()
        self.is_whole &= _WHOLE.fullmatch(text) is not None
        self._digests.append(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))
        return self.is_named_id or not self.has_number

    @property
    def is_id(self) -> bool:
        """Whether the column may hold ids: its values are all distinct, and are text, or whole numbers if the column has the name of an id."""
        kind = (
            self.has_text
            if not self.has_number
            else self.is_named_id and (self.is_digits or self.is_whole or self.has_text)
        )
        return kind and not self.has_empty and not self.is_otherwise and self.repeated() is None

    @property
    def id_kind(self) -> str:
        return "number" if self.is_whole else "string"

    def repeated(self) -> int | None:
        """The number (from 0) of the first row that repeats a field of an earlier row; None if there is none."""
        _, first = np.unique(np.asarray(self._digests, np.uint64), return_index=True)
        is_first = np.zeros(len(self._digests), bool)
        is_first[first] = True
        return None if is_first.all() else int(np.argmin(is_first))


def column_roles(
    path: str, names: Sequence[str], used: Sequence[str | None], options: SmilesOptions, rows: Iterable[list[str]]
) -> ColumnRoles:
    """Finds the roles of the columns that are not in `used`. Reads `rows` only if the options do not decide all roles.

    Raises ConfigError if several columns may be targets, and DataError if the options' column of ids has repeated values.
    """
    is_open = options.targets == (AUTO,)
    targets = () if is_open else options.targets
    others = [name for name in names if name not in used and name not in targets]
    asked = None if options.id == AUTO else options.id
    if asked is not None and asked not in others:
        raise ConfigError(f"{path}: id: expected a column of {', '.join(others)[:200]}, got {asked!r}; set --table.id")
    looked_at = [asked] if asked is not None and not is_open else others
    columns = {
        name: _Column(name, named=name == asked or (options.header and _ID_NAME.fullmatch(name) is not None))
        for name in looked_at
        if options.id is not None or is_open
    }
    _look(columns, names, rows)
    if asked is not None:
        chosen: _Column | None = columns[asked]
        _check_asked(path, columns[asked])
    else:
        named_first = sorted(columns.values(), key=lambda column: not column.is_named_id)
        chosen = next((column for column in named_first if options.id is not None and column.is_id), None)
    if is_open:
        targets = tuple(column.name for column in columns.values() if column.has_number and not column.is_named_id)
    if len(targets) > 1 and is_open:
        raise ConfigError(
            f"{path}: expected the names of the target columns, which may be any of {', '.join(targets)[:200]}; set --table.targets"
        )
    id_name = None if chosen is None else chosen.name
    unused = tuple(name for name in others if name != id_name and name not in targets)
    return ColumnRoles(targets, id_name, None if chosen is None else chosen.id_kind, unused)


def _look(columns: dict[str, _Column], names: Sequence[str], rows: Iterable[list[str]]) -> None:
    """Lets the columns observe rows until every column is closed. Skips rows with a wrong number of fields, because they will be rejected."""
    opened = [(names.index(name), column) for name, column in columns.items()]
    for fields in rows if opened else ():
        if len(fields) == len(names):
            opened = [(place, column) for place, column in opened if column.look(fields[place])]
            if not opened:
                break


def _check_asked(path: str, column: _Column) -> None:
    row = column.repeated()
    if column.has_empty or row is not None:
        found = "an empty field" if column.has_empty else f"that of an earlier row in row {row}, from 0"
        raise DataError(
            f"{path}: column {column.name!r}: expected another id in every row, got {found}; mend it, or set another --table.id"
        )
