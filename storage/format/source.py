"""Defines the interface between importers and ingestion: a graph as streams that can be read again from the start.

Importers need not check their chunks. `graphmill.storage.ingestion.ingest` checks the ranges of ids and labels, shapes, finite features, and split codes. The
node rows of a source are 0 … num_nodes-1. Edges refer to nodes by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from graphmill.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

# called with the stage, the count of finished units, and the count of all units (None: unknown)
Progress = Callable[[str, int, int | None], None]

# Codes of a split column (int8), one per node and split set.
SPLIT_NONE, SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST = 0, 1, 2, 3
SPLIT_NAMES = ("none", "train", "valid", "test")
# the codes of nodes that a run trains on or scores
SPLITS = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}


REVERSE = "rev_"  # prefix of added reverse relations, like in PyG's ToUndirected


class Relation(NamedTuple):
    """A type of edges in a typed graph: its name, and the two types of nodes that the edges join."""

    source: str
    name: str
    target: str

    def __str__(self) -> str:
        return "--".join(self)

    @classmethod
    def of(cls, name: "str | Sequence[str]") -> "Relation":
        """Makes a relation from three names, or from "source--name--target". Raises ConfigError for any other value."""
        names = name.split("--") if isinstance(name, str) else tuple(name)
        if len(names) != 3:
            raise ConfigError(f"relation: expected SOURCE--NAME--TARGET, got {name!r}")
        return cls(*names)

    @property
    def reverse(self) -> "Relation":
        """Returns the reverse relation, named as ingestion names it: rev_NAME for NAME, and NAME for rev_NAME."""
        name = self.name.removeprefix(REVERSE) if self.name.startswith(REVERSE) else REVERSE + self.name
        return Relation(self.target, name, self.source)


def check_class_names(where: str, names: tuple[str, ...], num_classes: int | None) -> None:
    """Raises DataError if there are names but not a different name for each class or label."""
    if names and not len(names) == len(set(names)) == num_classes:
        got = f"{len(names)}, {len(set(names))} of them different"
        raise DataError(
            f"{where}: class_names: expected {num_classes or 'no'} different names, got {got}; correct them"
        )


@dataclass(frozen=True)
class EdgeChunk:
    """A chunk of directed edges src → dst."""

    src: np.ndarray  # int64 [k], node rows
    dst: np.ndarray  # int64 [k], node rows
    weight: np.ndarray | None = None  # float32 [k]
    feature: np.ndarray | None = None  # float32 [k, edge_feature_dim]
    time: np.ndarray | None = None  # int64 [k], time of each edge, in any unit


@dataclass(frozen=True)
class NodeChunk:
    """A chunk of consecutive node rows. There are no gaps between successive chunks."""

    feature: np.ndarray | None = None  # float32 [k, feature_dim]
    # int64 [k] classes (-1: none), float32 [k] or [k, L] numbers (NaN: none), or int8 [k, L] answers: 1 yes, 0 no, -1 unknown
    label: np.ndarray | None = None
    split: np.ndarray | None = None  # int8 [k, num_split_sets], SPLIT_* codes
    original_id: np.ndarray | None = None  # int64 [k], ascending over the whole graph; None: the row numbers
    time: np.ndarray | None = None  # int64 [k], in the unit of the edges' times
    # [k], all different in the whole graph; not together with original_id
    string_id: "pa.LargeStringArray | None" = None


FEATURE_KINDS = ("number", "list", "categories", "hashed", "embedded")


@dataclass(frozen=True)
class FeatureColumn:
    """A column of a table of features, with the values that were learned from its training rows. Later tables are read with the same values."""

    name: str
    kind: str  # of FEATURE_KINDS
    # count of features; a number column with `has_nulls` has two: the second feature is 1 for an empty field
    width: int
    mean: float = 0.0  # for a number column: the value that replaces an empty field
    has_nulls: bool = False  # for a number column: whether the table has empty fields
    # Sorted. For categories: the value of each feature. For embedded values: the values with the codes 1, 2 … (code 0: empty, or not in a training row).
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceInfo:
    """Facts about a source that are known before its streams are read."""

    name: str  # "npz:amazon_cs"
    num_nodes: int
    num_edges: int | None = None  # an estimate for progress and budgets; None: unknown
    feature_dim: int = 0  # 0: the graph has no node features
    # if features come from a table: its columns; the sum of their widths is feature_dim
    feature_columns: tuple[FeatureColumn, ...] = ()
    edge_feature_dim: int = 0
    # Names of the relations of a knowledge graph. Each edge has one feature: the number of its relation.
    relations: tuple[str, ...] = ()
    has_edge_weight: bool = False
    has_edge_time: bool = False
    has_node_time: bool = False
    has_string_id: bool = False  # nodes have strings as ids
    has_label: bool = False
    # if None with labels: ingestion counts classes (integers), or labels are a regression target (floats)
    num_classes: int | None = None
    # names of the classes, or of the L labels, in order; empty: they have only numbers
    class_names: tuple[str, ...] = ()
    label_bytes: int = 8  # an estimate: bytes of the labels of one node
    num_split_sets: int = 0
    undirected_once: bool = False  # the source gives each undirected edge once, and ingestion adds the reverse
    # the source also gives the reverse of every edge, so lists of out-edges equal lists of in-edges
    symmetric: bool = False
    provenance: Mapping[str, str] | None = None  # file names, versions, options, for the manifest


class NodeSource(Protocol):
    """Nodes of one type, as a stream that can be read any number of times and always gives the same nodes."""

    @property
    def info(self) -> SourceInfo: ...

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        """Yields chunks of at most about `chunk_nodes` nodes, starting at row 0."""
        ...


class EdgeSource(Protocol):
    """Edges of one relation, as a stream that can be read any number of times and always gives the same edges."""

    @property
    def info(self) -> SourceInfo: ...

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields chunks of at most about `chunk_edges` edges."""
        ...


class GraphSource(NodeSource, EdgeSource, Protocol):
    """A graph with one type of nodes and one type of edges."""


@dataclass(frozen=True)
class TypedSource:
    """A graph with several types of nodes and of edges. Edges refer to rows of their source and target types. In the `info` of a relation,
    the fields that describe nodes are ignored."""

    name: str
    nodes: Mapping[str, NodeSource]
    relations: Mapping[Relation, EdgeSource]
    provenance: Mapping[str, str] = field(default_factory=dict)
