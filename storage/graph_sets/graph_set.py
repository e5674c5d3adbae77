"""Reads sets of many small graphs, such as molecules, from shards (Arrow files). The shards are opened as one store, which returns graphs by index.

    manifests/000001.json                    kind many-graphs; counts, schema, shards, files with checksums (`graphmill.storage.snapshots.snapshots`)
    data/<snapshot>/part-00000/graphs.arrow  one row per graph: `nodes` (list of feature rows), `edges` (list of source, destination, feature),
                              `target`, `split`, `original_id` (the row of the source); list offsets are the node and edge pointers. Optional:
                              `node_label` (list of classes, -1: none), `pairs` (list of two nodes and 0 or 1), `id` (ids of the source)
    data/<snapshot>/rejects.csv              the source's rows that are not graphs, if there are any

Opening maps the files and checks, like `graphmill.storage.graph`, sizes, Arrow structure and pointers, and that both ends of every edge lie in its graph.
`verify` also checks checksums and categories. `graphmill.samplers.methods.graph_batches.GraphBatchSampler` draws batches from the store.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import fsspec
import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.offsets import pointers
from graphmill.core.summaries import describe
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors
from graphmill.storage.filesystem.mapped_files import damaged
from graphmill.storage.filesystem.urls import absolute_url, split_url
from graphmill.storage.format.arrow_files import (
    array_from_numpy,
    check_digest,
    check_split_codes,
    list_column,
    numpy_column,
    read_batch,
    struct_column,
)
from graphmill.storage.format.graph_set_manifest import (
    REJECTS_NAME,
    GraphSetManifest,
    Reject,
    RowSchema,
    parse_graph_set_manifest,
    shard_file,
)
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.graph_sets.packing_kernels import copy_ends, copy_rows, first_edge_outside
from graphmill.storage.snapshots.snapshots import read_manifest

ID_TYPES = {"number": pa.int64(), "string": pa.large_string()}


@dataclass(frozen=True)
class GraphShard:
    """Consecutive graphs of a store. All arrays are read-only views of the file."""

    node_ptr: np.ndarray  # int64 [g + 1]
    edge_ptr: np.ndarray  # int64 [g + 1]
    source: np.ndarray  # uint8/uint16/int32 [m], positions within the edge's graph
    destination: np.ndarray
    original_id: np.ndarray  # int64 [g], ascending
    split: np.ndarray  # int8 [g]
    node_feature: np.ndarray | None = None  # [n, dim]
    edge_feature: np.ndarray | None = None  # [m, dim]
    target: np.ndarray | None = None  # float32 [g, num_targets], NaN: missing
    node_label: np.ndarray | None = None  # int16 [n, 1], -1: none
    pair_ptr: np.ndarray | None = None  # int64 [g + 1]
    pairs: np.ndarray | None = None  # int32 [p, 3]: two nodes, as positions within their graph, and the label 0 or 1
    ids: pa.Array | None = None  # [g], the source's ids

    def __repr__(self) -> str:
        return describe(self)

    @property
    def num_graphs(self) -> int:
        return len(self.node_ptr) - 1


@dataclass(frozen=True)
class StoredGraphs:
    """All graphs of a directory. A graph has an index, 0 … num_graphs - 1, in the order of the source."""

    url: str
    manifest: GraphSetManifest
    shards: tuple[GraphShard, ...]

    # Pickling stores only the path. So another process maps the same files, even in another working directory.
    def __reduce__(self):
        return open_graphs, (absolute_url(self.url), self.manifest.snapshot)

    def __repr__(self) -> str:
        manifest = self.manifest
        return (
            f"StoredGraphs({manifest.name!r}: {len(self):,} graphs, targets {', '.join(self.target_names) or 'none'},\n"
            f"  splits {', '.join(self.split_names) or 'none'}, snapshot {manifest.snapshot} at {self.url})"
        )

    def __len__(self) -> int:
        return self.manifest.num_graphs

    @cached_property
    def num_nodes(self) -> np.ndarray:
        """Number of nodes of each graph, int64 [num_graphs]."""
        return _joined([_sizes(shard.node_ptr) for shard in self.shards])

    @cached_property
    def num_edges(self) -> np.ndarray:
        """Number of directed edges of each graph, int64 [num_graphs]. A bond counts twice."""
        return _joined([_sizes(shard.edge_ptr) for shard in self.shards])

    @cached_property
    def num_pairs(self) -> np.ndarray:
        """Number of labelled pairs of nodes of each graph, int64 [num_graphs]."""
        return _joined(
            [
                np.zeros(shard.num_graphs, np.int64) if shard.pair_ptr is None else _sizes(shard.pair_ptr)
                for shard in self.shards
            ]
        )

    @cached_property
    def target(self) -> np.ndarray:
        """Targets of each graph, float32 [num_graphs, num_targets]. NaN: the source has no target."""
        return _joined(
            [
                np.empty((shard.num_graphs, 0), np.float32) if shard.target is None else shard.target
                for shard in self.shards
            ]
        )

    @cached_property
    def original_id(self) -> np.ndarray:
        """Row of each graph in the source, int64 [num_graphs], from 0. The header and empty lines do not count."""
        return _joined([shard.original_id for shard in self.shards])

    @property
    def content_hash(self) -> str:
        return self.manifest.content_hash

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.manifest.target_names

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in order. Empty if the classes have no names, only numbers."""
        return self.manifest.class_names

    @property
    def split_names(self) -> tuple[str, ...]:
        return self.manifest.split_names

    def split(self, name: str) -> np.ndarray:
        """Returns the indices of the graphs in this part of the split (int64, ascending). Raises ConfigError for an unknown part."""
        if name not in self.split_names:
            raise ConfigError(f"{self.url}: expected a split of {', '.join(self.split_names) or 'none'}, got {name!r}")
        return self._with_code(self.split_names.index(name) + 1)

    def unsplit(self) -> np.ndarray:
        """Returns the indices of the graphs that are in no part of the split (int64, ascending)."""
        return self._with_code(0)

    def _with_code(self, code: int) -> np.ndarray:
        return np.flatnonzero(_joined([shard.split for shard in self.shards]) == code)

    def node_labels(self, split: str) -> np.ndarray:
        """Returns the node classes of this part's graphs (int16; -1: none). Only for sets whose nodes are labelled."""
        return self._rows_of(split, "node_label", "node_ptr")[:, 0]

    def pair_labels(self, split: str) -> np.ndarray:
        """Returns 1 or 0 for each labelled pair of this part's graphs (int32). Only for sets whose pairs are labelled."""
        return self._rows_of(split, "pairs", "pair_ptr")[:, 2]

    def _rows_of(self, split: str, rows: str, ptr: str) -> np.ndarray:
        """Returns a column's rows that belong to this part's graphs. `rows`, `ptr`: names of the column and of its pointers in each shard."""
        code = self.split_names.index(split) + 1
        chosen = ((shard, np.repeat(shard.split == code, np.diff(getattr(shard, ptr)))) for shard in self.shards)
        return np.concatenate([getattr(shard, rows)[kept] for shard, kept in chosen])

    def fetch(self, graph: np.ndarray) -> PackedGraphs:
        """Returns the graphs at these indices, in the given order, as new arrays. Raises ConfigError for an index outside the store."""
        graph = np.asarray(graph, np.int64)
        if len(graph) and not 0 <= int(graph.min()) <= int(graph.max()) < len(self):
            raise ConfigError(
                f"{self.url}: expected graphs in [0, {len(self)}), got {int(graph.min())} to {int(graph.max())}"
            )
        num_nodes, num_edges = self.num_nodes[graph], self.num_edges[graph]
        node_ptr, edge_ptr = pointers(num_nodes), pointers(num_edges)
        manifest, num_targets = self.manifest, len(self.target_names)
        packed = PackedGraphs(
            num_nodes=num_nodes,
            num_edges=num_edges,
            edge_index=np.empty((2, int(edge_ptr[-1])), np.int32),
            node_feature=_rows(manifest.node, int(node_ptr[-1])),
            edge_feature=_rows(manifest.edge, int(edge_ptr[-1])),
            target=np.empty((len(graph), num_targets), np.float32) if num_targets else None,
            node_label=np.empty((int(node_ptr[-1]), 1), np.int16) if manifest.labelled == "nodes" else None,
        )
        pair_ptr = pointers(self.num_pairs[graph]) if manifest.labelled == "pairs" else None
        if pair_ptr is not None:
            packed = replace(packed, num_pairs=np.diff(pair_ptr), pairs=np.empty((int(pair_ptr[-1]), 3), np.int32))
        for shard, local, place in self._by_shard(graph):
            for ends, out in zip((shard.source, shard.destination), packed.edge_index, strict=True):
                if not copy_ends(shard.edge_ptr, local, ends, place, edge_ptr, out):
                    raise damaged(self.url)
            _copy_rows(shard.node_ptr, local, shard.node_feature, place, node_ptr, packed.node_feature)
            _copy_rows(shard.edge_ptr, local, shard.edge_feature, place, edge_ptr, packed.edge_feature)
            if packed.target is not None and shard.target is not None:
                packed.target[place] = shard.target[local]
            _copy_rows(shard.node_ptr, local, shard.node_label, place, node_ptr, packed.node_label)
            if pair_ptr is not None and shard.pair_ptr is not None:
                _copy_rows(shard.pair_ptr, local, shard.pairs, place, pair_ptr, packed.pairs)
        return packed if packed.node_label is None else replace(packed, node_label=packed.node_label[:, 0])

    def _by_shard(self, graph: np.ndarray) -> Iterator[tuple[GraphShard, np.ndarray, np.ndarray]]:
        """Yields (shard, indices in the shard, positions in `graph`) for each shard that holds some of these graphs."""
        if len(self.shards) == 1:
            yield self.shards[0], graph, np.arange(len(graph))
            return
        offsets = np.asarray(self.manifest.graph_offsets, np.int64)
        shard_of = np.searchsorted(offsets, graph, side="right") - 1
        for index in np.unique(shard_of):
            place = np.flatnonzero(shard_of == index)
            yield self.shards[index], graph[place] - offsets[index], place

    def rejects(self) -> list[Reject]:
        """Returns the rows of the source that are not graphs. Raises FormatError if the file that lists them is missing or damaged."""
        entry = self.manifest.files.get(REJECTS_NAME)
        if entry is None:
            return []
        filesystem, path = split_url(self.url)
        where = f"{path}/{entry.path}"
        with one_line_errors(where, "read this file"):
            content = filesystem.cat_file(where)
        check_digest(content, entry, where)
        rows = csv.reader(io.StringIO(content.decode(), newline=""))
        next(rows)
        return [Reject(int(line), text, reason) for line, text, reason in rows]

    def verify(self) -> None:
        """Reads every byte. Checks checksums, and checks that every category lies in its column's vocabulary. Raises FormatError at the first damage."""
        filesystem, path = split_url(self.url)
        self.rejects()
        for index in range(self.manifest.num_shards):
            shard = _read_shard(filesystem, path, self.manifest, index, verify=True)
            for kind, schema, rows in (
                ("node", self.manifest.node, shard.node_feature),
                ("edge", self.manifest.edge, shard.edge_feature),
            ):
                if rows is None or not schema.categories or not len(rows):
                    continue
                outside = (rows.max(axis=0) >= np.array(schema.categories)) | (rows.min(axis=0) < 0)
                if outside.any():
                    column = int(np.argmax(outside))
                    raise FormatError(
                        f"{path}/{shard_file(index)}: {kind} feature {column}: expected categories in "
                        f"[0, {schema.categories[column]}), found {rows[:, column].min()} to {rows[:, column].max()}"
                    )


