"""Node columns: features, labels, splits and times, each from a file of its own (`.npy`, Parquet or text), or by name from one table (Parquet or text), one row per node.

A `.npy` is mapped, whatever its size; Parquet and text are read into memory. In text, a blank line is a node
without a label or a split, so that nothing shifts; among features it is refused.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pa_parquet

from graphmill.core.errors import DataError
from graphmill.core.parallel_map import num_cores
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.importers.memory.array_graph import NPY_ERRORS, label_column, split_column, time_column
from graphmill.storage.importers.tables.column_roles import (
    ID_NAMES,
    LABEL_NAMES,
    NULLS,
    TIME_NAMES,
    TRUTH,
    is_mask_name,
    key_place,
    listed,
    mask_of,
    role_of,
    value_place,
)
from graphmill.storage.importers.tables.text_table import TEXT_ENDINGS, TextTable, column_values, is_number
from graphmill.storage.ingestion.string_ids import StringIds, id_strings, is_text_type, large_strings

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last for a column's name
_OPTION = "--edge-list.node-header"
_CODES = tuple(map(str, range(len(SPLIT_NAMES))))
_SPLIT_CODES = {text: code for code, name in enumerate(SPLIT_NAMES) for text in (name, str(code))} | {
    **dict.fromkeys(("val", "validation"), SPLIT_VALID),
    **dict.fromkeys(NULLS, 0),
}
_SPLIT_KINDS = (pa.int64(), pa.bool_(), pa.float64(), pa.string())
_VALUES = {"true", "false", *_SPLIT_CODES, *(null.lower() for null in NULLS)}


def read_features(
    path: str | Path, header: bool | None = None, id_column: str | None = None, others: Collection[str] = ()
) -> np.ndarray:
    """[num_nodes, dim]: a mapped `.npy`, or all columns but that of ids, side by side: numbers, in Parquet also lists.

    `others`: options (`labels` …) for which this file is read, too: the columns with their names are no features.
    """
    path = Path(path)
    if path.suffix == ".npy":
        matrix = _load_npy(path)
    elif path.name.endswith(TEXT_ENDINGS):
        text = _text(path, header)
        key = key_place(text.names, id_column, path)
        kinds = {place: pa.float64() for place in _feature_places(text.names, key, others, path)}
        rows = [np.empty((0, len(kinds)), np.float32)]
        hashes = key is not None
        for block in text.blocks(kinds, required=True, skip_blank=False, num_threads=num_cores(), hashes=hashes):
            rows.append(np.empty((block.table.num_rows, len(kinds)), np.float32))
            for index, column in enumerate(block.table.columns):
                rows[-1][:, index] = column_values(column)
        matrix = np.concatenate(rows)
    else:
        table = _read_parquet(path)
        names = table.column_names
        table = table.select(_feature_places(names, key_place(names, id_column, path), others, path))
        matrix = _feature_columns(table, path)
    if matrix.ndim != 2 or matrix.dtype.kind not in "iufb":
        raise DataError(f"{path}: expected numbers of shape [num_nodes, dim], got {matrix.dtype} {list(matrix.shape)}")
    return matrix


def _feature_places(names: list[str], key: int | None, others: Collection[str], path: Path) -> list[int]:
    places = [place for place, name in enumerate(names) if place != key and role_of(name) not in others]
    if names and not places:
        raise DataError(f"{path}: expected columns of features, found {listed(names)}")
    return places


def _split_places(names: list[str], key: int | None) -> list[int]:
    """The columns that splits have names of, else all but that of ids."""
    places = [place for place in range(len(names)) if place != key]
    return [place for place in places if role_of(names[place]) == "splits"] or places


def _feature_columns(table: pa.Table, path: Path) -> np.ndarray:
    """float32 [num_rows, dim]: columns of numbers and of lists side by side."""
    if not any(is_list_type(field.type) for field in table.schema):
        return number_columns(table, path)
    parts = [
        list_rows(column, path) if is_list_type(field.type) else number_columns(table.select([place]), path)
        for place, (field, column) in enumerate(zip(table.schema, table.columns, strict=True))
    ]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def read_labels(
    path: str | Path, header: bool | None = None, id_column: str | None = None, kind: str = "auto"
) -> np.ndarray:
    """int64 or float32 [num_nodes]: a `.npy`, or the column `label`, or the only column but that of ids, of a Parquet or text file."""
    path = Path(path)
    if path.suffix == ".npy":
        return label_column(_load_npy(path), str(path), kind)
    if path.name.endswith(TEXT_ENDINGS):
        text = _text(path, header)
        key = key_place(text.names, id_column, path)
        index, kinds = value_place(text.names, LABEL_NAMES, key, path), (pa.int64(), pa.bool_(), pa.float64())
        column = _first_that_fits(text, [index], kinds, hashes=key is not None).column(0)
    else:
        table = _read_parquet(path)
        key = key_place(table.column_names, id_column, path)
        column = table.column(value_place(table.column_names, LABEL_NAMES, key, path))
    return _label_values(column, path, kind)


def _label_values(column: pa.ChunkedArray, path: Path, kind: str) -> np.ndarray:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(f"{path}: expected numbers as labels, found {column.type}")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())  # classes 0 and 1
    if pa.types.is_integer(column.type) and column.null_count:
        column = column.fill_null(-1)  # unlabelled
    return label_column(
        column.to_numpy(), str(path), kind
    )  # an empty field among real numbers is NaN: an unknown target


def read_splits(path: str | Path, header: bool | None = None, id_column: str | None = None) -> np.ndarray:
    """int8 [num_nodes, num_split_sets] of SPLIT_* codes: of codes or, in Parquet and text, names, a column for each set; or of masks
    `train_mask`, `val_mask`, `test_mask` (of several sets `train_mask_0` …), in a `.npy` truth values [num_nodes, 3] in this order."""
    path = Path(path)
    if path.suffix == ".npy":
        codes = _load_npy(path)
        if codes.dtype == bool:
            return _npy_masks(codes, path)
        codes = codes[:, None] if codes.ndim == 1 else codes
        if codes.ndim != 2 or codes.dtype.kind not in "iu":
            raise DataError(
                f"{path}: expected integer codes of shape [num_nodes, sets], got {codes.dtype} {list(codes.shape)}"
            )
        return np.stack([_checked_codes(column, path) for column in codes.T], axis=1)
    if path.name.endswith(TEXT_ENDINGS):
        text = _text(path, header)
        key = key_place(text.names, id_column, path)
        places = _split_places(text.names, key)
        table = _first_that_fits(text, places, _SPLIT_KINDS, hashes=key is not None)
        table = table.rename_columns([text.names[place] for place in places])
    else:
        table = _read_parquet(path)
        key = key_place(table.column_names, id_column, path)
        table = table.select(_split_places(table.column_names, key))
    return _split_sets(table, path)


def _npy_masks(masks: np.ndarray, path: Path) -> np.ndarray:
    if masks.ndim != 2 or masks.shape[1] != 3:
        raise DataError(
            f"{path}: expected truth values of shape [num_nodes, 3] for train, valid and test, got {list(masks.shape)}; "
            "write several sets as codes 0 none, 1 train, 2 valid, 3 test"
        )
    return split_column(len(masks), masks[:, 0], masks[:, 1], masks[:, 2], str(path))[:, None]


def _split_sets(table: pa.Table, path: Path) -> np.ndarray:
    """int8 [num_rows, num_split_sets] of columns of masks, or of codes and names."""
    names = table.column_names
    if not names:
        raise DataError(f"{path}: expected a column of splits, found none")
    is_mask = [is_mask_name(name) or pa.types.is_boolean(table.field(i).type) for i, name in enumerate(names)]
    if not any(is_mask):
        return np.stack([_split_codes(column, path) for column in table.columns], axis=1)
    sets: dict[str, dict[int, np.ndarray]] = {}
    for name, column in zip(names, table.columns, strict=True):
        part = mask_of(name)
        if part is None or part[0] in sets.get(part[1], {}):
            raise DataError(
                f"{path}: expected masks in columns train_mask, val_mask, test_mask (of several sets train_mask_0 …), found {listed(names)}"
            )
        sets.setdefault(part[1], {})[part[0]] = _mask_values(column, f"{path}: column {name!r}")
    none, codes = np.zeros(table.num_rows, bool), []
    for masks in sets.values():
        train, valid, test = (masks.get(code, none) for code in (SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST))
        codes.append(split_column(table.num_rows, train, valid, test, str(path)))
    return np.stack(codes, axis=1)


def _mask_values(column: pa.ChunkedArray, what: str) -> np.ndarray:
    """Truth values; an empty field is false. Raises DataError for others than true, false, 1 and 0."""
    if is_text_type(column.type):
        fields = pc.utf8_lower(column.cast(pa.string()).fill_null("")).to_pylist()
        other = [field for field in fields if field not in TRUTH]
        values = np.array([TRUTH.get(field, False) for field in fields], bool)
    elif pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False), bool)
    else:
        numbers = np.nan_to_num(np.asarray(column.fill_null(0)))
        other = numbers[(numbers != 0) & (numbers != 1)].tolist()
        values = numbers == 1
    if other:
        raise DataError(f"{what}: a mask has true and false, or 1 and 0, got {other[0]!r}; expected a mask by its name")
    return values


def _checked_codes(codes: np.ndarray, path: Path) -> np.ndarray:
    """int8 of one set's codes, each of them written as a number. Raises DataError where these may be of another coding."""
    codes = np.asarray(codes)
    found = np.unique(codes).tolist()
    if found and not 0 <= found[0] <= found[-1] <= SPLIT_TEST:
        raise DataError(
            f"{path}: split codes must be 0 none, 1 train, 2 valid or 3 test, got {found[0]} to {found[-1]}; "
            "lists of node ids are no codes: write one code a node"
        )
    if found not in ([], [0]) and SPLIT_TEST not in found and (0 in found or found == [SPLIT_TRAIN]):
        raise DataError(
            f"{path}: split codes {', '.join(map(str, found))} may be a mask, or 0 train, 1 valid, 2 test; expected 1 train, 2 valid, 3 test "
            "(0 none); write the names train, valid, test, none, or masks in columns train_mask, val_mask, test_mask"
        )
    return codes.astype(np.int8)


