"""Compares random-walk encodings with loops over graphs, and tests known properties of RRWP: distances, sums, reversibility, and which graphs it separates."""

import networkx
import pytest
import torch

from graphmill.models.encodings.random_walk import random_walk_diagonal, random_walk_probabilities, transition_matrix
from graphmill.models.primitives.graphs import Graphs
from tests.packed_graphs import MIXED, packed


def powers(graph: networkx.Graph, steps: int, reverse: bool = False) -> torch.Tensor:
    """The powers I, M, …, M^(steps-1) of the transition matrix M as one tensor [n, n, steps]. Multiplies one matrix repeatedly."""
    adjacency = torch.tensor(networkx.to_numpy_array(graph, nodelist=range(len(graph)))).double()
    adjacency = adjacency.T if reverse else adjacency
    degree = adjacency.sum(1, keepdim=True)
    walk = torch.where(degree > 0, adjacency / degree.clamp(min=1), 0)
    result = [torch.eye(len(graph), dtype=torch.float64)]
    for _ in range(steps - 1):
        result.append(result[-1] @ walk)
    return torch.stack(result, dim=-1)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 11])
@pytest.mark.parametrize("reverse", [False, True])
def test_equals_powers_of_each_graph_alone(steps, reverse):
    got = random_walk_probabilities(packed(*MIXED), steps, reverse=reverse, dtype=torch.float64)
    assert got.shape == (7, 7, 7, steps + (steps - 1) * reverse)
    for graph, probabilities in zip(MIXED, got):
        size = len(graph)
        expected = powers(graph, steps)
        if reverse:
            expected = torch.cat([expected, powers(graph, steps, reverse=True)[..., 1:]], dim=-1)
        torch.testing.assert_close(probabilities[:size, :size], expected, atol=1e-14, rtol=0)
        padded = probabilities.clone()
        padded[:size, :size] = 0
        assert not padded.any()


