"""Random node identifiers: rows of an orthogonal matrix per graph (ORF), or random signs for large graphs (near-ORF).

A model can read incidence from orthogonal identifiers: [P_u, P_v]·[P_k, P_k] is 1 if k ∈ {u, v} and 0 otherwise (arXiv:2207.02505,
section 3). The matrices are drawn uniformly (Haar). LAPACK's Q alone is not uniform: its diagonal is negative on average, which reveals
a node's position in the batch. Q's columns times sign(diag R) are uniform (arXiv:math-ph/0609050).

Legend: B graphs, n nodes, N places of the padded view, D = min(N, dim) columns.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.random_numbers import box_muller, gaussians, mix, signs, uniform

NodeIdentifier = Literal["near_orf", "random", "positive"]


@torch.no_grad()
def orthogonal_identifiers(
    graphs: Graphs,
    dim: int,
    *,
    seed: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[n, dim]: the rows of a random orthogonal n_b × n_b matrix for each graph, fresh at each call.

    n_b < dim: zero columns are appended. n_b > dim: the first `dim` columns are kept and each row is scaled to norm 1; rows are
    then only near-orthogonal. A graph's identifiers have the same distribution in every batch. In the authors' code, which takes rows
    of one max_n × max_n matrix, the distribution depends on the batch.

    With `seed` (for evaluation) every graph's Gaussian matrix is the same function of (seed, position in the graph, column). A graph's
    identifiers then depend only on the graph's size, up to rounding.
    """
    padding = graphs.padding
    places, device = padding.num_places, graphs.node_ptr.device
    width = min(places, dim)
    if not padding.num_graphs or not width:
        return torch.zeros(graphs.num_nodes, dim, dtype=dtype, device=device)
    if seed is None:
        gauss = gaussians((padding.num_graphs, places, width), device, dtype)
    else:
        gauss = _counted_gaussians(seed, torch.arange(places, device=device), width, dtype)
    # The first n_b rows and columns hold the Gaussian matrix of a graph of n_b nodes; the padding has unit columns. Q is then block
    # diagonal, so the graph's rows have exact zeros in the columns from n_b on.
    node_BN1 = padding.mask_BN.unsqueeze(2)
    column_B1D = padding.mask_BN[:, :width].unsqueeze(1)
    unit_ND = torch.eye(places, width, dtype=dtype, device=device)
    matrix_BND = torch.where(column_B1D, gauss * node_BN1, unit_ND)
    if device.type == "cuda":
        q_BND = _orthogonalised(matrix_BND.double()).to(dtype)
    else:
        q_BND, r_BDD = torch.linalg.qr(matrix_BND)
        q_BND = torch.where(r_BDD.diagonal(dim1=1, dim2=2).unsqueeze(1) < 0, -q_BND, q_BND)
    rows_nD = padding.unpad(q_BND)
    if places > dim:
        rows_nD = rows_nD / rows_nD.norm(dim=1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    return torch.nn.functional.pad(rows_nD, (0, dim - width))


def _orthogonalised(matrix_BND: Tensor) -> Tensor:
    """Returns the Q of QR whose R has a positive diagonal, from float64, by Cholesky factors: on a GPU `torch.linalg.qr` forms Q matrix by matrix. The first factor is of a shifted matrix, so a nearly singular matrix passes (shifted CholeskyQR3, arXiv:1809.11085)."""
    unit_DD = torch.eye(matrix_BND.shape[2], dtype=matrix_BND.dtype, device=matrix_BND.device)
    for shift in (1e-13, 0.0, 0.0, 0.0):
        gram_BDD = matrix_BND.mT @ matrix_BND
        shift_B11 = shift * gram_BDD.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
        factor_BDD = torch.linalg.cholesky_ex(
            gram_BDD + shift_B11 * unit_DD
        ).L  # reads no status, so the host does not wait
        matrix_BND = torch.linalg.solve_triangular(factor_BDD.mT, matrix_BND, upper=True, left=False)
    return matrix_BND


@torch.no_grad()
def node_identifiers(
    kind: NodeIdentifier,
    num_nodes: int,
    dim: int,
    *,
    seed: int | None = None,
    key_n: Tensor | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[num_nodes, dim]: rows of norm 1, drawn independently for each node; the cost grows linearly in n.

    near_orf: random signs divided by √dim (the paper prints: by dim); rows are orthogonal up to O(1/√dim). random: Gaussian rows. positive:
    uniform numbers in [0, 1), the random identifiers of the released TokenGT. With `seed` a row is a function of (seed, key_n, column);
    key_n (int64 [num_nodes]; default 0, 1, …) can be permanent node ids.
    """
    shape = (num_nodes, dim)
    keys = torch.arange(num_nodes, device=device) if key_n is None else key_n
    if kind == "near_orf":
        if seed is None:
            return signs(shape, device, dtype) / math.sqrt(dim)
        return (2 * (_counted_words(seed, keys, dim) & 1) - 1).to(dtype) / math.sqrt(dim)
    if kind == "random":
        rows = gaussians(shape, device, dtype) if seed is None else _counted_gaussians(seed, keys, dim, dtype)
    elif seed is None:
        rows = uniform(shape, device).to(dtype)
    else:
        rows = (_counted_words(seed, keys, dim) >> 8).to(dtype) / 2**24  # 24 bits are float32's precision
    return torch.nn.functional.normalize(rows, dim=1)


def _counted_words(seed: int, key_n: Tensor, columns: int) -> Tensor:
    """int64 [n, columns], 0 ≤ word < 2³²: SplitMix64 of (seed, key, column), the same on every device."""
    row_n1 = mix(mix(torch.full((1,), seed, device=key_n.device)) + key_n).unsqueeze(1)
    return (mix(row_n1 + torch.arange(columns, device=key_n.device)) >> 32) & 0xFFFFFFFF


def _counted_gaussians(seed: int, key_n: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """[n, columns] standard normal numbers."""
    words = _counted_words(seed, key_n, 2 * columns)
    return box_muller(words[:, 0::2], words[:, 1::2]).to(dtype)
