"""Converts columns of tables, from any kind of file, to arrays: ids, times, numbers and lists of numbers, labels, splits."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import DataError
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.importers.columns.column_roles import (
    NULLS,
    TRUTH,
    is_mask_name,
    is_number,
    is_otherwise_written,
    listed,
    mask_of,
)
from graphmill.storage.importers.memory.array_graph import SPLIT_WORDS, label_column, split_column, time_column
from graphmill.storage.ingestion.string_ids import is_text_type

Column: TypeAlias = Any  # a pa.Array or pa.ChunkedArray
_CODES = {str(code): code for code in range(len(SPLIT_NAMES))}
SPLIT_CODES = {**SPLIT_WORDS, **_CODES, **dict.fromkeys(NULLS, 0)}


def is_list_type(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_number_type(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def check_no_null(column: Column, where: Callable[[int], str], noun: str, expected: str) -> None:
    """Raises DataError, with the place of the first empty field, if the column has one."""
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null())))
        raise DataError(f"{where(row)}: {noun}: expected {expected}, found an empty field")


def _without_decimals(column: Column) -> Column:
    """Returns the column with decimals as floats. A column of one chunk is returned as this chunk, because joining chunks would copy it."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1 else column


def whole_numbers(column: Column, where: Callable[[int], str], noun: str) -> np.ndarray:
    """Returns ids as int64, from whole numbers, which may be floats or decimals. For an empty field or another number, raises DataError with its place."""
    if not is_number_type(column.type):
        raise DataError(f"{noun}: expected integer ids, found {column.type}")
    check_no_null(column, where, noun, "an id")
    column = _without_decimals(column)
    # np.asarray of an Arrow array imports pandas if it is installed, which takes 0.4 s.
    ids = np.from_dlpack(column) if isinstance(column, pa.Array) else np.asarray(column)
    if ids.dtype.kind != "f" and ids.dtype != np.uint64:
        return ids.astype(np.int64, copy=False)
    if ids.dtype.kind == "f":
        bad = ~((np.floor(ids) == ids) & (np.abs(ids) < 2.0**53))  # above 2**53, float64 cannot represent every integer
        expected = "expected whole numbers (below 2**53, as floats)"
    else:
        bad = ids >= np.uint64(2**63)
        expected = "expected ids below 2**63"
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{where(row)}: {noun}: {expected}, got {ids[row]}")
    return ids.astype(np.int64, copy=False)


def times(column: Column, path: str, where: Callable[[int], str], noun: str) -> np.ndarray:
    """Returns times as int64. Whole numbers stay unchanged; dates, or ISO 8601 text, become microseconds since 1970. Raises DataError for other fields."""
    if is_text_type(column.type):
        column = _dates_of_text(column, where, noun)
    check_no_null(column, where, noun, "a time in every row")
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return np.asarray(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()))
    return time_column(np.asarray(_without_decimals(column)), f"{path}: {noun}")


def are_dates(column: Column) -> bool:
    """Whether a column of times holds dates. Decides by the column's type, or by its first text."""
    if not is_text_type(column.type):
        return not is_number_type(column.type)
    first = next((text for text in column.slice(0, 64).to_pylist() if text and text not in NULLS), "0")
    return not is_number(first)


def are_texts_of_dates(column: Column) -> bool:
    """Whether a column is text and all its values are dates."""
    texts = pc.unique(column.cast(pa.string())).drop_null().to_pylist() if is_text_type(column.type) else []
    return bool(texts) and not any(is_number(text) or _moment(text) is None for text in texts)


def _dates_of_text(column: Column, where: Callable[[int], str], noun: str) -> pa.Array:
    """Parses a text column of dates to timestamps in UTC, in microseconds. If all fields are numbers, returns numbers."""
    distinct = pc.unique(column.cast(pa.string()))
    texts = [None if text is None or text in NULLS else text for text in distinct.to_pylist()]
    known = [text for text in texts if text is not None]
    digits = set(filter(is_number, known))
    if len(digits) == len(known):
        values = pa.array([None if text is None else float(text) for text in texts], pa.float64())
    else:
        moments = [None if text is None or text in digits else _moment(text) for text in texts]
        bad = next(
            (
                text
                for text, moment in zip(texts, moments, strict=True)
                if text not in (None, *digits) and (digits or moment is None)
            ),
            None,
        )
        if bad is not None:
            row = pc.index(column.cast(pa.string()), bad).as_py()
            raise DataError(
                f"{where(row)}: {noun}: expected whole numbers, or dates as 2024-05-31 or 2024-05-31T12:30:00, found {bad[:40]!r}"
            )
        values = pa.array(moments, pa.int64()).cast(pa.timestamp("us"))
    places = pc.index_in(column.cast(pa.string()), distinct, skip_nulls=False)
    return values.take(places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places)


