"""Node columns from their own files: features, labels and splits as `.npy`, Parquet or CSV, one row per node.

A `.npy` is mapped, whatever its size; Parquet and CSV are read into memory.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from storage.errors import DataError
from storage.importers.array_graph import NPY_ERRORS, label_column
from storage.source import SPLIT_NAMES, SPLIT_TEST


def read_features(path: str | Path) -> np.ndarray:
    """[num_nodes, dim]: a mapped `.npy`, or a Parquet file with one list column or with numbers in every column."""
    path = Path(path)
    if path.suffix == ".npy":
        matrix = _load_npy(path)
    else:
        table = _read_table(path)
        listed = [field for field in table.schema if _is_list(field.type)]
        matrix = _list_rows(table.column(listed[0].name), path) if listed else _number_columns(table, path)
    if matrix.ndim != 2 or matrix.dtype.kind not in "iufb":
        raise DataError(f"{path}: expected numbers of shape [num_nodes, dim], got {matrix.dtype} {list(matrix.shape)}")
    return matrix


def read_labels(path: str | Path) -> np.ndarray:
    """int64 or float32 [num_nodes]: a `.npy`, or the column `label`, or the only column, of a Parquet or CSV file."""
    path = Path(path)
    if path.suffix == ".npy":
        return label_column(_load_npy(path), str(path))
    table = _read_table(path, "label")
    name = "label" if "label" in table.column_names else table.column_names[0]
    if name != "label" and table.num_columns != 1:
        raise DataError(f"{path}: expected a column 'label' or one column, found {', '.join(table.column_names)}")
    column = table.column(name)
    if pa.types.is_integer(column.type) and column.null_count:
        table = table.set_column(table.column_names.index(name), name, column.fill_null(-1))  # unlabelled
    return label_column(_column(table, name, path), str(path))


def read_splits(path: str | Path) -> np.ndarray:
    """int8 [num_nodes, num_split_sets] of SPLIT_* codes, or of their names in Parquet and CSV; one column per split set."""
    path = Path(path)
    if path.suffix == ".npy":
        codes = _load_npy(path)
        codes = codes[:, None] if codes.ndim == 1 else codes
    else:
        table = _read_table(path, "split")
        columns = [_split_codes(table.column(name), path) for name in table.column_names]
        codes = np.stack(columns, axis=1)
    if codes.ndim != 2 or codes.dtype.kind not in "iu":
        raise DataError(f"{path}: expected integer codes of shape [num_nodes, sets], got {codes.dtype} {codes.shape}")
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) <= SPLIT_TEST:
        found = f"{int(codes.min())} to {int(codes.max())}"
        raise DataError(f"{path}: split codes must be 0 none, 1 train, 2 valid or 3 test, got {found}")
    return codes.astype(np.int8)


def _load_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except NPY_ERRORS as error:
        raise DataError(f"{path}: expected a plain .npy array, got: {error}") from error


def _read_table(path: Path, only_column: str | None = None) -> pa.Table:
    """The table of a Parquet or CSV file; a CSV whose first field is a number has no header: its column is `only_column`."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            return pa_parquet.read_table(path)
        if path.suffix == ".csv":
            first = path.open(encoding="utf-8").readline().strip().lstrip("+-")
            headless = only_column is not None and first.replace(".", "", 1).isdigit()
            return pa_csv.read_csv(path, pa_csv.ReadOptions(column_names=[only_column] if headless else None))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read this file: {error}") from error
    raise DataError(f"{path}: expected a file ending in .npy, .parquet or .csv")


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _list_rows(column: pa.ChunkedArray, path: Path) -> np.ndarray:
    if column.null_count:
        raise DataError(f"{path}: expected a list in every row, found {column.null_count} empty rows")
    rows = [np.asarray(chunk.flatten().to_numpy(zero_copy_only=False), np.float32) for chunk in column.chunks]
    values = np.concatenate(rows) if rows else np.empty(0, np.float32)
    num_rows = len(column)
    dim = len(values) // num_rows if num_rows else 0
    lengths = np.concatenate([[0], *(_lengths(chunk) for chunk in column.chunks)])[1:]
    if np.any(lengths != dim):
        raise DataError(f"{path}: expected lists of one length, found lengths {lengths.min()} to {lengths.max()}")
    return values.reshape(num_rows, dim)


def _lengths(chunk: pa.Array) -> np.ndarray:
    if pa.types.is_fixed_size_list(chunk.type):
        return np.full(len(chunk), chunk.type.list_size)
    return chunk.value_lengths().to_numpy(zero_copy_only=False)


def _number_columns(table: pa.Table, path: Path) -> np.ndarray:
    return np.stack([_column(table, name, path).astype(np.float32) for name in table.column_names], axis=1)


def _column(table: pa.Table, name: str, path: Path) -> np.ndarray:
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(f"{path}: column {name!r}: expected numbers, found {column.type}")
    return column.to_numpy()  # an empty field becomes NaN: an unknown target, or a feature that ingestion refuses


def _split_codes(column: pa.ChunkedArray, path: Path) -> np.ndarray:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_numpy()
    code_of = {name: code for code, name in enumerate(SPLIT_NAMES)} | {"val": SPLIT_NAMES.index("valid"), "": 0}
    names = np.asarray(column.fill_null("").to_numpy(), dtype=object)
    unknown = sorted(set(names) - set(code_of))
    if unknown:
        raise DataError(f"{path}: splits must be {', '.join(SPLIT_NAMES)}, got {unknown[0]!r}")
    return np.array([code_of[name] for name in names], dtype=np.int8)
