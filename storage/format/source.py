"""Defines the interface between importers and ingestion. A source gives a graph as streams, which can be read again from the start.

Importers need not check their chunks. `graphmill.storage.ingestion.ingest` checks shapes, split codes, the ranges of ids and labels, and that features are
finite. The node rows of a source are 0 … num_nodes-1. Edges refer to nodes by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from graphmill.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

# a function that is called with the stage, the number of finished units, and the number of all units (None: unknown)
Progress = Callable[[str, int, int | None], None]

# The codes in a split column (int8). A node has one code for each split set.
SPLIT_NONE, SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST = 0, 1, 2, 3
SPLIT_NAMES = ("none", "train", "valid", "test")
# codes of the nodes that a run trains on or scores
SPLITS = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}


REVERSE = "rev_"  # prefix of the reverse relations that ingestion adds, as in PyG's ToUndirected


class Relation(NamedTuple):
    """A type of edges in a typed graph. It has a name, and the types of its source and target nodes."""

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
        """Returns the reverse relation with the name that ingestion gives it: rev_NAME for NAME, and NAME for rev_NAME."""
        name = self.name.removeprefix(REVERSE) if self.name.startswith(REVERSE) else REVERSE + self.name
        return Relation(self.target, name, self.source)


def check_class_names(where: str, names: tuple[str, ...], num_classes: int | None) -> None:
    """Raises DataError if some names are given, but not exactly one distinct name for each class or label."""
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
    """A chunk of consecutive node rows. A chunk begins at the row after the last row of the previous chunk."""

    feature: np.ndarray | None = None  # float32 [k, feature_dim]
    # int64 [k] classes (-1: none), float32 [k] or [k, L] numbers (NaN: none), or int8 [k, L] answers: 1 yes, 0 no, -1 unknown
    label: np.ndarray | None = None
    split: np.ndarray | None = None  # int8 [k, num_split_sets], SPLIT_* codes
    original_id: np.ndarray | None = None  # int64 [k], ascending over the whole graph; None: the row numbers
    time: np.ndarray | None = None  # int64 [k], in the unit of the edges' times
    # [k], different for all nodes of the graph; a chunk has either these ids or original_id
    string_id: "pa.LargeStringArray | None" = None


FEATURE_KINDS = ("number", "list", "categories", "hashed", "embedded")


@dataclass(frozen=True)
class FeatureColumn:
    """A column in a table of features, with the values learned from its training rows. The same values are used to read later tables."""

    name: str
    kind: str  # one of FEATURE_KINDS
    # number of features; a number column with `has_nulls` has two features: the second is 1 for an empty field
    width: int
    mean: float = 0.0  # in a number column, this value replaces an empty field
    has_nulls: bool = False  # for a number column: whether the table has empty fields
    # Sorted. For categories: the value that each feature stands for. For embedded columns: the values with the codes 1, 2 …; code 0 stands for an empty
    # field and for a value that no training row has.
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceInfo:
    """Facts about a source that are known before its streams are read."""

    name: str  # "npz:amazon_cs"
    num_nodes: int
    num_edges: int | None = None  # an estimate, for progress reports and memory budgets; None: unknown
    feature_dim: int = 0  # 0: the graph has no node features
    # the columns of the table that the features come from; the sum of their widths is feature_dim
    feature_columns: tuple[FeatureColumn, ...] = ()
    edge_feature_dim: int = 0
    # Names of the relations of a knowledge graph. Each edge has one feature: the number of its relation.
    relations: tuple[str, ...] = ()
    has_edge_weight: bool = False
    has_edge_time: bool = False
    has_node_time: bool = False
    has_string_id: bool = False  # nodes have strings as ids
    has_label: bool = False
    # None: if labels are integers, ingestion counts the classes; if labels are floats, they are a regression target
    num_classes: int | None = None
    # names of the classes, or of the L labels, in order; empty: they have no names, only numbers
    class_names: tuple[str, ...] = ()
    label_bytes: int = 8  # estimated size of the labels of one node
    num_split_sets: int = 0
    undirected_once: bool = False  # the source gives each undirected edge once, and ingestion adds the reverse edge
    # the source gives every edge and its reverse, so lists of out-edges equal lists of in-edges
    symmetric: bool = False
    provenance: Mapping[str, str] | None = None  # file names, versions and options, stored in the manifest


class NodeSource(Protocol):
    """A stream of the nodes of one type. It can be read any number of times, and always gives the same nodes."""

    @property
    def info(self) -> SourceInfo: ...

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        """Yields chunks of at most about `chunk_nodes` nodes, from row 0 on."""
        ...


class EdgeSource(Protocol):
    """A stream of the edges of one relation. It can be read any number of times, and always gives the same edges."""

    @property
    def info(self) -> SourceInfo: ...

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields chunks of at most about `chunk_edges` edges."""
        ...


class GraphSource(NodeSource, EdgeSource, Protocol):
    """A graph with one type of nodes and one type of edges."""


@dataclass(frozen=True)
class TypedSource:
    """A graph with several types of nodes and of edges. The ends of an edge are rows of its source type and of its target type. In the `info` of a relation,
    the fields that describe nodes are ignored."""

    name: str
    nodes: Mapping[str, NodeSource]
    relations: Mapping[Relation, EdgeSource]
    provenance: Mapping[str, str] = field(default_factory=dict)
