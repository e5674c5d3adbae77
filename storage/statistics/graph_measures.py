"""Measures the statistics of a graph during ingestion, in bounded memory. First the rows of nodes are measured, in source order, and then the sorted edges.

All arrays are indexed by source row. Source rows are in the order of permanent ids, so results do not depend on partitions. If labels are classes, a node needs
4 bytes of memory for each eight split sets (8 bytes from 2^23 classes on). Unless the graph is known to be symmetric, it needs 5 bytes more (9 bytes from
2^32 edges on).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from graphmill.storage.external_sort.edge_buckets import Bucket, SortedLists, is_repeated
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TRAIN
from graphmill.storage.format.statistics import (
    MAX_CLASS_COUNTS,
    ColumnStatistics,
    CountStatistics,
    FeatureStatistics,
    GraphStatistics,
    SplitStatistics,
    TargetStatistics,
)

_BITS = 8  # number of split sets in one array of training labels
_BLOCK = 1 << 20  # rows that are measured at a time


class FeatureMeasure:
    """Measures feature rows. Rows must be added in source order."""

    def __init__(self, dim: int) -> None:
        self._factor = _factors(dim)
        self._counts = np.zeros(4, np.int64)
        self._ordered = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min])
        self._norms, self._fingerprint = np.zeros(3), np.zeros(2, np.uint64)
        self._num_rows = 0

    def add(self, rows: np.ndarray) -> None:
        """Measures these rows, float16 or float32 [k, dim], as they are stored."""
        from graphmill.storage.statistics.statistics_kernels import measure_rows

        for start in range(0, len(rows), _BLOCK):
            some = np.ascontiguousarray(rows[start : start + _BLOCK], dtype=np.float32)
            measure_rows(
                some.view(np.int32),
                self._num_rows,
                self._factor,
                self._counts,
                self._ordered,
                self._norms,
                self._fingerprint,
            )
            self._num_rows += len(some)

    @property
    def num_nonfinite(self) -> tuple[int, int]:
        """The number of non-finite values, and the number of rows that have such values."""
        return int(self._counts[2]), self._num_rows - int(self._counts[3])

    def result(self, columns: tuple[ColumnStatistics, ...]) -> FeatureStatistics:
        num_nonzero, num_other, num_nonfinite, num_rows = self._counts.tolist()
        some = self._ordered[0] <= self._ordered[1]
        least, largest = (_float_of(int(order)) if some else None for order in self._ordered)
        return FeatureStatistics(
            num_values=self._num_rows * len(self._factor),
            num_nonzero=num_nonzero,
            num_nonfinite=num_nonfinite,
            zero_or_one=num_other == 0,
            minimum=least,
            maximum=largest,
            mean_norm=_rounded(float(self._norms[0] + self._norms[1]) / num_rows) if num_rows else None,
            max_norm=_rounded(float(self._norms[2])) if num_rows else None,
            fingerprint=_hexadecimal(self._fingerprint),
            columns=columns,
        )


@dataclass(frozen=True)
class NodeColumns:
    """The columns of all nodes, indexed by source row, as they are stored."""

    num_nodes: int
    original_id: np.ndarray | None  # int64 [n], ascending; None: original ids are the row numbers
    # int64 [n] (-1: none), float32 [n] (NaN: none), or int8 [n, num_classes] of answers (-1: not known)
    label: np.ndarray | None
    num_classes: int | None
    split: np.ndarray  # int8 [n, num_split_sets]
    time: np.ndarray | None = None  # int64 [n]

    @property
    def num_sets(self) -> int:
        return self.split.shape[1]

    def is_labelled(self, rows: slice) -> np.ndarray:
        if self.label is None:
            return np.zeros(len(self.split[rows]), bool)
        known = np.asarray(self.label[rows] >= 0 if self.label.dtype.kind == "i" else ~np.isnan(self.label[rows]))
        return known if known.ndim == 1 else np.any(known, axis=1)

    @property
    def is_class(self) -> bool:
        return self.label is not None and self.label.ndim == 1 and self.num_classes is not None

    def training_labels(self) -> list[np.ndarray]:
        """Returns an array for each eight split sets. An entry is label · 256, plus a bit for each set in which the node trains. No classes: []."""
        if self.label is None or self.num_classes is None or not self.is_class:
            return []
        dtype = np.int32 if self.num_classes < 1 << 23 else np.int64
        packed = []
        for first in range(0, self.num_sets, _BITS):
            trains = np.zeros(self.num_nodes, dtype)
            for start in range(0, self.num_nodes, _BLOCK):
                some = slice(start, start + _BLOCK)
                is_training = self.split[some, first : first + _BITS] == SPLIT_TRAIN
                bits = np.packbits(is_training, axis=1, bitorder="little")[:, 0]
                label = self.label[some]
                trains[some] = np.where(label >= 0, (label << 8) | bits, 0)
            packed.append(trains)
        return packed


@dataclass(frozen=True)
class EdgeSums:
    """The result of `EdgeMeasure.measure` for one bucket."""

    ends: np.ndarray  # uint64 [3, 2], `sums` of `graphmill.storage.statistics.statistics_kernels.measure_edges`
    columns: np.ndarray  # the same sums over hashes that include the edges' columns; zeros if edges have no columns
    counts: np.ndarray  # int64 [2]: numbers of self-loops and of duplicates
    agreement: np.ndarray  # int64 [num_sets, 2]
    # float64 [num_sets, 2], agreement in which an edge counts with its weight; zeros if edges have no weights
    weighted: np.ndarray
    histogram: np.ndarray  # int64 [64], histogram of in-degrees
    degrees: tuple[int, int, int]  # sum, smallest and largest of the in-degrees
    least_weight: float  # inf if edges have no weights, NaN if a weight is not finite


class EdgeMeasure:
    """Measures sorted buckets of in-edges. `measure` may run on any thread. One thread must call `add`, in ascending order of destinations."""

    def __init__(
        self,
        row_of_id: np.ndarray,
        columns: NodeColumns,
        *,
        num_edge_columns: int = 0,
        edge_dim: int = 0,
        is_symmetric: bool = False,
        num_sources: int | None = None,
        max_edges: int = 2**62,
    ) -> None:
        """`columns`: columns of the destinations. `is_symmetric`: the source gives both directions of each edge, so out-degrees need not be counted.
        `num_sources`: number of source nodes; None: they have the destinations' type. `edge_dim`: number of edge features that are real numbers."""
        self._row_of_id, self._num_sets = row_of_id, columns.num_sets
        self._is_one_type = num_sources is None
        self._training = columns.training_labels() if self._is_one_type else []
        self._factor = _factors(num_edge_columns)
        num_nodes = len(row_of_id)
        # For each node: whether it has no in-edges, and its number of out-edges.
        self._no_in_edge = None if is_symmetric else np.ones(num_nodes, bool)
        out_dtype = np.uint32 if max_edges < 2**32 else np.int64
        self._num_out = None if is_symmetric else np.zeros(num_nodes if num_sources is None else num_sources, out_dtype)
        self._num_nodes = 0
        self._ends, self._columns = (np.zeros((3, 2), np.uint64) for _ in range(2))
        self._counts, self._agreement = np.zeros(2, np.int64), np.zeros((self._num_sets, 2), np.int64)
        self._in_degrees: list[tuple[np.ndarray, tuple[int, int, int]]] = []
        self._least_weight, self._weighted = np.inf, np.zeros((self._num_sets, 2))
        self._edge_columns = ColumnMeasure(edge_dim if 3 * edge_dim <= MAX_CLASS_COUNTS else 0)

    def measure(self, bucket: Bucket, lists: SortedLists) -> EdgeSums:
        from graphmill.storage.statistics.statistics_kernels import (
            count_agreement,
            count_values,
            measure_edge_columns,
            measure_edges,
        )

        where = (bucket.key, bucket.low, bucket.row_bits, self._row_of_id)
        ends, columns = (np.zeros((3, 2), np.uint64) for _ in range(2))
        counts, agreement = np.zeros(2, np.int64), np.zeros((self._num_sets, 2), np.int64)
        measure_edges(*where, ends, counts)
        if "time" in bucket.columns:
            counts[1] = np.count_nonzero(is_repeated(bucket.key, bucket.columns["time"]))
        if len(self._factor):
            measure_edge_columns(*where, _edge_columns(bucket), self._factor, columns)
        weighted, weight = np.zeros((self._num_sets, 2)), bucket.columns.get("weight", np.empty(0, np.float32))
        for index, trains in enumerate(self._training):
            sets = slice(index * _BITS, (index + 1) * _BITS)
            some = agreement[sets]
            count_agreement(*where, trains, len(some), weight, some, weighted[sets])
        histogram = np.zeros(64, np.int64)
        least_weight = float(np.min(weight, initial=np.inf)) if np.isfinite(weight).all() else np.nan
        degrees = count_values(lists.degree, histogram)
        return EdgeSums(ends, columns, counts, agreement, weighted, histogram, degrees, least_weight)

    def add(self, sums: EdgeSums, lists: SortedLists) -> None:
        from graphmill.storage.statistics.statistics_kernels import count_neighbors

        self._ends += sums.ends
        self._columns += sums.columns
        self._counts += sums.counts
        self._agreement += sums.agreement
        self._weighted += sums.weighted
        self._in_degrees.append((sums.histogram, sums.degrees))
        self._least_weight = float(np.minimum(self._least_weight, sums.least_weight))
        if dim := self._edge_columns.dim:
            self._edge_columns.add(lists.columns["feature"].reshape(-1, dim))
        start, self._num_nodes = self._num_nodes, self._num_nodes + len(lists.degree)
        if self._num_out is not None and self._no_in_edge is not None:
            self._no_in_edge[start : self._num_nodes] = lists.degree == 0
            count_neighbors(lists.neighbor, self._num_out)

    def result(self, nodes: NodeColumns, feature: FeatureStatistics | None) -> GraphStatistics:
        """Returns the statistics. Call this after all edges were added."""
        in_degree = joined_counts(self._in_degrees, nodes.num_nodes)
        out_degree, num_isolated = in_degree, in_degree.histogram[0]
        if self._num_out is not None and self._no_in_edge is not None:
            out_degree = count_statistics(self._num_out)
            alone = self._no_in_edge & (self._num_out == 0) if self._is_one_type else self._no_in_edge
            num_isolated = int(np.count_nonzero(alone))
        weighted = self._weighted if self._least_weight >= 0 else np.zeros_like(self._weighted)
        return GraphStatistics(
            in_degree=in_degree,
            out_degree=out_degree,
            num_isolated=num_isolated,
            num_self_loops=int(self._counts[0]) if self._is_one_type else 0,
            num_duplicate_edges=int(self._counts[1]),
            symmetric_edges=self._is_one_type and _is_symmetric(self._ends),
            symmetric_columns=(self._is_one_type and _is_symmetric(self._columns)) if len(self._factor) else None,
            edge_fingerprint=_hexadecimal(np.concatenate([self._ends, self._columns])),
            feature=feature,
            **_measure_parts(nodes, self._agreement, weighted),
            least_weight=self._least_weight if np.isfinite(self._least_weight) else None,
            edge_columns=self._edge_columns.result(),
        )