def _moment(text: str) -> int | None:
    """Parses a date to microseconds since 1970. A date without a time zone is in UTC. Returns None if the text is not a date."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    gone = moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo and UTC)
    return (gone.days * 86_400 + gone.seconds) * 1_000_000 + gone.microseconds


def list_rows(column: Column, where: Path | str) -> np.ndarray:
    """Converts a column of lists to float32 [k, dim]. Raises DataError for an empty row, and for lists of different lengths."""
    if not (is_number_type(column.type.value_type) or pa.types.is_boolean(column.type.value_type)):
        raise DataError(f"{where}: expected lists of numbers, found {column.type}")
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


def numbers(column: Column, noun: str) -> np.ndarray:
    """Converts a column of numbers or truth values to float32 [k]. An empty field becomes NaN. Raises DataError for other types."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not is_number_type(column.type):
        raise DataError(f"{noun}: expected numbers, found {column.type}")
    column = _without_decimals(column)
    values = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    return values.astype(np.float32)


def labels(
    column: Column, noun: str, kind: str, names: tuple[str, ...] = (), problem: str = ""
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the labels as `label_column` makes them, and the class names, sorted, if labels are text.

    `names`: class names of an earlier graph, which these labels must use. `problem`: the message for the first field that is not a number. Raises DataError
    if numbers and other text are mixed, and for a text that is not in `names`.
    """
    if is_text_type(column.type):
        return _classes_of_text(column.cast(pa.string()), noun, kind, names, problem)
    column = _without_decimals(column)
    if not (is_number_type(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(f"{noun}: expected numbers or text as labels, found {column.type}")
    if names and kind != "class":
        raise DataError(f"{noun}: expected text as labels, of the classes {listed(names)}, found {column.type}")
    if names:
        return _classes_of_text(column.cast(pa.string()), noun, kind, names)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())  # truth values become the classes 0 and 1
    if pa.types.is_integer(column.type) and column.null_count:
        column = column.fill_null(-1)  # an empty field means that the node is unlabelled
    # Among real numbers, an empty field becomes NaN, which stands for an unknown target.
    return label_column(np.asarray(column), noun, kind), ()


def _classes_of_text(
    column: Column, noun: str, kind: str, names: tuple[str, ...], problem: str = ""
) -> tuple[np.ndarray, tuple[str, ...]]:
    texts = [text for text in pc.unique(column).to_pylist() if text is not None and text not in NULLS]
    digits = [text for text in texts if is_number(text)]
    if kind not in ("auto", "class"):
        other = next(iter(set(texts) - set(digits)), "")
        raise DataError(f"{problem or f'{noun}: expected numbers, found {other!r}'}; label_kind is {kind}")
    if digits and kind != "class":
        other = next(iter(set(texts) - set(digits)), None)
        if other is not None:
            raise DataError(
                f"{problem or f'{noun}: expected numbers, found {other[:40]!r}'}, beside numbers; correct the table, or say with "
                "--edge-list.label-kind class that all are names"
            )
    if not texts:
        return np.full(len(column), -1, np.int64), names
    if kind == "auto" and all(map(is_otherwise_written, texts)):
        raise DataError(
            f"{noun}: expected numbers or words as labels, found {texts[0][:40]!r}; write numbers as 1234.5, or say with --edge-list.label-kind class that all are names"
        )
    known = names or tuple(sorted(texts))
    if unknown := sorted(set(texts) - set(known)):
        raise DataError(f"{noun}: expected the classes {listed(known)}, found {unknown[0][:40]!r}, {len(unknown)} such")
    codes = pc.index_in(column, pa.array(known, column.type)).fill_null(-1)
    return np.asarray(codes).astype(np.int64), known


def truths(column: Column, noun: str) -> pa.Array:
    """Converts the words yes, no, true and false to int8 (1 or 0). An empty field stays empty. Raises DataError for other words."""
    words = pc.utf8_lower(column.cast(pa.string()))
    known = {"yes": 1, "true": 1, "no": 0, "false": 0}
    other = [word for word in pc.unique(words).to_pylist() if word is not None and word not in known]
    if other:
        raise DataError(f"{noun}: expected numbers, or yes and no in each of several labels, found {other[0][:40]!r}")
    return pa.array([None if word is None else known[word] for word in words.to_pylist()], pa.int8())


def splits(table: pa.Table, path: str) -> np.ndarray:
    """Converts columns of masks, or of split codes or names, to int8 [num_rows, num_split_sets]."""
    names = table.column_names
    if not names:
        raise DataError(f"{path}: expected a column of splits, found none")
    is_mask = [is_mask_name(name) or pa.types.is_boolean(table.field(i).type) for i, name in enumerate(names)]
    if not any(is_mask):
        return np.stack([_codes_of(column, path) for column in table.columns], axis=1)
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
        codes.append(split_column(table.num_rows, train, valid, test, path))
    return np.stack(codes, axis=1)


def _mask_values(column: Column, noun: str) -> np.ndarray:
    """Returns a mask's truth values; an empty field is false. Raises DataError for values other than true, false, 1 and 0."""
    if is_text_type(column.type):
        fields = pc.utf8_lower(column.cast(pa.string()).fill_null("")).to_pylist()
        other = [field for field in fields if field not in TRUTH]
        values = np.array([TRUTH.get(field, False) for field in fields], bool)
    elif pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False), bool)
    else:
        values = np.nan_to_num(np.asarray(column.fill_null(0)))
        other = values[(values != 0) & (values != 1)].tolist()
        values = values == 1
    if other:
        raise DataError(f"{noun}: a mask has true and false, or 1 and 0, got {other[0]!r}; expected a mask by its name")
    return values


