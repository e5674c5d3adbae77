"""Copies the node rows of one type to scratch files, in the order of the source, and checks them. Then writes them, one partition after another.

Memory per node: 8 bytes for a time, 8 bytes for a label (4 for a real number, 1 for each of several labels), 1 byte for each split set. In addition, a
quarter of the memory budget is used. Features and string ids are kept in files.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.filesystem.ingest_scratch import scratch_array
from graphmill.storage.format.arrow_files import array_from_numpy, write_batch
from graphmill.storage.format.feature_rows import FeatureRows, RowMeasure, smallest_rows
from graphmill.storage.format.manifest import partition_dir
from graphmill.storage.format.source import (
    SPLIT_TEST,
    SPLIT_TRAIN,
    NodeChunk,
    NodeSource,
    Progress,
    check_class_names,
)
from graphmill.storage.format.statistics import MAX_CLASS_COUNTS, ColumnStatistics
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.ingestion.numbering import Numbering
from graphmill.storage.ingestion.string_ids import StringFile
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter
from graphmill.storage.splits.drawn_split import split_of_nodes
from graphmill.storage.statistics.graph_measures import ColumnMeasure, FeatureMeasure, NodeColumns

_BLOCK_NUMBERS = 1 << 20  # number of feature values that are measured at a time


class NodeSpool:
    """Node rows in scratch files, in the order of the source. Rows are checked when they are read, and are later written, one partition after another."""

    def __init__(
        self, source: NodeSource, options: IngestOptions, writer: SnapshotWriter, progress: Progress, folder: str
    ) -> None:
        """Reads the source. `folder`: name of the folder for the files, in each partition and in the writer's scratch. Raises DataError for invalid rows."""
        self._writer, self._folder, scratch = writer, folder, writer.scratch / folder
        scratch.mkdir(exist_ok=True)
        self.info, self.options = source.info, options
        info = self.info
        num_nodes = info.num_nodes
        embedded = [column.name for column in info.feature_columns if column.kind == "embedded"]
        if embedded and options.feature_dtype != "float32":
            raise ConfigError(
                f"{info.name}: feature_dtype: expected float32, which has a number for each category of {embedded[0]!r}, got {options.feature_dtype}; leave it out"
            )
        self._spooled = FeatureRows(info.feature_dim, options.feature_dtype)
        self._feature = (
            scratch_array(scratch / "feature", str(self._spooled.stored_dtype), (num_nodes, self._spooled.stored_width))
            if info.feature_dim
            else None
        )
        self._label: np.ndarray | None = None
        self._split = np.zeros((num_nodes, info.num_split_sets), np.int8)
        if options.split.time_shares and not info.has_node_time:
            raise DataError(
                f"{info.name}: split by_time: expected nodes with times, the source has none; set --edge-list.node-times"
            )
        self._original_id: np.ndarray | None = None
        self._time = np.zeros(num_nodes, np.int64) if info.has_node_time else None
        self._string_id = StringFile(str(scratch)) if info.has_string_id else None
        self._scratch = scratch
        self._feature_measure, self._row_measure = FeatureMeasure(info.feature_dim), RowMeasure()
        # A quarter of the budget is for the source's float32 rows and the converted copy.
        chunk_nodes = max(1, options.memory_budget_bytes // 4 // (8 * max(info.feature_dim, 1) + 32))
        row = 0
        for chunk in source.nodes(min(chunk_nodes, num_nodes)):
            row = self._take(chunk, row)
            progress("nodes", row, num_nodes)
        if row != num_nodes:
            raise DataError(f"{info.name}: expected {num_nodes} node rows, got {row}; features and graph disagree")
        bad, bad_rows = self._feature_measure.num_nonfinite
        if bad and not options.allow_nonfinite:
            raise DataError(
                f"{info.name}: features hold {bad} non-finite values in {bad_rows} rows; "
                "clean them or pass --allow-nonfinite"
            )
        self.label_kind, self.num_classes = self._label_kind()
        check_class_names(info.name, info.class_names, self.num_classes)
        if options.split:
            self._split = split_of_nodes(info.name, options.split, num_nodes, self._label, self._time)[:, None]
        self.feature_statistics = self._feature_measure.result(self._measure_columns()) if info.feature_dim else None

    def _take(self, chunk: NodeChunk, row: int) -> int:
        info = self.info
        if (self._time is None) != (chunk.time is None):
            expected, found = ("times", "none") if chunk.time is None else ("no times", "some")
            raise DataError(f"{info.name}: node rows {row}…: expected {expected}, got {found}")
        if (self._string_id is None) != (chunk.string_id is None):
            expected, found = ("strings", "none") if chunk.string_id is None else ("no strings", "some")
            raise DataError(f"{info.name}: node rows {row}…: expected {expected} as ids, got {found}")
        columns = [c for c in vars(chunk).values() if c is not None]
        if not columns:  # a graph whose nodes have no columns
            return info.num_nodes
        count = len(columns[0])
        if any(len(column) != count for column in columns):
            raise DataError(
                f"{info.name}: node rows {row}…: expected columns of equal length, got {[len(column) for column in columns]}"
            )
        stop = row + count
        if stop > info.num_nodes:
            raise DataError(
                f"{info.name}: expected {info.num_nodes} node rows, got at least {stop}; features and graph disagree"
            )
        width = None if chunk.feature is None else chunk.feature.shape[1:]
        if width != ((info.feature_dim,) if info.feature_dim else None):
            raise DataError(
                f"{info.name}: node rows {row}…: expected features of width {info.feature_dim}, got {width}"
            )
        if self._feature is not None and chunk.feature is not None:
            numbers = np.ascontiguousarray(chunk.feature, np.float32)
            if self._spooled.dtype == "int8" and not np.isfinite(numbers).all():
                raise DataError(
                    f"{info.name}: node rows {row}…: expected finite features, which int8 holds alone, found others; clean them "
                    "or pass --feature-dtype float32"
                )
            with np.errstate(over="ignore"):
                # a value that is too large for float16 becomes infinite, and is counted below
                stored = self._spooled.encode(numbers)
            self._feature[row:stop] = stored
            self._feature_measure.add(self._spooled.decode(stored))
            self._row_measure.add(numbers if self._spooled.dtype == "int8" else stored)
        if chunk.label is not None:
            width = chunk.label.shape[1:]
            dtype = np.dtype(np.float32 if chunk.label.dtype.kind == "f" else np.int8 if width else np.int64)
            if self._label is None:
                self._label = np.full((info.num_nodes, *width), np.nan if dtype == np.float32 else -1, dtype)
            if (dtype, width) != (self._label.dtype, self._label.shape[1:]):
                before = f"{self._label.dtype} labels {list(self._label.shape[1:])}"
                raise DataError(
                    f"{info.name}: node rows {row}…: expected {before} as before, got {dtype} {list(width)}"
                )
            self._label[row:stop] = chunk.label
        if chunk.split is not None:
            if chunk.split.shape != (count, info.num_split_sets):
                raise DataError(
                    f"{info.name}: splits: expected shape {(count, info.num_split_sets)}, got {chunk.split.shape}"
                )
            bad = chunk.split[(chunk.split < 0) | (chunk.split > SPLIT_TEST)]
            if bad.size:
                raise DataError(f"{info.name}: splits: expected codes 0 to {SPLIT_TEST}, got {int(bad[0])}")
            self._split[row:stop] = chunk.split
        if self._time is not None and chunk.time is not None:
            self._time[row:stop] = chunk.time
        if self._string_id is not None and chunk.string_id is not None:
            self._string_id.append(chunk.string_id)
        if chunk.original_id is not None:
            if self._original_id is None:
                self._original_id = np.arange(info.num_nodes, dtype=np.int64)
            self._original_id[row:stop] = chunk.original_id
            window = self._original_id[max(row - 1, 0) : stop]
            if np.any(np.diff(window) <= 0):
                raise DataError(f"{info.name}: node rows {row}…: expected strictly ascending original ids")
        return stop

    def _label_kind(self) -> tuple[str | None, int | None]:
        """Returns the kind of the labels, and a number: ("class", number of classes), ("answers" or "values", labels per node), ("value", None), (None, None).
        Raises DataError for other labels."""
        name, asked_classes, label = self.info.name, self.options.num_classes, self._label
        num_classes = (
            asked_classes if asked_classes is not None else self.info.num_classes or len(self.info.class_names) or None
        )
        if label is None and self.info.has_label:
            raise DataError(f"{name}: expected labels, the source gave none")
        if (
            label is not None
            and num_classes is None
            and np.all(np.isnan(label) if label.dtype.kind == "f" else label == -1)
        ):
            raise DataError(
                f"{name}: no node has a label, all {len(label)} are missing; leave the labels out, or say how many "
                "classes there are with --num-classes"
            )
        if label is not None and label.ndim == 2:
            if num_classes not in (None, label.shape[1]):
                raise ConfigError(
                    f"{name}: num_classes {num_classes}: expected the {label.shape[1]} labels of each node"
                )
            if label.dtype == np.float32:
                return "values", label.shape[1]
            if label.min() < -1 or label.max() > 1:
                bad = int(label.min()) if label.min() < -1 else int(label.max())
                raise DataError(f"{name}: labels: expected 1 (yes), 0 (no) or -1 (not known), got {bad}")
            return "answers", label.shape[1]
        if label is None or label.dtype != np.int64:
            kind = None if label is None else "value"
            if asked_classes is not None:
                labels = "no labels" if kind is None else "real numbers"
                raise ConfigError(f"{name}: num_classes {asked_classes}: expected classes as labels, found {labels}")
            return kind, None
        low, high = int(label.min()), int(label.max())
        if num_classes is None:
            num_classes = high + 1
            if num_classes > self.info.num_nodes:
                # otherwise a single wrong label would give every model too many classes
                raise DataError(
                    f"{name}: labels out of range: the largest is {high}, more classes than the "
                    f"{self.info.num_nodes} nodes; correct the labels, or say how many classes there are with --num-classes"
                )
        if low < -1 or high >= num_classes:
            bad = int(np.count_nonzero((label < -1) | (label >= num_classes)))
            raise DataError(
                f"{name}: labels: expected -1 (none) or a class in [0, {num_classes}), got {low if low < -1 else high}; "
                f"{bad} such labels"
            )
        return "class", num_classes

    @property
    def columns(self) -> NodeColumns:
        return NodeColumns(
            self.info.num_nodes, self._original_id, self._label, self.num_classes, self._split, self._time
        )

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The layout of the feature rows in the stored graph."""
        if not self.info.feature_dim:
            return None
        spooled, measured = self._spooled, self._row_measure
        return smallest_rows(
            spooled.dim, spooled.dtype, measured.most_nonzero, only_zero_or_one=measured.only_zero_or_one
        )

    def _measure_columns(self) -> tuple[ColumnStatistics, ...]:
        """Computes the value of `FeatureStatistics.columns`."""
        feature, dim, trains = self._feature, self.info.feature_dim, self._split.T == SPLIT_TRAIN
        if feature is None or 3 * dim * max(len(trains), 1) > MAX_CLASS_COUNTS:
            return ()

        columns: tuple[ColumnStatistics, ...] = ()
        step = max(1, _BLOCK_NUMBERS // dim)
        for rows in [*trains] or [np.ones(len(feature), bool)]:
            chosen, measure = rows if rows.any() else ~rows, ColumnMeasure(dim)
            for start in range(0, len(chosen), step):
                measure.add(self._spooled.decode(feature[start + np.flatnonzero(chosen[start : start + step])]))
            columns += measure.result()
        return columns

    def manifest_fields(self, numbering: Numbering) -> dict[str, Any]:
        """Returns the manifest's fields for these nodes."""
        rows = self.feature_rows
        return {
            "num_nodes": self.info.num_nodes,
            "partition_offsets": tuple(numbering.offsets.tolist()),
            "num_groups": numbering.num_groups,
            "feature_dim": self.info.feature_dim,
            "feature_columns": self.info.feature_columns,
            "feature_dtype": self.options.feature_dtype if rows else None,
            "feature_layout": rows.layout if rows else "dense",
            "feature_slots": rows.slots if rows else 0,
            "label_kind": self.label_kind,
            "num_classes": self.num_classes,
            "class_names": self.info.class_names,
            "num_split_sets": self._split.shape[1],
            "has_node_time": self.info.has_node_time,
            "id_kind": "string" if self.info.has_string_id else "int64",
        }

    def write(self, numbering: Numbering) -> None:
        """Writes nodes.arrow, ids.arrow and features.arrow of every partition, then removes the scratch file of features."""
        for partition in range(numbering.num_partitions):
            directory = self._writer.files / partition_dir(partition) / self._folder
            directory.mkdir(parents=True, exist_ok=True)
            for file in self._write_partition(numbering.rows(partition), numbering.group_of_row, directory):
                self._writer.add(file)
        self._feature = None
        (self._scratch / "feature").unlink(missing_ok=True)

    def _write_partition(self, rows: np.ndarray, group_of_row: np.ndarray | None, directory: Path) -> list[Path]:
        """Writes the files of the partition that owns `rows`, and returns them."""
        columns = {"original_id": rows if self._original_id is None else self._original_id[rows]}
        if self._label is not None:
            columns["label"] = self._label[rows]
        if group_of_row is not None:
            columns["group"] = group_of_row[rows]
        if self._time is not None:
            columns["time"] = self._time[rows]
        for index in range(self._split.shape[1]):
            columns[f"split_{index}"] = np.ascontiguousarray(self._split[rows, index])
        written = [directory / "nodes.arrow"]
        write_batch(written[0], {name: array_from_numpy(values) for name, values in columns.items()})
        if self._string_id is not None:
            written.append(directory / "ids.arrow")
            self._write_ids(self._string_id, rows, written[-1])
        stored = self.feature_rows
        if self._feature is None or stored is None:
            return written
        gathered_path = self._scratch / "gathered"
        gathered = scratch_array(gathered_path, str(stored.stored_dtype), (len(rows), stored.stored_width))
        # Conversion to another layout passes through float32, and layouts with column numbers also need positions. This takes up to 16 more bytes per number.
        step = max(
            1, self.options.memory_budget_bytes // 4 // ((4 if stored == self._spooled else 20) * self.info.feature_dim)
        )
        for start in range(0, len(rows), step):
            block = self._feature[rows[start : start + step]]
            gathered[start : start + step] = (
                block if stored == self._spooled else stored.encode(self._spooled.decode(block))
            )
        write_batch(directory / "features.arrow", {"feature": array_from_numpy(gathered)})
        del gathered
        gathered_path.unlink(missing_ok=True)
        return [*written, directory / "features.arrow"]

    def _write_ids(self, strings: StringFile, rows: np.ndarray, path: Path) -> None:
        """Writes the string ids of these rows, using scratch files."""
        files = self._scratch / "id_offsets", self._scratch / "id_bytes"
        offsets = scratch_array(files[0], "int64", (len(rows) + 1,))
        data = scratch_array(files[1], "uint8", (strings.num_bytes(rows),))
        write_batch(path, {"id": strings.gather(rows, offsets, data)})
        for file in files:
            file.unlink(missing_ok=True)
