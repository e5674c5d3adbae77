"""Options for reading a table of SMILES, apart from the reader: a command line names them without loading it."""

from dataclasses import dataclass
from typing import Literal

from graphmill.core.errors import ConfigError
from graphmill.storage.importers.tables import edge_list_options as tables

AUTO = "auto"
TABLE_ENDINGS = (*tables.TABLE_ENDINGS, *(".smi" + packed for packed in tables.COMPRESSED))


@dataclass(frozen=True)
class SmilesOptions:
    """How to read a table of SMILES."""

    smiles: str = "smiles"
    """Column of the SMILES; CXSMILES, with an extension |…| after a space, are read too. Without header, `0` is the first column."""
    targets: tuple[str, ...] = (AUTO,)
    """Columns of numbers; an empty field, `nan`, `NA`, `NULL` or `None` is a missing target. auto: the one column of numbers
    that is left, if it is one; none: none, and without targets the molecules are for prediction only."""
    id: Literal["auto"] | str | None = AUTO
    """Column of ids, which come back in predictions; auto: the first other column named as an id (`id`, `cid`, `mol_id`, `name` …) that has another
    text or whole number in every row, else the first with another text; none: rows are named by their numbers."""
    header: bool = True
    """Whether the first line holds the names of columns; else columns are named by their number, from 0."""
    delimiter: str = ","
    """One character, or `tab`."""
    split_column: str | None = None
    """Column with train, valid (or val) or test; empty or `NA`: in none."""
    split_file: str | None = None
    """.npz with row numbers (from 0, without the header) as arrays train, valid (or val) and test. Default for both: the hashed SMILES, 80/10/10."""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 and self.delimiter != "tab":
            raise ConfigError(f"delimiter must be one character or tab, got {self.delimiter!r}; set --table.delimiter")
        if self.split_column is not None and self.split_file is not None:
            raise ConfigError("expected a split column or a split file, got both; leave one of --table.split-* out")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"targets: expected distinct columns, got {self.targets}; set --table.targets")
