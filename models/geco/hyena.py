"""Implements two baselines of GECO's paper: Hyena over the sequence of nodes, and Hyena's short convolution in place of the neighbors.

Hyena's operator of order 2 (arXiv:2302.10866, and its public code), over the nodes in the order π:

    [x₁, x₂, v] = Conv₃(X W)        a causal convolution of each channel with three taps
    u = x₂ ⊙ v;    y = (x₁ ⊙ (h ∗ u + s ⊙ u)) W_o
    h_t = FFN(t) ⊙ (exp(-δ t) + 0.05),   t from 0 to 1,   δ evenly from 3.1 to 15.4 over the channels

∗ is a causal convolution. It is computed with length 2 N: zeros follow the N nodes. Hyena reads no edges; in GECO's paper it scores far lower on large graphs.

Shapes: N nodes, D width, k taps; B graphs of N places.
"""

import math

import torch
from torch import Tensor, nn

from graphmill.models.operators.filters import ImplicitFilter, circular_convolve
from graphmill.models.operators.node_layout import NodeLayout
from graphmill.models.options.filters import FilterConfig
from graphmill.models.primitives.node_order import Order

_TARGET, _FAST, _SLOW, _SHIFT = 1e-2, 0.3, 1.5, 0.05  # offset of the decay window, as in Hyena's code


class ShortConvolution(nn.Module):
    """y_t = b + Σ_{j < k} w_j ⊙ x_{t-j}, with zeros before the first node."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, size, groups=width)
        self.size = size

    def forward(self, x_BDN: Tensor) -> Tensor:
        """[B, D, N] → [B, D, N]; values behind a graph's end do not reach its nodes."""
        return self.convolution(nn.functional.pad(x_BDN, (self.size - 1, 0)))


class HyenaBlock(nn.Module):
    """Is Hyena's operator, with the call signature of a `graphmill.models.geco.network.GlobalBlock`."""

    def __init__(self, width: int, filter_config: FilterConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(width, 3 * width)
        self.short = ShortConvolution(3 * width, 3)
        self.filter = ImplicitFilter(filter_config, 1, width)
        self.skip_KD = nn.Parameter(torch.ones(1, width))
        self.out = nn.Linear(width, width)
        self.decay_D: Tensor
        decay_D = torch.linspace(-math.log(_TARGET) / _SLOW, -math.log(_TARGET) / _FAST, width)
        self.register_buffer("decay_D", decay_D, persistent=False)

    def forward(self, h_ND: Tensor, order: Order | None, layout: NodeLayout | None = None) -> Tensor:
        """[N, D] → [N, D] in the original order of the rows; O(D N log N). Raises ValueError if rows are spread over processes."""
        if layout is not None:
            raise ValueError("hyena computes all nodes in one process, got a part of them; set block to geco")
        num_nodes = h_ND.shape[0]
        rows_NE = self.projection(h_ND if order is None else order.sort(h_ND))
        if num_nodes:
            rows_NE = self.short(rows_NE.t().unsqueeze(0))[0].t()
        first_DN, second_DN, value_DN = rows_NE.t().to(self.skip_KD.dtype).chunk(3)
        u_DN = second_DN * value_DN
        y_DN = first_DN * (self._convolve(u_DN) + self.skip_KD[0].unsqueeze(1) * u_DN)
        y_ND = self.out(y_DN.t().to(h_ND.dtype))
        return y_ND if order is None else order.restore(y_ND)

    def _convolve(self, u_DN: Tensor) -> Tensor:
        """h ∗ u."""
        num_nodes = u_DN.shape[1]
        t_N = torch.linspace(0, 1, num_nodes, dtype=u_DN.dtype, device=u_DN.device)
        window_DN = torch.exp(-self.decay_D.to(u_DN.dtype).unsqueeze(1) * t_N) + _SHIFT
        behind = (0, num_nodes)
        filter_DN = nn.functional.pad(self.filter(num_nodes)[0] * window_DN, behind)
        return circular_convolve(filter_DN, nn.functional.pad(u_DN, behind))[:, :num_nodes]