def statistics_without_edges(nodes: NodeColumns, feature: FeatureStatistics | None) -> GraphStatistics:
    """Returns statistics of nodes only, for a type of a typed graph, because edges are counted by relation."""
    none = CountStatistics(nodes.num_nodes, 0, 0, 0, (nodes.num_nodes,))
    no_edges = np.zeros((nodes.num_sets, 2), np.int64)
    return GraphStatistics(
        in_degree=none,
        out_degree=none,
        num_isolated=nodes.num_nodes,
        num_self_loops=0,
        num_duplicate_edges=0,
        symmetric_edges=True,
        symmetric_columns=None,
        edge_fingerprint=_hexadecimal(np.zeros((6, 2), np.uint64)),
        feature=feature,
        **_measure_parts(nodes, no_edges, no_edges),
    )


def _edge_columns(bucket: Bucket) -> np.ndarray:
    """Returns the bits of all columns, uint32 [num_edges, c], by which an edge is compared to its reverse. -0 becomes 0, because the two are equal."""
    numbers = [bucket.columns[name] for name in ("weight", "feature") if name in bucket.columns]
    numbers = [column[:, None] if column.ndim == 1 else column for column in numbers]
    columns = [(column + np.float32(0)).view(np.uint32) for column in numbers]
    if "time" in bucket.columns:
        columns.append(np.ascontiguousarray(bucket.columns["time"], "<i8").view("<u4").reshape(-1, 2))
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def _is_symmetric(sums: np.ndarray) -> bool:
    """Whether the edges u -> v with u < v join the same pairs of nodes, equally often, as the edges with u > v."""
    every, up, loops = sums
    return bool(np.array_equal(every - up - loops, up))


