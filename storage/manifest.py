"""The manifest of a stored graph: what a directory of Arrow partitions holds, and how to know that it is whole.

It is the last file written and the first one read. Parsing trusts nothing: every field's type and range is checked, and file
names must be the ones of the format, so a manifest cannot point outside its directory.
"""

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from storage.errors import FormatError

FORMAT = "graphmill-graph"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
ONE_GRAPH = "one-graph"

_FILE_NAME = re.compile(
    r"part-\d{5}/(topology|out_topology|nodes|features|edges)\.arrow|part-\d{5}/encodings/[A-Za-z0-9._-]{1,128}\.arrow"
)
_MAX_WIDTH = 2**24  # columns of one row; Arrow's own bound is 2^31 - 1
_FLOAT_DTYPES = ("float16", "float32")
_LABEL_KINDS = ("class", "value")


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 of one file."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Counts, schema, partition offsets, files with checksums, and where the graph came from."""

    name: str
    num_nodes: int
    num_edges: int
    partition_offsets: tuple[int, ...]  # partition p owns the ids [offsets[p], offsets[p + 1])
    feature_dim: int = 0
    feature_dtype: str | None = None
    edge_feature_dim: int = 0
    has_edge_id: bool = False
    has_edge_weight: bool = False
    symmetric: bool = False  # every edge's reverse is there too: lists of in-edges serve as lists of out-edges
    has_out_edges: bool = False  # lists of out-edges are stored beside those of in-edges
    label_kind: str | None = None  # "class", "value" or None
    num_classes: int | None = None
    num_split_sets: int = 0
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_partitions(self) -> int:
        return len(self.partition_offsets) - 1

    @property
    def index_dtype(self) -> str:
        """dtype of stored node ids: int32 while they fit."""
        return "int32" if self.num_nodes < 2**31 else "int64"

    @property
    def content_hash(self) -> str:
        """SHA-256 over the names and checksums of all files: equal if and only if the stored bytes are equal."""
        return hash_of_files(self.files)

    def to_json(self) -> str:
        return manifest_json(ONE_GRAPH, asdict(self), self.files, self.provenance)


def hash_of_files(files: Mapping[str, FileEntry]) -> str:
    lines = "".join(f"{name} {entry.sha256}\n" for name, entry in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def manifest_json(
    kind: str, fields: dict[str, Any], files: Mapping[str, FileEntry], provenance: Mapping[str, str]
) -> str:
    """The text of a manifest of this kind."""
    body = fields | {
        "files": {name: asdict(entry) for name, entry in sorted(files.items())},
        "provenance": dict(provenance),
    }
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "content_hash": hash_of_files(files),
    }
    return json.dumps(header | body, indent=1) + "\n"


def partition_dir(partition: int) -> str:
    return f"part-{partition:05d}"


def parse_manifest(text: str, where: str) -> Manifest:
    """Manifest from its JSON text; `where` names the file in errors.

    Raises FormatError for anything that is not exactly a version-1 manifest of one graph.
    """
    reader = ManifestReader(text, where, ONE_GRAPH, _FILE_NAME)
    manifest = Manifest(
        name=reader.text("name"),
        num_nodes=reader.count("num_nodes"),
        num_edges=reader.count("num_edges"),
        partition_offsets=reader.offsets(),
        feature_dim=reader.width("feature_dim"),
        feature_dtype=reader.choice("feature_dtype", _FLOAT_DTYPES),
        edge_feature_dim=reader.width("edge_feature_dim"),
        has_edge_id=reader.flag("has_edge_id"),
        has_edge_weight=reader.flag("has_edge_weight"),
        symmetric=reader.flag("symmetric"),
        has_out_edges=reader.flag("has_out_edges"),
        label_kind=reader.choice("label_kind", _LABEL_KINDS),
        num_classes=reader.optional_count("num_classes"),
        num_split_sets=reader.width("num_split_sets"),
        files=reader.files(),
        provenance=reader.texts("provenance"),
    )
    if (manifest.feature_dim > 0) != (manifest.feature_dtype is not None):
        reader.fail("feature_dtype", "a dtype exactly where feature_dim is positive", manifest.feature_dtype)
    if (manifest.label_kind == "class") != (manifest.num_classes is not None):
        reader.fail("num_classes", "a count exactly where label_kind is 'class'", manifest.num_classes)
    for partition in range(manifest.num_partitions):
        for file in expected_files(manifest, partition):
            if file not in manifest.files:
                reader.fail("files", f"an entry for {file}", "none")
    reader.check_content_hash(manifest.content_hash)
    return manifest


def expected_files(manifest: Manifest, partition: int) -> list[str]:
    """Names of the files that this partition must have."""
    names = ["topology", "nodes"]
    if manifest.has_out_edges:
        names.append("out_topology")
    if manifest.feature_dim:
        names.append("features")
    if manifest.edge_feature_dim:
        names.append("edges")
    return [f"{partition_dir(partition)}/{name}.arrow" for name in names]


