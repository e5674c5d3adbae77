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
    """Columns of numbers; an empty field, `nan`, `NA`, `NULL` or `None` is a missing target. auto: the only column of numbers
    that has no other role, if any; none: no targets, for molecules that are only predicted."""
    id: Literal["auto"] | str | None = AUTO
    """Column of ids, which predictions repeat; auto: the first column named as an id (`id`, `cid`, `mol_id`, `name` …) with a distinct text or whole number
    in every row, else the first column with a distinct text in every row; none: rows are named by their numbers."""
    header: bool = True
    """Whether the first line holds column names; otherwise columns are named by their number, from 0."""
    delimiter: str = ","
    """Delimiter: one character, or `tab`."""
    split_column: str | None = None
    """Column with train, valid (or val) or test; empty or `NA`: in no part."""
    split_file: str | None = None
    """.npz with row numbers (from 0, without the header) as arrays train, valid (or val) and test. Without column and file, hashed SMILES are split 80/10/10."""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 and self.delimiter != "tab":
            raise ConfigError(f"delimiter must be one character or tab, got {self.delimiter!r}; set --table.delimiter")
        if self.split_column is not None and self.split_file is not None:
            raise ConfigError("expected a split column or a split file, got both; leave one of --table.split-* out")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"targets: expected distinct columns, got {self.targets}; set --table.targets")
