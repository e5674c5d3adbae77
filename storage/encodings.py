"""Stored encodings: float32 rows for the nodes of a stored graph, beside its partitions; computed once, then found by name.

    encodings/<name>-<key>.json                            a manifest: the graph, the files and their checksums, eigenvalues
    part-00000/encodings/<name>-<key>-<content>.arrow      the rows of the partition's nodes, one fixed-size list each

`name` says what was computed (`laplacian-16-smallest`, `rwse-20`): samplers ask by it, and it is the same for every graph and
partitioning. `key` hashes it with the graph's content and the version of the algorithm, so rows never meet a graph that they
were not made for; `content` hashes the rows, so that two writers at once do not spoil each other's files. The graph's own
manifest and content hash stay as they are, and older readers do not notice. Files come first, the manifest last, each by rename.
"""

import hashlib
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from storage.arrow_files import array_from_numpy, file_entry, is_local, numpy_column, read_batch, write_batch
from storage.errors import ConfigError, FormatError
from storage.filesystem_errors import one_line_errors
from storage.manifest import FileEntry, ManifestReader, hash_of_files, manifest_json, partition_dir
from storage.publish import is_object_store

if TYPE_CHECKING:
    from storage.graph import StoredGraph

ALGORITHM_VERSION = 1  # part of every key: raise it where the same options give other rows
_KIND = "encoding"
_NAME = re.compile(r"laplacian-([1-9]\d{0,3})-(smallest|both_ends)|rwse-([1-9]\d{0,3})")
_MANIFEST_NAME = re.compile(r"(.+)-([0-9a-f]{12})\.json")
_FILE_NAME = re.compile(r"part-\d{5}/encodings/[A-Za-z0-9._-]{1,128}\.arrow")
_COLUMN = "encoding"


@dataclass(frozen=True)
class EncodingOptions:
    """What is computed."""

    kind: Literal["laplacian", "rwse"] = "laplacian"
    """Eigenvectors of the normalised Laplacian, or return probabilities of random walks."""
    dim: int = 16
    """Eigenvectors, or steps of the walk."""
    which: Literal["smallest", "both_ends"] = "smallest"
    """Eigenvectors: the `dim` smallest, or half of them from each end of the spectrum."""

    def __post_init__(self) -> None:
        if self.kind not in ("laplacian", "rwse"):
            raise ConfigError(f"kind: expected laplacian or rwse, got {self.kind!r}")
        if not 1 <= self.dim <= 9999:
            raise ConfigError(f"dim: expected 1 to 9999, got {self.dim}; set --dim")
        if self.which not in ("smallest", "both_ends"):
            raise ConfigError(f"which: expected smallest or both_ends, got {self.which!r}; set --which")

    @property
    def name(self) -> str:
        return f"laplacian-{self.dim}-{self.which}" if self.kind == "laplacian" else f"rwse-{self.dim}"


def parse_encoding_name(name: str) -> EncodingOptions:
    """The options of this name. Raises ConfigError where it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"encodings: expected names such as laplacian-16-smallest, laplacian-16-both_ends or rwse-20, got {name!r}"
        )
    dim, which, steps = match.groups()
    if steps:
        return EncodingOptions("rwse", int(steps))
    return EncodingOptions("laplacian", int(dim), "smallest" if which == "smallest" else "both_ends")


def encoding_dim(name: str) -> int:
    """Columns of the encoding of this name. Raises ConfigError where it is none."""
    return parse_encoding_name(name).dim


def encoding_columns(names: tuple[str, ...]) -> int:
    """Columns of these encodings side by side."""
    return sum(encoding_dim(name) for name in names)


def split_encodings(encoding: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The columns of each name, as views of an array or tensor [n, encoding_columns(names)]."""
    columns, start = {}, 0
    for name in names:
        columns[name] = encoding[:, start : start + encoding_dim(name)]
        start += encoding_dim(name)
    return columns


