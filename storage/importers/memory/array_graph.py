"""Defines `ArrayGraph`, a `GraphSource` whose columns are arrays in memory or mapped files, and checks that importers share.

The checks here need whole columns: row counts, shapes, overlapping splits. Ingestion checks ids, finite numbers and label ranges, one chunk after another.
"""

import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import DataError
from graphmill.core.summaries import describe
from graphmill.storage.format.source import (
    SPLIT_NAMES,
    SPLIT_TEST,
    SPLIT_TRAIN,
    SPLIT_VALID,
    EdgeChunk,
    NodeChunk,
    SourceInfo,
)
from graphmill.storage.format.stored_links import Links
from graphmill.storage.importers.memory.as_array import TIMES, as_array, as_text
from graphmill.storage.ingestion.string_ids import StringIds

# Errors that numpy raises for a damaged .npy file.
NPY_ERRORS: tuple[type[Exception], ...] = (
    *(ValueError, OSError, EOFError),
    # errors in the header, which is a Python literal
    *(SyntaxError, TypeError, OverflowError, RecursionError, tokenize.TokenError),
    MemoryError,  # for a shape that is larger than the file
)
LABEL_KINDS = ("auto", "class", "number", "several")
_MOST_CLASSES = 1000  # most distinct whole floats that are taken as classes


