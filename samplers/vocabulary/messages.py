"""The vocabulary between a sampler and the owners of partitions: frozen requests, and replies of plain numpy arrays.

Node ids in requests and replies are the stored graph's ids (owner = searchsorted(offsets)), except in `FindNodes`, which
translates permanent ids into stored ones. A request about the nodes `node` names only nodes that its owner owns; of `member` it answers for those that
are its own, in their order. Every request is idempotent, so it may be sent again after a failure.
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
    """Draw up to `fanout` neighbors of each node (-1: all), as `scheme` says."""

    node: np.ndarray  # [n]
    fanout: int
    key: int  # stream of (seed, epoch, batch, hop)
    direction: WalkDirection = "in"  # "out": among the nodes that its out-edges end in; "both": among all of these
    scheme: Scheme = "uniform"
    replace: bool = False
    columns: tuple[EdgeColumn, ...] = ()  # what to tell of each edge drawn
    until: np.ndarray | None = None  # int64 [n]: edges of node i no later than this alone; None: of all times


@dataclass(frozen=True)
class SampleForBatches:
    """What several `SampleNeighbors` ask, one after the other: number b of node[start[b]:start[b + 1]] by key[b]."""

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
    """List the in-neighbors of each owned node of `member` that are among `member`, as positions in it."""

    member: np.ndarray  # [k], distinct; other owners' nodes too
    columns: tuple[EdgeColumn, ...] = ()  # what to tell of each edge


@dataclass(frozen=True)
class NeighborLists:
    """Reply: for node i, count[i] entries of `neighbor`, in ascending permanent id or, where edges have times, in (time, permanent id)."""

    count: np.ndarray  # int64 [n]
    neighbor: np.ndarray  # [sum(count)]: node ids, or positions for InducedEdges
    edge_id: np.ndarray | None = None  # int64 [sum(count)]
    edge_weight: np.ndarray | None = None  # float32 [sum(count)]
    edge_time: np.ndarray | None = None  # int64 [sum(count)]
    edge_feature: np.ndarray | None = None  # float32 [sum(count), edge_feature_dim]


@dataclass(frozen=True)
class FetchRows:
    """Read rows of node columns."""

    node: np.ndarray  # [n]
    feature: bool = True
    split_set: int | None = None
    encodings: tuple[str, ...] = ()  # names of stored encodings (graphmill.storage.format.encodings)


@dataclass(frozen=True)
class NodeRows:
    """Reply: rows in the order asked for."""

    original_id: np.ndarray  # int64 [n]
    feature: (
        np.ndarray | None
    )  # as stored (`graphmill.storage.format.feature_rows`); what `Router.fetch` gives: float32 [n, feature_dim]
    label: np.ndarray | None  # int64 or float32 [n], or int8 [n, num_classes]: answers
    split: np.ndarray | None  # int8 [n]
    encoding: np.ndarray | None = None  # float32 [n, sum of dims]: the encodings asked for, side by side

    def take(self, rows: np.ndarray) -> "NodeRows":
        """Some of them, in this order."""
        taken = {name: None if column is None else column.take(rows, axis=0) for name, column in vars(self).items()}
        return NodeRows(**taken)  # type: ignore[arg-type]  # permanent ids are always there


@dataclass(frozen=True)
class ListSplit:
    """List the owned nodes whose code in `split_set` is `code`."""

    split_set: int
    code: int


@dataclass(frozen=True)
class ListLinks:
    """List the stored links of a split that begin at owned nodes, and the pairs that are none."""

    split: int


@dataclass(frozen=True)
class LinkRows:
    """Reply: pairs of nodes, by their numbers in ascending permanent id."""

    source: np.ndarray  # int64 [m]
    destination: np.ndarray  # int64 [m]
    is_link: np.ndarray  # int8 [m]
    count: np.ndarray  # int64 [m]: negatives of its own
    negative: np.ndarray  # int64 [sum(count)], ends in place of the destination
    time: np.ndarray | None = None  # int64 [m], in a graph whose edges have times
    relation: np.ndarray | None = None  # int64 [m], in a knowledge graph


@dataclass(frozen=True)
class ListChunk:
    """List the owned nodes of `count` chunks from `chunk` on, of `num_chunks`.

    Node v is in chunk floor(hash(key, v) / 2^64 · num_chunks).
    """

    key: int
    chunk: int
    num_chunks: int
    count: int = 1


@dataclass(frozen=True)
class FindNodes:
    """List the owned nodes among these permanent ids, in this order."""

    original_id: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class ListGroups:
    """Tell the locality group of each node."""

    node: np.ndarray  # [n]


@dataclass(frozen=True)
class NodeGroups:
    """Reply: in the order asked for."""

    group: np.ndarray  # int32 [n]


@dataclass(frozen=True)
class NodeList:
    """Reply: nodes with the numbers that order them."""

    node: np.ndarray  # [n]
    original_id: np.ndarray  # int64 [n]
    time: np.ndarray | None = None  # int64 [n], in a graph whose nodes have times

    def take(self, rows: np.ndarray | slice) -> "NodeList":
        """Some of them, in this order."""
        return NodeList(self.node[rows], self.original_id[rows], None if self.time is None else self.time[rows])


# Of a typed graph by type, where they are of others than the options name.
GivenRoots = NodeList | Mapping[str, NodeList]


@dataclass(frozen=True)
class ListNeighbors:
    """List all neighbors of each node: sources of its in-edges, ends of its out-edges, or first these and then those."""

    node: np.ndarray  # [n]
    direction: WalkDirection = "in"
    max_degree: np.ndarray | None = None  # int64 [n]: a longer list is left out, its length is told
    by_weight: bool = False  # tell the weights of edges, too


@dataclass(frozen=True)
class InducedSubgraphs:
    """List the in-neighbors of the owned entries of `member` within their own set; sets may share nodes.

    Of a relation between two types, `member` are nodes of the source type, and the owned entries are those of `target`.
    """

    member: np.ndarray  # [k]: set g is member[graph_ptr[g]:graph_ptr[g + 1]], distinct nodes
    graph_ptr: np.ndarray  # int64 [num_sets + 1]
    columns: tuple[EdgeColumn, ...] = ()  # what to tell of each edge
    target: np.ndarray | None = None  # [t]: of set g target[target_ptr[g]:target_ptr[g + 1]]; None: `member`
    target_ptr: np.ndarray | None = None  # int64 [num_sets + 1]


@dataclass(frozen=True)
class StepWalks:
    """Move each walk from its node to a uniform neighbor, or leave it where there is none."""

    node: np.ndarray  # [n]
    walk: np.ndarray  # int64 [n], numbers of the walks: counters of their draws
    key: int  # stream of (seed, epoch, batch, step)
    direction: WalkDirection = "in"


@dataclass(frozen=True)
class DegreeLists:
    """Reply: lists in the order asked for, each as stored (`NeighborLists`)."""

    degree: np.ndarray  # int64 [n]
    count: np.ndarray  # int64 [n]: the degree, or 0 where the list was left out
    neighbor: np.ndarray  # [sum(count)]
    weight: np.ndarray | None = None  # float32 [sum(count)], finite and at least 0


@dataclass(frozen=True)
class ForParts:
    """What several types and relations of a typed graph are asked, in one message to the owner of a partition of them all."""

    parts: tuple[str, ...]  # names of types and relations
    requests: "tuple[PartRequest, ...]"  # one of each


@dataclass(frozen=True)
class PartReplies:
    """Reply: one to each request of `ForParts`."""

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


def messages_in(message: Request | Reply) -> tuple[PartRequest | PartReply, ...]:
    """Those that a message about several parts holds; none of any other."""
    if isinstance(message, ForParts):
        return message.requests
    return message.replies if isinstance(message, PartReplies) else ()


def join_columns(pieces: list[np.ndarray | None]) -> np.ndarray | None:
    """One column of several replies as one array; None where the replies do not have it."""
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if present else None
