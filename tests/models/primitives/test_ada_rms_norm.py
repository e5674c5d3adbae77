"""Compares AdaRMSN with its formula and with its two limits, RMSNorm and the identity (E8)."""

import torch

from graphmill.models.primitives.ada_rms_norm import AdaRMSNorm


def formula(x, alpha, beta, eps=1e-6):
    def rms(t):
        return (t.square().mean(-1, keepdim=True) + eps).sqrt()

    return x / rms(x) * rms(alpha * x + beta)


def layer(width=5, seed=0):
    torch.manual_seed(seed)
    norm = AdaRMSNorm(width).double()
    with torch.no_grad():
        norm.alpha_D.normal_()
        norm.beta_D.normal_()
    return norm


def test_formula_and_gradients():
    norm = layer()
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    expected = formula(x, norm.alpha_D, norm.beta_D)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-13)
    weight = torch.randn_like(expected)
    inputs = (x, norm.alpha_D, norm.beta_D)
    got = torch.autograd.grad((norm(x) * weight).sum(), inputs)
    for mine, reference in zip(got, torch.autograd.grad((expected * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(norm, x)


def test_starts_as_rms_norm_and_can_be_the_identity():
    x = torch.randn(7, 5, dtype=torch.float64)
    norm = AdaRMSNorm(5).double()
    root = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), x / root * (1 + 1e-6) ** 0.5, rtol=1e-12, atol=0)
    with torch.no_grad():
        norm.alpha_D.fill_(1)
        norm.beta_D.fill_(0)
    torch.testing.assert_close(norm(x), x, rtol=1e-14, atol=0)


def test_size_passes_only_with_alpha():
    x = torch.randn(7, 5, dtype=torch.float64)
    norm = AdaRMSNorm(5).double()
    torch.testing.assert_close(norm(3 * x), norm(x), rtol=1e-4, atol=0)
    with torch.no_grad():
        norm.alpha_D.fill_(0.5)
    assert (norm(3 * x) - norm(x)).abs().max() > 0.1


def test_zeros_and_empty_have_finite_gradients():
    norm = layer()
    for shape in ((2, 5), (0, 5)):
        x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        norm(x).sum().backward()
        assert x.grad.isfinite().all()
        assert norm.alpha_D.grad.isfinite().all()


def test_half_precision_keeps_its_type():
    norm = layer().float()
    x = torch.randn(64, 5)
    half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), norm(x), rtol=2e-2, atol=2e-2)
