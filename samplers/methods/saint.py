"""GraphSAINT with random walks (arXiv:1907.04931): a batch is the induced subgraph of all nodes that a number of walks visit.

Walks start at roots drawn uniformly with replacement and take `walk_length` steps to uniform neighbors (parallel edges count separately; a walk at a
node without neighbors stays). The sampler first draws T subgraphs and counts, as in section 3.2, in how many node v appears (C_v) and in how many both ends of
edge u → v appear (C_uv). Counts of 0 become 1. Then

    loss_weight of v = T / (C_v · number of roots)    the weighted sum of a batch's losses estimates the mean over all roots
    edge_coefficient of u → v = C_v / C_uv            a weighted sum of messages estimates the sum over all in-edges

In a typed graph walks start at nodes of one type. Each step follows a uniform edge among the edges of all relations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from graphmill.core.counter_random import unit_interval
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.drawing.build_batch import InducedBatches, edge_tables, root_table, with_columns
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import hash_of_data
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.drawing.union_graph import NodeNumbers, searched_graph
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.kernels.subgraphs import count_edges
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import SaintOptions
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.source import Relation

_WALKS_AT_ONCE = 1 << 18  # walks per part while pre-sampling; bounds memory and does not change the result


@dataclass(frozen=True)
class SampleCounts:
    """For each visited node, the pre-sampled subgraphs that contain it: node[i] was in the samples sample[first[i]:first[i + 1]], ascending."""

    node: np.ndarray  # [k], ids from `NodeNumbers`, ascending
    first: np.ndarray  # int64 [k + 1]
    sample: np.ndarray  # int32

    def bounds(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(first, last): bounds of each node's samples in `sample`. Both are equal for a node that no walk visited."""
        place = np.minimum(np.searchsorted(self.node, node), len(self.node) - 1)
        visited = self.node[place] == node
        return np.where(visited, self.first[place], 0), np.where(visited, self.first[place + 1], 0)


class SaintSampler:
    """Minibatches of one subgraph each. Positions follow the order of first visit: roots, then step by step.

    Walks start at the nodes of one split, or at given `roots` (distinct permanent ids). In a typed graph they start at nodes of one type.
    """

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn

    def __init__(
        self,
        router: Router | TypedRouter,
        options: SaintOptions,
        num_ranks: int = 1,
        roots: np.ndarray | None = None,
    ) -> None:
        """Raises ConfigError if a column, type or relation that the options name is missing in the graph."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        direction = "in" if options.walk_length == 0 else options.direction
        self._graph, self._numbers = searched_graph(router, tuple(router.edges), direction), NodeNumbers(router.nodes)
        self._induced = InducedBatches(router, options)
        codes = None if options.root_split is None else (options.root_split,)
        self._roots = Roots(router.nodes[self._induced.root_type], options.split_set, codes, roots)

    @property
    def content_hash(self) -> str:
        return hash_of_data(self._router, self._roots.content_hash)

    @cached_property
    def _starts(self) -> NodeList:
        """The nodes where walks may start."""
        roots = self._roots.nodes
        if not len(roots.node):
            raise ConfigError(f"root_split: expected a split with nodes, got {self.options.root_split} with none")
        return roots

    @cached_property
    def num_batches(self) -> int:
        batches = self.options.batches_per_epoch or -(-len(self._starts.node) // self.options.num_walks)
        return -(-batches // self._num_ranks) * self._num_ranks

    @cached_property
    def sample_counts(self) -> SampleCounts:
        """The pre-sampled subgraphs, drawn at the first use. They depend only on the seed, so all processes have the same subgraphs."""
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
        """Nodes of these walks after 0, 1, … steps, as ids from `NodeNumbers`."""
        options, starts = self.options, self._starts.node.astype(np.int64, copy=False)
        first = self._numbers.first(self._induced.root_type)
        drawn = unit_interval(hash_ids(stream_key(options.seed, purpose, *position, 0), walk))
        steps = [starts[(drawn * len(starts)).astype(np.int64)] + first]
        for step in range(1, options.walk_length + 1):
            key = stream_key(options.seed, purpose, *position, step)
            reached = self._graph.step_walks(steps[-1], walk, int(key), options.direction)
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
            of_type = self._numbers.by_type(relabeler.node.copy())
            drawn = self._induced.draw(epoch, batch, {name: node for name, (_, node) in of_type.items()})
            return drawn.then(partial(self._weigh, {name: relabeler.node[at] for name, (at, _) in of_type.items()}))

    def _weigh(self, node: Mapping[str, np.ndarray], batch: Any) -> Any:
        """The batch with its roots and the weights of losses and messages. `node` holds the numbers of each type's nodes."""
        counts, root_type = self.sample_counts, self._induced.root_type
        with stage("sample"):
            is_root = self._roots.among(root_table(batch))
            bounds = {name: counts.bounds(own) for name, own in node.items()}
            count = {name: np.maximum(last - first, 1) for name, (first, last) in bounds.items()}
            edges: dict[Relation, dict[str, np.ndarray]] = {}
            for relation, table in edge_tables(batch).items():
                ends = *bounds[relation.target], *bounds[relation.source]
                together = count_edges(table.indptr, table.indices, *ends, counts.sample)
                of_end = np.repeat(count[relation.target], np.diff(table.indptr))
                edges[relation] = {"edge_coefficient": (of_end / np.maximum(together, 1)).astype(np.float32)}
            weight = self.options.num_presamples / (count[root_type] * len(self._starts.node))
            losses = {root_type: {"loss_weight": np.where(is_root, weight, 0).astype(np.float32)}}
        return replace(with_columns(batch, edges, losses), root_index=np.flatnonzero(is_root))
