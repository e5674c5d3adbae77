"""Tests the node features that the first layer reads: rows are scaled, and CSR rows equal dense rows."""

import pytest
import torch
from torch import nn

from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.primitives.dropout import MaskRows
from graphmill.models.primitives.random_numbers import levels, levels_at


def bag_of_words(num: int = 40, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(num, 130, generator=generator) < 0.03) * torch.randn(num, 130, generator=generator)
    x[7] = 0
    return x.to(dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rows", [None, MaskRows(11, 3)])
def test_csr_rows_are_the_dense_ones_with_the_same_dropout(training, scaled, rows):
    x, made = bag_of_words(), []
    for linear in (True, False):
        torch.manual_seed(5)
        made.append(NodeInput(0.5, scaled, linear=linear).train(training)(x, rows))
    sparse, dense = made
    assert sparse.layout == torch.sparse_csr
    assert dense.layout == torch.strided
    torch.testing.assert_close(sparse.to_dense(), dense, rtol=1e-15, atol=0)
    if scaled and not training:
        assert dense.abs().sum(1)[[0, 7]].tolist() == pytest.approx([1, 0])


def test_products_and_gradients_are_those_of_dense_rows():
    x, linear = bag_of_words(), nn.Linear(130, 6).double()
    results = []
    for rows in (NodeInput(0.0, True, linear=True)(x), NodeInput(0.0, True, linear=False)(x)):
        linear.zero_grad()
        y = linear(rows)
        y.square().sum().backward()
        results.append((y.detach(), linear.weight.grad.clone(), linear.bias.grad.clone()))
    for sparse, dense in zip(*results, strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-12, atol=1e-12)


def test_rows_stay_dense_where_csr_does_not_pay():
    take, x = NodeInput(0.0, False, linear=True), bag_of_words()
    assert take(torch.randn(5, 130)).layout == torch.strided
    assert take(x[:, :32]).layout == torch.strided
    assert take(x.clone().requires_grad_()).layout == torch.strided
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert take(x).layout == torch.strided
    categories = torch.zeros(3, 130, dtype=torch.int64)
    assert take(categories) is categories


def test_a_levels_number_is_enough_to_draw_it():
    expected = levels(77, 13, 500)
    index = torch.randperm(500)
    assert torch.equal(levels_at(77, index + 13), expected[index])


@pytest.mark.parametrize("features", [atoms(), bonds()])
def test_columns_begin_as_ogbs_encoders(features):
    torch.manual_seed(0)
    encoder = FeatureEncoder(features, 64)
    for table, size in zip(encoder.embedding.weight.split(features.categories), features.categories, strict=True):
        assert table.abs().max() <= (6 / (size + 64)) ** 0.5
        assert float(table.detach().std()) == pytest.approx((2 / (size + 64)) ** 0.5, rel=0.15)


def test_a_single_column_begins_as_graphgyms_type_encoder():
    torch.manual_seed(0)
    assert float(FeatureEncoder(Features(categories=(28,)), 64).embedding.weight.detach().std()) == pytest.approx(
        1, rel=0.1
    )
