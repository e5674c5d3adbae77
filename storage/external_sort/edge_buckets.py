"""Sorts edges on scratch disk in two passes. The first pass groups edges into buckets by destination; the second pass sorts one bucket at a time.

A bucket has consecutive destination ids of one partition. Spilling appends to one file per bucket and column. Sorting reads one bucket into
memory. If a bucket is too large because some nodes have many edges, it is read in several narrower ranges of destinations.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

import numpy as np

from graphmill.core.parallel_map import ordered_map

_MAX_BUCKETS = 256  # each flush appends to every bucket, so more buckets would mean smaller writes
_LEAST_CHUNK = 1 << 16  # edges; with smaller chunks, an additional thread costs more time than it saves
_MAX_VIEWS = 1024  # most buffers in one call of writev (IOV_MAX)

Result = TypeVar("Result")


# Columns that edges may have in addition to their two ends: edge_id int64 [k], weight float32 [k], time int64 [k], feature float32 [k, edge_feature_dim].
Columns = Mapping[str, np.ndarray]
ColumnTypes = Mapping[str, tuple[np.dtype, int]]  # dtype and width of each column; width 0: one number per edge


def edge_column_types(
    *, edge_id: bool = False, weight: bool = False, time: bool = False, feature_dim: int = 0
) -> ColumnTypes:
    int64, float32 = np.dtype(np.int64), np.dtype(np.float32)
    types: ColumnTypes = {
        "edge_id": (int64, 0),
        "weight": (float32, 0),
        "time": (int64, 0),
        "feature": (float32, feature_dim),
    }
    exists = {"edge_id": edge_id, "weight": weight, "time": time, "feature": feature_dim > 0}
    return {name: kind for name, kind in types.items() if exists[name]}


@dataclass(frozen=True)
class SortedLists:
    """Neighbor lists of consecutive nodes, one after another."""

    degree: np.ndarray  # int64 [num_nodes]
    neighbor: np.ndarray  # new ids [k]
    columns: Columns


@dataclass(frozen=True)
class Bucket:
    """Edges of consecutive destinations. They are sorted by destination, time (if edges have times), source row and position in the source."""

    key: np.ndarray  # int64 [k]: (new id - low) · 2^row_bits + source row
    low: int
    num_nodes: int  # destinations are low … low + num_nodes - 1
    row_bits: int
    columns: Columns

    def lists(self, id_of_row: np.ndarray) -> SortedLists:
        """Returns the neighbor lists of the destinations. `id_of_row`: new ids of the sources."""
        from graphmill.storage.external_sort.bucket_kernels import unpack_lists

        neighbor = np.empty(len(self.key), id_of_row.dtype)
        degree = np.zeros(self.num_nodes, np.int64)
        unpack_lists(self.key, self.row_bits, id_of_row, degree, neighbor)
        return SortedLists(degree, neighbor, self.columns)


@dataclass(frozen=True)
class SpilledEdges:
    """Edges that are not grouped yet. Their ends are rows of the source, and not new ids."""

    src: np.ndarray
    dst: np.ndarray
    columns: Columns

    def where(self, keep: np.ndarray) -> "SpilledEdges":
        if keep.all():
            return self
        return SpilledEdges(self.src[keep], self.dst[keep], {name: c[keep] for name, c in self.columns.items()})

    def reversed(self) -> "SpilledEdges":
        return replace(self, src=self.dst, dst=self.src)

    def with_reverses(self, *, of_loops: bool = False) -> "SpilledEdges":
        """Returns the edges, each directly followed by its reverse. So the order of equal edges depends on the source and not on the size of chunks. With
        `of_loops` a self-loop also gets a reverse, and sums over edges count the self-loop twice."""
        both = np.stack([self.src, self.dst], axis=1)
        columns = {name: np.repeat(column, 2, axis=0) for name, column in self.columns.items()}
        doubled = SpilledEdges(both.reshape(-1), both[:, ::-1].reshape(-1), columns)
        keep = np.ones(2 * len(self.src), bool)
        keep[1::2] = of_loops | (self.src != self.dst)
        return doubled.where(keep)


@dataclass(frozen=True)
class GroupedEdges:
    """The records of a chunk, in the order of their buckets."""

    columns: dict[str, np.ndarray]
    ends: list[int]  # position after the last record of each bucket

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


@dataclass(frozen=True)
class _Piece:
    """A range of destinations in one bucket. The edges of a range are sorted in one step."""

    bucket: int
    low: int
    high: int
    whole: bool  # whether the piece is the whole bucket
    last: bool  # whether this is the last piece of its bucket; the bucket's files can be removed after it


class EdgeBuckets:
    """Spill files of a graph's edges, by partition and range of destinations.

    `group` may run on several threads, `append` only on one thread. `sorted_buckets` starts threads that sort. Memory stays within the budget for any number of
    threads: a quarter of the budget is for `num_groupers` + 1 chunks, an eighth for records that wait to be appended, and half for sorting.
    """

    def __init__(
        self,
        directory: Path,
        offsets: np.ndarray,
        *,
        expected_edges: int,
        memory_budget_bytes: int,
        index_dtype: np.dtype,
        columns: ColumnTypes,
        num_sources: int | None = None,
        copied: bool = True,
        num_threads: int = 0,
    ) -> None:
        """`num_sources`: number of source nodes (None: the number of destinations). `index_dtype`: dtype of source and destination ids."""
        directory.mkdir()
        self._columns = {"dst": (index_dtype, 0), "src": (index_dtype, 0), **columns}
        record_bytes = _row_bytes(self._columns)
        # Sorting needs memory for the records, an int64 key, an int64 order and the sorted copy. Each thread also needs memory for two results.
        result_bytes = record_bytes - index_dtype.itemsize
        sorted_bytes = (
            2 * record_bytes + 16 + (16 if "time" in columns else 0) + (2 * result_bytes if num_threads else 0)
        )
        max_records = max(1024, memory_budget_bytes // 2 // sorted_bytes)
        num_partitions = len(offsets) - 1
        num_buckets = -(-expected_edges // max_records)
        # A quarter more buckets than fit with all threads, and at least twice as many as fit with one thread, because buckets differ in size. A bucket that is
        # too large is read in several ranges.
        num_buckets = max(2 * num_buckets, -(-5 * num_buckets * num_threads // 4))
        per_partition = max(1, min(-(-num_buckets // num_partitions), _MAX_BUCKETS // num_partitions))
        # The number of buckets that are sorted at once is limited by half of the budget.
        bucket_bytes = max(1, expected_edges // (per_partition * num_partitions)) * sorted_bytes
        self._num_sorters = min(num_threads, max(1, memory_budget_bytes // 2 // bucket_bytes))
        self._max_records = max(1024, max_records // max(1, self._num_sorters))
        # Memory for the copies of a chunk: the source's int64 pairs, and the data from which the source made the pairs; with `copied`, the chunk with its
        # reverses, twice while self-loops are removed; new ids and bucket numbers; the records in the order of buckets.
        extra_bytes = record_bytes - 2 * index_dtype.itemsize
        chunk_bytes = 2 * (16 + extra_bytes) + (4 * (16 + extra_bytes) if copied else 0) + 12 + 2 * record_bytes
        chunk_edges = memory_budget_bytes // 4 // chunk_bytes
        self.num_groupers = max(0, min(num_threads, chunk_edges // _LEAST_CHUNK - 1))
        # + 1 because the source makes another chunk while the threads group.
        self.chunk_edges = max(1024, min(1 << 23, chunk_edges // (self.num_groupers + 1)))
        self._held: list[GroupedEdges] = []
        self._held_bytes, self._max_held_bytes = 0, memory_budget_bytes // 8
        bounds = [
            np.linspace(offsets[p], offsets[p + 1], per_partition + 1).astype(np.int64)[:-1]
            for p in range(num_partitions)
        ]
        self._bounds = np.concatenate([*bounds, offsets[-1:]]).astype(np.int64)  # bucket b: [bounds[b], bounds[b + 1])
        self._per_partition = per_partition
        # A key consists of the destination's position in its range and of the source row. Together they have at most 63 bits for any number of nodes.
        self._row_bits = max(1, int((num_sources or offsets[-1]) - 1).bit_length())
        self._max_span = 1 << (63 - self._row_bits)
        self._paths = [
            {name: directory / f"{bucket}.{name}" for name in self._columns}
            for bucket in range(per_partition * num_partitions)
        ]
        self._num_spilled, self._is_on_disk = np.zeros(len(self._paths), np.int64), False  # the first: by bucket

    def group(self, edges: SpilledEdges, id_of_row: np.ndarray) -> GroupedEdges:
        """Returns the edges grouped by bucket, in the given order within each bucket. Does not change this object. `id_of_row`: new ids of the destinations."""
        # Imported here because numba is slow to import, and opening a graph does not need it.
        from graphmill.storage.external_sort.bucket_kernels import group_by_bucket

        count = len(edges.dst)
        columns = {name: np.empty(count, self._columns[name][0]) for name in ("dst", "src")}
        others = self._columns.keys() - columns.keys()
        order = np.empty(count if others else 0, np.int32)
        scratch = np.empty(count, id_of_row.dtype), np.empty(count, np.uint32)
        grouped = columns["dst"], columns["src"], order
        ends = group_by_bucket(edges.dst, edges.src, id_of_row, self._bounds, *scratch, *grouped)
        for name in others:
            columns[name] = np.ascontiguousarray(edges.columns[name][order], dtype=self._columns[name][0])
        return GroupedEdges(columns, ends.tolist())

    def append(self, grouped: GroupedEdges) -> None:
        """Takes the records of a chunk. They are written to the files once they fill an eighth of the budget; fewer records stay in memory."""
        self._held.append(grouped)
        self._held_bytes += grouped.num_bytes
        self._num_spilled += np.diff(grouped.ends, prepend=0)
        if self._held_bytes >= self._max_held_bytes or len(self._held) >= _MAX_VIEWS:
            self._flush()

    def _flush(self) -> None:
        """Appends the records in memory to the buckets' files."""
        for bucket, paths in enumerate(self._paths):
            for name, path in paths.items():
                views = [part.data for part in self._held_parts(bucket, name)]
                self._write(path, [view for view in views if view.nbytes])
        self._held, self._held_bytes, self._is_on_disk = [], 0, True

    def _held_parts(self, bucket: int, name: str) -> list[np.ndarray]:
        """A column of the bucket's records in memory, chunk by chunk."""
        return [g.columns[name][g.ends[bucket - 1] if bucket else 0 : g.ends[bucket]] for g in self._held]

    def _write(self, path: Path, views: list[memoryview]) -> None:
        if not views:
            return
        # The file is opened for each write, because a process may not have one open file for each bucket and column.
        with open(path, "ab", buffering=0) as file:
            written, whole = os.writev(file.fileno(), views), sum(view.nbytes for view in views)
            if written < whole:  # a signal interrupted the call, or the bytes were too many for one call
                rest = memoryview(b"".join(view.tobytes() for view in views))[written:]
                while rest:
                    rest = rest[file.write(rest) :]

    def num_spilled(self, partition: int) -> int:
        """Number of edges of the partition before duplicates are dropped."""
        first = partition * self._per_partition
        return int(self._num_spilled[first : first + self._per_partition].sum())

    def sorted_buckets(
        self, *, drop_duplicates: bool, sum_columns: bool = False, then: Callable[[Bucket], Result]
    ) -> Generator[tuple[int, Result], None, None]:
        """Yields (partition, then(bucket)) in ascending order of destinations, with at least one bucket for each partition. Deletes the files of
        finished buckets. Threads sort buckets and call `then` before the consumer asks for the results.

        With `drop_duplicates`, only the first of several edges with equal ends and times is kept. With `sum_columns`, the kept edge gets the sum of the
        weights and the sum of the features of these edges.
        """
        if self._is_on_disk:
            self._flush()

        def sort(piece: _Piece) -> tuple[_Piece, Result]:
            return piece, then(self._sort(piece, drop_duplicates, sum_columns))

        with closing(ordered_map(sort, self._pieces(), self._num_sorters)) as pieces:
            for piece, result in pieces:
                if piece.last and self._is_on_disk:
                    for path in self._paths[piece.bucket].values():
                        path.unlink(missing_ok=True)
                yield piece.bucket // self._per_partition, result
                del result

    def _pieces(self) -> Iterator[_Piece]:
        for bucket in range(len(self._paths)):
            low, high, count = int(self._bounds[bucket]), int(self._bounds[bucket + 1]), self._num_spilled[bucket]
            ranges = [(low, high)]
            if count > self._max_records or (count and high - low > self._max_span):
                ranges = self._ranges(self._column(bucket, "dst"), low, high)
            for start, end in ranges:
                yield _Piece(bucket, start, end, whole=len(ranges) == 1, last=end == ranges[-1][1])

    def _column(self, bucket: int, name: str, *, whole: bool = False) -> np.ndarray:
        """A column of the bucket's records, in the order in which they were appended. `whole`: all of it will be read."""
        of, dim = self._columns[name]
        if self._is_in_memory(bucket):
            return np.concatenate([np.empty(_shape(0, dim), of), *self._held_parts(bucket, name)])
        # The file is read instead of mapped because page faults cost more time than the copy.
        path = self._paths[bucket][name]
        return np.fromfile(path, of).reshape(_shape(-1, dim)) if whole else _mapped_column(path, of, dim)

    def _is_in_memory(self, bucket: int) -> bool:
        return not self._is_on_disk or not self._num_spilled[bucket]

    def _read(self, piece: _Piece) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The keys and the other columns of a piece, in the order in which the edges were spilled."""
        if not piece.whole:
            chosen = self._positions(self._column(piece.bucket, "dst"), piece.low, piece.high)
            columns = {name: np.asarray(self._column(piece.bucket, name)[chosen]) for name in self._columns}
            return self._keys(piece, [columns.pop("dst")], [columns.pop("src")]), columns
        others = self._columns.keys() - {"dst", "src"}
        dst, src = (self._parts(piece.bucket, name) for name in ("dst", "src"))
        return self._keys(piece, dst, src), {name: self._column(piece.bucket, name, whole=True) for name in others}

    def _parts(self, bucket: int, name: str) -> list[np.ndarray]:
        """A column of the bucket, in one or more arrays."""
        is_held = self._is_in_memory(bucket)
        return self._held_parts(bucket, name) if is_held else [self._column(bucket, name, whole=True)]

    def _keys(self, piece: _Piece, dst: list[np.ndarray], src: list[np.ndarray]) -> np.ndarray:
        from graphmill.storage.external_sort.bucket_kernels import pack_keys

        key, done = np.empty(sum(map(len, dst)), np.int64), 0
        for some_dst, some_src in zip(dst, src, strict=True):
            pack_keys(some_dst, some_src, piece.low, self._row_bits, key[done : done + len(some_dst)])
            done += len(some_dst)
        return key

    def _ranges(self, dst: np.ndarray, low: int, high: int) -> list[tuple[int, int]]:
        """Cuts [low, high) into ranges of destinations with at most about max_records edges each (a single node may have more). Keys of a range fit into
        63 bits."""
        starts = range(low, max(high, low + 1), self._max_span)
        return [split for start in starts for split in self._split(dst, start, min(start + self._max_span, high))]

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
        """Returns the positions in `dst` of the ids that lie in a range."""
        return np.concatenate(
            [
                start + np.flatnonzero((part >= low) & (part < high))
                for start in range(0, len(dst), self._max_records)
                for part in [dst[start : start + self._max_records]]
            ]
        )

    def _num_key_bits(self, piece: _Piece) -> int:
        return self._row_bits + (piece.high - piece.low).bit_length()

    def _sort(self, piece: _Piece, drop_duplicates: bool, sum_columns: bool) -> Bucket:
        key, extras = self._read(piece)
        if not extras:
            key, _ = _sorted(key, self._num_key_bits(piece), with_order=False)
            if drop_duplicates:
                key = key[np.concatenate([[True], np.diff(key) != 0])] if len(key) else key
        else:
            time = extras.get("time")
            if time is None:
                key, order = _sorted(key, self._num_key_bits(piece), with_order=True)
            else:
                order = np.lexsort((key, time, key >> self._row_bits))
                key, time = key[order], time[order]
            first, kept = order[:0], order
            if drop_duplicates and len(key):
                first = np.flatnonzero(~is_repeated(key, time))
                key, kept = key[first], order[first]
            summed = {"weight", "feature"} if sum_columns and len(kept) < len(order) else set()
            extras = {
                name: _sums(column[order], first) if name in summed else column[kept] for name, column in extras.items()
            }
        return Bucket(key, piece.low, piece.high - piece.low, self._row_bits, extras)


def _sorted(key: np.ndarray, num_bits: int, *, with_order: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys in ascending order, and their former positions (empty without `with_order`). Writes to `key`."""
    from graphmill.storage.external_sort.bucket_kernels import sort_keys

    count = len(key) if with_order else 0
    keys = key, np.empty_like(key)
    order, other_order = (np.empty(count, np.int32 if count < 2**31 else np.int64) for _ in keys)
    chosen = sort_keys(*keys, order, other_order, num_bits)
    return keys[chosen], (order, other_order)[chosen]


