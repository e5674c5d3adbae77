"""Stores encodings. An encoding has a float32 row for each node of a stored graph. It is computed once and then read by name.

    data/<snapshot>/part-00000/encodings/<name>.arrow    the rows of the partition's nodes, one fixed-size list each; in a typed graph
                                                         part-00000/<type>/encodings/<name>.arrow, for every type

Storing an encoding publishes a new snapshot with the files of the previous snapshot and the encoding's files. A name such as `laplacian-16-smallest` or
`rwse-20` has the same meaning for every graph and partitioning. If a graph is ingested again, it keeps its encodings if its content is the same, and loses
them otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import fsspec
import numpy as np

from graphmill.storage.format.arrow_files import numpy_column, read_batch
from graphmill.storage.format.encoding_names import _NAME, encoding_dim, parse_encoding_name
from graphmill.storage.format.manifest import EncodingEntry, Manifest

# version of every stored encoding; raise it if a change of the code changes the rows for the same options
ALGORITHM_VERSION = 1
COLUMN = "encoding"


class StoredFiles(Protocol):
    """The manifest and the files of a graph or of a part of a graph (`graphmill.storage.graph.GraphSnapshot`)."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem: ...

    @property
    def path(self) -> str: ...

    @property
    def by_range(self) -> bool: ...


def find_encoding(graph: StoredFiles, name: str) -> EncodingEntry | None:
    """Returns the stored encoding with this name; None if it is not stored in the current version. Raises ConfigError if no encoding can have this name."""
    parse_encoding_name(name)
    entry = graph.manifest.encodings.get(name)
    return entry if entry is not None and entry.version == ALGORITHM_VERSION else None


def stored_encodings(graph: StoredFiles) -> dict[str, EncodingEntry]:
    """Returns the stored encodings of the current version, by name, in ascending order of names."""
    named = {name: find_encoding(graph, name) for name in sorted(graph.manifest.encodings) if _NAME.fullmatch(name)}
    return {name: entry for name, entry in named.items() if entry is not None}


def read_encoding(
    graph: StoredFiles, name: str, entry: EncodingEntry, partition: int, *, verify: bool = False
) -> np.ndarray:
    """Returns the rows of a partition's nodes, float32 [num_owned, dim], as a read-only view of the mapped file.

    Raises FormatError if the file is missing or truncated, or does not match the graph. With `verify`, also raises it for a wrong checksum.
    """
    (file,) = entry.files_of(partition)
    path = f"{graph.path}/{file.path}"
    start, stop = graph.manifest.partition_offsets[partition : partition + 2]
    batch = read_batch(graph.filesystem, path, file, verify=verify, num_rows=stop - start)
    return numpy_column(batch, COLUMN, "float32", path, encoding_dim(name))


class StoredEncodings(Mapping[str, np.ndarray]):
    """Maps the name of an encoding to the rows of one partition's nodes, float32 [num_owned, dim]. A file is mapped at first use.

    Raises KeyError for an encoding that the graph's snapshot does not have, and FormatError for a damaged file. Thread-safe.
    """

    def __init__(self, graph: StoredFiles, partition: int, *, verify: bool = False) -> None:
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
