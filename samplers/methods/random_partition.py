"""Cuts of all nodes into chunks: a batch is the subgraph induced by one chunk, or by the union of several.

cut="random" draws a fresh cut each epoch, as SGFormer does (arXiv:2306.10759), but by hash: node v falls into chunk
floor(hash(seed, epoch, v) · P / 2^64). Chunk sizes are binomial around N / P, and an edge survives with probability 1 / P; P = 1 is the full graph.
cut="partitions" is ClusterGCN (arXiv:1905.07953): the chunks are the stored partitions, and which of them meet in a batch is drawn afresh each
epoch, edges between them included. Batches then depend on the partitioning, by design.
cut="within" cuts each stored partition by hash, as the random cut does the graph: all of a batch is read from one partition, and edges between partitions
are left out. Where the number of ranks divides that of partitions, or the other way round, a rank keeps to the same partitions.

A chunk of a random cut is a uniform sample of the nodes, as ScaleGNN's (arXiv:2604.02651), but every node is in one of the epoch's. With `corrected` its
in-edges stand for those that it lacks. Let node v have d in-edges, l of them from itself, and let the sample be n of the N nodes of the graph or, within a
partition that d' of the edges begin in, of its N. Given that v is in it, another node is with probability (n - 1) / (N - 1). Then

    edge_coefficient of u → v = (N - 1) / (n - 1) · (d - l) / (d' - l), of v → v 1;     degree of v = d

so Σ coefficient · message estimates the sum over all in-edges without bias and, divided by the degree, the mean: of a random cut exactly; within partitions as if
the edges that begin in others were like those that do not.

In a typed graph a chunk is one of the nodes of every type, by the same hash of their permanent ids, and the roots are nodes of one type.

A batch may hold no root: a training loop then skips the loss (a mean over none is NaN), but under DDP still steps, for other ranks wait.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.methods.neighbor import draw_induced, draw_typed_induced
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import DEFAULT_CHUNKS, RandomPartitionOptions
from graphmill.samplers.vocabulary.rank_shares import chunk_share, even_split, num_chunk_batches
from graphmill.samplers.vocabulary.requirements import check_splits, edge_uses, type_of_roots
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.manifest import Manifest


class RandomPartitionSampler:
    """Minibatches that are induced subgraphs of chunks, nodes ascending in permanent id.

    Their roots are the nodes of some splits, or given `roots` (permanent ids, distinct).
    """

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn

    def __init__(
        self,
        router: Router | TypedRouter,
        options: RandomPartitionOptions,
        num_ranks: int = 1,
        roots: np.ndarray | None = None,
    ) -> None:
        """Raises ConfigError where the graph lacks what the options name, or cannot be cut as they say."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self._root_type = type_of_roots(router, options.root_type)
        self._of_roots = router.nodes[self._root_type]
        self._num_chunks = count_chunks(options, self._of_roots.manifest)
        self._num_groups = -(-self._num_chunks // options.chunks_per_batch)
        check_splits(router, self._root_type, options.split_set)
        self._uses = edge_uses(router, edge_columns=options.edge_columns)
        if options.corrected and isinstance(router, TypedRouter):
            raise ConfigError("corrected: expected a plain graph, got a typed one; leave out --sampler.corrected")
        self._roots = Roots(self._of_roots, options.split_set, options.root_splits, roots)

    @property
    def content_hash(self) -> str:
        of_parts = [] if isinstance(self._router, Router) else [self._router.content_hash]
        if self.options.cut != "random":  # its chunks are the stored partitions, or parts of them
            of_parts += [each.manifest.content_hash for each in self._router.nodes.values()]
        hashes = " ".join([self._roots.content_hash, *of_parts])
        return hashlib.sha256(hashes.encode()).hexdigest() if of_parts else hashes

    @property
    def num_batches(self) -> int:
        return num_chunk_batches(self._num_groups, self._num_ranks)

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return [self._draw(epoch, batch) for batch in batches]

    def draw_around(self, roots: Sequence[NodeList], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """The whole graph with these roots, before its rows are fetched. Raises ConfigError where it is cut into chunks, which may not hold them."""
        if self._num_chunks > self.options.chunks_per_batch:
            raise ConfigError(
                f"num_chunks: given roots need the whole graph in a batch, got {self._num_chunks} chunks; set --sampler.num_chunks 1, or "
                "--sampler neighbor"
            )
        drawn = []
        for batch, one in zip(batches, roots, strict=True):
            with stage("sample"):
                nodes = self._draw_induced(epoch, batch, 0)
            drawn.append(nodes.then(partial(_with_roots, one.original_id)))
        return drawn

    def _draw(self, epoch: int, batch: int) -> PendingBatch:
        check_batch(batch, self.num_batches)
        share = chunk_share(batch, self._num_groups, self._num_ranks)  # over groups of chunks

        def choose_roots(minibatch: Any) -> Any:
            among = minibatch if isinstance(minibatch, MiniBatch) else minibatch.roots
            roots = np.flatnonzero(self._roots.among(among))
            start, stop = even_split(len(roots), share.parts, share.part)
            return replace(minibatch, root_index=roots[start:stop])

        with stage("sample"):
            drawn = self._draw_induced(epoch, batch, share.chunk).then(choose_roots)
            return drawn.then(self._estimate(drawn.node, share.chunk)) if self.options.corrected else drawn

    def _draw_induced(self, epoch: int, batch: int, group: int) -> PendingBatch:
        nodes = {name: self._group_nodes(router, epoch, group) for name, router in self._router.nodes.items()}
        if isinstance(self._router, Router):
            (node,) = nodes.values()
            return draw_induced(self._router, epoch, batch, node, self.options, self.options.edge_columns)
        return draw_typed_induced(self._router, epoch, batch, nodes, self.options, self._uses, self._root_type)

    def _estimate(self, node: np.ndarray, group: int) -> Callable[[MiniBatch], MiniBatch]:
        """What gives the minibatch of these nodes the coefficients of the module's docstring; their degrees are asked for here."""
        router, offsets = self._of_roots, self._of_roots.manifest.partition_offsets
        if self.options.cut == "random":
            lists = router.list_neighbors(node, max_degree=np.zeros(len(node), np.int64))
            num_nodes, seen = router.manifest.num_nodes, lists.degree
        else:
            lists = router.list_neighbors(node)
            partition, _ = self._part(group)
            start, stop = offsets[partition], offsets[partition + 1]
            is_here = (lists.neighbor >= start) & (lists.neighbor < stop)
            num_nodes, seen = stop - start, np.diff(np.append(0, np.cumsum(is_here))[pointers(lists.count)])
        return partial(_with_estimates, lists.degree, seen, (num_nodes - 1) / max(len(node) - 1, 1))

    def _part(self, chunk: int) -> tuple[int, int]:
        """(partition, number of the part of it) that a chunk of a cut within partitions is."""
        num_partitions, num_ranks = self._of_roots.manifest.num_partitions, self._num_ranks
        step, rank = divmod(chunk, num_ranks)
        several, odd = divmod(num_ranks, num_partitions)
        if several and not odd:  # neighboring ranks share a partition
            chunk = step * num_ranks + rank % several * num_partitions + rank // several
        part, partition = divmod(chunk, num_partitions)
        return partition, part

    def _group_nodes(self, router: Router, epoch: int, group: int) -> np.ndarray:
        """Nodes of a type in the chunks of this group of the epoch's cut, ascending in permanent id."""
        options = self.options
        key = stream_key(options.seed, Purpose.CHUNKS, epoch if options.shuffle else 0)
        if options.cut == "within":
            partition, part = self._part(group)
            num_parts = self._num_chunks // router.manifest.num_partitions
            return router.list_chunk(int(key), part, num_parts, partition=partition).node
        start, stop = even_split(self._num_chunks, self._num_groups, group)
        if options.cut == "random":
            return router.list_chunk(int(key), start, self._num_chunks, stop - start).node
        order = np.argsort(hash_ids(key, np.arange(self._num_chunks)), kind="stable")
        return router.list_partitions(order[start:stop].tolist()).node


def _with_estimates(degree: np.ndarray, seen: np.ndarray, scale: float, minibatch: MiniBatch) -> MiniBatch:
    """With coefficients and degrees: `seen` of a node's in-edges may be in a batch, and are there with probability 1 / `scale`."""
    end = np.repeat(np.arange(len(degree)), np.diff(minibatch.indptr))
    is_loop = minibatch.indices == end
    num_loops = np.bincount(end[is_loop], minlength=len(degree))
    weight = scale * (degree - num_loops) / np.maximum(seen - num_loops, 1)
    return replace(
        minibatch,
        edge_coefficient=np.where(is_loop, 1, weight[end]).astype(np.float32),
        degree=degree.astype(np.int64, copy=False),
    )


def _with_roots(original_id: np.ndarray, batch: MiniBatch) -> MiniBatch:
    """The minibatch, whose nodes ascend in permanent id, with these roots."""
    return replace(batch, root_index=np.searchsorted(batch.node_id, original_id))


def count_chunks(options: RandomPartitionOptions, manifest: Manifest) -> int:
    """Chunks of the cut. Raises ConfigError where this graph cannot be cut, or its chunks not grouped, as the options say."""
    num_chunks = options.num_chunks
    if num_chunks is None:
        num_chunks = DEFAULT_CHUNKS if options.cut == "random" else manifest.num_partitions
    if options.cut == "partitions" and num_chunks != manifest.num_partitions:
        raise ConfigError(
            f"num_chunks: with cut 'partitions' expected the graph's {manifest.num_partitions} partitions or none, "
            f"got {num_chunks}; leave out --sampler.num_chunks or prepare the graph with --partitions {num_chunks}"
        )
    if options.cut != "partitions" and num_chunks > manifest.num_nodes:
        raise ConfigError(
            f"num_chunks: expected at most one per node ({manifest.num_nodes}), got {num_chunks}; "
            "set --sampler.num_chunks (--evaluation.chunks for evaluation)"
        )
    if options.cut == "within" and (num_chunks % manifest.num_partitions or options.chunks_per_batch > 1):
        raise ConfigError(
            f"num_chunks: with cut 'within' expected a multiple of the graph's {manifest.num_partitions} partitions, one chunk a batch, "
            f"got {num_chunks} and {options.chunks_per_batch}; set --sampler.num_chunks {max(1, num_chunks // manifest.num_partitions) * manifest.num_partitions} "
            "--sampler.chunks_per_batch 1"
        )
    if not 1 <= options.chunks_per_batch <= num_chunks:
        raise ConfigError(
            f"chunks_per_batch: expected 1 to the number of chunks ({num_chunks}), got {options.chunks_per_batch}; "
            "set --sampler.chunks_per_batch"
        )
    return num_chunks