def is_repeated(key: np.ndarray, time: np.ndarray | None) -> np.ndarray:
    """Returns for each sorted edge whether it has the same ends and time as the edge before it, bool [k]."""
    repeated = np.zeros(len(key), bool)
    repeated[1:] = key[1:] == key[:-1]
    if time is not None:
        repeated[1:] &= time[1:] == time[:-1]
    return repeated


def _shape(length: int, width: int) -> tuple[int, ...]:
    return (length, width) if width else (length,)


def _row_bytes(columns: ColumnTypes) -> int:
    return sum(dtype.itemsize * max(1, width) for dtype, width in columns.values())


def _mapped_column(path: Path, dtype: np.dtype, width: int) -> np.ndarray:
    """Maps a column, [k] or [k, width], from its file."""
    return (np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)).reshape(_shape(-1, width))


def _sums(column: np.ndarray, first: np.ndarray) -> np.ndarray:
    """For each position in `first`, sums the rows from it up to the next position. Each sum is rounded once, so an edge and its reverse get the same sum."""
    return np.add.reduceat(column, first, axis=0, dtype=np.float64).astype(column.dtype)


class SortedEdges:
    """Collects the edge columns of one partition: buckets are appended, then each column is read as one array. The columns stay in memory if `num_edges`
    edges (an upper bound) fit into `memory_bytes`, else in scratch files. `columns` lists all columns except `index`, which has the neighbors' ids."""

    def __init__(
        self, stem: Path, index_dtype: np.dtype, columns: ColumnTypes, *, num_edges: int, memory_bytes: int
    ) -> None:
        self._columns = {"index": (index_dtype, 0), **columns}
        self._paths = {name: stem.with_suffix(f".{name}") for name in self._columns}
        self._files: dict[str, BinaryIO] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._num_appended = 0
        if num_edges * _row_bytes(self._columns) <= memory_bytes:
            self._arrays = {name: np.empty(_shape(num_edges, dim), of) for name, (of, dim) in self._columns.items()}

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

    def append(self, lists: SortedLists) -> None:
        start, self._num_appended = self._num_appended, self._num_appended + len(lists.neighbor)
        for name, (dtype, _) in self._columns.items():
            column = lists.neighbor if name == "index" else lists.columns[name]
            if self._arrays:
                self._arrays[name][start : self._num_appended] = column
            else:
                self._files[name].write(np.ascontiguousarray(column, dtype=dtype).data)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns all columns. The arrays are valid until the end of the context."""
        if self._arrays:
            return {name: array[: self._num_appended] for name, array in self._arrays.items()}
        for file in self._files.values():
            file.flush()
        return {name: _mapped_column(self._paths[name], *kind) for name, kind in self._columns.items()}
