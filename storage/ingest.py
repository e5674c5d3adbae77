"""From a streamed source to a directory of Arrow partitions, in bounded memory.

Spool node rows → assign rows to partitions → renumber → spill edges into buckets of consecutive destinations → sort each bucket → write the
partition's files, which threads hash and sync meanwhile → publish a snapshot (`storage.snapshot_writer`). Memory: 12 bytes per node (20 from 2^31
nodes on), 8 for times and 8 for labels (one for each of several), one for each split set and up to 9 for the statistics, plus `memory_budget_bytes`; features and edges pass through
scratch files in the snapshot's folder. The snapshot appears whole or not at all.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from storage.arrow_files import array_from_numpy, neighbor_lists, split_url, write_batch
from storage.edge_buckets import (
    Bucket,
    ColumnTypes,
    EdgeBuckets,
    GroupedEdges,
    SortedEdges,
    SortedLists,
    SpilledEdges,
    edge_column_types,
)
from storage.errors import ConfigError, DataError, FormatError, GraphmillError
from storage.feature_rows import FeatureRows, RowMeasure, smallest_rows
from storage.filesystem_errors import one_line
from storage.graph_measures import EdgeMeasure, EdgeSums, FeatureMeasure, NodeColumns
from storage.held_out_links import MessageEdges, without_held_out
from storage.ingest_options import IngestOptions
from storage.manifest import EncodingEntry, Manifest, StoredLinks, parse_manifest, partition_dir
from storage.ordered_map import num_cores, ordered_map
from storage.partitioners import assign_partitions
from storage.scratch import scratch_array
from storage.snapshot_writer import SnapshotWriter, write_snapshot
from storage.snapshots import read_manifest
from storage.source import SPLIT_TEST, EdgeChunk, GraphSource, NodeChunk, Progress, SourceInfo
from storage.statistics import FeatureStatistics, GraphStatistics
from storage.time_splits import split_of_times, times_at

_NO_TIME = np.int64(np.iinfo(np.int64).min)  # numpy's NaT


def ingest(
    source: GraphSource, url: str, options: IngestOptions | None = None, progress: Progress | None = None
) -> Manifest:
    """Writes `source` as partitions under `url`, as a snapshot of its own, and returns the manifest.

    Raises ConfigError where `url` already holds something (unless `overwrite` and it is a graph) or cannot be used, DataError where the
    source's data is not a valid graph, ConflictError where another writer published meanwhile, FormatError where writing fails. After an
    error `url` holds what it held before.
    """
    options = options or IngestOptions()
    _check_info(source.info, options)
    source = without_held_out(source, options.links)
    with write_snapshot(url, overwrite=options.overwrite, scratch=options.scratch) as writer:
        try:
            manifest = _Ingestion(source, options, writer, progress or (lambda *_: None)).run()
        except GraphmillError:
            raise
        except OSError as error:  # a full disk, or a source's file that cannot be read
            named = f" ({error.filename})" if error.filename else ""
            raise FormatError(f"{url}: cannot prepare the graph: {one_line(error)}{named}") from error
        return writer.commit(replace(manifest, encodings=_kept_encodings(url, manifest.content_hash)))


def _kept_encodings(url: str, content_hash: str) -> Mapping[str, EncodingEntry]:
    """The encodings of the previous snapshot, if it holds the same graph."""
    filesystem, path = split_url(url)
    with contextlib.suppress(FormatError):  # there is none, or it is no single graph
        before = parse_manifest(*read_manifest(filesystem, path, url, None, ""))
        if before.content_hash == content_hash:
            return before.encodings
    return {}


def _check_info(info: SourceInfo, options: IngestOptions) -> None:
    if info.num_nodes < 1:
        raise DataError(f"{info.name}: expected at least one node, got {info.num_nodes}")
    if options.num_partitions > info.num_nodes:
        raise ConfigError(
            f"num_partitions: expected at most one partition per node ({info.num_nodes}), got {options.num_partitions}; "
            "lower --partitions"
        )


class _Ingestion:
    """The steps of one ingestion over its scratch directory."""

    def __init__(self, source: GraphSource, options: IngestOptions, writer: SnapshotWriter, progress: Progress) -> None:
        self.source, self.info, self.options = source, source.info, options
        self.writer, self.scratch, self.progress = writer, writer.scratch, progress
        undirected = options.undirected
        self.add_reverse = self.info.undirected_once if undirected is None else undirected
        # A source that gives each undirected edge once has no duplicates to drop; a directed one may hold both directions.
        self.sum_duplicates = self.add_reverse and not self.info.undirected_once and not options.drop_duplicates
        self.drop_duplicates = options.drop_duplicates or self.sum_duplicates
        self.symmetric = self.add_reverse or self.info.symmetric
        self.out_edges = options.out_edges and not self.symmetric
        # Without times of their own, edges are as old as the younger of their ends.
        self.has_edge_time = self.info.has_edge_time or self.info.has_node_time
        self.index_dtype = np.dtype(np.int32 if self.info.num_nodes < 2**31 else np.int64)
        self.columns = edge_column_types(
            edge_id=options.edge_ids,
            weight=self.info.has_edge_weight,
            time=self.has_edge_time,
            feature_dim=self.info.edge_feature_dim,
        )
        num_threads = num_cores() if options.num_threads is None else options.num_threads
        self.num_threads = num_threads if num_threads > 1 else 0  # besides this one

    def run(self) -> Manifest:
        nodes = _NodeSpool(self.source, self.options, self.scratch, self.progress)
        options = self.options
        self.progress("assign", 0, None)
        assigned = assign_partitions(
            options.partitioner, self.source, options.num_partitions, options.seed, options.groups
        )
        counts = np.bincount(assigned.partition, minlength=options.num_partitions)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        id_of_row, row_of_id = _renumber(assigned.partition, offsets, self.index_dtype)
        group_of_row, num_groups = assigned.group, assigned.num_groups
        self.node_time = None if self.info.has_edge_time else nodes.columns.time
        del assigned

        self.progress("edges", 0, self.info.num_edges)
        buckets = {"topology": self._new_buckets("edges", offsets, self.columns)}
        if self.out_edges:
            # Features lie beside the in-edges alone; out-edges find them by their edge ids.
            of_out_edges = {name: kind for name, kind in self.columns.items() if name != "feature"}
            buckets["out_topology"] = self._new_buckets("out_edges", offsets, of_out_edges)
        self._spill_edges(buckets, id_of_row)
        self.progress("write", 0, options.num_partitions)
        measure = EdgeMeasure(
            row_of_id,
            nodes.columns,
            num_edge_columns=self.info.has_edge_weight + 2 * self.has_edge_time + self.info.edge_feature_dim,
            is_symmetric=self.symmetric,  # a source that says so and is not is refused below
            max_edges=sum(buckets["topology"].num_spilled(partition) for partition in range(options.num_partitions)),
        )
        with self._sorted_lists(buckets["topology"], id_of_row, measure) as sorted_lists:
            for partition, (_, lists) in enumerate(sorted_lists):
                directory = self.writer.files / partition_dir(partition)
                directory.mkdir()
                owned = slice(offsets[partition], offsets[partition + 1])
                most = buckets["topology"].num_spilled(partition)
                self._write_edges("topology", lists, owned.stop - owned.start, most, directory)
                nodes.write(row_of_id[owned].astype(np.int64), group_of_row, directory)
                for file in directory.iterdir():
                    self._add(file)
                self.progress("write", partition + 1, options.num_partitions)
        statistics = measure.result(nodes.columns, nodes.feature_statistics)
        symmetric = self._is_symmetric(statistics)
        has_out_edges = self.out_edges and not symmetric
        if has_out_edges:
            self._write_out_edges(buckets["out_topology"], id_of_row, offsets)
        links = self._write_links(symmetric, id_of_row, offsets)
        self.progress("checksum", 0, None)
        files = self.writer.entries()
        provenance = {
            **(self.info.provenance or {}),
            "partitioner": options.partitioner,
            "seed": str(options.seed),
            "reverse_edges_added": str(self.add_reverse).lower(),
            "duplicates": "summed" if self.sum_duplicates else "first" if self.drop_duplicates else "kept",
            "self_loops_dropped": str(options.drop_self_loops).lower(),
            **self._links_told(),
        }
        return Manifest(
            name=self.info.name,
            num_nodes=self.info.num_nodes,
            num_edges=statistics.in_degree.total,
            partition_offsets=tuple(int(offset) for offset in offsets),
            num_groups=num_groups,
            feature_dim=self.info.feature_dim,
            feature_dtype=options.feature_dtype if nodes.feature_rows else None,
            feature_layout=nodes.feature_rows.layout if nodes.feature_rows else "dense",
            feature_slots=nodes.feature_rows.slots if nodes.feature_rows else 0,
            edge_feature_dim=self.info.edge_feature_dim,
            has_edge_id=options.edge_ids,
            has_edge_weight=self.info.has_edge_weight,
            has_edge_time=self.has_edge_time,
            has_node_time=self.info.has_node_time,
            symmetric=symmetric,
            has_out_edges=has_out_edges,
            label_kind=nodes.label_kind,
            num_classes=nodes.num_classes,
            num_split_sets=nodes.num_split_sets,
            links=links,
            statistics=statistics,
            files=files,
            provenance=provenance,
        )

    def _new_buckets(self, name: str, offsets: np.ndarray, columns: ColumnTypes) -> EdgeBuckets:
        info = self.info
        return EdgeBuckets(
            self.scratch / name,
            offsets,
            expected_edges=(info.num_edges or info.num_nodes * 16) * (2 if self.add_reverse else 1),
            memory_budget_bytes=self.options.memory_budget_bytes // (2 if self.out_edges else 1),
            index_dtype=self.index_dtype,
            columns=columns,
            copied=self.add_reverse or self.options.drop_self_loops,
            num_threads=self.num_threads,
        )

    def _spill_edges(self, all_buckets: dict[str, EdgeBuckets], id_of_row: np.ndarray) -> None:
        """Reads the source's edges once, checks them, and spills them by owner and destination (out-edges: by source)."""
        buckets = all_buckets["topology"]

        def group(numbered: tuple[int, EdgeChunk]) -> dict[str, GroupedEdges]:
            edges = self._checked_edges(*numbered)
            both = edges.with_reverses(of_loops=self.sum_duplicates) if self.add_reverse else edges
            grouped = {"topology": buckets.group(both, id_of_row)}
            if "out_topology" in all_buckets:
                grouped["out_topology"] = all_buckets["out_topology"].group(edges.reversed(), id_of_row)
            return grouped

        done = 0

        def numbered() -> Iterator[tuple[int, EdgeChunk]]:
            nonlocal done
            for chunk in self.source.edges(buckets.chunk_edges):
                first, done = done, done + len(chunk.src)
                yield first, chunk

        def append(grouped: dict[str, GroupedEdges]) -> None:
            for name, edges in grouped.items():
                all_buckets[name].append(edges)

        # This thread reads the source, several group the edges, one writes them.
        all_grouped = ordered_map(group, numbered(), buckets.num_groupers)
        with closing(ordered_map(append, all_grouped, min(1, buckets.num_groupers))) as appended:
            for _ in appended:
                self.progress("edges", done, self.info.num_edges)

    def _checked_edges(self, first: int, chunk: EdgeChunk) -> SpilledEdges:
        """A chunk whose first edge has the number `first`. Raises DataError."""
        info, options = self.info, self.options
        count = len(chunk.src)
        if len(chunk.dst) != count:
            raise DataError(f"{info.name}: expected as many sources as destinations, got {count} and {len(chunk.dst)}")
        columns = _edge_columns(info, chunk, options.allow_nonfinite)
        for ids in (chunk.src, chunk.dst):
            # Read as unsigned, a negative id is larger than any.
            if count and ids.astype(np.int64, copy=False).view(np.uint64).max() >= info.num_nodes:
                bad = (ids < 0) | (ids >= info.num_nodes)
                row = int(np.argmax(bad))
                raise DataError(
                    f"{info.name}: edge {first + row}: expected node ids in [0, {info.num_nodes}), got {int(ids[row])}; "
                    f"{int(bad.sum())} such ids in this chunk"
                )
        if self.node_time is not None:
            columns["time"] = self._time_of_ends(chunk.src, chunk.dst)
        if count and columns.get("time", _NO_TIME + 1).min() == _NO_TIME:
            raise DataError(
                f"{info.name}: edge times: expected numbers above {_NO_TIME}, which stands for none, got it"
            )
        if options.edge_ids:
            columns["edge_id"] = np.arange(first, first + count, dtype=np.int64)
        edges = SpilledEdges(chunk.src, chunk.dst, columns)
        return edges.where(edges.src != edges.dst) if options.drop_self_loops else edges

    def _time_of_ends(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        assert self.node_time is not None
        return np.maximum(self.node_time[src], self.node_time[dst])

    def _is_symmetric(self, statistics: GraphStatistics) -> bool:
        """Whether the lists of in-edges are those of out-edges. Raises DataError where the source says so and it is not."""
        if self.info.symmetric and not statistics.symmetric:
            expected = (
                "each edge's reverse with its weight, time and features"
                if statistics.symmetric_edges
                else "the reverse of each edge"
            )
            raise DataError(
                f"{self.info.name}: the source says that it is symmetric: expected {expected}, some of {statistics.in_degree.total} edges "
                "lack it (by their hashes); ingest it with --reverse-edges add"
            )
        # An edge and its reverse have two ids, and lists of in-edges would answer with the other's.
        return self.symmetric or (statistics.symmetric and not self.options.edge_ids)

    def _write_out_edges(self, buckets: EdgeBuckets, id_of_row: np.ndarray, offsets: np.ndarray) -> None:
        with self._sorted_lists(buckets, id_of_row, None) as sorted_lists:
            for partition, (_, lists) in enumerate(sorted_lists):
                directory, num_owned = self.writer.files / partition_dir(partition), int(np.diff(offsets)[partition])
                self._write_edges("out_topology", lists, num_owned, buckets.num_spilled(partition), directory)
                self._add(directory / "out_topology.arrow")

    def _write_links(self, symmetric: bool, id_of_row: np.ndarray, offsets: np.ndarray) -> StoredLinks | None:
        """Writes links.arrow of every partition, the links from its own nodes; None where no edge was held out."""
        if not isinstance(self.source, MessageEdges):
            return None
        links = self.source.links(symmetric=symmetric)
        if self.node_time is not None:
            links = replace(links, time=self._time_of_ends(links.source, links.destination))
        owner = np.searchsorted(offsets, id_of_row[links.source], side="right") - 1
        for partition in range(len(offsets) - 1):
            own = links.take(np.flatnonzero(owner == partition))
            file = self.writer.files / partition_dir(partition) / "links.arrow"
            write_batch(file, own.columns())
            self._add(file)
        return links.stored()

    def _links_told(self) -> dict[str, str]:
        """What the graph's provenance says of the links that are held out."""
        if not isinstance(self.source, MessageEdges):
            return {}
        options, repeated = self.options.links, self.source.num_repeated
        told = {"held_out": f"valid {options.valid:g}, test {options.test:g}, seed {options.seed}"}
        if options.by_time:
            told = {"held_out": f"edges later than {', '.join(map(str, self.source.ends_in_time))}"}
        elif not options.hold_out:
            told = {"held_out": "as published"}
        return told | ({"edges_that_are_held_out_links": str(repeated)} if repeated else {})

    def _add(self, file: Path) -> None:
        self.writer.add(file.relative_to(self.writer.files).as_posix())

    @contextmanager
    def _sorted_lists(
        self, buckets: EdgeBuckets, id_of_row: np.ndarray, measure: EdgeMeasure | None
    ) -> Iterator[Iterator[tuple[int, Iterator[SortedLists]]]]:
        """(partition, its lists in pieces) of every partition, measured while they pass; take them in order."""

        def lists_of(bucket: Bucket) -> tuple[SortedLists, EdgeSums | None]:
            lists = bucket.lists(id_of_row)
            return lists, measure.measure(bucket, lists) if measure else None

        def added(pieces: Iterable[tuple[int, tuple[SortedLists, EdgeSums | None]]]) -> Iterator[SortedLists]:
            for _, (lists, sums) in pieces:
                if measure and sums:
                    measure.add(sums, lists)
                yield lists
                del lists  # before the next is waited for

        sorted_lists = buckets.sorted_buckets(
            drop_duplicates=self.drop_duplicates, sum_columns=self.sum_duplicates, then=lists_of
        )
        with closing(sorted_lists):
            yield ((partition, added(pieces)) for partition, pieces in groupby(sorted_lists, key=itemgetter(0)))

    def _write_edges(
        self, name: str, lists: Iterable[SortedLists], num_owned: int, most_edges: int, directory: Path
    ) -> None:
        """Writes one partition's lists (and, with the in-edges, edges.arrow)."""
        spool = SortedEdges(
            self.scratch / "sorted",
            self.index_dtype,
            {kind: type_ for kind, type_ in self.columns.items() if kind != "feature" or name == "topology"},
            num_edges=most_edges,
            memory_bytes=self.options.memory_budget_bytes // 2,  # the other half sorts
        )
        indptr = np.zeros(num_owned + 1, np.int64)
        done = 1
        with spool:
            for some in lists:
                indptr[done : done + len(some.degree)] = some.degree
                done += len(some.degree)
                spool.append(some)
                del some  # before the next is waited for
            np.cumsum(indptr, out=indptr)
            columns = spool.columns()
            feature = columns.pop("feature", None)
            write_batch(directory / f"{name}.arrow", {"neighbors": neighbor_lists(indptr, columns)})
            if feature is not None:
                write_batch(directory / "edges.arrow", {"feature": array_from_numpy(feature)})


def _renumber(part_of_row: np.ndarray, offsets: np.ndarray, index_dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(new id of every row, row of every new id), [num_nodes] each. Rows of a partition stay in ascending original id."""
    from storage.bucket_kernels import renumber

    id_of_row, row_of_id = (np.empty(len(part_of_row), index_dtype) for _ in range(2))
    renumber(part_of_row, offsets[:-1].astype(np.int64), id_of_row, row_of_id)
    return id_of_row, row_of_id


def _edge_columns(info: SourceInfo, chunk: EdgeChunk, allow_nonfinite: bool) -> dict[str, np.ndarray]:
    """A chunk's weights, times and features. Raises DataError where they do not fit `info`."""
    count, columns = len(chunk.src), {"weight": chunk.weight, "time": chunk.time, "feature": chunk.feature}
    shapes = {
        "weight": (count,) if info.has_edge_weight else None,
        "time": (count,) if info.has_edge_time else None,
        "feature": (count, info.edge_feature_dim) if info.edge_feature_dim else None,
    }
    for name, values in columns.items():
        shape = None if values is None else values.shape
        if shape != shapes[name]:
            raise DataError(f"{info.name}: edge {name}s: expected shape {shapes[name]}, got {shape}")
        bad = 0 if values is None or allow_nonfinite else int(np.count_nonzero(~np.isfinite(values)))
        if bad:
            raise DataError(
                f"{info.name}: edge {name}s hold {bad} non-finite values in one chunk; clean them or pass --allow-nonfinite"
            )
    return {name: values for name, values in columns.items() if values is not None}


class _NodeSpool:
    """Node rows in source order on scratch files, checked while they pass, then written partition by partition."""

    def __init__(self, source: GraphSource, options: IngestOptions, scratch: Path, progress: Progress) -> None:
        self.info, self.options = source.info, options
        info = self.info
        num_nodes = info.num_nodes
        self._spooled = FeatureRows(info.feature_dim, options.feature_dtype)
        self._feature = (
            scratch_array(scratch / "feature", str(self._spooled.stored_dtype), (num_nodes, self._spooled.stored_width))
            if info.feature_dim
            else None
        )
        self._label: np.ndarray | None = None
        self._split = np.zeros((num_nodes, info.num_split_sets), np.int8)
        if options.split.by_time and not info.has_node_time:
            raise DataError(
                f"{info.name}: split by_time: expected nodes with times, the source has none; set --edge-list.node-times"
            )
        self._original_id: np.ndarray | None = None
        self._time = np.zeros(num_nodes, np.int64) if info.has_node_time else None
        self._scratch = scratch
        self._feature_measure, self._row_measure = FeatureMeasure(info.feature_dim), RowMeasure()
        # A quarter of the budget, counting the caller's float32 rows and our converted copy.
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
        if self._time is not None and options.split.by_time:
            self._split = self._split_by_time(self._time)

    def _take(self, chunk: NodeChunk, row: int) -> int:
        info = self.info
        if (self._time is None) != (chunk.time is None):
            expected, found = ("times", "none") if chunk.time is None else ("no times", "some")
            raise DataError(f"{info.name}: node rows {row}…: expected {expected}, got {found}")
        columns = [c for c in vars(chunk).values() if c is not None]
        if not columns:  # a graph of bare nodes
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
            with np.errstate(over="ignore"):  # a value too large for float16 becomes infinite and is counted below
                stored = self._spooled.encode(numbers)
            self._feature[row:stop] = stored
            self._feature_measure.add(self._spooled.decode(stored))
            self._row_measure.add(numbers if self._spooled.dtype == "int8" else stored)
        if chunk.label is not None:
            width = chunk.label.shape[1:]
            if width != ((info.num_classes,) if info.is_multilabel else ()):
                raise DataError(
                    f"{info.name}: node rows {row}…: expected {info.num_classes if info.is_multilabel else 'one'} labels each, got {width}"
                )
            dtype = np.dtype(np.int64 if np.issubdtype(chunk.label.dtype, np.integer) else np.float32)
            if info.is_multilabel:
                dtype = np.dtype(np.int8)
            if self._label is None:
                missing = np.nan if dtype == np.float32 else -1
                self._label = np.full((info.num_nodes, *width), missing, dtype)
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
        if chunk.original_id is not None:
            if self._original_id is None:
                self._original_id = np.arange(info.num_nodes, dtype=np.int64)
            self._original_id[row:stop] = chunk.original_id
            window = self._original_id[max(row - 1, 0) : stop]
            if np.any(np.diff(window) <= 0):
                raise DataError(f"{info.name}: node rows {row}…: expected strictly ascending original ids")
        return stop

    def _split_by_time(self, time: np.ndarray) -> np.ndarray:
        """int8 [num_nodes, 1], in place of the source's."""
        chosen = np.ones(len(time), bool)
        if self._label is not None:
            chosen = self.columns.is_labelled(slice(None))
        ends = times_at(lambda: iter([time[chosen]]), self.options.split.by_time)
        return np.where(chosen, split_of_times(time, ends), 0).astype(np.int8)[:, None]

    def _label_kind(self) -> tuple[str | None, int | None]:
        """("class", number of classes), ("answers", their number), ("value", None) or (None, None). Raises DataError where the labels are not these."""
        name, given, label = self.info.name, self.options.num_classes, self._label
        num_classes = given if given is not None else self.info.num_classes
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
        if label is not None and self.info.is_multilabel:
            if given is not None and given != label.shape[1]:
                raise ConfigError(f"{name}: num_classes {given}: expected the {label.shape[1]} labels of each node")
            if label.min() < -1 or label.max() > 1:
                bad = int(label.min()) if label.min() < -1 else int(label.max())
                raise DataError(f"{name}: labels: expected 1 (yes), 0 (no) or -1 (not known), got {bad}")
            return "answers", label.shape[1]
        if label is None or label.dtype != np.int64:
            kind = None if label is None else "value"
            if given is not None:
                labels = "no labels" if kind is None else "real numbers"
                raise ConfigError(f"{name}: num_classes {given}: expected classes as labels, found {labels}")
            return kind, None
        low, high = int(label.min()), int(label.max())
        if num_classes is None:
            num_classes = high + 1
            if num_classes > self.info.num_nodes:  # one wrong label would cost every model a row for each class
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
    def num_split_sets(self) -> int:
        return self._split.shape[1]

    @property
    def columns(self) -> NodeColumns:
        return NodeColumns(
            self.info.num_nodes, self._original_id, self._label, self.num_classes, self._split, self._time
        )

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """How rows are stored in the graph."""
        if self._feature is None:
            return None
        spooled, measured = self._spooled, self._row_measure
        return smallest_rows(
            spooled.dim, spooled.dtype, measured.most_nonzero, only_zero_or_one=measured.only_zero_or_one
        )

    @property
    def feature_statistics(self) -> FeatureStatistics | None:
        return None if self._feature is None else self._feature_measure.result()

    def write(self, rows: np.ndarray, group_of_row: np.ndarray | None, directory: Path) -> None:
        """Writes nodes.arrow and features.arrow of the partition that owns `rows`."""
        columns = {"original_id": rows if self._original_id is None else self._original_id[rows]}
        if self._label is not None:
            columns["label"] = self._label[rows]
        if group_of_row is not None:
            columns["group"] = group_of_row[rows]
        if self._time is not None:
            columns["time"] = self._time[rows]
        for index in range(self.num_split_sets):
            columns[f"split_{index}"] = np.ascontiguousarray(self._split[rows, index])
        write_batch(directory / "nodes.arrow", {name: array_from_numpy(values) for name, values in columns.items()})
        stored = self.feature_rows
        if self._feature is None or stored is None:
            return
        gathered_path = self._scratch / "gathered"
        gathered = scratch_array(gathered_path, str(stored.stored_dtype), (len(rows), stored.stored_width))
        # Rows of another layout pass through float32 and, of listed ones, their places: up to 16 bytes a number.
        step = max(
            1, self.options.memory_budget_bytes // 4 // ((4 if stored == self._spooled else 20) * self.info.feature_dim)
        )
        for start in range(0, len(rows), step):
            some = self._feature[rows[start : start + step]]
            gathered[start : start + step] = (
                some if stored == self._spooled else stored.encode(self._spooled.decode(some))
            )
        write_batch(directory / "features.arrow", {"feature": array_from_numpy(gathered)})
        del gathered
        gathered_path.unlink(missing_ok=True)
