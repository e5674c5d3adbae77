"""Defines the interface between importers of many graphs and `write_graphs`. A source has a stream of graphs, and the properties that all graphs share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.format.graph_set_manifest import RowSchema
from graphmill.storage.format.source import Progress
from graphmill.storage.graph_sets.graph_set import shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs


@dataclass(frozen=True)
class RawGraph:
    """One graph, as a source gives it, not yet checked."""

    split: int  # code c: the graph is in split_names[c - 1] of the info; 0: in no part
    num_nodes: int
    edge_index: np.ndarray  # integer [2, m]
    node_feature: np.ndarray | None = None  # [n, dim]
    edge_feature: np.ndarray | None = None  # [m, dim]
    target: np.ndarray | None = None  # [num_targets]
    node_label: np.ndarray | None = None  # integer [n]
    pairs: np.ndarray | None = None  # integer [p, 3]


@dataclass(frozen=True)
class GraphSetSource:
    """A source of many graphs. Every call of `graphs()` returns the same graphs."""

    info: GraphSetInfo
    graphs: Callable[[], Iterator[RawGraph]]
    num_graphs: int | None = None  # an estimate


def shards(source: GraphSetSource, most: int, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Yields shards of at most `most` checked graphs. If a graph does not match the info, raises a DataError with the graph's index."""
    numbered = enumerate(source.graphs())
    while block := list(islice(numbered, most)):
        yield _shard(source.info, block)
        progress("graphs", block[-1][0] + 1, source.num_graphs)


def _shard(info: GraphSetInfo, numbered: list[tuple[int, RawGraph]]) -> pa.RecordBatch:
    for number, graph in numbered:
        problem = _problem(info, graph)
        if problem is not None:
            raise DataError(f"{info.name}: graph {number}: {problem}")
    graphs = [graph for _, graph in numbered]
    packed = PackedGraphs(
        num_nodes=np.array([graph.num_nodes for graph in graphs], np.int64),
        num_edges=np.array([graph.edge_index.shape[1] for graph in graphs], np.int64),
        edge_index=np.concatenate([graph.edge_index for graph in graphs], axis=1).astype(np.int32),
        node_feature=_joined([graph.node_feature for graph in graphs], info.node.dtype),
        edge_feature=_joined([graph.edge_feature for graph in graphs], info.edge.dtype),
        target=np.stack([np.asarray(graph.target) for graph in graphs]).astype(np.float32)
        if info.target_names
        else None,
        node_label=_joined([graph.node_label for graph in graphs], "int16" if info.labelled == "nodes" else None),
        num_pairs=np.array([0 if graph.pairs is None else len(graph.pairs) for graph in graphs], np.int64),
        pairs=_joined([graph.pairs for graph in graphs], "int32" if info.labelled == "pairs" else None),
    )
    split = np.array([graph.split for graph in graphs], np.int8)
    return shard_batch(packed, info.index_dtype, split, np.array([number for number, _ in numbered], np.int64))


def _joined(rows: Iterable[np.ndarray | None], dtype: str | None) -> np.ndarray | None:
    return None if dtype is None else np.concatenate([np.asarray(some) for some in rows]).astype(dtype)


def _problem(info: GraphSetInfo, graph: RawGraph) -> str | None:
    """Returns the reason why the graph does not match the info; None if it matches."""
    edges, num_nodes = graph.edge_index, graph.num_nodes
    if not 0 < num_nodes <= np.iinfo(info.index_dtype).max:
        return f"expected 1 to {np.iinfo(info.index_dtype).max} nodes, got {num_nodes}"
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        return f"expected integer edges [2, m], got {edges.dtype} {list(edges.shape)}"
    if edges.size and not 0 <= edges.min() <= edges.max() < num_nodes:
        return f"expected edges among {num_nodes} nodes, got {edges.min()} to {edges.max()}"
    for kind, schema, rows, count in (
        ("node", info.node, graph.node_feature, num_nodes),
        ("edge", info.edge, graph.edge_feature, edges.shape[1]),
    ):
        problem = _wrong_rows(schema, rows, count)
        if problem is not None:
            return f"{kind} features: {problem}"
    if info.target_names and (graph.target is None or graph.target.shape != (len(info.target_names),)):
        return f"expected {len(info.target_names)} targets, got {None if graph.target is None else graph.target.shape}"
    if info.labelled == "nodes":
        label = graph.node_label
        if label is None or label.shape != (num_nodes,) or label.dtype.kind not in "iu":
            return f"expected a class of each of {num_nodes} nodes"
        if not -1 <= label.min() <= label.max() < (info.num_classes or 0):
            return f"expected classes below {info.num_classes} or -1, got {label.min()} to {label.max()}"
    if info.labelled == "pairs":
        pairs = graph.pairs
        if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 3:
            return "expected pairs of nodes with a label, [p, 3]"
        if pairs.size and ((pairs < 0) | (pairs >= [num_nodes, num_nodes, 2])).any():
            return f"expected pairs of {num_nodes} nodes labelled 0 or 1, got others"
    return None


def _wrong_rows(schema: RowSchema, rows: np.ndarray | None, count: int) -> str | None:
    if schema.dtype is None:
        return None
    if rows is None or rows.shape != (count, schema.dim):
        return f"expected {count} rows of {schema.dim}, got {None if rows is None else list(rows.shape)}"
    if not schema.categories:
        return None if np.isfinite(rows).all() else "expected finite numbers, got others"
    outside = ((rows < 0) | (rows >= np.array(schema.categories))).any(axis=0)
    if outside.any():
        column = int(np.argmax(outside))
        values = rows[:, column]
        return f"column {column}: expected categories below {schema.categories[column]}, got {values.min()} to {values.max()}"
    return None
