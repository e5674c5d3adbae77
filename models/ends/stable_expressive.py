"""Computes stable and expressive position encodings: a function of Laplacian eigenvectors that no choice of sign or basis changes.

    P = ρ([V diag(φ_c(λ)) Vᵀ]_{c = 1 … C})        arXiv:2310.02579, eq. 3; "SPE" in Primphormer's BREC table

φ_c acts on each eigenvalue separately, so a repeated eigenvalue gives its whole eigenspace one weight. Any basis then gives the same matrix
(unless the k modes cut an eigenspace in two). ρ is a GIN over the rows i of the matrix, applied to each column j; then the columns are
summed: H_ij ← MLP((1 + ε) H_ij + Σ_{l → i} H_lj),  P_i = Linear(Σ_j H_ij).

The encoding is dense: it takes O(n²) memory and time per graph, even if the model after it costs less.

Legend: B graphs, N places of the padded view, k modes, C channels.
"""

import torch
from torch import Tensor, nn

from graphmill.models.encodings.laplacian import laplacian_eigenvectors
from graphmill.models.primitives.graphs import Graphs


class StableExpressive(nn.Module):
    """Computes packed rows [n, out] from the k smallest modes of every graph."""

    def __init__(self, modes: int, out: int, channels: int = 16, num_layers: int = 3) -> None:
        super().__init__()
        self.modes = modes
        self.phi = nn.Sequential(nn.Linear(1, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))
        self.rho = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
            for _ in range(num_layers)
        )
        self.epsilon = nn.Parameter(torch.zeros(num_layers))
        self.out = nn.Linear(channels, out)

    def forward(self, graphs: Graphs) -> Tensor:
        # Rounding the Gram matrix would distinguish nodes that are equal by symmetry.
        with torch.autocast(graphs.node_ptr.device.type, enabled=False):
            vectors_nk, values_Bk = laplacian_eigenvectors(graphs, self.modes, dtype=self.out.weight.dtype)
            return self.encode(vectors_nk, values_Bk, graphs)

    def encode(self, vectors_nk: Tensor, values_Bk: Tensor, graphs: Graphs) -> Tensor:
        """[n, out] from eigenvectors [n, k] and eigenvalues [B, k]."""
        padding, dtype = graphs.padding, self.out.weight.dtype
        if padding.num_places == 0:
            return self.out(vectors_nk.new_zeros(graphs.num_nodes, self.out.in_features))
        v_BNk, weight_BkC = padding.pad(vectors_nk), self.phi(values_Bk.unsqueeze(2))
        # H_ijC = Σ_k v_ik φ_C(λ_k) v_jk has shape [B, N, N·C], so that the GIN's sum over neighbours is one product per graph.
        scaled_BkNC = weight_BkC.unsqueeze(2) * v_BNk.transpose(1, 2).unsqueeze(3)
        h_BNNC = torch.bmm(v_BNk, scaled_BkNC.flatten(2)).unflatten(2, (padding.num_places, -1))
        incoming_BNN = padding.adjacency(dtype).transpose(1, 2)
        real_BNN1 = padding.pair_mask_BNN.unsqueeze(3)
        for mlp, epsilon in zip(self.rho, self.epsilon, strict=True):
            near_BNNC = torch.bmm(incoming_BNN, h_BNNC.flatten(2)).view_as(h_BNNC)
            h_BNNC = mlp((1 + epsilon) * h_BNNC + near_BNNC) * real_BNN1
        return self.out(padding.unpad(h_BNNC.sum(2)))
