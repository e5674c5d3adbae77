"""Divides roots into batches, for samplers that make each batch around some roots."""

import hashlib
from functools import cached_property
from operator import attrgetter

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.drawing.protocol import check_batch
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import NeighborOptions, Node2SubgraphOptions, PprOptions, TypedOptions
from graphmill.samplers.vocabulary.rank_shares import even_split, num_root_batches
from graphmill.samplers.vocabulary.requirements import NO_GROUPS
from graphmill.samplers.vocabulary.stage_clock import stage


def hash_of_data(router: Router | TypedRouter, of_roots: str) -> str:
    """Hash of the graph and the roots. In a plain graph it is the hash of the roots, which includes the graph."""
    if isinstance(router, Router):
        return of_roots
    return hashlib.sha256(f"{router.content_hash} {of_roots}".encode()).hexdigest()


# The properties `content_hash` and `num_batches` for a sampler that stores its RootBatches as `_root_batches`.
plan_hash = property(lambda sampler: hash_of_data(sampler.router, sampler._root_batches.content_hash))
plan_length = property(attrgetter("_root_batches.num_batches"))


class RootBatches:
    """Takes every root once per epoch, in a new random order. `given`: use these permanent ids as roots, instead of a split.

    If root_order is "groups", the roots are sorted by locality group and cut into equal shares, one for each batch of a step. Batch v of every step takes its
    roots from share v, in a new random order. So a step is a stratified sample of the roots. If a step has one batch, both values of root_order give the same
    order.
    """

    def __init__(
        self,
        router: Router,
        options: NeighborOptions | Node2SubgraphOptions | PprOptions | TypedOptions,
        num_ranks: int,
        given: np.ndarray | None = None,
        given_time: np.ndarray | None = None,
    ) -> None:
        codes = None if options.root_split is None else (options.root_split,)
        self._roots = Roots(router, options.split_set, codes, given, given_time)
        self._options, self._num_ranks = options, num_ranks
        self._by_groups = options.shuffle and options.root_order == "groups"
        if self._by_groups and not router.manifest.num_groups:
            raise ConfigError(NO_GROUPS)
        self._last_order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    @property
    def content_hash(self) -> str:
        if not self._by_groups:
            return self._roots.content_hash
        return hashlib.sha256(self._roots.content_hash.encode() + self._roots.groups.tobytes()).hexdigest()

    @cached_property
    def num_batches(self) -> int:
        return num_root_batches(len(self._roots.nodes.node), self._options.batch_size, self._num_ranks)

    @stage("plan")
    def roots(self, epoch: int, batch: int) -> NodeList:
        """The roots of one batch. Raises ConfigError for a batch that does not exist."""
        check_batch(batch, self.num_batches)
        roots, options = self._roots.nodes, self._options
        if not options.shuffle:
            return roots.take(slice(*even_split(len(roots.node), self.num_batches, batch)))
        of_epoch, order = self._last_order  # read once: another thread may write another epoch's order
        if of_epoch != epoch:
            key = stream_key(options.seed, Purpose.ROOT_ORDER, epoch)
            order = np.lexsort((hash_ids(key, roots.original_id), self._share))
            self._last_order = (epoch, order)
        return roots.take(order[slice(*self._bounds(batch))])

    @property
    def _num_shares(self) -> int:
        return self._num_ranks if self._by_groups else 1

    @cached_property
    def _share(self) -> np.ndarray:
        """int64 [roots]: index of each root's share."""
        num_roots = len(self._roots.nodes.node)
        if not self._by_groups:
            return np.zeros(num_roots, np.int64)
        share, ends = np.empty(num_roots, np.int64), np.arange(1, self._num_shares + 1) * num_roots // self._num_shares
        share[np.argsort(self._roots.groups, kind="stable")] = np.searchsorted(ends, np.arange(num_roots), side="right")
        return share

    def _bounds(self, batch: int) -> tuple[int, int]:
        """(start, stop) of a batch in an epoch's order."""
        num_shares, num_roots = self._num_shares, len(self._roots.nodes.node)
        number, share = divmod(batch, num_shares)
        first, last = even_split(num_roots, num_shares, share)
        start, stop = even_split(last - first, self.num_batches // num_shares, number)
        return first + start, first + stop