@pytest.mark.parametrize("reverse", [False, True])
def test_walks_take_edges_by_their_weights(reverse):
    """A step takes an edge with probability proportional to its weight. Weights of parallel edges add up. A node whose weights are all 0 has no steps."""
    source, target = torch.tensor([0, 0, 0, 1, 2]), torch.tensor([1, 1, 2, 0, 0])
    weight = torch.tensor([0.25, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
    graphs = Graphs(node_ptr=torch.tensor([0, 3]), edge_index=torch.stack([source, target]), edge_coefficient=weight)
    forward = [[0, 0.75, 0.25], [1, 0, 0], [0, 0, 0]]
    backward = [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    got = transition_matrix(graphs, reverse=reverse, dtype=torch.float64)
    assert got[0].tolist() == (backward if reverse else forward)
    sym = transition_matrix(graphs, normalisation="sym", dtype=torch.float64)[0]
    assert sym[0, 1].item() == pytest.approx(0.75 / (1 * 0.75) ** 0.5)
    assert torch.isfinite(sym).all()


def test_symmetric_normalisation():
    graphs = packed(*MIXED)
    adjacency = torch.tensor(networkx.to_numpy_array(MIXED[0])).double()
    root = adjacency.sum(1).rsqrt()
    symmetric = root[:, None] * adjacency * root
    got = random_walk_probabilities(graphs, 3, normalisation="sym", dtype=torch.float64)[0, :, :, 1:]
    torch.testing.assert_close(got, torch.stack([symmetric, symmetric @ symmetric], dim=-1))
    reversed_edges = Graphs(graphs.node_ptr, graphs.edge_index.flip(0))
    # Exactly equal: degrees are small integers, and the quotient of two integers is always rounded in the same way.
    assert torch.equal(transition_matrix(graphs, reverse=True), transition_matrix(reversed_edges))


@pytest.mark.parametrize("steps", [1, 2, 5, 16])
def test_diagonal_is_the_diagonal(steps):
    graphs = packed(*MIXED)
    pairs = random_walk_probabilities(graphs, steps + 1, dtype=torch.float64)[..., 1:]
    expected = graphs.padding.unpad(pairs.diagonal(dim1=1, dim2=2).transpose(1, 2))
    got = random_walk_diagonal(graphs, steps, dtype=torch.float64)
    assert got.shape == (25, steps)
    torch.testing.assert_close(got, expected, atol=1e-14, rtol=0)


def test_diagonals_of_both_directions():
    # The edges are 0 → 1 → 2 → 0, 1 → 0 and 0 ↔ 3, so that a node's out-edges differ from its in-edges.
    one_way = Graphs(torch.tensor([0, 4]), torch.tensor([[0, 1, 2, 1, 0, 3], [1, 2, 0, 0, 3, 0]]))
    other_way = Graphs(one_way.node_ptr, one_way.edge_index.flip(0))
    both = random_walk_diagonal(one_way, 5, reverse=True, dtype=torch.float64)
    forward, backward = (random_walk_diagonal(graphs, 5, dtype=torch.float64) for graphs in (one_way, other_way))
    torch.testing.assert_close(both, torch.cat([forward, backward], dim=1))
    assert not torch.allclose(forward, backward)


def test_first_nonzero_is_the_distance_rows_sum_to_one_and_walks_are_reversible():
    graph = networkx.connected_watts_strogatz_graph(12, 4, 0.3, seed=3)
    size = len(graph)
    walks = random_walk_probabilities(packed(graph), size, dtype=torch.float64)[0]
    distance = torch.tensor([[networkx.shortest_path_length(graph, u, v) for v in range(size)] for u in range(size)])
    assert torch.equal((walks > 0).int().argmax(-1), distance)
    # E5: the distance is K minus the number of powers 0 … K - 1 that are at least the distance.
    within = (distance.unsqueeze(-1) <= torch.arange(size)).sum(-1)
    assert torch.equal(size - within, distance)
    torch.testing.assert_close(walks.sum(1), torch.ones(size, size, dtype=torch.float64))
    degree = torch.tensor([graph.degree[v] for v in range(size)]).double()
    flow = degree[:, None, None] * walks
    torch.testing.assert_close(flow, flow.transpose(0, 1))


def test_direction_query_is_the_start():
    walks = random_walk_probabilities(packed(networkx.DiGraph([(0, 1), (0, 2), (1, 2)])), 3)[0]
    assert walks[0, 1].tolist() == [0, 0.5, 0]
    assert walks[1, 0].tolist() == [0, 0, 0]
    assert walks[0, 2].tolist() == [0, 0.5, 0.5]


def test_permutation_equivariance():
    graph = networkx.gnp_random_graph(9, 0.4, seed=5)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    renamed = networkx.relabel_nodes(graph, {int(old): new for new, old in enumerate(order)})
    before = random_walk_probabilities(packed(graph), 6, dtype=torch.float64)[0]
    after = random_walk_probabilities(packed(renamed), 6, dtype=torch.float64)[0]
    torch.testing.assert_close(after, before[order][:, order], atol=1e-14, rtol=0)  # sums are in another order


def test_dodecahedron_and_desargues_have_the_same_distances_and_other_walks():
    first, second = networkx.dodecahedral_graph(), networkx.desargues_graph()
    for graph in (first, second):
        lengths = dict(networkx.all_pairs_shortest_path_length(graph))
        for v in graph:
            assert sorted(lengths[v].values()) == sorted([0] + [1] * 3 + [2] * 6 + [3] * 6 + [4] * 3 + [5])
    fifth = random_walk_probabilities(packed(first, second), 6, dtype=torch.float64)[..., 5]
    assert [(matrix == 0).sum().item() for matrix in fifth] == [0, 200]


def test_bf16_autocast_does_not_round_walks():
    graphs = packed(*MIXED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = random_walk_probabilities(graphs, 5)
    assert torch.equal(got, random_walk_probabilities(graphs, 5))


def test_no_graphs():
    nothing = Graphs(torch.zeros(1, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64))
    assert random_walk_probabilities(nothing, 4).shape == (0, 0, 0, 4)
    assert random_walk_diagonal(nothing, 4).shape == (0, 4)
