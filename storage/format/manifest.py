"""The manifest of one snapshot of a stored graph: the content of its Arrow partitions, and checksums of all files.

The manifest is written after all other files and is read before them. Parsing checks the type and range of every field. File names must
match the format, so a manifest cannot refer to files outside its graph's folder.

`node_types` and `edge_types` are tables. A plain graph has one row in each table. A typed graph has a row for each type of nodes and for each relation.
`requires` lists the format features that a reader must support to read the graph. A partition of a typed graph has a folder for each type and each relation,
for example `part-00000/paper/nodes.arrow` and `part-00000/author--writes--paper/topology.arrow`. A stored encoding has a file for each type. A part of a
typed graph is a type, or a relation with its target type. A part is read as a separate graph (`Manifest.of_part`).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.feature_rows import FeatureLayout, FeatureRows
from graphmill.storage.format.manifest_reader import (
    FORMAT,
    FORMAT_VERSION,
    OF_TYPES,
    OUT_EDGES,
    RELATIONS,
    TIMES,
    TYPES,
    ManifestReader,
)
from graphmill.storage.format.source import FEATURE_KINDS, SPLIT_NAMES, FeatureColumn, Relation
from graphmill.storage.format.statistics import GraphSizes, GraphStatistics, read_graph_statistics

ONE_GRAPH = "one-graph"
NODE, EDGE = "node", Relation("node", "edge", "node")  # the only type and the only relation of a plain graph

# a name contains no "--", because "--" separates names
NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.]|-(?=[A-Za-z0-9_.])){0,63}"
PART_NAME = rf"{NAME}(?:--{NAME}){{0,2}}"  # pattern of the folder of a type or a relation
_FILE_NAME = re.compile(r"part-\d{5}/(topology|out_topology|nodes|ids|features|edges|links)\.arrow")
_TYPED_FILE_NAME = re.compile(
    rf"part-\d{{5}}/(?:{NAME}/(?:nodes|ids|features)|{NAME}(?:--{NAME}){{2}}/(?:topology|out_topology|edges|links))\.arrow"
)
_OF_NODES = ("nodes.arrow", "ids.arrow", "features.arrow")
_ENCODING_FILE = re.compile(rf"part-\d{{5}}/(?:{NAME}/)?encodings/[A-Za-z0-9._-]{{1,128}}\.arrow")
# dtype of the stored labels by their kind
LABEL_DTYPES = {"class": "int64", "answers": "int8", "value": "float32", "values": "float32"}


@dataclass(frozen=True)
class EncodingEntry:
    """One stored encoding of the graph's nodes."""

    version: int  # version of the algorithm that computed the encoding
    # There is one file for each partition, and in a typed graph one file for each partition and type.
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)  # for laplacian: the eigenvalues, separated by spaces

    def files_of(self, partition: int) -> list[FileEntry]:
        """Returns the encoding's files for this partition: one file, or in a typed graph one file for each type."""
        return [each for name, each in self.files.items() if name.startswith(f"{partition_dir(partition)}/")]

    def of_part(self, name: str) -> "EncodingEntry":
        """Returns the encoding of one type of a typed graph, with the file names of a plain graph. For a relation it has no files."""
        own = {file: each for file, each in self.files.items() if file.split("/")[1] == name}
        return replace(self, files={file.replace(f"/{name}/", "/", 1): each for file, each in own.items()})


@dataclass(frozen=True)
class StoredLinks:
    """Counts of held-out links by split code (`graphmill.storage.ingestion.held_out_links`). Held-out links are not among the graph's edges."""

    positives: tuple[int, ...]
    negatives: tuple[int, ...]  # count of pairs that are not links; all links of a split share these pairs
    listed: tuple[int, ...]  # total length of the lists of negatives that belong to single links
    digest: str  # digest of all links; does not depend on partitions
    reverse: str = ""  # the relation that holds the reverse edges; empty: there is none, or the graph is plain

    def to_tree(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value != ""}

    def has_negatives(self, code: int) -> bool:
        return self.negatives[code] + self.listed[code] > 0


