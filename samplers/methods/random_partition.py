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
the edges that begin in others were like those that do not. In a typed graph this holds of each relation, with N and n those of its source type; between two
types no node is there for certain: the factor is N / n.

A batch may hold no root: a training loop then skips the loss (a mean over none is NaN), but under DDP still steps, for other ranks wait.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import Router, ask
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.typed_batch import TypedBatch
from graphmill.samplers.drawing.build_batch import InducedBatches, edge_tables, root_table, with_columns
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import hash_of_data
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.drawing.union_graph import Sizes
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.vocabulary.messages import GivenRoots, NodeList
from graphmill.samplers.vocabulary.options import DEFAULT_CHUNKS, RandomPartitionOptions
from graphmill.samplers.vocabulary.rank_shares import chunk_share, even_split, num_chunk_batches
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.manifest import Manifest


class RandomPartitionSampler:
    """Minibatches that are induced subgraphs of chunks, nodes ascending in permanent id.

    Their roots are the nodes of some splits, or given `roots` (permanent ids, distinct); of a typed graph those of one type. There a chunk has nodes
    of all types, each type cut by itself, and the edges of all relations among them.
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
        """Raises ConfigError where the graph lacks what the options name."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        sizes = router.partition_sizes
        self._num_partitions = len(sizes)
        self._num_chunks = count_chunks(options, Sizes(int(sizes.sum()), self._num_partitions))
        self._num_groups = -(-self._num_chunks // options.chunks_per_batch)
        self._induced = InducedBatches(router, options)
        root_router = router.nodes[self._induced.root_type]
        self._roots = Roots(root_router, options.split_set, options.root_splits, roots)

    @property
    def content_hash(self) -> str:
        of_data = hash_of_data(self._router, self._roots.content_hash)
        if self.options.cut == "random":
            return of_data
        # Its chunks are the stored partitions, or parts of them.
        of_files = " ".join(each.manifest.content_hash for each in self._router.nodes.values())
        return hashlib.sha256(f"{of_data} {of_files}".encode()).hexdigest()

    @property
    def num_batches(self) -> int:
        return num_chunk_batches(self._num_groups, self._num_ranks)

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return [self._draw(epoch, batch) for batch in batches]

    def draw_around(self, roots: Sequence[GivenRoots], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """The whole graph with these roots, before its rows are fetched. Raises ConfigError where it is cut into chunks, which may not hold them."""
        if self._num_chunks > self.options.chunks_per_batch:
            raise ConfigError(
                f"num_chunks: given roots need the whole graph in a batch, got {self._num_chunks} chunks; set --sampler.num_chunks 1, or "
                "--sampler neighbor"
            )
        drawn = []
        for batch, one in zip(batches, roots, strict=True):
            with stage("sample"):
                nodes = self._induced.draw(epoch, batch, self._group_nodes(epoch, 0))
            of_type = one if isinstance(one, Mapping) else {self._induced.root_type: one}
            drawn.append(nodes.then(partial(_with_roots, of_type)))
        return drawn

    def _draw(self, epoch: int, batch: int) -> PendingBatch:
        check_batch(batch, self.num_batches)
        share = chunk_share(batch, self._num_groups, self._num_ranks)  # over groups of chunks

        def choose_roots(minibatch: Any) -> Any:
            roots = np.flatnonzero(self._roots.among(root_table(minibatch)))
            start, stop = even_split(len(roots), share.parts, share.part)
            return replace(minibatch, root_index=roots[start:stop])

        with stage("sample"):
            node = self._group_nodes(epoch, share.chunk)
            drawn = self._induced.draw(epoch, batch, node).then(choose_roots)
            return drawn.then(self._estimate(node, share.chunk)) if self.options.corrected else drawn

    def _estimate(self, node: Mapping[str, np.ndarray], group: int) -> Callable[[Any], Any]:
        """What gives the batch of these nodes the coefficients of the module's docstring; their degrees are asked for here."""
        routers, within = self._router, self.options.cut == "within"
        questions = [
            router.list_question(own, max_degree=None if within else np.zeros(len(own), np.int64))
            for own, router in ((node[relation.target], router) for relation, router in routers.edges.items())
        ]
        estimates = {}
        for relation, lists in zip(routers.edges, ask(questions), strict=True):
            of_sources = routers.nodes[relation.source].manifest
            num_nodes, seen = of_sources.num_nodes, lists.degree
            if within:
                partition, _ = self._part(group)
                start, stop = of_sources.partition_offsets[partition : partition + 2]
                is_here = (lists.neighbor >= start) & (lists.neighbor < stop)
                num_nodes, seen = stop - start, np.diff(np.append(0, np.cumsum(is_here))[pointers(lists.count)])
            itself = relation.source == relation.target  # a node is there where its list is looked at
            scale = (num_nodes - itself) / max(len(node[relation.source]) - itself, 1)
            estimates[relation] = partial(_estimates, lists.degree, seen, scale, itself)
        return lambda batch: with_columns(
            batch, {name: estimates[name](one) for name, one in edge_tables(batch).items()}
        )

    def _part(self, chunk: int) -> tuple[int, int]:
        """(partition, number of the part of it) that a chunk of a cut within partitions is."""
        num_partitions, num_ranks = self._num_partitions, self._num_ranks
        step, rank = divmod(chunk, num_ranks)
        several, odd = divmod(num_ranks, num_partitions)
        if several and not odd:  # neighboring ranks share a partition
            chunk = step * num_ranks + rank % several * num_partitions + rank // several
        part, partition = divmod(chunk, num_partitions)
        return partition, part

    def _group_nodes(self, epoch: int, group: int) -> dict[str, np.ndarray]:
        """Nodes of the chunks of this group of the epoch's cut, by type, ascending in permanent id."""
        options, routers, num_chunks = self.options, self._router.nodes, self._num_chunks
        position = epoch if options.shuffle else 0
        if options.cut == "partitions":
            start, stop = even_split(num_chunks, self._num_groups, group)
            key = stream_key(options.seed, Purpose.CHUNKS, position)
            order = np.argsort(hash_ids(key, np.arange(num_chunks)), kind="stable")[start:stop].tolist()
            return {name: router.list_partitions(order).node for name, router in routers.items()}
        if options.cut == "within":
            partition, start = self._part(group)
            stop, num_chunks = start + 1, num_chunks // self._num_partitions
        else:
            partition, (start, stop) = None, even_split(num_chunks, self._num_groups, group)
        found = {}
        for name, router in routers.items():
            # The roots' type is cut as a plain graph is; every other type apart from it, for nodes of two types with one id have nothing in common.
            other = [] if name == self._induced.root_type else [int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)]
            key = stream_key(options.seed, Purpose.CHUNKS, position, *other)
            found[name] = router.list_chunk(int(key), start, num_chunks, stop - start, partition).node
        return found


def _estimates(
    degree: np.ndarray, seen: np.ndarray, scale: float, has_loops: bool, edges: Any
) -> dict[str, np.ndarray]:
    """Coefficients and degrees of a relation's edges: `seen` of a node's in-edges may be in a batch, and are there with probability 1 / `scale`."""
    end = np.repeat(np.arange(len(degree)), np.diff(edges.indptr))
    is_loop = (edges.indices == end) & has_loops
    num_loops = np.bincount(end[is_loop], minlength=len(degree))
    weight = scale * (degree - num_loops) / np.maximum(seen - num_loops, 1)
    return {
        "edge_coefficient": np.where(is_loop, 1, weight[end]).astype(np.float32),
        "degree": degree.astype(np.int64, copy=False),
    }


def _with_roots(roots: Mapping[str, NodeList], batch: Any) -> Any:
    """The batch, whose nodes ascend in permanent id, with these roots, by type."""
    tables = getattr(batch, "nodes", dict.fromkeys(roots, batch))
    (own, index), *second = [(key, np.searchsorted(tables[key].node_id, of.original_id)) for key, of in roots.items()]
    if not isinstance(batch, TypedBatch):
        return replace(batch, root_index=index)
    second_type, second_index = second[0] if second else ("", None)
    return replace(batch, root_type=own, root_index=index, second_type=second_type, second_index=second_index)


def count_chunks(options: RandomPartitionOptions, manifest: Manifest | Sizes) -> int:
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
