"""Implements OGB's virtual node beside local layers: a state per graph that every node reads and that sums them (arXiv:2103.09430).

    v = learned at first;  x = L(x + v);  v = MLP(v + Σ x)        Σ over the nodes of the graph, before L; no MLP in the last layer

A batch of one graph has one virtual node, whose rows have no variance: the running statistics, which then never change, would leave it as it is. So the nodes of
one graph are refused in the options.

MLP = Linear(D, 2D), BatchNorm, ReLU, Linear(2D, D), BatchNorm, ReLU.

Shapes: n nodes of B graphs, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from graphmill.models.operators.local_blocks import LocalLayers
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs


class GraphNode(nn.Module):
    """Applies local layers with a virtual node between them."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.first_D = nn.Parameter(torch.zeros(width))
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width),
                RowBatchNorm(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width),
                RowBatchNorm(width),
                nn.ReLU(),
            )
            for _ in range(num_layers - 1)
        )

    def forward(self, x_nD: Tensor, local: LocalLayers, edges: Any, graphs: Graphs) -> Tensor:
        """Returns x [n, D] after all local layers; `edges` is what a local layer reads."""
        state_BD = self.first_D.expand(graphs.num_graphs, -1)
        for index, layer in enumerate(local.layers):
            x_nD = x_nD + graphs.by_graph.spread(state_BD.to(x_nD.dtype))
            if index < len(self.mlps):
                state_BD = self.mlps[index](state_BD + graphs.by_graph.sum(x_nD))
            x_nD = layer(x_nD, edges)
        return x_nD
