"""The manifest of one snapshot of a typed graph: a row for each type of nodes and each relation, and the files of all of them.

It has the form of a plain graph's (`graphmill.storage.format.manifest`) with several rows, and `requires` says so. A partition's folder has a folder for each type
and each relation, `part-00000/paper/nodes.arrow` and `part-00000/author--writes--paper/topology.arrow`. What is read is a part of it: a type, or a
relation with its target type, each as the manifest of a graph of its own (`TypedManifest.part`).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.manifest import (
    ONE_GRAPH,
    GraphPart,
    Manifest,
    check_counts,
    edge_fields,
    expected_files,
    hash_of_files,
    manifest_json,
    node_fields,
)
from graphmill.storage.format.manifest_reader import TYPES, ManifestReader
from graphmill.storage.format.source import Relation

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.]|-(?=[A-Za-z0-9_.])){0,63}"  # so that "--" stands between names alone
PART_NAME = rf"{_NAME}(?:--{_NAME}){{0,2}}"  # of the folder of a type, or of a relation
_FILE_NAME = re.compile(
    rf"part-\d{{5}}/(?:{_NAME}/(?:nodes|ids|features)|{_NAME}(?:--{_NAME}){{2}}/(?:topology|edges))\.arrow"
)
_OF_NODES = ("nodes.arrow", "ids.arrow", "features.arrow")


def check_names(types: tuple[str, ...], relations: tuple[Relation, ...], where: str) -> None:
    """Raises ConfigError for names that cannot be those of folders, and for relations of types that there are not."""
    for name in (*types, *(each.name for each in relations)):
        if not re.fullmatch(_NAME, name):
            raise ConfigError(
                f"{where}: expected names of up to 64 letters, digits, _, . and single -, got {name!r}; rename this type or relation"
            )
    for each in relations:
        for end in (each.source, each.target):
            if end not in types:
                raise ConfigError(f"{where}: relation {each}: expected types among {', '.join(types)}, got {end!r}")


@dataclass(frozen=True)
class TypedManifest:
    """Counts and schema by type and by relation, files with checksums, and where the graph came from.

    The rows are manifests without files. A relation's has the fields of its target type, too.
    """

    name: str
    types: Mapping[str, Manifest]
    relations: Mapping[Relation, Manifest]
    files: Mapping[str, FileEntry] = field(default_factory=dict, repr=False)
    provenance: Mapping[str, str] = field(default_factory=dict, repr=False)
    snapshot: int = 0
    created: float = 0.0

    @property
    def num_partitions(self) -> int:
        return next(iter(self.types.values())).num_partitions

    @property
    def num_nodes(self) -> int:
        """Of all types."""
        return sum(row.num_nodes for row in self.types.values())

    @property
    def num_edges(self) -> int:
        """Of all relations."""
        return sum(row.num_edges for row in self.relations.values())

    @property
    def content_hash(self) -> str:
        """As a plain graph's."""
        return hash_of_files(self.files)

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(entry.num_bytes for entry in self.files.values())

    @property
    def origin(self) -> None:
        """Hosts keep copies of plain graphs alone."""

    def data_digest(self, node_type: str, split_set: int) -> str:
        """Of all that training on this type's nodes reads, whatever the partitions and the order of types and relations."""
        parts = sorted(f"{name} {row.measured.graph_digest}\n" for name, row in self.rows.items())
        of_type = self.types[node_type].measured.data_digest(split_set)
        return hashlib.sha256("".join([*parts, of_type]).encode()).hexdigest()[: len(of_type)]

    def part(self, name: str) -> Manifest:
        """The manifest of a type of nodes, or of a relation, as of a graph of its own. Raises ConfigError for a name of neither."""
        row = self.rows.get(name)
        if row is None:
            raise ConfigError(
                f"{self.name}: expected a type or a relation, one of {', '.join(self.rows)}, got {name!r}"
            )
        files = {short: self.files[stored] for short, stored in self._files_of(name).items()}
        return replace(row, files=files, provenance=self.provenance, snapshot=self.snapshot, created=self.created)

    @property
    def rows(self) -> dict[str, Manifest]:
        """By the names of the parts."""
        return {**self.types, **{str(relation): row for relation, row in self.relations.items()}}

    def _files_of(self, name: str) -> dict[str, str]:
        """The names of a part's files as those of a plain graph → as they are stored."""
        *_, nodes = name.split("--")
        names = {}
        for partition in range(self.num_partitions):
            for short in expected_files(self.rows[name], partition):
                folder, file = short.split("/")
                names[short] = f"{folder}/{nodes if file in _OF_NODES else name}/{file}"
        return names

    def to_json(self) -> str:
        statistics = {name: asdict(row.measured) for name, row in self.rows.items()}
        fields = {
            "name": self.name,
            "node_types": [row.node_row(name) for name, row in self.types.items()],
            "edge_types": [
                row.edge_row({"source": each.source, "relation": each.name, "target": each.target})
                for each, row in self.relations.items()
            ],
            "encodings": {},
            "statistics": statistics,
        }
        requires = {name for row in self.rows.values() for name in row.requires}
        return manifest_json(ONE_GRAPH, self, fields, [TYPES, *sorted(requires)])


def parse_typed_manifest(text: str, where: str) -> TypedManifest:
    """TypedManifest from its JSON text; `where` names the file in errors.

    Raises FormatError for anything that is not exactly a manifest of one typed graph.
    """
    reader = ManifestReader(text, where, ONE_GRAPH, _FILE_NAME, typed=True)
    statistics = reader.optional_inner("statistics")
    if statistics is None:
        reader.fail("statistics", "those of each type and relation", None)
    types: dict[str, Manifest] = {}
    for row in reader.inners("node_types"):
        name = row.text("name")
        if not re.fullmatch(_NAME, name):
            row.fail("name", "a name of the format", name)
        if name in types:
            row.fail("name", "each type once", name)
        types[name] = Manifest(
            name=name, num_edges=0, **node_fields(row), part=GraphPart(name, None), statistics=statistics.inner(name)
        )
    relations: dict[Relation, Manifest] = {}
    for row in reader.inners("edge_types"):
        relation = Relation(row.text("source"), row.text("relation"), row.text("target"))
        if not re.fullmatch(_NAME, relation.name):
            row.fail("relation", "a name of the format", relation.name)
        if relation in relations:
            row.fail("relation", "each relation once", relation)
        for key, name in (("source", relation.source), ("target", relation.target)):
            if name not in types:
                row.fail(key, f"one of the types {', '.join(types)}", name)
        relations[relation] = replace(
            types[relation.target],
            name=str(relation),
            **edge_fields(row),
            part=GraphPart(str(relation), types[relation.source].num_nodes),
            statistics=statistics.inner(str(relation)),
        )
    if not types:
        reader.fail("node_types", "at least one type", [])
    for one, other in pairwise(types.values()):
        if one.num_partitions != other.num_partitions:
            reader.fail("node_types", f"{one.num_partitions} partitions of each type", other.num_partitions)
    manifest = TypedManifest(
        name=reader.text("name"),
        types=types,
        relations=relations,
        files=reader.files(),
        provenance=reader.texts("provenance"),
        snapshot=reader.snapshot(),
        created=reader.date("created"),
    )
    for name in manifest.rows:
        for stored in manifest._files_of(name).values():
            if stored not in manifest.files:
                reader.fail("files", f"an entry for {stored}", "none")
        check_counts(manifest.part(name), reader)
    reader.check_content_hash(manifest.content_hash)
    return manifest
