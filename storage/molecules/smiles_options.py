"""Options for reading a table of SMILES. They are in a separate module, so that a command line need not load the reader."""

from dataclasses import dataclass
from typing import Literal

from graphmill.core.errors import ConfigError
from graphmill.storage.importers.tables import edge_list_options as tables

AUTO = "auto"
TABLE_ENDINGS = (*tables.TABLE_ENDINGS, *(".smi" + packed for packed in tables.COMPRESSED))


@dataclass(frozen=True)
class SmilesOptions:
    """Options for a table of SMILES."""

    smiles: str = "smiles"
    """Column of the SMILES, or of CXSMILES with an extension |…| after a space. Without header, `0` is the first column."""
    targets: tuple[str, ...] = (AUTO,)
    """Columns of numbers. An empty field, `nan`, `NA`, `NULL` or `None` is a missing target. auto: the only column of numbers
    that has no other role, if there is one. none: no targets, for molecules that are only predicted."""
    id: Literal["auto"] | str | None = AUTO
    """Column of ids. Predictions have these ids, too. auto: the first column that has the name of an id (`id`, `cid`, `mol_id`, `name` …) and a distinct text
    or whole number in every row, else the first column with a distinct text in every row. none: ids are row numbers."""
    header: bool = True
    """Whether the first line has column names. Otherwise the names of columns are their numbers, from 0."""
    delimiter: str = ","
    """Delimiter: one character, or `tab`."""
    split_column: str | None = None
    """Column with train, valid (or val) or test. A row with an empty field or `NA` is in no part."""
    split_file: str | None = None
    """An .npz file with row numbers in arrays train, valid (or val) and test. Rows count from 0, without the header. If neither a column nor a file gives the
    split, a hash of the SMILES splits the rows 80/10/10."""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 and self.delimiter != "tab":
            raise ConfigError(f"delimiter must be one character or tab, got {self.delimiter!r}; set --table.delimiter")
        if self.split_column is not None and self.split_file is not None:
            raise ConfigError("expected a split column or a split file, got both; leave one of --table.split-* out")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"targets: expected distinct columns, got {self.targets}; set --table.targets")
