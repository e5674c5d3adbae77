"""Compares the chain of gated convolutions with its formula in float64: values and gradients, for several lengths, chunk sizes and choices of stored arrays."""

import pytest
import torch

from graphmill.jobs.plan.tries import saved_bytes
from graphmill.models.geco.network import GlobalBlock
from graphmill.models.operators import gated_convolution
from graphmill.models.operators.filters import ImplicitFilter, circular_convolve
from graphmill.models.operators.gated_convolution import gated_convolve
from graphmill.models.options.filters import FilterConfig
from graphmill.models.primitives.node_order import Order
from graphmill.models.primitives.transform_length import transform_length


def inputs(num, order, width=5, channels=6, features=4, skip=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num)
    rows = (order + 1) * width
    shapes = [(num, channels), (rows, channels), (rows,), (order, width, features), (features, num)]
    shapes += [(order, width)] if skip else []
    return [torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes]


def circulant(f):
    """The circulant matrices [..., N, N] of f. The entry in row t and column s is f[(t - s) mod N]."""
    t = torch.arange(f.shape[-1])
    return f[..., (t[:, None] - t[None, :]) % f.shape[-1]]


def by_definition(h, weight, bias, filters, features, skip=None):
    order, width, _ = filters.shape
    p = (h @ weight.t() + bias).t().view(order + 1, width, -1)
    v = p[order]
    for i in range(order):
        mixed = (circulant(filters[i] @ features) @ v.unsqueeze(-1)).squeeze(-1)
        v = p[i] * (mixed if skip is None else mixed + skip[i].unsqueeze(1) * v)
    return v.t()


