"""Computes random-walk probabilities between all pairs of a graph's nodes (RRWP), and their diagonal (RWSE).

    M = D⁻¹A,  D = out-degrees (a node without out-edges has a zero row);  P_ij = [I, M, M², …]_ij

P_ij belongs to the walk that starts in i and ends in j. In attention i is the query and j the key (arXiv:2305.17589, section 3.1).
GRIT's code stored the transpose until December 2024; transpose the result to get that code's values. Parallel edges count once. With edge weights,
A holds the weights, and parallel edges add up. Self-loops count as given. Padding has zeros in every channel, also in the identity.

Powers are computed by doubling with dense batched products, [M¹ … Mᵃ] Mᵃ = [Mᵃ⁺¹ … M²ᵃ]: ⌈log₂ K⌉ calls, O(K n³) work. Products keep the requested precision,
because bf16 autocast would make the numbers inexact. A walk's exact zeros tell the shortest-path distance.

Legend: B graphs, n nodes, N places of the padded view, K channels.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.segments import at_least_float32

Normalisation = Literal["walk", "sym"]


@torch.no_grad()
def transition_matrix(
    graphs: Graphs,
    *,
    reverse: bool = False,
    undirected: bool = False,
    normalisation: Normalisation = "walk",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[B, N, N]: M = D⁻¹A ("walk"), or D_out^-½ A D_in^-½ ("sym", PPGT-base). With `reverse`, Aᵀ replaces A; with `undirected`, max(A, Aᵀ) replaces A."""
    if graphs.edge_coefficient is None:
        adjacency_BNN = graphs.padding.adjacency(dtype, undirected=undirected)
    else:
        adjacency_BNN = graphs.padding.pad_pairs(graphs.edge_coefficient.to(dtype))
        if undirected:
            adjacency_BNN = torch.maximum(adjacency_BNN, adjacency_BNN.transpose(1, 2))
    if reverse:
        adjacency_BNN = adjacency_BNN.transpose(1, 2)
    least = 1 if graphs.edge_coefficient is None else torch.finfo(dtype).tiny
    # A node of degree 0 has a row (column) of zeros, which stays zero after any division.
    out_BN1 = adjacency_BNN.sum(2, keepdim=True).clamp(min=least)
    if normalisation == "walk":
        return adjacency_BNN / out_BN1
    in_B1N = adjacency_BNN.sum(1, keepdim=True).clamp(min=least)
    return adjacency_BNN * (out_BN1.rsqrt() * in_B1N.rsqrt())


@torch.no_grad()
def random_walk_probabilities(
    graphs: Graphs,
    steps: int,
    *,
    reverse: bool = False,
    undirected: bool = False,
    normalisation: Normalisation = "walk",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[B, N, N, K]: the channels I, M, …, M^(steps-1). `steps` (at least 1) includes the identity.

    GRIT's K is `steps=K`, PPGT's "PE-dim K" (which keeps I … M^K) is `steps=K + 1`. `reverse` appends the walks over reversed
    edges, without a second I: 2·steps - 1 channels (PPGT's dual walks, K=5: `steps=6`, 11 channels). If `undirected` is set,
    the walks use each edge in both directions.
    """
    parts = [torch.diag_embed(graphs.padding.mask_BN.to(dtype)).unsqueeze(1)]
    for backward in (False, True) if reverse else (False,):
        matrix_BNN = transition_matrix(
            graphs, reverse=backward, undirected=undirected, normalisation=normalisation, dtype=dtype
        )
        parts += _powers(matrix_BNN, steps - 1)
    return torch.cat(parts, dim=1).permute(0, 2, 3, 1).contiguous()


@torch.no_grad()
def random_walk_diagonal(
    graphs: Graphs, steps: int, *, reverse: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor:
    """[n, steps]: the return probabilities [M, M², …, M^steps]_ii, steps ≥ 1 (RWSE; arXiv:2110.07875).

    `reverse` appends the return probabilities over reversed edges (result [n, 2·steps]), which differ in directed graphs.
    Only half of the powers are computed, because the diagonal of M^(h+t) is Σ_j (M^h)_ij (Mᵗ)_ji.
    """
    half, ways = (steps + 1) // 2, []
    for backward in (False, True) if reverse else (False,):
        powers_BKNN = torch.cat(_powers(transition_matrix(graphs, reverse=backward, dtype=dtype), half), dim=1)
        near_BKN = powers_BKNN.diagonal(dim1=2, dim2=3)
        far_BKN = (powers_BKNN[:, half - 1 :] * powers_BKNN[:, : steps - half].transpose(2, 3)).sum(3)
        ways.append(graphs.padding.unpad(torch.cat([near_BKN, far_BKN], dim=1).transpose(1, 2)))
    return torch.cat(ways, dim=1)


def _powers(matrix_BNN: Tensor, count: int) -> list[Tensor]:
    """Yields M¹ … M^count in pieces [B, powers in the piece, N, N]."""
    size, places = matrix_BNN.shape[:2]
    powers = [matrix_BNN.unsqueeze(1)][:count]
    known = 1
    with torch.autocast(matrix_BNN.device.type, enabled=False):
        while known < count:
            more = min(known, count - known)
            # One product per graph: the known powers, stacked by rows, times the highest known power.
            rows = torch.cat(powers, dim=1)[:, :more].reshape(size, more * places, places)
            powers.append(torch.bmm(rows, powers[-1][:, -1]).view(size, more, places, places))
            known += more
    return powers


def spe(p: Tensor, num_scales: int) -> Tensor:
    """[…, C] → […, C·(1 + 2S)]; the codes of one channel are adjacent. Separates probabilities that are too close for a linear map. Differentiable.

        p → [p, sin(2⁰πp), cos(2⁰πp), …, sin(2^(S-1)πp), cos(2^(S-1)πp)]      per channel

    Width 1 + 2S per channel (PPGT's code; its paper prints 1 + 2^S). S = 0 is the identity.

    Half-precision input is computed in float32, because at scale s an error of ε in p becomes an error of 2^s·π·ε in the code.
    """
    if num_scales == 0:
        return p
    exact = at_least_float32(p)
    scales = math.pi * 2.0 ** torch.arange(num_scales, device=p.device, dtype=exact.dtype)
    angle = exact.unsqueeze(-1) * scales  # […, C, S]
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    return torch.cat([exact.unsqueeze(-1), waves], dim=-1).flatten(-2).to(p.dtype)
