"""Stores many graphs of PyG or DGL, given as a list, an iterator or a data set, as a set of graphs."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from pyarrow import RecordBatch

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.graph_set_manifest import NO_FEATURES, GraphSetManifest, RowSchema
from graphmill.storage.format.source import SPLIT_NAMES
from graphmill.storage.graph_sets.graph_set_source import GraphSetSource, RawGraph, shards
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.resplit import resplit
from graphmill.storage.importers.memory.array_graph import edge_rows, label_column, rows_split
from graphmill.storage.importers.memory.as_array import as_array
from graphmill.storage.importers.memory.graph_objects import split_of, tell_unread
from graphmill.storage.splits.split_options import SplitOptions

_CODES = {None: 0, "train": 1, "valid": 2, "val": 2, "test": 3}
_MOST_CATEGORIES, _MOST_CLASSES = 100_000, 2**15 - 1
_READ = ("edge_index", "x", "edge_attr", "y", "num_nodes", "feat", "label")


def ingest_graphs(
    graphs: Iterable[Any],
    url: str,
    *,
    split: str | Mapping[str, Any] | SplitOptions | None = None,
    labelled: Literal["graphs", "nodes"] | None = None,
    categories: Mapping[str, tuple[int, ...]] | None = None,
    name: str = "graphs",
    shard_rows: int = 20_000,
    overwrite: bool = False,
) -> GraphSetManifest:
    """Writes a set of graphs under `url`, one graph after another. Memory holds `shard_rows` graphs.

    From a PyG `Data` it reads `edge_index`, `x`, `edge_attr` and `y`. From a `DGLGraph` it reads the edges, `feat` of nodes and edges, and `label` of nodes.
    In a pair (graph, label), the label is used in place of the graph's own labels. Columns of real numbers are features. Columns of whole numbers are
    categories. `categories` gives their numbers for "node" and "edge"; by default they follow from the largest number in each column. `y` holds the targets
    of the graph ([T] or [1, T]; NaN: not known). If `y` has one row for each of several nodes, it holds the classes of the nodes, unless `labelled` says
    otherwise. The first graph sets the columns of all graphs. A warning names the entries of the first graph that are not read.

    `split` is one of: the name of an attribute with the value train, valid, test or None; rows under train, valid and test (OGB's form, the default for OGB's
    data sets); `SplitOptions` that draw a split, for which the graphs are read twice. By default all graphs are in the training part.

    Raises DataError, with the graph's number, for an object that is not a graph or has other columns than the first. Also raises the errors of `write_graphs`.
    """
    readings, drawn = list[_Reading](), split if isinstance(split, SplitOptions) else None
    if drawn and isinstance(graphs, Iterator):
        raise ConfigError(
            f"{name}: split {drawn}: expected a list or data set, which can be read twice, got an iterator"
        )

    def batches() -> Iterable[RecordBatch]:
        readings.append(_Reading(graphs, name, None if drawn else split, labelled, categories or {}))
        return shards(GraphSetSource(readings[-1].info, readings[-1].graphs), shard_rows, lambda *_: None)

    written, info = batches(), readings[-1].info
    if drawn:
        info, written = resplit(info, batches, drawn)
    return write_graphs(url, info, written, overwrite=overwrite, narrowed=lambda info: readings[-1].narrowed(info))


class _Reading:
    """Reads graphs one after another, with the columns of the first graph. Records the largest category and class of all graphs."""

    def __init__(
        self, graphs: Iterable[Any], name: str, split: Any, labelled: str | None, categories: Mapping[str, Any]
    ) -> None:
        self._items = iter(graphs)
        if (first := next(self._items, None)) is None:
            raise DataError(f"{name}: expected at least one graph, got none")
        self._first, self._categories, self._key = first, categories, split if isinstance(split, str) else None
        self._code: np.ndarray | None = None
        self._parts: set[str | None] = set()  # the parts of the split that graphs have named so far
        if self._key is None and (rows := split_of(graphs, split)) is not None:
            ends = [int(as_array(part, f"{name}: split").max(initial=-1)) for part in rows.values()]
            self._code = rows_split(rows, len(graphs) if isinstance(graphs, Sized) else max(ends) + 1, name)[:, 0]
        columns, entries = graph_columns(first, f"{name}: graph 0")
        tell_unread(name, entries, (*_READ, self._key))
        y, num_nodes = columns["y"], columns["num_nodes"]
        if labelled is None and y is not None:
            labelled = "nodes" if y.shape in ((num_nodes,), (num_nodes, 1)) and num_nodes > 1 else "graphs"
        num_targets = y.size if labelled == "graphs" and y is not None else 0
        self._largest: dict[str, Any] = {"node": -1, "edge": -1, "class": -1}
        self.info = GraphSetInfo(
            name,
            _schema(columns["node"], categories.get("node")),
            _schema(columns["edge"], categories.get("edge")),
            index_dtype="int32",
            target_names=("y",) if num_targets == 1 else tuple(f"y{number}" for number in range(num_targets)),
            split_names=SPLIT_NAMES[1:],
            labelled="nodes" if labelled == "nodes" else None,
            num_classes=_MOST_CLASSES if labelled == "nodes" else None,
            provenance={"source": f"{type(first).__module__}.{type(first).__qualname__} from Python"},
        )

    def graphs(self) -> Iterator[RawGraph]:
        number = 0
        for number, item in enumerate(chain([self._first], self._items)):
            where = f"{self.info.name}: graph {number}"
            yield replace(self._raw(item, where), split=self._split(item, number, where))
        if self._parts == {None}:
            raise DataError(f"{self.info.name}: expected graphs with {self._key}, by which they are split, got none")
        if self._code is not None and len(self._code) > number + 1:
            raise DataError(
                f"{self.info.name}: expected graphs up to {len(self._code) - 1}, which the split names, got {number + 1}"
            )

    def _raw(self, item: Any, where: str) -> RawGraph:
        columns, _ = graph_columns(item, where)
        for kind in ("node", "edge"):
            rows, schema = columns[kind], getattr(self.info, kind)
            if _schema(rows, schema.categories) != schema:
                raise DataError(
                    f"{where}: {kind} features: expected {schema.dim} columns of {schema.dtype}, as the first graph has, got "
                    + ("none" if rows is None else f"{list(rows.shape)} of {rows.dtype}")
                )
            if schema.categories and len(rows):
                self._largest[kind] = np.maximum(self._largest[kind], rows.max(axis=0))
        y, target, label = columns["y"], None, None
        if self.info.labelled:
            label = np.full(columns["num_nodes"], -1) if y is None else label_column(y, where)
            if label.shape != (columns["num_nodes"],) or label.dtype.kind != "i":
                raise DataError(
                    f"{where}: expected y to be a class of each of {columns['num_nodes']} nodes, got {y.dtype} {list(y.shape)}; or say labelled='graphs'"
                )
            self._largest["class"] = max(self._largest["class"], label.max(initial=-1))
        elif self.info.target_names:
            target = np.full(len(self.info.target_names), np.nan) if y is None else y.reshape(-1)
        elif y is not None:
            raise DataError(f"{where}: expected no y, as the first graph has none, got shape {list(y.shape)}")
        features = {"node_feature": columns["node"], "edge_feature": columns["edge"], "target": target}
        return RawGraph(0, columns["num_nodes"], columns["edge_index"], **features, node_label=label)

    def _split(self, item: Any, number: int, where: str) -> int:
        if self._key is None:
            return 1 if self._code is None else int(self._code[number]) if number < len(self._code) else 0
        part = getattr(item[0] if isinstance(item, tuple) else item, self._key, None)
        if part not in _CODES:
            raise DataError(f"{where}: {self._key}: expected train, valid, test or None, got {part!r}")
        self._parts.add(part)
        return _CODES[part]

    def narrowed(self, info: GraphSetInfo) -> GraphSetInfo:
        """Returns the info with the numbers of categories and classes that all graphs have."""
        for kind in ("node", "edge"):
            schema = getattr(info, kind)
            if schema.categories and not self._categories.get(kind):
                sizes = np.broadcast_to(self._largest[kind] + 1, schema.dim)
                info = replace(info, **{kind: replace(schema, categories=tuple(np.maximum(sizes, 1).tolist()))})
        return replace(info, num_classes=int(max(self._largest["class"], 0)) + 1) if info.labelled else info


def _schema(rows: np.ndarray | None, categories: tuple[int, ...] | None) -> RowSchema:
    if rows is None:
        return NO_FEATURES
    if rows.dtype.kind not in "iu":
        return RowSchema(rows.shape[1], "float32")
    return RowSchema(rows.shape[1], "int32", tuple(categories or (_MOST_CATEGORIES,) * rows.shape[1]))


def graph_columns(item: Any, where: str) -> tuple[dict[str, Any], Iterable[str]]:
    """Returns a graph's columns (edge_index and num_nodes; node, edge and y, which may be None) and its entries' names. Raises DataError for other objects."""
    graph, label = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
    if not getattr(graph, "is_homogeneous", True) or hasattr(graph, "node_types"):
        raise DataError(f"{where}: expected a graph of one type of nodes, got {type(graph).__name__} of several")
    if hasattr(graph, "ndata"):
        entries: Any = {**graph.edata, **graph.ndata}
        ends, rows = graph.edges(), (graph.ndata.get("feat"), graph.edata.get("feat"))
        y, num_nodes = graph.ndata.get("label"), graph.num_nodes()
    elif getattr(graph, "edge_index", None) is not None:
        entries, ends, rows = getattr(graph, "keys", tuple)(), graph.edge_index, (graph.x, graph.edge_attr)
        y, num_nodes = graph.y, graph.num_nodes
    else:
        raise DataError(f"{where}: expected PyG's Data with edge_index or a DGLGraph, got {type(graph).__name__}")
    y = y if label is None else label
    columns: dict[str, Any] = {"edge_index": np.stack(edge_rows(ends, where)), "num_nodes": int(num_nodes), "y": None}
    for kind, given in zip(("node", "edge"), rows, strict=True):
        array = None if given is None else as_array(given, f"{where}: {kind} features")
        columns[kind] = array[:, None] if array is not None and array.ndim == 1 else array
    if y is not None:
        columns["y"] = as_array([y] if np.ndim(y) == 0 else y, f"{where}: y")
    if label is not None:  # the label in a pair (graph, label) describes the graph, not its nodes
        columns["y"] = columns["y"].reshape(1, -1)
    return columns, entries
