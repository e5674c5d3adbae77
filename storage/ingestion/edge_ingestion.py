"""Writes the edges of one relation into the partitions of their targets. Spills the edges into buckets of consecutive targets, sorts and measures each
bucket, and writes neighbor lists.

A plain graph has one relation. Its source nodes and target nodes are the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.core.parallel_map import num_cores, ordered_map
from graphmill.storage.external_sort.edge_buckets import (
    Bucket,
    ColumnTypes,
    EdgeBuckets,
    GroupedEdges,
    SortedEdges,
    SortedLists,
    SpilledEdges,
    edge_column_types,
)
from graphmill.storage.format.arrow_files import array_from_numpy, neighbor_lists, write_batch
from graphmill.storage.format.manifest import partition_dir
from graphmill.storage.format.source import EdgeChunk, EdgeSource, Progress, SourceInfo
from graphmill.storage.format.statistics import FeatureStatistics, GraphStatistics
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.ingestion.numbering import Numbering
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter
from graphmill.storage.statistics.graph_measures import EdgeMeasure, EdgeSums, NodeColumns

_NO_TIME = np.int64(np.iinfo(np.int64).min)  # numpy's NaT (no time)


class EdgeIngestion:
    """Ingests `edges`, which lead from nodes of `sources` to nodes of `targets` (the same object if there is one type). `times`: times of the source nodes and
    of the target nodes, or None. `folder`: name of the folder for the files, in each partition and in the writer's scratch directory."""

    def __init__(
        self,
        edges: EdgeSource,
        options: IngestOptions,
        writer: SnapshotWriter,
        progress: Progress,
        sources: Numbering,
        targets: Numbering,
        times: tuple[np.ndarray | None, np.ndarray | None],
        folder: str,
    ) -> None:
        self.source, self.info, self.options = edges, edges.info, options
        self.writer, self.scratch, self.progress, self.folder = writer, writer.scratch / folder, progress, folder
        self.scratch.mkdir(exist_ok=True)
        self.sources, self.targets = sources, targets
        self.is_one_type = sources is targets
        undirected = options.undirected
        self.add_reverse = self.is_one_type and (self.info.undirected_once if undirected is None else undirected)
        # If the source gives each undirected edge once, there are no duplicates to drop. A directed source may have both directions of an edge.
        self.sum_duplicates = self.add_reverse and not self.info.undirected_once and not options.drop_duplicates
        self.drop_duplicates = options.drop_duplicates or self.sum_duplicates
        self.drop_self_loops = self.is_one_type and options.drop_self_loops
        self.symmetric = self.is_one_type and (self.add_reverse or self.info.symmetric)
        self.out_edges = options.out_edges and self.is_one_type and not self.symmetric
        # An edge without a time gets the later of the times of its two ends.
        self.times = (None, None) if self.info.has_edge_time else times
        self.has_edge_time = self.info.has_edge_time or any(time is not None for time in self.times)
        self._check_relations()
        self.columns = edge_column_types(
            edge_id=options.edge_ids,
            weight=self.info.has_edge_weight,
            time=self.has_edge_time,
            feature_dim=self.info.edge_feature_dim,
        )
        num_threads = num_cores() if options.num_threads is None else options.num_threads
        self.num_threads = num_threads if num_threads > 1 else 0  # number of threads in addition to this thread

    def _check_relations(self) -> None:
        """Raises DataError or ConfigError if edges have relation numbers, and also have times, added reverses or dropped duplicates."""
        name, relations = self.info.name, self.info.relations
        if not relations:
            return
        if twice := [each for each, count in Counter(relations).items() if count > 1]:
            raise DataError(f"{name}: relations: expected different names, got {twice[0]!r} twice; rename it")
        if self.has_edge_time:
            raise DataError(f"{name}: expected edges with relations or with times, got both; leave out one")
        if self.add_reverse or self.drop_duplicates:
            action, flag = (
                ("add reverse edges", "--reverse-edges add")
                if self.add_reverse
                else ("drop duplicates", "--drop-duplicates")
            )
            raise ConfigError(
                f"{name}: expected edges as they are, told apart by their relations, got an option to {action}; leave out {flag}"
            )

    def write(self, nodes: NodeColumns, feature: FeatureStatistics | None) -> tuple[GraphStatistics, dict[str, Any]]:
        """Writes the lists of every partition. Returns the statistics of the edges and of the target nodes' columns, and the manifest's fields for edges."""
        num_partitions = self.targets.num_partitions
        self.progress("edges", 0, self.info.num_edges)
        buckets = {"topology": self._new_buckets("edges", self.columns)}
        if self.out_edges:
            # Features are stored only with in-edges. Lists of out-edges refer to them by edge id.
            of_out_edges = {name: kind for name, kind in self.columns.items() if name != "feature"}
            buckets["out_topology"] = self._new_buckets("out_edges", of_out_edges)
        self._spill_edges(buckets)
        self.progress("write", 0, num_partitions)
        measure = EdgeMeasure(
            self.targets.row_of_id,
            nodes,
            num_edge_columns=self.info.has_edge_weight + 2 * self.has_edge_time + self.info.edge_feature_dim,
            edge_dim=0 if self.info.relations else self.info.edge_feature_dim,
            is_symmetric=self.symmetric,  # the source's claim; if it is false, an error is raised below
            num_sources=None if self.is_one_type else self.sources.num_nodes,
            max_edges=sum(buckets["topology"].num_spilled(partition) for partition in range(num_partitions)),
        )
        self._write_lists("topology", buckets["topology"], measure)
        statistics = measure.result(nodes, feature)
        symmetric = self._is_symmetric(statistics)
        has_out_edges = self.out_edges and not symmetric
        if has_out_edges:
            self._write_lists("out_topology", buckets["out_topology"], None)
        return statistics, {
            "num_edges": statistics.in_degree.total,
            "edge_feature_dim": self.info.edge_feature_dim,
            "relations": self.info.relations,
            "has_edge_id": self.options.edge_ids,
            "has_edge_weight": self.info.has_edge_weight,
            "has_edge_time": self.has_edge_time,
            "symmetric": symmetric,
            "has_out_edges": has_out_edges,
        }

    @property
    def provenance(self) -> dict[str, str]:
        """Describes, for the manifest's provenance, how ingestion changed the source's edges."""
        return {
            "reverse_edges_added": str(self.add_reverse).lower(),
            "duplicates": "summed" if self.sum_duplicates else "first" if self.drop_duplicates else "kept",
            "self_loops_dropped": str(self.options.drop_self_loops).lower(),
        }

    def _new_buckets(self, name: str, columns: ColumnTypes) -> EdgeBuckets:
        info, most_nodes = self.info, max(self.sources.num_nodes, self.targets.num_nodes)
        return EdgeBuckets(
            self.scratch / name,
            self.targets.offsets,
            expected_edges=(info.num_edges or self.targets.num_nodes * 16) * (2 if self.add_reverse else 1),
            memory_budget_bytes=self.options.memory_budget_bytes // (2 if self.out_edges else 1),
            index_dtype=np.dtype(np.int32 if most_nodes < 2**31 else np.int64),
            columns=columns,
            num_sources=self.sources.num_nodes,
            copied=self.add_reverse or self.drop_self_loops,
            num_threads=self.num_threads,
        )

    def _spill_edges(self, all_buckets: dict[str, EdgeBuckets]) -> None:
        """Reads the source's edges once, checks them, and spills them by partition and destination. For lists of out-edges, by partition and source."""
        buckets, id_of_row = all_buckets["topology"], self.targets.id_of_row

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

        # This thread reads the source, several threads group the edges, and one thread writes them.
        all_grouped = ordered_map(group, numbered(), buckets.num_groupers)
        with closing(ordered_map(append, all_grouped, min(1, buckets.num_groupers))) as appended:
            for _ in appended:
                self.progress("edges", done, self.info.num_edges)

    def _checked_edges(self, first: int, chunk: EdgeChunk) -> SpilledEdges:
        """Checks a chunk of edges and returns its edges. `first`: index of the chunk's first edge. Raises DataError for an invalid edge."""
        info, options = self.info, self.options
        count = len(chunk.src)
        if len(chunk.dst) != count:
            raise DataError(f"{info.name}: expected as many sources as destinations, got {count} and {len(chunk.dst)}")
        columns = _edge_columns(info, chunk, options.allow_nonfinite)
        for ids, num_nodes in ((chunk.src, self.sources.num_nodes), (chunk.dst, self.targets.num_nodes)):
            # As an unsigned number, a negative id is larger than all valid ids.
            if count and ids.astype(np.int64, copy=False).view(np.uint64).max() >= num_nodes:
                bad = (ids < 0) | (ids >= num_nodes)
                row = int(np.argmax(bad))
                raise DataError(
                    f"{info.name}: edge {first + row}: expected node ids in [0, {num_nodes}), got {int(ids[row])}; "
                    f"{int(bad.sum())} such ids in this chunk"
                )
        if (of_ends := self.time_of_ends(chunk.src, chunk.dst)) is not None:
            columns["time"] = of_ends
        if count and columns.get("time", _NO_TIME + 1).min() == _NO_TIME:
            raise DataError(
                f"{info.name}: edge times: expected numbers above {_NO_TIME}, which stands for none, got it"
            )
        if options.edge_ids:
            columns["edge_id"] = np.arange(first, first + count, dtype=np.int64)
        edges = SpilledEdges(chunk.src, chunk.dst, columns)
        return edges.where(edges.src != edges.dst) if self.drop_self_loops else edges

    def time_of_ends(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray | None:
        """Computes the times of edges from the times of their ends. Returns None if edges have their own times, or if no end has a time."""
        ends = [time[rows] for time, rows in zip(self.times, (src, dst), strict=True) if time is not None]
        return np.maximum(*ends) if len(ends) == 2 else ends[0] if ends else None

    def _is_symmetric(self, statistics: GraphStatistics) -> bool:
        """Whether the lists of in-edges equal the lists of out-edges. Raises DataError if the source claims that they are equal but they differ."""
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
        # With edge ids the lists differ, because an edge and its reverse have different ids.
        return self.symmetric or (statistics.symmetric and not self.options.edge_ids)

    def _write_lists(self, name: str, buckets: EdgeBuckets, measure: EdgeMeasure | None) -> None:
        with self._sorted_lists(buckets, measure) as sorted_lists:
            for partition, lists in sorted_lists:
                directory = self.writer.files / partition_dir(partition) / self.folder
                directory.mkdir(parents=True, exist_ok=True)
                num_owned, most = self.targets.num_owned(partition), buckets.num_spilled(partition)
                for file in self._write_edges(name, lists, num_owned, most, directory):
                    self.writer.add(file)
                self.progress("write", partition + 1, self.targets.num_partitions)

    @contextmanager
    def _sorted_lists(
        self, buckets: EdgeBuckets, measure: EdgeMeasure | None
    ) -> Iterator[Iterator[tuple[int, Iterator[SortedLists]]]]:
        """Yields (partition, pieces of its lists) for every partition. The consumer must take the pieces in order. A piece is measured when it is taken."""

        def lists_of(bucket: Bucket) -> tuple[SortedLists, EdgeSums | None]:
            lists = bucket.lists(self.sources.id_of_row)
            return lists, measure.measure(bucket, lists) if measure else None

        def added(pieces: Iterable[tuple[int, tuple[SortedLists, EdgeSums | None]]]) -> Iterator[SortedLists]:
            for _, (lists, sums) in pieces:
                if measure and sums:
                    measure.add(sums, lists)
                yield lists
                del lists  # free its memory before waiting for the next

        sorted_lists = buckets.sorted_buckets(
            drop_duplicates=self.drop_duplicates, sum_columns=self.sum_duplicates, then=lists_of
        )
        with closing(sorted_lists):
            yield ((partition, added(pieces)) for partition, pieces in groupby(sorted_lists, key=itemgetter(0)))

    def _write_edges(
        self, name: str, lists: Iterable[SortedLists], num_owned: int, most_edges: int, directory: Path
    ) -> list[Path]:
        """Writes the lists of one partition. With the lists of in-edges also writes edges.arrow, if edges have features. Returns the files."""
        spool = SortedEdges(
            self.scratch / "sorted",
            self.sources.id_of_row.dtype,
            {kind: type_ for kind, type_ in self.columns.items() if kind != "feature" or name == "topology"},
            num_edges=most_edges,
            memory_bytes=self.options.memory_budget_bytes // 2,  # the other half of the budget is for sorting
        )
        indptr = np.zeros(num_owned + 1, np.int64)
        done = 1
        with spool:
            for piece in lists:
                indptr[done : done + len(piece.degree)] = piece.degree
                done += len(piece.degree)
                spool.append(piece)
                del piece  # free its memory before waiting for the next
            np.cumsum(indptr, out=indptr)
            columns = spool.columns()
            feature = columns.pop("feature", None)
            written = [directory / f"{name}.arrow"]
            write_batch(written[0], {"neighbors": neighbor_lists(indptr, columns)})
            if feature is not None:
                written.append(directory / "edges.arrow")
                write_batch(written[1], {"feature": array_from_numpy(feature)})
        return written


def _edge_columns(info: SourceInfo, chunk: EdgeChunk, allow_nonfinite: bool) -> dict[str, np.ndarray]:
    """Returns the weights, times and features of a chunk. Raises DataError if they do not match `info`."""
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
        bad = np.empty(0) if values is None or allow_nonfinite else np.argwhere(~np.isfinite(values))
        if len(bad):
            edge = f"{chunk.src[bad[0, 0]]} -> {chunk.dst[bad[0, 0]]} between rows of nodes"
            raise DataError(
                f"{info.name}: edge {name}s hold {len(bad)} non-finite values in one chunk, the first on the edge {edge}; clean them or pass --allow-nonfinite"
            )
    if info.relations and chunk.feature is not None:
        number, most = chunk.feature, len(info.relations)
        bad_rows = np.flatnonzero((number < 0) | (number >= most) | (number != np.floor(number)))
        if len(bad_rows):
            raise DataError(
                f"{info.name}: relations: expected numbers 0 to {most - 1}, got {number.flat[bad_rows[0]]:g}; name each relation"
            )
    return {name: values for name, values in columns.items() if values is not None}
