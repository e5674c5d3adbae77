"""Compares packed graphs, their padded form, feature encoders and pooling with loops over graphs."""

import pytest
import torch

from graphmill.models.ends.features import FeatureEncoder
from graphmill.models.ends.heads import HalvingMLP, link_scores, pool_nodes
from graphmill.models.options.features import Features, atoms
from graphmill.models.primitives.graphs import Graphs


@pytest.fixture
def graphs() -> Graphs:
    """Four graphs: a triangle with one repeated directed edge, a graph without nodes, one node with a self-loop, and a path of two nodes."""
    edge_index = torch.tensor([[0, 1, 0, 0, 3, 4], [1, 2, 1, 2, 3, 5]])
    return Graphs(torch.tensor([0, 3, 3, 4, 6]), edge_index, x=torch.arange(12.0).view(6, 2))


def test_pad_and_unpad(graphs):
    padded = graphs.padding.pad(graphs.x, fill=-1.0)
    assert padded.shape == (4, 3, 2)
    for b, (start, stop) in enumerate([(0, 3), (3, 3), (3, 4), (4, 6)]):
        assert torch.equal(padded[b, : stop - start], graphs.x[start:stop])
        assert (padded[b, stop - start :] == -1).all()
        assert graphs.padding.mask_BN[b].sum() == stop - start
    assert torch.equal(graphs.padding.unpad(padded), graphs.x)


def test_pairs_sum_parallel_edges_and_adjacency_does_not(graphs):
    weights = graphs.padding.pad_pairs(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]))
    expected = torch.zeros(4, 3, 3)
    expected[0, 0, 1], expected[0, 1, 2], expected[0, 0, 2] = 5, 2, 8
    expected[2, 0, 0], expected[3, 0, 1] = 16, 32
    assert torch.equal(weights, expected)
    assert torch.equal(graphs.padding.adjacency(), (expected > 0).float())
    assert graphs.padding.pair_mask_BNN.sum(dim=(1, 2)).tolist() == [9, 0, 1, 4]


def test_gradients_flow_through_the_padded_view(graphs):
    x = graphs.x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: graphs.padding.unpad(graphs.padding.pad(rows) ** 2), (x,))


def test_places_may_be_given_but_not_too_few(graphs):
    wide = Graphs(graphs.node_ptr, graphs.edge_index, x=graphs.x, max_nodes=5)
    assert wide.padding.pad(graphs.x).shape == (4, 5, 2)
    with pytest.raises(ValueError, match="at least the largest graph's 3 nodes, got 2"):
        Graphs(graphs.node_ptr, graphs.edge_index, x=graphs.x, max_nodes=2).padding  # noqa: B018


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_pooling(graphs, pool):
    pooled = pool_nodes(graphs.x, graphs, pool)
    for b, (start, stop) in enumerate([(0, 3), (3, 3), (3, 4), (4, 6)]):
        rows = graphs.x[start:stop]
        want = {"sum": rows.sum(0), "mean": rows.mean(0), "max": rows.amax(0) if len(rows) else rows.sum(0)}[pool]
        # Not exactly equal: a mean may be a division or a product with the reciprocal.
        torch.testing.assert_close(pooled[b], want if len(rows) else torch.zeros(2))


def test_categories_are_a_sum_of_embeddings_and_ids_are_checked():
    encoder = FeatureEncoder(Features(categories=(3, 5)), 4)
    rows = torch.tensor([[0, 0], [2, 4]])
    weight = encoder.embedding.weight
    torch.testing.assert_close(encoder(rows), torch.stack([weight[0] + weight[3], weight[2] + weight[7]]))
    with pytest.raises(ValueError, match=r"column 1 must be in \[0, 5\), got 5 in row 1"):
        encoder(torch.tensor([[0, 0], [2, 5]]))
    with pytest.raises(ValueError, match="must have 2 columns, got 3"):
        encoder(torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="the batch has none"):
        encoder(None)
    assert FeatureEncoder(atoms(), 8)(torch.zeros(0, 9).long()).shape == (0, 8)


def test_atoms_and_bonds_are_ogbs():
    features = pytest.importorskip("ogb.utils.features")
    from graphmill.models.options.features import bonds

    assert list(atoms().categories) == features.get_atom_feature_dims()
    assert list(bonds().categories) == features.get_bond_feature_dims()


def test_halving_head():
    head = HalvingMLP(16, 3, num_layers=3)
    assert sum(p.numel() for p in head.parameters()) == 16 * 8 + 8 + 8 * 4 + 4 + 4 * 3 + 3
    with pytest.raises(ValueError, match="cannot be halved"):
        HalvingMLP(2, 1, num_layers=3)


def test_link_scores():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert link_scores(x, torch.tensor([[0, 1], [1, 1]])).tolist() == [11.0, 25.0]