class NodeTable:
    """The columns of one table with names, Parquet or text, read one by one. DataError for a file that cannot be read and for names that it has not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        self._text: TextTable | None = None
        if path.name.endswith(TEXT_ENDINGS):
            self._text = TextTable(path, _is_row, option="a first line of column names", header=True)

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return self._text.names if self._text is not None else _parquet_names(self.path)

    def ids(self, name: str, strings: bool | None = None, folder: str | None = None) -> np.ndarray | StringIds:
        """As `read_ids`."""
        index = self._index(name)
        return (
            _text_ids(self._text, index, strings, folder)
            if self._text
            else _parquet_ids(self.path, name, strings, folder)
        )

    def number(self, name: str) -> int:
        """The first number of a column of whole ones, all of them different and from 0 on."""
        ids = self.ids(name, strings=False)
        assert isinstance(ids, np.ndarray)
        return int(ids[0])

    def labels(self, name: str, kind: str = "auto") -> np.ndarray:
        """As `read_labels`."""
        return _label_values(self._column(name, (pa.int64(), pa.bool_(), pa.float64())), self.path, kind)

    def splits(self, name: str) -> np.ndarray:
        """int8 [num_rows, 1], as `read_splits`."""
        return _split_codes(self._column(name, (pa.int64(), pa.float64(), pa.string())), self.path)[:, None]

    def times(self, name: str) -> np.ndarray:
        """int64 [num_rows], as `read_times`."""
        return arrow_times(self._column(name, (pa.int64(),), required=True), f"{self.path}: column {name!r}")

    def features(self, names: Sequence[str]) -> np.ndarray:
        """float32 [num_rows, dim]: columns of numbers and of lists side by side."""
        columns = [self._column(name, (pa.float64(),), required=True) for name in names]
        return _feature_columns(pa.table(dict(zip(names, columns, strict=True))), self.path)

    def _column(self, name: str, kinds: tuple[pa.DataType, ...], *, required: bool = False) -> pa.ChunkedArray:
        index = self._index(name)
        if self._text is not None:
            return _first_that_fits(self._text, [index], kinds, required=required).column(0)
        return _read_parquet(self.path, [name]).column(0)

    def _index(self, name: str) -> int:
        names = self.names
        if names.count(name) != 1:
            raise DataError(f"{self.path}: expected one column {name!r}, found {', '.join(names)[:200] or 'none'}")
        return names.index(name)


def read_ids(
    path: str | Path,
    header: bool | None = None,
    strings: bool | None = None,
    folder: str | None = None,
    id_column: str | None = None,
) -> np.ndarray | StringIds:
    """int64 [num_nodes] from 0 on, or strings (files in `folder`), each once: a `.npy`, or the column of ids, or the only column, of a Parquet or text file.

    `strings`: whether they are; None: they are where Parquet says so, or not all of a text's are whole numbers.
    """
    path = Path(path)
    if path.suffix == ".npy":
        ids = _load_npy(path)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(f"{path}: expected integer ids, one each, got {ids.dtype} {list(ids.shape)}")
        return _checked_numbers(ids.astype(np.int64), str(path))
    if path.name.endswith(TEXT_ENDINGS):
        text = _text_with_ids(path, header, id_column)
        return _text_ids(text, _id_place(text.names, id_column, path), strings, folder)
    names = _parquet_names(path)
    return _parquet_ids(path, names[_id_place(names, id_column, path)], strings, folder)


def read_key(
    path: str | Path, header: bool | None, id_column: str | None, *, strings: bool
) -> np.ndarray | pa.LargeStringArray | None:
    """The ids beside the values of a file of features, labels, splits or times, as whole numbers or as strings; None where it has none."""
    path = Path(path)
    if path.suffix == ".npy":
        return None
    if not path.name.endswith(TEXT_ENDINGS):
        key = key_place(_parquet_names(path), id_column, path)
        return None if key is None else _parquet_key(path, key, strings)
    text = _text(path, header)
    key = key_place(text.names, id_column, path)
    if key is None:
        return None
    try:
        kinds = (pa.string() if strings else pa.int64(),)
        column = _first_that_fits(text, [key], kinds, required=True, hashes=True).column(0)
    except DataError as error:
        raise DataError(f"{error}; ids that are strings are named with --edge-list.ids") from None
    return large_strings(column) if strings else column.to_numpy()


def _parquet_key(path: Path, key: int, strings: bool) -> np.ndarray | pa.LargeStringArray:
    column = _read_parquet(path).column(key)
    what = f"{path}: column of ids"
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null())))
        raise DataError(f"{what}: expected an id in every row, found an empty field in row {row + 1}")
    if strings and is_text_type(column.type):
        return large_strings(column)
    if strings or not pa.types.is_integer(column.type):
        expected = "strings, as the nodes' ids are" if strings else "whole numbers"
        hint = "" if strings else "; ids that are strings are named with --edge-list.ids"
        raise DataError(f"{what}: expected {expected}, found {column.type}{hint}")
    return column.to_numpy().astype(np.int64)


def has_key(path: str | Path, header: bool | None, id_column: str | None) -> bool:
    """Whether ids stand beside the values."""
    path = Path(path)
    if path.suffix == ".npy":
        return False
    names = _text(path, header).names if path.name.endswith(TEXT_ENDINGS) else _parquet_names(path)
    return key_place(names, id_column, path) is not None


def _text_with_ids(path: Path, header: bool | None, id_column: str | None) -> TextTable:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    known = {id_column} if id_column else {*ID_NAMES} - {""}

    def is_row(fields: list[str]) -> bool | None:
        """Strings look like names: only a name of ids is one."""
        named = any((field if id_column else field.lower()) in known for field in fields)
        return not named and (_is_row(fields) or None)

    return TextTable(path, is_row, option=_OPTION, header=header)


def _id_place(names: list[str], id_column: str | None, path: Path) -> int:
    """The place of the ids in a file of ids."""
    key = key_place(names, id_column, path)
    return value_place(names, ("id",), None, path) if key is None else key


def _text_ids(text: TextTable, index: int, strings: bool | None, folder: str | None) -> np.ndarray | StringIds:
    what = f"column {text.names[index]!r}"
    if not strings:
        try:
            numbers = _first_that_fits(text, [index], (pa.int64(),), required=True).column(0).to_numpy()
        except DataError:
            if strings is False or _holds_numbers(text, index):
                raise
        else:
            return _checked_numbers(numbers, f"{text.path}: {what}")
    blocks = text.blocks({index: pa.string()}, required=True, skip_blank=False, hashes=True)
    return _numbered(
        ((block.table.column(0), partial(line_of_file, text.path, block.line_of)) for block in blocks), what, folder
    )


def _holds_numbers(text: TextTable, index: int) -> bool:
    """Whether all fields but those that say nothing are whole numbers: then an NA is no id."""
    try:
        column = _first_that_fits(text, [index], (pa.int64(),)).column(0)
    except DataError:
        return False
    return column.null_count < len(column)


def _parquet_ids(path: Path, name: str, strings: bool | None, folder: str | None) -> np.ndarray | StringIds:
    what = f"column {name!r}"
    _check_parquet(path)
    try:
        with pa_parquet.ParquetFile(path) as file:
            kind = file.schema_arrow.field(name).type
            if strings is not False and is_text_type(kind):
                return _numbered(_parquet_batches(file, path, name), what, folder)
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot read this file: {error}") from error
    column = _read_parquet(path, [name]).column(0)
    if strings or not pa.types.is_integer(column.type):
        raise DataError(f"{path}: {what}: expected {'strings' if strings else 'integer ids'}, found {column.type}")
    if column.null_count:
        raise DataError(f"{path}: {what}: expected an id in every row, found {column.null_count} empty fields")
    return _checked_numbers(column.to_numpy().astype(np.int64), f"{path}: {what}")


def _parquet_batches(
    file: pa_parquet.ParquetFile, path: Path, name: str
) -> Iterator[tuple[pa.Array, Callable[[int], str]]]:
    done = 0
    for batch in file.iter_batches(columns=[name]):
        yield batch.column(0), partial(row_of_file, path, done)
        done += batch.num_rows


def _numbered(
    columns: Iterator[tuple[pa.Array | pa.ChunkedArray, Callable[[int], str]]], what: str, folder: str | None
) -> StringIds:
    """Strings by row. Raises DataError, with the place, for one that is empty or there before."""
    ids = StringIds(folder)
    for column, where in columns:
        strings = id_strings(column, where, what)
        expected = len(ids) + np.arange(len(strings))
        repeated = ids.add(strings) != expected
        if repeated.any():
            row = int(np.argmax(repeated))
            raise DataError(f"{where(row)}: {what}: expected each id once, found {strings[row].as_py()!r} twice")
    return ids


def _checked_numbers(ids: np.ndarray, what: str) -> np.ndarray:
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise DataError(f"{what}: expected each id once, found {int(repeated[0])} twice")
    if len(ids) and ordered[0] < 0:
        raise DataError(f"{what}: expected ids from 0, found {int(ordered[0])}")
    return ids


def row_of_file(path: Path, first: int, row: int) -> str:
    """Names a row of a batch that begins at the row `first`, from 0."""
    return f"{path}: row {first + row + 1}"


def line_of_file(path: Path, line_of: Callable[[int], int], row: int) -> str:
    """Names the line of a row of a block of text."""
    return f"{path}: line {line_of(row)}"


def _is_row(fields: list[str]) -> bool | None:
    """Whether the first line holds values: numbers, truth values, names of splits. None if it holds values and other words, different
    names of splits (which may be names of masks), or 0, 1, 2 …, which is how pandas names columns without names."""
    values = [is_number(field) or field.lower() in _VALUES for field in fields]
    masks = len(set(fields)) == len(fields) and all(map(mask_of, fields))
    if len(fields) > 1 and (masks or fields == [str(index) for index in range(len(fields))]) and all(values):
        return None
    return True if all(values) else None if any(values) else False


def _text(path: Path, header: bool | None) -> TextTable:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return TextTable(path, _is_row, option=_OPTION, header=header)


def read_times(path: str | Path, header: bool | None = None, id_column: str | None = None) -> np.ndarray:
    """int64 [num_nodes]: a `.npy`, or the column `time`, or the only column but that of ids, of a Parquet or text file."""
    path = Path(path)
    if path.suffix == ".npy":
        return time_column(_load_npy(path), str(path))
    if path.name.endswith(TEXT_ENDINGS):
        text = _text(path, header)
        key = key_place(text.names, id_column, path)
        index = value_place(text.names, TIME_NAMES, key, path)
        blocks = text.blocks({index: pa.int64()}, required=True, skip_blank=False, hashes=key is not None)
        return np.concatenate([np.empty(0, np.int64), *(column_values(block.table.column(0)) for block in blocks)])
    table = _read_parquet(path)
    key = key_place(table.column_names, id_column, path)
    return arrow_times(table.column(value_place(table.column_names, TIME_NAMES, key, path)), str(path))


def arrow_times(column: pa.Array | pa.ChunkedArray, what: str) -> np.ndarray:
    """int64: whole numbers, or dates as microseconds since 1970. Raises DataError for others, and for an empty field."""
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null())))
        raise DataError(f"{what}: expected a time in every row, found an empty field in row {row + 1}")
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return np.asarray(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()))
    return time_column(np.asarray(column), what)


def _first_that_fits(
    text: TextTable,
    indices: Sequence[int],
    kinds: tuple[pa.DataType, ...],
    *,
    required: bool = False,
    hashes: bool = False,
) -> pa.Table:
    """Some columns as the first of these types that all of their values have. DataError where none fits, of the last."""
    for kind in kinds:
        try:
            blocks = text.blocks(dict.fromkeys(indices, kind), required=required, skip_blank=False, hashes=hashes)
            schema = pa.schema([(str(index), kind) for index in indices])
            return pa.concat_tables([schema.empty_table(), *(block.table for block in blocks)])
        except DataError:
            if kind is kinds[-1]:
                raise
    raise AssertionError("no type was given")


def _load_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except NPY_ERRORS as error:
        raise DataError(f"{path}: expected a plain .npy array, got: {error}") from error


def _read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    _check_parquet(path)
    try:
        return pa_parquet.read_table(path, columns=columns)
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot read this file: {error}") from error


def _parquet_names(path: Path) -> list[str]:
    _check_parquet(path)
    try:
        return pa_parquet.read_schema(path).names
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot read this file: {error}") from error


def _check_parquet(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix != ".parquet":
        raise DataError(f"{path}: expected a file ending in .npy, .parquet, {', '.join(TEXT_ENDINGS)}")


def is_list_type(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def list_rows(column: pa.Array | pa.ChunkedArray, where: Path | str) -> np.ndarray:
    """float32 [k, dim] of lists. Raises DataError for an empty row, and for lists of several lengths."""
    if column.null_count:
        raise DataError(f"{where}: expected a list in every row, found {column.null_count} empty rows")
    lengths = pc.list_value_length(column)
    if len(pc.unique(lengths)) > 1:
        low, high = pc.min_max(lengths).as_py().values()
        raise DataError(f"{where}: expected lists of one length, found lengths {low} to {high}")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    rows = [np.asarray(chunk.flatten().to_numpy(zero_copy_only=False), np.float32) for chunk in chunks]
    values = np.concatenate([np.empty(0, np.float32), *rows])
    return values.reshape(len(column), len(values) // max(len(column), 1))


def number_columns(table: pa.Table | pa.RecordBatch, where: Path | str) -> np.ndarray:
    """float32 [k, columns]. Raises DataError for other columns; an empty field becomes NaN: an unknown target, or a feature that ingestion refuses."""
    for field in table.schema:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            raise DataError(f"{where}: column {field.name!r}: expected numbers, found {field.type}")
    return np.stack([np.asarray(column).astype(np.float32) for column in table.columns], axis=1)


def _split_codes(column: pa.ChunkedArray, path: Path) -> np.ndarray:
    """int8: codes of a column of numbers or names; an empty field is none."""
    if pa.types.is_floating(column.type):  # as pandas writes codes beside empty fields
        numbers = column.to_numpy()
        other = numbers[~(np.isnan(numbers) | np.isin(numbers, range(len(SPLIT_NAMES))))]
        if len(other):
            raise DataError(f"{path}: split codes must be 0 none, 1 train, 2 valid or 3 test, got {other[0]}")
        column = pa.chunked_array([pa.array(numbers, from_pandas=True)]).cast(pa.int64())
    if pa.types.is_integer(column.type):
        _checked_codes(column.drop_null().to_numpy(), path)
        return column.fill_null(0).to_numpy().astype(np.int8)
    if not is_text_type(column.type):
        raise DataError(f"{path}: expected integer codes or names of splits, found {column.type}")
    names = np.asarray(column.cast(pa.string()).fill_null("").to_numpy(), dtype=object)
    words = set(names)
    unknown = sorted(words - set(_SPLIT_CODES))
    if unknown:
        raise DataError(f"{path}: splits must be {', '.join(SPLIT_NAMES)}, got {unknown[0]!r}")
    if words <= {*_CODES, *NULLS}:
        _checked_codes(np.array([int(word) for word in words if word in _CODES], np.int64), path)
    return np.array([_SPLIT_CODES[name] for name in names], dtype=np.int8)