@dataclass(frozen=True)
class GraphPart:
    """A part of a typed graph: the nodes of one type, or the edges of one relation with their targets' columns."""

    name: str  # "paper", or "author--writes--paper"
    # number of nodes of a relation's source type; None: the part is a type, which has no lists of edges
    num_sources: int | None


class Tables(NamedTuple):
    """The rows of a typed graph's tables. Each row is a manifest without files. The row of a relation also has the fields of its target type."""

    node_types: dict[str, "Manifest"]
    edge_types: dict[Relation, "Manifest"]


@dataclass(frozen=True)
class Manifest:
    """Counts, schema, partition offsets, files with checksums, and the graph's origin. In a typed graph counts and offsets are sums over all
    types and relations. The schemas of types and relations are in `node_types` and `edge_types`."""

    name: str
    num_nodes: int
    num_edges: int
    partition_offsets: tuple[int, ...]  # partition p owns the ids [offsets[p], offsets[p + 1])
    num_groups: int = 0  # number of locality groups of nodes; 0: no groups are stored
    feature_dim: int = 0
    # columns of the table from which the features were made; empty: they were made from an array, or by an older version
    feature_columns: tuple[FeatureColumn, ...] = ()
    feature_dtype: FeatureDtype | None = None
    feature_layout: FeatureLayout = "dense"  # layout of the stored rows (`graphmill.storage.format.feature_rows`)
    feature_slots: int = 0
    edge_feature_dim: int = 0
    # Names of the relations of a knowledge graph. Each edge has one feature: the number of its relation.
    relations: tuple[str, ...] = ()
    has_edge_id: bool = False
    has_edge_weight: bool = False
    has_edge_time: bool = False  # then neighbor lists ascend in (time, original id), else in original id
    has_node_time: bool = False
    # or "string": then ids.arrow has the source's ids, and a node's permanent id is its row in the source
    id_kind: str = "int64"
    symmetric: bool = False  # every edge has its reverse, so lists of in-edges serve as lists of out-edges
    has_out_edges: bool = False  # whether lists of out-edges are also stored
    label_kind: str | None = None  # "class", "answers" (several yes/no labels), "value", "values" or None
    num_classes: int | None = None  # number of classes, answers or values
    # names of the classes, answers or values, in order; empty: they have no names, only numbers
    class_names: tuple[str, ...] = ()
    num_split_sets: int = 0
    links: StoredLinks | None = None  # None: no edge was held out
    # None: the manifest was made by hand, not by ingestion. A ManifestReader: the statistics are not parsed yet (`measured`).
    statistics: "GraphStatistics | ManifestReader | None" = field(default=None, compare=False, repr=False)
    files: Mapping[str, FileEntry] = field(default_factory=dict, repr=False)
    provenance: Mapping[str, str] = field(default_factory=dict, repr=False)
    encodings: Mapping[str, EncodingEntry] = field(default_factory=dict, repr=False)
    snapshot: int = 0  # number of the snapshot; 0: not published yet
    created: float = 0.0  # seconds since 1970, by the writer's clock
    origin: str | None = None  # the url of the complete graph, if this is a copy; a copy may have only some partitions
    part: GraphPart | None = None  # the part of a typed graph that this manifest describes; None: a whole graph
    tables: Tables | None = field(default=None, repr=False)  # None: a plain graph, or a part of a typed graph

    @classmethod
    def of_tables(cls, name: str, tables: Tables, **others: Any) -> "Manifest":
        """Makes the manifest of a typed graph. `others`: the fields of the whole graph."""
        types = tables.node_types.values()
        return cls(
            name,
            num_nodes=sum(row.num_nodes for row in types),
            num_edges=sum(row.num_edges for row in tables.edge_types.values()),
            partition_offsets=tuple(map(sum, zip(*(row.partition_offsets for row in types), strict=True))),
            tables=tables,
            **others,
        )

    @property
    def is_typed(self) -> bool:
        return self.tables is not None

    @property
    def node_types(self) -> Mapping[str, "Manifest"]:
        """The rows of `node_types`, by type. A plain graph has one type."""
        return {NODE: self} if self.tables is None else self.tables.node_types

    @property
    def edge_types(self) -> Mapping[Relation, "Manifest"]:
        """The rows of `edge_types`, by relation. A plain graph has one relation."""
        return {EDGE: self} if self.tables is None else self.tables.edge_types

    @property
    def rows(self) -> dict[str, "Manifest"]:
        """All rows, by the name of the part. A plain graph has one part, with an empty name."""
        if self.tables is None:
            return {"": self}
        return {**self.node_types, **{str(relation): row for relation, row in self.edge_types.items()}}

    def of_part(self, name: str) -> "Manifest":
        """Returns the manifest of one type of nodes, or of one relation, read as a separate graph."""
        return replace(
            self.rows[name],
            files={short: self.files[stored] for short, stored in self.stored_names(name).items()},
            encodings={kind: own for kind, each in self.encodings.items() if (own := each.of_part(name)).files},
            provenance=self.provenance,
            snapshot=self.snapshot,
            created=self.created,
            origin=self.origin,
        )

    def stored_names(self, part: str) -> dict[str, str]:
        """Maps file names to stored file names: a part is read with the file names of a plain graph, and its files are stored in the part's folder."""
        row, nodes, names = self.rows[part], part.rpartition("--")[2], {}
        for partition in range(self.num_partitions):
            for short in expected_files(row, partition):
                folder, file = short.split("/")
                names[short] = f"{folder}/{nodes if file in _OF_NODES else part}/{file}" if part else short
        return names

    @property
    def graph_digest(self) -> str:
        """Digest of all nodes and edges. It does not depend on partitions, or on the order of types and relations."""
        if self.tables is None:
            return self.measured.graph_digest
        return hashlib.sha256("".join(self._part_digests).encode()).hexdigest()

    @property
    def _part_digests(self) -> list[str]:
        return sorted(f"{name} {row.measured.graph_digest}\n" for name, row in self.rows.items())

    def data_digest(self, node_type: str, split_set: int) -> str:
        """Digest of all data that is read when a model is trained on this type's nodes. It does not depend on partitions or on the order of types."""
        parts = self._part_digests
        of_type = self.node_types[node_type].measured.data_digest(split_set)
        return hashlib.sha256("".join([*parts, of_type]).encode()).hexdigest()[: len(of_type)]

    @property
    def link_relation(self) -> Relation | None:
        """The relation with held-out links; None: no links are held out."""
        return next((relation for relation, row in self.edge_types.items() if row.links is not None), None)

    @property
    def num_sources(self) -> int:
        """Number of nodes to which neighbor ids can refer. These are the nodes of the graph, or for a relation the nodes of its source type."""
        return self.num_nodes if self.part is None or self.part.num_sources is None else self.part.num_sources

    @property
    def is_one_type(self) -> bool:
        """Whether a node and the neighbors in its list have the same type, as in a plain graph."""
        return self.part is None or len({*self.part.name.split("--")[::2]}) == 1

    @property
    def has_topology(self) -> bool:
        return self.part is None or self.part.num_sources is not None

    @property
    def num_partitions(self) -> int:
        return len(self.partition_offsets) - 1

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The layout of feature rows; None if nodes have no features."""
        if self.feature_dtype is None:
            return None
        return FeatureRows(self.feature_dim, self.feature_dtype, self.feature_layout, self.feature_slots)

    @cached_property
    def measured(self) -> GraphStatistics:
        """The statistics. They are parsed at first use, because parsing takes as long as opening the graph.

        Raises FormatError if they are damaged, or if the manifest has none because ingestion did not make it.
        """
        if self.statistics is None:
            raise FormatError(f"{self.name}: expected statistics in the manifest, found none; ingest the graph again")
        if isinstance(self.statistics, GraphStatistics):
            return self.statistics
        sizes = GraphSizes(**{name: getattr(self, name) for name in GraphSizes._fields})
        return read_graph_statistics(self.statistics, sizes)

    @property
    def index_dtype(self) -> str:
        """dtype of the neighbors' stored ids: int32 if they fit, else int64."""
        return "int32" if self.num_sources < 2**31 else "int64"

    @property
    def content_hash(self) -> str:
        """SHA-256 over the names and checksums of all files except encodings. Two graphs have equal hashes if and only if these files have equal bytes."""
        return hash_of_files(self.files)

    @property
    def num_bytes(self) -> int:
        """Size in bytes of all files except encodings."""
        return sum(entry.num_bytes for entry in self.files.values())

    def to_json(self) -> str:
        encodings = {
            name: {"version": each.version, "files": _entries(each.files), "provenance": dict(each.provenance)}
            for name, each in sorted(self.encodings.items())
        }
        statistics: dict[str, Any] | None = None
        if self.is_typed:
            statistics = {name: asdict(row.measured) for name, row in self.rows.items()}
        elif self.statistics is not None:
            statistics = asdict(self.measured)
        fields = {
            "name": self.name,
            "node_types": [row.node_row(name) for name, row in self.node_types.items()],
            "edge_types": [row.edge_row(relation) for relation, row in self.edge_types.items()],
            "encodings": encodings,
            "statistics": statistics,
            **({"links": links} if (links := self._links_tables()) else {}),
            **({} if self.origin is None else {"origin": self.origin}),
        }
        return manifest_json(ONE_GRAPH, self, fields, self.requires)

    def _links_tables(self) -> dict[str, Any]:
        """Counts of held-out links by relation, in the form of the manifest."""
        rows = {str(relation) if self.is_typed else EDGE.name: row.links for relation, row in self.edge_types.items()}
        return {name: links.to_tree() for name, links in rows.items() if links is not None}

    @property
    def requires(self) -> list[str]:
        """Format features that a reader must support in addition to the features of version 0.2."""
        if self.is_typed:
            of_rows = sorted({name for row in self.rows.values() for name in row.requires})
            has_out_edges = any(row.has_out_edges for row in self.edge_types.values())
            return [TYPES, *[OF_TYPES] * bool(self.encodings), *[OUT_EDGES] * has_out_edges, *of_rows]
        return [TIMES] * (self.has_edge_time or self.has_node_time) + [RELATIONS] * bool(self.relations)

    def node_row(self, name: str) -> dict[str, Any]:
        """The row of `node_types`."""
        optional = {"class_names": list(self.class_names), "feature_columns": list(map(asdict, self.feature_columns))}
        fields = {_NODE_NAMES.get(key, key): getattr(self, key) for key in _NODE_FIELDS}
        return {"name": name, **fields, **{key: values for key, values in optional.items() if values}}

    def edge_row(self, relation: Relation) -> dict[str, Any]:
        """The row of `edge_types`."""
        names = {"source": relation.source, "relation": relation.name, "target": relation.target}
        relations = {"relations": list(self.relations)} if self.relations else {}
        return {**names, **{key: getattr(self, _EDGE_NAMES.get(key, key)) for key in _EDGE_FIELDS}, **relations}


