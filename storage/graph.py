"""Opens stored graphs: reads the manifest, and maps partitions as numpy views of Arrow files. `open_graph` opens plain graphs, typed graphs and sets.

Opening checks the manifest, sizes, Arrow structure, list offsets, and the range of every id, label and split code (about 0.15 s per 100 million ids). A file
may change later, so samplers check again the ids that they draw. With `verify`, checksums are checked too. The method `StoredGraph.verify` also checks counts
and the order of neighbor lists. The error for a damaged file is one line that names the file, what was expected and what was found.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar, overload

import fsspec
import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.urls import absolute_url, is_local, split_url
from graphmill.storage.format.encodings import read_encoding, stored_encodings
from graphmill.storage.format.graph_set_manifest import MANY_GRAPHS
from graphmill.storage.format.manifest import EDGE, NODE, Manifest, partition_dir, read_graph_manifest
from graphmill.storage.format.manifest_reader import ManifestReader
from graphmill.storage.format.source import Relation
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.ingestion.string_ids import StringIds
from graphmill.storage.partition import Partition, PartitionReader
from graphmill.storage.snapshots.snapshots import read_manifest

_CHECK_EDGES = 1 << 22
_CHECK_STRINGS = 1 << 20
_Graph = TypeVar("_Graph", bound="GraphSnapshot")
_Kind = TypeVar("_Kind")
_OtherKind = TypeVar("_OtherKind")


@dataclass(frozen=True)
class PinnedGraph:
    """Identifies one snapshot of a graph. A run sends this object to its other processes, which open the same snapshot."""

    url: str  # absolute, because workers may run in another folder
    snapshot: int
    content_hash: str
    origin: str | None = None  # url of the original, if the graph is a copy on the disks of the hosts
    part: str | None = None  # a type of nodes or a relation of a typed graph; None: the whole graph
    by_range: bool = False  # as in `GraphSnapshot`

    def open(self) -> "StoredGraph | TypedGraph":
        """Opens the same snapshot. Raises FormatError if the graph does not exist any more, or was replaced by another graph."""
        graph: StoredGraph | TypedGraph
        try:
            graph = open_graph(self.url, self.snapshot, kind=PLAIN_OR_TYPED)
        except FormatError:
            if self.origin is None:
                raise
            origin = open_graph(self.origin, self.snapshot, kind=PLAIN_OR_TYPED)
            graph = copy_of(origin, self.url)  # this host does not have any files of the graph yet
        if self.part is not None and isinstance(graph, TypedGraph):
            graph = graph.part(self.part)
        if graph.manifest.content_hash != self.content_hash:
            raise FormatError(
                f"{self.url}: expected the graph that the run began with (content {self.content_hash[:12]}), found another "
                f"({graph.manifest.content_hash[:12]}); it was ingested anew: start the run again"
            )
        return replace(graph, by_range=self.by_range)


@dataclass(frozen=True)
class SourceIds:
    """Looks up the source's ids of a graph's nodes, or of a set's graphs. The object is small, and can be sent to other processes."""

    stored: PinnedGraph | StoredGraphs

    def of(self, original_id: np.ndarray) -> pa.Array:
        """Returns the source's ids of these permanent ids (int64 [k]). Raises FormatError for an unknown permanent id."""
        place = np.full(len(original_id), -1, np.int64)
        parts, done = [], 0
        for own, ids in self._partitions:
            row = np.searchsorted(own, original_id)
            known = np.flatnonzero(own[np.minimum(row, len(own) - 1)] == original_id) if len(own) else row[:0]
            place[known] = done + np.arange(len(known))
            parts.append(ids.take(pa.array(row[known])))
            done += len(known)
        if len(place) and place.min() < 0:
            kind = "graph" if isinstance(self.stored, StoredGraphs) else "node"
            unknown = int(original_id[np.argmin(place)])
            raise FormatError(f"{self.stored.url}: expected the permanent id of a {kind}, got {unknown}")
        return pa.concat_arrays(parts).take(pa.array(place))

    @cached_property
    def _partitions(self) -> list[tuple[np.ndarray, pa.Array]]:
        if isinstance(self.stored, StoredGraphs):
            return [(shard.original_id, shard.ids) for shard in self.stored.shards]
        graph = self.stored.open().whole()
        assert isinstance(graph, StoredGraph)
        return [(graph.original_id(index), graph.string_ids(index)) for index in range(graph.num_partitions)]


