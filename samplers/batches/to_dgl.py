"""Batches as DGL graphs and blocks. DGL is a separate extra (`dgl==1.1.3`, packaging, pandas), imported at the first call.

DGL 1.1.3 is the last release that works with a current torch (Python 3.11); later releases need torch <= 2.2. Set DGL_BACKEND=pytorch before the first call;
otherwise DGL writes a configuration file with its choice into the home directory.
"""

from typing import Any

import torch

from graphmill.core.errors import MissingDependencyError
from graphmill.samplers.batches.layers import build_layers
from graphmill.samplers.batches.minibatch import TorchBatch


def to_dgl(batch: TorchBatch) -> Any:
    """Returns the batch as one `DGLGraph`; messages follow its edges. The graph's CSC shares the batch's arrays, except `indices`, which become int64.

    Columns that the batch has are in ndata and edata. ndata: feat, label, _ID (permanent ids), is_root, split, hop, score, loss_weight, degree, root_time and
    stored encodings by name. edata: _ID, weight, feat, edge_coefficient, edge_time.
    """
    dgl = _import_dgl()
    graph = dgl.graph(
        ("csc", (batch.indptr, batch.indices.long(), torch.empty(0, dtype=torch.int64))), num_nodes=len(batch.node_id)
    )
    is_root = torch.zeros(len(batch.node_id), dtype=torch.bool)
    is_root[batch.root_index] = True
    _put(graph.ndata, feat=batch.x, label=batch.y, is_root=is_root, **{dgl.NID: batch.node_id})
    _put(graph.ndata, split=batch.split, hop=batch.hop, score=batch.score)
    _put(graph.ndata, loss_weight=batch.loss_weight, degree=batch.degree, root_time=batch.root_time)
    _put(graph.ndata, **batch.encodings)
    _put(graph.edata, weight=batch.edge_weight, feat=batch.edge_feature, **{dgl.EID: batch.edge_id})
    _put(graph.edata, edge_coefficient=batch.edge_coefficient, edge_time=batch.edge_time)
    return graph


def to_dgl_blocks(batch: TorchBatch, num_hops: int) -> list[Any]:
    """Returns the layers of a neighbor-sampled batch as DGL's blocks, the widest layer first; see `graphmill.samplers.batches.layers`."""
    dgl = _import_dgl()
    blocks = []
    for layer in build_layers(batch, num_hops):
        block = dgl.create_block(
            (layer.source.long(), layer.destination),
            num_src_nodes=layer.num_sources,
            num_dst_nodes=layer.num_destinations,
        )
        num_edges = len(layer.source)
        _put(block.srcdata, feat=_first(batch.x, layer.num_sources), **{dgl.NID: batch.node_id[: layer.num_sources]})
        _put(block.srcdata, **{name: rows[: layer.num_sources] for name, rows in batch.encodings.items()})
        _put(
            block.dstdata,
            label=_first(batch.y, layer.num_destinations),
            **{dgl.NID: batch.node_id[: layer.num_destinations]},
        )
        _put(
            block.edata,
            weight=_first(batch.edge_weight, num_edges),
            feat=_first(batch.edge_feature, num_edges),
            **{dgl.EID: _first(batch.edge_id, num_edges)},
        )
        blocks.append(block)
    return blocks


def _import_dgl() -> Any:
    try:
        import dgl
    except ImportError as error:
        raise MissingDependencyError(
            f"graphmill.samplers.batches.to_dgl needs dgl 1.1.3 ({error}); pip install -e '.[dgl]' on Python 3.11"
        ) from error
    return dgl


def _first(column: torch.Tensor | None, count: int) -> torch.Tensor | None:
    return None if column is None else column[:count]


def _put(frame: Any, **columns: torch.Tensor | None) -> None:
    for name, column in columns.items():
        if column is not None:
            frame[name] = column