def check_encoding_names(names: tuple[str, ...]) -> None:
    """Raises ConfigError where these are not distinct names of encodings."""
    if len(set(names)) < len(names):
        raise ConfigError(f"encodings: expected each name once, got {names}")
    for name in names:
        parse_encoding_name(name)


@dataclass(frozen=True)
class EncodingManifest:
    """One stored encoding of one stored graph."""

    name: str
    graph_hash: str  # content hash of the graph's manifest
    num_nodes: int
    files: Mapping[str, FileEntry] = field(default_factory=dict)  # one per partition
    provenance: Mapping[str, str] = field(default_factory=dict)  # of laplacian: its eigenvalues, separated by spaces

    @property
    def dim(self) -> int:
        return encoding_dim(self.name)

    def file(self, partition: int) -> str:
        """The partition's file, relative to the graph."""
        (name,) = (name for name in self.files if name.startswith(f"{partition_dir(partition)}/"))
        return name

    def to_json(self) -> str:
        fields = {"name": self.name, "graph_hash": self.graph_hash, "num_nodes": self.num_nodes}
        return manifest_json(_KIND, fields, self.files, self.provenance)


def encoding_key(graph: "StoredGraph", name: str) -> str:
    """12 hex digits for this encoding of this graph."""
    what = f"{graph.manifest.content_hash} {name} {ALGORITHM_VERSION}"
    return hashlib.sha256(what.encode()).hexdigest()[:12]


def find_encoding(graph: "StoredGraph", name: str) -> EncodingManifest | None:
    """The stored encoding of this name, or None. Raises FormatError where its manifest is damaged, ConfigError for no name."""
    parse_encoding_name(name)
    where = _manifest_path(graph, name)
    with one_line_errors(where, "read this file"):
        try:
            content = graph.filesystem.cat_file(where)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{where}: expected UTF-8 JSON, found other bytes; the file is corrupt") from None
    return _parse(text, where, graph, name)


def _manifest_path(graph: "StoredGraph", name: str) -> str:
    return f"{graph.path}/encodings/{name}-{encoding_key(graph, name)}.json"


def _parse(text: str, where: str, graph: "StoredGraph", name: str) -> EncodingManifest:
    reader = ManifestReader(text, where, _KIND, _FILE_NAME)
    manifest = EncodingManifest(
        name=reader.text("name"),
        graph_hash=reader.text("graph_hash"),
        num_nodes=reader.count("num_nodes"),
        files=reader.files(),
        provenance=reader.texts("provenance"),
    )
    expected = (name, graph.manifest.content_hash, graph.manifest.num_nodes)
    for field_name, value in zip(("name", "graph_hash", "num_nodes"), expected, strict=True):
        if getattr(manifest, field_name) != value:
            reader.fail(field_name, str(value), getattr(manifest, field_name))
    folders = sorted(file.split("/")[0] for file in manifest.files)
    if folders != [partition_dir(index) for index in range(graph.manifest.num_partitions)]:
        reader.fail("files", "one file for each partition", folders)
    reader.check_content_hash(hash_of_files(manifest.files))
    return manifest


def encoding_files(graph: "StoredGraph") -> dict[str, FileEntry]:
    """The files of all encodings that are stored with the graph, relative to it."""
    found = [find_encoding(graph, name) for name in list_encodings(graph)]
    return {name: entry for manifest in found if manifest is not None for name, entry in manifest.files.items()}


def list_encodings(graph: "StoredGraph") -> tuple[str, ...]:
    """Names of the encodings that are stored for this graph, ascending; one listing of its directory `encodings`."""
    folder = f"{graph.path}/encodings"
    with one_line_errors(folder, "list this directory"):
        try:
            graph.filesystem.invalidate_cache(folder)
            found = graph.filesystem.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return ()
    names = []
    for path in found:
        match = _MANIFEST_NAME.fullmatch(str(path).rstrip("/").rsplit("/", 1)[-1])
        if match and _NAME.fullmatch(match[1]) and match[2] == encoding_key(graph, match[1]):
            names.append(match[1])
    return tuple(sorted(names))


