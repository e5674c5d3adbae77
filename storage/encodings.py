"""Stored encodings: float32 rows for the nodes of a stored graph, computed once, then found by name.

    data/<snapshot>/part-00000/encodings/<name>.arrow    the rows of the partition's nodes, one fixed-size list each

Storing one publishes a further snapshot: the files of the one before, and the encoding's. A name (`laplacian-16-smallest`, `rwse-20`) means
the same for every graph and partitioning. A graph ingested again with the same content keeps its encodings; with other content it has none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from storage.arrow_files import array_from_numpy, numpy_column, read_batch, write_batch
from storage.encoding_names import _NAME, encoding_dim, parse_encoding_name
from storage.errors import ConfigError, ConflictError, FormatError
from storage.filesystem_errors import one_line_errors
from storage.manifest import EncodingEntry, FileEntry, parse_manifest, partition_dir
from storage.snapshot_writer import write_snapshot
from storage.snapshots import read_manifest

if TYPE_CHECKING:
    from storage.graph import StoredGraph

ALGORITHM_VERSION = 1  # of every stored encoding: raise it where the same options give other rows
_COLUMN = "encoding"
_TRIES = 10  # other writers may publish while the rows are written


def find_encoding(graph: "StoredGraph", name: str) -> EncodingEntry | None:
    """The stored encoding of this name, or None where there is none, or an older version's. ConfigError for no name."""
    parse_encoding_name(name)
    entry = graph.manifest.encodings.get(name)
    return entry if entry is not None and entry.version == ALGORITHM_VERSION else None


def stored_encodings(graph: "StoredGraph") -> dict[str, EncodingEntry]:
    """The encodings that are stored for this graph, by name, ascending; those of an older version are none."""
    named = {name: find_encoding(graph, name) for name in sorted(graph.manifest.encodings) if _NAME.fullmatch(name)}
    return {name: entry for name, entry in named.items() if entry is not None}


def encoding_files(graph: "StoredGraph") -> list[FileEntry]:
    """The files of all encodings that are stored with the graph."""
    return [file for entry in stored_encodings(graph).values() for file in entry.files.values()]


def read_encoding(
    graph: "StoredGraph", name: str, entry: EncodingEntry, partition: int, *, verify: bool = False
) -> np.ndarray:
    """float32 [num_owned, dim]: the rows of a partition's nodes, a read-only view of the mapped file.

    Raises FormatError where the file is missing, truncated, or does not fit; with `verify`, where its checksum does not match.
    """
    file = entry.file(partition)
    path = f"{graph.path}/{file.path}"
    batch = read_batch(graph.filesystem, path, file, verify=verify)
    start, stop = graph.offsets[partition : partition + 2]
    if batch.num_rows != stop - start:
        raise FormatError(f"{path}: expected {stop - start} rows, found {batch.num_rows}")
    return numpy_column(batch, _COLUMN, "float32", path, encoding_dim(name))


class StoredEncodings(Mapping[str, np.ndarray]):
    """The encodings of one partition's nodes by name, float32 [num_owned, dim] each; mapped when first asked for.

    KeyError for one that the graph's snapshot does not have, FormatError for a damaged one. Thread-safe.
    """

    def __init__(self, graph: "StoredGraph", partition: int, *, verify: bool = False) -> None:
        self._graph, self._partition, self._verify = graph, partition, verify
        self._mapped: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        rows = self._mapped.get(name)
        if rows is None:
            entry = find_encoding(self._graph, name)
            if entry is None:
                raise KeyError(name)
            rows = self._mapped[name] = read_encoding(self._graph, name, entry, self._partition, verify=self._verify)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(stored_encodings(self._graph))

    def __len__(self) -> int:
        return len(stored_encodings(self._graph))


def store_encoding(
    graph: "StoredGraph", name: str, rows: np.ndarray, provenance: Mapping[str, str] | None = None
) -> "StoredGraph":
    """Publishes a snapshot that has float32 rows [num_nodes, dim], in the order of node ids, as this encoding; returns that graph.

    Raises ConfigError where the shape does not fit, ConflictError where the newest snapshot is another graph by now, FormatError where
    writing fails. Two encodings that are stored at once are both kept.
    """
    expected = (graph.manifest.num_nodes, encoding_dim(name))
    if rows.shape != expected or rows.dtype != np.float32:
        raise ConfigError(f"{name}: expected float32 rows of shape {expected}, got {rows.dtype} {rows.shape}")
    rows = np.ascontiguousarray(rows)
    with write_snapshot(graph.url, overwrite=True) as writer:
        for index in range(graph.manifest.num_partitions):
            start, stop = graph.offsets[index : index + 2]
            relative = f"{partition_dir(index)}/encodings/{name}.arrow"
            with one_line_errors(str(writer.files / relative), "write this file"):
                (writer.files / relative).parent.mkdir(parents=True)
                write_batch(writer.files / relative, {_COLUMN: array_from_numpy(rows[start:stop])})
            writer.add(relative)
        entry = EncodingEntry(ALGORITHM_VERSION, writer.entries(), dict(provenance or {}))
        for _ in range(_TRIES):
            writer.rebase()
            newest = parse_manifest(*read_manifest(graph.filesystem, graph.path, graph.url, None, ""))
            if newest.content_hash != graph.manifest.content_hash:
                raise ConflictError(
                    f"{graph.url}: expected the graph that was encoded (content {graph.manifest.content_hash[:12]}) as its newest "
                    f"snapshot, found another ({newest.content_hash[:12]}); encode that one"
                )
            encodings = {**newest.encodings, name: entry}
            try:
                return replace(graph, manifest=writer.commit(replace(newest, encodings=encodings)))
            except ConflictError:
                continue
    raise ConflictError(f"{graph.url}: other writers published {_TRIES} snapshots while {name} was to be; run again")