def checked_codes(codes: np.ndarray | Collection[int], path: str) -> np.ndarray:
    """Returns the codes of one split set as int8. Raises DataError if the numbers may follow another coding, such as 0 for train."""
    codes = np.asarray(codes)
    distinct = np.unique(codes).tolist()
    if distinct and not 0 <= distinct[0] <= distinct[-1] <= SPLIT_TEST:
        raise DataError(
            f"{path}: split codes must be 0 none, 1 train, 2 valid or 3 test, got {distinct[0]} to {distinct[-1]}; "
            "lists of node ids are no codes: write one code a node"
        )
    if distinct not in ([], [0]) and SPLIT_TEST not in distinct and (0 in distinct or distinct == [SPLIT_TRAIN]):
        raise DataError(
            f"{path}: split codes {', '.join(map(str, distinct))} may be a mask, or 0 train, 1 valid, 2 test; expected 1 train, 2 valid, 3 test "
            "(0 none); write the names train, valid, test, none, or masks in columns train_mask, val_mask, test_mask"
        )
    return codes.astype(np.int8)


def _codes_of(column: pa.ChunkedArray, path: str) -> np.ndarray:
    """Converts a column of split codes or names to int8 codes. An empty field becomes code 0 (none)."""
    if pa.types.is_floating(column.type):  # pandas writes codes as floats if some field is empty
        codes = column.to_numpy()
        other = codes[~(np.isnan(codes) | np.isin(codes, range(len(SPLIT_NAMES))))]
        if len(other):
            raise DataError(f"{path}: split codes must be 0 none, 1 train, 2 valid or 3 test, got {other[0]}")
        column = pa.chunked_array([pa.array(codes, from_pandas=True)]).cast(pa.int64())
    if pa.types.is_integer(column.type):
        checked_codes(column.drop_null().to_numpy(), path)
        return column.fill_null(0).to_numpy().astype(np.int8)
    if not is_text_type(column.type):
        raise DataError(f"{path}: expected integer codes or names of splits, found {column.type}")
    names = np.asarray(column.cast(pa.string()).fill_null("").to_numpy(), dtype=object)
    names = np.array([name if name in NULLS else name.lower() for name in names], dtype=object)
    words = set(names)
    unknown = sorted(words - set(SPLIT_CODES))
    if unknown:
        raise DataError(f"{path}: splits must be {', '.join(SPLIT_NAMES)}, got {unknown[0]!r}")
    if words <= {*_CODES, *NULLS}:
        checked_codes([int(word) for word in words if word in _CODES], path)
    return np.array([SPLIT_CODES[name] for name in names], dtype=np.int8)
