"""Tests node identifiers: they are orthogonal, they show incidence (E3), they do not depend on a node's place (E2) or on other graphs of the batch."""

import pytest
import torch

from graphmill.models.encodings import identifiers
from graphmill.models.encodings.identifiers import node_identifiers, orthogonal_identifiers
from graphmill.models.primitives.graphs import Graphs
from tests.packed_graphs import MIXED, packed


def sizes(*numbers: int) -> Graphs:
    node_ptr = torch.tensor([0, *numbers]).cumsum(0)
    return Graphs(node_ptr, torch.zeros(2, 0, dtype=torch.int64))


@pytest.mark.parametrize("seed", [None, 5])
def test_rows_of_each_graph_are_orthonormal_and_padded_with_zeros(seed):
    graphs = sizes(3, 0, 8, 1, 6)
    identifiers = orthogonal_identifiers(graphs, 8, seed=seed, dtype=torch.float64)
    assert identifiers.shape == (18, 8)
    for b, size in enumerate((3, 0, 8, 1, 6)):
        own = identifiers[graphs.graph_of_node == b]
        torch.testing.assert_close(own @ own.T, torch.eye(size, dtype=torch.float64), atol=1e-13, rtol=0)
        assert not own[:, size:].any()


def test_incidence():
    """For an edge (u, v) and a node k, [P_u, P_v]·[P_k, P_k] is 1 if k is an end of the edge and 0 if not. It is 2 if u = v = k."""
    graphs = packed(*MIXED)
    p = orthogonal_identifiers(graphs, 9, dtype=torch.float64)
    source, destination = graphs.edge_index
    product = torch.cat([p[source], p[destination]], 1) @ torch.cat([p, p], 1).T
    node = torch.arange(25)
    expected = (source[:, None] == node).double() + (destination[:, None] == node)
    same = graphs.graph_of_node[source][:, None] == graphs.graph_of_node
    torch.testing.assert_close(product[same], expected[same], atol=1e-13, rtol=0)
    own = torch.cat([p, p], 1)
    torch.testing.assert_close((own * own).sum(1), torch.full((25,), 2.0, dtype=torch.float64))


def test_more_nodes_than_channels_keeps_unit_rows():
    identifiers = orthogonal_identifiers(sizes(20, 4, 8), 8, dtype=torch.float64)
    torch.testing.assert_close(identifiers.norm(dim=1), torch.ones(32, dtype=torch.float64))
    small = identifiers[20:]
    torch.testing.assert_close(small[:4] @ small[:4].T, torch.eye(4, dtype=torch.float64), atol=1e-13, rtol=0)
    # Before scaling, the rows are the first eight columns of an orthogonal 20 × 20 matrix. They are balanced, but not orthogonal.
    assert (identifiers[:20].T @ identifiers[:20]).diagonal().sub(2.5).abs().max() < 2.5


@pytest.mark.parametrize(("size", "mates"), [(8, 0), (8, 12), (5, 3)])
def test_a_place_leaves_no_trace(size, mates):
    """E2: the mean of the diagonal entries P_ii is 0. Without the sign correction it would be -0.2 to -0.3 for n = 8."""
    draws = 4000
    graphs = sizes(*[size, *([mates] if mates else [])] * draws)
    torch.manual_seed(0)
    identifiers = orthogonal_identifiers(graphs, 8)
    own = identifiers[graphs.size_B[graphs.graph_of_node] == size].view(draws, size, 8)[:, :, :size]
    # For the Haar distribution, an entry has mean 0 and variance 1/n. The bound on the mean is 5 standard errors.
    assert own.mean(0).abs().max() < 5 / (size * draws) ** 0.5
    assert (own.square().mean(0) - 1 / size).abs().max() < 0.02


def test_seeded_identifiers_do_not_depend_on_batch_mates():
    alone = orthogonal_identifiers(sizes(6), 8, seed=3, dtype=torch.float64)
    batch = orthogonal_identifiers(sizes(11, 6, 2), 8, seed=3, dtype=torch.float64)
    torch.testing.assert_close(batch[11:17], alone, atol=1e-12, rtol=0)
    assert not torch.allclose(orthogonal_identifiers(sizes(6), 8, seed=4, dtype=torch.float64), alone)


