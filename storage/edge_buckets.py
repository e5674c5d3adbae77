"""Edges on scratch disk, grouped by destination, then sorted a bucket at a time: an external sort in two passes.

A bucket covers consecutive destination ids of one partition. Spilling appends to one file per bucket and column; sorting reads
one bucket into memory. A bucket that a heavy tail made too large is read in narrower destination ranges instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

_MAX_BUCKETS = 256  # a chunk is appended to each of them, so more buckets make smaller writes


@dataclass(frozen=True)
class Bucket:
    """Edges of consecutive destinations, sorted by (destination, source row, position in the source)."""

    key: np.ndarray  # int64 [k]: (new id - low) · 2^row_bits + source row
    low: int
    row_bits: int
    edge_id: np.ndarray | None
    weight: np.ndarray | None
    feature: np.ndarray | None

    @property
    def dst(self) -> np.ndarray:
        """int64 [k], new ids"""
        return (self.key >> self.row_bits) + self.low

    @property
    def src_row(self) -> np.ndarray:
        """int64 [k], source rows"""
        return self.key & ((1 << self.row_bits) - 1)

    def neighbors(self, id_of_row: np.ndarray, degree: np.ndarray) -> np.ndarray:
        """The sources' new ids; adds to `degree` (int64, of the nodes from `low` on) what each destination has here."""
        from storage.bucket_kernels import unpack_lists

        neighbor = np.empty(len(self.key), id_of_row.dtype)
        unpack_lists(self.key, self.low, self.row_bits, id_of_row, degree, neighbor)
        return neighbor


@dataclass(frozen=True)
class SpilledEdges:
    """Edges between source rows, as they are spilled."""

    src: np.ndarray
    dst: np.ndarray
    edge_id: np.ndarray | None
    weight: np.ndarray | None
    feature: np.ndarray | None

    def where(self, keep: np.ndarray) -> "SpilledEdges":
        if keep.all():
            return self
        extras = [None if column is None else column[keep] for column in (self.edge_id, self.weight, self.feature)]
        return SpilledEdges(self.src[keep], self.dst[keep], *extras)

    def reversed(self) -> "SpilledEdges":
        return replace(self, src=self.dst, dst=self.src)

    def with_reverses(self) -> "SpilledEdges":
        """Each edge followed at once by its reverse, so that which of two equal edges comes first is the source's choice and
        not that of the chunks; a self-loop is its own reverse."""
        both = np.stack([self.src, self.dst], axis=1)
        extras = [
            None if column is None else np.repeat(column, 2, axis=0)
            for column in (self.edge_id, self.weight, self.feature)
        ]
        doubled = SpilledEdges(both.reshape(-1), both[:, ::-1].reshape(-1), *extras)
        keep = np.ones(2 * len(self.src), bool)
        keep[1::2] = self.src != self.dst
        return doubled.where(keep)


