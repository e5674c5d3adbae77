"""A stored graph, opened: the manifest, and partitions as numpy views over mapped Arrow files.

Opening checks manifest, sizes, Arrow structure, list offsets, and the range of every id, label and split code, about
0.15 s per 100 million ids; samplers check what they draw once more, since a file may change after that. `verify` adds checksums; `StoredGraph.verify` also counts and the order
of neighbor lists. A damaged file is refused with one line that names file, expected and found.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import fsspec
import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.summaries import describe
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.mapped_files import read_at_random
from graphmill.storage.filesystem.urls import absolute_url, is_local, split_url
from graphmill.storage.format.arrow_files import check_split_codes, numpy_column, read_batch, struct_column
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.encodings import StoredEncodings, read_encoding, stored_encodings
from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.manifest import LABEL_DTYPES, Manifest, parse_manifest, partition_dir
from graphmill.storage.format.source import SPLIT_TEST
from graphmill.storage.format.stored_links import Links
from graphmill.storage.format.typed_manifest import parse_typed_manifest
from graphmill.storage.ingestion.string_ids import StringIds, string_buffers
from graphmill.storage.range_reads import RangedRows
from graphmill.storage.snapshots.snapshots import read_manifest

_CHECK_EDGES = 1 << 22
_CHECK_STRINGS = 1 << 20
_ANY = 2**63 - 1


@dataclass(frozen=True)
class Partition:
    """One partition: the nodes [start, stop), their in-edges as CSC, and their rows. All arrays are read-only views."""

    index: int
    start: int
    stop: int
    indptr: np.ndarray  # int64 [n + 1]
    indices: np.ndarray  # int32/int64 [m], source ids; each list ascends in original id or, where edges have times, in (time, original id)
    original_id: np.ndarray  # int64 [n], ascending
    # The same for out-edges: lists of destinations; the very arrays above if the graph is symmetric, None if they were not stored.
    out_indptr: np.ndarray | None = None
    out_indices: np.ndarray | None = None
    out_edge_id: np.ndarray | None = None
    out_edge_weight: np.ndarray | None = None
    out_edge_time: np.ndarray | None = None
    edge_id: np.ndarray | None = None  # int64 [m], row of the edge in its source
    edge_weight: np.ndarray | None = None  # float32 [m]
    edge_time: np.ndarray | None = None  # int64 [m]
    edge_feature: np.ndarray | None = None  # float32 [m, edge_feature_dim]
    feature: np.ndarray | None = None  # [n, ·], as `feature_rows` says
    feature_on_store: RangedRows | None = None  # in its place, of a graph whose features are read by range
    label: np.ndarray | None = None  # int64 or float32 [n]; of several int8 (answers) or float32 [n, num_classes]
    split: np.ndarray | None = None  # int8 [num_split_sets, n]
    group: np.ndarray | None = None  # int32 [n], the locality group
    time: np.ndarray | None = None  # int64 [n]
    # float32 [n, dim] by name (`graphmill.storage.format.encodings`), mapped when asked for; KeyError for one that is not stored
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    links: Links | None = None  # those from its nodes; None: no edge was held out
    stored_rows: FeatureRows | None = None  # None: features are dense numbers of their own type
    num_sources: int = _ANY  # ids in `indices` are below it

    def __repr__(self) -> str:
        return describe(self)

    @property
    def num_nodes(self) -> int:
        return self.stop - self.start

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def first_id(self) -> int | None:
        """Where permanent ids count up one by one, that of row 0: row i has `first_id + i`, and nobody need read the table. None elsewhere."""
        ids = self.original_id  # strictly ascending: whoever opens a partition checks it
        return int(ids[0]) if len(ids) and int(ids[-1]) - int(ids[0]) == len(ids) - 1 else None

    @property
    def feature_rows(self) -> FeatureRows:
        """How features are stored."""
        if self.stored_rows is not None:
            return self.stored_rows
        assert self.feature is not None
        return FeatureRows(self.feature.shape[1], cast(FeatureDtype, str(self.feature.dtype)))

    def feature_numbers(self) -> np.ndarray | None:
        """float32 [n, feature_dim], a copy where features are stored in another form."""
        return None if self.feature is None else self.feature_rows.decode(self.feature)


@dataclass(frozen=True)
class PinnedGraph:
    """Names one snapshot of a graph: a run sends it to its other processes and opens the same snapshot again."""

    url: str  # absolute: workers may run in another folder
    snapshot: int
    content_hash: str
    origin: str | None = None  # of a copy on the hosts' disks
    part: str | None = None  # of a typed graph: the type of nodes or the relation that this is
    by_range: bool = False  # as of `StoredGraph`

    def open(self) -> "StoredGraph":
        """Opens the same graph. Raises FormatError if it is gone or replaced by another."""
        try:
            graph = open_graph(self.url, self.snapshot, self.part)
        except FormatError:
            if self.origin is None:
                raise
            graph = copy_of(open_graph(self.origin, self.snapshot), self.url)  # this host has none of its files yet
        if graph.manifest.content_hash != self.content_hash:
            raise FormatError(replaced(self.url, self.content_hash, graph.manifest.content_hash))
        return replace(graph, by_range=self.by_range)


def replaced(url: str, expected: str, content_hash: str) -> str:
    """What to say of a graph in whose place there is another."""
    return (
        f"{url}: expected the graph that the run began with (content {expected[:12]}), found another "
        f"({content_hash[:12]}); it was ingested anew: start the run again"
    )


def files_are_here(filesystem: fsspec.AbstractFileSystem, path: str, entries: Iterable[FileEntry]) -> bool:
    """Whether these files of a graph are on this machine."""
    return is_local(filesystem) and all(os.path.exists(f"{path}/{entry.path}") for entry in entries)


@dataclass(frozen=True)
class SourceIds:
    """The ids that a graph's nodes have in its source, where these are strings. Small, and safe to send to other processes."""

    pinned: PinnedGraph

    def of(self, original_id: np.ndarray) -> pa.LargeStringArray:
        """Those of some nodes, by their permanent ids (int64 [k]). Raises FormatError for an id that no node has."""
        place = np.full(len(original_id), -1, np.int64)
        parts, done = [], 0
        for own, strings in self._partitions:
            row = np.searchsorted(own, original_id)
            known = np.flatnonzero(own[np.minimum(row, len(own) - 1)] == original_id) if len(own) else row[:0]
            place[known] = done + np.arange(len(known))
            parts.append(strings.take(pa.array(row[known])))
            done += len(known)
        if len(place) and place.min() < 0:
            unknown = int(original_id[np.argmin(place)])
            raise FormatError(f"{self.pinned.url}: expected the permanent id of a node, got {unknown}")
        return pa.concat_arrays(parts).take(pa.array(place))

    @cached_property
    def _partitions(self) -> list[tuple[np.ndarray, pa.LargeStringArray]]:
        graph = self.pinned.open().whole()
        return [(graph.original_id(index), graph.string_ids(index)) for index in range(graph.num_partitions)]


