"""All nodes with all their in-edges: one batch an epoch, which ranks share as shards.

A rank's shard is a contiguous range of stored nodes: their rows, and their lists of sources as stored ids, which may be other ranks' nodes.
A rank asks the owners for its own rows only, some at a time. Lists are in ascending permanent id of the source, as in every batch.
"""

from dataclasses import replace

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Router
from graphmill.samplers.batches.minibatch import MiniBatch, ShardOf
from graphmill.samplers.drawing.pending_batch import with_rows
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.methods.neighbor import draw_induced
from graphmill.samplers.vocabulary.messages import NeighborLists, NodeRows, join_columns
from graphmill.samplers.vocabulary.options import FullGraphOptions
from graphmill.samplers.vocabulary.rank_shares import shard_bounds
from graphmill.samplers.vocabulary.requirements import check_graph
from graphmill.samplers.vocabulary.stage_clock import stage

_ROWS = 1 << 16  # of a request: bounds what is under way


class FullGraphSampler:
    """A batch for each rank; their roots are the nodes of some splits."""

    __repr__, __len__ = sampler_repr, sampler_len

    def __init__(self, router: Router, options: FullGraphOptions, num_ranks: int = 1) -> None:
        self._router, self.options, self._num_ranks = router, options, num_ranks
        check_graph(router.manifest, options.split_set, edge_columns=options.edge_columns)
        self._roots = Roots(router, options.split_set, options.root_splits)
        self._shards = num_ranks > 1 or options.alone == "shard"

    @property
    def content_hash(self) -> str:
        """A shard depends on the stored order of the nodes too."""
        return self._router.manifest.content_hash if self._shards else self._roots.content_hash

    @property
    def num_batches(self) -> int:
        return self._num_ranks

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        check_batch(batch, self.num_batches)
        if self._shards:
            minibatch = self._shard(epoch, batch)
        else:
            nodes = self._router.list_chunk(key=0, chunk=0, num_chunks=1).node
            drawn = draw_induced(self._router, epoch, batch, nodes, self.options, self.options.edge_columns)
            minibatch = with_rows(drawn)
        return replace(minibatch, root_index=np.flatnonzero(self._roots.among(minibatch)))

    def _shard(self, epoch: int, rank: int) -> MiniBatch:
        """Without roots."""
        router, options, manifest = self._router, self.options, self._router.manifest
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