def load_npy(path: str | Path) -> np.ndarray:
    """Maps the array of a `.npy` file. Raises DataError for a file that is missing, damaged or pickled."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except NPY_ERRORS as error:
        raise DataError(f"{path}: expected a plain .npy array, got: {error}") from error


@dataclass(frozen=True)
class ArrayGraph:
    """A graph whose columns are arrays in memory. A column may come from numpy, torch, a list, pandas, polars or Arrow; `as_array` converts it.

    Raises DataError for columns of different lengths, and for values that cannot be converted to a column.
    """

    name: str
    num_nodes: int
    src: np.ndarray  # integer [num_edges]; floats with whole values become integers
    dst: np.ndarray  # integer [num_edges]
    edge_weight: np.ndarray | None = None  # [num_edges]
    edge_feature: np.ndarray | None = None  # [num_edges, edge_feature_dim]
    edge_time: np.ndarray | None = None  # [num_edges]; `time_column` converts the times
    # Names of the relations of a knowledge graph, in which `edge_feature` [num_edges, 1] holds the relation number of each edge.
    relations: tuple[str, ...] = ()
    node_time: np.ndarray | None = None  # [num_nodes]; `time_column` converts the times
    # [num_nodes, feature_dim]: a numpy array, or a scipy CSR matrix, of which one chunk at a time is made dense
    feature: Any = None
    label: np.ndarray | None = None  # [num_nodes] or [num_nodes, L]; `label_column` converts the labels
    split: Any = None  # int8 [num_nodes, num_split_sets], or rows by part, which `rows_split` converts
    num_classes: int | None = None
    class_names: tuple[str, ...] = ()  # names of the classes, or of the L labels, in order
    undirected_once: bool = False
    provenance: Mapping[str, str] | None = None
    links: Links | None = None  # held-out links; they are not among the edges
    repeats_links: bool = False  # whether the publisher's data has held-out links that are also edges
    strings: StringIds | None = None  # [num_nodes]: ids of the nodes
    label_kind: str = "auto"  # as in `label_column`; if num_classes is given, "auto" takes floats as classes

    def __repr__(self) -> str:
        return describe(self)

    def __post_init__(self) -> None:
        for owner, names in _COLUMNS.items():
            for entry, noun in names.items():
                if (values := getattr(self, entry)) is None:
                    continue
                column = self._coerced(entry, values, f"{self.name}: {noun}")
                object.__setattr__(self, entry, column)
                rows = column.shape[0] if hasattr(column, "shape") else len(column)
                if rows != (count := len(self.src) if owner == "edge" else self.num_nodes):
                    raise DataError(
                        f"{self.name}: {noun} must have one row per {owner}: {count} {owner}s, got {rows} rows"
                    )

    def _coerced(self, entry: str, values: Any, noun: str) -> Any:
        """Converts the column `entry` to the form in which it is stored."""
        if entry in ("src", "dst"):
            return whole_rows(values, noun)
        may_be_text = entry in ("label", "split", "strings") and not isinstance(values, Mapping | StringIds)
        if may_be_text and (words := as_text(values)) is not None:
            return self._of_words(entry, words, noun)
        if entry == "split" and isinstance(values, Mapping):
            return rows_split(values, self.num_nodes, self.name)
        if entry == "strings" or (entry == "feature" and hasattr(values, "tocsr")):
            return values if entry == "strings" else values.tocsr()
        if entry.endswith("time"):
            return time_column(as_array(values, noun, TIMES), noun)
        array = as_array(values, noun)
        is_vector = array.shape[1:] in ((), (1,))
        if entry == "label":
            are_classes = is_vector and self.num_classes is not None and self.label_kind == "auto"
            return label_column(array, self.name, "class" if are_classes else self.label_kind)
        if is_vector and entry.startswith("edge"):
            return array.reshape(-1) if entry == "edge_weight" else array.reshape(-1, 1)
        if entry == "split" and (array.ndim != 2 or array.dtype.kind not in "iu"):
            raise DataError(
                f"{self.name}: split must be whole numbers of shape [num_nodes, split sets], 1 train, 2 valid, 3 test, 0 none, got "
                f"{array.dtype} {list(array.shape)}; of masks it is made by array_graph.split_column"
            )
        if entry == "split" and array.shape[1] == 3 and array.any(axis=0).all() and (array.sum(axis=1) <= 1).all():
            raise DataError(
                f"{self.name}: split: expected codes 1 train, 2 valid, 3 test, got three columns of 0 and 1, which are masks; give {{'train': mask, …}}"
            )
        if array.ndim != 2 or entry == "edge_weight":
            dims = "one number of each edge" if entry == "edge_weight" else "two dimensions"
            raise DataError(f"{noun} must have {dims}, got shape {tuple(array.shape)}")
        return array

    def _of_words(self, entry: str, words: pa.LargeStringArray, noun: str) -> Any:
        """Converts a column of words to ids, split codes or classes. Without `class_names`, the classes are the words in sorted order."""
        if entry == "strings":
            ids = StringIds()
            if words.null_count or np.any(ids.add(words) != np.arange(len(words))):
                raise DataError(
                    f"{noun}: expected a string for each node, each once, found one that is missing, or twice"
                )
            return ids
        if entry == "label" and self.label_kind not in ("auto", "class"):
            raise DataError(f"{noun}: expected numbers, got text; label_kind is {self.label_kind}")
        names = [*SPLIT_WORDS] if entry == "split" else [*self.class_names]
        names = names or sorted(pc.unique(words.drop_null()).to_pylist())
        codes = pc.index_in(words, pa.array(names, words.type))
        if codes.null_count > words.null_count:
            other = words.filter(pc.and_(codes.is_null(), words.is_valid()))[0].as_py()
            raise DataError(f"{noun}: expected {', '.join(names)[:200]}, got {other[:40]!r}")
        if entry == "split":
            return np.array([*SPLIT_WORDS.values(), 0], np.int8)[codes.fill_null(len(names))][:, None]
        object.__setattr__(self, "class_names", tuple(names))
        return np.asarray(codes.fill_null(-1)).astype(np.int64)

    @cached_property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=self.name,
            num_nodes=self.num_nodes,
            num_edges=len(self.src),
            feature_dim=0 if self.feature is None else self.feature.shape[1],
            edge_feature_dim=0 if self.edge_feature is None else self.edge_feature.shape[1],
            relations=self.relations,
            has_edge_weight=self.edge_weight is not None,
            has_edge_time=self.edge_time is not None,
            has_node_time=self.node_time is not None,
            has_string_id=self.strings is not None,
            has_label=self.label is not None,
            num_classes=self.num_classes
            or (None if self.label is None or self.label.ndim == 1 else self.label.shape[1]),
            class_names=self.class_names,
            label_bytes=8 if self.label is None else self.label[:1].nbytes,
            num_split_sets=0 if self.split is None else self.split.shape[1],
            undirected_once=self.undirected_once,
            provenance=self.provenance,
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        for start in range(0, len(self.src), chunk_edges):
            chunk = slice(start, start + chunk_edges)
            yield EdgeChunk(
                src=self.src[chunk].astype(np.int64),
                dst=self.dst[chunk].astype(np.int64),
                weight=None if self.edge_weight is None else self.edge_weight[chunk].astype(np.float32),
                feature=None if self.edge_feature is None else self.edge_feature[chunk].astype(np.float32),
                time=None if self.edge_time is None else self.edge_time[chunk],
            )

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        columns = (self.feature, self.label, self.split)
        return node_chunks(self.num_nodes, chunk_nodes, *columns, time=self.node_time, strings=self.strings)


_NONE = np.empty(0, np.int64)
SPLIT_WORDS = {name: code for code, name in enumerate(SPLIT_NAMES)} | {"val": SPLIT_VALID, "validation": SPLIT_VALID}
_COLUMNS = {  # name of each column in messages; src comes first, because the other edge columns must have its length
    "edge": {"src": "src", "dst": "dst"} | {f"edge_{name}": f"edge {name}s" for name in ("weight", "feature", "time")},
    "node": {"feature": "features", "label": "labels", "split": "splits", "node_time": "node times", "strings": "ids"},
}


def array_nodes(
    name: str,
    num_nodes: int,
    feature: Any = None,
    label: np.ndarray | None = None,
    split: np.ndarray | None = None,
    node_time: np.ndarray | None = None,
) -> ArrayGraph:
    """Makes the nodes of one type of a typed graph. Raises DataError like `ArrayGraph`."""
    return ArrayGraph(name, num_nodes, _NONE, _NONE, feature=feature, label=label, split=split, node_time=node_time)


def array_edges(name: str, src: np.ndarray, dst: np.ndarray, edge_weight: Any = None, **columns: Any) -> ArrayGraph:
    """Makes the edges of one relation of a typed graph. src has rows of the source type, dst rows of the target type. `columns` may be edge_feature, edge_time
    and links (held-out). Raises DataError like `ArrayGraph`."""
    return ArrayGraph(name, 0, src, dst, edge_weight, **columns)


def node_chunks(
    num_nodes: int,
    chunk_nodes: int,
    feature: Any,
    label: np.ndarray | None,
    split: np.ndarray | None,
    original_id: np.ndarray | None = None,
    time: np.ndarray | None = None,
    strings: StringIds | None = None,
) -> Iterator[NodeChunk]:
    """Yields the node columns in chunks. Without any column, yields one empty chunk. `feature` is a numpy matrix or a scipy CSR array. Each chunk of it becomes
    dense float32. `strings` are ids."""
    if all(column is None for column in (feature, label, split, original_id, time, strings)):
        yield NodeChunk()
        return
    for start in range(0, num_nodes, chunk_nodes):
        columns = (feature, label, split, original_id, time)
        dense, *others = (None if column is None else column[start : start + chunk_nodes] for column in columns)
        if dense is not None:
            dense = np.asarray(dense if isinstance(dense, np.ndarray) else dense.toarray(), dtype=np.float32)
        string_id = None if strings is None else strings.strings.part(start, min(start + chunk_nodes, num_nodes))
        yield replace(NodeChunk(dense, *others), string_id=string_id)


def edge_rows(edge_index: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (src, dst) from an array [2, num_edges] of whole numbers. Raises DataError for another shape or type."""
    ends = as_array(edge_index, f"{name}: edge_index")
    if ends.ndim != 2 or ends.shape[0] != 2:
        raise DataError(f"{name}: edges must be integers of shape [2, num_edges], got {ends.dtype} {list(ends.shape)}")
    src, dst = (whole_rows(end, f"{name}: edge_index") for end in ends)
    return src, dst


