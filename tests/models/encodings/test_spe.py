"""Compares SPE with its formula, entry by entry."""

import math

import torch

from graphmill.models.encodings.random_walk import spe


def test_every_code_in_its_place():
    p = torch.tensor([[0.3, 0.5]], dtype=torch.float64)
    expected = []
    for value in (0.3, 0.5):
        expected.append(value)
        for scale in range(3):
            expected += [math.sin(2**scale * math.pi * value), math.cos(2**scale * math.pi * value)]
    torch.testing.assert_close(spe(p, 3), torch.tensor([expected], dtype=torch.float64))


def test_width_and_shapes():
    assert spe(torch.rand(2, 5, 5, 28), 3).shape == (2, 5, 5, 196)
    p = torch.rand(4, 6)
    assert spe(p, 0) is p
    assert spe(torch.rand(0, 6), 2).shape == (0, 30)


def test_gradients():
    p = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: spe(values, 2), (p,))


def test_half_precision_is_computed_in_single():
    p = torch.rand(100).bfloat16()
    codes = spe(p, 8)
    assert codes.dtype == torch.bfloat16
    torch.testing.assert_close(codes, spe(p.float(), 8).bfloat16())
