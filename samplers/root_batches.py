"""Roots dealt to batches: the plan of the samplers whose batches are made around some roots each."""

from functools import cached_property
from typing import Any

import numpy as np

from samplers.messages import NodeList
from samplers.options import NeighborOptions, Node2SubgraphOptions, PprOptions
from samplers.plans import even_split, num_root_batches
from samplers.protocol import check_batch
from samplers.random_streams import Purpose, hash_ids, stream_key
from samplers.roots import Roots
from samplers.router import Router
from samplers.stage_clock import stage


def _plan_hash(sampler: Any) -> str:
    """Of the graph and, where they are given, of the roots."""
    return sampler._root_batches.content_hash


def _plan_length(sampler: Any) -> int:
    """Batches of an epoch over all ranks."""
    return sampler._root_batches.num_batches


# The `content_hash` and the `num_batches` of a sampler whose plan is its `_root_batches`.
plan_hash, plan_length = property(_plan_hash), property(_plan_length)


class RootBatches:
    """Every root once per epoch, in a fresh random order; `given` roots, by permanent id, take the place of a split's."""

    def __init__(
        self,
        router: Router,
        options: NeighborOptions | Node2SubgraphOptions | PprOptions,
        num_ranks: int,
        given: np.ndarray | None = None,
    ) -> None:
        codes = None if options.root_split is None else (options.root_split,)
        self._roots = Roots(router, options.split_set, codes, given)
        self._options, self._num_ranks = options, num_ranks
        self._last_order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    @property
    def content_hash(self) -> str:
        return self._roots.content_hash

    @cached_property
    def num_batches(self) -> int:
        return num_root_batches(len(self._roots.nodes.node), self._options.batch_size, self._num_ranks)

    @stage("plan")
    def roots(self, epoch: int, batch: int) -> NodeList:
        """The roots of one batch. Raises ConfigError where there is no such batch."""
        check_batch(batch, self.num_batches)
        roots, options = self._roots.nodes, self._options
        start, stop = even_split(len(roots.node), self.num_batches, batch)
        if not options.shuffle:
            return NodeList(node=roots.node[start:stop], original_id=roots.original_id[start:stop])
        of_epoch, order = self._last_order  # one read: another thread may put another epoch's order there
        if of_epoch != epoch:
            key = stream_key(options.seed, Purpose.ROOT_ORDER, epoch)
            order = np.argsort(hash_ids(key, roots.original_id), kind="stable")
            self._last_order = (epoch, order)
        chosen = order[start:stop]
        return NodeList(node=roots.node[chosen], original_id=roots.original_id[chosen])