def open_graphs(url: str, snapshot: int | None = None) -> StoredGraphs:
    """Opens the newest snapshot, or the given snapshot, of the set of graphs at a path or fsspec URL. Raises FormatError if it does not exist or is damaged."""
    filesystem, path = split_url(url)
    make = "graphmill ingest <source>"
    manifest = parse_graph_set_manifest(*read_manifest(filesystem, path, url, snapshot, make))
    shards = tuple(_read_shard(filesystem, path, manifest, index) for index in range(manifest.num_shards))
    for name, total in (
        ("num_nodes", sum(int(shard.node_ptr[-1]) for shard in shards)),
        ("num_edges", sum(len(shard.source) for shard in shards)),
    ):
        if total != getattr(manifest, name):
            raise FormatError(f"{path}: expected {name} {getattr(manifest, name)} in all shards, found {total}")
    return StoredGraphs(url=url, manifest=manifest, shards=shards)


def shard_batch(
    graphs: PackedGraphs,
    index_dtype: str,
    split: np.ndarray | None = None,
    original_id: np.ndarray | None = None,
    ids: pa.Array | None = None,
) -> pa.RecordBatch:
    """Returns the columns of graphs.arrow. `split`: int8 [g] codes (default: 0, none). `original_id`: int64 [g] (default: 0, 1 …). `ids`: the source's ids."""
    num_graphs, feature = len(graphs.num_nodes), graphs.node_feature
    nodes = pa.nulls(int(graphs.num_nodes.sum())) if feature is None else _column(feature)
    ends = zip(("source", "destination"), graphs.edge_index, strict=True)
    edges = {name: _column(values, index_dtype) for name, values in ends}
    if graphs.edge_feature is not None:
        edges["feature"] = _column(graphs.edge_feature)
    columns = {
        "nodes": _lists(graphs.num_nodes, nodes),
        "edges": _lists(graphs.num_edges, pa.StructArray.from_arrays(list(edges.values()), list(edges))),
        "split": _column(np.zeros(num_graphs, np.int8) if split is None else split),
        "original_id": _column(np.arange(num_graphs, dtype=np.int64) if original_id is None else original_id),
    }
    if ids is not None:
        columns["id"] = ids
    if graphs.target is not None:
        columns["target"] = _column(graphs.target, "float32")
    if graphs.node_label is not None:
        columns["node_label"] = _lists(graphs.num_nodes, _column(graphs.node_label, "int16"))
    if graphs.pairs is not None and graphs.num_pairs is not None:
        columns["pairs"] = _lists(graphs.num_pairs, _column(graphs.pairs, "int32"))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _column(values: np.ndarray, dtype: str | None = None) -> pa.Array:
    return array_from_numpy(np.ascontiguousarray(values, dtype))


