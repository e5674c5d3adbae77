"""Messages between a sampler and the owners of partitions: frozen requests, and replies of plain numpy arrays.

Node ids are stored ids (owner = searchsorted(offsets)). Only `FindNodes` has permanent ids, which it translates into stored ids. All nodes in `node` belong to
the owner. `member` may have nodes of other owners; the reply is only about the owner's nodes, in the order of `member`. Every request is idempotent, so it may
be sent again after a failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

WalkDirection = Literal["in", "out", "both"]
Scheme = Literal["uniform", "weight", "degree", "labor", "last"]
EdgeColumn = Literal["id", "weight", "time", "feature"]


@dataclass(frozen=True)
class SampleNeighbors:
    """Draw up to `fanout` neighbors of each node (-1: all) by the method `scheme`."""

    node: np.ndarray  # [n]
    fanout: int
    key: int  # key of the random stream of (seed, epoch, batch, hop)
    direction: WalkDirection = "in"  # "in": sources of in-edges; "out": ends of out-edges; "both"
    scheme: Scheme = "uniform"
    replace: bool = False
    columns: tuple[EdgeColumn, ...] = ()  # columns of the drawn edges in the reply
    until: np.ndarray | None = None  # int64 [n]: only edges of node i with time <= until[i]; None: all edges


@dataclass(frozen=True)
class SampleForBatches:
    """Several `SampleNeighbors` in one request, one for each batch. Batch b draws neighbors of node[start[b]:start[b + 1]] with the key key[b]."""

    node: np.ndarray  # [n]
    start: np.ndarray  # int64 [batches + 1]
    key: np.ndarray  # uint64 [batches]
    fanout: int
    direction: WalkDirection = "in"
    scheme: Scheme = "uniform"
    replace: bool = False
    columns: tuple[EdgeColumn, ...] = ()
    until: np.ndarray | None = None  # int64 [n]


@dataclass(frozen=True)
class InducedEdges:
    """For each node of `member` that the owner has, list its in-neighbors that are also in `member`, as positions in `member`."""

    member: np.ndarray  # [k], distinct; may include nodes of other owners
    columns: tuple[EdgeColumn, ...] = ()  # columns of the edges in the reply


@dataclass(frozen=True)
class NeighborLists:
    """Reply: node i has count[i] entries of `neighbor`. They are sorted by permanent id or, if edges have times, by (time, permanent id)."""

    count: np.ndarray  # int64 [n]
    neighbor: np.ndarray  # [sum(count)]: node ids, or positions for InducedEdges
    edge_id: np.ndarray | None = None  # int64 [sum(count)]
    edge_weight: np.ndarray | None = None  # float32 [sum(count)]
    edge_time: np.ndarray | None = None  # int64 [sum(count)]
    edge_feature: np.ndarray | None = None  # float32 [sum(count), edge_feature_dim]


@dataclass(frozen=True)
class FetchRows:
    """Read columns of these nodes."""

    node: np.ndarray  # [n]
    feature: bool = True
    split_set: int | None = None
    encodings: tuple[str, ...] = ()  # names of stored encodings (graphmill.storage.format.encodings)


@dataclass(frozen=True)
class NodeRows:
    """Reply: one row per node, in the order of the request."""

    original_id: np.ndarray  # int64 [n]
    # Features in their stored form (`graphmill.storage.format.feature_rows`). `Router.fetch` converts them to float32 [n, feature_dim].
    feature: np.ndarray | None
    label: np.ndarray | None  # int64 or float32 [n], or int8 [n, num_classes]
    split: np.ndarray | None  # int8 [n]
    encoding: np.ndarray | None = None  # float32 [n, sum of dims]: the requested encodings, concatenated

    def take(self, rows: np.ndarray) -> "NodeRows":
        """The rows at these positions, in the order of the positions."""
        taken = {name: None if column is None else column.take(rows, axis=0) for name, column in vars(self).items()}
        return NodeRows(**taken)  # type: ignore[arg-type]  # permanent ids are always there


@dataclass(frozen=True)
class ListSplit:
    """List the owner's nodes whose split code in the split set `split_set` is `code`."""

    split_set: int
    code: int


@dataclass(frozen=True)
class ListLinks:
    """List the stored links of a split, and the stored pairs that are not links. Only links and pairs that begin at the owner's nodes are listed."""

    split: int


@dataclass(frozen=True)
class LinkRows:
    """Reply: pairs of nodes. A node is given by its number, which is its rank by permanent id."""

    source: np.ndarray  # int64 [m]
    destination: np.ndarray  # int64 [m]
    is_link: np.ndarray  # int8 [m]
    count: np.ndarray  # int64 [m]: number of stored negatives of each link
    negative: np.ndarray  # int64 [sum(count)]: nodes that replace the link's destination
    time: np.ndarray | None = None  # int64 [m]; only in a graph whose edges have times
    relation: np.ndarray | None = None  # int64 [m]; only in a knowledge graph


