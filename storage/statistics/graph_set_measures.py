"""Measures the statistics of many graphs in one pass while their shards are written. The result does not depend on how graphs are divided into shards."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.format.graph_set_manifest import RowSchema
from graphmill.storage.format.statistics import MAX_CLASS_COUNTS, GraphPartStatistics, GraphSetStatistics
from graphmill.storage.statistics.graph_measures import ColumnMeasure, TargetMeasure, joined_counts


class GraphSetMeasure:
    """Measures shards (`graphmill.storage.graph_sets.graph_set.shard_batch`). Shards must be added in order."""

    def __init__(self, num_targets: int, split_names: Sequence[str], node: RowSchema, edge: RowSchema) -> None:
        num_splits = len(split_names)
        self._training = split_names.index("train") + 1 if "train" in split_names else None
        self._columns = {
            name: ColumnMeasure(rows.dim)
            for name, rows in (("nodes", node), ("edges", edge))
            if rows.holds_numbers and 3 * rows.dim <= MAX_CLASS_COUNTS
        }
        self._counts: dict[str, list[tuple[np.ndarray, tuple[int, int, int]]]] = {"nodes": [], "edges": []}
        self._num_graphs, self._num_targets = 0, num_targets
        self._sizes = np.zeros(num_splits + 1, np.int64)
        self._targets = TargetMeasure(num_splits + 1, num_targets)
        # Each column has a digest, because shards interleave the columns. Ids have no digest, because they do not influence a run.
        self._digests: dict[str, hashlib._Hash] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Measures a shard. Raises DataError for split codes or list offsets that `open_graphs` would refuse."""
        from graphmill.storage.statistics.statistics_kernels import count_values

        self._num_graphs += batch.num_rows
        for name, pieces in self._counts.items():
            lists = batch.column(name)
            size = np.diff(lists.offsets.to_numpy())
            if len(size) and size.min() < 0:
                raise DataError(
                    f"column {name!r}: expected list offsets that ascend, got {size.min()} {name} in a graph"
                )
            histogram = np.zeros(64, np.int64)
            pieces.append((histogram, count_values(size, histogram)))
            self._update(f"{name} per graph", size)
            self._update_values(name, lists.flatten())
        split = batch.column("split").to_numpy()
        if len(split) and not 0 <= split.min() <= split.max() < len(self._sizes):
            raise DataError(
                f"expected split codes 0 to {len(self._sizes) - 1}, got {split.min()} to {split.max()}; name all splits"
            )
        self._sizes += np.bincount(split, minlength=len(self._sizes))
        for name, measure in self._columns.items():
            lists = batch.column(name)
            trains = np.repeat(split == self._training if self._training else split >= 0, np.diff(lists.offsets))
            rows = lists.flatten()
            rows = rows.field("feature") if name == "edges" else rows
            measure.add(rows.flatten().to_numpy().reshape(-1, measure.dim)[trains].astype(np.float32))
        for name in ("split", "original_id"):
            self._update(name, batch.column(name).to_numpy())
        for name in ("node_label", "pairs"):
            if name in batch.schema.names:
                lists = batch.column(name)
                self._update(f"{name} per graph", np.diff(lists.offsets.to_numpy()))
                self._update_values(name, lists.flatten())
        if "target" in batch.schema.names:
            target = batch.column("target").flatten().to_numpy().reshape(batch.num_rows, self._num_targets)
            self._update("target", target)
            self._targets.add(target, split)

    def _update_values(self, name: str, values: pa.Array) -> None:
        """Adds the numbers in nested lists and structs to the digest."""
        if pa.types.is_struct(values.type):
            for field in values.type:
                self._update_values(f"{name}.{field.name}", values.field(field.name))
        elif pa.types.is_fixed_size_list(values.type):
            self._update_values(name, values.flatten())
        elif not pa.types.is_null(values.type):
            self._update(name, values.to_numpy())

    def _update(self, name: str, values: np.ndarray) -> None:
        digest = self._digests.setdefault(name, hashlib.sha256(f"{name} {values.dtype.str} ".encode()))
        digest.update(np.ascontiguousarray(values).data)

    def result(self) -> GraphSetStatistics:
        nodes, edges = (joined_counts(pieces, self._num_graphs) for pieces in self._counts.values())
        parts = zip(self._sizes.tolist(), self._targets.result(), strict=True)
        digest = hashlib.sha256()
        for _, column in sorted(self._digests.items()):
            digest.update(column.digest())
        return GraphSetStatistics(
            nodes=nodes,
            edges=edges,
            parts=tuple(GraphPartStatistics(size, targets) for size, targets in parts),
            digest=digest.hexdigest(),
            **{f"{name[:-1]}_columns": measure.result() for name, measure in self._columns.items()},
        )
