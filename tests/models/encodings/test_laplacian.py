"""Compares the Laplacian eigenvectors of a batch with numpy's eigenvectors of each graph."""

import networkx
import numpy as np
import pytest
import torch

from graphmill.models.encodings.laplacian import (
    drop_entries,
    fixed_signs,
    flip_signs,
    laplacian_eigenvectors,
    laplacian_matrix,
)
from graphmill.models.primitives.graphs import Graphs
from tests.packed_graphs import MIXED, packed


def reference(graph: networkx.Graph, normalised: bool = True) -> np.ndarray:
    adjacency = networkx.to_numpy_array(graph, nodelist=range(len(graph)))
    adjacency = np.maximum(adjacency, adjacency.T)
    degree = adjacency.sum(1)
    if not normalised:
        return np.diag(degree) - adjacency
    root = 1 / np.sqrt(np.maximum(degree, 1))
    return np.eye(len(graph)) - root[:, None] * adjacency * root


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("which", ["smallest", "both_ends"])
@pytest.mark.parametrize("k", [1, 3, 4, 7, 9])
def test_each_graph_has_its_own_eigenpairs(k, which, normalised):
    graphs = packed(*MIXED)
    vectors, values = laplacian_eigenvectors(graphs, k, which, dtype=torch.float64, normalised=normalised)
    assert vectors.shape == (25, k)
    assert values.shape == (7, k)
    for b, graph in enumerate(MIXED):
        size = len(graph)
        laplacian = torch.from_numpy(reference(graph, normalised))
        spectrum = torch.linalg.eigvalsh(laplacian)
        if which == "both_ends" and size > k:
            spectrum = torch.cat([spectrum[: k - k // 2], spectrum[size - k // 2 :]])
        kept = min(k, size)
        torch.testing.assert_close(values[b, :kept], spectrum[:kept], atol=1e-12, rtol=0)
        own = vectors[graphs.graph_of_node == b]
        assert not own[:, kept:].any()
        assert not values[b, kept:].any()
        gram = own[:, :kept].T @ own[:, :kept]
        torch.testing.assert_close(gram, torch.eye(kept, dtype=torch.float64), atol=1e-12, rtol=0)
        torch.testing.assert_close(laplacian @ own[:, :kept], own[:, :kept] * values[b, :kept], atol=1e-12, rtol=0)


def test_disconnected_graph_has_one_zero_per_component():
    parts = [networkx.cycle_graph(4), networkx.complete_graph(3), networkx.path_graph(5)]
    values = laplacian_eigenvectors(packed(networkx.disjoint_union_all(parts)), 4, dtype=torch.float64)[1][0]
    assert values[:3].abs().max() < 1e-12
    assert values[3] > 0.01


def test_alone_or_in_a_batch_is_the_same_up_to_rounding():
    """No graph here has a repeated eigenvalue, because its eigenvectors could be any basis of their space."""
    graph = networkx.gnp_random_graph(9, 0.4, seed=4)
    spectrum = np.linalg.eigvalsh(reference(graph))
    assert np.diff(spectrum).min() > 1e-3
    alone, values = laplacian_eigenvectors(packed(graph), 6, dtype=torch.float64)
    both, batch_values = laplacian_eigenvectors(packed(networkx.path_graph(40), graph, *MIXED), 6, dtype=torch.float64)
    torch.testing.assert_close(both[40:49], alone, atol=1e-12, rtol=0)
    torch.testing.assert_close(batch_values[1], values[0], atol=1e-12, rtol=0)


def test_relabelled_nodes_permute_the_rows_up_to_sign():
    graph = networkx.gnp_random_graph(9, 0.4, seed=4)
    order = np.random.default_rng(0).permutation(9)
    renamed = networkx.relabel_nodes(graph, {int(old): new for new, old in enumerate(order)})
    before = laplacian_eigenvectors(packed(graph), 9, dtype=torch.float64)[0][order]
    after = laplacian_eigenvectors(packed(renamed), 9, dtype=torch.float64)[0]
    torch.testing.assert_close((before * after).sum(0).abs(), torch.ones(9, dtype=torch.float64))


def test_the_constant_mode_comes_first():
    graph = networkx.gnp_random_graph(9, 0.4, seed=4)
    vectors, values = laplacian_eigenvectors(packed(graph), 2, dtype=torch.float64)
    root = torch.tensor([graph.degree[v] for v in range(9)], dtype=torch.float64).sqrt()
    torch.testing.assert_close(vectors[:, 0], root / root.norm())
    assert abs(values[0, 0]) < 1e-12


def test_matrix_of_padding_is_zero():
    matrix = laplacian_matrix(packed(*MIXED), dtype=torch.float64)
    assert not matrix[1, 1:].any()
    assert not matrix[2].any()
    for b, graph in enumerate(MIXED):
        np.testing.assert_allclose(matrix[b, : len(graph), : len(graph)], reference(graph), atol=1e-15)


def test_signs_follow_the_largest_entry():
    vectors = torch.tensor([[[0.1, -0.6, 0.5], [-0.9, 0.6, 0.0], [0.2, 0.1, -0.4999]]])
    assert torch.equal(fixed_signs(vectors)[0], vectors[0] * torch.tensor([-1, -1, 1]))


def test_flips_are_fair_and_shared_by_a_graph():
    graphs = Graphs(torch.arange(0, 3001, 3), torch.zeros(2, 0, dtype=torch.int64))
    torch.manual_seed(0)
    signs = flip_signs(torch.ones(3000, 8), graphs).view(1000, 3, 8)
    assert torch.equal(signs.abs(), torch.ones_like(signs))
    assert torch.equal(signs[:, :1].expand_as(signs), signs)
    assert signs[:, 0].mean(0).abs().max() < 0.15
    assert (signs[:, 0].T @ signs[:, 0] / 1000 - torch.eye(8)).abs().max() < 0.15


def test_dropped_entries():
    torch.manual_seed(0)
    dropped = drop_entries(torch.ones(1000, 10), 0.2)
    assert sorted(dropped.unique().tolist()) == [0, 1.25]
    assert abs(dropped.mean() - 1) < 0.02
    rows = torch.ones(2, 2)
    assert drop_entries(rows, 0.0) is rows


def test_nothing():
    nothing = Graphs(torch.zeros(1, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64))
    vectors, values = laplacian_eigenvectors(nothing, 4)
    assert vectors.shape == (0, 4)
    assert values.shape == (0, 4)
