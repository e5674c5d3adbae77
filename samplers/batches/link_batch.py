"""A batch of links. Its roots are the ends of the links and the nodes of their negatives. Columns of root positions say which roots form a pair."""

from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from graphmill.core.offsets import pointers
from graphmill.samplers.batches.minibatch import Array, MiniBatch, TorchBatch, to_torch
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.storage.format.source import Relation

_OF_EDGES = ("edge_coefficient", "edge_id", "edge_weight", "edge_time", "edge_feature")
Edges = TypeVar("Edges")  # a minibatch, or the edges of one relation


@dataclass(frozen=True, repr=False)
class OfLinks(Generic[Array]):
    """The links of a batch, in addition to its nodes and edges.

    Link i joins the roots link_source[i] and link_destination[i]. These numbers are positions in `root_index`. If links join two types of a typed graph,
    `root_index` has the roots of the type where links end, `second_index` has the other roots, and positions count through both arrays.
    """

    link_source: Array | None = None  # int64 [m]
    link_destination: Array | None = None  # int64 [m]
    is_link: Array | None = None  # int8 [m]: 1 for a link, 0 for a pair without one
    link_split: Array | None = None  # int8 [m]
    link_relation: Array | None = None  # int64 [m]; only in a knowledge graph
    negative: Array | None = None  # int64 [m, k], roots that replace the destination; -1 pads shorter lists
    negative_source: Array | None = None  # int64 [m, k]: a source for each negative; None: the link's source
    # int64 [2, q]: (link, root) pairs. The link's destination is ranked against every root that is not paired with the link. None: against `negative`.
    known: Array | None = None
    top_k: int = 0  # if above 0: return the best top_k destinations of each source, without those in `known`


@dataclass(frozen=True, repr=False)
class LinkBatch(OfLinks[np.ndarray], MiniBatch):
    """A batch of links of a plain graph."""


@dataclass(frozen=True, repr=False)
class TypedLinkBatch(OfLinks[np.ndarray], TypedBatch[np.ndarray]):
    """A batch of links of a typed graph."""


class _Tensors(OfLinks[torch.Tensor]):
    @property
    def target(self) -> torch.Tensor:
        """float32 [m]: 1 for links, 0 for other pairs."""
        assert self.is_link is not None
        return self.is_link.float()

    @property
    def predicted_id(self: "_HasRoots") -> torch.Tensor:
        """int64 [m]: permanent ids of the sources."""
        assert self.link_source is not None
        return self.root_id[self.link_source]

    @property
    def predicted_split(self) -> torch.Tensor | None:
        return self.link_split


class _HasRoots(Protocol):
    link_source: torch.Tensor | None

    @property
    def root_id(self) -> torch.Tensor: ...


@dataclass(frozen=True, repr=False)
class TorchLinkBatch(_Tensors, TorchBatch):
    """`LinkBatch` as tensors."""

    @property
    def root_id(self) -> torch.Tensor:
        """int64 [r]: permanent ids of the roots."""
        return self.node_id[self.root_index]


@dataclass(frozen=True, repr=False)
class TorchTypedLinkBatch(_Tensors, TypedBatch[torch.Tensor]):
    """`TypedLinkBatch` as tensors."""

    @property
    def root_id(self) -> torch.Tensor:
        """int64 [r + r2]: permanent ids of the roots. The roots of `second_type` come last."""
        first = self.roots.node_id[self.root_index]
        if self.second_index is None:
            return first
        return torch.cat([first, self.nodes[self.second_type].node_id[self.second_index]])


def links_to_torch(batch: LinkBatch | TypedLinkBatch) -> TorchLinkBatch | TorchTypedLinkBatch:
    """Tensors over the batch's own arrays, like `to_torch` and `typed_to_torch`."""
    own = {field.name: getattr(batch, field.name) for field in fields(OfLinks)}
    tensors: dict[str, Any] = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in own.items()
    }
    if isinstance(batch, TypedLinkBatch):
        return TorchTypedLinkBatch(**vars(typed_to_torch(batch)), **tensors)
    return TorchLinkBatch(**vars(to_torch(batch)), **tensors)


def without_links(batch: MiniBatch, source: np.ndarray, destination: np.ndarray) -> MiniBatch:
    """Removes the edges that join these pairs of permanent ids, in either direction. All nodes stay."""
    return _without(batch, batch.node_id, batch.node_id, source, destination, either_way=True)


def without_typed_links(
    batch: TypedBatch[np.ndarray],
    relation: Relation,
    reverse: Relation | None,
    source: np.ndarray,
    destination: np.ndarray,
) -> TypedBatch[np.ndarray]:
    """Removes the edges of the relation that join these pairs, and the reverse edges of the relation `reverse`. Within one type, removes edges in either
    direction."""
    edges, either_way = dict(batch.edges), relation.source == relation.target
    for each, pairs in ((relation, (source, destination)), (reverse, (destination, source))):
        if each is not None:
            of_sources, of_targets = batch.nodes[each.source].node_id, batch.nodes[each.target].node_id
            edges[each] = _without(edges[each], of_sources, of_targets, *pairs, either_way=either_way)
    return replace(batch, edges=edges)


def _without(
    edges: Edges,
    source_id: np.ndarray,
    target_id: np.ndarray,
    source: np.ndarray,
    destination: np.ndarray,
    *,
    either_way: bool,
) -> Edges:
    """Removes the edges that join these pairs of permanent ids. `source_id` and `target_id`: permanent ids of the nodes, by their positions in `edges`."""
    table: Any = edges
    if not len(source):
        return edges
    begins = np.unique(np.concatenate([source, destination]) if either_way else source)
    ends = begins if either_way else np.unique(destination)
    begin = _places(begins, source_id)[table.indices]
    end = np.repeat(_places(ends, target_id), np.diff(table.indptr))
    among = np.flatnonzero((begin >= 0) & (end >= 0))
    pairs = _pair(np.searchsorted(begins, source), np.searchsorted(ends, destination), len(ends), either_way)
    left_out = among[np.isin(_pair(begin[among], end[among], len(ends), either_way), pairs)]
    if not len(left_out):
        return edges
    kept = np.ones(len(table.indices), bool)
    kept[left_out] = False
    row = np.searchsorted(table.indptr, left_out, side="right") - 1
    columns = {name: getattr(edges, name, None) for name in _OF_EDGES}
    return replace(
        table,
        indptr=pointers(np.diff(table.indptr) - np.bincount(row, minlength=len(target_id))),
        indices=table.indices[kept],
        **{name: values[kept] for name, values in columns.items() if values is not None},
    )


def _places(ends: np.ndarray, node_id: np.ndarray) -> np.ndarray:
    """int64: the position of each node in `ends`; -1 for nodes that are not in `ends`."""
    place = np.minimum(np.searchsorted(ends, node_id), len(ends) - 1)
    return np.where(ends[place] == node_id, place, -1)


def _pair(begin: np.ndarray, end: np.ndarray, count: int, either_way: bool) -> np.ndarray:
    """int64: one integer per pair. Equal pairs have the same integer; with `either_way`, so do a pair and its reverse."""
    if either_way:
        begin, end = np.minimum(begin, end), np.maximum(begin, end)
    return begin.astype(np.int64) * count + end
