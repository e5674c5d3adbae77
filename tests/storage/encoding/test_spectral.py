"""Compares the sparse solver with a dense solver: spectra, residuals, orthogonality, repeated eigenvalues, determinism."""

import networkx
import numpy as np
import pytest

import graphmill.storage.encoding.spectral
from graphmill.core.errors import DataError
from graphmill.storage.encoding.spectral import fixed_signs, laplacian_modes, symmetric_adjacency


@pytest.fixture(autouse=True)
def _sparse_solver(monkeypatch):
    """Lets small graphs use the sparse solver, which is otherwise for large graphs."""
    monkeypatch.setattr(graphmill.storage.encoding.spectral, "_DENSE_NODES", 0)


def adjacency_of(graph: networkx.Graph):
    ends = np.asarray(graph.edges, np.int64).reshape(-1, 2)
    return symmetric_adjacency(ends[:, 0], ends[:, 1], len(graph))


def dense_laplacian(adjacency) -> np.ndarray:
    matrix = adjacency.toarray()
    root = 1 / np.sqrt(np.maximum(matrix.sum(1), 1))
    return np.eye(len(matrix)) - root[:, None] * matrix * root


def copies(graph: networkx.Graph, count: int) -> networkx.Graph:
    return networkx.disjoint_union_all([graph] * count)


GRAPHS = {
    "random": networkx.gnp_random_graph(90, 0.08, seed=1),
    "isolated": networkx.disjoint_union(networkx.empty_graph(20), networkx.gnp_random_graph(50, 0.1, seed=2)),
    "components": networkx.disjoint_union_all([networkx.cycle_graph(n) for n in range(3, 15)]),
    "copies": copies(networkx.gnp_random_graph(9, 0.5, seed=3), 9),
    "stars": copies(networkx.star_graph(6), 10),
    "pairs": copies(networkx.path_graph(2), 40),
    "complete": networkx.complete_graph(60),
    "grid": networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(9, 9)),
    "loops": networkx.Graph([*networkx.cycle_graph(60).edges, *((v, v) for v in range(0, 60, 7))]),
    "empty": networkx.empty_graph(70),
}


@pytest.mark.parametrize("which", ["smallest", "both_ends"])
@pytest.mark.parametrize("k", [1, 6, 17])
@pytest.mark.parametrize("name", GRAPHS)
def test_modes_are_the_extreme_ones(name, k, which):
    adjacency = adjacency_of(GRAPHS[name])
    vectors, values = laplacian_modes(adjacency, k, which)
    laplacian = dense_laplacian(adjacency)
    spectrum = np.linalg.eigvalsh(laplacian)
    expected = (
        spectrum[:k] if which == "smallest" else np.r_[spectrum[: k - k // 2], spectrum[len(spectrum) - k // 2 :]]
    )
    np.testing.assert_allclose(values, expected, atol=1e-7)
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-6)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-6)
    again, _ = laplacian_modes(adjacency, k, which)
    np.testing.assert_array_equal(again, vectors)


def test_zeros_are_components_the_largest_first():
    graph = networkx.disjoint_union_all([networkx.cycle_graph(5), networkx.empty_graph(2), networkx.star_graph(8)])
    vectors, values = laplacian_modes(adjacency_of(graph), 2)
    np.testing.assert_allclose(values, 0, atol=1e-12)
    star, cycle = np.zeros(16), np.zeros(16)
    star[7], star[8:] = np.sqrt(8 / 16), np.sqrt(1 / 16)
    cycle[:5] = np.sqrt(1 / 5)
    np.testing.assert_allclose(vectors, np.stack([star, cycle], axis=1), atol=1e-12)


def test_twos_are_the_sides_of_bipartite_components():
    graph = networkx.disjoint_union(networkx.complete_bipartite_graph(3, 4), networkx.complete_graph(5))
    vectors, values = laplacian_modes(adjacency_of(graph), 2, "both_ends")
    np.testing.assert_allclose(values, [0, 2], atol=1e-12)
    sides = np.r_[[np.sqrt(1 / 6)] * 3, [-np.sqrt(1 / 8)] * 4, [0] * 5]
    np.testing.assert_allclose(vectors[:, 1], sides, atol=1e-12)


def test_small_graphs_take_a_dense_solver_and_zeros_fill_up(monkeypatch):
    monkeypatch.undo()
    adjacency = adjacency_of(networkx.path_graph(5))
    for which in ("smallest", "both_ends"):
        vectors, values = laplacian_modes(adjacency, 8, which)
        np.testing.assert_allclose(values[:5], np.linalg.eigvalsh(dense_laplacian(adjacency)), atol=1e-12)
        np.testing.assert_allclose(vectors[:, :5].T @ vectors[:, :5], np.eye(5), atol=1e-12)
        assert vectors.shape == (5, 8)
        assert not vectors[:, 5:].any()
        assert not values[5:].any()
    vectors, values = laplacian_modes(adjacency, 3, "both_ends")
    spectrum = np.linalg.eigvalsh(dense_laplacian(adjacency))
    np.testing.assert_allclose(values, spectrum[[0, 1, 4]], atol=1e-12)


def test_either_direction_and_repeated_edges_are_one_edge():
    adjacency = symmetric_adjacency(np.array([0, 1, 0, 2]), np.array([1, 0, 1, 2]), 4).toarray()
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = expected[2, 2] = 1
    np.testing.assert_array_equal(adjacency, expected)


def test_signs():
    vectors = np.array([[0.1, -0.6], [-0.9, 0.6], [0.2, 0.1]])
    np.testing.assert_array_equal(fixed_signs(vectors), -vectors)
    assert fixed_signs(np.empty((0, 3))).shape == (0, 3)


def test_errors(monkeypatch):
    monkeypatch.setattr(graphmill.storage.encoding.spectral, "_MAX_RESTARTS", 1)
    path = adjacency_of(networkx.path_graph(3000))
    with pytest.raises(DataError, match="converge within 1 restarts"):
        laplacian_modes(path, 10)


def test_amazon_photo(real_data):
    stored = np.load(real_data / "nodes" / "amazon_photo.npz")
    ends = stored["edges"]
    adjacency = symmetric_adjacency(ends[:, 0], ends[:, 1], 7650)
    counted = []
    vectors, values = laplacian_modes(adjacency, 32, report=lambda stage, done, total: counted.append(done))
    assert np.all(np.diff(values) >= -1e-9)
    root = 1 / np.sqrt(np.maximum(adjacency.sum(axis=1), 1))[:, None]
    np.testing.assert_allclose(vectors - root * (adjacency @ (root * vectors)), vectors * values, atol=1e-7)
    assert 0 < counted[-1] < 2000