@dataclass(frozen=True)
class GraphSnapshot:
    """One snapshot of a graph, plain or typed: its manifest and the location of its files. A plain graph has one type of nodes and one relation."""

    url: str
    manifest: Manifest
    filesystem: fsspec.AbstractFileSystem
    path: str
    by_range: bool = False  # features stay on the store; then a partition has `feature_on_store` instead of `feature`

    @property
    def num_partitions(self) -> int:
        return self.manifest.num_partitions

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(self.manifest.node_types)

    @property
    def relations(self) -> tuple[Relation, ...]:
        return tuple(self.manifest.edge_types)

    def nodes(self, node_type: str) -> "StoredGraph":
        """Returns the nodes of a type as a graph. In a typed graph this graph has no edges. Raises ConfigError if there is no such type."""
        if node_type not in self.node_types:
            raise ConfigError(f"{self.url}: expected a type, one of {', '.join(self.node_types)}, got {node_type!r}")
        return self.part(node_type)

    def relation(self, relation: Relation) -> "StoredGraph":
        """Returns a relation as a graph. The graph has the nodes of the target type. Raises ConfigError if there is no such relation."""
        return self.part(str(relation))

    def part(self, name: str) -> "StoredGraph":
        """Returns a type of nodes or a relation as a graph, by name. Raises ConfigError if there is no type or relation with this name."""
        if name not in self._parts:
            listed = ", ".join(self._parts)
            raise ConfigError(f"{self.url}: expected a type or a relation, one of {listed}, got {name!r}")
        return self._parts[name]

    @property
    def _parts(self) -> Mapping[str, "StoredGraph"]:
        raise NotImplementedError

    def pin(self) -> PinnedGraph:
        url = self.path if is_local(self.filesystem) else self.url
        manifest = self.manifest
        part = None if manifest.part is None else manifest.part.name
        return PinnedGraph(url, manifest.snapshot, manifest.content_hash, manifest.origin, part, self.by_range)

    def features_by_range(self) -> Self:
        """Returns the graph in a form that leaves features on the store and reads them by range. Raises ConfigError if the graph's files are local."""
        if is_local(self.filesystem):
            raise ConfigError(
                f"{self.url}: expected a graph on an object store, whose features are read by range, got one on a disk, whose files are mapped, "
                "which needs no more memory; leave out --servers.range_reads"
            )
        return replace(self, by_range=True)

    @property
    def is_here(self) -> bool:
        """Whether this machine has all files of the graph."""
        files = self.manifest.files.values()
        return is_local(self.filesystem) and all(os.path.exists(f"{self.path}/{entry.path}") for entry in files)

    def whole(self) -> Self:
        """Returns this graph if it has all its files. For a copy with missing files, returns its origin. Raises FormatError if the origin is gone."""
        origin = self.manifest.origin
        if origin is None or self.is_here:
            return self
        whole = replace(self.pin(), url=origin, origin=None).open()
        assert isinstance(whole, type(self))
        return whole

    def partition_files(self, index: int) -> list[FileEntry]:
        """Returns the files of a partition, for all types and relations. Files of encodings come last."""
        files = self.manifest.files.items()
        own = [entry for name, entry in files if name.startswith(f"{partition_dir(index)}/")]
        return own + [file for entry in stored_encodings(self).values() for file in entry.files_of(index)]