def whole_rows(rows: Any, noun: str) -> np.ndarray:
    """Returns rows of nodes from integers, or from floats with whole values, which pandas may write. Raises DataError for other or missing values."""
    array = as_array(rows, noun)
    if array.dtype.kind in "iu":
        return array
    bad = np.ones(array.shape, bool) if array.dtype.kind == "b" else ~_whole(array)
    if bad.any():
        raise DataError(
            f"{noun}: expected rows of nodes as whole numbers, got {array[bad][0]}, {int(bad.sum())} such of {array.dtype}; convert them"
        )
    return array.astype(np.int64)


def _whole(numbers: np.ndarray) -> np.ndarray:
    return (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**63)


def time_column(time: np.ndarray, noun: str) -> np.ndarray:
    """Returns times as int64. Whole numbers may have any unit; dates (numpy's datetime64) become microseconds since 1970.

    Raises DataError for other shapes and types, for numbers that are not whole, and for dates that are missing or out of range.
    """
    if time.ndim == 2 and time.shape[1] == 1:
        time = time[:, 0]
    if time.ndim != 1 or time.dtype.kind not in "iufM":
        raise DataError(
            f"{noun}: times must be whole numbers or dates, one each, got {time.dtype} {list(time.shape)}; convert them"
        )
    if time.dtype.kind == "M":
        converted = time.astype("datetime64[us]")
        bad, whole = np.isnat(converted), converted.astype(np.int64)
    elif time.dtype.kind == "f":
        bad = ~_whole(time)
        whole = np.where(bad, 0, time).astype(np.int64)
    else:
        bad = time.astype(np.uint64, copy=False) >= 2**63 if time.dtype.kind == "u" else np.zeros(len(time), bool)
        whole = time.astype(np.int64, copy=False)
    if bad.any():
        raise DataError(
            f"{noun}: times must be whole numbers (seconds since 1970, say) or dates, got {time[bad][0]}, {int(bad.sum())} such; multiply or round them"
        )
    return whole