def hash_of_files(files: Mapping[str, FileEntry]) -> str:
    lines = "".join(f"{name} {entry.sha256}\n" for name, entry in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _entries(files: Mapping[str, FileEntry]) -> dict[str, dict[str, Any]]:
    return {name: entry._asdict() for name, entry in sorted(files.items())}


def manifest_json(kind: str, manifest: Any, fields: Mapping[str, Any], requires: Sequence[str] = ()) -> str:
    """Returns the text of a manifest: a header, the fields of this kind of manifest, provenance, files."""
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "requires": list(requires),
        "snapshot": manifest.snapshot,
        "created": manifest.created,
        "content_hash": hash_of_files(manifest.files),
    }
    body = {"provenance": dict(manifest.provenance), "files": _entries(manifest.files)}
    return json.dumps({**header, **fields, **body}, indent=1) + "\n"


@dataclass(frozen=True)
class SnapshotHead:
    """Reads the fields that manifests of all kinds have."""

    kind: str
    snapshot: int
    created: float
    paths: frozenset[str]  # paths of all files of the snapshot


def parse_head(text: str, where: str) -> SnapshotHead:
    """Reads the header of a manifest of any kind. Raises FormatError if the text is not a manifest."""
    reader = ManifestReader(text, where)
    tables = [reader, *reader.members("encodings", optional=True).values()]
    paths = frozenset(path for table in tables for path in table.paths())
    return SnapshotHead(reader.text("kind"), reader.snapshot(), reader.date("created"), paths)