def read_encoding(
    graph: "StoredGraph", manifest: EncodingManifest, partition: int, *, verify: bool = False
) -> np.ndarray:
    """float32 [num_owned, dim]: the rows of a partition's nodes, a read-only view of the mapped file.

    Raises FormatError where the file is missing, truncated, or does not fit; with `verify`, where its checksum does not match.
    """
    relative = manifest.file(partition)
    path = f"{graph.path}/{relative}"
    batch = read_batch(graph.filesystem, path, manifest.files[relative], verify=verify)
    start, stop = graph.offsets[partition : partition + 2]
    if batch.num_rows != stop - start:
        raise FormatError(f"{path}: expected {stop - start} rows, found {batch.num_rows}")
    return numpy_column(batch, _COLUMN, "float32", path, manifest.dim)


class StoredEncodings(Mapping[str, np.ndarray]):
    """The encodings of one partition's nodes by name, float32 [num_owned, dim] each; mapped when first asked for.

    KeyError for one that is not stored (yet: one that is stored later is found), FormatError for a damaged one. Thread-safe.
    """

    def __init__(self, graph: "StoredGraph", partition: int, *, verify: bool = False) -> None:
        self._graph, self._partition, self._verify = graph, partition, verify
        self._mapped: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        rows = self._mapped.get(name)
        if rows is None:
            manifest = find_encoding(self._graph, name)
            if manifest is None:
                raise KeyError(name)
            rows = self._mapped[name] = read_encoding(self._graph, manifest, self._partition, verify=self._verify)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(list_encodings(self._graph))

    def __len__(self) -> int:
        return len(list_encodings(self._graph))


def store_encoding(
    graph: "StoredGraph", name: str, rows: np.ndarray, provenance: Mapping[str, str] | None = None
) -> EncodingManifest:
    """Writes float32 rows [num_nodes, dim] in the order of node ids as this encoding, in place of one that may be there.

    Raises ConfigError where the shape does not fit, FormatError where writing fails; a reader finds all files or no manifest.
    """
    expected = (graph.manifest.num_nodes, encoding_dim(name))
    if rows.shape != expected or rows.dtype != np.float32:
        raise ConfigError(f"{name}: expected float32 rows of shape {expected}, got {rows.dtype} {rows.shape}")
    rows = np.ascontiguousarray(rows)
    content = hashlib.sha256(rows.tobytes()).hexdigest()[:8]
    stem = f"encodings/{name}-{encoding_key(graph, name)}"
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, "rows.arrow")
        for index in range(graph.manifest.num_partitions):
            start, stop = graph.offsets[index : index + 2]
            write_batch(local, {_COLUMN: array_from_numpy(rows[start:stop])})
            relative = f"{partition_dir(index)}/{stem}-{content}.arrow"
            files[relative] = file_entry(local)
            _put(graph, local, relative)
        manifest = EncodingManifest(name, graph.manifest.content_hash, len(rows), files, dict(provenance or {}))
        text = Path(folder, "manifest.json")
        text.write_text(manifest.to_json())
        _put(graph, text, f"{stem}.json")
    return manifest


def _put(graph: "StoredGraph", local: Path, relative: str) -> None:
    """Copies a file to its place below the graph, where it appears whole."""
    path, filesystem = f"{graph.path}/{relative}", graph.filesystem
    with one_line_errors(path, "write this file"):
        if not is_local(filesystem):
            if not is_object_store(filesystem):
                filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            filesystem.put_file(str(local), path)  # an object appears when it is complete
            return
        target = Path(path)
        target.parent.mkdir(exist_ok=True)
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            beside.write_bytes(local.read_bytes())
            beside.rename(target)
        finally:
            beside.unlink(missing_ok=True)
