"""Makes graph sources from PyG's `Data` and `HeteroData`. Uses their attributes without importing torch-geometric."""

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
    """Makes a source from a homogeneous `torch_geometric.data.Data`, from a data set with one such graph, or from a `TemporalData`. An event of a
    `TemporalData` is an edge from `src` to `dst` with time `t` and features `msg`.

    These entries are read: `edge_index`, `x`, `y`, `edge_attr`, `edge_weight` (or `weight`, the name that `from_networkx` gives), and times in `edge_time`,
    `node_time` or `time` (whose length decides whether it belongs to edges or nodes). Splits come from `split_idx` (OGB's form: rows under train, valid and
    test; the default for OGB's data sets), else from `train_mask`, `val_mask`, `test_mask` ([num_nodes] or [num_nodes, num_split_sets]) or `train_idx`,
    `val_idx`, `test_idx`. Any part may be missing. A warning names the entries that are not read. Edges are not changed, because PyG stores both directions of
    an undirected edge. `num_classes` defaults to `data.num_classes`.

    Raises DataError for heterogeneous data, several graphs, sparse tensors and shapes that disagree.
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
    """Makes a source from a `TemporalData`, with node features `x` if it has them. `y` is not read, because it labels events and not nodes."""
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
    """Makes a typed source from a `torch_geometric.data.HeteroData`. Reads from each type and relation the entries that `pyg_graph` reads from a `Data`.

    `split_idx` replaces the masks. It is {type: {part: rows}}, or {part: {type: rows}} (OGB's form), with the parts train, valid and test. Edges are not
    changed.

    Raises DataError for a `Data`, for a type without a known number of nodes, for sparse tensors and for shapes that disagree.
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
    """Returns the columns, and under the name `entry` the store's `time`, if it has one."""
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
    """Returns the names of the entries that the importer reads from this store. `edges`: the columns of its edges."""
    weight = getattr(store, "weight", None)
    return _READ | {"weight"} if weight is not None and edges["edge_weight"] is weight else _READ


def _node_columns(store, split_idx: Mapping[str, object] | None, num_nodes: int, name: str) -> dict[str, Any]:
    entries = {"feature": "x", "label": "y", "node_time": "node_time"}
    return node_columns(lambda key: getattr(store, key, None), entries, split_idx, num_nodes, name)
