"""Compares sL2 attention, with and without URPE, with its formula (E7)."""

import math
from itertools import product

import pytest
import torch

from graphmill.models.ppgt.attention import Sl2Attention, sl2_attention, sl2_urpe_attention
from graphmill.models.ppgt.options import PPGTConfig

B, H, N, D, E = 3, 2, 6, 4, 5


def layer_of(width, num_heads, edge_width, **options):
    return Sl2Attention(PPGTConfig(width=width, num_heads=num_heads, edge_width=edge_width, **options))


def inputs(seed=0, requires_grad=True):
    torch.manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=requires_grad)

    qkv = [draw(B, H, N, D) for _ in range(3)]
    mask = torch.arange(N) < torch.tensor([[6], [3], [1]])
    return (*qkv, draw(B, N, N, E), draw(2 * H, E), draw(2 * H)), mask


def reference(q, k, v, p, weight, bias, mask, phi_offset=0.0, qk_scale=None, kept=1.0):
    """Computes the attention one query at a time, from distances."""
    maps = p @ weight.T + bias
    out = torch.zeros_like(q)
    places = q.shape[2]
    qk = 1 / math.sqrt(D) if qk_scale is None else qk_scale
    for b, h, i in product(range(B), range(H), range(places)):
        score = q[b, h, i] @ k[b, h].T * qk - k[b, h].square().sum(-1) / (2 * math.sqrt(D)) + maps[b, i, :, h]
        softmax = score.masked_fill(~mask[b], -math.inf).softmax(-1)
        gate = phi_offset + maps[b, i, :, H + h]
        drop = kept if isinstance(kept, float) else kept[b, h, i]
        out[b, h, i] = (softmax * gate * drop) @ v[b, h]
    return out


def test_without_phi_it_is_a_softmax_over_squared_distances():
    (q, k, v, p, *_), mask = inputs(requires_grad=False)
    theta = p[..., :H].permute(0, 3, 1, 2)
    distance = (q.unsqueeze(3) - k.unsqueeze(2)).square().sum(-1) / (2 * math.sqrt(D))
    score = (theta - distance).masked_fill(~mask[:, None, None], -math.inf)
    torch.testing.assert_close(sl2_attention(q, k, v, theta, mask), score.softmax(-1) @ v, rtol=1e-12, atol=1e-13)


def test_translating_all_queries_and_keys_changes_nothing():
    (q, k, v, p, *_), mask = inputs(requires_grad=False)
    theta, shift = p[..., :H].permute(0, 3, 1, 2), torch.randn(D, dtype=torch.float64)
    moved = sl2_attention(q + shift, k + shift, v, theta, mask)
    torch.testing.assert_close(moved, sl2_attention(q, k, v, theta, mask), rtol=1e-12, atol=1e-13)
    plain = torch.nn.functional.scaled_dot_product_attention
    assert (plain(q + shift, k + shift, v) - plain(q, k, v)).abs().max() > 1e-2


def test_the_released_scale_is_the_paper_with_larger_queries():
    tensors, mask = inputs(requires_grad=False)
    q, rest = tensors[0], tensors[1:]
    released = sl2_urpe_attention(q, *rest, mask, qk_scale=1.0)
    torch.testing.assert_close(released, sl2_urpe_attention(q * math.sqrt(D), *rest, mask), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("block_scores", [1, 20, 2 * H * N * N, None], ids=["rows", "queries", "graphs", "all"])
@pytest.mark.parametrize(("phi_offset", "qk_scale"), [(0.0, None), (1.0, 1.0)], ids=["paper", "released"])
@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
def test_urpe_and_its_gradients(block_scores, phi_offset, qk_scale, memory):
    tensors, mask = inputs()
    options = {"phi_offset": phi_offset, "qk_scale": qk_scale}
    got = sl2_urpe_attention(*tensors, mask, **options, block_scores=block_scores, pair_memory=memory)
    expected = reference(*tensors, mask, **options)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)
    weight = torch.randn_like(expected)
    theirs = torch.autograd.grad((expected * weight).sum(), tensors)
    for _ in range(2):  # the second pass reads the same kept tensors
        mine = torch.autograd.grad((got * weight).sum(), tensors, retain_graph=True)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