def partition_dir(partition: int) -> str:
    return f"part-{partition:05d}"


def parse_manifest(text: str, where: str) -> Manifest:
    """Parses the manifest of one graph, plain or typed, from its JSON text. `where` names the file in errors. Raises the errors of `read_graph_manifest`."""
    return read_graph_manifest(ManifestReader(text, where))


def read_graph_manifest(reader: ManifestReader) -> Manifest:
    """Reads the manifest of one graph. Raises FormatError if any field is wrong. The statistics are checked later, by `Manifest.measured`."""
    reader.check_kind(ONE_GRAPH)
    whole: dict[str, Any] = {
        "files": reader.files(_TYPED_FILE_NAME if reader.is_typed else _FILE_NAME),
        "provenance": reader.texts("provenance"),
        "snapshot": reader.snapshot(),
        "created": reader.date("created"),
        "origin": reader.optional_text("origin"),
    }
    name = reader.text("name")
    manifest = Manifest.of_tables(name, _tables(reader), **whole) if reader.is_typed else _plain(reader, name, whole)
    encodings = reader.members("encodings").items()
    manifest = replace(manifest, encodings={kind: _encoding(each, manifest) for kind, each in encodings})
    for part in manifest.rows:
        for stored in manifest.stored_names(part).values():
            if stored not in manifest.files:
                reader.fail("files", f"an entry for {stored}", "none")
        _check_counts(manifest.of_part(part) if manifest.is_typed else manifest, reader)
    reader.check_content_hash(manifest.content_hash)
    return manifest


