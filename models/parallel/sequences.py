"""Runs GECO's global convolution over workers: one all-to-all before it turns rows into channels, and one all-to-all after it turns them back.

Each channel is convolved separately. Between the two exchanges a worker has all N nodes for its share of the channels, and needs no other worker.
The order π is applied at this point, because π moves nodes between shards. Each worker computes the filters of its own channels: it runs
the FFN over all positions, and the FFN's last linear map for its own channels.

Shapes: n rows here, N nodes, G = K + 1 groups of D channels each, C of them here, K filters, I inner width of the filters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphmill.models.operators.filters import ImplicitFilter
from graphmill.models.operators.gated_convolution import convolve_gates_
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.gated_sequences import gated_sequences
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.node_order import Order
from graphmill.models.primitives.transform_length import repeat_lags, transform_length

PART_BYTES = 32 << 20  # memory for the gates and values of one part's channels, if no gradient is needed
PART_CHANNELS = 16  # least channels of a part: a product with 78 columns took longer than one with 96


class ShardedLayout:
    """Is the `graphmill.models.operators.node_layout.NodeLayout` for workers that each hold a range of the rows."""

    def __init__(self, shards: Shards, peers: Peers) -> None:
        self.rows, self.peers = shards, peers

    @property
    def num_nodes(self) -> int:
        return self.rows.total

    @property
    def first_row(self) -> int:
        return self.rows.range(self.peers.rank)[0]

    def convolve(
        self,
        h_nC: Tensor,
        projection: nn.Linear,
        filters: ImplicitFilter,
        skip_KD: Tensor | None,
        order: Order | None,
    ) -> Tensor:
        if not torch.is_grad_enabled():
            return self._convolve_parts(h_nC, projection, filters, skip_KD, order)
        start, stop = Shards.even(filters.width, self.peers.size).range(self.peers.rank)
        p_GCN = self.to_sequences(projection(h_nC), filters.num_filters + 1, order)
        v_CN = gated_sequences(p_GCN, filters, None if skip_KD is None else skip_KD[:, start:stop], start, stop)
        return self.to_rows(v_CN, Shards.even(filters.width, self.peers.size).sizes, order)

    def _convolve_parts(
        self,
        h_nC: Tensor,
        projection: nn.Linear,
        filters: ImplicitFilter,
        skip_KD: Tensor | None,
        order: Order | None,
    ) -> Tensor:
        """Runs `convolve` without a gradient and keeps no tensors. Processes every worker's channels part by part, with the operations of a single
        process (`graphmill.models.operators.gated_convolution`).
        """
        groups, width, length = filters.num_filters + 1, filters.width, transform_length(self.num_nodes)
        filter_KDI, feature_IN = filters.factors(self.num_nodes)
        spectrum_IM = torch.fft.rfft(repeat_lags(feature_IN, length)) if self.num_nodes else feature_IN
        del feature_IN
        owned = Shards.even(width, self.peers.size)
        size = PART_BYTES // max(1, groups * self.num_nodes * 4)
        size = max(size - size % PART_CHANNELS, PART_CHANNELS)
        y_nD = None
        for first in range(0, max(owned.sizes), size):
            parts = [(min(start + first, stop), min(start + first + size, stop)) for start, stop in owned.ranges]
            place_E = torch.tensor(
                [g * width + c for start, stop in parts for g in range(groups) for c in range(start, stop)],
                device=h_nC.device,
            )
            rows_nE = nn.functional.linear(h_nC, projection.weight[place_E], projection.bias[place_E])
            counts = [stop - start for start, stop in parts]
            sent = [part.reshape(-1) for part in rows_nE.split([groups * count for count in counts], dim=1)]
            del rows_nE
            p_GcN = self._arrived(torch.cat(sent), counts, groups, order)
            del sent
            here = slice(*parts[self.peers.rank])
            if p_GcN.numel():
                with torch.autocast(h_nC.device.type, enabled=False):
                    exact = torch.promote_types(torch.promote_types(p_GcN.dtype, spectrum_IM.real.dtype), torch.float32)
                    skip_Kc = None if skip_KD is None else skip_KD[:, here].to(exact)
                    v_cN = convolve_gates_(p_GcN, filter_KDI[:, here].to(exact), spectrum_IM, skip_Kc, length)
            else:
                v_cN = p_GcN[0]
            del p_GcN
            columns = self._columns(v_cN, counts, order)
            del v_cN
            if y_nD is None:
                y_nD = columns[0].new_empty(len(h_nC), width)
            for (start, stop), column_nC in zip(parts, columns, strict=True):
                y_nD[:, start:stop] = column_nC
        assert y_nD is not None
        return y_nD

    def to_sequences(self, rows_nE: Tensor, num_groups: int, order: Order | None) -> Tensor:
        """[n, G·D] in the original order of the rows → [G, C, N] in the order π, with a contiguous node axis."""
        num_rows, wide = rows_nE.shape
        counts = Shards.even(wide // num_groups, self.peers.size).sizes
        rows_nGD = rows_nE.view(num_rows, num_groups, wide // num_groups)
        sent = torch.cat([part.reshape(-1) for part in rows_nGD.split(counts, dim=2)])
        return self._arrived(sent, counts, num_groups, order)

    def _arrived(self, sent: Tensor, counts: Sequence[int], num_groups: int, order: Order | None) -> Tensor:
        """Returns [G, C, N] after the exchange. `sent` has, worker by worker, the counts[w] channels of every group for worker w, [n, G, C] flat."""
        num_rows, here = self.rows.sizes[self.peers.rank], counts[self.peers.rank]
        flat = self.peers.all_to_all(
            sent,
            [num_rows * num_groups * count for count in counts],
            [size * num_groups * here for size in self.rows.sizes],
            "sequences",
        )
        p_NE = flat.view(self.num_nodes, num_groups * here)  # worker 0's rows first: the original order
        if order is not None:
            p_NE = order.sort(p_NE)
        return p_NE.t().contiguous().view(num_groups, here, self.num_nodes)

    def to_rows(self, v_CN: Tensor, counts: Sequence[int], order: Order | None) -> Tensor:
        """[C, N] in the order π → [n, D] in the original order of the rows; worker w has counts[w] channels."""
        return torch.cat(self._columns(v_CN, counts, order), dim=1)

    def _columns(self, v_CN: Tensor, counts: Sequence[int], order: Order | None) -> list[Tensor]:
        """Returns the columns of `to_rows`, [n, counts[w]] for each worker w."""
        y_NC = v_CN.t().contiguous()
        if order is not None:
            y_NC = order.restore(y_NC)
        num_rows, here = self.rows.sizes[self.peers.rank], v_CN.shape[0]
        received = [num_rows * count for count in counts]
        flat = self.peers.all_to_all(y_NC.view(-1), [size * here for size in self.rows.sizes], received, "sequences")
        return [part.view(num_rows, count) for part, count in zip(flat.split(received), counts, strict=True)]
