"""Extreme eigenvectors of one large graph's normalised Laplacian, L = I - D^-½ A D^-½, by a sparse solver (ARPACK).

L and S = D^-½ A D^-½ have the same eigenvectors. L's smallest and largest possible eigenvalues, 0 and 2, are the eigenvalues 1 and -1 of S. In a graph of many
components these two eigenvalues repeat, and solvers have trouble with repeated eigenvalues. So their eigenvectors are computed directly: D^½·1_c for each
component c with edges, and the same vector with alternating signs for each bipartite component. ARPACK finds the other eigenvectors in the orthogonal
complement. It may miss copies of a repeated eigenvalue, so it runs again until it finds no larger eigenvalue.

Deterministic on one machine: start vectors are fixed, and each vector's largest entry (the first within 0.1 % of the maximum) is positive. For a repeated
eigenvalue other than 0 and 2 the basis is arbitrary. Degrees are clipped to ≥ 1, so an isolated node has eigenvalue 1.
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
# Error of S's eigenvalues. An eigenvector's error is about this error divided by the distance to the next eigenvalue.
_TOLERANCE = 1e-8
_SHIFT = 4.0  # moves known eigenvectors of S + I below its spectrum [0, 2]
_MAX_RESTARTS = 3000
_SEED = 20240229


def symmetric_adjacency(source: np.ndarray, destination: np.ndarray, num_nodes: int) -> sparse.csr_array:
    """Returns the symmetric adjacency matrix, float64 [n, n]. An entry is 1 if there is an edge in either direction. Self-loops are kept."""
    ones = np.ones(len(source), np.float64)
    adjacency = sparse.coo_array((ones, (source, destination)), shape=(num_nodes, num_nodes)).tocsr()
    adjacency = (adjacency + adjacency.T).tocsr()
    adjacency.sum_duplicates()
    adjacency.data[:] = 1
    return adjacency


def laplacian_modes(
    adjacency: sparse.csr_array, k: int, which: str = "smallest", report: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit eigenvectors of L, float64 [n, k], and their eigenvalues [k], ascending. If n < k, both are padded with zeros.

    `which` = "smallest" takes the k smallest eigenvalues; "both_ends" takes the ⌈k/2⌉ smallest and the ⌊k/2⌋ largest, or all n if n ≤ k.
    `adjacency` must be symmetric with entries 1. `report` is called with the number of matrix products so far.
    Raises DataError if ARPACK does not converge.
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
            # Avoids the low modes. In a complete graph almost all eigenvalues are equal, so both ends take eigenvectors of the same eigenvalue.
            high_values, high = _largest(counted, -1.0, num_high, _component_modes(adjacency, -1), low)
            parts.append(high[:, ::-1])
            values = np.concatenate([values, 1 + high_values[::-1]])
        vectors = np.concatenate(parts, axis=1)
    missing = k - vectors.shape[1]
    return np.pad(fixed_signs(vectors), ((0, 0), (0, missing))), np.pad(values, (0, missing))


def fixed_signs(vectors: np.ndarray) -> np.ndarray:
    """Multiplies each column by the sign of its largest entry. The first entry within 0.1 % of the maximum counts as the largest."""
    if not vectors.size:
        return vectors
    size = np.abs(vectors)
    leading = np.argmax(size >= 0.999 * size.max(axis=0), axis=0)
    return vectors * np.where(vectors[leading, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


class _Counted:
    """The matrix S. Counts how often it is multiplied by a vector."""

    def __init__(self, walk: sparse.csr_array, report: Progress | None) -> None:
        self.walk, self._report, self._count = walk, report, 0

    def apply(self, vector: np.ndarray) -> np.ndarray:
        self._count += 1
        if self._report is not None and self._count % 16 == 0:
            self._report("eigenvectors: matrix products", self._count, None)
        return self.walk @ vector


def _component_modes(adjacency: sparse.csr_array, sign: int) -> sparse.csc_array:
    """Returns unit eigenvectors of S, [n, c], for the eigenvalue `sign`. For 1: one per component with edges; for -1: one per bipartite component.

    In the double cover of the graph, every edge leads from the first copy of a node to the second copy of its neighbor. A component is bipartite if the two
    copies of its nodes are not connected. Then its cover has two connected parts, and the part with a node's first copy is the node's side.
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
    # Columns are in the order of components: the largest component first, components of equal size by their smallest node.
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
    """Returns the `count` largest eigenvalues of sign·S, descending, and their eigenvectors. Leaves out the eigenvectors in `avoided`.

    `known` holds all eigenvectors of sign·S for the eigenvalue 1.
    """
    num_nodes = matrix.walk.shape[0]
    direct = known[:, :count].toarray()
    num_solved = count - direct.shape[1]
    hidden = sparse.csr_array(known)
    solved_values, solved = np.empty(0), np.empty((num_nodes, 0))
    for attempt in itertools.count() if num_solved else ():
        dense = np.concatenate([avoided, solved], axis=1)

        def apply(vector: np.ndarray, dense: np.ndarray = dense) -> np.ndarray:
            vector = np.asarray(vector).reshape(-1)
            # Adding the identity moves the spectrum to [0, 2]. ARPACK's relative tolerance fails near 0, and no needed eigenvalue lies there any more.
            product = vector + sign * matrix.apply(vector) - _SHIFT * (hidden @ (hidden.T @ vector))
            return product - _SHIFT * (dense @ (dense.T @ vector)) if dense.size else product

        new_values, new = _solve(apply, num_nodes, max(num_solved - len(solved_values), 1), attempt)
        new_values = new_values - 1
        if len(solved_values) >= num_solved and new_values[0] <= solved_values[num_solved - 1] + 10 * _TOLERANCE:
            break
        # The solver makes new vectors orthogonal to earlier vectors only up to its tolerance. This step makes them orthogonal up to rounding.
        new = np.linalg.qr(new - solved @ (solved.T @ new))[0]
        solved_values, solved = np.concatenate([solved_values, new_values]), np.concatenate([solved, new], axis=1)
        order = np.argsort(-solved_values, kind="stable")
        solved_values, solved = solved_values[order], solved[:, order]
    values = np.concatenate([np.ones(direct.shape[1]), solved_values[:num_solved]])
    return values, np.concatenate([direct, solved[:, :num_solved]], axis=1)


def _solve(
    apply: Callable[[np.ndarray], np.ndarray], num_nodes: int, count: int, attempt: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` largest eigenvalues of a symmetric operator, descending, and their eigenvectors.

    Each attempt has a new start vector, because one start vector finds only one of the eigenvectors of a repeated eigenvalue.
    """
    operator = LinearOperator((num_nodes, num_nodes), matvec=apply, dtype=np.float64)
    draws = np.random.default_rng((_SEED, attempt))
    # When a Krylov space is exhausted, SciPy 1.17 restarts with a vector from `rng`. In earlier versions ARPACK had a fixed seed.
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