class EdgeBuckets:
    """Spill files of a graph's edges, by partition and destination range."""

    def __init__(
        self,
        directory: Path,
        offsets: np.ndarray,
        *,
        expected_edges: int,
        memory_budget_bytes: int,
        index_dtype: np.dtype,
        with_edge_id: bool,
        with_weight: bool,
        feature_dim: int,
    ) -> None:
        directory.mkdir()
        self.with_edge_id = with_edge_id
        self._offsets = offsets
        columns: dict[str, tuple[np.dtype, int]] = {"dst": (index_dtype, 1), "src": (index_dtype, 1)}
        if with_edge_id:
            columns["edge_id"] = (np.dtype(np.int64), 1)
        if with_weight:
            columns["weight"] = (np.dtype(np.float32), 1)
        if feature_dim:
            columns["feature"] = (np.dtype(np.float32), feature_dim)
        self._columns = columns
        record_bytes = sum(dtype.itemsize * width for dtype, width in columns.values())
        # Sorting holds the records, an int64 key, an int64 order and the sorted copy.
        self._max_records = max(1024, memory_budget_bytes // 2 // (2 * record_bytes + 16))
        # A chunk exists as the source's int64 pairs, doubled by its reverses, doubled again where self-loops are taken out, and
        # in the order of buckets.
        self.chunk_edges = int(max(1024, min(1 << 23, memory_budget_bytes // 4 // (128 + 5 * record_bytes))))
        num_partitions = len(offsets) - 1
        wanted = -(-expected_edges // self._max_records)
        per_partition = max(1, min(-(-2 * wanted // num_partitions), _MAX_BUCKETS // num_partitions))
        bounds = [
            np.linspace(offsets[p], offsets[p + 1], per_partition + 1).astype(np.int64)[:-1]
            for p in range(num_partitions)
        ]
        self._bounds = np.concatenate([*bounds, offsets[-1:]]).astype(np.int64)  # bucket b: [bounds[b], bounds[b + 1])
        self._per_partition = per_partition
        # A key is a destination's place in its range, then the source row: 63 bits for both, whatever the number of nodes.
        self._row_bits = max(1, int(offsets[-1] - 1).bit_length())
        self._max_span = 1 << (63 - self._row_bits)
        self._paths = [
            {name: directory / f"{bucket}.{name}" for name in columns}
            for bucket in range(per_partition * num_partitions)
        ]
        self._num_spilled = np.zeros(num_partitions, np.int64)
        for paths in self._paths:
            for path in paths.values():
                path.touch()

    def spill(self, edges: SpilledEdges, id_of_row: np.ndarray) -> None:
        """Appends edges to the buckets of their destinations' new ids, in the order given."""
        dst = id_of_row[edges.dst]
        values = {
            "dst": dst,
            "src": edges.src,
            "edge_id": edges.edge_id,
            "weight": edges.weight,
            "feature": edges.feature,
        }
        if len(self._paths) == 1:
            self._append(0, {name: self._column(values, name) for name in self._columns}, slice(0, len(dst)))
            return
        # numba: imported where it is used, for who opens a graph does not sort edges
        from storage.bucket_kernels import group_by_bucket

        by_dst, by_src, order, ends = group_by_bucket(dst, edges.src, self._bounds)
        grouped = {"dst": by_dst, "src": by_src}
        for name in self._columns.keys() - grouped.keys():
            grouped[name] = self._column(values, name)[order]
        start = 0
        for index, end in enumerate(ends.tolist()):
            if end > start:
                self._append(index, grouped, slice(start, end))
            start = end

    def _column(self, values: dict[str, np.ndarray | None], name: str) -> np.ndarray:
        column = values[name]
        assert column is not None
        return np.ascontiguousarray(column, dtype=self._columns[name][0])

    def _append(self, bucket: int, columns: dict[str, np.ndarray], which: slice) -> None:
        self._num_spilled[bucket // self._per_partition] += which.stop - which.start
        for name, column in columns.items():
            # Opened for each write: buckets times columns may be more files than a process may hold open.
            with open(self._paths[bucket][name], "ab") as file:
                file.write(column[which].data)

    def num_spilled(self, partition: int) -> int:
        """How many edges the partition has got, before any duplicates are dropped."""
        return int(self._num_spilled[partition])

    def sorted_buckets(self, partition: int, *, drop_duplicates: bool) -> Iterator[Bucket]:
        """Yields the partition's edges in ascending destination order and deletes their spill files."""
        first = partition * self._per_partition
        for bucket in range(first, first + self._per_partition):
            paths = self._paths[bucket]
            columns = {
                name: np.memmap(paths[name], dtype, "r").reshape(
                    (-1, width) if width > 1 or name == "feature" else (-1,)
                )
                if paths[name].stat().st_size
                else np.empty((0, width) if name == "feature" else (0,), dtype)
                for name, (dtype, width) in self._columns.items()
            }
            last = (
                self._bounds[bucket + 1] if bucket + 1 < first + self._per_partition else self._offsets[partition + 1]
            )
            ranges = self._ranges(columns["dst"], int(self._bounds[bucket]), int(last))
            for low, high in ranges:
                chosen = slice(None) if len(ranges) == 1 else self._positions(columns["dst"], low, high)
                yield self._sort(columns, chosen, low, drop_duplicates)
            del columns
            for path in paths.values():
                path.unlink()

    def _ranges(self, dst: np.ndarray, low: int, high: int) -> list[tuple[int, int]]:
        """Consecutive destination ranges of at most about max_records edges each (a single hub may exceed it), with keys of
        63 bits."""
        if not len(dst) or (len(dst) <= self._max_records and high - low <= self._max_span):
            return [(low, high)]
        starts = range(low, max(high, low + 1), self._max_span)
        return [some for start in starts for some in self._split(dst, start, min(start + self._max_span, high))]

    def _split(self, dst: np.ndarray, low: int, high: int) -> list[tuple[int, int]]:
        parts = [dst[start : start + self._max_records] for start in range(0, len(dst), self._max_records)]
        num_edges = sum(int(np.count_nonzero((part >= low) & (part < high))) for part in parts)
        if num_edges <= self._max_records or high - low <= 1:
            return [(low, high)]
        counts = np.zeros(high - low, np.int64)
        for part in parts:
            counts += np.bincount(part[(part >= low) & (part < high)] - low, minlength=high - low)
        group = (np.cumsum(counts) - 1) // self._max_records
        cuts = np.flatnonzero(np.diff(group)) + 1
        edges = [low, *(low + cuts).tolist(), high]
        return list(pairwise(edges))

    def _positions(self, dst: np.ndarray, low: int, high: int) -> np.ndarray:
        """Where in `dst` the ids of a range are."""
        return np.concatenate(
            [
                start + np.flatnonzero((part >= low) & (part < high))
                for start in range(0, len(dst), self._max_records)
                for part in [dst[start : start + self._max_records]]
            ]
        )

    def _sort(
        self, columns: dict[str, np.ndarray], chosen: np.ndarray | slice, low: int, drop_duplicates: bool
    ) -> Bucket:
        """Of the edges `chosen`, whose destinations begin at `low`."""
        from storage.bucket_kernels import pack_keys

        dst, src = columns["dst"][chosen], columns["src"][chosen]
        key = np.empty(len(dst), np.int64)
        pack_keys(dst, src, low, self._row_bits, key)
        extras = {name: column for name, column in columns.items() if name not in ("dst", "src")}
        if not extras:
            key.sort()
            if drop_duplicates:
                key = key[np.concatenate([[True], np.diff(key) != 0])] if len(key) else key
            sorted_extras: dict[str, np.ndarray] = {}
        else:
            order = np.argsort(key, kind="stable")
            key = key[order]
            if drop_duplicates and len(key):
                keep = np.concatenate([[True], np.diff(key) != 0])
                key, order = key[keep], order[keep]
            sorted_extras = {name: np.asarray(column[chosen])[order] for name, column in extras.items()}
        return Bucket(
            key=key,
            low=low,
            row_bits=self._row_bits,
            edge_id=sorted_extras.get("edge_id"),
            weight=sorted_extras.get("weight"),
            feature=sorted_extras.get("feature"),
        )


class SortedEdges:
    """Edge columns of one partition, appended bucket by bucket and then seen as whole arrays: in memory where `num_edges`, the most
    that will come, fit `memory_bytes`, else over scratch files."""

    def __init__(
        self,
        stem: Path,
        index_dtype: np.dtype,
        with_edge_id: bool,
        with_weight: bool,
        feature_dim: int,
        *,
        num_edges: int | None = None,
        memory_bytes: int = 0,
    ) -> None:
        columns: dict[str, tuple[np.dtype, int]] = {"index": (index_dtype, 0)}
        if with_edge_id:
            columns["edge_id"] = (np.dtype(np.int64), 0)
        if with_weight:
            columns["weight"] = (np.dtype(np.float32), 0)
        if feature_dim:
            columns["feature"] = (np.dtype(np.float32), feature_dim)
        self._columns = columns
        self._paths = {name: stem.with_suffix(f".{name}") for name in columns}
        self._files: dict[str, BinaryIO] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._num_appended = 0
        edge_bytes = sum(dtype.itemsize * max(1, width) for dtype, width in columns.values())
        if num_edges is not None and num_edges * edge_bytes <= memory_bytes:
            self._arrays = {
                name: np.empty((num_edges, width) if width else num_edges, dtype)
                for name, (dtype, width) in columns.items()
            }

    def __enter__(self) -> "SortedEdges":
        if not self._arrays:
            self._files = {name: open(path, "wb") for name, path in self._paths.items()}  # noqa: SIM115
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arrays = {}
        for file in self._files.values():
            file.close()
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def append(
        self, index: np.ndarray, edge_id: np.ndarray | None, weight: np.ndarray | None, feature: np.ndarray | None
    ) -> None:
        values = {"index": index, "edge_id": edge_id, "weight": weight, "feature": feature}
        start, self._num_appended = self._num_appended, self._num_appended + len(index)
        for name, (dtype, _) in self._columns.items():
            column = values[name]
            assert column is not None
            if self._arrays:
                self._arrays[name][start : self._num_appended] = column
            else:
                self._files[name].write(np.ascontiguousarray(column, dtype=dtype).data)

    def columns(self) -> dict[str, np.ndarray]:
        """All columns; valid until the context ends."""
        if self._arrays:
            return {name: array[: self._num_appended] for name, array in self._arrays.items()}
        for file in self._files.values():
            file.flush()
        arrays = {}
        for name, (dtype, width) in self._columns.items():
            shape = (-1, width) if width else (-1,)
            size = self._paths[name].stat().st_size
            arrays[name] = (np.memmap(self._paths[name], dtype, "r") if size else np.empty(0, dtype)).reshape(shape)
        return arrays