def label_column(label: np.ndarray, name: str, kind: str = "auto") -> np.ndarray:
    """Converts labels [num_nodes], [num_nodes, 1] or [num_nodes, L] to the form in which they are stored. -1 or NaN is a missing label.

    One label per node becomes int64 [num_nodes] (classes, from whole numbers or truth values) or float32 [num_nodes] (real numbers). Several labels per
    node become int8 [num_nodes, L] of 1, 0 and -1 (not known), or float32 [num_nodes, L]. `kind` is class, number, several (labels of 0 and 1), or auto.
    With auto, floats are classes if all are whole numbers from 0 with at most 1,000 distinct values. Rows of several floats are real numbers if any of them
    is not whole. Raises DataError for other shapes, types, numbers and kinds.
    """
    if kind not in LABEL_KINDS:
        raise DataError(f"{name}: label_kind: expected {', '.join(LABEL_KINDS)}, got {kind!r}")
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim == 1 and kind == "several":
        label = label[:, None]
    if label.ndim == 2 and label.shape[1] and label.dtype.kind in "biuf":
        if kind == "class":
            raise DataError(
                f"{name}: label_kind class: expected one label a node, got shape {list(label.shape)}; leave it out"
            )
        is_number = kind == "number" or (kind == "auto" and bool(np.any(label[~np.isnan(label)] % 1)))
        return label.astype(np.float32, copy=False) if is_number else _answers(label, name)
    if label.ndim != 1:
        raise DataError(
            f"{name}: labels must be one number per node, or a row of 0 and 1, got shape {list(label.shape)}"
        )
    if kind == "number" and label.dtype.kind in "iuf":
        return label.astype(np.float32, copy=False)
    if label.dtype.kind == "f":
        if not _are_classes(label, name, kind):
            return label.astype(np.float32, copy=False)
        label = np.where(np.isnan(label), -1, label).astype(np.int64)
    if not np.issubdtype(label.dtype, np.integer) and label.dtype != bool:
        raise DataError(f"{name}: labels must be numbers, got {label.dtype}")
    low, high = (int(label.min()), int(label.max())) if len(label) else (0, 0)
    if low < -1 or high >= 2**63:
        bad = int(np.count_nonzero(label < -1)) if low < -1 else 1
        raise DataError(
            f"{name}: labels must be -1 (none) or classes from 0, got {low if low < -1 else high}, {bad} such of {len(label)}; "
            "write -1 for what has no label, also in place of PyTorch's -100"
        )
    return label.astype(np.int64, copy=False)


