"""Stores encodings: float32 rows for the nodes of a stored graph. They are computed once and then read by name.

    data/<snapshot>/part-00000/encodings/<name>.arrow    the rows of the partition's nodes, one fixed-size list each; in a typed graph
                                                         part-00000/<type>/encodings/<name>.arrow, for every type

Storing an encoding publishes a new snapshot with the files of the previous snapshot and the encoding's files. A name (`laplacian-16-smallest`, `rwse-20`)
has the same meaning for every graph and partitioning. If a graph is ingested again with the same content, it keeps its encodings; with other content, it
loses them.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import fsspec
import numpy as np

from graphmill.storage.format.arrow_files import numpy_column, read_batch
from graphmill.storage.format.encoding_names import _NAME, encoding_dim, parse_encoding_name
from graphmill.storage.format.manifest import EncodingEntry, Manifest

# version of every stored encoding: raise it if a change of the code gives other rows for the same options
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
    """Returns the stored encoding of this name; None if none is stored in this version. Raises ConfigError if the name is not the name of an encoding."""
    parse_encoding_name(name)
    entry = graph.manifest.encodings.get(name)
    return entry if entry is not None and entry.version == ALGORITHM_VERSION else None


def stored_encodings(graph: StoredFiles) -> dict[str, EncodingEntry]:
    """Returns the stored encodings of this version, by name, in ascending order of names."""
    named = {name: find_encoding(graph, name) for name in sorted(graph.manifest.encodings) if _NAME.fullmatch(name)}
    return {name: entry for name, entry in named.items() if entry is not None}


def read_encoding(
    graph: StoredFiles, name: str, entry: EncodingEntry, partition: int, *, verify: bool = False
) -> np.ndarray:
    """float32 [num_owned, dim]: the rows of the nodes of a partition, as a read-only view of the mapped file.

    Raises FormatError if the file is missing, truncated, or does not match the graph; with `verify`, also if its checksum is wrong.
    """
    (file,) = entry.files_of(partition)
    path = f"{graph.path}/{file.path}"
    start, stop = graph.manifest.partition_offsets[partition : partition + 2]
    batch = read_batch(graph.filesystem, path, file, verify=verify, num_rows=stop - start)
    return numpy_column(batch, COLUMN, "float32", path, encoding_dim(name))


class StoredEncodings(Mapping[str, np.ndarray]):
    """The encodings of one partition's nodes by name, float32 [num_owned, dim] each, mapped at first use.

    Raises KeyError for an encoding that the graph's snapshot does not have, FormatError for a damaged file. Thread-safe.
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