def test_seeded_identifiers_are_haar_over_seeds():
    drawn = torch.stack([orthogonal_identifiers(sizes(4), 4, seed=seed, dtype=torch.float64) for seed in range(2000)])
    assert drawn.mean(0).abs().max() < 5 / (4 * 2000) ** 0.5
    assert (drawn.square().mean(0) - 0.25).abs().max() < 0.03


def test_a_generator_decides():
    graphs = sizes(5, 3)
    torch.manual_seed(1)
    first = orthogonal_identifiers(graphs, 4)
    torch.manual_seed(1)
    assert torch.equal(orthogonal_identifiers(graphs, 4), first)
    torch.manual_seed(2)
    assert not torch.equal(orthogonal_identifiers(graphs, 4), first)


def test_near_orthogonal():
    torch.manual_seed(0)
    p = node_identifiers("near_orf", 500, 64, dtype=torch.float64)
    torch.testing.assert_close(p.norm(dim=1), torch.ones(500, dtype=torch.float64))
    overlap = (p @ p.T).fill_diagonal_(0)
    assert overlap.abs().max() < 0.75
    assert abs(overlap.square().mean() * 64 - 1) < 0.05


def test_near_orthogonal_by_permanent_id():
    keys = torch.tensor([7, 3, 1 << 40])
    rows = node_identifiers("near_orf", 3, 16, seed=2, key_n=keys)
    assert torch.equal(node_identifiers("near_orf", 2, 16, seed=2, key_n=keys[1:]), rows[1:])
    many = node_identifiers("near_orf", 4000, 16, seed=2)
    assert (many.sign().mean(0).abs() < 5 / 4000**0.5).all()
    assert ((many.T @ many * 16 / 4000).fill_diagonal_(0).abs() < 5 / 4000**0.5).all()


def test_random_identifiers_of_the_paper_and_of_the_code():
    """The paper's Gaussian rows have random directions.

    The released code's `torch.rand` rows share a direction: their cosine with the vector of ones is √3/2.
    """
    keys = torch.tensor([7, 3, 1 << 40])
    for kind, mean in (("random", 0.0), ("positive", 0.75)):
        for options in ({}, {"seed": 2}):
            rows = node_identifiers(kind, 4000, 64, dtype=torch.float64, **options)
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(4000, dtype=torch.float64))
            assert abs(float((rows @ rows.T).fill_diagonal_(0).mean()) - mean) < 0.01
            assert bool((rows >= 0).all()) == (kind == "positive")
        chosen = node_identifiers(kind, 3, 16, seed=2, key_n=keys)
        assert torch.equal(node_identifiers(kind, 2, 16, seed=2, key_n=keys[1:]), chosen[1:])


def test_nothing():
    assert orthogonal_identifiers(sizes(), 4).shape == (0, 4)
    assert orthogonal_identifiers(sizes(0, 0), 4).shape == (0, 4)


def test_relabelled_nodes_have_the_same_law():
    """Identifiers are exchangeable: the second moments of two nodes' identifiers are the same for every pair of nodes."""
    graphs = sizes(*[10] * 4000)
    torch.manual_seed(0)
    p = orthogonal_identifiers(graphs, 4).view(4000, 10, 4)
    overlap = torch.einsum("bic,bjc->bij", p, p).square().mean(0)
    off = overlap[~torch.eye(10, dtype=torch.bool)]
    assert off.std() < 0.01


def test_a_gpus_orthogonal_matrices_are_those_of_qr() -> None:
    generator = torch.Generator().manual_seed(3)
    for shape in ((50, 9, 9), (20, 40, 16), (3, 1, 1)):
        matrix = torch.randn(shape, dtype=torch.float64, generator=generator)
        q, r = torch.linalg.qr(matrix)
        expected = q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
        torch.testing.assert_close(identifiers._orthogonalised(matrix), expected, rtol=0, atol=1e-9)
    nearly = torch.randn(1, 12, 12, dtype=torch.float64, generator=generator)
    nearly[0, :, 7] = nearly[0, :, 2] + 1e-9 * nearly[0, :, 7]
    q = identifiers._orthogonalised(nearly)[0]
    torch.testing.assert_close(q.t() @ q, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-12)
