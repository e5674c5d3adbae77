"""Reads the header of a Matrix Market file: a banner, comments, then a size line (math.nist.gov/MatrixMarket/formats.html)."""

from dataclasses import dataclass

from graphmill.core.errors import DataError
from graphmill.storage.importers.tables.table_files import TableFile


@dataclass(frozen=True)
class MatrixMarket:
    """The header of a square sparse matrix. An entry in row i, column j is an edge i → j. Ids count from 1."""

    num_nodes: int
    num_entries: int
    symmetric: bool  # the file has each pair of nodes once


def read_matrix_market(file: TableFile, banner: str, size: list[str]) -> MatrixMarket:
    """Makes the header from the banner and the fields of the size line. Raises DataError unless they describe a square matrix in coordinate form."""
    path, words = file.name, banner.lower().split()
    if len(words) != 5 or words[1:3] != ["matrix", "coordinate"]:
        raise DataError(f"{path}: expected '%%MatrixMarket matrix coordinate …' in the first line, got {banner[:80]!r}")
    if words[3] not in ("pattern", "real", "integer") or words[4] not in ("general", "symmetric"):
        raise DataError(
            f"{path}: expected a pattern, real or integer matrix, general or symmetric, got {banner[:80]!r}"
        )
    if len(size) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 16 for part in size):
        raise DataError(f"{path}: expected a size line of rows, columns and entries, got {' '.join(size)[:60]!r}")
    rows, columns, entries = map(int, size)
    if rows != columns:
        raise DataError(f"{path}: expected a square matrix, a node for each row and column, got {rows} by {columns}")
    # An entry takes at least four bytes, and deflate expands a byte to at most 1,032 bytes.
    if 4 * entries > file.num_bytes * (1032 if path.endswith(".gz") else 1) + 4:
        raise DataError(f"{path}: size line: {entries} entries cannot be in a file of {file.num_bytes} bytes")
    return MatrixMarket(rows, entries, words[4] == "symmetric")