def _are_classes(label: np.ndarray, name: str, kind: str) -> bool:
    """Whether floats are classes. (pandas writes whole numbers with empty fields as floats.) Raises DataError if this is unclear or contradicts `kind`."""
    known = label[~np.isnan(label)]
    whole = _whole(known) & (known >= (-1 if kind == "class" else 0))
    if kind == "class" and not whole.all():
        raise DataError(
            f"{name}: labels must be classes, whole numbers from 0 (-1 or NaN: none), got {known[~whole][0]}, {int((~whole).sum())} such; "
            "for real numbers set label_kind number, and no num_classes"
        )
    if kind == "class" or not len(known) or not whole.all():
        return kind == "class"
    if (different := len(np.unique(known))) > _MOST_CLASSES:
        raise DataError(
            f"{name}: labels are {different:,} different whole numbers, written as floats: classes or numbers? "
            "set label_kind (--edge-list.label-kind) class or number"
        )
    return True


def _answers(label: np.ndarray, name: str) -> np.ndarray:
    """Converts several labels per node to int8 [num_nodes, L]: 1 (yes), 0 (no) or -1 (not known)."""
    known = np.where(np.isnan(label), -1, label) if label.dtype.kind == "f" else label
    other = (known != 0) & (known != 1) & (known != -1)
    if other.any():
        raise DataError(
            f"{name}: several labels per node must be 1 (yes), 0 (no) or -1 (not known), got {label[other][0]}, {int(other.sum())} such; "
            "for real numbers set label_kind number"
        )
    return known.astype(np.int8)


def split_column(num_nodes: int, train: Any, valid: Any, test: Any, name: str) -> np.ndarray:
    """Returns SPLIT_* codes, int8 [num_nodes], from three parts. Each part is a mask [num_nodes] or an array of rows.

    Raises DataError for a row out of range, for a row that is in two parts or twice in one part, and for a mask of another length.
    """
    code = np.zeros(num_nodes, dtype=np.int8)
    for part_code, part in ((SPLIT_TRAIN, train), (SPLIT_VALID, valid), (SPLIT_TEST, test)):
        part_name = SPLIT_NAMES[part_code]
        rows = as_array(part, f"{name}: {part_name} split")
        if rows.ndim != 1:
            raise DataError(f"{name}: {part_name} split must have one dimension, got shape {list(rows.shape)}")
        if rows.dtype == bool:
            if len(rows) != num_nodes:
                raise DataError(f"{name}: {part_name} mask must have {num_nodes} entries, got {len(rows)}")
            rows = np.flatnonzero(rows)
        rows = whole_rows(rows, f"{name}: {part_name} split").astype(np.int64)
        outside = (rows < 0) | (rows >= num_nodes)
        if outside.any():
            raise DataError(f"{name}: {part_name} split rows must be 0 to {num_nodes - 1}, got {rows[outside][0]}")
        taken = code[rows] != 0
        if taken.any():
            other = SPLIT_NAMES[code[rows][taken][0]]
            raise DataError(
                f"{name}: splits overlap: {int(taken.sum())} rows are in {other} and in {part_name}, "
                f"the first is row {rows[taken][0]}"
            )
        code[rows] = part_code
        if np.count_nonzero(code == part_code) != len(rows):
            raise DataError(f"{name}: {part_name} split names a row twice: {len(rows)} entries")
    return code


