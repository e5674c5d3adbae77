"""Computes eigenvectors of the graph Laplacian for all graphs of a batch at once, and augments them in training.

    L = I - D^-½ A D^-½, degrees clipped to ≥ 1 (TokenGT);  or D - A (GraphGPS)

A is the symmetrised adjacency (an edge in either direction counts once, self-loops as given). With the clipping, an isolated
node has eigenvalue 1, not 0.

The sign of an eigenvector is arbitrary. Here each eigenvector's largest entry is positive (the first one of several near-equal entries).
The basis of a repeated eigenvalue is arbitrary too (eigenvalue 0 of a disconnected graph, twin atoms of a molecule). The solver chooses
the basis, which may change with padding, device and precision. Models should receive random signs in training.

Legend: B graphs, n nodes, N places of the padded view, k eigenvectors.
"""

from typing import Literal

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.random_numbers import signs, uniform


@torch.no_grad()
def laplacian_matrix(graphs: Graphs, dtype: torch.dtype = torch.float32, *, normalised: bool = True) -> Tensor:
    """[B, N, N]: L of each graph; padded places have zero rows."""
    adjacency_BNN = graphs.padding.adjacency(dtype, undirected=True)
    if not normalised:
        return torch.diag_embed(adjacency_BNN.sum(2)) - adjacency_BNN
    root_BN = adjacency_BNN.sum(2).clamp(min=1).rsqrt()
    return torch.diag_embed(graphs.padding.mask_BN.to(dtype)) - adjacency_BNN * (
        root_BN.unsqueeze(2) * root_BN.unsqueeze(1)
    )


@torch.no_grad()
def laplacian_eigenvectors(
    graphs: Graphs,
    k: int,
    which: Literal["smallest", "both_ends"] = "smallest",
    *,
    dtype: torch.dtype = torch.float32,
    normalised: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns k ≥ 1 unit eigenvectors [n, k] per graph and their eigenvalues [B, k], by ascending eigenvalue; missing ones (n_b < k) are 0.

    "smallest" takes the k smallest eigenvalues, the constant mode included; "both_ends" the ⌈k/2⌉ smallest and ⌊k/2⌋ largest
    (all n_b if n_b ≤ k). Calls one batched dense `eigh`, O(B N³). For a large graph use `graphmill.storage.encoding.spectral`.
    """
    padding = graphs.padding
    places, device = padding.num_places, graphs.node_ptr.device
    if not padding.num_graphs or not places:
        return (
            torch.zeros(graphs.num_nodes, k, dtype=dtype, device=device),
            torch.zeros(padding.num_graphs, k, dtype=dtype, device=device),
        )
    # This value puts padding behind all eigenvalues of the graph, which are at most 2 (normalised) or at most twice the largest degree.
    behind_BN = (~padding.mask_BN).to(dtype) * (4 * places)
    matrix_BNN = laplacian_matrix(graphs, dtype, normalised=normalised) + torch.diag_embed(behind_BN)
    with torch.autocast(device.type, enabled=False):
        values_BN, vectors_BNN = torch.linalg.eigh(matrix_BNN)
    rank_Bk, kept_Bk = _ranks(graphs.size_B, k, which)
    rank_Bk = rank_Bk.clamp(max=places - 1)
    values_Bk = values_BN.gather(1, rank_Bk) * kept_Bk
    vectors_BNk = vectors_BNN.gather(2, rank_Bk.unsqueeze(1).expand(-1, places, -1))
    vectors_BNk = torch.where(kept_Bk.unsqueeze(1) & padding.mask_BN.unsqueeze(2), vectors_BNk, 0)
    return padding.unpad(fixed_signs(vectors_BNk)), values_Bk


def _ranks(size_B: Tensor, k: int, which: str) -> tuple[Tensor, Tensor]:
    """Returns the index in the spectrum of each of the k eigenvectors (int64 [B, k]), and whether this index exists (bool [B, k])."""
    rank_k = torch.arange(k, device=size_B.device)
    kept_Bk = rank_k < size_B.unsqueeze(1)
    rank_Bk = rank_k.expand(size_B.numel(), k)
    if which == "both_ends":
        skipped_B1 = (size_B - k).clamp(min=0).unsqueeze(1)
        rank_Bk = rank_Bk + skipped_B1 * (rank_k >= k - k // 2)
    return rank_Bk, kept_Bk


def fixed_signs(vectors_BNk: Tensor) -> Tensor:
    """Multiplies each vector by the sign of its largest entry. If several entries are within 0.1 % of the largest, the sign of the first one is used."""
    size_BNk = vectors_BNk.abs()
    leading_B1k = (size_BNk >= 0.999 * size_BNk.amax(1, keepdim=True)).to(torch.uint8).argmax(1, keepdim=True)
    return torch.where(vectors_BNk.gather(1, leading_B1k) < 0, -vectors_BNk, vectors_BNk)


def flip_signs(vectors_nk: Tensor, graphs: Graphs) -> Tensor:
    """[n, k]: each eigenvector of each graph times a fair random sign. This is an augmentation, because the sign of an eigenvector is arbitrary."""
    shape = (graphs.num_graphs, vectors_nk.shape[1])
    return vectors_nk * signs(shape, vectors_nk.device, vectors_nk.dtype)[graphs.graph_of_node]


def drop_entries(vectors_nk: Tensor, p: float) -> Tensor:
    """[n, k]: each entry is zeroed with probability p; the other entries are divided by 1 - p (TokenGT's eigenvector dropout, for training)."""
    if p == 0:
        return vectors_nk
    kept = uniform(vectors_nk.shape, vectors_nk.device) >= p
    return vectors_nk * kept.to(vectors_nk.dtype) / (1 - p)
