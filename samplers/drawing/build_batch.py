"""From the rows of nodes and lists of edges to a batch: a minibatch of a plain graph, a typed batch of any other."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, TypedNodes
from graphmill.samplers.vocabulary.messages import NodeRows
from graphmill.storage.format.source import Relation

Batch = MiniBatch | TypedBatch[np.ndarray]
Columns = Mapping[str, np.ndarray | None]
NodesOf = Mapping[str, tuple[NodeRows, Columns]]  # by type: rows, and further columns
EdgesOf = Mapping[
    Relation, tuple[np.ndarray, np.ndarray, Columns]
]  # by relation: indptr, positions of sources, columns


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
) -> Batch:
    """The batch of these nodes and edges; `root_index`: the roots' positions among the nodes of their type."""
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
        nodes={name: _typed_nodes(rows, columns) for name, (rows, columns) in nodes.items()},
        edges={
            relation: TypedEdges(indptr, source.astype(np.int32, copy=False), **columns)
            for relation, (indptr, source, columns) in edges.items()
        },
        encoding_names=encodings,
    )


def _typed_nodes(rows: NodeRows, columns: Any) -> TypedNodes[np.ndarray]:
    node_id, split, encoding = rows.original_id, rows.split, rows.encoding
    return TypedNodes(node_id=node_id, split=split, x=rows.feature, y=rows.label, encoding=encoding, **columns)
