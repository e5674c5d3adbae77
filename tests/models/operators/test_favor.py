"""Compares FAVOR+ with the softmax kernel that it estimates, and with its own kernel matrix."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import graphmill.models.operators.favor as favor
from graphmill.models.operators.favor import (
    FavorAttention,
    default_num_features,
    draw_projection,
    exponents,
    favor_attention,
)

DRAWS = 4000


def kernel_samples(q, k, draw, count=DRAWS):
    """φ(q)·φ(k) for `count` random projections."""
    generator = torch.Generator().manual_seed(3)
    qk = torch.stack([q, k])[None, None]  # q and k as two tokens
    values = []
    for _ in range(count):
        phi = exponents(qk, draw(generator)).exp()[0, 0]
        values.append((phi[0] * phi[1]).mean())
    values = torch.stack(values)
    return values.mean().item(), (values.std() / math.sqrt(count)).item()


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(11)
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=generator)
    return q, k, math.exp(float(q @ k) / math.sqrt(8))


def test_features_estimate_the_softmax_kernel(pair):
    q, k, exact = pair
    mean, error = kernel_samples(q, k, lambda g: draw_projection(8, 8, g, torch.float64))
    assert abs(mean - exact) < 4 * error
    assert error < 0.03 * exact


def test_projection_is_orthogonal_in_blocks_uniform_and_chi():
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([draw_projection(20, 8, generator, torch.float64) for _ in range(3000)])
    unit = draws / draws.norm(dim=2, keepdim=True)
    for start, stop in ((0, 8), (8, 16), (16, 20)):
        block = unit[:, start:stop]
        torch.testing.assert_close(
            block @ block.transpose(1, 2), torch.eye(stop - start, dtype=torch.float64).expand(3000, -1, -1)
        )
    # With plain QR, the mean of the diagonal of each block would be about -0.25 (E1 a).
    assert unit.mean(0).abs().max() < 5 / math.sqrt(8 * 3000)
    assert draws.norm(dim=2).square().mean().item() == pytest.approx(8, rel=0.02)
    assert draws.norm(dim=2).square().var().item() == pytest.approx(16, rel=0.05)


def random_qkv(shape=(2, 3, 7, 6), value=5, seed=0, dtype=torch.float64, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(shape, dtype=dtype, generator=generator) for _ in range(2))
    v = torch.randn((*shape[:3], value), dtype=dtype, generator=generator)
    return tuple(t.requires_grad_(requires_grad) for t in (q, k, v))


def explicit(q, k, v, w, mask=None):
    """Attention with the explicit T × T kernel matrix, without shift and epsilon."""
    phi_q, phi_k = exponents(q, w).exp(), exponents(k, w).exp()
    kernel = phi_q @ phi_k.transpose(2, 3)
    if mask is not None:
        kernel = kernel * mask[:, None, None, :]
    return kernel @ v / kernel.sum(-1, keepdim=True)


def test_linear_form_is_the_explicit_matrix_and_shifts_cancel():
    q, k, v = random_qkv()
    w = draw_projection(10, 6, torch.Generator().manual_seed(1), torch.float64)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    k[1, :, 4:] = 40.0  # padding; if it counted, the sums would overflow
    got = favor_attention(q, k, v, w, mask, epsilon=0.0)
    for b, size in enumerate((7, 4)):
        want = explicit(q[b : b + 1], k[b : b + 1, :, :size], v[b : b + 1, :, :size], w)
        torch.testing.assert_close(got[b : b + 1], want, rtol=1e-12, atol=1e-13)


def test_padding_takes_no_part_in_the_shift():
    """With an epsilon, the shift changes the result. Real keys have norm 20, so their exponents are far below the exponent 0 of padding."""
    q, k, v = random_qkv()
    w = draw_projection(10, 6, torch.Generator().manual_seed(1), torch.float64)
    k = 20 * torch.nn.functional.normalize(k, dim=-1)
    k[1, :, 4:] = 0
    got = favor_attention(q, k, v, w, torch.tensor([[True] * 7, [True] * 4 + [False] * 3]), epsilon=1e-2)
    want = favor_attention(q[1:], k[1:, :, :4], v[1:, :, :4], w, epsilon=1e-2)
    torch.testing.assert_close(got[1:], want, rtol=1e-12, atol=1e-13)


def test_epsilon_moves_outputs_a_little():
    q, k, v = random_qkv()
    w = draw_projection(10, 6, torch.Generator().manual_seed(1), torch.float64)
    shift = (favor_attention(q, k, v, w, epsilon=1e-4) - favor_attention(q, k, v, w, epsilon=0.0)).abs().max()
    assert 1e-6 < shift < 0.1


def test_many_features_approach_softmax():
    q, k, v = random_qkv()
    q, k = q / 2, k / 2
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    errors = []
    for features in (12, 6000):
        w = draw_projection(features, 6, torch.Generator().manual_seed(2), torch.float64)
        errors.append((favor_attention(q, k, v, w, epsilon=0.0) - want).abs().mean().item())
    assert errors[1] < 0.02 < errors[0]


@pytest.mark.parametrize("masked", [False, True])
def test_gradients(masked):
    q, k, v = random_qkv((2, 1, 4, 3), value=2, requires_grad=True)
    w = draw_projection(5, 3, torch.Generator().manual_seed(1), torch.float64)
    mask = torch.tensor([[True] * 4, [True, False, False, False]]) if masked else None
    assert torch.autograd.gradcheck(lambda *t: favor_attention(*t, w, mask, epsilon=0.0), (q, k, v))
    explicit_grad = torch.autograd.grad(explicit(q, k, v, w, mask).square().sum(), (q, k, v))
    grad = torch.autograd.grad(favor_attention(q, k, v, w, mask, epsilon=0.0).square().sum(), (q, k, v))
    for got, want in zip(grad, explicit_grad):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_chunks_change_nothing(monkeypatch):
    q, k, v = random_qkv(requires_grad=True)
    w = draw_projection(10, 6, torch.Generator().manual_seed(1), torch.float64)
    mask = torch.tensor([[True] * 7, [True] * 2 + [False] * 5])
    whole = favor_attention(q, k, v, w, mask)
    whole_grad = torch.autograd.grad(whole.square().sum(), (q, k, v))
    monkeypatch.setattr(favor, "CHUNK_TOKENS", 3)
    chunked = favor_attention(q, k, v, w, mask)
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-13)
    for got, want in zip(torch.autograd.grad(chunked.square().sum(), (q, k, v)), whole_grad):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_the_gradient_of_chunks_is_linear_in_tokens(monkeypatch):
    # The gradient of a slice is a tensor over all tokens. If chunks were slices, their gradients would take tokens² / chunk elements.
    class Produced(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.elements += sum(part.numel() for part in tree_leaves(out) if isinstance(part, torch.Tensor))
            return out

    monkeypatch.setattr(favor, "CHUNK_TOKENS", 8)
    w = draw_projection(10, 6, torch.Generator().manual_seed(1))
    counts = []
    for tokens in (256, 1024):
        q, k, v = (torch.randn(1, 2, tokens, 6).requires_grad_() for _ in range(3))
        with Produced() as produced:
            favor_attention(q, k, v, w).sum().backward()
        counts.append(produced.elements)
    assert counts[1] < 4.2 * counts[0]


def test_no_keys_and_large_norms_stay_finite():
    q, k, v = random_qkv(dtype=torch.float32)
    w = draw_projection(10, 6, torch.Generator().manual_seed(1))
    out = favor_attention(q, k, v, w, torch.tensor([[True] * 7, [False] * 7]))
    assert out.isfinite().all()
    assert (out[1] == 0).all()
    q, k = (q * 100).requires_grad_(), (k * 100).requires_grad_()
    out = favor_attention(q, k, v, w)
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k)))


def test_bf16_autocast_computes_features_in_float32():
    q, k, v = (t * 3 for t in random_qkv(dtype=torch.float32))
    w = draw_projection(10, 6, torch.Generator().manual_seed(1))
    want = favor_attention(*(t.bfloat16().float() for t in (q, k, v)), w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = favor_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), w)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=0.01, atol=0.01)


def test_redraws_on_schedule_and_resumes():
    q, k, v = random_qkv(dtype=torch.float32)
    layer = FavorAttention(6, 10, redraw_interval=2, seed=5)
    seen = []
    for _ in range(6):
        layer(q, k, v)
        seen.append(layer.projection_RD.clone())
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[3], seen[4])
    resumed = FavorAttention(6, 10, redraw_interval=2, seed=5)
    for _ in range(3):
        resumed(q, k, v)
    state = resumed.state_dict()
    assert set(state) == {"projection_RD", "num_calls"}
    resumed = FavorAttention(6, 10, redraw_interval=2, seed=5)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.projection_RD, seen[2])
    for step in (3, 4, 5):
        resumed(q, k, v)
        assert torch.equal(resumed.projection_RD, seen[step])
    resumed.eval()
    for _ in range(5):
        resumed(q, k, v)
    assert torch.equal(resumed.projection_RD, seen[5])


def test_sizes():
    assert default_num_features(24) == 76
    assert default_num_features(1) == 1
    assert FavorAttention(24).projection_RD.shape == (76, 24)


def released_attention(q, k, v, w, mask, epsilon):
    """Like softmax_kernel of performer_pytorch: φ = r^-½ (exp(Wx' - |x'|²/2 - max Wx') + ε). The maximum is over one query. For keys it is over
    all keys of a head, including padding."""
    scale = q.shape[-1] ** -0.25
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            project_q, project_k = scale * q[b, h] @ w.T, scale * k[b, h] @ w.T
            half_q, half_k = (scale**2 * x[b, h].square().sum(1, keepdim=True) / 2 for x in (q, k))
            phi_q = (project_q - half_q - project_q.amax(1, keepdim=True)).exp() + epsilon
            phi_k = ((project_k - half_k - project_k.amax()).exp() + epsilon) * mask[b][:, None]
            out[b, h] = phi_q @ (phi_k.T @ v[b, h]) / (phi_q @ phi_k.sum(0))[:, None]
    return out


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_released_stabilisers(spread):
    """For long queries ε is larger than all features. So the released attention is close to the mean of the values.

    Our attention does not.
    """
    q, k, v = random_qkv((2, 2, 6, 24))
    q, k = q * spread, k * spread
    w = draw_projection(76, 24, torch.Generator().manual_seed(1), torch.float64)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    k[1, :, 4:] = 3.0  # padding counts in the maximum
    want = released_attention(q, k, v, w, mask, 1e-4)
    got = favor_attention(q, k, v, w, mask, 1e-4, released=True)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    assert (favor_attention(q, k, v, w, mask, 1e-4) - want).abs().max() > 0.1
    if spread == 4:
        torch.testing.assert_close(got[0], v[0].mean(1, keepdim=True).expand_as(got[0]), rtol=0.05, atol=0.05)


def test_released_stabilisers_by_chunks(monkeypatch):
    q, k, v = random_qkv()
    w = draw_projection(10, 6, torch.Generator().manual_seed(1), torch.float64)
    whole = favor_attention(q, k, v, w, released=True)
    monkeypatch.setattr(favor, "CHUNK_TOKENS", 3)
    torch.testing.assert_close(favor_attention(q, k, v, w, released=True), whole, rtol=1e-12, atol=1e-13)
