"""A batch of links: a batch whose roots are the ends of links and of their negatives, and which of them make a pair."""

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
    """What a batch of links holds beside its nodes and edges.

    Link i joins the roots link_source[i] and link_destination[i]: places in `root_index`, as all roots here. Where links join two types of a typed graph,
    places in `root_index`, the nodes that they may end at, and `second_index` together.
    """

    link_source: Array | None = None  # int64 [m]
    link_destination: Array | None = None  # int64 [m]
    is_link: Array | None = None  # int8 [m]: 1, or 0 for a pair that is no link
    link_split: Array | None = None  # int8 [m]
    link_relation: Array | None = None  # int64 [m], in a knowledge graph
    negative: Array | None = None  # int64 [m, k], ends in place of the destination; -1 beyond the end of a shorter list
    negative_source: Array | None = None  # int64 [m, k]; None: the link's own source
    known: Array | None = (
        None  # int64 [2, q]: (link, root) that its destination is not ranked against; None: it is ranked by `negative`
    )
    top_k: int = 0  # more: of each source the best destinations are asked for, but those in `known`


@dataclass(frozen=True, repr=False)
class LinkBatch(OfLinks[np.ndarray], MiniBatch):
    """Of a plain graph."""


@dataclass(frozen=True, repr=False)
class TypedLinkBatch(OfLinks[np.ndarray], TypedBatch[np.ndarray]):
    """Of a typed graph."""


class _Tensors(OfLinks[torch.Tensor]):
    @property
    def target(self) -> torch.Tensor:
        """float32 [m]: 1 for links, 0 for pairs that are none."""
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
        """int64 [r + r2]: permanent ids of the roots within their types, the roots of `second_type` last."""
        first = self.roots.node_id[self.root_index]
        if self.second_index is None:
            return first
        return torch.cat([first, self.nodes[self.second_type].node_id[self.second_index]])


_OF_LINKS = [field.name for field in fields(OfLinks)]


def links_to_torch(batch: LinkBatch | TypedLinkBatch) -> TorchLinkBatch | TorchTypedLinkBatch:
    """Tensors over the batch's own arrays, as `to_torch` and `typed_to_torch`."""
    own = {name: getattr(batch, name) for name in _OF_LINKS}
    tensors: dict[str, Any] = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in own.items()
    }
    if isinstance(batch, TypedLinkBatch):
        return TorchTypedLinkBatch(**vars(typed_to_torch(batch)), **tensors)
    plain = MiniBatch(**{field.name: getattr(batch, field.name) for field in fields(MiniBatch)})
    return TorchLinkBatch(**vars(to_torch(plain)), **tensors)


def without_links(batch: MiniBatch, source: np.ndarray, destination: np.ndarray) -> MiniBatch:
    """The minibatch without its edges that join these pairs of permanent ids, in either direction. Nodes stay."""
    return _without(batch, batch.node_id, batch.node_id, source, destination, either_way=True)


def without_typed_links(
    batch: TypedBatch[np.ndarray],
    relation: Relation,
    reverse: Relation | None,
    source: np.ndarray,
    destination: np.ndarray,
) -> TypedBatch[np.ndarray]:
    """The batch without the relation's edges that join these pairs, and without their reverses in `reverse`; within one type in either direction."""
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
    """Without the edges that join these pairs of permanent ids; `source_id`, `target_id`: of the nodes at the edges' ends."""
    of: Any = edges
    if not len(source):
        return edges
    begins = np.unique(np.concatenate([source, destination]) if either_way else source)
    ends = begins if either_way else np.unique(destination)
    one = _places(begins, source_id)[of.indices]
    other = np.repeat(_places(ends, target_id), np.diff(of.indptr))
    among = np.flatnonzero((one >= 0) & (other >= 0))
    wanted = _pair(np.searchsorted(begins, source), np.searchsorted(ends, destination), len(ends), either_way)
    left_out = among[np.isin(_pair(one[among], other[among], len(ends), either_way), wanted)]
    if not len(left_out):
        return edges
    kept = np.ones(len(of.indices), bool)
    kept[left_out] = False
    row = np.searchsorted(of.indptr, left_out, side="right") - 1
    columns = {name: getattr(edges, name, None) for name in _OF_EDGES}
    return replace(
        of,
        indptr=pointers(np.diff(of.indptr) - np.bincount(row, minlength=len(target_id))),
        indices=of.indices[kept],
        **{name: values[kept] for name, values in columns.items() if values is not None},
    )


def _places(ends: np.ndarray, node_id: np.ndarray) -> np.ndarray:
    """int64: of each node its place among these; -1: it is none of them."""
    place = np.minimum(np.searchsorted(ends, node_id), len(ends) - 1)
    return np.where(ends[place] == node_id, place, -1)


def _pair(one: np.ndarray, other: np.ndarray, count: int, either_way: bool) -> np.ndarray:
    """int64: a number for each pair, where it counts either way the same for its reverse."""
    if either_way:
        one, other = np.minimum(one, other), np.maximum(one, other)
    return one.astype(np.int64) * count + other