@dataclass(frozen=True)
class StoredGraph(GraphSnapshot):
    """A plain graph, or one part of a typed graph. Partitions are read on demand."""

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
    def num_classes(self) -> int | None:
        """Number of classes, of answers per node, or of values per node; None for other labels."""
        return self.manifest.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes or answers, in order. Empty if they have no names, only numbers."""
        return self.manifest.class_names

    @property
    def feature_dim(self) -> int:
        return self.manifest.feature_dim

    @cached_property
    def offsets(self) -> np.ndarray:
        """Bounds of the partitions' ids, int64 [num_partitions + 1]. Partition p owns the ids [offsets[p], offsets[p + 1])."""
        return np.asarray(self.manifest.partition_offsets, np.int64)

    @property
    def _parts(self) -> Mapping[str, "StoredGraph"]:
        return {NODE: self, str(EDGE): self}

    def partition(self, index: int, *, verify: bool = False) -> Partition:
        """Maps one partition, and reads its topology and its node columns once to check their ranges.

        Raises FormatError if a file is missing, truncated, corrupt or does not match the manifest.
        """
        if not 0 <= index < self.manifest.num_partitions:
            raise ConfigError(f"{self.url}: expected a partition in [0, {self.manifest.num_partitions}), got {index}")
        return PartitionReader(self, index, verify).read()

    def partitions(self, *, verify: bool = False) -> Iterator[Partition]:
        for index in range(self.manifest.num_partitions):
            yield self.partition(index, verify=verify)

    def original_id(self, index: int) -> np.ndarray:
        """Returns the permanent ids of a partition's nodes (int64, ascending, mapped). Raises the errors of `partition`."""
        return PartitionReader(self, index, verify=False).nodes()[0]

    def string_ids(self, index: int, *, verify: bool = False) -> pa.LargeStringArray:
        """Returns the source's ids of a partition's nodes, mapped. Raises ConfigError if these ids are numbers, and FormatError in the cases of `partition`."""
        if self.manifest.id_kind != "string":
            raise ConfigError(f"{self.url}: expected nodes with strings as ids, got whole numbers")
        return PartitionReader(self, index, verify).string_ids()

    def verify(self) -> None:
        """Reads every byte and checks everything. Raises FormatError at the first damage.

        Every file is read once. Memory holds one partition and the original ids of all nodes, which the check of list order needs. An original id takes
        8 bytes, or 16 while ids are compared. With string ids, a node takes up to 24 bytes more.
        """
        if self.manifest.statistics is not None:
            _ = self.manifest.measured
        self.verify_lists(self.verify_nodes())

    def verify_nodes(self) -> np.ndarray:
        """Checks the files of nodes and encodings. Returns the permanent ids of all nodes, int64 [num_nodes] by stored id. Raises FormatError for damage."""
        parts = range(self.manifest.num_partitions)
        # The reader compares each count with the file before memory for all ids is allocated.
        original_id = np.concatenate(
            [PartitionReader(self, index, True).node_fields()["original_id"].copy() for index in parts]
        )
        ordered = np.sort(original_id)
        is_repeated = ordered[1:] == ordered[:-1]
        if is_repeated.any():
            repeated = int(ordered[1:][is_repeated][0])
            raise FormatError(f"{self.path}: expected each original id once, found {repeated} twice")
        if self.manifest.id_kind == "string":
            self._verify_strings()
        for name, encoding in stored_encodings(self).items():
            for index in parts:
                read_encoding(self, name, encoding, index, verify=True)
        return original_id

    def _verify_strings(self) -> None:
        different = StringIds()
        for index in range(self.manifest.num_partitions):
            strings = self.string_ids(index, verify=True)
            for start in range(0, len(strings), _CHECK_STRINGS):
                block = strings[start : start + _CHECK_STRINGS]
                expected = len(different) + np.arange(len(block))
                if np.any(repeated := different.add(block) != expected):
                    raise FormatError(
                        f"{self.path}: expected each id once, found {block[int(np.argmax(repeated))].as_py()!r} twice"
                    )

    def verify_lists(self, original_id: np.ndarray) -> None:
        """Checks the files of edges. `original_id`: permanent ids of the source nodes. Raises FormatError for damage."""
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
        """Checks the neighbor lists of a partition, and returns the number of edges in each topology file."""
        fields = PartitionReader(self, index, True).edge_fields()
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


def _first_unordered_list(
    indptr: np.ndarray, indices: np.ndarray, original_id: np.ndarray, time: np.ndarray | None = None
) -> int | None:
    """Returns the first row whose list does not ascend in original id (with `time`: in (time, original id)); None if all lists ascend. Reads the edges in
    blocks."""
    for start in range(0, len(indices), _CHECK_EDGES):
        window = slice(start, start + _CHECK_EDGES + 1)
        block = original_id[indices[window]]
        is_lower = block[1:] < block[:-1]
        if time is not None:
            when = time[window]
            is_lower = (when[1:] < when[:-1]) | (is_lower & (when[1:] == when[:-1]))
        # The first entry of a list may be lower than the last entry of the list before it.
        falls = start + 1 + np.flatnonzero(is_lower)
        row = np.searchsorted(indptr, falls, side="right") - 1
        inside = indptr[row] != falls
        if inside.any():
            return int(row[np.argmax(inside)])
    return None