def _measure_parts(nodes: NodeColumns, agreement: np.ndarray, weighted: np.ndarray) -> dict[str, Any]:
    """Computes the fields of `GraphStatistics` for labels and splits."""
    is_value = nodes.label is not None and nodes.label.dtype.kind == "f"
    num_sets, num_classes = nodes.num_sets, None if is_value else nodes.num_classes
    kept = num_classes if num_classes and num_classes * (1 + len(SPLIT_NAMES) * num_sets) <= MAX_CLASS_COUNTS else 0
    identity = _column_digest(nodes)
    nowhere = np.zeros(nodes.num_nodes if not num_sets else 0, np.int8)
    splits, num_labelled, class_counts = [], 0, None
    for index in range(max(num_sets, 1)):
        code = np.ascontiguousarray(nodes.split[:, index]) if num_sets else nowhere
        sizes, labelled, classes = _count_parts(nodes, code, kept)
        num_labelled = int(labelled.sum())
        class_counts = tuple(classes.sum(axis=0).tolist()) if kept else None
        if not num_sets:
            break
        digest = identity.copy()
        digest.update(b"split")
        digest.update(code.data)
        targets = _training_targets(nodes, code) if is_value else ()
        splits.append(
            SplitStatistics(
                num_nodes=tuple(sizes.tolist()),
                num_labelled=tuple(labelled.tolist()),
                class_counts=tuple(tuple(row) for row in classes.tolist()) if kept else None,
                training_target=targets[0] if is_value and nodes.num_classes is None else None,
                training_targets=targets if nodes.num_classes else (),
                num_training_edges=int(agreement[index, 0]) if nodes.is_class else None,
                num_agreeing_edges=int(agreement[index, 1]) if nodes.is_class else None,
                digest=digest.hexdigest(),
                weighted_homophily=_rounded(weighted[index, 1] / weighted[index, 0]) if weighted[index, 0] else None,
            )
        )
    counts = {"num_labelled": num_labelled, "class_counts": class_counts}
    return {**counts, "splits": tuple(splits), "node_digest": identity.hexdigest()}