@dataclass(frozen=True)
class StoredGraph:
    """One snapshot of a graph: its manifest, and its partitions on demand."""

    url: str
    manifest: Manifest
    filesystem: fsspec.AbstractFileSystem
    path: str
    by_range: bool = False  # features stay on the store: a partition has `feature_on_store` in place of `feature`

    def __repr__(self) -> str:
        manifest = self.manifest
        labels = f"labels: {manifest.label_kind}"
        if manifest.num_classes:
            labels = f"{manifest.num_classes} {'classes' if manifest.label_kind == 'class' else manifest.label_kind}"
        return (
            f"StoredGraph({manifest.name!r}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
            f"{manifest.feature_dim} features, {labels},\n"
            f"  {manifest.num_partitions} partitions, snapshot {manifest.snapshot} at {self.url})"
        )

    @property
    def num_nodes(self) -> int:
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        return self.manifest.num_edges

    @property
    def num_partitions(self) -> int:
        return self.manifest.num_partitions

    @property
    def num_classes(self) -> int | None:
        """Or how many answers or values each node has; None if labels are none of these."""
        return self.manifest.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the answers, in order; empty where numbers name them."""
        return self.manifest.class_names

    @property
    def feature_dim(self) -> int:
        return self.manifest.feature_dim

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [num_partitions + 1]: partition p owns the ids [offsets[p], offsets[p + 1])."""
        return np.asarray(self.manifest.partition_offsets, np.int64)

    def pin(self) -> PinnedGraph:
        url = self.path if is_local(self.filesystem) else self.url
        manifest = self.manifest
        part = None if manifest.part is None else manifest.part.name
        return PinnedGraph(url, manifest.snapshot, manifest.content_hash, manifest.origin, part, self.by_range)

    def features_by_range(self) -> "StoredGraph":
        """The graph with its features left on its store. Raises ConfigError for one whose files are local."""
        if is_local(self.filesystem):
            raise ConfigError(
                f"{self.url}: expected a graph on an object store, whose features are read by range, got one on a disk, whose files are mapped, "
                "which needs no more memory; leave out --servers.range_reads"
            )
        return replace(self, by_range=True)

    @property
    def is_here(self) -> bool:
        """Whether all its files are on this machine."""
        return files_are_here(self.filesystem, self.path, self.manifest.files.values())

    def whole(self) -> "StoredGraph":
        """The graph where all its files are: of a copy that lacks some, the origin. Raises FormatError where that is gone."""
        origin = self.manifest.origin
        if origin is None or self.is_here:
            return self
        return PinnedGraph(origin, self.manifest.snapshot, self.manifest.content_hash).open()

    def partition_files(self, index: int) -> list[FileEntry]:
        """A partition's files, those of its encodings last."""
        files = self.manifest.files.items()
        own = [entry for name, entry in files if name.startswith(f"{partition_dir(index)}/")]
        return own + [entry.file(index) for entry in stored_encodings(self).values()]

    def partition(self, index: int, *, verify: bool = False) -> Partition:
        """Maps one partition and reads its topology and node columns once, to check their ranges (see the module).

        Raises FormatError where a file is missing, truncated, corrupt or does not fit the manifest.
        """
        if not 0 <= index < self.manifest.num_partitions:
            raise ConfigError(f"{self.url}: expected a partition in [0, {self.manifest.num_partitions}), got {index}")
        return _PartitionReader(self, index, verify).read()

    def partitions(self, *, verify: bool = False) -> Iterator[Partition]:
        for index in range(self.manifest.num_partitions):
            yield self.partition(index, verify=verify)

    def original_id(self, index: int) -> np.ndarray:
        """int64, ascending: the permanent ids of a partition's nodes, mapped. Errors as `partition`."""
        return _PartitionReader(self, index, verify=False).nodes()[0]

    def string_ids(self, index: int, *, verify: bool = False) -> pa.LargeStringArray:
        """The source's own ids of a partition's nodes, mapped. Raises ConfigError where these are numbers, FormatError as `partition`."""
        if self.manifest.id_kind != "string":
            raise ConfigError(f"{self.url}: expected nodes with strings as ids, got whole numbers")
        return _PartitionReader(self, index, verify).string_ids()

    def verify(self) -> None:
        """Reads every byte and checks everything. Raises FormatError at the first damage.

        Memory: the original ids of all nodes, 8 bytes each and twice that while they are compared (with strings as ids up to 24 more), and one partition. Every file
        is read once: the order of lists can be judged only with all original ids at hand.
        """
        if self.manifest.statistics is not None:
            _ = self.manifest.measured
        self.verify_lists(self.verify_nodes())
        for name, encoding in stored_encodings(self).items():
            for index in range(self.manifest.num_partitions):
                read_encoding(self, name, encoding, index, verify=True)

    def verify_nodes(self) -> np.ndarray:
        """The permanent ids of all nodes, int64 [num_nodes] by stored id, after the files of nodes are checked. Raises FormatError."""
        parts = range(self.manifest.num_partitions)
        # Each is compared with its file before room is made for all.
        original_id = np.concatenate(
            [_PartitionReader(self, index, True).node_fields()["original_id"].copy() for index in parts]
        )
        ordered = np.sort(original_id)
        is_repeated = ordered[1:] == ordered[:-1]
        if is_repeated.any():
            repeated = int(ordered[1:][is_repeated][0])
            raise FormatError(f"{self.path}: expected each original id once, found {repeated} twice")
        if self.manifest.id_kind == "string":
            self._verify_strings()
        return original_id

    def _verify_strings(self) -> None:
        different = StringIds()
        for index in range(self.manifest.num_partitions):
            strings = self.string_ids(index, verify=True)
            for start in range(0, len(strings), _CHECK_STRINGS):
                some = strings[start : start + _CHECK_STRINGS]
                expected = len(different) + np.arange(len(some))
                if np.any(repeated := different.add(some) != expected):
                    raise FormatError(
                        f"{self.path}: expected each id once, found {some[int(np.argmax(repeated))].as_py()!r} twice"
                    )

    def verify_lists(self, original_id: np.ndarray) -> None:
        """Checks the files of edges; `original_id`: of the nodes that lists name. Raises FormatError."""
        num_edges = dict.fromkeys(["topology", *(["out_topology"] if self.manifest.has_out_edges else [])], 0)
        for index in range(self.manifest.num_partitions):
            for name, count in self._verify_lists_of(index, original_id).items():
                num_edges[name] += count
        for name, count in num_edges.items():
            if count != self.manifest.num_edges:
                raise FormatError(
                    f"{self.path}: expected {self.manifest.num_edges} edges in all {name}.arrow, found {count}"
                )

    def _verify_lists_of(self, index: int, original_id: np.ndarray) -> dict[str, int]:
        """Number of edges per topology file of a partition, after all checks; its memory is released."""
        fields = _PartitionReader(self, index, True).edge_fields()
        lists = {"topology": (fields["indptr"], fields["indices"], fields["edge_time"])}
        if self.manifest.has_out_edges:
            lists["out_topology"] = (fields["out_indptr"], fields["out_indices"], fields["out_edge_time"])
        order = "(time, original id)" if self.manifest.has_edge_time else "original id"
        for name, (indptr, indices, time) in lists.items():
            row = _first_unordered_list(indptr, indices, original_id, time)
            if row is not None:
                file = self.manifest.files[f"{partition_dir(index)}/{name}.arrow"].path
                raise FormatError(
                    f"{self.path}/{file}: expected neighbor lists ascending in {order}, "
                    f"found the list of node {int(self.offsets[index]) + row} in another order; ingest the graph again"
                )
        return {name: len(indices) for name, (_, indices, _) in lists.items()}