class ManifestReader:
    """Typed access to the fields of a manifest of one kind; every refusal names the file and the field."""

    def __init__(self, text: str, where: str, kind: str, file_name: re.Pattern[str]) -> None:
        """Reads the header. Raises FormatError for anything that is not a version-1 manifest of this kind."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: broken text, or a number of thousands of digits
            raise FormatError(f"{where}: expected JSON, got broken text ({error}); ingest the graph again") from None
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            found = body.get("format") if isinstance(body, dict) else type(body).__name__
            raise FormatError(f"{where}: expected format {FORMAT!r}, got {found!r}; this is not a Graphmill graph")
        version = body.get("format_version")
        if version != FORMAT_VERSION or isinstance(version, bool):
            raise FormatError(
                f"{where}: expected format_version {FORMAT_VERSION}, got {version!r}; "
                "read it with the Graphmill that wrote it, or ingest the graph again"
            )
        if body.get("kind") != kind:
            raise FormatError(f"{where}: expected kind {kind!r}, got {body.get('kind')!r}")
        self._body: dict[str, Any] = body
        self._where = where
        self._file_name = file_name

    def check_content_hash(self, expected: str) -> None:
        if self._body.get("content_hash") != expected:
            self.fail("content_hash", expected, self._body.get("content_hash"))

    def fail(self, key: str, expected: str, got: object) -> None:
        raise FormatError(f"{self._where}: field {key!r}: expected {expected}, got {str(got)[:80]!r}")

    def count(self, key: str) -> int:
        value = self._body.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
            self.fail(key, "a count (integer >= 0)", value)
        assert isinstance(value, int)
        return value

    def width(self, key: str) -> int:
        value = self.count(key)
        if value > _MAX_WIDTH:
            self.fail(key, f"a width of at most {_MAX_WIDTH}", value)
        return value

    def optional_count(self, key: str) -> int | None:
        return None if self._body.get(key) is None else self.count(key)

    def flag(self, key: str) -> bool:
        value = self._body.get(key)
        if not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return bool(value)

    def text(self, key: str) -> str:
        value = self._body.get(key)
        if not isinstance(value, str):
            self.fail(key, "a string", value)
        return str(value)

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        value = self._body.get(key)
        if value is not None and value not in choices:
            self.fail(key, f"null or one of {choices}", value)
        return value

    def texts(self, key: str) -> dict[str, str]:
        value = self._body.get(key)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            self.fail(key, "an object of strings", value)
        assert isinstance(value, dict)
        return value

    def names(self, key: str) -> tuple[str, ...]:
        value = self._body.get(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or len(set(value)) < len(value):
            self.fail(key, "a list of distinct strings", value)
        assert isinstance(value, list)
        return tuple(value)

    def widths(self, key: str) -> tuple[int, ...]:
        value = self._body.get(key)
        if not isinstance(value, list) or not all(type(v) is int and 0 < v <= _MAX_WIDTH for v in value):
            self.fail(key, f"a list of integers in [1, {_MAX_WIDTH}]", value)
        assert isinstance(value, list)
        return tuple(value)

    def inner(self, key: str) -> "ManifestReader":
        """A reader of the object that is this field's value."""
        value = self._body.get(key)
        if not isinstance(value, dict):
            self.fail(key, "an object", value)
        inner = copy.copy(self)
        inner._body, inner._where = value or {}, f"{self._where}: {key}"
        return inner

    def offsets(self, key: str = "partition_offsets", total: str = "num_nodes") -> tuple[int, ...]:
        """Ascending integers from 0 to the field `total`."""
        value = self._body.get(key)
        num_rows = self.count(total)
        if not isinstance(value, list) or len(value) < 2 or not all(type(v) is int for v in value):
            self.fail(key, "a list of at least 2 integers", value)
        assert isinstance(value, list)
        ascending = all(a <= b for a, b in pairwise(value))
        if value[0] != 0 or value[-1] != num_rows or not ascending:
            self.fail(key, f"ascending integers from 0 to {total} = {num_rows}", value)
        return tuple(value)

    def files(self) -> dict[str, FileEntry]:
        value = self._body.get("files")
        if not isinstance(value, dict):
            self.fail("files", "an object", value)
        assert isinstance(value, dict)
        entries = {}
        for name, entry in value.items():
            if not self._file_name.fullmatch(name):
                self.fail("files", "only file names of the format (part-00000/topology.arrow …)", name)
            num_bytes = entry.get("num_bytes") if isinstance(entry, dict) else None
            sha256 = entry.get("sha256") if isinstance(entry, dict) else None
            if not isinstance(num_bytes, int) or num_bytes < 0 or not re.fullmatch("[0-9a-f]{64}", str(sha256)):
                self.fail("files", f"num_bytes and sha256 for {name}", entry)
            entries[name] = FileEntry(num_bytes=int(num_bytes or 0), sha256=str(sha256))
        return entries