def rows_split(split_idx: Mapping[str, Any], num_nodes: int, name: str) -> np.ndarray:
    """Returns split codes, int8 [num_nodes, 1], from a dictionary like that of OGB's `get_idx_split`: rows (or masks) by part: train, valid (or val), test.

    Raises DataError for other names, and in the cases of `split_column`.
    """
    rows = {{"val": "valid"}.get(part, part): split_idx[part] for part in split_idx}
    if not rows or len(rows) < len(split_idx) or not rows.keys() <= set(SPLIT_NAMES[1:]):
        raise DataError(f"{name}: split_idx: expected some of train, valid (or val) and test, got {sorted(split_idx)}")
    return split_sets(num_nodes, [[rows.get(part, _NONE)] for part in SPLIT_NAMES[1:]], name)


def split_sets(num_nodes: int, parts: Sequence[Sequence[Any]], name: str) -> np.ndarray:
    """Returns split codes, int8 [num_nodes, num_split_sets]. `parts`: for train, valid and test, a part per split set. Raises DataError like `split_column`."""
    train, valid, test = parts
    if not len(train) == len(valid) == len(test):
        raise DataError(
            f"{name}: splits need as many train as valid and test sets, got {len(train)}, {len(valid)}, {len(test)}"
        )
    columns = [split_column(num_nodes, *one_set, name=name) for one_set in zip(train, valid, test, strict=True)]
    return np.stack(columns, axis=1)


def mask_split(masks: Sequence[Any], num_nodes: int, name: str) -> np.ndarray | None:
    """Returns split codes, int8 [num_nodes, num_split_sets], from the masks of train, valid and test. A mask may be None; if all are, returns None.

    If one part has a single mask and another part has several, the single mask is used in every split set, as in some PyG data sets.
    """
    if all(mask is None for mask in masks):
        return None
    none = np.zeros(num_nodes, bool)
    parts = [
        mask_sets(none if mask is None else mask, num_nodes, f"{name}: {part} mask", transposed=False)
        for mask, part in zip(masks, SPLIT_NAMES[1:], strict=True)
    ]
    most = max(map(len, parts))
    return split_sets(num_nodes, [sets * most if len(sets) == 1 else sets for sets in parts], name)


def mask_sets(masks: np.ndarray, num_nodes: int, name: str, *, transposed: bool = True) -> list[np.ndarray]:
    """Splits an array [num_nodes], [num_nodes, num_split_sets] or (if `transposed`) [num_split_sets, num_nodes] into boolean masks [num_nodes].

    Raises DataError for other shapes, for a square array if `transposed`, and for numbers other than 0 and 1.
    """
    masks = as_array(masks, name)
    if masks.dtype != bool:
        if masks.dtype.kind not in "iuf" or not np.isin(masks, (0, 1)).all():
            raise DataError(f"{name}: expected a mask of truth values, or of 0 and 1, got others of {masks.dtype}")
        masks = masks.astype(bool)
    if masks.shape == (num_nodes,):
        return [masks]
    by_node, by_set = masks.ndim == 2 and len(masks) == num_nodes, masks.ndim == 2 and masks.shape[1] == num_nodes
    if by_node and not by_set:
        return list(masks.T)
    if by_set and transposed and not by_node:
        return list(masks)
    hint = "; a square cannot be told from its transpose" if by_node else "; transpose it" if by_set else ""
    raise DataError(f"{name}: expected shape [{num_nodes}] or [{num_nodes}, split sets], got {list(masks.shape)}{hint}")