def are_below(ids: np.ndarray, num_nodes: int) -> bool:
    """Whether all ids are in [0, num_nodes)."""
    # Viewed as unsigned, a negative id is huge, so one pass finds both kinds. The number of nodes fits the signed type.
    return not len(ids) or int(ids.view(f"u{ids.itemsize}").max()) < num_nodes


def _first_unordered_list(
    indptr: np.ndarray, indices: np.ndarray, original_id: np.ndarray, time: np.ndarray | None = None
) -> int | None:
    """The first row whose list does not ascend in original id (in time before that), read in blocks of edges."""
    for start in range(0, len(indices), _CHECK_EDGES):
        some = slice(start, start + _CHECK_EDGES + 1)
        block = original_id[indices[some]]
        is_lower = block[1:] < block[:-1]
        if time is not None:
            when = time[some]
            is_lower = (when[1:] < when[:-1]) | (is_lower & (when[1:] == when[:-1]))
        # The first entry of a list may be lower than the last of the list before.
        falls = start + 1 + np.flatnonzero(is_lower)
        row = np.searchsorted(indptr, falls, side="right") - 1
        inside = indptr[row] != falls
        if inside.any():
            return int(row[np.argmax(inside)])
    return None


def open_graph(url: str, snapshot: int | None = None, part: str | None = None) -> StoredGraph:
    """Opens the graph at a path or fsspec URL: its newest snapshot, or the given one. `part`: of a typed graph, a type of nodes or a relation.

    Raises FormatError where there is none or its manifest is not valid.
    """
    filesystem, path = split_url(url)
    text, where = read_manifest(filesystem, path, url, snapshot, "graphmill ingest <source>")
    manifest = parse_manifest(text, where) if part is None else parse_typed_manifest(text, where).part(part)
    return StoredGraph(url=url, manifest=manifest, filesystem=filesystem, path=path)


