"""Defines the statistics that ingestion measures and the manifest stores, so that training and planning need not read the data again.

All numbers describe the full graph and do not depend on its partitions. `graphmill.storage.statistics.graph_measures` and
`graphmill.storage.statistics.graph_set_measures` compute them. Parsing checks every field, like `graphmill.storage.format.manifest`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphmill.storage.format.manifest_reader import ManifestReader
from graphmill.storage.format.source import SPLIT_NAMES

_DIGEST, _FINGERPRINT = 64, 32  # numbers of hexadecimal digits
# most numbers that are stored for classes or columns; if there are more, they are not stored
MAX_CLASS_COUNTS = 1 << 20
_LARGEST = 1e39  # larger than any float32


@dataclass(frozen=True)
class CountStatistics:
    """The distribution of a count over nodes or over graphs."""

    num: int  # number of nodes, or of graphs
    total: int
    minimum: int
    maximum: int
    # number of nodes (or graphs) whose count is 0; 1; 2 or 3; 4 to 7; …; the last bin is not zero
    histogram: tuple[int, ...]

    @property
    def mean(self) -> float:
        return self.total / self.num


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of the finite values of a feature column in a set of rows. All fields are zero if there are no finite values."""

    mean: float
    deviation: float  # standard deviation, computed with division by the count
    nonzero: float  # share of the values that are not 0


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of the stored feature values. Norms are L2 norms of rows, to 9 digits, without rows that have a non-finite value."""

    num_values: int
    num_nonzero: int
    num_nonfinite: int
    zero_or_one: bool  # whether all values are 0 or 1
    minimum: float | None  # minimum of the finite values; None: there are no finite values
    maximum: float | None
    mean_norm: float | None
    max_norm: float | None
    fingerprint: str  # 128-bit hash of all values and their rows; it detects accidental changes, not attacks
    # Statistics of each column over the training rows, for one split set after another. All rows are used if there are no training rows or no split sets.
    # Empty if there are too many columns, or if an older version ingested the graph.
    columns: tuple[ColumnStatistics, ...] = ()

    @property
    def sparsity(self) -> float:
        """Share of the values that are 0."""
        return 1 - self.num_nonzero / self.num_values


@dataclass(frozen=True)
class TargetStatistics:
    """Count, mean and standard deviation (with division by the count) of real numbers."""

    num_labelled: int
    mean: float | None  # None: there are no values, or some value is not finite
    std: float | None


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split set. A tuple of four has an entry for each SPLIT_* code: none, train, valid, test."""

    num_nodes: tuple[int, ...]
    num_labelled: tuple[int, ...]
    # For each split: the number of labelled nodes of each class, or the number of nodes with a yes for each answer. None: no classes, or too many to store.
    class_counts: tuple[tuple[int, ...], ...] | None
    training_target: TargetStatistics | None  # set if a node's label is one real number
    # number of edges between two different labelled training nodes; None: the graph has no classes
    num_training_edges: int | None
    num_agreeing_edges: int | None  # number of these edges whose two ends have the same class
    digest: str  # SHA-256 of the columns permanent id, label and split code, in ascending order of permanent id
    # homophily in which each edge counts with its weight; None: edges have no weights, or a weight is negative
    weighted_homophily: float | None = None
    training_targets: tuple[TargetStatistics, ...] = ()  # set if a node's label is several real numbers

    @property
    def homophily(self) -> float | None:
        """Share of the training edges whose two ends have the same class."""
        return self.num_agreeing_edges / self.num_training_edges if self.num_training_edges else None  # type: ignore[operator]