def _plain(reader: ManifestReader, name: str, whole: Mapping[str, Any]) -> Manifest:
    nodes, edges = reader.only("node_types"), reader.only("edge_types")
    nodes.only_value("name", NODE)
    for key, only in zip(("source", "relation", "target"), EDGE, strict=True):
        edges.only_value(key, only)
    return Manifest(
        name,
        **_node_fields(nodes),
        **_edge_fields(edges),
        links=_links(reader, [EDGE.name]).get(EDGE.name),
        statistics=reader.optional_inner("statistics"),
        **whole,
    )


def _tables(reader: ManifestReader) -> Tables:
    """Reads the rows of a typed graph's manifest."""
    statistics = reader.optional_inner("statistics")
    if statistics is None:
        reader.fail("statistics", "those of each type and relation", None)
    types: dict[str, Manifest] = {}
    for row in reader.inners("node_types"):
        name = row.text("name")
        if not re.fullmatch(NAME, name):
            row.fail("name", "a name of the format", name)
        if name in types:
            row.fail("name", "each type once", name)
        types[name] = Manifest(
            name, num_edges=0, **_node_fields(row), part=GraphPart(name, None), statistics=statistics.inner(name)
        )
    relations: dict[Relation, Manifest] = {}
    for row in reader.inners("edge_types"):
        relation = Relation(row.text("source"), row.text("relation"), row.text("target"))
        if not re.fullmatch(NAME, relation.name):
            row.fail("relation", "a name of the format", relation.name)
        if relation in relations:
            row.fail("relation", "each relation once", relation)
        for key, name in (("source", relation.source), ("target", relation.target)):
            if name not in types:
                row.fail(key, f"one of the types {', '.join(types)}", name)
        relations[relation] = replace(
            types[relation.target],
            name=str(relation),
            **_edge_fields(row),
            part=GraphPart(str(relation), types[relation.source].num_nodes),
            statistics=statistics.inner(str(relation)),
        )
    for name, held_out in _links(reader, list(map(str, relations))).items():
        relations[Relation.of(name)] = replace(relations[Relation.of(name)], links=held_out)
    if not types:
        reader.fail("node_types", "at least one type", [])
    for row_before, other in pairwise(types.values()):
        if row_before.num_partitions != other.num_partitions:
            reader.fail("node_types", f"{row_before.num_partitions} partitions of each type", other.num_partitions)
    return Tables(types, relations)