def source_ids(graph: StoredGraph) -> SourceIds | None:
    """None where the nodes' ids in the source are their permanent ids."""
    return SourceIds(graph.pin()) if graph.manifest.id_kind == "string" else None


def copy_of(origin: StoredGraph, url: str) -> StoredGraph:
    """The graph as its copy at this url is opened, whether that has files or not."""
    filesystem, path = split_url(url)
    manifest = replace(origin.manifest, origin=absolute_url(origin.url))
    return StoredGraph(url=url, manifest=manifest, filesystem=filesystem, path=path)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class _PartitionReader:
    """Reads and checks the files of one partition."""

    def __init__(self, graph: StoredGraph, index: int, verify: bool) -> None:
        self.graph, self.manifest, self.index, self.verify = graph, graph.manifest, index, verify
        self.start, self.stop = (int(offset) for offset in graph.offsets[index : index + 2])

    def read(self) -> Partition:
        nodes = self.node_fields()  # first: they say whether the manifest counts them rightly
        return Partition(self.index, self.start, self.stop, **self.edge_fields(), **nodes)

    def edge_fields(self) -> dict[str, Any]:
        """What a `Partition` says of edges."""
        manifest = self.manifest
        if not manifest.has_topology:
            indptr = np.zeros(self.stop - self.start + 1, np.int64)
            return {"indptr": _read_only(indptr), "indices": _read_only(np.empty(0, manifest.index_dtype))}
        indptr, topology = self._topology("topology")
        out_indptr, out_topology = (indptr, topology) if manifest.symmetric else (None, {})
        if manifest.has_out_edges:
            out_indptr, out_topology = self._topology("out_topology")
        edge_feature = None
        if manifest.edge_feature_dim:
            edges, path = self._batch("edges", int(indptr[-1]))
            edge_feature = numpy_column(edges, "feature", "float32", path, manifest.edge_feature_dim)
        return {
            "indptr": indptr,
            "indices": topology["index"],
            "out_indptr": out_indptr,
            "out_indices": out_topology.get("index"),
            "out_edge_id": out_topology.get("edge_id"),
            "out_edge_weight": out_topology.get("weight"),
            "out_edge_time": out_topology.get("time"),
            "edge_id": topology.get("edge_id"),
            "edge_weight": topology.get("weight"),
            "edge_time": topology.get("time"),
            "edge_feature": edge_feature,
            "num_sources": manifest.num_sources,
        }

    def node_fields(self) -> dict[str, Any]:
        """What a `Partition` says of nodes."""
        manifest = self.manifest
        original_id, label, splits, group, time = self.nodes()
        feature = feature_on_store = None
        if self.graph.by_range and (rows := manifest.feature_rows) is not None:
            entry = manifest.files[f"{partition_dir(self.index)}/features.arrow"]
            path, num_rows = f"{self.graph.path}/{entry.path}", self.stop - self.start
            feature_on_store = RangedRows(self.graph.filesystem, path, entry, rows, num_rows)
        elif (rows := manifest.feature_rows) is not None:
            features, path = self._batch("features", self.stop - self.start)
            feature = numpy_column(features, "feature", str(rows.stored_dtype), path, rows.stored_width)
            if is_local(self.graph.filesystem):
                read_at_random(feature)
        return {
            "original_id": original_id,
            "feature": feature,
            "feature_on_store": feature_on_store,
            "label": label,
            "split": _read_only(np.stack(splits)) if splits else None,
            "group": group,
            "time": time,
            "encodings": StoredEncodings(self.graph, self.index, verify=self.verify),
            "links": self._links(),
            "stored_rows": manifest.feature_rows,
        }

    def nodes(
        self,
    ) -> tuple[np.ndarray, np.ndarray | None, list[np.ndarray], np.ndarray | None, np.ndarray | None]:
        """Original ids, labels, split codes and groups, in range, and times."""
        nodes, path = self._batch("nodes", self.stop - self.start)
        kind = self.manifest.label_kind
        label = None
        if kind is not None:
            width = None if kind == "class" else self.manifest.num_classes
            label = numpy_column(nodes, "label", LABEL_DTYPES[kind], path, width)
        splits = [numpy_column(nodes, f"split_{i}", "int8", path) for i in range(self.manifest.num_split_sets)]
        original_id = numpy_column(nodes, "original_id", "int64", path)
        group = numpy_column(nodes, "group", "int32", path) if self.manifest.num_groups else None
        time = numpy_column(nodes, "time", "int64", path) if self.manifest.has_node_time else None
        self._check_nodes(original_id, label, splits, group, path)
        return original_id, label, splits, group, time

    def string_ids(self) -> pa.LargeStringArray:
        batch, path = self._batch("ids", self.stop - self.start)
        kind = batch.schema.field(0).type if batch.schema.names == ["id"] else None
        if kind is None or not pa.types.is_large_string(kind) or batch.column(0).null_count:
            raise FormatError(f"{path}: expected a column 'id' of strings, found {kind or batch.schema.names}")
        offsets, _ = string_buffers(batch.column(0))
        if np.any(offsets[1:] < offsets[:-1]):
            raise FormatError(f"{path}: expected strings one after the other, found others; the file is corrupt")
        if self.verify:
            try:
                batch.validate(full=True)
            except pa.ArrowException as error:
                raise FormatError(f"{path}: expected UTF-8, found damage ({error}); ingest the graph again") from None
        return batch.column(0)

    def _links(self) -> Links | None:
        if self.manifest.links is None:
            return None
        batch, path = self._batch("links", None)
        manifest = self.manifest
        return Links.read(
            batch, manifest.num_nodes, path, has_time=manifest.has_edge_time, num_relations=len(manifest.relations)
        )

    def _batch(self, name: str, num_rows: int | None) -> tuple[pa.RecordBatch, str]:
        relative = f"{partition_dir(self.index)}/{name}.arrow"
        entry = self.manifest.files[relative]
        path = f"{self.graph.path}/{entry.path}"
        return read_batch(self.graph.filesystem, path, entry, verify=self.verify, num_rows=num_rows), path

    def _topology(self, name: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        batch, path = self._batch(name, self.stop - self.start)
        indptr, values = struct_column(batch, "neighbors", path)
        dtypes = {"index": self.manifest.index_dtype}
        if self.manifest.has_edge_id:
            dtypes["edge_id"] = "int64"
        if self.manifest.has_edge_weight:
            dtypes["weight"] = "float32"
        if self.manifest.has_edge_time:
            dtypes["time"] = "int64"
        columns = {name: numpy_column(values, name, dtype, path) for name, dtype in dtypes.items()}
        ids = columns["index"]
        if not are_below(ids, self.manifest.num_sources):
            raise FormatError(
                f"{path}: expected node ids in [0, {self.manifest.num_sources}), found {int(ids.min())} to {int(ids.max())}"
            )
        return indptr, columns

    def _check_nodes(
        self,
        original_id: np.ndarray,
        label: np.ndarray | None,
        splits: list[np.ndarray],
        group: np.ndarray | None,
        path: str,
    ) -> None:
        if np.any(original_id[1:] <= original_id[:-1]):
            raise FormatError(f"{path}: expected strictly ascending original ids, found others; ingest the graph again")
        num_classes = self.manifest.num_classes
        if label is not None and label.dtype.kind == "i" and num_classes is not None and len(label):
            low, high, end = int(label.min()), int(label.max()), num_classes if label.ndim == 1 else 2
            if low < -1 or high >= end:
                raise FormatError(f"{path}: expected labels in [-1, {end}), found {low} to {high}")
        for split in splits:
            check_split_codes(split, SPLIT_TEST, path)
        num_groups = self.manifest.num_groups
        if group is not None and len(group) and not 0 <= int(group.min()) <= int(group.max()) < num_groups:
            raise FormatError(
                f"{path}: expected locality groups in [0, {num_groups}), found {int(group.min())} to {int(group.max())}"
            )
