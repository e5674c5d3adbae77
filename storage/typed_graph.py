"""A stored typed graph, opened: each type of nodes and each relation is read as a `StoredGraph` of its own.

A type has no edges. A relation has the nodes of its target type, with their columns, and their in-edges; neighbors are stored ids of its source type.
So whatever serves a partition of a plain graph serves one of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import fsspec
import numpy as np

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.format.manifest import parse_head, partition_dir
from graphmill.storage.format.source import Relation
from graphmill.storage.format.typed_manifest import TypedManifest, parse_typed_manifest
from graphmill.storage.graph import Partition, StoredGraph, files_are_here, open_graph, replaced
from graphmill.storage.snapshots.snapshots import read_manifest


@dataclass(frozen=True)
class PinnedTypedGraph:
    """Names one snapshot of a typed graph, for other processes."""

    url: str  # absolute: workers may run in another folder
    snapshot: int
    content_hash: str

    def open(self) -> "TypedGraph":
        """Opens the same graph. Raises FormatError if it is gone or replaced by another."""
        graph = open_typed_graph(self.url, self.snapshot)
        if graph.manifest.content_hash != self.content_hash:
            raise FormatError(replaced(self.url, self.content_hash, graph.manifest.content_hash))
        return graph


@dataclass(frozen=True)
class TypedGraph:
    """One snapshot of a typed graph."""

    url: str
    manifest: TypedManifest
    filesystem: fsspec.AbstractFileSystem
    path: str

    def __repr__(self) -> str:
        types = ", ".join(f"{name} {row.num_nodes:,}" for name, row in self.manifest.types.items())
        relations = ", ".join(f"{each} {row.num_edges:,}" for each, row in self.manifest.relations.items())
        return (
            f"TypedGraph({self.manifest.name!r}: nodes {types};\n  edges {relations};\n"
            f"  {self.num_partitions} partitions, snapshot {self.manifest.snapshot} at {self.url})"
        )

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(self.manifest.types)

    @property
    def relations(self) -> tuple[Relation, ...]:
        return tuple(self.manifest.relations)

    @property
    def num_partitions(self) -> int:
        return self.manifest.num_partitions

    def num_nodes(self, node_type: str) -> int:
        return self.nodes(node_type).num_nodes

    def num_edges(self, relation: Relation) -> int:
        return self.relation(relation).num_edges

    def offsets(self, node_type: str) -> np.ndarray:
        """int64 [num_partitions + 1]: partition p owns the type's ids [offsets[p], offsets[p + 1])."""
        return self.nodes(node_type).offsets

    def nodes(self, node_type: str) -> StoredGraph:
        """The nodes of a type, as a graph without edges. Raises ConfigError for a type that there is not."""
        if node_type not in self.manifest.types:
            raise ConfigError(f"{self.url}: expected a type, one of {', '.join(self.node_types)}, got {node_type!r}")
        return self._parts[node_type]

    def relation(self, relation: Relation) -> StoredGraph:
        """A relation, as a graph over its target type. Raises ConfigError for one that there is not."""
        if relation not in self.manifest.relations:
            listed = ", ".join(map(str, self.relations))
            raise ConfigError(f"{self.url}: expected a relation, one of {listed}, got {relation!s}")
        return self._parts[str(relation)]

    def node_partition(self, node_type: str, index: int, *, verify: bool = False) -> Partition:
        """The nodes of a type that a partition owns. Errors as `StoredGraph.partition`."""
        return self.nodes(node_type).partition(index, verify=verify)

    def relation_partition(self, relation: Relation, index: int, *, verify: bool = False) -> Partition:
        """The in-edges of a partition's nodes of the target type, with these nodes' columns."""
        return self.relation(relation).partition(index, verify=verify)

    def pin(self) -> PinnedTypedGraph:
        url = self.path if is_local(self.filesystem) else self.url
        return PinnedTypedGraph(url, self.manifest.snapshot, self.manifest.content_hash)

    @property
    def is_here(self) -> bool:
        """Whether all its files are on this machine."""
        return files_are_here(self.filesystem, self.path, self.manifest.files.values())

    def whole(self) -> "TypedGraph":
        """Itself: hosts keep copies of plain graphs alone."""
        return self

    def partition_files(self, index: int) -> list[FileEntry]:
        """A partition's files, of all types and relations."""
        return [entry for name, entry in self.manifest.files.items() if name.startswith(f"{partition_dir(index)}/")]

    def verify(self) -> None:
        """Reads every byte and checks everything. Raises FormatError at the first damage.

        Memory: the permanent ids of all types, 8 bytes each, and one partition of one relation.
        """
        permanent_ids = {}
        for name, part in self._parts.items():
            _ = part.manifest.measured
            if name in self.manifest.types:
                permanent_ids[name] = part.verify_nodes()
        for relation in self.relations:
            self.relation(relation).verify_lists(permanent_ids[relation.source])

    @cached_property
    def _parts(self) -> Mapping[str, StoredGraph]:
        manifest = self.manifest
        return {name: StoredGraph(self.url, manifest.part(name), self.filesystem, self.path) for name in manifest.rows}


def open_typed_graph(url: str, snapshot: int | None = None) -> TypedGraph:
    """Opens the typed graph at a path or fsspec URL: its newest snapshot, or the given one.

    Raises FormatError where there is none, its manifest is not valid, or it is a plain graph.
    """
    filesystem, path = split_url(url)
    text, where = read_manifest(filesystem, path, url, snapshot, "graphmill ingest <typed source>")
    return TypedGraph(url, parse_typed_manifest(text, where), filesystem, path)


def open_any_graph(url: str, snapshot: int | None = None) -> StoredGraph | TypedGraph:
    """Opens the graph at a path or fsspec URL, plain or typed: its newest snapshot, or the given one. Raises FormatError where there is none."""
    return open_typed_graph(url, snapshot) if holds_typed_graph(url, snapshot) else open_graph(url, snapshot)


def holds_typed_graph(url: str, snapshot: int | None = None) -> bool:
    """Whether there is a typed graph. Raises FormatError where there is no snapshot, or one that cannot be read."""
    filesystem, path = split_url(url)
    return parse_head(*read_manifest(filesystem, path, url, snapshot, "graphmill ingest <source>")).is_typed
