"""A batch of links: a minibatch whose roots are the ends of links and of their negatives, and which of them make a pair."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from graphmill.core.offsets import pointers
from graphmill.samplers.batches.minibatch import MiniBatch, TorchBatch, to_torch


@dataclass(frozen=True, repr=False)
class LinkBatch(MiniBatch):
    """Link i joins the roots link_source[i] and link_destination[i]: places in `root_index`, as all roots here."""

    link_source: np.ndarray | None = None  # int64 [m]
    link_destination: np.ndarray | None = None  # int64 [m]
    is_link: np.ndarray | None = None  # int8 [m]: 1, or 0 for a pair that is no link
    link_split: np.ndarray | None = None  # int8 [m]
    link_relation: np.ndarray | None = None  # int64 [m], in a knowledge graph
    negative: np.ndarray | None = (
        None  # int64 [m, k], ends in place of the destination; -1 beyond the end of a shorter list
    )
    negative_source: np.ndarray | None = None  # int64 [m, k]; None: the link's own source
    known: np.ndarray | None = (
        None  # int64 [2, q]: (link, root) that its destination is not ranked against; None: it is ranked by `negative`
    )
    top_k: int = 0  # more: of each source the best destinations are asked for, but those in `known`


@dataclass(frozen=True, repr=False)
class TorchLinkBatch(TorchBatch):
    """The same as tensors."""

    link_source: torch.Tensor | None = None
    link_destination: torch.Tensor | None = None
    is_link: torch.Tensor | None = None
    link_split: torch.Tensor | None = None
    link_relation: torch.Tensor | None = None
    negative: torch.Tensor | None = None
    negative_source: torch.Tensor | None = None
    known: torch.Tensor | None = None
    top_k: int = 0

    @property
    def target(self) -> torch.Tensor:
        """float32 [m]: 1 for links, 0 for pairs that are none."""
        assert self.is_link is not None
        return self.is_link.float()

    @property
    def predicted_id(self) -> torch.Tensor:
        """int64 [m]: the permanent ids of the sources."""
        assert self.link_source is not None
        return self.node_id[self.root_index][self.link_source]

    @property
    def predicted_split(self) -> torch.Tensor | None:
        return self.link_split


_OF_LINKS = [field.name for field in fields(LinkBatch) if field.name not in {own.name for own in fields(MiniBatch)}]


def links_to_torch(batch: LinkBatch) -> TorchLinkBatch:
    """Tensors over the batch's own arrays, as `to_torch`."""
    own = {name: getattr(batch, name) for name in _OF_LINKS}
    plain = MiniBatch(**{field.name: getattr(batch, field.name) for field in fields(MiniBatch)})
    tensors: dict[str, Any] = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in own.items()
    }
    return TorchLinkBatch(**vars(to_torch(plain)), **tensors)


def without_links(batch: MiniBatch, source: np.ndarray, destination: np.ndarray) -> MiniBatch:
    """The minibatch without its edges that join these pairs of permanent ids, in either direction. Nodes stay."""
    ends = np.unique(np.concatenate([source, destination]))
    if not len(ends):
        return batch
    place = np.minimum(np.searchsorted(ends, batch.node_id), len(ends) - 1)
    end = np.where(ends[place] == batch.node_id, place, -1)  # of each node; -1: in no pair
    degree = np.diff(batch.indptr)
    row = np.repeat(np.arange(batch.num_nodes), degree)
    one, other = end[row], end[batch.indices]
    among = np.flatnonzero((one >= 0) & (other >= 0))
    wanted = _pair(np.searchsorted(ends, source), np.searchsorted(ends, destination), len(ends))
    left_out = among[np.isin(_pair(one[among], other[among], len(ends)), wanted)]
    if not len(left_out):
        return batch
    kept = np.ones(batch.num_edges, bool)
    kept[left_out] = False
    columns = {
        name: getattr(batch, name)
        for name in ("edge_coefficient", "edge_id", "edge_weight", "edge_time", "edge_feature")
    }
    return replace(
        batch,
        indptr=pointers(degree - np.bincount(row[left_out], minlength=batch.num_nodes)),
        indices=batch.indices[kept],
        **{name: values[kept] for name, values in columns.items() if values is not None},
    )


def _pair(one: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """int64: the same number for a pair and its reverse."""
    return np.minimum(one, other).astype(np.int64) * count + np.maximum(one, other)
