"""Implements I²GNN + PPGT: an encoder of the subgraph around each edge gives PPGT additional features of the edges (arXiv:2504.12588, appendix A.4; I²GNN:
arXiv:2210.13978).

For each edge i → j the subgraph is induced by the nodes within four steps of i or of j. A node u of it has the walk probabilities P_iu and P_ju as features, which
also mark i and j (P⁰ is the identity). Six layers of GIN with batch normalisation and ReLU read each subgraph by itself; the mean of its node states is the
edge's feature. Both parts train together. The paper does not say which walks a node of a subgraph has, how wide the layers are, or how states are pooled.

Shapes: n nodes and E edges of B graphs, N places, M rows of all subgraphs, K walk channels, D width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from graphmill.models.encodings.random_walk import random_walk_probabilities
from graphmill.models.operators.local_blocks import GINConvolution
from graphmill.models.options.features import Features
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs

HOPS, LAYERS, STEPS = 4, 6, 16


def edge_subgraphs(graphs: Graphs, hops: int, steps: int) -> Graphs:
    """The subgraph of each edge as one graph of a batch of E, with features [M, 2 steps]."""
    padding = graphs.padding
    walks_BNNK = random_walk_probabilities(graphs, steps)
    near_BNN = padding.adjacency()
    own_NN = torch.eye(near_BNN.shape[1], device=near_BNN.device)
    within_BNN = torch.linalg.matrix_power(torch.maximum(near_BNN, own_NN), hops) > 0
    source_E, target_E = graphs.edge_index
    graph_E, i_E, j_E = graphs.graph_of_node[source_E], padding.place_n[source_E], padding.place_n[target_E]
    member_EN = (within_BNN[graph_E, i_E] | within_BNN[graph_E, j_E]) & padding.mask_BN[graph_E]
    edge_M, place_M = member_EN.nonzero(as_tuple=True)
    row_EN = torch.cumsum(member_EN.flatten(), 0).view_as(member_EN) - 1
    x_MK = torch.cat([walks_BNNK[graph_E[edge_M], end_E[edge_M], place_M] for end_E in (i_E, j_E)], 1)
    ptr = torch.nn.functional.pad(member_EN.sum(1).cumsum(0), (1, 0))
    # Each subgraph has those edges of its graph whose two ends are members.
    first, last = i_E.unsqueeze(0), j_E.unsqueeze(0)
    same_EE = graph_E.unsqueeze(1) == graph_E.unsqueeze(0)
    both_EE = same_EE & member_EN.gather(1, first.expand_as(same_EE)) & member_EN.gather(1, last.expand_as(same_EE))
    sub_P, of_P = both_EE.nonzero(as_tuple=True)
    edges = torch.stack([row_EN[sub_P, i_E[of_P]], row_EN[sub_P, j_E[of_P]]])
    return Graphs(ptr, edges, x_MK)


class SubgraphPPGT(nn.Module):
    """Applies the encoder of subgraphs, then PPGT with its output as features of the edges."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        width = config.width
        self.network = PPGT(replace(config, edge=Features(dim=width)))
        sizes = [2 * STEPS, *[width] * (LAYERS - 1)]
        self.layers = nn.ModuleList(GINConvolution(size, width) for size in sizes)
        self.norms = nn.ModuleList(RowBatchNorm(width) for _ in sizes)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns PPGT's output."""
        dtype = next(self.layers.parameters()).dtype
        with torch.no_grad():
            subgraphs = edge_subgraphs(graphs, HOPS, STEPS)
        assert subgraphs.x is not None
        h_MD = subgraphs.x.to(dtype)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h_MD = torch.relu(norm(layer(h_MD, subgraphs.adjacency)))
        return self.network(graphs.with_rows(edge_attr=subgraphs.by_graph.mean(h_MD)), epoch=epoch)
