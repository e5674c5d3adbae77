"""All nodes with all their in-edges: one batch an epoch, which ranks share as shards.

A rank's shard is a contiguous range of stored nodes: their rows, and their lists of sources as stored ids, which may be other ranks' nodes.
A rank asks the owners for its own rows only, some at a time. Lists are in ascending permanent id of the source, as in every batch.
"""

from dataclasses import replace

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.minibatch import MiniBatch, ShardOf
from graphmill.samplers.drawing.build_batch import Batch, InducedBatches, root_table
from graphmill.samplers.drawing.pending_batch import with_rows
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import hash_of_data
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.vocabulary.messages import NeighborLists, NodeRows, join_columns
from graphmill.samplers.vocabulary.options import FullGraphOptions
from graphmill.samplers.vocabulary.rank_shares import shard_bounds
from graphmill.samplers.vocabulary.stage_clock import stage

_ROWS = 1 << 16  # of a request: bounds what is under way


class FullGraphSampler:
    """A batch for each rank; their roots are the nodes of some splits, of a typed graph those of one type."""

    __repr__, __len__ = sampler_repr, sampler_len

    def __init__(self, router: Router | TypedRouter, options: FullGraphOptions, num_ranks: int = 1) -> None:
        """Raises ConfigError where the graph lacks what the options name."""
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self._induced = InducedBatches(router, options)
        self._roots = Roots(router.nodes[self._induced.root_type], options.split_set, options.root_splits)
        self._shards = num_ranks > 1 or options.alone == "shard"
        if self._shards and not isinstance(router, Router):
            raise ConfigError(f"full graph: expected one rank for a typed graph, which has no shards, got {num_ranks}")

    @property
    def content_hash(self) -> str:
        """A shard depends on the stored order of the nodes too."""
        if self._shards and isinstance(self._router, Router):
            return self._router.manifest.content_hash
        return hash_of_data(self._router, self._roots.content_hash)

    @property
    def num_batches(self) -> int:
        return self._num_ranks

    def sample(self, epoch: int, batch: int) -> Batch:
        check_batch(batch, self.num_batches)
        if self._shards and isinstance(self._router, Router):
            whole: Batch = self._shard(self._router, epoch, batch)
        else:
            routers = self._router.nodes
            node = {name: each.list_chunk(key=0, chunk=0, num_chunks=1).node for name, each in routers.items()}
            whole = with_rows(self._induced.draw(epoch, batch, node))
        return replace(whole, root_index=np.flatnonzero(self._roots.among(root_table(whole))))

    def _shard(self, router: Router, epoch: int, rank: int) -> MiniBatch:
        """Without roots."""
        options, manifest = self.options, router.manifest
        bounds = shard_bounds(manifest.num_nodes, self._num_ranks, manifest.partition_offsets, options.num_blocks)
        start, stop = bounds[rank], bounds[rank + 1]
        split_set = options.split_set if manifest.num_split_sets else None
        listed: list[NeighborLists] = []
        columns: dict[str, np.ndarray] = {}
        for first in range(start, max(stop, start + 1), _ROWS):  # once of no rows too: that tells the columns
            node = np.arange(first, min(first + _ROWS, stop))
            with stage("sample"):
                listed.append(router.sample_neighbors(node, -1, 0, columns=options.edge_columns))
            with stage("fetch"):
                rows = router.fetch(node, split_set=split_set, encodings=options.encodings)
                _put(rows, columns, slice(first - start, first - start + len(node)), stop - start)
        return MiniBatch(
            epoch=epoch,
            index=rank,
            node_id=columns.pop("original_id"),
            indptr=pointers(np.concatenate([lists.count for lists in listed])),
            indices=np.concatenate([lists.neighbor for lists in listed]).astype(manifest.index_dtype, copy=False),
            root_index=np.empty(0, np.int64),
            encoding_names=options.encodings,
            shard=ShardOf(bounds, manifest.symmetric),
            **columns,
            **{name: join_columns([getattr(lists, name) for lists in listed]) for name in EDGE_COLUMNS},
        )


def _put(rows: NodeRows, columns: dict[str, np.ndarray], place: slice, length: int) -> None:
    """Copies these rows to their place in the columns of so many."""
    for name, values in vars(rows).items():
        if values is not None:
            if name not in columns:
                columns[name] = np.empty((length, *values.shape[1:]), values.dtype)
            columns[name][place] = values
