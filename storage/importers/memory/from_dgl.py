"""Makes graph sources from DGL graphs. Uses the methods of DGL 1.x's `DGLGraph` without importing DGL."""

from collections.abc import Mapping
from typing import Any

from graphmill.core.errors import DataError
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.importers.memory.graph_objects import (
    SPLIT_ENTRIES,
    node_columns,
    only_graph,
    split_of,
    tell_unread,
)


def dgl_graph(
    graph,
    *,
    feature: str = "feat",
    label: str = "label",
    edge_weight: str | None = None,
    edge_feature: str | None = None,
    edge_time: str | None = None,
    node_time: str | None = None,
    split_idx: Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    name: str = "dgl",
) -> ArrayGraph:
    """Makes a source from a homogeneous `dgl.DGLGraph`, or from a list or data set with one such graph. Edges are not changed.

    `feature` and `label` name entries of `ndata`, which may be absent. `edge_weight` (None: `weight`, if present), `edge_feature` and `edge_time` name
    entries of `edata`, and `node_time` names an entry of `ndata`; these entries must exist. A warning names the entries that are not read. Splits come from
    `split_idx` (OGB's form: rows under train, valid and test), else from train_mask, val_mask and test_mask in `ndata`.

    Raises DataError for a heterogeneous graph, for several graphs, for a named entry that is absent, and for shapes that disagree.
    """
    split_idx, graph = split_of(graph, split_idx), only_graph(graph, name)
    if not hasattr(graph, "ndata"):
        raise DataError(f"{name}: expected a DGL graph, got {type(graph).__name__}")
    if not getattr(graph, "is_homogeneous", True):
        raise DataError(
            f"{name}: expected a homogeneous DGL graph, got node types {list(graph.ntypes)}; take typed_dgl_graph for it"
        )
    edge_weight = edge_weight or ("weight" if "weight" in graph.edata else None)
    named = [("edata", entry) for entry in (edge_weight, edge_feature, edge_time)] + [("ndata", node_time)]
    for frame, entry in named:
        if entry is not None and entry not in getattr(graph, frame):
            raise DataError(f"{name}: {frame} has no {entry!r}, only {sorted(getattr(graph, frame).keys())}")
    num_nodes, entries = int(graph.num_nodes()), {"feature": feature, "label": label, "node_time": node_time}
    edges = _edge_columns(name, graph.edges(), graph.edata, edge_weight, edge_feature, edge_time)
    tell_unread(name, graph.ndata, (*entries.values(), *SPLIT_ENTRIES))
    nodes = node_columns(graph.ndata.get, entries, split_idx, num_nodes, name)
    return ArrayGraph(name=name, num_nodes=num_nodes, **edges, **nodes, num_classes=num_classes)


def typed_dgl_graph(
    graph,
    *,
    feature: str = "feat",
    label: str = "label",
    edge_weight: str | None = None,
    edge_feature: str | None = None,
    edge_time: str | None = None,
    node_time: str | None = None,
    name: str = "dgl",
) -> TypedSource:
    """Makes a typed source from a `dgl.DGLGraph` with several types. Edges are not changed.

    `feature`, `label` and `node_time` name entries in the data of node types; `edge_weight`, `edge_feature` and `edge_time` name entries in the data of
    relations. A type or relation without the entry has no such column. Splits come from each type's train_mask, val_mask and test_mask.

    Raises DataError for a named entry that no type or relation has, and for shapes that disagree.
    """
    if edge_weight is None and any("weight" in graph.edges[kind].data for kind in graph.canonical_etypes):
        edge_weight = "weight"
    nodes, entries = {}, {"feature": feature, "label": label, "node_time": node_time}
    for node_type in graph.ntypes:
        num_nodes, where = int(graph.num_nodes(node_type)), f"{name}: {node_type}"
        data = graph.nodes[node_type].data
        tell_unread(where, data, (*entries.values(), *SPLIT_ENTRIES))
        nodes[node_type] = array_nodes(where, num_nodes, **node_columns(data.get, entries, None, num_nodes, where))
    relations = {}
    for kind in graph.canonical_etypes:
        data = graph.edges[kind].data
        present = (entry if entry in data else None for entry in (edge_weight, edge_feature, edge_time))
        each = Relation(*kind)
        where = f"{name}: {each}"
        relations[each] = array_edges(where, **_edge_columns(where, graph.edges(etype=kind), data, *present))
    for entry in (edge_weight, edge_feature, edge_time):
        if entry is not None and not any(entry in graph.edges[kind].data for kind in graph.canonical_etypes):
            raise DataError(f"{name}: no relation's edge data has {entry!r}")
    if node_time is not None and not any(node_time in graph.nodes[each].data for each in graph.ntypes):
        raise DataError(f"{name}: no type's node data has {node_time!r}")
    return TypedSource(name, nodes, relations)


def _edge_columns(
    name: str, ends, data: Mapping[str, Any], edge_weight: str | None, edge_feature: str | None, edge_time: str | None
) -> dict[str, Any]:
    names = {"edge_weight": edge_weight, "edge_feature": edge_feature, "edge_time": edge_time}
    tell_unread(name, data, names.values())
    columns = {column: None if entry is None else data[entry] for column, entry in names.items()}
    return {"src": ends[0], "dst": ends[1], **columns}
