"""Columns of all nodes that an owner needs for some draws: permanent ids (LABOR) and in-degrees (draws by degree).

Read once from the graph's files, only where a request needs it: 8 and 4 bytes per node of the graph, and of remote files only
nodes.arrow, or topology.arrow, of every partition.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from graphmill.storage.format.arrow_files import numpy_column, read_batch
from graphmill.storage.format.manifest import partition_dir
from graphmill.storage.graph import StoredGraph


class NodeTables:
    """Columns over all nodes of a stored graph, by node id. Safe to share between threads: at worst a column is read twice."""

    def __init__(self, graph: StoredGraph) -> None:
        self._graph = graph

    @cached_property
    def permanent_id(self) -> np.ndarray:
        """int64 [num_nodes]"""
        return np.concatenate(
            [numpy_column(batch, "original_id", "int64", path) for batch, path in self._files("nodes")]
        )

    @cached_property
    def in_degree(self) -> np.ndarray:
        """int32 [num_nodes]"""
        degrees = [np.empty(0, np.int32)]
        for batch, _ in self._files("topology"):
            if batch.num_rows:
                offsets = batch.column(batch.schema.get_field_index("neighbors")).offsets.to_numpy()
                degrees.append(np.diff(offsets).astype(np.int32))
        return np.concatenate(degrees)

    def _files(self, name: str) -> Iterator[tuple[pa.RecordBatch, str]]:
        graph = self._graph.whole()
        for partition in range(graph.manifest.num_partitions):
            entry = graph.manifest.files[f"{partition_dir(partition)}/{name}.arrow"]
            path = f"{graph.path}/{entry.path}"
            yield read_batch(graph.filesystem, path, entry, verify=False), path