def _lists(counts: np.ndarray, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(array_from_numpy(pointers(counts)), values)


def _read_shard(
    filesystem: fsspec.AbstractFileSystem, path: str, manifest: GraphSetManifest, index: int, *, verify: bool = False
) -> GraphShard:
    entry = manifest.files[shard_file(index)]
    where, num_graphs = f"{path}/{entry.path}", manifest.graph_offsets[index + 1] - manifest.graph_offsets[index]
    batch = read_batch(filesystem, where, entry, verify=verify, num_rows=num_graphs, row_name="graphs")
    node_ptr, nodes = list_column(batch, "nodes", where)
    edge_ptr, edges = struct_column(batch, "edges", where)
    shard = GraphShard(
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        source=numpy_column(edges, "source", manifest.index_dtype, where),
        destination=numpy_column(edges, "destination", manifest.index_dtype, where),
        original_id=numpy_column(batch, "original_id", "int64", where),
        split=numpy_column(batch, "split", "int8", where),
        node_feature=_feature(pa.RecordBatch.from_arrays([nodes], ["nodes"]), "nodes", manifest.node, where),
        edge_feature=_feature(edges, "feature", manifest.edge, where),
        target=numpy_column(batch, "target", "float32", where, len(manifest.target_names))
        if manifest.target_names
        else None,
    )
    check_split_codes(shard.split, len(manifest.split_names), where)
    if manifest.id_kind is not None:
        shard = replace(shard, ids=_ids(batch, ID_TYPES[manifest.id_kind], where))
    if manifest.labelled == "nodes":
        shard = replace(shard, node_label=_node_labels(batch, node_ptr, manifest, where))
    elif manifest.labelled == "pairs":
        pair_ptr, pairs = list_column(batch, "pairs", where)
        rows = numpy_column(pa.RecordBatch.from_arrays([pairs], ["pairs"]), "pairs", "int32", where, 3)
        shard = replace(shard, pair_ptr=pair_ptr, pairs=rows)
        _check_pairs(shard, where)
    edge = first_edge_outside(node_ptr, edge_ptr, shard.source, shard.destination)
    if edge >= 0:
        graph = int(np.searchsorted(edge_ptr, edge, side="right")) - 1
        raise FormatError(
            f"{where}: graph {graph}: expected edges among its {node_ptr[graph + 1] - node_ptr[graph]} nodes, "
            f"found {shard.source[edge]} -> {shard.destination[edge]}"
        )
    return shard


def _ids(batch: pa.RecordBatch, kind: pa.DataType, where: str) -> pa.Array:
    place = batch.schema.get_field_index("id")
    ids = batch.column(place) if place >= 0 else pa.nulls(0)
    if ids.type != kind or ids.null_count:
        raise FormatError(
            f"{where}: column 'id': expected {kind} without nulls, found {ids.type}; ingest the graphs again"
        )
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FormatError(f"{where}: column 'id': {one_line(error)}; the file is corrupt") from None
    return ids


def _node_labels(batch: pa.RecordBatch, node_ptr: np.ndarray, manifest: GraphSetManifest, where: str) -> np.ndarray:
    """Returns the classes of nodes, int16 [n, 1]."""
    label_ptr, labels = list_column(batch, "node_label", where)
    label = numpy_column(pa.RecordBatch.from_arrays([labels], ["node_label"]), "node_label", "int16", where)
    if not np.array_equal(label_ptr, node_ptr):
        raise FormatError(
            f"{where}: column 'node_label': expected one label for each node, found others; the file is corrupt"
        )
    if len(label) and not -1 <= label.min() <= label.max() < (manifest.num_classes or 0):
        raise FormatError(
            f"{where}: column 'node_label': expected classes below {manifest.num_classes} or -1, found {label.min()} to {label.max()}"
        )
    return label[:, None]


def _check_pairs(shard: GraphShard, where: str) -> None:
    """Raises FormatError if a node of a pair lies outside the pair's graph, or if a label is not 0 or 1."""
    assert shard.pairs is not None
    assert shard.pair_ptr is not None
    sizes = np.repeat(np.diff(shard.node_ptr), np.diff(shard.pair_ptr))
    bound = np.stack([sizes, sizes, np.full_like(sizes, 2)], axis=1)
    outside = ((shard.pairs < 0) | (shard.pairs >= bound)).any(axis=1)
    if outside.any():
        pair = int(np.argmax(outside))
        raise FormatError(
            f"{where}: pair {pair}: expected two of {sizes[pair]} nodes and 0 or 1, found {shard.pairs[pair].tolist()}"
        )


def _feature(batch: pa.RecordBatch, name: str, schema: RowSchema, where: str) -> np.ndarray | None:
    return None if schema.dtype is None else numpy_column(batch, name, schema.dtype, where, schema.dim)


def _rows(schema: RowSchema, count: int) -> np.ndarray | None:
    return None if schema.dtype is None else np.empty((count, schema.dim), schema.dtype)


def _copy_rows(
    ptr: np.ndarray,
    graph: np.ndarray,
    rows: np.ndarray | None,
    place: np.ndarray,
    out_ptr: np.ndarray,
    out: np.ndarray | None,
) -> None:
    if rows is None or out is None:
        return
    row_bytes = out.itemsize * out.shape[1]
    flat, flat_out = rows.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
    if not copy_rows(ptr, graph, row_bytes, flat, place, out_ptr, flat_out):
        raise damaged("graphs")


def _sizes(ptr: np.ndarray) -> np.ndarray:
    """Returns the sizes of the lists between these pointers. Raises FormatError if the mapped pointers no longer ascend."""
    sizes = np.diff(ptr)
    if len(sizes) and sizes.min() < 0:
        raise damaged("graphs")
    return sizes


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if joined.flags.writeable:
        joined.flags.writeable = False
    return joined
