"""PyG's `Data` and `HeteroData` as graph sources. Duck-typed: this module does not import torch-geometric."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes, edge_rows
from graphmill.storage.importers.memory.as_array import as_array
from graphmill.storage.importers.memory.graph_objects import (
    SPLIT_ENTRIES,
    node_columns,
    only_graph,
    split_of,
    tell_unread,
)

_READ = frozenset(
    {"x", "y", "edge_index", "edge_weight", "edge_attr", "time", "edge_time", "node_time", "num_nodes", "num_classes"}
    | {"name", "batch", "ptr", *SPLIT_ENTRIES}
)


def pyg_graph(
    data, *, split_idx: Mapping[str, object] | None = None, num_classes: int | None = None, name: str = "pyg"
) -> ArrayGraph:
    """The graph of a homogeneous `torch_geometric.data.Data`, of a data set with one such graph, or of a `TemporalData`, whose events are edges from `src` to
    `dst` with times `t` and features `msg`.

    Entries that are read: `edge_index`, `x`, `y`, `edge_attr`, `edge_weight` (or `weight`, the name that `from_networkx` gives), and times in `edge_time`,
    `node_time` or `time` (of edges or nodes, by its length). Splits come from `split_idx` (rows under train, valid and test: OGB's form, and the default for
    OGB's data sets), else from `train_mask`, `val_mask`, `test_mask` ([num_nodes] or [num_nodes, num_split_sets]) or `train_idx`, `val_idx`, `test_idx`; any
    part may be missing. A warning names the other entries. Edges are taken as they are: PyG holds both directions of an undirected graph. `num_classes`
    defaults to `data.num_classes`.

    Errors: DataError for hetero data, several graphs, sparse tensors and shapes that disagree.
    """
    split_idx, data = split_of(data, split_idx), only_graph(data, name)
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
    tell_unread(name, getattr(data, "keys", tuple)(), _read_of(data, edges))
    time = getattr(data, "time", None)
    if time is not None:
        num_edges = len(edges["src"])
        if (len(time) == num_edges) == (len(time) == num_nodes):
            raise DataError(
                f"{name}: time: expected one for each of the {num_nodes} nodes or of the {num_edges} edges, got {len(time)}; "
                "call it node_time or edge_time"
            )
        (edges if len(time) == num_edges else nodes)["edge_time" if len(time) == num_edges else "node_time"] = time
    return ArrayGraph(name=name, num_nodes=num_nodes, **edges, **nodes, num_classes=num_classes)


def _temporal_graph(data, name: str) -> ArrayGraph:
    """The graph of a `TemporalData`, with node features `x` if it has them. `y` is not read: it labels events, not nodes."""
    tell_unread(name, getattr(data, "keys", tuple)(), ("src", "dst", "t", "msg", "x", "num_nodes"))
    feature = getattr(data, "x", None)
    ends = np.stack([as_array(data.src, f"{name}: src"), as_array(data.dst, f"{name}: dst")])
    src, dst = edge_rows(ends, name)
    return ArrayGraph(
        name=name,
        num_nodes=int(ends.max(initial=-1)) + 1 if feature is None else len(feature),
        src=src,
        dst=dst,
        edge_feature=getattr(data, "msg", None),
        edge_time=data.t,
        feature=feature,
    )


def typed_pyg_graph(
    data, *, split_idx: Mapping[str, Mapping[str, object]] | None = None, name: str = "pyg"
) -> TypedSource:
    """The typed graph of a `torch_geometric.data.HeteroData`. From each type and relation it reads the entries that `pyg_graph` reads from a `Data`.

    `split_idx` replaces the masks: {type: {part: rows}}, or {part: {type: rows}} (OGB's form), with the parts train, valid and test. Edges are taken as
    they are.

    Errors: DataError for a `Data`, a type without a known number of nodes, sparse tensors and shapes that disagree.
    """
    split_idx, data = split_of(data, split_idx), only_graph(data, name)
    if not hasattr(data, "node_types"):
        raise DataError(f"{name}: expected a HeteroData, got {type(data).__name__}; take pyg_graph for it")
    parts = split_idx or {}
    if parts.keys() <= {"train", "val", "valid", "test"}:
        types = sorted({node_type for rows in parts.values() for node_type in rows})
        parts = {each: {part: rows[each] for part, rows in parts.items() if each in rows} for each in types}
    if unknown := parts.keys() - set(data.node_types):
        raise DataError(f"{name}: split_idx: expected types of {', '.join(data.node_types)}, got {sorted(unknown)}")
    nodes = {}
    for node_type in data.node_types:
        store, where = data[node_type], f"{name}: {node_type}"
        if store.num_nodes is None:
            raise DataError(f"{where}: expected its number of nodes, found none; set data[{node_type!r}].num_nodes")
        num_nodes = int(store.num_nodes)
        tell_unread(where, store.keys(), _READ)
        columns = _node_columns(store, parts.get(node_type), num_nodes, where)
        nodes[node_type] = array_nodes(where, num_nodes, **_with_time(columns, store, "node_time"))
    relations = {}
    for each in map(Relation._make, data.edge_types):
        store, where = data[tuple(each)], f"{name}: {each}"
        if getattr(store, "edge_index", None) is None:
            raise DataError(f"{where}: expected edge_index, found none; sparse adjacencies (adj_t) are not read")
        edges = _edge_columns(store, where)
        tell_unread(where, store.keys(), _read_of(store, edges))
        relations[each] = array_edges(where, **_with_time(edges, store, "edge_time"))
    return TypedSource(name, nodes, relations)


def _with_time(columns: dict[str, Any], store, entry: str) -> dict[str, Any]:
    """The columns with a store's `time`, if it has one, under the name `entry`."""
    time = getattr(store, "time", None)
    return columns if time is None else {**columns, entry: time}


def _edge_columns(store, name: str) -> dict[str, Any]:
    src, dst = edge_rows(store.edge_index, name)
    names = {"edge_weight": "edge_weight", "edge_feature": "edge_attr", "edge_time": "edge_time"}
    columns = {column: getattr(store, entry, None) for column, entry in names.items()}
    of_networkx = getattr(store, "weight", None)
    if columns["edge_weight"] is None and of_networkx is not None and len(of_networkx) == len(src):
        columns["edge_weight"] = of_networkx
    return {"src": src, "dst": dst, **columns}


def _read_of(store, edges: dict[str, Any]) -> frozenset[str]:
    """The entries that are read from a store whose edges have these columns."""
    weight = getattr(store, "weight", None)
    return _READ | {"weight"} if weight is not None and edges["edge_weight"] is weight else _READ


def _node_columns(store, split_idx: Mapping[str, object] | None, num_nodes: int, name: str) -> dict[str, Any]:
    entries = {"feature": "x", "label": "y", "node_time": "node_time"}
    return node_columns(lambda key: getattr(store, key, None), entries, split_idx, num_nodes, name)
