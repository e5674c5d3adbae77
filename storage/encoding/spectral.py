"""Extreme eigenvectors of one large graph's normalised Laplacian, L = I - D^-½ A D^-½, by a sparse solver (ARPACK).

L and S = D^-½ A D^-½ share eigenvectors; L's two ends are S's 1 and -1. A graph of many components repeats these two eigenvalues, with which
solvers have trouble, so their vectors are computed directly: D^½·1_c for each component c with edges, and one with alternating signs for each
bipartite one. ARPACK finds the rest in their orthogonal complement, and runs again until it finds nothing larger: it may miss copies.
Deterministic on one machine: fixed start vectors; each vector's largest entry is positive (the first of those within 0.1 % of it). Within
a repeated eigenvalue the basis is arbitrary, except for zeros and twos. Degrees are clipped to ≥ 1: an isolated node has eigenvalue 1.
"""

import inspect
import itertools
from collections.abc import Callable

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from graphmill.core.errors import DataError
from graphmill.storage.format.source import Progress

_DENSE_NODES = 256  # up to here a dense solver is faster and more reliable
_TOLERANCE = 1e-8  # of S's eigenvalues; an eigenvector is known to about this over its distance to the next eigenvalue
_SHIFT = 4.0  # moves known eigenvectors of S + I, whose spectrum is [0, 2], out of sight
_MAX_RESTARTS = 3000
_SEED = 20240229


def symmetric_adjacency(source: np.ndarray, destination: np.ndarray, num_nodes: int) -> sparse.csr_array:
    """float64 [n, n]: 1 where there is an edge in either direction; self-loops as given."""
    ones = np.ones(len(source), np.float64)
    adjacency = sparse.coo_array((ones, (source, destination)), shape=(num_nodes, num_nodes)).tocsr()
    adjacency = (adjacency + adjacency.T).tocsr()
    adjacency.sum_duplicates()
    adjacency.data[:] = 1
    return adjacency


