"""Reads the nodes of one type for the checks: ids, labels and splits of all nodes, and the features of a sample. A partition is in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.jobs.config.standard_columns import feature_names
from graphmill.storage.format.source import SPLIT_NONE

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph

_SAMPLE = 0x61756474  # "audt": the sample is the same for every partitioning
_MOST_VALUES = 1 << 22
MOST_TRAINING, MOST_OTHERS = 1 << 14, 1 << 13  # most rows of a sample


@dataclass(frozen=True)
class NodeRows:
    """All nodes of a type. Row i is the node with the i-th smallest permanent id. Takes about 30 bytes a node."""

    graph: "StoredGraph"
    original_id: np.ndarray  # int64 [n], ascending
    row: np.ndarray  # int64 [n]: row of each stored id
    label: np.ndarray | None  # [n] or [n, L]
    code: np.ndarray  # int8 [n], split codes of the chosen set; SPLIT_NONE without a set
    time: np.ndarray | None  # int64 [n]

    @classmethod
    def read(cls, graph: "StoredGraph", split_set: int) -> "NodeRows":
        """Reads the node columns of each partition."""
        from graphmill.storage.partition import PartitionReader

        parts = [PartitionReader(graph, index, False).nodes() for index in range(graph.num_partitions)]
        ids = np.concatenate([part[0] for part in parts])
        order = np.argsort(ids, kind="stable")
        row = np.empty(len(ids), np.int64)
        row[order] = np.arange(len(ids))
        has_split = split_set < graph.manifest.num_split_sets
        code = [part[2][split_set] if has_split else np.zeros(len(part[0]), np.int8) for part in parts]
        label, time = (
            None if parts[0][column] is None else np.concatenate([part[column] for part in parts])[order]
            for column in (1, 4)
        )
        return cls(graph, ids[order], row, label, np.concatenate(code)[order], time)

    @property
    def has_split(self) -> bool:
        return bool(np.any(self.code != SPLIT_NONE))

    @cached_property
    def is_labelled(self) -> np.ndarray:
        """bool [n]: whether the node has a label."""
        if self.label is None:
            return np.zeros(len(self.code), bool)
        return is_known(self.label)

    @cached_property
    def column_names(self) -> list[str]:
        """The name of each feature: its column's name, or its number."""
        manifest = self.graph.manifest
        names = feature_names(manifest.feature_columns)
        return names if len(names) == manifest.feature_dim else [str(k) for k in range(manifest.feature_dim)]

    def named(self, rows: np.ndarray) -> tuple[str, ...]:
        """The source's ids of these nodes."""
        from graphmill.storage.graph import source_ids

        ids = self.original_id[rows]
        strings = source_ids(self.graph)
        return tuple(map(str, ids.tolist() if strings is None else strings.of(ids).to_pylist()))

    def sample(self, chosen: np.ndarray, most: int) -> np.ndarray:
        """At most `most` of the rows that are chosen (bool [n]), ascending. The choice depends on rows alone."""
        rows = np.flatnonzero(chosen)
        if len(rows) <= most:
            return rows
        order = np.argpartition(hash_counters(derive_key(_SAMPLE), rows), most)[:most]
        return np.sort(rows[order])

    def features(self, rows: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        """These columns of the features of these rows, float32 [k, columns]."""
        from graphmill.storage.partition import PartitionReader

        stored = np.empty(len(self.row), np.int64)
        stored[self.row] = np.arange(len(self.row))
        wanted, offsets = stored[rows], self.graph.offsets
        dim = self.graph.feature_dim
        numbers = np.empty((len(rows), len(range(dim)[columns])), np.float32)
        block = max(1, _MOST_VALUES // max(1, dim))  # rows that are decoded at once
        for index in range(self.graph.num_partitions):
            place = np.flatnonzero((wanted >= offsets[index]) & (wanted < offsets[index + 1]))
            if len(place):
                feature = PartitionReader(self.graph, index, False).node_fields()["feature"]
                layout = self.graph.manifest.feature_rows
                assert layout is not None
                for some in (place[start : start + block] for start in range(0, len(place), block)):
                    numbers[some] = layout.decode(feature[wanted[some] - offsets[index]])[:, columns]
        return numbers

    def stored_features(self, block: int = 1 << 16) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(rows of the nodes, their features as stored [k, ·]) for blocks of all nodes."""
        from graphmill.storage.partition import PartitionReader

        for index in range(self.graph.num_partitions):
            feature = PartitionReader(self.graph, index, False).node_fields()["feature"]
            first = int(self.graph.offsets[index])
            for start in range(0, len(feature), block):
                some = feature[start : start + block]
                yield self.row[first + start : first + start + len(some)], some


def labels_of(label: np.ndarray) -> np.ndarray:
    """Labels as a table's target: classes int64 [n], or numbers and answers [n, L]."""
    return label[:, None] if label.ndim == 1 and label.dtype.kind == "f" else label


def is_known(label: np.ndarray) -> np.ndarray:
    """bool [n]: whether a row has a class, a number or an answer."""
    known = np.asarray(label >= 0 if label.dtype.kind == "i" else ~np.isnan(label))
    return known if known.ndim == 1 else np.any(known, axis=1)
