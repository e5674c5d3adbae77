"""Random partitioning: each epoch a fresh random cut of all nodes into chunks; a batch is one chunk's induced subgraph.

As SGFormer trains on large graphs (arXiv:2306.10759) and Primphormer on ogbn-products in ten parts, but by hash: node v falls into
chunk floor(hash(seed, epoch, v) · P / 2^64), so that no one needs a list of all nodes. Chunk sizes are binomial around N / P, and an
edge survives with probability 1 / P. P = 1 is the whole graph.

A chunk of a tiny graph may hold no node at all, or no root, and ranks that share a chunk may share fewer roots than they are: a loop
skips the loss where there is no root (a mean over none is NaN), but under DDP still steps, for the other ranks wait for its gradients.
"""

from dataclasses import dataclass

import numpy as np

from samplers.graph_checks import check_graph
from samplers.minibatch import MiniBatch
from samplers.neighbor import build_minibatch
from samplers.option_checks import check_integer_tuples, check_integers
from samplers.plans import chunk_share, even_split, num_chunk_batches
from samplers.random_streams import Purpose, stream_key
from samplers.router import Router
from storage.encodings import check_encoding_names
from storage.errors import ConfigError
from storage.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN


@dataclass(frozen=True)
class RandomPartitionOptions:
    """How the graph is cut."""

    num_chunks: int = 10
    seed: int = 0
    split_set: int = 0
    root_splits: tuple[int, ...] = (SPLIT_TRAIN,)  # nodes with one of these codes are roots
    shuffle: bool = True  # False: the same cut in every epoch
    encodings: tuple[str, ...] = ()  # stored encodings of the nodes (storage.encodings), by name

    def __post_init__(self) -> None:
        check_encoding_names(self.encodings)
        check_integers(self, "num_chunks", "seed", "split_set")
        check_integer_tuples(self, "root_splits")
        if self.num_chunks < 1:
            raise ConfigError(
                f"num_chunks: expected at least 1, got {self.num_chunks}; set --chunks (--eval-chunks for evaluation)"
            )
        if not self.root_splits or not all(SPLIT_NONE < code <= SPLIT_TEST for code in self.root_splits):
            raise ConfigError(f"root_splits: expected codes of train, valid or test, got {self.root_splits}")


class RandomPartitionSampler:
    """Minibatches that are induced subgraphs of random chunks."""

    def __init__(self, router: Router, options: RandomPartitionOptions, num_ranks: int = 1) -> None:
        self._router, self._options, self._num_ranks = router, options, num_ranks
        num_nodes = router.manifest.num_nodes
        if options.num_chunks > num_nodes:
            raise ConfigError(
                f"num_chunks: expected at most one per node ({num_nodes}), got {options.num_chunks}; set --chunks (--eval-chunks for evaluation)"
            )
        check_graph(router.manifest, options.split_set)

    @property
    def options(self) -> RandomPartitionOptions:
        return self._options

    @property
    def num_batches(self) -> int:
        return num_chunk_batches(self._options.num_chunks, self._num_ranks)

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        options, router = self._options, self._router
        if not 0 <= batch < self.num_batches:
            raise ConfigError(f"batch: expected a number in [0, {self.num_batches}), got {batch}")
        share = chunk_share(batch, options.num_chunks, self._num_ranks)
        key = stream_key(options.seed, Purpose.CHUNKS, epoch if options.shuffle else 0)
        node = router.list_chunk(int(key), share.chunk, options.num_chunks).node
        edges = router.induced_edges(node)
        no_roots = np.empty(0, np.int64)
        minibatch = build_minibatch(
            router,
            epoch,
            batch,
            node,
            edges.count,
            edges.neighbor,
            no_roots,
            options.split_set,
            encodings=options.encodings,
        )
        assert minibatch.split is not None
        roots = np.flatnonzero(np.isin(minibatch.split, options.root_splits))
        start, stop = even_split(len(roots), share.parts, share.part)
        return MiniBatch(**{**vars(minibatch), "root_index": roots[start:stop]})