def laplacian_modes(
    adjacency: sparse.csr_array, k: int, which: str = "smallest", report: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Unit eigenvectors float64 [n, k] of L and their eigenvalues [k], ascending; zeros where n < k.

    "smallest": the k smallest; "both_ends": the ⌈k/2⌉ smallest and the ⌊k/2⌋ largest (all n where n ≤ k).
    `adjacency` must be symmetric with entries 1. `report` is called with the number of matrix products so far.
    Raises DataError where ARPACK does not converge.
    """
    num_nodes = adjacency.shape[0]
    root = 1 / np.sqrt(np.maximum(adjacency.sum(axis=1), 1))
    walk = (sparse.diags_array(root) @ adjacency @ sparse.diags_array(root)).tocsr()
    num_low = k if which == "smallest" or num_nodes <= k else k - k // 2
    num_high = k - num_low
    if num_nodes <= max(_DENSE_NODES, 2 * k + 2):
        values, vectors = linalg.eigh(np.eye(num_nodes) - walk.toarray())
        keep = np.r_[: min(num_low, num_nodes), num_nodes - num_high : num_nodes]
        values, vectors = values[keep], vectors[:, keep]
    else:
        counted = _Counted(walk, report)
        low_values, low = _largest(counted, 1.0, num_low, _component_modes(adjacency, 1), np.empty((num_nodes, 0)))
        parts = [low]
        values = 1 - low_values
        if num_high:
            # Without the low modes: where one eigenvalue fills the middle (a complete graph), both ends take from it.
            high_values, high = _largest(counted, -1.0, num_high, _component_modes(adjacency, -1), low)
            parts.append(high[:, ::-1])
            values = np.concatenate([values, 1 + high_values[::-1]])
        vectors = np.concatenate(parts, axis=1)
    missing = k - vectors.shape[1]
    return np.pad(fixed_signs(vectors), ((0, 0), (0, missing))), np.pad(values, (0, missing))


def fixed_signs(vectors: np.ndarray) -> np.ndarray:
    """Each column times the sign of its largest entry; of entries within 0.1 % of it the first one decides."""
    if not vectors.size:
        return vectors
    size = np.abs(vectors)
    leading = np.argmax(size >= 0.999 * size.max(axis=0), axis=0)
    return vectors * np.where(vectors[leading, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


class _Counted:
    """S, with a count of its products."""

    def __init__(self, walk: sparse.csr_array, report: Progress | None) -> None:
        self.walk, self._report, self._count = walk, report, 0

    def apply(self, vector: np.ndarray) -> np.ndarray:
        self._count += 1
        if self._report is not None and self._count % 16 == 0:
            self._report("eigenvectors: matrix products", self._count, None)
        return self.walk @ vector


def _component_modes(adjacency: sparse.csr_array, sign: int) -> sparse.csc_array:
    """[n, c]: unit eigenvectors of S for the eigenvalue 1, or -1 with `sign` -1; one per (bipartite) component with edges.

    A component is bipartite where the two copies of its nodes in the graph's double cover, whose edges lead from one copy to the
    other, are not connected; its sides are then the nodes whose first copy lies in the one or in the other part.
    """
    num_nodes = adjacency.shape[0]
    degree = adjacency.sum(axis=1)
    _, label = csgraph.connected_components(adjacency, directed=False)
    side = np.ones(num_nodes)
    chosen = degree > 0
    if sign < 0:
        cover = sparse.block_array([[None, adjacency], [adjacency, None]]).tocsr()
        _, copies = csgraph.connected_components(cover, directed=False)
        first, second = copies[:num_nodes], copies[num_nodes:]
        chosen &= first != second
        side = np.where(first < second, 1.0, -1.0)
    node = np.flatnonzero(chosen)
    if not len(node):
        return sparse.csc_array((num_nodes, 0))
    # Columns: the largest component first, of equal ones that of the smallest node.
    component, smallest, column, size = np.unique(
        label[node], return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(component), np.int64)
    rank[np.lexsort((node[smallest], -size))] = np.arange(len(component))
    mass = np.bincount(column, degree[node])
    values = side[node] * np.sqrt(degree[node] / mass[column])
    return sparse.csc_array((values, (node, rank[column])), shape=(num_nodes, len(component)))


def _largest(
    matrix: _Counted, sign: float, count: int, known: sparse.csc_array, avoided: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest eigenvalues of sign·S, descending, and eigenvectors, but for those `avoided`.

    `known` holds all eigenvectors of eigenvalue 1.
    """
    num_nodes = matrix.walk.shape[0]
    given = known[:, :count].toarray()
    wanted = count - given.shape[1]
    hidden = sparse.csr_array(known)
    solved_values, solved = np.empty(0), np.empty((num_nodes, 0))
    for attempt in itertools.count() if wanted else ():
        dense = np.concatenate([avoided, solved], axis=1)

        def apply(vector: np.ndarray, dense: np.ndarray = dense) -> np.ndarray:
            vector = np.asarray(vector).reshape(-1)
            # Plus the identity: a spectrum of [0, 2] has no wanted eigenvalue near 0, where ARPACK's relative tolerance is none.
            product = vector + sign * matrix.apply(vector) - _SHIFT * (hidden @ (hidden.T @ vector))
            return product - _SHIFT * (dense @ (dense.T @ vector)) if dense.size else product

        new_values, new = _solve(apply, num_nodes, max(wanted - len(solved_values), 1), attempt)
        new_values = new_values - 1
        if len(solved_values) >= wanted and new_values[0] <= solved_values[wanted - 1] + 10 * _TOLERANCE:
            break
        # Orthogonal to what was found before, to the solver's tolerance; made so to rounding.
        new = np.linalg.qr(new - solved @ (solved.T @ new))[0]
        solved_values, solved = np.concatenate([solved_values, new_values]), np.concatenate([solved, new], axis=1)
        order = np.argsort(-solved_values, kind="stable")
        solved_values, solved = solved_values[order], solved[:, order]
    values = np.concatenate([np.ones(given.shape[1]), solved_values[:wanted]])
    return values, np.concatenate([given, solved[:, :wanted]], axis=1)


def _solve(
    apply: Callable[[np.ndarray], np.ndarray], num_nodes: int, count: int, attempt: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest eigenvalues of a symmetric operator, descending, and eigenvectors.

    Each attempt starts elsewhere: of a repeated eigenvalue's space, a start vector shows one direction alone.
    """
    operator = LinearOperator((num_nodes, num_nodes), matvec=apply, dtype=np.float64)
    draws = np.random.default_rng((_SEED, attempt))
    # SciPy 1.17 draws the restarts of exhausted Krylov spaces from `rng`; before, ARPACK drew them from a fixed seed of its own.
    random = {"rng": draws} if "rng" in inspect.signature(eigsh).parameters else {}
    try:
        values, vectors = eigsh(
            operator,
            k=count,
            which="LA",
            v0=draws.standard_normal(num_nodes),
            ncv=min(num_nodes, max(2 * count + 1, count + 32)),
            tol=_TOLERANCE,
            maxiter=_MAX_RESTARTS,
            **random,
        )
    except ArpackNoConvergence as error:
        raise DataError(
            f"eigenvectors: expected ARPACK to converge within {_MAX_RESTARTS} restarts, "
            f"{len(error.eigenvalues)} of {count} did; ask for fewer with --dim"
        ) from None
    except ArpackError as error:
        raise DataError(f"eigenvectors: ARPACK failed ({error}); ask for fewer with --dim") from None
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]
