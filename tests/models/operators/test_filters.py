"""The convolution equals its definition. Also tests the shape, scale and precision of the implicit filter."""

import math

import pytest
import torch

from graphmill.models.operators.filters import ImplicitFilter, circular_convolve, positional_code
from graphmill.models.options.filters import FilterConfig


@pytest.mark.parametrize("num", [1, 2, 3, 8, 13, 30, 97])
def test_convolution_equals_its_definition(num):
    generator = torch.Generator().manual_seed(num)
    f, u = torch.randn(2, 2, num, dtype=torch.float64, generator=generator)
    expected = torch.zeros(2, num, dtype=torch.float64)
    for t in range(num):
        for s in range(num):
            expected[:, t] += f[:, (t - s) % num] * u[:, s]
    torch.testing.assert_close(circular_convolve(f, u), expected, rtol=1e-12, atol=1e-12)


def test_convolution_of_nothing_is_empty_and_differentiable():
    f = torch.zeros(2, 0, requires_grad=True)
    circular_convolve(f, torch.zeros(2, 0)).sum().backward()
    assert f.grad.shape == (2, 0)


def test_convolution_runs_in_float32_at_least():
    f, u = torch.randn(2, 3, 17, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = circular_convolve(f.bfloat16(), u.bfloat16())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, circular_convolve(f.bfloat16().float(), u.bfloat16().float()))


def test_positional_code():
    code = positional_code(5, 3, dtype=torch.float64, device=torch.device("cpu"))
    t = torch.arange(5, dtype=torch.float64)
    torch.testing.assert_close(code[:, 0], t / 4)
    torch.testing.assert_close(code[:, 3], torch.cos(2 * math.pi * 2 * t / 5))
    torch.testing.assert_close(code[:, 5], -torch.sin(2 * math.pi * 1.00005 * t / 5), rtol=0, atol=1e-3)
    assert positional_code(1, 3, dtype=torch.float32, device=torch.device("cpu")).isfinite().all()


def test_filter_has_one_channel_per_filter_and_width_and_no_decay():
    torch.manual_seed(0)
    module = ImplicitFilter(FilterConfig(bands=4, inner_width=16), num_filters=3, width=5)
    values = module(64).detach()
    assert values.shape == (3, 5, 64)
    assert values.is_contiguous()
    # The filter has no decay window, which would make its last quarter much smaller than its first quarter.
    first, last = values[..., :16].abs().mean(), values[..., -16:].abs().mean()
    assert 0.3 < float(last / first) < 3


@pytest.mark.parametrize("num", [1, 2, 7, 8])
def test_a_symmetric_filter_is_the_same_both_ways_round_the_circle(num):
    torch.manual_seed(1)
    module = ImplicitFilter(FilterConfig(inner_width=4, symmetric=True), 2, 3).double()
    values = module(num)
    torch.testing.assert_close(values, values[..., -torch.arange(num) % num], rtol=1e-12, atol=1e-14)
    weight, features = module.factors(num)
    torch.testing.assert_close(weight @ features, values, rtol=1e-12, atol=1e-12)
    rows = module.at(torch.arange(num), torch.full((num,), num))
    torch.testing.assert_close(rows.t().view(2, 3, num), values, rtol=1e-12, atol=1e-12)
    one_way = ImplicitFilter(FilterConfig(inner_width=4), 2, 3).double()
    one_way.load_state_dict(module.state_dict())
    half = num // 2 + 1
    if num > 3:
        assert not torch.allclose(one_way(num), values)
    torch.testing.assert_close(one_way(num)[..., :half], values[..., :half], rtol=1e-12, atol=1e-12)


def test_filter_matches_its_formula():
    torch.manual_seed(1)
    module = ImplicitFilter(FilterConfig(bands=2, inner_width=4, num_inner_layers=1, frequency=3.0), 2, 3).double()
    z = positional_code(7, 2, dtype=torch.float64, device=torch.device("cpu"))
    linear_1, _, linear_2, _ = module.inner
    z = torch.sin(3 * (z @ linear_1.weight.t() + linear_1.bias))
    z = torch.sin(3 * (z @ linear_2.weight.t() + linear_2.bias))
    expected = (z @ module.out.weight.t()).t().reshape(2, 3, 7)
    torch.testing.assert_close(module(7), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("scale", "divisor"), [("none", 1.0), ("length", 50.0), ("sqrt_length", 50.0**0.5)])
def test_scale_divides(scale, divisor):
    torch.manual_seed(2)
    plain = ImplicitFilter(FilterConfig(), 2, 3)
    scaled = ImplicitFilter(FilterConfig(scale=scale), 2, 3)
    scaled.load_state_dict(plain.state_dict())
    torch.testing.assert_close(scaled(50) * divisor, plain(50))


def test_autocast_does_not_touch_the_filter():
    torch.manual_seed(3)
    module = ImplicitFilter(FilterConfig(bands=8), 2, 3)
    plain = module(5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(5000), plain)


def test_frequency_trains_only_when_asked():
    for trainable in (True, False):
        module = ImplicitFilter(FilterConfig(trainable_frequency=trainable), 1, 2)
        module(9).sum().backward()
        grads = [p.grad is not None for name, p in module.named_parameters() if "frequency" in name]
        assert grads == [trainable] * 3


def test_a_frequency_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="frequency must be positive and finite, got nan"):
        FilterConfig(frequency=float("nan"))


def test_convolution_gradients():
    generator = torch.Generator().manual_seed(0)
    for num in (1, 2, 7, 8, 67):  # 67: primes of 64 or more are padded
        f, u = torch.randn(2, 2, num, dtype=torch.float64, generator=generator).requires_grad_().unbind()
        assert torch.autograd.gradcheck(circular_convolve, (f, u))
