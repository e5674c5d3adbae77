"""One partition of a stored graph, as numpy views of mapped Arrow files, and the reader that maps and checks the files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from graphmill.core.errors import FormatError
from graphmill.core.summaries import describe
from graphmill.storage.filesystem.mapped_files import read_at_random
from graphmill.storage.filesystem.urls import is_local
from graphmill.storage.format.arrow_files import check_split_codes, numpy_column, read_batch, struct_column
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.encodings import StoredEncodings, StoredFiles
from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.manifest import LABEL_DTYPES, partition_dir
from graphmill.storage.format.source import SPLIT_TEST
from graphmill.storage.format.stored_links import Links
from graphmill.storage.ingestion.string_ids import string_buffers
from graphmill.storage.range_reads import RangedRows

_ANY = 2**63 - 1


@dataclass(frozen=True)
class Partition:
    """One partition: the nodes [start, stop), their in-edges in CSC form, and their columns. All arrays are read-only views."""

    index: int
    start: int
    stop: int
    indptr: np.ndarray  # int64 [n + 1]
    # int32/int64 [m], ids of source nodes; each list ascends in original id, or in (time, original id) if edges have times
    indices: np.ndarray
    original_id: np.ndarray  # int64 [n], ascending
    # The same arrays for out-edges: lists of destinations. In a symmetric graph these are the arrays above; None if out-edges are not stored.
    out_indptr: np.ndarray | None = None
    out_indices: np.ndarray | None = None
    out_edge_id: np.ndarray | None = None
    out_edge_weight: np.ndarray | None = None
    out_edge_time: np.ndarray | None = None
    edge_id: np.ndarray | None = None  # int64 [m], row of the edge in the edge source
    edge_weight: np.ndarray | None = None  # float32 [m]
    edge_time: np.ndarray | None = None  # int64 [m]
    edge_feature: np.ndarray | None = None  # float32 [m, edge_feature_dim]
    feature: np.ndarray | None = None  # [n, ·], stored in the layout `feature_rows`
    feature_on_store: RangedRows | None = None  # replaces `feature` if features are read by range
    # int64 or float32 [n]; with several labels per node: int8 (answers) or float32 [n, num_classes]
    label: np.ndarray | None = None
    split: np.ndarray | None = None  # int8 [num_split_sets, n]
    group: np.ndarray | None = None  # int32 [n], locality group of each node
    time: np.ndarray | None = None  # int64 [n]
    # float32 [n, dim] by name of the encoding (`graphmill.storage.format.encodings`), mapped at first use; KeyError if it is not stored
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    links: Links | None = None  # held-out links whose source is in this partition; None: no edge was held out
    stored_rows: FeatureRows | None = None  # layout of feature rows; None: dense rows with the dtype of `feature`
    num_sources: int = _ANY  # all ids in `indices` are below this number

    def __repr__(self) -> str:
        return describe(self)

    @property
    def num_nodes(self) -> int:
        return self.stop - self.start

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def first_id(self) -> int | None:
        """The permanent id of row 0, if permanent ids are consecutive; else None. Row i then has the id `first_id + i`, and no table is needed."""
        ids = self.original_id  # strictly ascending, which `PartitionReader` has checked
        return int(ids[0]) if len(ids) and int(ids[-1]) - int(ids[0]) == len(ids) - 1 else None

    @property
    def feature_rows(self) -> FeatureRows:
        """The layout of stored feature rows."""
        if self.stored_rows is not None:
            return self.stored_rows
        assert self.feature is not None
        return FeatureRows(self.feature.shape[1], cast(FeatureDtype, str(self.feature.dtype)))

    def feature_numbers(self) -> np.ndarray | None:
        """The features, float32 [n, feature_dim]. If they are stored in another form, this is a converted copy."""
        return None if self.feature is None else self.feature_rows.decode(self.feature)


def are_below(ids: np.ndarray, num_nodes: int) -> bool:
    """Whether all ids are in [0, num_nodes)."""
    # As an unsigned number, a negative id is larger than any valid id, so one pass finds negative and too large ids. The number of nodes fits the signed type.
    return not len(ids) or int(ids.view(f"u{ids.itemsize}").max()) < num_nodes


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class PartitionReader:
    """Reads and checks the files of one partition."""

    def __init__(self, graph: StoredFiles, index: int, verify: bool) -> None:
        self.graph, self.manifest, self.index, self.verify = graph, graph.manifest, index, verify
        self.start, self.stop = graph.manifest.partition_offsets[index : index + 2]

    def read(self) -> Partition:
        nodes = self.node_fields()  # comes first, because it compares the manifest's counts with the files
        return Partition(self.index, self.start, self.stop, **self.edge_fields(), **nodes)

    def edge_fields(self) -> dict[str, Any]:
        """Reads the fields of `Partition` that describe edges."""
        manifest = self.manifest
        if not manifest.has_topology:
            indptr = np.zeros(self.stop - self.start + 1, np.int64)
            return {"indptr": _read_only(indptr), "indices": _read_only(np.empty(0, manifest.index_dtype))}
        indptr, topology = self._topology("topology")
        out_indptr, out_topology = (indptr, topology) if manifest.symmetric else (None, {})
        if manifest.has_out_edges:
            out_indptr, out_topology = self._topology("out_topology")
        edge_feature = None
        if manifest.edge_feature_dim:
            edges, path = self._batch("edges", int(indptr[-1]))
            edge_feature = numpy_column(edges, "feature", "float32", path, manifest.edge_feature_dim)
        return {
            "indptr": indptr,
            "indices": topology["index"],
            "out_indptr": out_indptr,
            "out_indices": out_topology.get("index"),
            "out_edge_id": out_topology.get("edge_id"),
            "out_edge_weight": out_topology.get("weight"),
            "out_edge_time": out_topology.get("time"),
            "edge_id": topology.get("edge_id"),
            "edge_weight": topology.get("weight"),
            "edge_time": topology.get("time"),
            "edge_feature": edge_feature,
            "num_sources": manifest.num_sources,
        }

    def node_fields(self) -> dict[str, Any]:
        """Reads the fields of `Partition` that describe nodes."""
        manifest = self.manifest
        original_id, label, splits, group, time = self.nodes()
        feature = feature_on_store = None
        if self.graph.by_range and (rows := manifest.feature_rows) is not None:
            entry = manifest.files[f"{partition_dir(self.index)}/features.arrow"]
            path, num_rows = f"{self.graph.path}/{entry.path}", self.stop - self.start
            feature_on_store = RangedRows(self.graph.filesystem, path, entry, rows, num_rows)
        elif (rows := manifest.feature_rows) is not None:
            features, path = self._batch("features", self.stop - self.start)
            feature = numpy_column(features, "feature", str(rows.stored_dtype), path, rows.stored_width)
            if is_local(self.graph.filesystem):
                read_at_random(feature)
        return {
            "original_id": original_id,
            "feature": feature,
            "feature_on_store": feature_on_store,
            "label": label,
            "split": _read_only(np.stack(splits)) if splits else None,
            "group": group,
            "time": time,
            "encodings": StoredEncodings(self.graph, self.index, verify=self.verify),
            "links": self._links(),
            "stored_rows": manifest.feature_rows,
        }

    def nodes(
        self,
    ) -> tuple[np.ndarray, np.ndarray | None, list[np.ndarray], np.ndarray | None, np.ndarray | None]:
        """Reads original ids, labels, split codes, groups and times. Checks the range of all of them except times."""
        nodes, path = self._batch("nodes", self.stop - self.start)
        kind = self.manifest.label_kind
        label = None
        if kind is not None:
            width = None if kind == "class" else self.manifest.num_classes
            label = numpy_column(nodes, "label", LABEL_DTYPES[kind], path, width)
        splits = [numpy_column(nodes, f"split_{i}", "int8", path) for i in range(self.manifest.num_split_sets)]
        original_id = numpy_column(nodes, "original_id", "int64", path)
        group = numpy_column(nodes, "group", "int32", path) if self.manifest.num_groups else None
        time = numpy_column(nodes, "time", "int64", path) if self.manifest.has_node_time else None
        self._check_nodes(original_id, label, splits, group, path)
        return original_id, label, splits, group, time

    def string_ids(self) -> pa.LargeStringArray:
        batch, path = self._batch("ids", self.stop - self.start)
        kind = batch.schema.field(0).type if batch.schema.names == ["id"] else None
        if kind is None or not pa.types.is_large_string(kind) or batch.column(0).null_count:
            raise FormatError(f"{path}: expected a column 'id' of strings, found {kind or batch.schema.names}")
        offsets, _ = string_buffers(batch.column(0))
        if np.any(offsets[1:] < offsets[:-1]):
            raise FormatError(f"{path}: expected strings one after the other, found others; the file is corrupt")
        if self.verify:
            try:
                batch.validate(full=True)
            except pa.ArrowException as error:
                raise FormatError(f"{path}: expected UTF-8, found damage ({error}); ingest the graph again") from None
        return batch.column(0)

    def _links(self) -> Links | None:
        if self.manifest.links is None:
            return None
        batch, path = self._batch("links", None)
        manifest = self.manifest
        return Links.read(
            batch,
            manifest.num_nodes,
            path,
            num_sources=None if manifest.is_one_type else manifest.num_sources,
            has_time=manifest.has_edge_time,
            num_relations=len(manifest.relations),
        )

    def _batch(self, name: str, num_rows: int | None) -> tuple[pa.RecordBatch, str]:
        relative = f"{partition_dir(self.index)}/{name}.arrow"
        entry = self.manifest.files[relative]
        path = f"{self.graph.path}/{entry.path}"
        return read_batch(self.graph.filesystem, path, entry, verify=self.verify, num_rows=num_rows), path

    def _topology(self, name: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        batch, path = self._batch(name, self.stop - self.start)
        indptr, values = struct_column(batch, "neighbors", path)
        dtypes = {"index": self.manifest.index_dtype}
        if self.manifest.has_edge_id:
            dtypes["edge_id"] = "int64"
        if self.manifest.has_edge_weight:
            dtypes["weight"] = "float32"
        if self.manifest.has_edge_time:
            dtypes["time"] = "int64"
        columns = {name: numpy_column(values, name, dtype, path) for name, dtype in dtypes.items()}
        ids = columns["index"]
        if not are_below(ids, self.manifest.num_sources):
            raise FormatError(
                f"{path}: expected node ids in [0, {self.manifest.num_sources}), found {int(ids.min())} to {int(ids.max())}"
            )
        return indptr, columns

    def _check_nodes(
        self,
        original_id: np.ndarray,
        label: np.ndarray | None,
        splits: list[np.ndarray],
        group: np.ndarray | None,
        path: str,
    ) -> None:
        if np.any(original_id[1:] <= original_id[:-1]):
            raise FormatError(f"{path}: expected strictly ascending original ids, found others; ingest the graph again")
        num_classes = self.manifest.num_classes
        if label is not None and label.dtype.kind == "i" and num_classes is not None and len(label):
            low, high, end = int(label.min()), int(label.max()), num_classes if label.ndim == 1 else 2
            if low < -1 or high >= end:
                raise FormatError(f"{path}: expected labels in [-1, {end}), found {low} to {high}")
        for split in splits:
            check_split_codes(split, SPLIT_TEST, path)
        num_groups = self.manifest.num_groups
        if group is not None and len(group) and not 0 <= int(group.min()) <= int(group.max()) < num_groups:
            raise FormatError(
                f"{path}: expected locality groups in [0, {num_groups}), found {int(group.min())} to {int(group.max())}"
            )
