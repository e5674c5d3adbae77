"""A PyG `Data` object as a graph source. Duck-typed: needs torch-geometric only where the caller made the object with it."""

from collections.abc import Mapping

import numpy as np

from storage.errors import DataError
from storage.importers.array_graph import ArrayGraph, edge_rows, mask_split, split_sets


def pyg_graph(
    data, *, split_idx: Mapping[str, object] | None = None, num_classes: int | None = None, name: str = "pyg"
) -> ArrayGraph:
    """The graph of a homogeneous `torch_geometric.data.Data`.

    Read are `edge_index`, `x`, `y`, `edge_weight`, `edge_attr`, times of edges (`edge_time`) and of nodes (`node_time`), or of either in `time`,
    as PyG has them, and the masks `train_mask`, `val_mask`, `test_mask` ([num_nodes], or
    [num_nodes, num_split_sets]) or, in their place, `split_idx` with rows under train, valid and test (OGB's form); any of the
    three may be missing. The edges are taken as they are: PyG holds both directions of an undirected graph. `num_classes` defaults to `data.num_classes`, where that is set.

    Errors: DataError for hetero data, sparse tensors and shapes that disagree.
    """
    if hasattr(data, "node_types") or getattr(data, "edge_index", None) is None:
        raise DataError(f"{name}: expected a homogeneous Data with edge_index, got {type(data).__name__}")
    num_nodes = int(data.num_nodes)
    if num_classes is None and getattr(data, "num_classes", None) is not None:
        num_classes = int(data.num_classes)
    src, dst = edge_rows(_array(data.edge_index, "edge_index", name), name)
    feature, label = _optional(data.x, "x", name), _optional(data.y, "y", name)
    edge_feature = _optional(getattr(data, "edge_attr", None), "edge_attr", name)
    if edge_feature is not None and edge_feature.ndim == 1:
        edge_feature = edge_feature[:, None]
    edge_time, node_time = (_optional(getattr(data, entry, None), entry, name) for entry in ("edge_time", "node_time"))
    time = _optional(getattr(data, "time", None), "time", name)
    if time is not None:
        if (len(time) == len(src)) == (len(time) == num_nodes):
            raise DataError(
                f"{name}: time: expected one for each of the {num_nodes} nodes or of the {len(src)} edges, got {len(time)}; "
                "call it node_time or edge_time"
            )
        edge_time, node_time = (time, node_time) if len(time) == len(src) else (edge_time, time)
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        edge_time=edge_time,
        node_time=node_time,
        edge_weight=_optional(getattr(data, "edge_weight", None), "edge_weight", name),
        edge_feature=edge_feature,
        feature=feature,
        label=label,
        split=_split(data, split_idx, num_nodes, name),
        num_classes=num_classes,
    )


def _optional(tensor, entry: str, name: str) -> np.ndarray | None:
    return None if tensor is None else _array(tensor, entry, name)


def _array(tensor, entry: str, name: str) -> np.ndarray:
    if isinstance(tensor, np.ndarray):
        return tensor
    if getattr(tensor, "is_sparse", False) or str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise DataError(
            f"{name}: {entry} must be a dense tensor, got {getattr(tensor, 'layout', type(tensor).__name__)}"
        )
    return tensor.detach().cpu().numpy()


def _split(data, split_idx: Mapping[str, object] | None, num_nodes: int, name: str) -> np.ndarray | None:
    if split_idx is None:
        masks = [f"{part}_mask" for part in ("train", "val", "test")]
        return mask_split([_optional(getattr(data, mask, None), mask, name) for mask in masks], num_nodes, name)
    names = ("train", "valid" if "valid" in split_idx else "val", "test")
    if not split_idx.keys() & set(names):
        raise DataError(f"{name}: split_idx: expected some of train, valid and test, got {sorted(split_idx)}")
    rows = [_optional(split_idx.get(part), part, name) for part in names]
    return split_sets(num_nodes, [[np.empty(0, np.int64) if some is None else some] for some in rows], name)
