"""GECO's global convolution over workers: rows become channels by one all-to-all before it, and rows again by one after it.

A convolution is per channel, so between the two a worker has all N nodes of its share of the channels and works alone. The order
π crosses shards, so it is applied where all nodes are at hand. Filters are made where they are used: each worker runs their FFN over
all positions, and its last linear map for its own channels.

Shapes: n rows here, N nodes, G = K + 1 groups of D channels each, C of them here, K filters, I inner width of the filters.
"""

import torch
from torch import Tensor

from models.filters import ImplicitFilter
from models.node_order import Order
from models.parallel.collectives import Peers
from models.parallel.gated_sequences import gated_sequences
from models.parallel.shards import Shards


class ShardedLayout:
    """The `models.node_layout.NodeLayout` of workers that each hold a range of the rows."""

    def __init__(self, shards: Shards, peers: Peers) -> None:
        self.rows, self.peers = shards, peers

    @property
    def num_nodes(self) -> int:
        return self.rows.total

    @property
    def first_row(self) -> int:
        return self.rows.range(self.peers.rank)[0]

    def convolve(self, rows_nE: Tensor, filters: ImplicitFilter, skip_KD: Tensor | None, order: Order | None) -> Tensor:
        start, stop = Shards.even(filters.width, self.peers.size).range(self.peers.rank)
        p_GCN = self.to_sequences(rows_nE, filters.num_filters + 1, order)
        v_CN = gated_sequences(p_GCN, filters, None if skip_KD is None else skip_KD[:, start:stop], start, stop)
        return self.to_rows(v_CN, filters.width, order)

    def to_sequences(self, rows_nE: Tensor, num_groups: int, order: Order | None) -> Tensor:
        """[n, G·D] in the rows' own order → [G, C, N] in the order π, the node axis contiguous."""
        num_rows, wide = rows_nE.shape
        channels = Shards.even(wide // num_groups, self.peers.size)
        here = channels.sizes[self.peers.rank]
        rows_nGD = rows_nE.view(num_rows, num_groups, wide // num_groups)
        sent = torch.cat([part.reshape(-1) for part in rows_nGD.split(channels.sizes, dim=2)])
        flat = self.peers.all_to_all(
            sent,
            [num_rows * num_groups * size for size in channels.sizes],
            [size * num_groups * here for size in self.rows.sizes],
            "sequences",
        )
        p_NE = flat.view(self.num_nodes, num_groups * here)  # by worker, and so by row
        if order is not None:
            p_NE = order.sort(p_NE)
        return p_NE.t().reshape(num_groups, here, self.num_nodes)

    def to_rows(self, v_CN: Tensor, width: int, order: Order | None) -> Tensor:
        """[C, N] in the order π → [n, D] in the rows' own order."""
        y_NC = v_CN.t().contiguous()
        if order is not None:
            y_NC = order.restore(y_NC)
        num_rows, here = self.rows.sizes[self.peers.rank], v_CN.shape[0]
        sizes = Shards.even(width, self.peers.size).sizes
        received = [num_rows * size for size in sizes]
        flat = self.peers.all_to_all(y_NC.view(-1), [size * here for size in self.rows.sizes], received, "sequences")
        parts = [part.view(num_rows, size) for part, size in zip(flat.split(received), sizes, strict=True)]
        return torch.cat(parts, dim=1)