@pytest.mark.parametrize("block_scores", [20, None])
def test_dropout_is_the_same_in_both_passes(block_scores, memory):
    tensors, mask = inputs()
    # There are as many positions as channels, and the values are the identity matrix. So the output is the attention matrix.
    q, k, v = (t[:, :, :D].detach().requires_grad_() for t in tensors[:3])
    p, weight, bias = tensors[3][:, :D, :D].detach().requires_grad_(), *tensors[4:]
    mask = mask[:, :D]
    eye = torch.eye(D, dtype=torch.float64).expand(B, H, D, D)

    def run(values):
        torch.manual_seed(3)
        options = {"dropout": 0.4, "block_scores": block_scores, "pair_memory": memory}
        return sl2_urpe_attention(q, k, values, p, weight, bias, mask, **options)

    free = sl2_urpe_attention(q, k, eye, p, weight, bias, mask).detach()
    kept = torch.where(mask[:, None, None], run(eye).detach() / free, 0.0)
    values = kept[mask[:, None, None].expand_as(kept)]
    assert 0.2 < (values == 0).double().mean() < 0.6
    torch.testing.assert_close(values[values != 0], torch.full_like(values[values != 0], 1 / 0.6), rtol=1e-4, atol=0)
    got, expected = run(v), reference(q, k, v, p, weight, bias, mask, kept=kept)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
    weights = torch.randn_like(expected)
    leaves = (q, k, v, p, weight, bias)
    mine = torch.autograd.grad((got * weights).sum(), leaves)
    for one, other in zip(mine, torch.autograd.grad((expected * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
def test_masks_do_not_depend_on_the_blocks(memory):
    tensors, mask = inputs()
    results = []
    # Block sizes: one query, some queries, one graph, two graphs, all graphs.
    for block_scores in (1, 20, H * N * N, 2 * H * N * N, None):
        torch.manual_seed(3)
        options = {"dropout": 0.4, "block_scores": block_scores, "pair_memory": memory}
        out = sl2_urpe_attention(*tensors, mask, **options)
        results.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_padding_has_no_say_and_no_nan():
    tensors, mask = inputs()
    got = sl2_urpe_attention(*tensors, mask)
    q, k, v, p, weight, bias = (t.detach().clone() for t in tensors)
    hidden = ~mask[:, None, :, None]
    k, v = k.masked_fill(hidden, 1e3), v.masked_fill(hidden, -1e3)
    p = p.masked_fill(~(mask[:, :, None] & mask[:, None])[..., None], 77.0)
    other = sl2_urpe_attention(q, k, v, p, weight, bias, mask)
    real = mask[:, None, :, None].expand_as(got)
    # Bits may differ: the clones have another memory layout, and on some CPUs MKL then uses another kernel.
    torch.testing.assert_close(got[real], other[real], rtol=1e-12, atol=1e-13)
    nothing = sl2_urpe_attention(*tensors, torch.zeros_like(mask))
    assert nothing.isfinite().all()
    assert torch.autograd.grad(nothing.sum(), tensors[3])[0].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_empty(shape):
    size, places = shape
    qkv = [torch.zeros(size, H, places, D, requires_grad=True) for _ in range(3)]
    p = torch.zeros(size, places, places, E)
    mask = torch.zeros(size, places, dtype=torch.bool)
    out = sl2_urpe_attention(*qkv, p, torch.zeros(2 * H, E), torch.zeros(2 * H), mask)
    assert out.shape == (size, H, places, D)
    out.sum().backward()
    assert sl2_attention(*qkv, None, mask).shape == (size, H, places, D)


def test_without_queries_keys_and_theta_it_is_a_mean_weighted_by_phi():
    layer = layer_of(8, 2, E).double().eval()
    with torch.no_grad():
        layer.qkv.weight[:16] = 0
        layer.qkv.bias[:16] = 0
        layer.pair.weight[:2] = 0
        layer.pair.bias[:2] = 0
    x, p = torch.randn(1, N, 8, dtype=torch.float64), torch.randn(1, N, N, E, dtype=torch.float64)
    phi = layer.pair(p)[..., 2:]
    v = layer.qkv(x)[..., 16:].view(1, N, 2, 4)
    mean = torch.einsum("bijh,bjhd->bihd", phi, v) / N
    torch.testing.assert_close(layer(x, p, None), layer.out(mean.reshape(1, N, 8)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("urpe", ["phi", "one_plus_phi", "none"])
def test_layer_follows_a_permutation(urpe):
    layer = layer_of(8, 2, E, urpe=urpe).double().eval()
    x, p = torch.randn(2, N, 8, dtype=torch.float64), torch.randn(2, N, N, E, dtype=torch.float64)
    order = torch.randperm(N)
    moved = layer(x[:, order], p[:, order][:, :, order], None)
    torch.testing.assert_close(moved, layer(x, p, None)[:, order], rtol=1e-12, atol=1e-13)


def test_half_precision_is_close():
    tensors, mask = inputs(requires_grad=False)
    exact = sl2_urpe_attention(*tensors, mask)
    half = sl2_urpe_attention(*(t.bfloat16() for t in tensors), mask)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("memory", "tensors"), [(0, 0), (3 * 8 * 30 * 30 * 4 - 1, 0), (3 * 8 * 30 * 30 * 4, 3)])
def test_scores_are_kept_where_there_is_room(memory, tensors):
    layer = layer_of(16, 8, 2, attention_dropout=0.1, pair_memory=memory)
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.randn(1, 30, 16), torch.randn(1, 30, 30, 2), None)
    assert sizes.count(8 * 30 * 30) == tensors