@dataclass(frozen=True)
class TypedGraph(GraphSnapshot):
    """One snapshot of a typed graph. Each type of nodes and each relation is read as a separate `StoredGraph`.

    The graph of a type has no edges. The graph of a relation has the nodes of the target type, with their columns and in-edges. Its neighbors are stored ids of
    the source type. Therefore code that serves a partition of a plain graph also serves a partition of a type or a relation.
    """

    def __repr__(self) -> str:
        types = ", ".join(f"{name} {row.num_nodes:,}" for name, row in self.manifest.node_types.items())
        relations = ", ".join(f"{each} {row.num_edges:,}" for each, row in self.manifest.edge_types.items())
        return (
            f"TypedGraph({self.manifest.name!r}: nodes {types};\n  edges {relations};\n"
            f"  {self.num_partitions} partitions, snapshot {self.manifest.snapshot} at {self.url})"
        )

    def verify(self) -> None:
        """Reads every byte and checks everything. Raises FormatError at the first damage. Memory holds one partition of one relation, and the permanent
        ids of all types (8 bytes per id)."""
        for row in self.manifest.rows.values():
            _ = row.measured
        permanent_ids = {name: self.nodes(name).verify_nodes() for name in self.node_types}
        for relation in self.relations:
            self.relation(relation).verify_lists(permanent_ids[relation.source])

    @cached_property
    def _parts(self) -> Mapping[str, StoredGraph]:
        manifest = self.manifest
        return {
            name: StoredGraph(self.url, manifest.of_part(name), self.filesystem, self.path, self.by_range)
            for name in manifest.rows
        }


PLAIN_OR_TYPED = StoredGraph, TypedGraph
_KINDS = {StoredGraph: "a graph of one type of nodes", TypedGraph: "a typed graph", StoredGraphs: "a set of graphs"}


@overload
def open_graph(url: str, snapshot: int | None = None) -> StoredGraph | TypedGraph | StoredGraphs: ...


@overload
def open_graph(url: str, snapshot: int | None = None, *, kind: type[_Kind]) -> _Kind: ...


@overload
def open_graph(
    url: str, snapshot: int | None = None, *, kind: tuple[type[_Kind], type[_OtherKind]]
) -> _Kind | _OtherKind: ...


def open_graph(url: str, snapshot: int | None = None, *, kind: Any = None) -> Any:
    """Opens the newest snapshot, or the given snapshot, at a path or fsspec URL. Returns a `StoredGraph`, a `TypedGraph`, or for a set `StoredGraphs`.

    `kind`: the expected class, or two classes. Raises FormatError if there is no graph, a graph of another kind, or an invalid manifest.
    """
    filesystem, path = split_url(url)
    reader = ManifestReader(*read_manifest(filesystem, path, url, snapshot, "graphmill ingest <source>"))
    actual: Any = StoredGraphs if reader.kind == MANY_GRAPHS else TypedGraph if reader.is_typed else StoredGraph
    expected = (actual,) if kind is None else kind if isinstance(kind, tuple) else (kind,)
    if actual not in expected:
        names = " or ".join(_KINDS[each] for each in expected)
        raise FormatError(
            f"{url}: expected {names}, found {_KINDS[actual]}; graphmill inspect_graph {url} shows it: give another url"
        )
    if actual is StoredGraphs:
        return open_graphs(url, reader.snapshot())
    return actual(url, read_graph_manifest(reader), filesystem, path)


def source_ids(stored: StoredGraph | StoredGraphs) -> SourceIds | None:
    """Returns the source's ids of nodes or graphs. Returns None if they equal the permanent ids, or if the graphs of a set have no ids."""
    if isinstance(stored, StoredGraphs):
        return None if stored.manifest.id_kind is None else SourceIds(stored)
    return SourceIds(stored.pin()) if stored.manifest.id_kind == "string" else None


def copy_of(origin: _Graph, url: str) -> _Graph:
    """Returns the graph with the files of its copy at this url. The copy may not have any files yet."""
    filesystem, path = split_url(url)
    manifest = replace(origin.manifest, origin=absolute_url(origin.url))
    return replace(origin, url=url, manifest=manifest, filesystem=filesystem, path=path, by_range=False)