@pytest.mark.parametrize("num", [1, 2, 3, 8, 67, 74, 127])
@pytest.mark.parametrize(("order", "skip"), [(1, True), (2, False), (3, True)])
def test_equals_the_definition_with_its_gradients(num, order, skip):
    tensors = inputs(num, order, skip=skip)
    expected = by_definition(*tensors)
    grad = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected_grads = torch.autograd.grad(expected, tensors, grad)
    # All at once, or chunks of 3 and 2 channels, which may keep their spectra.
    for chunk_bytes, keep in (
        (None, False),
        (3 * 8 * 4 * transform_length(num), False),
        (3 * 8 * 4 * transform_length(num), True),
    ):
        y = gated_convolve(*tensors, chunk_bytes=chunk_bytes, keep_spectra=keep)
        torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
        for got, want in zip(torch.autograd.grad(y, tensors, grad), expected_grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num", [7, 8, 67])
def test_gradcheck(num):
    tensors = inputs(num, 2, width=2, channels=2, features=2, skip=True)
    assert torch.autograd.gradcheck(gated_convolve, tensors)


def test_lengths_are_exact_or_leave_room_for_every_lag():
    for num in (0, 1, 63, 64, 96, 2**20, 31 * 2**14, 2449029):
        assert transform_length(num) == num or transform_length(num) >= 2 * num - 1
    assert [transform_length(n) for n in (0, 1, 63, 96, 2**20, 31 * 2**14)] == [0, 1, 63, 96, 2**20, 31 * 2**14]
    for num in (67, 101, 127 * 64, 1048573, 1048577, 2**20 - 1):
        length = transform_length(num)
        assert length == num or length >= 2 * num - 1
    assert transform_length(1048573) == 2**21
    assert transform_length(61 * 2**14) == 2**21
    assert transform_length(2**20 + 1) == 9 * 2**18
    assert transform_length(61 * 16000) == 2**21  # 15 · 2^17 would be shorter but slower
    assert transform_length(2 * 8263) == 2 * 8263  # 9 · 2^12 would be slower
    # Short transforms fit into the processor's cache. There, lengths with large prime factors are less slow.
    assert [transform_length(n) for n in (2708, 8003, 11758, 12007, 13752)] == [2708, 16384, 11758, 24576, 13752]


def test_a_padded_length_in_single_precision_is_as_exact_as_the_direct_one(monkeypatch):
    num = 1009
    tensors = [t.detach() for t in inputs(num, 2, dtype=torch.float64)]
    exact = by_definition(*tensors)
    single = [t.float() for t in tensors]
    padded = gated_convolve(*single)
    monkeypatch.setattr(gated_convolution, "transform_length", lambda n: n)
    direct = gated_convolve(*single)
    errors = [float((y - exact).abs().max() / exact.abs().max()) for y in (padded, direct)]
    assert errors[0] < 3 * errors[1] < 1e-5


@pytest.mark.parametrize("scale", ["none", "length", "sqrt_length"])
@pytest.mark.parametrize("num", [0, 1, 7, 9000])
def test_filter_factors_give_the_filter_and_its_gradients(scale, num):
    torch.manual_seed(0)
    module = ImplicitFilter(FilterConfig(inner_width=6, frequency=2.0, scale=scale), 2, 3).double()
    parameters = list(module.parameters())
    expected = module(num)
    grad = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, parameters, grad)
    weight, features = module.factors(num)
    torch.testing.assert_close(weight @ features, expected, rtol=1e-10, atol=1e-11)
    for got, want in zip(torch.autograd.grad(weight @ features, parameters, grad), expected_grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_block_is_its_convolutions_in_the_order_one_by_one(skip, ordered):
    torch.manual_seed(0)
    block = GlobalBlock(6, 4, 2, FilterConfig(inner_width=8), skip).double()
    h = torch.randn(67, 6, dtype=torch.float64, requires_grad=True)
    order = Order.of(torch.randperm(67) if ordered else torch.arange(67))
    filters = block.filter(67)
    p = block.projection(h)[order.order_N].t().view(3, 4, 67)
    v = p[2]
    for i in range(2):
        mixed = circular_convolve(filters[i], v)
        v = p[i] * (mixed if block.skip_KD is None else mixed + block.skip_KD[i].unsqueeze(1) * v)
    expected = v.t()[order.inverse_N]
    y = block(h, order if ordered else None)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    grad, leaves = torch.randn_like(y), [h, *block.parameters()]
    for got, want in zip(
        torch.autograd.grad(y, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_keeps_its_input_the_convolutions_and_a_spectrum_of_features_only():
    num, width, features = 4096, 32, 8
    tensors = inputs(num, 2, width=width, channels=2 * width, features=features, dtype=torch.float32)
    kept = saved_bytes(lambda: gated_convolve(*tensors).sum())
    parameters = sum(t.numel() for t in tensors[1:4])
    assert kept <= 4 * (num * (2 * width + 2 * width + features) + parameters) + 8 * features + 4096


@pytest.mark.parametrize("half", [False, True])
def test_kept_spectra_save_a_fifth_of_the_transforms_and_change_no_bit(half, monkeypatch):
    tensors = inputs(4096, 2, width=8, channels=16, features=4, skip=True, dtype=torch.float32)
    rows = []
    real = torch.fft.rfft
    monkeypatch.setattr(torch.fft, "rfft", lambda x, **n: rows.append(len(x)) or real(x, **n))

    def outcome(keep):
        rows.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = gated_convolve(*tensors, chunk_bytes=3 * 8 * 4 * 4096, keep_spectra=keep)
        return [y, *torch.autograd.grad(y.float().square().sum(), tensors)], sum(rows)

    (again, count), (kept, fewer) = outcome(False), outcome(True)
    assert all(torch.equal(a, b) for a, b in zip(again, kept, strict=True))
    assert count - fewer == 2 * 8  # one for each convolution and channel, of 2 + 3


def test_half_precision_gates_with_single_precision_transforms():
    tensors = inputs(96, 2, dtype=torch.float32)
    tensors[3].data /= 96
    exact = gated_convolve(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = gated_convolve(*tensors)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.05 * float(exact.abs().max()))
    grads = torch.autograd.grad(y.float().sum(), tensors)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


def test_a_second_pass_over_a_kept_graph_gives_the_same():
    tensors = inputs(12, 2)
    y = gated_convolve(*tensors).square().sum()
    first, second = torch.autograd.grad(y, tensors, retain_graph=True), torch.autograd.grad(y, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_float16_is_widened():
    """With filter values of size 1, sums over 4,096 nodes exceed the range of float16."""
    values = inputs(4096, 2, dtype=torch.float32)
    expected = gated_convolve(*values)
    assert float(expected.detach().abs().max()) > 65_504
    with torch.autocast("cpu", dtype=torch.float16):
        y = gated_convolve(*values)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, expected, rtol=5e-2, atol=5e-2 * float(expected.detach().abs().max()))
