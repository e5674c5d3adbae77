"""Implements GatedGCN with a state per edge, for the GPS hybrid (arXiv:1711.07553, in the form of Benchmarking-GNNs and GraphGPS). For each edge j → i:

    ê_ij = C e_ij + D x_i + E x_j,   σ_ij = sigmoid(ê_ij)
    x'_i = ReLU(BN(A x_i + Σ_j σ_ij ⊙ B x_j / (Σ_j σ_ij + 10⁻⁶)))
    e'_ij = e_ij + Drop(ReLU(BN(ê_ij)))

With `distance_gate`, σ_ij is also multiplied by r_ij = sigmoid(MLP(|p_i - p_j|²)) of the nodes' positions p (GraphGPS's
equivariant and stable use of Laplacian eigenvectors).

The GPS layer adds the residual of x. For GatedGCN without edge states see `graphmill.models.operators.local_blocks.GatedConvolution`. Sums run over
sorted lists, without atomics (see models/primitives/segments.py).

Shapes: n nodes, E edges, D width.
"""

import torch
from torch import Tensor, nn

from graphmill.models.operators.local_blocks import gated_mean, times
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs


class GatedGCN(nn.Module):
    """Maps x [n, D] and e [E, D] to the update of x and the next e; see the module's docstring."""

    def __init__(
        self, width: int, dropout: float = 0.0, distance_gate: bool = False, update_edges: bool = True
    ) -> None:
        """`update_edges`: False in the last layer, because nothing reads its edge states. Then the next e is None and the norm of e takes no gradient."""
        super().__init__()
        self.update_edges = update_edges
        self.node = nn.Linear(width, 4 * width)  # A, D read the destination; B, E read the source
        self.edge = nn.Linear(width, width)  # C
        self.norm_x, self.norm_e = RowBatchNorm(width), RowBatchNorm(width)
        self.norm_e.requires_grad_(update_edges)  # data parallelism would wait for this gradient, which never comes
        self.dropout = Dropout(dropout)
        self.distance: nn.Module | None = None
        if distance_gate:
            self.distance = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1), nn.Sigmoid())

    def forward(
        self, x_nD: Tensor, e_ED: Tensor | None, graphs: Graphs, position_nP: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Requires edge states; the distance gate also requires positions."""
        assert e_ED is not None
        own_nD, to_nD, from_n2D = self.node(x_nD).split([x_nD.shape[1], x_nD.shape[1], 2 * x_nD.shape[1]], dim=1)
        message_ED, at_source_ED = graphs.by_source.spread(from_n2D).chunk(2, dim=1)
        gate_ED = self.edge(e_ED) + graphs.by_destination.spread(to_nD) + at_source_ED
        sigma_ED = torch.sigmoid(gate_ED)
        if self.distance is not None:
            assert position_nP is not None
            apart_EP = graphs.by_source.spread(position_nP) - graphs.by_destination.spread(position_nP)
            sigma_ED = sigma_ED * self.distance(apart_EP.square().sum(1, keepdim=True))
        sigma_ED = times(sigma_ED, graphs.edge_coefficient)
        mean_nD = gated_mean(sigma_ED, message_ED, graphs.by_destination)
        update_nD = torch.relu(self.norm_x(own_nD + mean_nD))
        if not self.update_edges:
            return update_nD, None
        return update_nD, e_ED + self.dropout(torch.relu(self.norm_e(gate_ED)))