@dataclass(frozen=True)
class ListChunk:
    """List the owner's nodes in the chunks [chunk, chunk + count). Node v is in chunk floor(hash(key, v) / 2^64 · num_chunks)."""

    key: int
    chunk: int
    num_chunks: int
    count: int = 1


@dataclass(frozen=True)
class FindNodes:
    """List the owner's nodes with these permanent ids, in the order of the ids."""

    original_id: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class ListGroups:
    """Read the locality group of each node."""

    node: np.ndarray  # [n]


@dataclass(frozen=True)
class NodeGroups:
    """Reply: locality groups in the order of the request."""

    group: np.ndarray  # int32 [n]


@dataclass(frozen=True)
class NodeList:
    """Reply: nodes with their permanent ids and times."""

    node: np.ndarray  # [n]
    original_id: np.ndarray  # int64 [n]
    time: np.ndarray | None = None  # int64 [n], in a graph whose nodes have times

    def take(self, rows: np.ndarray | slice) -> "NodeList":
        """The nodes at these positions, in the order of the positions."""
        return NodeList(self.node[rows], self.original_id[rows], None if self.time is None else self.time[rows])


GivenRoots = NodeList | Mapping[str, NodeList]  # by type, if roots have another type than the options name


@dataclass(frozen=True)
class ListNeighbors:
    """List all neighbors of each node: the sources of its in-edges ("in"), the ends of its out-edges ("out"), or both, in-edges first."""

    node: np.ndarray  # [n]
    direction: WalkDirection = "in"
    max_degree: np.ndarray | None = None  # int64 [n]: if a list is longer, the reply has only its length
    by_weight: bool = False  # whether the reply has the weights of edges


@dataclass(frozen=True)
class InducedSubgraphs:
    """`member` consists of several sets, which may share nodes. For each entry whose node the owner has, list its in-neighbors in the entry's set.

    In a relation between two types, `member` has nodes of the source type. The lists then belong to the entries of `target` whose nodes the owner has.
    """

    member: np.ndarray  # [k]: set g is member[graph_ptr[g]:graph_ptr[g + 1]], distinct nodes
    graph_ptr: np.ndarray  # int64 [num_sets + 1]
    columns: tuple[EdgeColumn, ...] = ()  # columns of the edges in the reply
    target: np.ndarray | None = None  # [t]: set g has target[target_ptr[g]:target_ptr[g + 1]]; None: `member`
    target_ptr: np.ndarray | None = None  # int64 [num_sets + 1]


@dataclass(frozen=True)
class StepWalks:
    """Move each walk from its node to a uniform neighbor. A walk at a node without neighbors stays."""

    node: np.ndarray  # [n]
    walk: np.ndarray  # int64 [n]: id of each walk, which is the counter of its random number
    key: int  # key of the random stream of (seed, epoch, batch, step)
    direction: WalkDirection = "in"


@dataclass(frozen=True)
class DegreeLists:
    """Reply: one list per node, in the order of the request. A list has the order of `NeighborLists`."""

    degree: np.ndarray  # int64 [n]
    count: np.ndarray  # int64 [n]: the degree, or 0 if the reply leaves out the list
    neighbor: np.ndarray  # [sum(count)]
    weight: np.ndarray | None = None  # float32 [sum(count)], finite and at least 0


@dataclass(frozen=True)
class ForParts:
    """Requests to several parts, in one message to the owner that has all of these parts."""

    parts: tuple[str, ...]  # names of the parts (`part_name`)
    requests: "tuple[PartRequest, ...]"  # one for each part


@dataclass(frozen=True)
class PartReplies:
    """Reply to `ForParts`: one reply for each request."""

    replies: "tuple[PartReply, ...]"


PartRequest = (
    SampleNeighbors
    | SampleForBatches
    | InducedEdges
    | FetchRows
    | ListSplit
    | ListLinks
    | ListChunk
    | FindNodes
    | ListGroups
    | ListNeighbors
    | InducedSubgraphs
    | StepWalks
)
PartReply = NeighborLists | NodeRows | NodeList | NodeGroups | DegreeLists | LinkRows
Request = PartRequest | ForParts
Reply = PartReply | PartReplies


def part_name(partition: int, name: str = "") -> str:
    """The name of a part: a partition of a plain graph, or the type or relation `name` of a partition of a typed graph."""
    return f"{partition}/{name}" if name else str(partition)


def partition_of(part: str) -> int:
    """The partition of a part."""
    return int(part.partition("/")[0])


def messages_in(message: Request | Reply) -> tuple[PartRequest | PartReply, ...]:
    """The messages within a `ForParts` or `PartReplies`. Any other message has none."""
    if isinstance(message, ForParts):
        return message.requests
    return message.replies if isinstance(message, PartReplies) else ()


def join_columns(pieces: list[np.ndarray | None]) -> np.ndarray | None:
    """Concatenates one column of several replies. Returns None if the replies do not have the column."""
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if present else None
