"""Finds graphs that no GRIT or PPGT can distinguish, by colour refinement over walk probabilities in exact arithmetic.

GD-WL (Zhang et al. 2023, arXiv:2301.09505, equation 3) with the walk probabilities of a pair as its distance:

    χ_i ← hash(χ_i, {{(r_ij, χ_j) : j}}),   r_ij = ((D⁻¹A)^0_ij, …, (D⁻¹A)^steps_ij, deg_i, deg_j, A_ij)

until the number of colours stops growing. GRIT (Ma et al. 2023, proposition 3.2) and PPGT compute no more than this from RRWP. So no
weights distinguish a pair with equal colours, except through rounding. `steps` is the longest walk of the models' recipes.

    python -m graphmill.jobs.papers.color_refinement      GRIT's example (figure 6): the dodecahedron and the Desargues graph

You should see that distances do not tell these graphs apart, and walks of three steps or more do.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

# Probabilities are residues modulo two primes: equal probabilities stay equal, and different ones almost surely differ in one residue. The
# product of two matrices of a graph with up to 1,024 nodes stays below 2^63.
_PRIMES = (67_108_859, 33_554_393)


@dataclass(frozen=True)
class RefinementConfig:
    """Refine the colours of the dodecahedron and the Desargues graph."""

    steps: Count = 8
    """Longest walk that is tried."""

    def __post_init__(self) -> None:
        check_fields(self)


def tells_apart(first_NN: np.ndarray, second_NN: np.ndarray, steps: int) -> bool:
    """Returns whether the two graphs, bool adjacency matrices of up to 1,024 nodes, get different colours."""
    if first_NN.shape != second_NN.shape:
        return True
    return _differ([_walks(adjacency, steps) for adjacency in (first_NN, second_NN)])


def _differ(pairs_NNC: list[np.ndarray]) -> bool:
    """Whether two graphs with these descriptions of each pair [N, N, C] get different colours."""
    n = len(pairs_NNC[0])
    pairs_PC = np.concatenate([pairs.reshape(n * n, -1) for pairs in pairs_NNC])
    pair_GNN = _numbered(pairs_PC).reshape(2, n, n)
    color_GN = np.zeros((2, n), dtype=np.int64)
    while True:
        # Each row belongs to a node: the node's colour, then the sorted (pair, colour) of all nodes.
        around_GNN = np.sort(pair_GNN * (color_GN.max() + 1) + color_GN[:, None, :], axis=2)
        refined_GN = _numbered(np.concatenate([color_GN[..., None], around_GNN], axis=2).reshape(2 * n, -1)).reshape(
            2, n
        )
        if refined_GN.max() == color_GN.max():
            return not np.array_equal(np.sort(color_GN[0]), np.sort(color_GN[1]))
        color_GN = refined_GN


def _walks(adjacency_NN: np.ndarray, steps: int) -> np.ndarray:
    """[N, N, 2 steps + 4]: residues of the walk probabilities, both degrees, the edge."""
    count_NN = adjacency_NN.astype(np.int64)
    degree_N = count_NN.sum(1)
    powers = [np.eye(len(count_NN), dtype=np.int64)]
    for prime in _PRIMES:
        inverse_N = np.array([pow(int(degree), -1, prime) if degree else 0 for degree in degree_N], dtype=np.int64)
        walk_NN = count_NN * inverse_N[:, None] % prime
        power_NN = powers[0]
        for _ in range(steps):
            power_NN = power_NN @ walk_NN % prime
            powers.append(power_NN)
    ends = (np.broadcast_to(degree_N[:, None], count_NN.shape), np.broadcast_to(degree_N, count_NN.shape))
    return np.stack([*powers, *ends, count_NN], axis=-1)


def _numbered(rows_RC: np.ndarray) -> np.ndarray:
    """Returns an id for each row; equal rows have equal ids."""
    return np.unique(rows_RC, axis=0, return_inverse=True)[1].reshape(-1)


def distances(adjacency_NN: np.ndarray) -> np.ndarray:
    """[N, N, 1]: lengths of shortest paths; N where there is no path."""
    n = len(adjacency_NN)
    length_NN, reached_NN = np.full((n, n), n), np.eye(n, dtype=bool)
    for length in range(n):
        length_NN[reached_NN & (length_NN == n)] = length
        reached_NN = reached_NN @ adjacency_NN
    return length_NN[..., None]


def main() -> None:
    config = parse(RefinementConfig, __doc__)
    import networkx  # torch requires it

    pair = [
        networkx.to_numpy_array(graph, dtype=bool)
        for graph in (networkx.dodecahedral_graph(), networkx.desargues_graph())
    ]
    print(f"shortest paths: {'told apart' if _differ([distances(each) for each in pair]) else 'equal'}")
    for steps in range(1, config.steps + 1):
        print(
            f"walks of up to {steps} steps: {'told apart' if tells_apart(pair[0], pair[1], steps) else 'equal'}",
            flush=True,
        )


if __name__ == "__main__":
    run(main)
