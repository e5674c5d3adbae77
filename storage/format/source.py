"""The interface between importers and ingestion: a graph as streams that can be read again from the start.

Importers need not check their chunks: `graphmill.storage.ingestion.ingest` checks ranges of ids, shapes, finite features, ranges of labels, and split codes. A
source numbers its node rows 0 … num_nodes-1; edges refer to these numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from graphmill.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

Progress = Callable[[str, int, int | None], None]  # gets the stage, units done, units in all (None: unknown)

# Codes of a split column (int8), one per node and split set.
SPLIT_NONE, SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST = 0, 1, 2, 3
SPLIT_NAMES = ("none", "train", "valid", "test")
SPLITS = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}  # a run trains on these or scores them


REVERSE = "rev_"  # prefix of added reverse relations, as in PyG's ToUndirected


class Relation(NamedTuple):
    """A type of edges in a typed graph, and the types of nodes that they join."""

    source: str
    name: str
    target: str

    def __str__(self) -> str:
        return "--".join(self)

    @classmethod
    def of(cls, name: "str | Sequence[str]") -> "Relation":
        """The relation of three names, or of "source--name--target". Raises ConfigError for anything else."""
        names = name.split("--") if isinstance(name, str) else tuple(name)
        if len(names) != 3:
            raise ConfigError(f"relation: expected SOURCE--NAME--TARGET, got {name!r}")
        return cls(*names)

    @property
    def reverse(self) -> "Relation":
        """The reverse relation by the names of ingestion: rev_NAME for NAME, and NAME for rev_NAME."""
        name = self.name.removeprefix(REVERSE) if self.name.startswith(REVERSE) else REVERSE + self.name
        return Relation(self.target, name, self.source)


def check_class_names(where: str, names: tuple[str, ...], num_classes: int | None) -> None:
    """Raises DataError unless there is a different name for each class or label, or no names."""
    if names and not len(names) == len(set(names)) == num_classes:
        got = f"{len(names)}, {len(set(names))} of them different"
        raise DataError(
            f"{where}: class_names: expected {num_classes or 'no'} different names, got {got}; correct them"
        )


@dataclass(frozen=True)
class EdgeChunk:
    """Some directed edges src → dst."""

    src: np.ndarray  # int64 [k], node rows
    dst: np.ndarray  # int64 [k], node rows
    weight: np.ndarray | None = None  # float32 [k]
    feature: np.ndarray | None = None  # float32 [k, edge_feature_dim]
    time: np.ndarray | None = None  # int64 [k], time of each edge, in any unit


@dataclass(frozen=True)
class NodeChunk:
    """Some consecutive node rows; successive chunks follow each other without a gap."""

    feature: np.ndarray | None = None  # float32 [k, feature_dim]
    # int64 [k] classes (-1: none), float32 [k] or [k, L] numbers (NaN: none), or int8 [k, L] answers: 1 yes, 0 no, -1 unknown
    label: np.ndarray | None = None
    split: np.ndarray | None = None  # int8 [k, num_split_sets], SPLIT_* codes
    original_id: np.ndarray | None = None  # int64 [k], ascending over the whole graph; None: the row numbers
    time: np.ndarray | None = None  # int64 [k], in the unit of the edges' times
    string_id: "pa.LargeStringArray | None" = None  # [k], different over the whole graph; excludes original_id


FEATURE_KINDS = ("number", "list", "categories", "hashed", "embedded")


@dataclass(frozen=True)
class FeatureColumn:
    """A column of a table of features, and what its training rows taught: later tables are read in the same way."""

    name: str
    kind: str  # of FEATURE_KINDS
    width: int  # number of features; a number with `has_nulls` has two, the second is 1 for an empty field
    mean: float = 0.0  # of a number: the value for an empty field
    has_nulls: bool = False  # of a number: whether the table has empty fields
    # Sorted. Categories: the value of each feature. Embedded: the values with the numbers 1, 2 … (0: empty, or not in a training row).
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceInfo:
    """Facts about a source that are known before its streams are read."""

    name: str  # "npz:amazon_cs"
    num_nodes: int
    num_edges: int | None = None  # a hint for progress and budgets; None: unknown
    feature_dim: int = 0  # 0: the graph has no node features
    feature_columns: tuple[FeatureColumn, ...] = ()  # columns of a table; the sum of their widths is feature_dim
    edge_feature_dim: int = 0
    # Names of the relations of a knowledge graph: an edge's one feature is the number of its relation.
    relations: tuple[str, ...] = ()
    has_edge_weight: bool = False
    has_edge_time: bool = False
    has_node_time: bool = False
    has_string_id: bool = False  # nodes have strings as ids
    has_label: bool = False
    num_classes: int | None = None  # None with labels: counted (integers) or a regression target (floats)
    class_names: tuple[str, ...] = ()  # of the classes, or of the L labels, in order; empty: numbers name them
    label_bytes: int = 8  # a hint: bytes of the labels of one node
    num_split_sets: int = 0
    undirected_once: bool = False  # each undirected edge is given once: ingestion adds the reverse
    symmetric: bool = False  # the source gives every edge's reverse, too, so out-edges are in-edges
    provenance: Mapping[str, str] | None = None  # file names, versions, options, for the manifest


class NodeSource(Protocol):
    """Nodes of one type as a stream that can be read any number of times, each time the same."""

    @property
    def info(self) -> SourceInfo: ...

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        """Yields chunks of at most about `chunk_nodes` nodes, from row 0 up."""
        ...


class EdgeSource(Protocol):
    """Edges of one relation as a stream that can be read any number of times, each time the same."""

    @property
    def info(self) -> SourceInfo: ...

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields chunks of at most about `chunk_edges` edges."""
        ...


class GraphSource(NodeSource, EdgeSource, Protocol):
    """A graph with one type of nodes and one type of edges."""


@dataclass(frozen=True)
class TypedSource:
    """A graph with several types of nodes and of edges. Edges refer to rows of their source and target types. The fields of a relation's `info` that
    describe nodes are ignored."""

    name: str
    nodes: Mapping[str, NodeSource]
    relations: Mapping[Relation, EdgeSource]
    provenance: Mapping[str, str] = field(default_factory=dict)
