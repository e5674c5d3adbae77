"""Builds a batch from rows of nodes and lists of edges: a minibatch for a plain graph, a typed batch for a typed graph."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Router, ask
from graphmill.samplers.access.router import Columns as FetchedColumns
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, TypedNodes
from graphmill.samplers.drawing.pending_batch import PendingBatch
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, NodeRows
from graphmill.samplers.vocabulary.requirements import check_splits, edge_uses, encodings_by_type, type_of_roots
from graphmill.storage.format.manifest import EDGE, NODE
from graphmill.storage.format.source import Relation

Batch = MiniBatch | TypedBatch[np.ndarray]
Columns = Mapping[str, np.ndarray | None]
NodesOf = Mapping[str, tuple[NodeRows, Mapping[str, Any]]]  # For each type: rows of nodes, and additional columns.
# For each relation: indptr, positions of sources, columns.
EdgesOf = Mapping[Relation, tuple[np.ndarray, np.ndarray, Columns]]


def build_batch(
    router: Router | TypedRouter,
    epoch: int,
    batch: int,
    nodes: NodesOf,
    edges: EdgesOf,
    root_index: np.ndarray,
    root_type: str,
    num_hops: int = 0,
    encodings: tuple[str, ...] = (),
    second: tuple[str, np.ndarray | None] = ("", None),
) -> Batch:
    """Builds the batch of these nodes and edges. `root_index`: positions of the roots among the nodes of their type. `second`: a second type, and its roots."""
    if isinstance(router, Router):
        (((rows, columns),), ((indptr, source, of_edges),)) = nodes.values(), edges.values()
        more: dict[str, Any] = {**columns, **of_edges}
        return MiniBatch(
            epoch=epoch,
            index=batch,
            node_id=rows.original_id,
            indptr=indptr,
            indices=source.astype(np.int32, copy=False),
            root_index=root_index,
            feature=rows.feature,
            label=rows.label,
            split=rows.split,
            encoding=rows.encoding,
            encoding_names=encodings,
            **more,
        )
    return TypedBatch(
        epoch=epoch,
        index=batch,
        num_hops=num_hops,
        root_type=root_type,
        root_index=root_index,
        nodes={
            name: TypedNodes(
                rows.original_id, x=rows.feature, y=rows.label, split=rows.split, encoding=rows.encoding, **own
            )
            for name, (rows, own) in nodes.items()
        },
        edges={
            relation: TypedEdges(indptr, source.astype(np.int32, copy=False), **columns)
            for relation, (indptr, source, columns) in edges.items()
        },
        encoding_names=encodings,
        second_type=second[0],
        second_index=second[1],
    )


def edges_among(
    router: Router | TypedRouter, node: Mapping[str, np.ndarray], columns: Mapping[Relation, tuple[EdgeColumn, ...]]
) -> dict[Relation, NeighborLists]:
    """All edges among these distinct nodes, for every relation. Each target node has a list of positions of source nodes. Sends one request per owner."""
    questions = []
    for relation, each in router.edges.items():
        source, target = node[relation.source], node[relation.target]
        if relation.source == relation.target:
            questions.append(each.among_question(target, columns[relation]))
        else:
            ends = np.array([0, len(target)]), source, np.array([0, len(source)])
            questions.append(each.induced_question(target, *ends, columns[relation]))
    return dict(zip(router.edges, ask(questions), strict=True))


class InducedBatches:
    """Builds batches without roots, from given nodes. A batch has all edges among its nodes, in every relation. `options` name the columns."""

    def __init__(self, router: Router | TypedRouter, options: Any) -> None:
        """Raises ConfigError if a column or type that the options name is missing in the graph."""
        self._router, self._encodings = router, options.encodings
        self.root_type = type_of_roots(router, getattr(options, "root_type", None))
        check_splits(router, self.root_type, options.split_set)
        uses = edge_uses(router, edge_columns=options.edge_columns, induced=True)
        self.edge_columns = {relation: use.columns for relation, use in uses.items()}
        encodings = encodings_by_type(router, options.encodings)
        self.columns = {
            name: FetchedColumns.of(each, options.split_set, encodings[name]) for name, each in router.nodes.items()
        }

    def draw(self, epoch: int, batch: int, node: Mapping[str, np.ndarray]) -> PendingBatch:
        """Returns the batch of these nodes. Its rows are not fetched yet."""
        router, is_typed = self._router, isinstance(self._router, TypedRouter)
        edges = {name: edges_of(lists) for name, lists in edges_among(router, node, self.edge_columns).items()}

        def complete(*rows_of: NodeRows) -> Batch:
            hops = [{"hop": np.zeros(len(rows.original_id), np.int16)} if is_typed else {} for rows in rows_of]
            nodes = dict(zip(node, zip(rows_of, hops, strict=True), strict=True))
            no_roots = np.empty(0, np.int64)
            return build_batch(router, epoch, batch, nodes, edges, no_roots, self.root_type, 0, self._encodings)

        wanted = tuple((each, node[name], self.columns[name]) for name, each in router.nodes.items())
        kept = [
            *node.values(),
            *(array for indptr, source, more in edges.values() for array in (indptr, source, *more.values())),
        ]
        return PendingBatch(wanted, complete, sum(array.nbytes for array in kept if array is not None))


def edges_of(lists: NeighborLists) -> tuple[np.ndarray, np.ndarray, Columns]:
    """(indptr, positions of sources, columns) of these lists."""
    return pointers(lists.count), lists.neighbor, {name: getattr(lists, name) for name in EDGE_COLUMNS}


def root_table(batch: Any) -> Any:
    """Returns the node table of the roots' type. For a minibatch, returns the minibatch itself."""
    return batch.roots if isinstance(batch, TypedBatch) else batch


def edge_tables(batch: Any) -> Mapping[Relation, Any]:
    """Returns the edge table of each relation. For a minibatch, returns the minibatch itself."""
    return batch.edges if isinstance(batch, TypedBatch) else {EDGE: batch}


def with_columns(batch: Any, edges: Mapping[Relation, Columns], nodes: Mapping[str, Columns] | None = None) -> Any:
    """The batch with these additional columns of edges and nodes."""
    of_nodes = nodes or {}
    if not isinstance(batch, TypedBatch):
        return replace(batch, **edges[EDGE], **of_nodes.get(NODE, {}))
    return replace(
        batch,
        nodes={name: replace(table, **of_nodes.get(name, {})) for name, table in batch.nodes.items()},
        edges={relation: replace(table, **edges.get(relation, {})) for relation, table in batch.edges.items()},
    )
