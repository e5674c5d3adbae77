"""A DGL graph as a graph source. Duck-typed on DGL 1.x's `DGLGraph`: importing this module needs no DGL."""

import numpy as np

from storage.errors import DataError
from storage.importers.array_graph import ArrayGraph, mask_split

_MASKS = ("train_mask", "val_mask", "test_mask")


def dgl_graph(
    graph,
    *,
    feature: str = "feat",
    label: str = "label",
    edge_weight: str | None = None,
    edge_feature: str | None = None,
    edge_time: str | None = None,
    node_time: str | None = None,
    num_classes: int | None = None,
    name: str = "dgl",
) -> ArrayGraph:
    """The graph of a homogeneous `dgl.DGLGraph`, edges as they are.

    `feature` and `label` name entries of `ndata` (absent entries: no features, no labels), `edge_weight`, `edge_feature` and `edge_time` entries of
    `edata` and `node_time` one of `ndata`, which must then exist. Splits are `ndata`'s train_mask, val_mask and test_mask, as far as they are there.

    Errors: DataError for a heterogeneous graph, a named edge entry that is absent, shapes that disagree.
    """
    if not getattr(graph, "is_homogeneous", True):
        raise DataError(f"{name}: expected a homogeneous DGL graph, got node types {list(graph.ntypes)}")
    src, dst = (_array(ids) for ids in graph.edges())
    num_nodes = int(graph.num_nodes())
    named = [("edata", entry) for entry in (edge_weight, edge_feature, edge_time)] + [("ndata", node_time)]
    for frame, entry in named:
        if entry is not None and entry not in getattr(graph, frame):
            raise DataError(f"{name}: {frame} has no {entry!r}, only {sorted(getattr(graph, frame).keys())}")
    node_feature = _array(graph.ndata[feature]) if feature in graph.ndata else None
    weight = None if edge_weight is None else _array(graph.edata[edge_weight])
    edge_columns = None if edge_feature is None else _array(graph.edata[edge_feature])
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        edge_weight=weight[:, 0] if weight is not None and weight.ndim == 2 and weight.shape[1] == 1 else weight,
        edge_feature=edge_columns[:, None] if edge_columns is not None and edge_columns.ndim == 1 else edge_columns,
        edge_time=None if edge_time is None else _array(graph.edata[edge_time]),
        node_time=None if node_time is None else _array(graph.ndata[node_time]),
        feature=node_feature,
        label=_array(graph.ndata[label]) if label in graph.ndata else None,
        split=mask_split(
            [_array(graph.ndata[mask]) if mask in graph.ndata else None for mask in _MASKS], num_nodes, name
        ),
        num_classes=num_classes,
    )


def _array(tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
