"""PyG's `Data` and `HeteroData` as graph sources. Duck-typed: needs torch-geometric only where the caller made the object with it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import (
    ArrayGraph,
    array_edges,
    array_nodes,
    edge_rows,
    mask_split,
    split_sets,
)


def pyg_graph(
    data, *, split_idx: Mapping[str, object] | None = None, num_classes: int | None = None, name: str = "pyg"
) -> ArrayGraph:
    """The graph of a homogeneous `torch_geometric.data.Data`, or of a `TemporalData`: its events are edges from `src` to `dst` with the times `t` and the features `msg`.

    Read are `edge_index`, `x`, `y`, `edge_weight` (or `weight` of edges, as `from_networkx` calls it), `edge_attr`, times of edges (`edge_time`) and of nodes (`node_time`), or of either in `time`,
    as PyG has them, and the masks `train_mask`, `val_mask`, `test_mask` ([num_nodes], or
    [num_nodes, num_split_sets]) or, in their place, `split_idx` with rows under train, valid and test (OGB's form); any of the
    three may be missing. The edges are taken as they are: PyG holds both directions of an undirected graph. `num_classes` defaults to `data.num_classes`, where that is set.

    Errors: DataError for hetero data, sparse tensors and shapes that disagree.
    """
    if all(getattr(data, key, None) is not None for key in ("src", "dst", "t")):
        return _temporal_graph(data, name)
    if hasattr(data, "node_types"):
        raise DataError(f"{name}: expected a homogeneous Data, got {type(data).__name__}; take typed_pyg_graph for it")
    if getattr(data, "edge_index", None) is None:
        raise DataError(f"{name}: expected a homogeneous Data with edge_index, got {type(data).__name__}")
    num_nodes = int(data.num_nodes)
    if num_classes is None and getattr(data, "num_classes", None) is not None:
        num_classes = int(data.num_classes)
    edges, nodes = _edge_columns(data, name), _node_columns(data, split_idx, num_nodes, name)
    time = _optional(getattr(data, "time", None), "time", name)
    if time is not None:
        num_edges = len(edges["src"])
        if (len(time) == num_edges) == (len(time) == num_nodes):
            raise DataError(
                f"{name}: time: expected one for each of the {num_nodes} nodes or of the {num_edges} edges, got {len(time)}; "
                "call it node_time or edge_time"
            )
        (edges if len(time) == num_edges else nodes)["edge_time" if len(time) == num_edges else "node_time"] = time
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        **edges,
        **nodes,
        num_classes=num_classes,
    )


def _temporal_graph(data, name: str) -> ArrayGraph:
    """Of PyG's `TemporalData`, with `x` of its nodes where it has been given one. Labels of events (`y`) are no labels of nodes, and are not read."""
    feature, message = (_optional(getattr(data, key, None), key, name) for key in ("x", "msg"))
    ends = np.stack([_array(data.src, "src", name), _array(data.dst, "dst", name)])
    src, dst = edge_rows(ends, name)
    return ArrayGraph(
        name=name,
        num_nodes=int(ends.max(initial=-1)) + 1 if feature is None else len(feature),
        src=src,
        dst=dst,
        edge_feature=message[:, None] if message is not None and message.ndim == 1 else message,
        edge_time=_array(data.t, "t", name),
        feature=feature,
    )


def typed_pyg_graph(
    data, *, split_idx: Mapping[str, Mapping[str, object]] | None = None, name: str = "pyg"
) -> TypedSource:
    """The typed graph of a `torch_geometric.data.HeteroData`: of each type and relation what `pyg_graph` reads of a `Data`.

    `split_idx`: rows under train, valid and test by type (OGB's form turned inside out), in place of that type's masks. Edges are taken as they are.

    Errors: DataError for a `Data`, a type whose number of nodes is not known, sparse tensors and shapes that disagree.
    """
    if not hasattr(data, "node_types"):
        raise DataError(f"{name}: expected a HeteroData, got {type(data).__name__}; take pyg_graph for it")
    nodes = {}
    for node_type in data.node_types:
        store, where = data[node_type], f"{name}: {node_type}"
        if store.num_nodes is None:
            raise DataError(f"{where}: expected its number of nodes, found none; set data[{node_type!r}].num_nodes")
        num_nodes = int(store.num_nodes)
        rows = None if split_idx is None else split_idx.get(node_type)
        columns = _node_columns(store, rows, num_nodes, where)
        nodes[node_type] = array_nodes(where, num_nodes, **_with_time(columns, store, "node_time", where))
    relations = {}
    for each in map(Relation._make, data.edge_types):
        store, where = data[tuple(each)], f"{name}: {each}"
        if getattr(store, "edge_index", None) is None:
            raise DataError(f"{where}: expected edge_index, found none; sparse adjacencies (adj_t) are not read")
        relations[each] = array_edges(where, **_with_time(_edge_columns(store, where), store, "edge_time", where))
    return TypedSource(name, nodes, relations)


def _with_time(columns: dict[str, Any], store, entry: str, name: str) -> dict[str, Any]:
    """With a store's `time`, as PyG has it, in the place of this entry."""
    time = _optional(getattr(store, "time", None), "time", name)
    return columns if time is None else {**columns, entry: time}


def _edge_columns(store, name: str) -> dict[str, Any]:
    src, dst = edge_rows(_array(store.edge_index, "edge_index", name), name)
    feature = _optional(getattr(store, "edge_attr", None), "edge_attr", name)
    weight = getattr(store, "edge_weight", None)
    if weight is None and (of_networkx := getattr(store, "weight", None)) is not None and len(of_networkx) == len(src):
        weight = of_networkx
    return {
        "src": src,
        "dst": dst,
        "edge_weight": _optional(weight, "edge_weight", name),
        "edge_feature": feature[:, None] if feature is not None and feature.ndim == 1 else feature,
        "edge_time": _optional(getattr(store, "edge_time", None), "edge_time", name),
    }


def _node_columns(store, split_idx: Mapping[str, object] | None, num_nodes: int, name: str) -> dict[str, Any]:
    return {
        "feature": _optional(getattr(store, "x", None), "x", name),
        "label": _optional(getattr(store, "y", None), "y", name),
        "split": _split(store, split_idx, num_nodes, name),
        "node_time": _optional(getattr(store, "node_time", None), "node_time", name),
    }


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
