"""Two columns over all nodes of a graph. An owner needs permanent ids for LABOR draws, and in-degrees for draws by degree.

The neighbors in a relation are nodes of its source type. Their in-degrees count the edges of all relations. Each column is read once, when a request first
needs it, from nodes.arrow and topology.arrow of every partition. Memory: 8 bytes per node for permanent ids, 4 bytes for in-degrees.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from graphmill.storage.format.arrow_files import array_view, numpy_column, read_batch
from graphmill.storage.format.manifest import partition_dir
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph


class TypedTables(Protocol):
    """A stored typed graph. Each type and relation opens as a plain graph (`graphmill.storage.graph.TypedGraph`)."""

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def relations(self) -> Sequence[Relation]: ...

    def nodes(self, node_type: str) -> StoredGraph: ...

    def relation(self, relation: Relation) -> StoredGraph: ...


class NodeTables:
    """Columns over all nodes of a stored graph, or of one type, by node id. Several threads may use them; in the worst case a column is read twice.

    `relations`: for a type of a typed graph, the relations whose target is this type.
    """

    def __init__(self, graph: StoredGraph, relations: Sequence[StoredGraph] | None = None) -> None:
        self._graph, self._relations = graph, [graph] if relations is None else relations
        # A single partition is the whole graph and has these columns itself.
        self.are_of_one_relation = relations is None

    @cached_property
    def permanent_id(self) -> np.ndarray:
        """int64 [num_nodes]: the permanent id of each node."""
        return np.concatenate(
            [numpy_column(batch, "original_id", "int64", path) for batch, path in _files(self._graph, "nodes")]
        )

    @cached_property
    def in_degree(self) -> np.ndarray:
        """int32 [num_nodes]: the in-degree of each node."""
        total = np.zeros(self._graph.manifest.num_nodes, np.int32)
        for relation in self._relations:
            degrees = [np.empty(0, np.int32)]
            for batch, _ in _files(relation, "topology"):
                if batch.num_rows:
                    offsets = array_view(batch.column(batch.schema.get_field_index("neighbors")).offsets)
                    degrees.append(np.diff(offsets).astype(np.int32))
            total += np.concatenate(degrees)
        return total


def tables_of_relations(graph: TypedTables) -> dict[Relation, NodeTables]:
    """For each relation, the tables of its neighbors. Relations with the same source type share tables."""
    tables = {
        name: NodeTables(graph.nodes(name), [graph.relation(each) for each in graph.relations if each.target == name])
        for name in graph.node_types
    }
    return {relation: tables[relation.source] for relation in graph.relations}


def _files(graph: StoredGraph, name: str) -> Iterator[tuple[pa.RecordBatch, str]]:
    whole = graph.whole()
    for partition in range(whole.manifest.num_partitions):
        entry = whole.manifest.files[f"{partition_dir(partition)}/{name}.arrow"]
        path = f"{whole.path}/{entry.path}"
        yield read_batch(whole.filesystem, path, entry, verify=False), path