def _count_parts(nodes: NodeColumns, code: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, for each split code, its nodes, its labelled nodes, and its nodes of each class (or with a yes to each answer)."""
    from graphmill.storage.statistics.statistics_kernels import count_parts

    sizes, labelled = (np.zeros(len(SPLIT_NAMES), np.int64) for _ in range(2))
    classes = np.zeros((len(SPLIT_NAMES), num_classes), np.int64)
    for start in range(0, nodes.num_nodes, _BLOCK):
        some = slice(start, start + _BLOCK)
        if num_classes and nodes.label is not None and nodes.is_class:
            count_parts(code[some], nodes.label[some], -1, sizes, labelled, classes)
            continue
        nothing = np.zeros((len(SPLIT_NAMES), 0), np.int64)
        count_parts(code[some], nodes.is_labelled(some).astype(int) - 1, -1, sizes, labelled, nothing)
        if num_classes and nodes.label is not None:
            for part in range(len(SPLIT_NAMES)):
                classes[part] += np.count_nonzero(nodes.label[some][code[some] == part] == 1, axis=0)
    return sizes, labelled, classes


def _training_targets(nodes: NodeColumns, code: np.ndarray) -> tuple[TargetStatistics, ...]:
    assert nodes.label is not None
    label = nodes.label if nodes.label.ndim == 2 else nodes.label[:, None]
    measure = TargetMeasure(1, label.shape[1])
    for start in range(0, nodes.num_nodes, _BLOCK):
        some = slice(start, start + _BLOCK)
        measure.add(label[some], (code[some] != SPLIT_TRAIN).astype(np.int8))
    return measure.result()[0]


class TargetMeasure:
    """Computes counts, means and standard deviations for each part and target. Rows must be added in a fixed order."""

    def __init__(self, num_parts: int, num_targets: int) -> None:
        self._sums = np.zeros((num_parts, num_targets, 2, 2))
        self._counts = np.zeros((num_parts, num_targets), np.int64)

    def add(self, target: np.ndarray, part: np.ndarray) -> None:
        """Adds rows. target: float32 [k, num_targets] (NaN: no target). part: int8 [k]; rows with a higher number than the last part are not counted."""
        from graphmill.storage.statistics.statistics_kernels import add_values

        for index in range(len(self._sums)):
            chosen = part == index
            for column in range(target.shape[1]):
                values = np.ascontiguousarray(target[:, column])
                self._counts[index, column] += add_values(values, chosen, self._sums[index, column])

    def result(self) -> tuple[tuple[TargetStatistics, ...], ...]:
        """Returns the statistics, for each part a tuple with an entry for each target."""
        return tuple(
            tuple(_target_statistics(int(count), sums) for count, sums in zip(*row, strict=True))
            for row in zip(self._counts, self._sums, strict=True)
        )


class ColumnMeasure:
    """Measures each column. Rows must be added in a fixed order."""

    def __init__(self, dim: int) -> None:
        self.dim, self._numbers, self._nonzero = dim, TargetMeasure(1, dim), np.zeros(dim)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows, float32 [k, dim]."""
        finite = np.isfinite(rows)
        self._numbers.add(np.where(finite, rows, np.nan), np.zeros(len(rows), np.int8))
        self._nonzero += np.count_nonzero(finite & (rows != 0), axis=0)

    def result(self) -> tuple[ColumnStatistics, ...]:
        counted = zip(self._numbers.result()[0], self._nonzero.tolist(), strict=True)
        return tuple(
            ColumnStatistics(own.mean or 0.0, own.std or 0.0, n / max(own.num_labelled, 1)) for own, n in counted
        )


def _target_statistics(count: int, sums: np.ndarray) -> TargetStatistics:
    """Computes mean and standard deviation from sums and the sums' rounding errors. The difference of squares is computed exactly, with fractions."""
    if not count or not np.isfinite(sums).all():
        return TargetStatistics(count, None, None)
    total, squares = (Fraction(float(high)) + Fraction(float(low)) for high, low in sums)
    mean = total / count
    variance = max(squares / count - mean * mean, Fraction(0))
    return TargetStatistics(count, float(mean), float(np.sqrt(float(variance))))


def count_statistics(values: np.ndarray) -> CountStatistics:
    """Returns the statistics of integers >= 0."""
    from graphmill.storage.statistics.statistics_kernels import count_values

    histogram = np.zeros(64, np.int64)
    return joined_counts([(histogram, count_values(values, histogram))], len(values))


def joined_counts(pieces: Iterable[tuple[np.ndarray, tuple[int, int, int]]], num: int) -> CountStatistics:
    """Returns the statistics of `num` values from the statistics of pieces. A piece has a histogram, int64 [64], and (sum, smallest, largest)."""
    total, least, largest = 0, 2**62, 0
    histogram = np.zeros(64, np.int64)
    for some, (added, low, high) in pieces:
        histogram += some
        total, least, largest = total + int(added), min(least, int(low)), max(largest, int(high))
    return CountStatistics(num, total, least, largest, tuple(histogram[: largest.bit_length() + 1].tolist()))


def _column_digest(nodes: NodeColumns) -> "hashlib._Hash":
    """Returns the SHA-256 of ids, labels and times. For each split set, `_measure_parts` continues a copy of it."""
    digest = hashlib.sha256()
    for start in range(0, nodes.num_nodes, _BLOCK):
        stop = min(start + _BLOCK, nodes.num_nodes)
        rows = np.arange(start, stop) if nodes.original_id is None else nodes.original_id[start:stop]
        digest.update(rows.astype("<i8", copy=False).data)
    digest.update(b"none" if nodes.label is None else nodes.label.dtype.str.encode())
    if nodes.label is not None:
        digest.update(nodes.label.reshape(-1).data)
    if nodes.time is not None:
        digest.update(b"time")
        digest.update(nodes.time.astype("<i8", copy=False).data)
    return digest


def _factors(count: int) -> np.ndarray:
    """Returns fixed odd random numbers, uint64 [count]."""
    from graphmill.core.counter_random import hash_counters

    return hash_counters(0, np.arange(count)) | np.uint64(1)


def _float_of(order: int) -> float:
    """Returns the float32 with this rank in the order of all float32 numbers. Never returns -0."""
    bits = np.int32(order ^ ((order >> 31) & 0x7FFFFFFF))
    return float(bits.view(np.float32)) + 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")


def _hexadecimal(sums: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(sums, "<u8").tobytes()).hexdigest()[:32]