@dataclass(frozen=True)
class GraphStatistics:
    """Statistics of one graph. They describe the stored edges, after ingestion has dropped duplicates and self-loops and added reverses, if requested."""

    in_degree: CountStatistics
    # out-degrees of all nodes; for a relation between two types, of the nodes of its source type
    out_degree: CountStatistics
    # number of nodes without any edge; for a relation between two types, only nodes of its target type count
    num_isolated: int
    num_self_loops: int
    num_duplicate_edges: int  # number of edges that would be dropped as duplicates
    # whether for all u, v there are as many edges u -> v as v -> u; found by comparing hashes, wrong with a probability of about 2^-128
    symmetric_edges: bool
    # whether the reverse of each edge also has equal weights and features; None: edges have no weights and no features
    symmetric_columns: bool | None
    # 128-bit hash of all edges and their columns, in which a node is named by its rank in permanent id
    edge_fingerprint: str
    feature: FeatureStatistics | None
    num_labelled: int
    class_counts: tuple[int, ...] | None
    splits: tuple[SplitStatistics, ...]
    node_digest: str  # SHA-256 of the columns permanent id and label, in ascending order of permanent id
    # smallest weight of an edge; None: edges have no weights, a weight is not finite, or an older version ingested the graph
    least_weight: float | None = None
    # Statistics of the real-valued features of all edges. Empty if there are no such features or too many, or if an older version ingested the graph.
    edge_columns: tuple[ColumnStatistics, ...] = ()

    @property
    def symmetric(self) -> bool:
        """Whether the lists of in-edges and their columns equal the lists of out-edges and their columns."""
        return self.symmetric_edges and self.symmetric_columns is not False

    @property
    def graph_digest(self) -> str:
        """Digest of edges, features, labels and all split sets. It does not depend on partitions."""
        feature = "" if self.feature is None else self.feature.fingerprint
        named = " ".join((self.edge_fingerprint, feature, self.node_digest, *(split.digest for split in self.splits)))
        return hashlib.sha256(named.encode()).hexdigest()

    def data_digest(self, split_set: int) -> str:
        """Digest of all data that a run learns from: edges, features, labels and this split set. It does not depend on partitions."""
        feature = "" if self.feature is None else self.feature.fingerprint
        named = f"{self.splits[split_set].digest} {self.edge_fingerprint} {feature}"
        return hashlib.sha256(named.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class GraphPartStatistics:
    """Statistics of the graphs of one split."""

    num_graphs: int
    targets: tuple[TargetStatistics, ...]  # one entry for each target


@dataclass(frozen=True)
class GraphSetStatistics:
    """Statistics of a set of graphs. The first of `parts` describes the graphs that are in no split; the others describe the splits, by name."""

    nodes: CountStatistics  # number of nodes per graph
    edges: CountStatistics
    parts: tuple[GraphPartStatistics, ...]
    digest: str  # SHA-256 of all columns except ids; does not depend on shards
    # Statistics of the real-valued features of training graphs, or of all graphs if there is no training split. Empty if there are no such features or
    # too many, or if an older version ingested the set.
    node_columns: tuple[ColumnStatistics, ...] = ()
    edge_columns: tuple[ColumnStatistics, ...] = ()


class GraphSizes(NamedTuple):
    """Fields of a graph's `Manifest` with which the statistics must agree."""

    num_nodes: int
    num_sources: int
    num_edges: int
    num_classes: int | None
    feature_dim: int
    edge_feature_dim: int
    num_split_sets: int
    label_kind: str | None


class GraphSetSizes(NamedTuple):
    """Sizes of a set of graphs with which the statistics must agree. `node_dim`, `edge_dim`: number of features of a node and of an edge."""

    num_graphs: int
    num_nodes: int
    num_edges: int
    num_targets: int
    num_splits: int
    node_dim: int
    edge_dim: int


def read_graph_statistics(reader: ManifestReader, sizes: GraphSizes) -> GraphStatistics:
    """Reads the statistics in a manifest. If a field is wrong, or numbers contradict each other or `sizes`, raises a FormatError that names the field."""
    num_nodes, num_edges = sizes.num_nodes, sizes.num_edges
    feature_dim, num_sets = sizes.feature_dim, sizes.num_split_sets
    feature = reader.optional_inner("feature")
    if (feature is not None) != (feature_dim > 0):
        reader.fail("feature", "an object exactly where the graph has features", feature)
    splits = reader.inners("splits")
    if len(splits) != num_sets:
        reader.fail("splits", f"{num_sets} sets of splits", f"{len(splits)} sets")
    num_labelled = reader.count("num_labelled", num_nodes)
    return GraphStatistics(
        in_degree=_read_counts(reader.inner("in_degree"), num_nodes, num_edges),
        out_degree=_read_counts(reader.inner("out_degree"), sizes.num_sources, num_edges),
        num_isolated=reader.count("num_isolated", num_nodes),
        num_self_loops=reader.count("num_self_loops", num_edges),
        num_duplicate_edges=reader.count("num_duplicate_edges", num_edges),
        symmetric_edges=reader.flag("symmetric_edges"),
        symmetric_columns=None if reader.is_null("symmetric_columns") else reader.flag("symmetric_columns"),
        edge_fingerprint=reader.hexadecimal("edge_fingerprint", _FINGERPRINT),
        feature=None if feature is None else _read_features(feature, sizes),
        num_labelled=num_labelled,
        class_counts=None
        if reader.is_null("class_counts")
        else _checked_classes(reader, [reader.counts("class_counts")], sizes, [num_labelled])[0],
        splits=tuple(_read_split(split, sizes) for split in splits),
        node_digest=reader.hexadecimal("node_digest", _DIGEST),
        least_weight=reader.newer_number("least_weight"),
        edge_columns=_read_columns(reader, "edge_columns", sizes.edge_feature_dim),
    )


def read_graph_set_statistics(reader: ManifestReader, sizes: GraphSetSizes) -> GraphSetStatistics:
    """Reads the statistics of a set of graphs. Raises the errors of `read_graph_statistics`."""
    num_graphs, num_nodes, num_edges, num_targets, num_splits, node_dim, edge_dim = sizes
    parts = reader.inners("parts")
    if len(parts) != num_splits + 1:
        reader.fail("parts", f"{num_splits + 1} parts", f"{len(parts)} parts")
    read = []
    for part in parts:
        size, targets = part.count("num_graphs", num_graphs), part.inners("targets")
        if len(targets) != num_targets:
            part.fail("targets", f"{num_targets} targets", f"{len(targets)} targets")
        read.append(GraphPartStatistics(size, tuple(_read_target(target, size) for target in targets)))
    total = sum(part.num_graphs for part in read)
    if total != num_graphs:
        reader.fail("parts", f"{num_graphs} graphs in all", total)
    return GraphSetStatistics(
        nodes=_read_counts(reader.inner("nodes"), num_graphs, num_nodes),
        edges=_read_counts(reader.inner("edges"), num_graphs, num_edges),
        parts=tuple(read),
        digest=reader.hexadecimal("digest", _DIGEST),
        node_columns=_read_columns(reader, "node_columns", node_dim),
        edge_columns=_read_columns(reader, "edge_columns", edge_dim),
    )


def _read_counts(reader: ManifestReader, num: int, total: int) -> CountStatistics:
    histogram = reader.counts("histogram")
    if len(histogram) > 64 or sum(histogram) != num:
        reader.fail("histogram", f"at most 64 counts of {num} in all", histogram)
    for key, expected in (("num", num), ("total", total)):
        if reader.count(key) != expected:
            reader.fail(key, str(expected), reader.count(key))
    maximum = reader.count("maximum", total)
    return CountStatistics(num, total, reader.count("minimum", maximum), maximum, histogram)


def _read_features(reader: ManifestReader, sizes: GraphSizes) -> FeatureStatistics:
    num_values, num_columns = (sizes.feature_dim * rows for rows in (sizes.num_nodes, max(sizes.num_split_sets, 1)))
    if reader.count("num_values") != num_values:
        reader.fail("num_values", str(num_values), reader.count("num_values"))
    return FeatureStatistics(
        num_values=num_values,
        num_nonzero=reader.count("num_nonzero", num_values),
        num_nonfinite=reader.count("num_nonfinite", num_values),
        zero_or_one=reader.flag("zero_or_one"),
        minimum=reader.optional_number("minimum"),
        maximum=reader.optional_number("maximum"),
        mean_norm=reader.optional_number("mean_norm"),
        max_norm=reader.optional_number("max_norm"),
        fingerprint=reader.hexadecimal("fingerprint", _FINGERPRINT),
        columns=_read_columns(reader, "columns", num_columns),
    )


def _read_columns(reader: ManifestReader, key: str, num_columns: int) -> tuple[ColumnStatistics, ...]:
    columns, finite = reader.inners(key, optional=True), "a finite number"
    if columns and len(columns) != num_columns:
        reader.fail(key, f"{num_columns} columns", f"{len(columns)} columns")
    return tuple(
        ColumnStatistics(
            own.number("mean", finite, -_LARGEST, _LARGEST),
            own.number("deviation", f"{finite} of at least 0", 0, _LARGEST),
            own.number("nonzero", "a share", 0, 1),
        )
        for own in columns
    )


def _read_target(reader: ManifestReader, most: int) -> TargetStatistics:
    std = reader.optional_number("std")
    if std is not None and std < 0:
        reader.fail("std", "a number of at least 0", std)
    return TargetStatistics(reader.count("num_labelled", most), reader.optional_number("mean"), std)


def _checked_classes(
    reader: ManifestReader,
    rows: Sequence[tuple[int, ...]],
    sizes: GraphSizes,
    num_labelled: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """Checks the numbers of nodes by class: their sum must be the number of labelled nodes. For answers, no number may exceed the number of labelled nodes."""
    num_classes, several = sizes.num_classes, sizes.label_kind == "answers"
    right = len(rows) == len(num_labelled) and all(
        len(row) == num_classes and (max(row, default=0) <= count if several else sum(row) == count)
        for row, count in zip(rows, num_labelled, strict=True)
    )
    if not right:
        most = f"at most {num_labelled} each" if several else f"{num_labelled} in all"
        reader.fail("class_counts", f"{len(num_labelled)} rows of {num_classes} counts, {most}", rows)
    return tuple(rows)


def _read_split(reader: ManifestReader, sizes: GraphSizes) -> SplitStatistics:
    num_nodes, kind = sizes.num_nodes, sizes.label_kind
    counts, labelled = reader.counts("num_nodes"), reader.counts("num_labelled")
    if len(counts) != len(SPLIT_NAMES) or sum(counts) != num_nodes:
        reader.fail("num_nodes", f"{len(SPLIT_NAMES)} counts, {num_nodes} in all", counts)
    if len(labelled) != len(SPLIT_NAMES) or any(part > count for part, count in zip(labelled, counts, strict=True)):
        reader.fail("num_labelled", f"{len(SPLIT_NAMES)} counts of at most {counts}", labelled)
    classes = None
    if not reader.is_null("class_counts"):
        classes = _checked_classes(reader, reader.rows_of_counts("class_counts"), sizes, labelled)
    target = reader.optional_inner("training_target")
    if (target is not None) != (kind == "value"):
        reader.fail("training_target", "an object exactly where label_kind is 'value'", target)
    targets = reader.inners("training_targets", optional=True)
    if len(targets) != (several := (sizes.num_classes or 0) * (kind == "values")):
        reader.fail("training_targets", f"{several} targets", f"{len(targets)} targets")
    edges = agreeing = None
    if kind == "class":
        edges = reader.count("num_training_edges", sizes.num_edges)
        agreeing = reader.count("num_agreeing_edges", edges)
    return SplitStatistics(
        num_nodes=counts,
        num_labelled=labelled,
        class_counts=classes,
        training_target=None if target is None else _read_target(target, labelled[1]),
        training_targets=tuple(_read_target(each, labelled[1]) for each in targets),
        num_training_edges=edges,
        num_agreeing_edges=agreeing,
        digest=reader.hexadecimal("digest", _DIGEST),
        weighted_homophily=reader.newer_number("weighted_homophily", 0, 1),
    )