def _check_counts(manifest: Manifest, reader: ManifestReader) -> None:
    """Raises FormatError if the files are too small for the counts in the manifest, because readers allocate memory by these counts."""
    sizes = dict.fromkeys(("nodes", "topology", "links"), 0)
    for name, entry in manifest.files.items():
        kind = name.rpartition("/")[2].removesuffix(".arrow")
        if kind in sizes:
            sizes[kind] += entry.num_bytes
    links = manifest.links
    least = {  # least size of files: the id of each node, one end of each edge, both ends of each link
        "num_nodes": ("nodes", 8 * manifest.num_nodes),
        "num_edges": ("topology", int(manifest.index_dtype[3:]) // 8 * manifest.num_edges),
        "links": ("links", 8 * sum((*links.positives, *links.negatives, *links.listed)) if links else 0),
    }
    for count, (kind, num_bytes) in least.items():
        if num_bytes > sizes[kind]:
            reader.fail(count, f"files {kind}.arrow of at least {num_bytes} bytes for what it counts", sizes[kind])


def _node_fields(nodes: ManifestReader) -> dict[str, Any]:
    """Reads a row of `node_types` as fields of `Manifest`. Raises FormatError if the fields contradict each other."""
    fields = {key: read(nodes, _NODE_NAMES.get(key, key)) for key, read in _NODE_FIELDS.items()}
    if (fields["feature_dim"] > 0) != (fields["feature_dtype"] is not None):
        nodes.fail("feature_dtype", "a dtype exactly where feature_dim is positive", fields["feature_dtype"])
    try:
        if fields["feature_dtype"] is not None:
            FeatureRows(*(fields[f"feature_{key}"] for key in ("dim", "dtype", "layout", "slots")))
    except ConfigError as error:
        nodes.fail("feature_layout", f"one that can be ({error})", fields["feature_layout"])
    if (fields["label_kind"] in (None, "value")) != (fields["num_classes"] is None):
        nodes.fail("num_classes", "a count exactly where labels are classes, answers or values", fields["num_classes"])
    fields["class_names"] = nodes.class_names(fields["num_classes"])
    fields["feature_columns"] = _feature_columns(nodes, fields["feature_dim"])
    return fields


def _feature_columns(nodes: ManifestReader, feature_dim: int) -> tuple[FeatureColumn, ...]:
    columns = []
    for row in nodes.inners("feature_columns", optional=True):
        kind, values, has_nulls = row.word("kind", FEATURE_KINDS), row.names("values"), row.flag("has_nulls")
        mean, width = row.number("mean", "a finite number", -1.7e308, 1.7e308), row.width("width")
        if width != {"number": 1 + has_nulls, "categories": len(values), "embedded": 1}.get(kind, width):
            row.fail("width", f"the features of this column of {kind}", width)
        columns.append(FeatureColumn(row.text("name"), kind, width, mean, has_nulls, values))
    if columns and sum(column.width for column in columns) != feature_dim:
        nodes.fail("feature_columns", f"columns of {feature_dim} features together", len(columns))
    return tuple(columns)


def _edge_fields(edges: ManifestReader) -> dict[str, Any]:
    """Reads a row of `edge_types` as fields of `Manifest`. Raises the errors of `_node_fields`."""
    fields = {_EDGE_NAMES.get(key, key): read(edges, key) for key, read in _EDGE_FIELDS.items()}
    fields["relations"] = edges.optional_names("relations")
    if fields["relations"] and fields["edge_feature_dim"] != 1:
        edges.fail("feature_dim", "one column, the relations' numbers", fields["edge_feature_dim"])
    return fields


def encoding_folders(manifest: Manifest, node_type: str) -> list[str]:
    """Returns the folder of this type's encodings in each partition."""
    folder = f"{node_type}/" * manifest.is_typed
    return [f"{partition_dir(index)}/{folder}encodings" for index in range(manifest.num_partitions)]


def _encoding(reader: "ManifestReader", manifest: Manifest) -> EncodingEntry:
    files = reader.files(_ENCODING_FILE)
    folders = sorted(name.rpartition("/")[0] for name in files)
    if folders != sorted(folder for name in manifest.node_types for folder in encoding_folders(manifest, name)):
        reader.fail("files", "one file for each partition", folders)
    return EncodingEntry(reader.count("version"), files, reader.texts("provenance"))


def _links(reader: "ManifestReader", relations: list[str]) -> dict[str, StoredLinks]:
    """Reads the counts of held-out links by relation. Returns an empty dictionary if the field is missing, as in graphs of version 0.2."""
    links = {}
    for relation, table in reader.members("links", optional=True).items():
        if relation not in relations:
            reader.fail("links", f"relations among {', '.join(relations)}", relation)
        counts = {name: table.counts(name) for name in ("positives", "negatives", "listed")}
        for name, each in counts.items():
            if len(each) != len(SPLIT_NAMES):
                table.fail(name, f"{len(SPLIT_NAMES)} counts", each)
        reverse = table.optional_text("reverse") or ""
        if reverse and reverse not in relations:
            table.fail("reverse", f"one of {', '.join(relations)}", reverse)
        links[relation] = StoredLinks(**counts, digest=table.hexadecimal("digest", 64), reverse=reverse)
    return links


def expected_files(manifest: Manifest, partition: int) -> list[str]:
    """Returns the names of the files that a partition has."""
    is_stored = {
        "topology": manifest.has_topology,
        "nodes": True,
        "ids": manifest.id_kind == "string",
        "out_topology": manifest.has_out_edges,
        "features": manifest.feature_dim > 0,
        "edges": manifest.edge_feature_dim > 0,
        "links": manifest.links is not None,
    }
    return [f"{partition_dir(partition)}/{name}.arrow" for name, stored in is_stored.items() if stored]


# These tables map fields of `Manifest`, in the rows of nodes and of edges, to the methods that read them.
_NODE_NAMES = {"id_kind": "ids"}  # maps fields of `Manifest` to their stored names, if these differ
_NODE_FIELDS: dict[str, Callable[[ManifestReader, str], Any]] = {
    "id_kind": lambda reader, key: reader.word(key, ("int64", "string")),
    "num_nodes": ManifestReader.count,
    "partition_offsets": ManifestReader.offsets,
    "feature_dim": ManifestReader.width,
    "feature_dtype": lambda reader, key: reader.choice(key, get_args(FeatureDtype)),
    # Graphs of version 0.2 do not have the next three fields.
    "num_groups": lambda reader, key: reader.optional_width(key) or 0,
    "feature_layout": lambda reader, key: reader.choice(key, get_args(FeatureLayout)) or "dense",
    "feature_slots": lambda reader, key: reader.optional_width(key) or 0,
    "label_kind": lambda reader, key: reader.choice(key, tuple(LABEL_DTYPES)),
    "num_classes": ManifestReader.optional_width,
    "num_split_sets": ManifestReader.width,
    "has_node_time": ManifestReader.optional_flag,
}
_EDGE_NAMES = {"feature_dim": "edge_feature_dim"}  # maps stored names to the fields of `Manifest`, if these differ
_EDGE_FIELDS: dict[str, Callable[[ManifestReader, str], Any]] = {
    "num_edges": ManifestReader.count,
    "feature_dim": ManifestReader.width,
    **dict.fromkeys(("has_edge_id", "has_edge_weight", "symmetric", "has_out_edges"), ManifestReader.flag),
    "has_edge_time": ManifestReader.optional_flag,  # optional, because graphs of version 0.2 have no times
}
