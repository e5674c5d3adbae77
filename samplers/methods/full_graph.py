"""All nodes with all their in-edges: one batch per epoch, which the ranks divide into shards.

A rank's shard is a contiguous range of stored nodes. It has the rows of these nodes, and their lists of sources as stored ids. The sources may be nodes of
other ranks. A rank fetches only its own rows, in parts. Lists ascend in the source's permanent id, like in every batch. In a typed graph a shard has the same
blocks of the stored nodes of every type, and the lists of these nodes in every relation.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from graphmill.samplers.access.router import Router, Wanted, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import ShardOf
from graphmill.samplers.batches.typed_batch import TypedShardOf
from graphmill.samplers.drawing.build_batch import (
    Batch,
    InducedBatches,
    build_batch,
    edges_of,
    root_table,
    with_columns,
)
from graphmill.samplers.drawing.pending_batch import with_rows
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import hash_of_data
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, NodeRows, join_columns
from graphmill.samplers.vocabulary.options import FullGraphOptions
from graphmill.samplers.vocabulary.rank_shares import even_split, shard_bounds
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.manifest import NODE

_ROWS = 1 << 16  # nodes per request; bounds the memory of replies


class FullGraphSampler:
    """One batch for each rank. The roots are the nodes of some splits; in a typed graph, of one type."""

    __repr__, __len__ = sampler_repr, sampler_len

    def __init__(self, router: Router | TypedRouter, options: FullGraphOptions, num_ranks: int = 1) -> None:
        """Raises ConfigError if a column, split or type that the options name is missing in the graph."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self._induced = InducedBatches(router, options)
        self._roots = Roots(router.nodes[self._induced.root_type], options.split_set, options.root_splits)
        self._shards = num_ranks > 1 or options.alone == "shard"

    @property
    def content_hash(self) -> str:
        """Hash of the data. For shards it includes the partitions, because a shard depends on the stored order of nodes."""
        if not self._shards:
            return hash_of_data(self._router, self._roots.content_hash)
        routers = (*self._router.nodes.values(), *self._router.edges.values())
        hashes = dict.fromkeys(each.manifest.content_hash for each in routers)
        return "".join(hashes) if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    @property
    def num_batches(self) -> int:
        return self._num_ranks

    def sample(self, epoch: int, batch: int) -> Batch:
        check_batch(batch, self.num_batches)
        if self._shards:
            whole = self._shard(epoch, batch)
        else:
            routers = self._router.nodes
            node = {name: each.list_chunk(key=0, chunk=0, num_chunks=1).node for name, each in routers.items()}
            whole = with_rows(self._induced.draw(epoch, batch, node))
        return replace(whole, root_index=np.flatnonzero(self._roots.among(root_table(whole))))

    def _shard(self, epoch: int, rank: int) -> Any:
        """A rank's shard, without roots."""
        options, router, induced = self.options, self._router, self._induced
        shard, bounds = self._shard_of()
        nodes, edges, stored = {}, {}, {}
        for name, each in router.nodes.items():
            rows = _rows((each, np.arange(*bounds[name][rank : rank + 2]), induced.columns[name]))
            hop = {} if isinstance(router, Router) else {"hop": np.zeros(len(rows.original_id), np.int16)}
            nodes[name] = rows, hop
        for relation, each in router.edges.items():
            lists = _lists(each, np.arange(*bounds[relation.target][rank : rank + 2]), induced.edge_columns[relation])
            edges[relation] = edges_of(lists)
            stored[relation] = {"indices": lists.neighbor.astype(each.manifest.index_dtype, copy=False)}
        no_roots = np.empty(0, np.int64)
        batch = build_batch(router, epoch, rank, nodes, edges, no_roots, induced.root_type, 0, options.encodings)
        return replace(with_columns(batch, stored), shard=shard)

    def _shard_of(self) -> tuple[ShardOf | TypedShardOf, dict[str, tuple[int, ...]]]:
        """The graph that the ranks share, and for each type the bounds of the ranks' ranges of stored nodes."""
        options, router = self.options, self._router
        if isinstance(router, Router):
            manifest = router.manifest
            own = shard_bounds(manifest.num_nodes, self._num_ranks, manifest.partition_offsets, options.num_blocks)
            return ShardOf(own, manifest.symmetric), {NODE: own}
        num_nodes = {name: each.manifest.num_nodes for name, each in router.nodes.items()}
        ends = (even_split(options.num_blocks, self._num_ranks, rank)[0] for rank in range(self._num_ranks + 1))
        shard = TypedShardOf(num_nodes, options.num_blocks, tuple(ends))
        return shard, {name: tuple(shard.block_starts(name)[list(shard.ends)].tolist()) for name in num_nodes}


def _parts(node: np.ndarray) -> list[np.ndarray]:
    """The nodes in parts of `_ROWS`. For no nodes, one empty part, because its reply has the columns."""
    return np.split(node, range(_ROWS, len(node), _ROWS))


def _rows(wanted: Wanted) -> NodeRows:
    router, node, columns = wanted
    whole = router.empty_rows(len(node), **vars(columns))
    for first, part in enumerate(_parts(node)):
        with stage("fetch"):
            (rows,) = fetch_rows([(router, part, columns)])
        place = slice(first * _ROWS, first * _ROWS + len(part))
        for name, column in vars(whole).items():
            if column is not None:
                column[place] = getattr(rows, name)
    return whole


def _lists(router: Router, node: np.ndarray, columns: tuple[EdgeColumn, ...]) -> NeighborLists:
    with stage("sample"):
        listed = [router.sample_neighbors(part, -1, 0, columns=columns) for part in _parts(node)]
    joined: dict[str, Any] = {name: join_columns([getattr(part, name) for part in listed]) for name in vars(listed[0])}
    return NeighborLists(**joined)
