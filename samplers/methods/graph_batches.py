"""Batches of many small graphs, planned only from the graphs' sizes. The plan is the same on every rank, and every graph is in one batch of an epoch.

The graphs are sorted by size and divided into buckets. The largest graph of a bucket is at most `bucket_ratio` times the smallest (or larger, if there are few
graphs of this size). A batch takes graphs of one bucket. Their number is chosen so that the batch fits the budgets even if each graph is as large as the
bucket's largest. So every shuffle within a bucket fits, and every epoch has the same number of batches. The ranks' batches of one step are similar in size, so
no rank waits long.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic

import numpy as np
import torch

from graphmill.core.errors import ConfigError, DataError
from graphmill.core.offsets import pointers
from graphmill.samplers.batches.minibatch import Array
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.vocabulary.options import GraphBatchOptions
from graphmill.samplers.vocabulary.rank_shares import even_split
from graphmill.storage.graph_sets.graph_set import StoredGraphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs

_MIXED_BATCHES = 4  # least number of batches in a bucket if there are enough graphs, so that graphs mix


@dataclass(frozen=True)
class PackedBatch(Generic[Array]):
    """Graphs packed one after another. Graph i has the nodes [node_ptr[i], node_ptr[i + 1]) and the edges [edge_ptr[i], edge_ptr[i + 1])."""

    epoch: int
    index: int  # index of the batch in its epoch, counted over all ranks
    graph_id: Array  # int64 [g], indices of the graphs in the store
    node_ptr: Array  # int64 [g + 1]
    edge_ptr: Array  # int64 [g + 1]
    edge_index: Array  # int32 [2, m]: source and destination of each edge, positions in the batch
    node_feature: Array | None = None  # [n, …]
    edge_feature: Array | None = None  # [m, …]
    target: Array | None = None  # [g, …]
    node_label: Array | None = None  # int64 [n], -1: none
    pair_ptr: Array | None = None  # int64 [g + 1]
    pairs: Array | None = None  # int64 [p, 3]: positions of two nodes, and whether they are a link (0 or 1)
    max_nodes: int | None = None  # largest over the graphs; None: models compute it
    max_edges: int | None = None

    @property
    def num_graphs(self) -> int:
        return len(self.graph_id)

    @property
    def num_nodes(self) -> int:
        return int(self.node_ptr[-1])

    @property
    def num_edges(self) -> int:
        return int(self.edge_ptr[-1])

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray | torch.Tensor))


GraphBatch = PackedBatch[np.ndarray]
TorchGraphBatch = PackedBatch[torch.Tensor]


@dataclass(frozen=True)
class GraphPlan:
    """All batches before any shuffle. Batch b takes the positions [place_ptr[b], place_ptr[b + 1]) of `order`."""

    order: np.ndarray  # int64 [num_graphs], indices of graphs by size
    bucket: np.ndarray  # int64 [num_graphs], bucket of each position in `order`; ascending
    place_ptr: np.ndarray  # int64 [num_batches + 1]; no batch spans two buckets

    @property
    def num_batches(self) -> int:
        return len(self.place_ptr) - 1


def plan_graph_batches(
    num_nodes: np.ndarray, num_edges: np.ndarray, options: GraphBatchOptions, num_ranks: int = 1
) -> GraphPlan:
    """Plans buckets and batches. The number of batches is a multiple of `num_ranks`.

    Raises ConfigError if a single graph exceeds a budget (unless `oversize` is "alone"), or if there are too few graphs for every rank in each step.
    """
    num_nodes, num_edges = np.asarray(num_nodes, np.int64), np.asarray(num_edges, np.int64)
    alone = _exceeds_alone(num_nodes, num_edges, options)
    order = _stable_order(alone, num_nodes, num_edges)
    nodes, edges = num_nodes[order], num_edges[order]
    bounds, fits = [len(order)], []  # bounds of buckets in `order`, from the largest graphs down
    if alone.any():
        bounds.append(len(order) - int(alone.sum()))
        fits.append(1)
    while bounds[-1] > 0:
        high = bounds[-1]
        low = int(np.searchsorted(nodes[:high], nodes[high - 1] / options.bucket_ratio))
        fit = _graphs_that_fit(int(nodes[high - 1]), int(edges[low:high].max()), options)
        if high - low < _MIXED_BATCHES * fit:  # there are few graphs of this size, so smaller graphs join the bucket
            low = max(0, high - _MIXED_BATCHES * fit)
            fit = _graphs_that_fit(int(nodes[high - 1]), int(edges[low:high].max()), options)
        bounds.append(low)
        fits.append(fit)
    bounds, fits = bounds[::-1], fits[::-1]
    counts = np.diff(bounds)
    batches = _round_up(counts, np.array(fits), num_ranks)
    bucket_of_batch = np.repeat(np.arange(len(counts)), batches)
    part = np.arange(len(bucket_of_batch)) - (np.cumsum(batches) - batches)[bucket_of_batch]
    _, ends = even_split(counts[bucket_of_batch], batches[bucket_of_batch], part)
    return GraphPlan(
        order=order,
        bucket=np.repeat(np.arange(len(counts)), counts),
        place_ptr=np.concatenate([[0], np.array(bounds[:-1], np.int64)[bucket_of_batch] + ends]),
    )


def _stable_order(*keys: np.ndarray) -> np.ndarray:
    """int64 [n]: positions in lexicographic order of the keys. The first key is the most significant. Like `np.lexsort`, but ten times as fast for small
    integers."""
    order = np.arange(len(keys[0]))
    for key in reversed(keys):
        if len(key) and key.dtype != np.uint64:
            key = key.astype(np.min_scalar_type(int(key.max())))  # numpy sorts 16-bit integers by radix
        order = order[np.argsort(key[order], kind="stable")]
    return order


def _exceeds_alone(num_nodes: np.ndarray, num_edges: np.ndarray, options: GraphBatchOptions) -> np.ndarray:
    """bool [num_graphs]: graphs that exceed a budget. Raises ConfigError if there are any and `oversize` is "error"."""
    alone = np.zeros(len(num_nodes), bool)
    sizes = {"max_nodes": num_nodes, "max_edges": num_edges, "max_node_pairs": num_nodes * num_nodes}
    for name, size in sizes.items():
        budget = getattr(options, name)
        if budget:
            alone |= size > budget
            if options.oversize == "error" and alone.any():
                worst = int(np.argmax(size))
                raise ConfigError(
                    f"{name}: expected at least {size[worst]}, the size of graph {worst} "
                    f"({num_nodes[worst]} nodes, {num_edges[worst]} edges), got {budget}; "
                    f"raise --sampler.{name}, or set --sampler.oversize alone"
                )
    return alone


def _graphs_that_fit(nodes: int, edges: int, options: GraphBatchOptions) -> int:
    """Number of graphs of this size that fit into one batch within all budgets."""
    fits = [options.max_graphs] if options.max_graphs else []
    sizes = ((options.max_nodes, nodes), (options.max_edges, edges), (options.max_node_pairs, nodes * nodes))
    fits += [budget // max(size, 1) for budget, size in sizes if budget]
    return min(fits)


def _round_up(counts: np.ndarray, fits: np.ndarray, num_ranks: int) -> np.ndarray:
    """Number of batches per bucket. The total is a multiple of the ranks; batches are added to the buckets whose batches have the most graphs."""
    batches = -(-counts // fits)
    for _ in range(int(-batches.sum() % num_ranks)):
        mean = np.where(batches < counts, counts / batches, 0)
        if not mean.any():
            raise ConfigError(
                f"expected graphs for a multiple of {num_ranks} batches, got {counts.sum()} graphs in {batches.sum()} batches of one; "
                "lower --fit.micro_batches (or, where it is auto, --workers) or raise the budgets"
            )
        batches[int(np.argmax(mean))] += 1
    return batches


class GraphBatchSampler:
    """Batches of a store's graphs, or only of the graphs in `graphs`, such as a split. The order of `graphs` does not matter."""

    __repr__, __len__ = sampler_repr, sampler_len

    def __init__(
        self,
        store: StoredGraphs,
        options: GraphBatchOptions,
        num_ranks: int = 1,
        graphs: np.ndarray | Sequence[int] | None = None,
    ) -> None:
        self.options = options
        self._store, self._num_ranks = store, num_ranks
        self._is_whole = graphs is None
        self._graphs = np.arange(len(store.num_nodes)) if graphs is None else np.sort(np.asarray(graphs, np.int64))
        if len(self._graphs) == 0:
            raise ConfigError("graphs: expected at least one, got none")
        if self._graphs.min() < 0 or self._graphs.max() >= len(store.num_nodes):
            raise ConfigError(
                f"graphs: expected numbers in [0, {len(store.num_nodes)}), got {self._graphs.min()} to {self._graphs.max()}"
            )
        if np.bincount(self._graphs).max() > 1:
            raise ConfigError(f"graphs: expected distinct numbers, got {len(self._graphs)} with repeats")
        if options.pair_negatives == "drawn" and store.manifest.labelled != "pairs":
            raise ConfigError(
                f"pair_negatives: expected graphs with pairs of nodes, got graphs with {store.manifest.labelled or 'targets'}; leave out --sampler.pair_negatives"
            )
        self._last_shuffle: tuple[int, np.ndarray, np.ndarray] | None = None

    @cached_property
    def content_hash(self) -> str:
        """Hash of the store and of the given graphs, if any."""
        store = self._store.content_hash
        return store if self._is_whole else hashlib.sha256(store.encode() + self._graphs.tobytes()).hexdigest()

    @cached_property
    def plan(self) -> GraphPlan:
        sizes = self._store.num_nodes[self._graphs], self._store.num_edges[self._graphs]
        return plan_graph_batches(*sizes, self.options, self._num_ranks)

    @property
    def num_batches(self) -> int:
        return self.plan.num_batches

    def graphs_of(self, epoch: int, batch: int) -> np.ndarray:
        """int64: indices of the graphs of one batch."""
        check_batch(batch, self.num_batches)
        plan = self.plan
        planned, order = batch, plan.order
        if self.options.shuffle:
            order, steps = self._shuffle(epoch)
            step, rank = divmod(batch, self._num_ranks)
            planned = int(steps[step]) * self._num_ranks + rank
        return self._graphs[order[plan.place_ptr[planned] : plan.place_ptr[planned + 1]]]

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """An epoch's graphs, shuffled within each bucket, and the planned batches in the order in which the epoch's steps take them."""
        last = self._last_shuffle  # read once, because another thread may replace it with another epoch's shuffle
        if last is not None and last[0] == epoch:
            return last[1:]
        plan, seed = self.plan, self.options.seed
        graph_key = stream_key(seed, Purpose.GRAPH_ORDER, epoch)
        step_key = stream_key(seed, Purpose.GRAPH_STEPS, epoch)
        order = plan.order[_stable_order(plan.bucket, hash_ids(graph_key, self._graphs[plan.order]))]
        steps = np.argsort(hash_ids(step_key, np.arange(self.num_batches // self._num_ranks)), kind="stable")
        self._last_shuffle = (epoch, order, steps)
        return order, steps

    def sample(self, epoch: int, batch: int) -> GraphBatch:
        graphs = self.graphs_of(epoch, batch)
        packed = self._store.fetch(graphs)
        if self.options.pair_negatives == "drawn":
            packed = with_drawn_negatives(packed, graphs, stream_key(self.options.seed, Purpose.NEGATIVES, epoch))
        return pack_graphs(epoch, batch, graphs, packed)


def with_drawn_negatives(graphs: PackedGraphs, graph_id: np.ndarray, key: np.uint64) -> PackedGraphs:
    """The same graphs, whose pairs are the links i → j and for each link one pair i → k, where k is neither i nor a node with a link from i. A draw is a function of
    the key, the graph and the link's number in it. A node with links to all other nodes has no such pair.
    """
    if graphs.pairs is None or graphs.num_pairs is None:
        raise DataError("pair_negatives: expected pairs of nodes in every graph, found a batch without pairs")
    rows, counts = [graphs.pairs[:0]], []
    for graph, pairs, num_nodes in zip(
        graph_id, np.split(graphs.pairs, np.cumsum(graphs.num_pairs)[:-1]), graphs.num_nodes, strict=True
    ):
        links = pairs[pairs[:, 2] == 1]
        if not len(links):
            counts.append(0)
            continue
        hashed = hash_ids(hash_ids(key, np.array([graph]))[0], np.arange(len(links)))
        share = (hashed >> np.uint64(11)).astype(np.float64) / 2.0**53
        is_free = np.ones((num_nodes, num_nodes), bool)
        np.fill_diagonal(is_free, False)
        is_free[links[:, 0], links[:, 1]] = False
        free = is_free[links[:, 0]]
        number = (share * free.sum(1)).astype(np.int64)  # the number of the drawn node among the free ones
        drawn = (free.cumsum(1) == number[:, None] + 1).argmax(1)
        negatives = np.stack([links[:, 0], drawn.astype(links.dtype), np.zeros(len(links), links.dtype)], axis=1)
        rows += [links, negatives[free.any(1)]]
        counts.append(len(links) + int(free.any(1).sum()))
    return replace(graphs, pairs=np.concatenate(rows), num_pairs=np.array(counts, graphs.num_pairs.dtype))


def pack_graphs(epoch: int, index: int, graph_id: np.ndarray, graphs: PackedGraphs) -> GraphBatch:
    """One batch of these graphs. Its edges are positions in the batch. Raises DataError if an edge leaves its graph."""
    node_ptr, edge_ptr = pointers(graphs.num_nodes), pointers(graphs.num_edges)
    # int32 like the edges, because a wider bound would create a wider array of all edges
    bound = np.repeat(graphs.num_nodes.astype(np.int32), graphs.num_edges)
    outside = (graphs.edge_index < 0) | (graphs.edge_index >= bound)
    if outside.any():
        edge = int(np.flatnonzero(outside.any(axis=0))[0])
        owner = int(np.searchsorted(edge_ptr, edge, side="right")) - 1
        raise DataError(
            f"graph {graph_id[owner]}: expected edges among {graphs.num_nodes[owner]} nodes, "
            f"got {tuple(graphs.edge_index[:, edge].tolist())}"
        )
    return GraphBatch(
        epoch=epoch,
        index=index,
        graph_id=graph_id,
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        edge_index=graphs.edge_index + np.repeat(node_ptr[:-1].astype(np.int32), graphs.num_edges),
        node_feature=graphs.node_feature,
        edge_feature=graphs.edge_feature,
        target=graphs.target,
        node_label=None if graphs.node_label is None else graphs.node_label.astype(np.int64),
        **_packed_pairs(graphs, node_ptr),
    )


def _packed_pairs(graphs: PackedGraphs, node_ptr: np.ndarray) -> dict[str, Any]:
    """The pairs of nodes, as positions in the batch."""
    if graphs.pairs is None or graphs.num_pairs is None:
        return {}
    pairs = graphs.pairs.astype(np.int64)
    pairs[:, :2] += np.repeat(node_ptr[:-1], graphs.num_pairs)[:, None]
    return {"pair_ptr": pointers(graphs.num_pairs), "pairs": pairs}


def graphs_to_torch(batch: GraphBatch) -> TorchGraphBatch:
    """Tensors over the batch's own arrays. Nothing else uses these arrays."""
    tensors: dict[str, Any] = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in vars(batch).items()
    }
    return TorchGraphBatch(**tensors)
