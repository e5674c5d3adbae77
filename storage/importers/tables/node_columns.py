"""Reads columns of nodes (ids, features, labels, splits, times) from one file, a `.npy` or a table. The file has a row for each node.

A `.npy` file is mapped. From a table, only the requested columns are read into memory. In text, a blank line stands for a node without a label or a split, so
that rows do not shift. In a single column of features, a blank line is a missing value; in several columns of features, it is an error.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import ConfigError, DataError
from graphmill.core.parallel_map import num_cores
from graphmill.storage.importers.columns import column_values
from graphmill.storage.importers.columns.column_roles import (
    ID_NAMES,
    LABEL_NAMES,
    NULLS,
    TIME_NAMES,
    is_index,
    is_number,
    key_place,
    listed,
    mask_of,
    role_of,
    value_place,
)
from graphmill.storage.importers.columns.column_values import SPLIT_CODES, checked_codes, is_list_type, is_number_type
from graphmill.storage.importers.columns.feature_table import FeatureTable
from graphmill.storage.importers.memory.array_graph import label_column, load_npy, split_column, time_column
from graphmill.storage.importers.tables.table import Table
from graphmill.storage.importers.tables.text_table import FieldError, TextFormat, TextTable
from graphmill.storage.ingestion.string_ids import StringIds, id_strings, is_text_type

_OPTION = "--edge-list.node-header"
_SPLIT_KINDS = (pa.int64(), pa.bool_(), pa.float64(), pa.string())
_LABEL_KINDS = (pa.int64(), pa.bool_(), pa.float64())
_SEVERAL_KINDS = (*_LABEL_KINDS, pa.string())
_VALUES = {"true", "false", *SPLIT_CODES, *(null.lower() for null in NULLS)}


def _is_row(fields: list[str]) -> bool | None:
    """Whether the first line holds values: numbers, truth values, names of splits. Returns None if this is unclear: the line has values and other words, or
    different names of splits (which may be names of masks), or 0, 1, 2 … (which pandas writes as names of unnamed columns)."""
    if len(fields) > 1 and not fields[0]:  # pandas writes an empty column name for an unnamed index
        return False
    values = [is_number(field) or field.lower() in _VALUES for field in fields]
    masks = len(set(fields)) == len(fields) and all(map(mask_of, fields))
    if len(fields) > 1 and (masks or fields == [str(index) for index in range(len(fields))]) and all(values):
        return None
    return True if all(values) else None if any(values) else False


class NodeFile:
    """Reads the columns of one file, one by one. A `.npy` file is in `array`, and has no columns. Another file is in `table`, and `key` is its column of ids.

    `header`: whether text begins with column names (None: inferred from the first line). `id_column`: name of the column of ids (None: inferred from the
    names). `of_ids`: whether the file holds ids, which may be text. `named`: columns that options name. Raises DataError for a file that cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        header: bool | None = None,
        id_column: str | None = None,
        *,
        of_ids: bool = False,
        option: str = _OPTION,
        named: Collection[str] = (),
    ) -> None:
        self.path, self.array, self._header = str(path), None, header
        self.names: list[str] = []
        self.key: int | None = None
        if self.path.endswith(".npy"):
            self.array = load_npy(self.path)
            return
        known = {id_column} if id_column else {*ID_NAMES} - {""}

        def is_row_of_ids(fields: list[str]) -> bool | None:
            """As any string may be an id, the line is a header only if it has a usual name for ids."""
            said = any((field if id_column else field.lower()) in known for field in fields)
            return not said and (_is_row(fields) or None)

        def is_row(fields: list[str]) -> bool | None:
            if {*named} & {*fields}:
                return False
            if header is False and len(fields) == 1 and role_of(fields[0], fields) is None:
                # the only field of the line may be a value
                return None
            return is_row_of_ids(fields) if of_ids else _is_row(fields)

        self.table = Table(path, TextFormat(is_row, option, header))
        self.names = self.table.names
        self.key = key_place(self.names, id_column, self.path)
        self._check_comment()

    def _check_comment(self) -> None:
        """Raises DataError if a comment above the rows looks like column names."""
        first = self.table.parts[0]
        if not isinstance(first, TextTable) or first.has_header or first.banner[:1] not in ("#", "%"):
            return
        words = re.split(r"[,;\t ]+", first.banner.lstrip("#% ").lower())
        if len(words) == len(self.names) and {*words} & {*ID_NAMES, *LABEL_NAMES} - {""}:
            raise DataError(
                f"{self.path}: line 1: expected column names or a comment, found {first.banner[:60]!r}; take the # out of column names"
            )

    def place(self, name: str) -> int:
        """Returns the index of the column `name`. Raises DataError unless exactly one column has this name."""
        if self.names.count(name) != 1:
            raise DataError(f"{self.path}: expected one column {name!r}, found {listed(self.names)}")
        return self.names.index(name)

    def feature_places(self, others: Collection[str] = (), *, empty: bool = False) -> list[int]:
        """Returns the indices of feature columns: all columns except the ids, columns whose names mean a role in `others` (`labels` …), and columns whose
        type cannot be a feature. Unless `empty`, raises DataError if a name means another role, or if no column is left."""
        names = self.names
        places = [place for place in range(len(names)) if place != self.key and not is_index(names[place])]
        for place in places:
            if (role := role_of(names[place], names)) is not None and role not in others and not empty:
                raise DataError(
                    f"{self.path}: column {names[place]!r}: expected features, found a name of {role}; name the features with --edge-list.feature-columns, "
                    f"or this file with --edge-list.{role.replace('_', '-')}"
                )
        places = [place for place in places if role_of(names[place], names) not in others]
        readable = [place for place in places if _may_be_features(self.table.types[place])]
        if not readable and not empty:
            raise DataError(f"{self.path}: expected columns of features, found {listed(self.names)}")
        return readable

    def label_places(self, kind: str = "auto") -> list[int]:
        """Returns the column with a usual name for labels, else the only column besides the ids. For the kind "several", returns all possible labels."""
        if kind == "several":
            names = self.names
            chosen = [place for place in range(len(names)) if role_of(names[place], names) in (None, "labels")]
            return [place for place in chosen if place != self.key and not is_index(names[place])]
        return [value_place(self.names, LABEL_NAMES, self.key, self.path)]

    def split_places(self) -> list[int]:
        """Returns the columns with usual names for splits, or if there are none, all columns except the ids."""
        places = [place for place in range(len(self.names)) if place != self.key]
        return [place for place in places if role_of(self.names[place], self.names) == "splits"] or places

    def time_place(self) -> int:
        return value_place(self.names, TIME_NAMES, self.key, self.path)

    def features(
        self,
        places: Sequence[int],
        categories: Collection[str] = (),
        *,
        all_named: bool = False,
        may_be_none: bool = False,
    ) -> np.ndarray | FeatureTable | None:
        """Returns a `.npy` file's array [num_nodes, dim], mapped, or a table's columns. Unless `all_named`, text columns of dates are left out. If no column is
        left, returns None if `may_be_none`, else raises DataError."""
        if missing := {*categories} - {self.names[place] for place in places}:
            raise ConfigError(
                f"categories: expected columns of features of {self.path}, {listed(self.names)}, got {min(missing)!r}"
            )
        if self.array is not None:
            if self.array.ndim != 2 or self.array.dtype.kind not in "iufb":
                raise DataError(
                    f"{self.path}: expected numbers of shape [num_nodes, dim], got {self.array.dtype} {list(self.array.shape)}"
                )
            return self.array
        kinds = {place: pa.string() if self.names[place] in categories else pa.float64() for place in places}
        problems: dict[str, str] = {}
        while True:
            try:
                table = self._feature_columns(kinds)
            except FieldError as error:  # a field is not a number, so the column holds truth values or text
                kind = kinds[error.place]
                if kind == pa.string():
                    raise
                problems.setdefault(self.names[error.place], str(error))
                kinds[error.place] = pa.bool_() if kind == pa.float64() else pa.string()
                if len(problems) == 1 and pa.float64() in kinds.values():
                    self._widen(kinds)
                continue
            named = table.rename_columns([self.names[place] for place in kinds])
            kept = [
                all_named or name in categories or not column_values.are_texts_of_dates(column)
                for name, column in zip(named.column_names, named.columns, strict=True)
            ]
            if not any(kept):
                if may_be_none:
                    return None
                raise DataError(f"{self.path}: expected columns of features, found dates, {listed(named.column_names)}")
            named = named.select(np.flatnonzero(kept).tolist())
            self._check_name(named.column(0))
            return FeatureTable(named, self.path, categories, problems)

    def _check_name(self, column: pa.ChunkedArray) -> None:
        """Raises DataError if the only column's name is also one of its values, because the name may in fact be the first value."""
        if self._header is not None or len(self.names) > 1 or not self.table.is_text or not is_text_type(column.type):
            return
        if self.table.has_header and pc.index(column, self.names[0]).as_py() >= 0:
            raise DataError(
                f"{self.path}: line 1: cannot tell a column's name from a value, {self.names[0][:40]!r} is below again; set {_OPTION} True or False"
            )

    def _widen(self, kinds: dict[int, pa.DataType]) -> None:
        """Changes, in one step, the types of all columns that are not numbers in the first block. Parsing the file again for each column would take long."""
        asked = dict.fromkeys((place for place, kind in kinds.items() if kind == pa.float64()), pa.string())
        for block in self.table.blocks(asked, required=False, hashes=self.key is not None):
            for place, column in zip(asked, _with_nulls(block.table).columns, strict=True):
                texts = [text for text in pc.unique(column).to_pylist() if text is not None]
                if not all(map(is_number, texts)):
                    kinds[place] = (
                        pa.bool_() if all(text.lower() in ("true", "false") for text in texts) else pa.string()
                    )
            break

    def _feature_columns(self, kinds: dict[int, pa.DataType]) -> pa.Table:
        if not self.table.is_text:
            return self.table.columns(list(kinds), (pa.string(),))
        schema = pa.schema(
            [(str(place), pa.float32() if kind == pa.float64() else kind) for place, kind in kinds.items()]
        )
        tables, has_ids = [], self.key is not None
        for block in self.table.blocks(kinds, required=False, num_threads=num_cores(), hashes=has_ids):
            tables.append(_with_nulls(block.table).cast(schema))
            if 1 < len(kinds) == len(self.names) and all(column.null_count for column in tables[-1].columns):
                empty = np.logical_and.reduce([np.asarray(column.is_null()) for column in tables[-1].columns])
                if empty.any():
                    raise DataError(
                        f"{block.where(int(np.argmax(empty)))}: expected a row, found a blank line; remove it"
                    )
        return pa.concat_tables([schema.empty_table(), *tables])

    def labels(
        self, places: Sequence[int] = (), kind: str = "auto", names: tuple[str, ...] = ()
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """Returns the labels as `label_column` makes them, and class names if labels are text. Reads a `.npy` file or these columns; each column is a label."""
        if self.array is not None:
            return label_column(self.array, self.path, kind), ()
        if len(places) == 1 and kind != "several" and not is_list_type(self.table.types[places[0]]):
            problem, noun = "", f"{self.path}: column {self.names[places[0]]!r}"
            try:
                column = self._column(places[0], _LABEL_KINDS)
            except FieldError as error:
                problem, column = str(error), self._column(places[0], (pa.string(),))
                self._check_name(column)
            return column_values.labels(column, noun, kind, names, problem)
        rows = []
        for place in places:
            noun, column = f"{self.path}: column {self.names[place]!r}", self._column(place, _SEVERAL_KINDS)
            if is_text_type(column.type):
                column = column_values.truths(column, noun)
            if is_list_type(column.type):
                rows.append(column_values.list_rows(column, noun))
            else:
                rows.append(column_values.numbers(column, noun)[:, None])
        said = tuple(self.names[place] for place in places) if len(places) > 1 else ()
        return label_column(np.concatenate(rows, axis=1), self.path, kind), said

    def splits(self, places: Sequence[int] = ()) -> np.ndarray:
        """Returns SPLIT_* codes, int8 [num_nodes, num_split_sets]. A table has a column of codes or names for each split set, or masks `train_mask`,
        `val_mask`, `test_mask` (`train_mask_0` … for several sets). A `.npy` file has codes, or truth values [num_nodes, 3] for train, valid and test."""
        if self.array is not None:
            return _npy_splits(self.array, self.path)
        table = self.table.columns(places, _SPLIT_KINDS, hashes=self.key is not None)
        return column_values.splits(table.rename_columns([self.names[place] for place in places]), self.path)

    def times(self, place: int = 0) -> np.ndarray:
        """Returns times, int64 [num_nodes]: whole numbers, or dates as microseconds since 1970."""
        if self.array is not None:
            return time_column(self.array, self.path)
        column = self._column(place, (pa.int64(), pa.string()), required=True)
        return column_values.times(column, self.path, self._row, f"column {self.names[place]!r}")

    def ids(
        self, place: int | None = None, strings: bool | None = None, folder: str | None = None
    ) -> np.ndarray | StringIds:
        """Returns distinct ids: int64 [num_nodes], not negative, or strings, which are kept in files in `folder`. Reads them from the column `place`. None: the
        column of ids, else the only column.

        `strings`: whether ids are strings. None: they are strings if the column's type is, or if not all ids in a text file are whole numbers.
        """
        if self.array is not None:
            if self.array.ndim != 1 or self.array.dtype.kind not in "iu":
                raise DataError(
                    f"{self.path}: expected integer ids, one each, got {self.array.dtype} {list(self.array.shape)}"
                )
            return _checked_numbers(self.array.astype(np.int64), self.path)
        if place is None:
            place = value_place(self.names, ("id",), None, self.path) if self.key is None else self.key
        noun = f"column {self.names[place]!r}"
        is_text = is_text_type(self.table.types[place])
        strings = True if strings is None and self._has_leading_zeros(place) else strings
        if is_text and not self.table.is_text and strings is False:
            raise DataError(f"{self.path}: {noun}: expected integer ids, found {self.table.types[place]}")
        if not strings and (self.table.is_text or not is_text):
            try:
                numbers = self.numbers(place)
            except DataError:
                if not self.table.is_text or strings is False or self._holds_numbers(place):
                    raise
            else:
                return _checked_numbers(numbers, f"{self.path}: {noun}")
        if not is_text:
            raise DataError(f"{self.path}: {noun}: expected strings, found {self.table.types[place]}")
        blocks = self.table.blocks({place: pa.string()}, required=True, hashes=True)
        return _numbered(((block.table.column(0), block.where) for block in blocks), noun, folder)

    def _has_leading_zeros(self, place: int) -> bool:
        """Whether a text file has ids such as 007 or 0x1f, which must not be read as the numbers 7 and 31."""
        if not self.table.is_text:
            return False
        blocks = self.table.blocks({place: pa.string()}, required=False, hashes=True)
        return any(pc.any(pc.match_substring_regex(block.table.column(0), r"^-?0[0-9xX]")).as_py() for block in blocks)

    def keys(self, *, strings: bool) -> np.ndarray | pa.LargeStringArray | None:
        """Returns the column of ids as whole numbers or strings; None if there is no such column."""
        if self.key is None:
            return None
        hint = "" if strings else "; ids that are strings are named with --edge-list.ids"
        is_text = is_text_type(self.table.types[self.key])
        if is_text != strings and not self.table.is_text:
            expected = "strings, as the nodes' ids are" if strings else "whole numbers"
            raise DataError(
                f"{self.path}: column of ids: expected {expected}, found {self.table.types[self.key]}{hint}"
            )
        try:
            if not strings:
                return self.numbers(self.key)
            column = self._column(self.key, (pa.string(),), required=True, raw=True)
            return id_strings(column, self._row, "column of ids")
        except DataError as error:
            raise DataError(f"{error}{hint}") from None

    def numbers(self, place: int) -> np.ndarray:
        """Returns the whole number in each row, int64 [num_nodes]."""
        kinds = (pa.int64(), pa.float64())
        try:
            column = self._column(place, kinds[:1], required=True, raw=True)
        except FieldError as error:
            # whole numbers may be written as floats; error messages still ask for whole numbers
            if error.field.lstrip("-").isdigit():
                raise
            try:
                column = self._column(place, kinds[1:], required=True, raw=True)
                return column_values.whole_numbers(column, self._row, f"column {self.names[place]!r}")
            except DataError:
                raise error from None
        return column_values.whole_numbers(column, self._row, f"column {self.names[place]!r}")

    def _holds_numbers(self, place: int) -> bool:
        """Whether all fields that are not empty are whole numbers. If they are, NA means a missing id, and is not a string."""
        try:
            column = self.table.columns([place], (pa.int64(),)).column(0)
        except DataError:
            return False
        return bool(column.null_count < len(column))

    def _column(
        self, place: int, kinds: Sequence[pa.DataType], *, required: bool = False, raw: bool = False
    ) -> pa.ChunkedArray:
        """Reads one column with `Table.columns`. In a text file, texts in NULLS become nulls unless `raw` is set."""
        table = self.table.columns([place], kinds, required=required, hashes=self.key is not None)
        return (_with_nulls(table) if self.table.is_text and not raw else table).column(0)

    def _row(self, row: int) -> str:
        return f"{self.path}: row {row + 1}"


def read_features(path: str | Path, header: bool | None = None) -> np.ndarray:
    """Reads features [num_nodes, dim]: the mapped array of a `.npy` file, or a table's columns except the ids, as float32."""
    file = NodeFile(path, header)
    features = file.features(file.feature_places() if file.array is None else ())
    assert features is not None
    return features if isinstance(features, np.ndarray) else features.matrix(features.learn(None, 1))


def read_labels(path: str | Path, header: bool | None = None, kind: str = "auto") -> np.ndarray:
    """Reads labels from a file, int64 or float32 [num_nodes]."""
    file = NodeFile(path, header)
    return file.labels(file.label_places() if file.array is None else (), kind)[0]


def _may_be_features(kind: pa.DataType) -> bool:
    if is_list_type(kind):
        return is_number_type(kind.value_type) or pa.types.is_boolean(kind.value_type)
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_number_type(value) or pa.types.is_boolean(value) or is_text_type(value)


def _with_nulls(table: pa.Table) -> pa.Table:
    """Returns the table, in which texts that mean a missing value are nulls."""
    columns = [
        pc.if_else(pc.is_in(column, pa.array(NULLS, pa.string())), pa.scalar(None, pa.string()), column)
        if is_text_type(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _numbered(columns: Iterator[tuple[Any, Callable[[int], str]]], noun: str, folder: str | None) -> StringIds:
    """Numbers strings by row. Raises DataError, with the place, for an empty or repeated string."""
    ids = StringIds(folder)
    for column, where in columns:
        strings = id_strings(column, where, noun)
        expected = len(ids) + np.arange(len(strings))
        repeated = ids.add(strings) != expected
        if repeated.any():
            row = int(np.argmax(repeated))
            raise DataError(f"{where(row)}: {noun}: expected each id once, found {strings[row].as_py()!r} twice")
    return ids


def _checked_numbers(ids: np.ndarray, noun: str) -> np.ndarray:
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise DataError(f"{noun}: expected each id once, found {int(repeated[0])} twice")
    if len(ids) and ordered[0] < 0:
        raise DataError(f"{noun}: expected ids from 0, found {int(ordered[0])}")
    return ids


def _npy_splits(codes: np.ndarray, path: str) -> np.ndarray:
    if codes.dtype == bool:
        if codes.ndim != 2 or codes.shape[1] != 3:
            raise DataError(
                f"{path}: expected truth values of shape [num_nodes, 3] for train, valid and test, got {list(codes.shape)}; "
                "write several sets as codes 0 none, 1 train, 2 valid, 3 test"
            )
        return split_column(len(codes), codes[:, 0], codes[:, 1], codes[:, 2], path)[:, None]
    codes = codes[:, None] if codes.ndim == 1 else codes
    if codes.ndim != 2 or codes.dtype.kind not in "iu":
        raise DataError(
            f"{path}: expected integer codes of shape [num_nodes, sets], got {codes.dtype} {list(codes.shape)}"
        )
    return np.stack([checked_codes(column, path) for column in codes.T], axis=1)
