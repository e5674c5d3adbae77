"""Neighbor sampling: batches of roots, each with up to fanouts[h] in-neighbors per node at hop h (GraphSAGE, arXiv:1706.02216).

Each node is expanded once, at the hop where it first appears. Positions follow discovery: roots, then hop after hop in frontier
order, lists in ascending permanent id; so the in-edges of position i come before those of i + 1 and no sort is needed.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from samplers.minibatch import MiniBatch
from samplers.plans import even_split, num_root_batches
from samplers.random_streams import Purpose, hash_ids, stream_key
from samplers.relabel import Relabeler
from samplers.router import Router
from storage.errors import ConfigError
from storage.source import SPLIT_TRAIN


@dataclass(frozen=True)
class NeighborOptions:
    """How roots become batches."""

    fanouts: tuple[int, ...] = (15, 10, 5)  # in-neighbors per hop; -1: all
    batch_size: int = 1024  # roots per batch
    edges: Literal["sampled", "induced"] = "sampled"  # edges drawn, or all edges among the nodes found
    seed: int = 0
    split_set: int = 0
    root_split: int = SPLIT_TRAIN
    shuffle: bool = True  # False: roots in ascending permanent id, and the same draws in every epoch

    def __post_init__(self) -> None:
        if not self.fanouts or any(fanout < -1 for fanout in self.fanouts):
            raise ConfigError(
                f"fanouts: expected one count >= 0 (or -1: all) per hop, got {self.fanouts}; set --fanouts"
            )
        if self.batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, got {self.batch_size}; set --batch-size")
        if self.edges not in ("sampled", "induced"):
            raise ConfigError(f"edges: expected 'sampled' or 'induced', got {self.edges!r}; set --edges")


class NeighborSampler:
    """Minibatches around roots of one split."""

    def __init__(self, router: Router, options: NeighborOptions, num_ranks: int = 1) -> None:
        self._router, self._options, self._num_ranks = router, options, num_ranks

    @cached_property
    def _roots(self):
        return self._router.list_split(self._options.split_set, self._options.root_split)

    @cached_property
    def num_batches(self) -> int:
        return num_root_batches(len(self._roots.node), self._options.batch_size, self._num_ranks)

    def _batch_roots(self, epoch: int, batch: int) -> np.ndarray:
        roots, options = self._roots, self._options
        start, stop = even_split(len(roots.node), self.num_batches, batch)
        if not options.shuffle:
            return roots.node[start:stop]
        order = np.argsort(
            hash_ids(stream_key(options.seed, Purpose.ROOT_ORDER, epoch), roots.original_id), kind="stable"
        )
        return roots.node[order[start:stop]]

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        options = self._options
        if not 0 <= batch < self.num_batches:
            raise ConfigError(f"batch: expected a number in [0, {self.num_batches}), got {batch}")
        draw_epoch = epoch if options.shuffle else 0
        relabeler = Relabeler(self._batch_roots(epoch, batch))
        num_roots = relabeler.num_nodes
        counts, sources, frontier_start = [], [], 0
        for hop, fanout in enumerate(options.fanouts):
            frontier = relabeler.node[frontier_start:]
            frontier_start = relabeler.num_nodes
            key = stream_key(options.seed, Purpose.NEIGHBORS, draw_epoch, batch, hop)
            lists = self._router.sample_neighbors(frontier, fanout, int(key))
            counts.append(lists.count)
            sources.append(relabeler.add(lists.neighbor))
        node = relabeler.node.copy()
        if options.edges == "induced":
            lists = self._router.induced_edges(node)
            counts, sources = [lists.count], [lists.neighbor]
        count = np.zeros(len(node), np.int64)  # nodes of the last hop have no sampled in-edges
        found = np.concatenate(counts)
        count[: len(found)] = found
        return build_minibatch(
            self._router, epoch, batch, node, count, np.concatenate(sources), np.arange(num_roots), options.split_set
        )


def build_minibatch(
    router: Router,
    epoch: int,
    batch: int,
    node: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    root_index: np.ndarray,
    split_set: int,
) -> MiniBatch:
    """The minibatch of these nodes and in-edge lists, with its rows fetched in one question."""
    split = split_set if router.manifest.num_split_sets else None
    rows = router.fetch(node, split_set=split)
    indptr = np.zeros(len(node) + 1, np.int64)
    np.cumsum(count, out=indptr[1:])
    return MiniBatch(
        epoch=epoch,
        index=batch,
        node_id=rows.original_id,
        indptr=indptr,
        indices=source.astype(np.int32, copy=False),
        root_index=root_index,
        feature=rows.feature,
        label=rows.label,
        split=rows.split,
    )
