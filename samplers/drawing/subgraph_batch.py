"""From sets of nodes to one packed batch of their induced subgraphs."""

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Columns, Router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.drawing.pending_batch import PendingBatch
from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.kernels.search import order_members
from graphmill.samplers.vocabulary.messages import EdgeColumn, NodeRows
from graphmill.samplers.vocabulary.stage_clock import stage


def draw_subgraph_batch(
    router: Router,
    epoch: int,
    batch: int,
    *,
    member: np.ndarray,
    graph_ptr: np.ndarray,
    level: np.ndarray,
    split_set: int,
    hop: np.ndarray | None = None,
    score: np.ndarray | None = None,
    encodings: tuple[str, ...] = (),
    edge_columns: tuple[EdgeColumn, ...] = (),
) -> PendingBatch:
    """The induced subgraphs of member[graph_ptr[g]:graph_ptr[g + 1]], each set's first entry its root.

    Within a set, entries of equal `level` are put in ascending permanent id; equal levels follow each other, and so `hop` and `score`,
    equal within a level, stay as they are. Rows are fetched once per distinct node, with one request per owner; then all edges
    with one more.
    """
    with stage("sample"):
        relabeler = Relabeler(np.empty(0, np.int64))
        place = relabeler.add(member)

    def complete(rows: NodeRows) -> MiniBatch:
        with stage("sample"):
            order = order_members(graph_ptr, level, rows.original_id[place])
            row = place[order]
            edges = router.induced_subgraphs(member[order], graph_ptr, edge_columns)
        with stage("fetch"):
            feature = None if rows.feature is None else np.take(rows.feature, row, axis=0)
            encoding = None if rows.encoding is None else np.take(rows.encoding, row, axis=0)
        return MiniBatch(
            epoch=epoch,
            index=batch,
            node_id=rows.original_id[row],
            indptr=pointers(edges.count),
            indices=edges.neighbor,
            root_index=graph_ptr[:-1].copy(),
            feature=feature,
            label=None if rows.label is None else rows.label[row],
            split=None if rows.split is None else rows.split[row],
            graph_ptr=graph_ptr,
            hop=hop,
            score=score,
            encoding=encoding,
            encoding_names=encodings,
            **{name: getattr(edges, name) for name in EDGE_COLUMNS},
        )

    node = relabeler.node.copy()
    kept = (node, member, place, graph_ptr, level, hop, score)
    num_bytes = sum(array.nbytes for array in kept if array is not None)
    return PendingBatch(((router, node, Columns.of(router, split_set, encodings)),), complete, num_bytes)
