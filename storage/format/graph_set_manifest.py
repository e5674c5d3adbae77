"""The manifest of many small graphs in a directory of shards. It shares its header and checks with `graphmill.storage.format.manifest`."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.manifest import (
    Manifest,
    hash_of_files,
    manifest_json,
    partition_dir,
    read_graph_manifest,
)
from graphmill.storage.format.manifest_reader import ManifestReader
from graphmill.storage.format.statistics import GraphSetSizes, GraphSetStatistics, read_graph_set_statistics

MANY_GRAPHS = "many-graphs"
REJECTS_NAME = "rejects.csv"

_FILE_NAME = re.compile(r"part-\d{5}/graphs\.arrow|rejects\.csv")
_INDEX_DTYPES = ("uint8", "uint16", "int32")
_LABELLED = ("nodes", "pairs")
ID_KINDS = ("number", "string")  # stored as int64, or as large strings
_FEATURE_DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32")


@dataclass(frozen=True)
class RowSchema:
    """The schema of the features of nodes or of edges."""

    dim: int = 0
    dtype: str | None = None
    categories: tuple[int, ...] = ()  # if all columns are categories: the size of each column's vocabulary

    @property
    def holds_numbers(self) -> bool:
        """Whether the columns are real numbers."""
        return self.dtype in ("float16", "float32") and not self.categories


NO_FEATURES = RowSchema()


@dataclass(frozen=True)
class GraphSetManifest:
    """Counts, schema, shards, files with checksums, and the origin of the graphs."""

    name: str
    num_graphs: int
    num_nodes: int
    num_edges: int  # directed edges: an undirected bond counts twice
    graph_offsets: tuple[int, ...]  # shard s holds the graphs [graph_offsets[s], graph_offsets[s + 1])
    node: RowSchema = NO_FEATURES
    edge: RowSchema = NO_FEATURES
    index_dtype: str = "uint16"  # dtype of an edge's ends, which are positions within the edge's graph
    target_names: tuple[str, ...] = ()
    split_names: tuple[str, ...] = ()  # a graph with the split code c is in split names[c - 1]; code 0: in no split
    labelled: str | None = None  # "nodes": nodes have classes; "pairs": some pairs of nodes have a label of 0 or 1
    num_classes: int | None = None  # number of classes of the labelled nodes
    # names of the classes of the nodes or of the only target; empty: classes have no names, only numbers
    class_names: tuple[str, ...] = ()
    # type of the graphs' ids in the source, "number" or "string"; None: graphs have no ids except their rows
    id_kind: str | None = None
    num_rejected: int = 0  # number of the source's rows that are not graphs; rejects.csv lists these rows
    statistics: GraphSetStatistics | None = None  # None: the manifest was made by hand, not by the writer
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    snapshot: int = 0  # number of the snapshot; 0: not published yet
    created: float = 0.0  # seconds since 1970, by the writer's clock
    origin: str | None = None  # url of the original set, if this set is a copy on a host's disk

    @property
    def num_shards(self) -> int:
        return len(self.graph_offsets) - 1

    @property
    def measured(self) -> GraphSetStatistics:
        """Returns the statistics. Raises FormatError if the manifest has none, because it was made by hand."""
        if self.statistics is None:
            raise FormatError(f"{self.name}: expected statistics in the manifest, found none; ingest the graphs again")
        return self.statistics

    @property
    def content_hash(self) -> str:
        """A hash like `Manifest.content_hash`. Two sets have equal hashes if and only if their stored bytes are equal."""
        return hash_of_files(self.files)

    def to_json(self) -> str:
        fields = asdict(replace(self, files={}, provenance={}))
        optional = ("origin", "id_kind", "class_names")
        return manifest_json(
            MANY_GRAPHS,
            self,
            {name: value for name, value in fields.items() if name not in optional or value},
        )


@dataclass(frozen=True)
class Reject:
    """A row of the source that is not a graph."""

    line: int  # line number in the source's file, from 1
    text: str
    reason: str
    split: int = 0  # code of the row's split; 0: none or unknown


def shard_file(shard: int) -> str:
    return f"{partition_dir(shard)}/graphs.arrow"


def parse_any_manifest(text: str, where: str) -> Manifest | GraphSetManifest:
    """Parses the manifest of one graph or of a set from its JSON text. `where` names the file in errors. Raises FormatError for any other text."""
    reader = ManifestReader(text, where)
    return _read_set(reader) if reader.kind == MANY_GRAPHS else read_graph_manifest(reader)


def parse_graph_set_manifest(text: str, where: str) -> GraphSetManifest:
    """Like `parse_any_manifest`, but accepts only the manifest of a set."""
    return _read_set(ManifestReader(text, where))


def _read_set(reader: ManifestReader) -> GraphSetManifest:
    reader.check_kind(MANY_GRAPHS)
    manifest = GraphSetManifest(
        name=reader.text("name"),
        num_graphs=reader.count("num_graphs"),
        num_nodes=reader.count("num_nodes"),
        num_edges=reader.count("num_edges"),
        graph_offsets=reader.offsets("graph_offsets", "num_graphs"),
        node=_row_schema(reader, "node"),
        edge=_row_schema(reader, "edge"),
        index_dtype=reader.choice("index_dtype", _INDEX_DTYPES) or "",
        target_names=reader.names("target_names"),
        split_names=reader.names("split_names"),
        labelled=reader.choice("labelled", _LABELLED),
        num_classes=reader.optional_width("num_classes"),
        class_names=reader.optional_names("class_names"),
        id_kind=reader.choice("id_kind", ID_KINDS),
        num_rejected=reader.count("num_rejected"),
        files=reader.files(_FILE_NAME),
        provenance=reader.texts("provenance"),
        snapshot=reader.snapshot(),
        created=reader.date("created"),
        origin=reader.optional_text("origin"),
    )
    if not manifest.index_dtype:
        reader.fail("index_dtype", f"one of {_INDEX_DTYPES}", None)
    if len(manifest.split_names) > np.iinfo(np.int8).max:
        reader.fail("split_names", f"at most {np.iinfo(np.int8).max} names", f"{len(manifest.split_names)} names")
    if (manifest.labelled == "nodes") != (manifest.num_classes is not None):
        reader.fail("num_classes", "a number of classes exactly where nodes are labelled", manifest.num_classes)
    if manifest.labelled is not None:
        reader.class_names(manifest.num_classes)
    elif manifest.class_names and len(manifest.target_names) != 1:
        reader.fail("class_names", "one target, whose classes they name", f"{len(manifest.target_names)} targets")
    expected = [shard_file(shard) for shard in range(manifest.num_shards)]
    for name in [*expected, *([REJECTS_NAME] if manifest.num_rejected else [])]:
        if name not in manifest.files:
            reader.fail("files", f"an entry for {name}", "none")
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    # Each item takes at least one byte in a file. Only a node without features may take none.
    no_bytes = manifest.num_graphs * (int(np.iinfo(manifest.index_dtype).max) + 1)
    most = dict.fromkeys(("num_graphs", "num_edges", "num_rejected"), num_bytes)
    most["num_nodes"] = num_bytes if manifest.node.dim else no_bytes
    for key, count in most.items():
        if getattr(manifest, key) > count:
            reader.fail(key, f"at most {count}, by the size of the files", getattr(manifest, key))
    reader.check_content_hash(manifest.content_hash)
    if (statistics := reader.optional_inner("statistics")) is None:
        return manifest
    counts = manifest.num_graphs, manifest.num_nodes, manifest.num_edges
    names = len(manifest.target_names), len(manifest.split_names)
    sizes = GraphSetSizes(*counts, *names, manifest.node.dim, manifest.edge.dim)
    return replace(manifest, statistics=read_graph_set_statistics(statistics, sizes))


def _row_schema(reader: ManifestReader, key: str) -> RowSchema:
    inner = reader.inner(key)
    dim = inner.width("dim")
    schema = RowSchema(dim, inner.choice("dtype", _FEATURE_DTYPES), inner.widths("categories"))
    if (schema.dim > 0) != (schema.dtype is not None):
        inner.fail("dtype", "a dtype exactly where dim is positive", schema.dtype)
    if schema.categories and len(schema.categories) != dim:
        inner.fail("categories", f"none, or one size for each of {dim} columns", schema.categories)
    return schema
