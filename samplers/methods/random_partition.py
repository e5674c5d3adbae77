"""Cuts all nodes into chunks. A batch is the subgraph induced by one chunk, or by the union of several chunks.

cut="random" draws a new cut each epoch, like SGFormer (arXiv:2306.10759), but by hash. Node v is in chunk
floor(hash(seed, epoch, v) · P / 2^64). Chunk sizes are binomial around N / P, and an edge survives with probability 1 / P; P = 1 is the full graph.
cut="partitions" is ClusterGCN (arXiv:1905.07953): the chunks are the stored partitions. Each epoch draws anew which partitions form a batch; the batch includes
the edges between them. Batches then depend on the partitioning, by design.
cut="within" cuts each stored partition by hash: a batch is read from one partition and has no edges between partitions. If the number of ranks divides the
number of partitions, or vice versa, a rank always reads the same partitions.

A chunk of a random cut is a uniform sample of the nodes, as in ScaleGNN (arXiv:2604.02651), but each epoch's chunks cover all nodes. With `corrected` the
in-edges in a chunk also represent the in-edges that are missing in it. Let node v have d in-edges, l of them loops. Let a chunk have n of the graph's N nodes,
and let d' = d. With cut="within", N is instead the number of nodes of a partition, and d' is the number of v's in-edges that begin in it. If v is in the chunk,
another node is in it with probability (n - 1) / (N - 1). Then

    edge_coefficient of u → v = (N - 1) / (n - 1) · (d - l) / (d' - l), of v → v 1;     degree of v = d

so Σ coefficient · message estimates the sum over all in-edges without bias and, divided by the degree, the mean. For a random cut this is exact; within
partitions it assumes that edges from other partitions are like the partition's own. In a typed graph this holds for each relation, with N and n of its
source type; between two types the factor is N / n.

A batch may have no root. A training loop then skips the loss (a mean over nothing is NaN). Under DDP it must still make the step, because other ranks wait.
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
    """Minibatches that are induced subgraphs of chunks; nodes ascend in permanent id.

    The roots are the nodes of some splits, or given `roots` (distinct permanent ids). In a typed graph the roots are of one type. Each type is cut separately,
    and a chunk has nodes of all types, with the edges of all relations among them.
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
        """Raises ConfigError if a column, split or type that the options name is missing in the graph."""
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
        # The chunks are the stored partitions, or parts of them.
        of_files = " ".join(each.manifest.content_hash for each in self._router.nodes.values())
        return hashlib.sha256(f"{of_data} {of_files}".encode()).hexdigest()

    @property
    def num_batches(self) -> int:
        return num_chunk_batches(self._num_groups, self._num_ranks)

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return [self._draw(epoch, batch) for batch in batches]

    def draw_around(self, roots: Sequence[GivenRoots], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """The whole graph with these roots; its rows are not fetched. Raises ConfigError if the graph is cut, because a chunk may not contain the roots."""
        if self._num_chunks > self.options.chunks_per_batch:
            raise ConfigError(
                f"num_chunks: given roots need the whole graph in a batch, got {self._num_chunks} chunks; set --sampler.num_chunks 1, or "
                "--sampler neighbor"
            )
        drawn = []
        for batch, of_batch in zip(batches, roots, strict=True):
            with stage("sample"):
                nodes = self._induced.draw(epoch, batch, self._group_nodes(epoch, 0))
            of_type = of_batch if isinstance(of_batch, Mapping) else {self._induced.root_type: of_batch}
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
        """Fetches the degrees of these nodes. Returns a function that adds the coefficients of the module's docstring to the batch of these nodes."""
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
            itself = relation.source == relation.target  # the chunk surely has the node whose list is corrected
            scale = (num_nodes - itself) / max(len(node[relation.source]) - itself, 1)
            estimates[relation] = partial(_estimates, lists.degree, seen, scale, itself)
        return lambda batch: with_columns(
            batch, {name: estimates[name](table) for name, table in edge_tables(batch).items()}
        )

    def _part(self, chunk: int) -> tuple[int, int]:
        """(partition, index of the part within it) of a chunk, for a cut within partitions."""
        num_partitions, num_ranks = self._num_partitions, self._num_ranks
        step, rank = divmod(chunk, num_ranks)
        several, odd = divmod(num_ranks, num_partitions)
        if several and not odd:  # neighboring ranks share a partition
            chunk = step * num_ranks + rank % several * num_partitions + rank // several
        part, partition = divmod(chunk, num_partitions)
        return partition, part

    def _group_nodes(self, epoch: int, group: int) -> dict[str, np.ndarray]:
        """Nodes of one group of chunks of the epoch's cut, by type, ascending in permanent id."""
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
        nodes = {}
        for name, router in routers.items():
            # The roots' type is cut like a plain graph. Every other type has its own stream, because equal ids of two types are unrelated nodes.
            is_root = name == self._induced.root_type
            names = [] if is_root else [int(hashlib.sha256(name.encode()).hexdigest()[:16], 16)]
            key = stream_key(options.seed, Purpose.CHUNKS, position, *names)
            nodes[name] = router.list_chunk(int(key), start, num_chunks, stop - start, partition).node
        return nodes


def _estimates(
    degree: np.ndarray, seen: np.ndarray, scale: float, has_loops: bool, edges: Any
) -> dict[str, np.ndarray]:
    """Coefficients and degrees of a relation's edges. `seen` counts the in-edges of each node that can be in a batch. Each is in the batch with probability
    1 / `scale`."""
    end = np.repeat(np.arange(len(degree)), np.diff(edges.indptr))
    is_loop = (edges.indices == end) & has_loops
    num_loops = np.bincount(end[is_loop], minlength=len(degree))
    weight = scale * (degree - num_loops) / np.maximum(seen - num_loops, 1)
    return {
        "edge_coefficient": np.where(is_loop, 1, weight[end]).astype(np.float32),
        "degree": degree.astype(np.int64, copy=False),
    }


def _with_roots(roots: Mapping[str, NodeList], batch: Any) -> Any:
    """The batch with these roots by type. The nodes of the batch ascend in permanent id."""
    tables = getattr(batch, "nodes", dict.fromkeys(roots, batch))
    places = [(name, np.searchsorted(tables[name].node_id, own.original_id)) for name, own in roots.items()]
    (root_type, index), *second = places
    if not isinstance(batch, TypedBatch):
        return replace(batch, root_index=index)
    second_type, second_index = second[0] if second else ("", None)
    return replace(batch, root_type=root_type, root_index=index, second_type=second_type, second_index=second_index)


def count_chunks(options: RandomPartitionOptions, manifest: Manifest | Sizes) -> int:
    """Number of chunks of the cut. Raises ConfigError if the graph cannot be cut, or its chunks cannot be grouped, in the way that the options require."""
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
