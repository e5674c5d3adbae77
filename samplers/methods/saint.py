"""GraphSAINT with random walks (arXiv:1907.04931): a batch is the induced subgraph of all nodes that some walks visit.

Walks start at roots drawn uniformly, with replacement, and take `walk_length` steps to uniform neighbors (parallel edges count each; a walk
without a neighbor to go to stays). The sampler pre-samples T subgraphs and counts, as in section 3.2: node v was in C_v of them, both ends of
edge u → v in C_uv. Counts of 0 are taken for 1. Then

    loss_weight of v = T / (C_v · number of roots)    the weighted sum of a batch's losses estimates the mean over all roots
    edge_coefficient of u → v = C_v / C_uv            a weighted sum of messages estimates the one over all in-edges
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from graphmill.core.counter_random import unit_interval
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.drawing.build_batch import InducedBatches
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.kernels.edge_counts import count_edges
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import SaintOptions
from graphmill.samplers.vocabulary.stage_clock import stage

_WALKS_AT_ONCE = 1 << 18  # while pre-sampling: bounds memory, not the result


@dataclass(frozen=True)
class SampleCounts:
    """In which pre-sampled subgraphs each visited node was: those of node[i] are sample[first[i]:first[i + 1]], ascending."""

    node: np.ndarray  # [k], stored ids, ascending
    first: np.ndarray  # int64 [k + 1]
    sample: np.ndarray  # int32

    def bounds(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(first, last) of each node's samples in `sample`; equal for a node that was never visited."""
        place = np.minimum(np.searchsorted(self.node, node), len(self.node) - 1)
        visited = self.node[place] == node
        return np.where(visited, self.first[place], 0), np.where(visited, self.first[place + 1], 0)


class SaintSampler:
    """Minibatches of one subgraph each; positions in order of first visit: roots, then step after step.

    Walks start at the nodes of one split, or at given `roots` (permanent ids, distinct).
    """

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn

    def __init__(
        self, router: Router, options: SaintOptions, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        self._router, self.options, self._num_ranks = router, options, num_ranks
        direction = "in" if options.walk_length == 0 else options.direction
        self._induced = InducedBatches(router, options, direction)
        codes = None if options.root_split is None else (options.root_split,)
        self._roots = Roots(router, options.split_set, codes, roots)

    @property
    def content_hash(self) -> str:
        return self._roots.content_hash

    @cached_property
    def _starts(self) -> NodeList:
        """Where walks may start."""
        roots = self._roots.nodes
        if not len(roots.node):
            raise ConfigError(f"root_split: expected a split with nodes, got {self.options.root_split} with none")
        return roots

    @cached_property
    def num_batches(self) -> int:
        wanted = self.options.batches_per_epoch or -(-len(self._starts.node) // self.options.num_walks)
        return -(-wanted // self._num_ranks) * self._num_ranks

    @cached_property
    def sample_counts(self) -> SampleCounts:
        """The pre-sampled subgraphs, made at first use; the same in every process, for they depend on the seed alone."""
        options = self.options
        at_once = max(1, _WALKS_AT_ONCE // options.num_walks)
        pairs = []
        for start in range(0, options.num_presamples, at_once):
            num_samples = min(at_once, options.num_presamples - start)
            walk = np.arange(start * options.num_walks, (start + num_samples) * options.num_walks)
            steps = self._walk(walk, Purpose.PRESAMPLED_WALKS)
            sample = np.tile(walk // options.num_walks, len(steps))
            pairs.append(np.unique(np.concatenate(steps) * options.num_presamples + sample))
        pair = np.sort(np.concatenate(pairs))
        node, first = np.unique(pair // options.num_presamples, return_index=True)
        return SampleCounts(
            node=node,
            first=np.append(first, len(pair)),
            sample=(pair % options.num_presamples).astype(np.int32),
        )

    def _walk(self, walk: np.ndarray, purpose: Purpose, *position: int) -> list[np.ndarray]:
        """Nodes of these walks after 0, 1, … steps."""
        options, starts = self.options, self._starts.node
        drawn = unit_interval(hash_ids(stream_key(options.seed, purpose, *position, 0), walk))
        steps = [starts[(drawn * len(starts)).astype(np.int64)]]
        for step in range(1, options.walk_length + 1):
            key = stream_key(options.seed, purpose, *position, step)
            reached = self._router.step_walks(steps[-1], walk, int(key), options.direction)
            steps.append(reached.astype(np.int64, copy=False))
        return steps

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return [self._draw(epoch, batch) for batch in batches]

    def _draw(self, epoch: int, batch: int) -> PendingBatch:
        options = self.options
        check_batch(batch, self.num_batches)
        with stage("sample"):
            steps = self._walk(np.arange(options.num_walks), Purpose.WALKS, epoch if options.shuffle else 0, batch)
            relabeler = Relabeler(np.empty(0, np.int64))
            relabeler.add(np.concatenate(steps))
            node = relabeler.node.copy()
            return self._induced.draw(epoch, batch, dict.fromkeys(self._router.nodes, node)).then(
                partial(self._weigh, node)
            )

    def _weigh(self, node: np.ndarray, minibatch: MiniBatch) -> MiniBatch:
        """With its roots, and what losses and messages count."""
        options = self.options
        with stage("sample"):
            is_root = self._roots.among(minibatch)
            counts = self.sample_counts
            first, last = counts.bounds(node)
            node_count = np.maximum(last - first, 1)
            together = count_edges(minibatch.indptr, minibatch.indices, first, last, counts.sample)
            edge_count = np.maximum(together, 1)
            of_end = np.repeat(node_count, np.diff(minibatch.indptr))
            weight = options.num_presamples / (node_count * len(self._starts.node))
        return replace(
            minibatch,
            root_index=np.flatnonzero(is_root),
            loss_weight=np.where(is_root, weight, 0).astype(np.float32),
            edge_coefficient=(of_end / edge_count).astype(np.float32),
        )
