"""Random numbers depend on a key and an element's index, and equal SplitMix64's. A range may start anywhere. Numbers show no pattern. A pretended GPU gives the
same."""

import pytest
import torch

from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.random_numbers import (
    draw_key,
    gaussians,
    levels,
    mix_int,
    signed,
    signs,
    uniform,
    words,
)
from tests.pretend_cuda import pretend_cuda

GOLDEN = 0x9E3779B97F4A7C15


def test_words_are_splitmix64():
    key, start = 11, 5
    state = mix_int(key)
    expected = [signed(mix_int((state + GOLDEN * (start + i - 1)) % (1 << 64))) for i in range(6)]
    assert words(key, start, 6).tolist() == expected
    long = words(key, 0, 40_000)  # longer than one block
    assert torch.equal(words(key, 16_380, 10), long[16_380:16_390])
    assert torch.unique(long).numel() == 40_000
    assert words(key, 3, 0).shape == (0,)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 65_533])
def test_elements_do_not_depend_on_where_a_range_begins(start):
    whole = levels(7, 0, 70_000)
    assert torch.equal(levels(7, start, 300), whole[start : start + 300])


def test_bits_are_fair_and_independent_of_each_other_and_of_the_next_words():
    drawn = words(1, 0, 100_000)
    bits = torch.stack([(drawn >> i) & 1 for i in range(64)], 1).double() - 0.5
    assert bits.mean(0).abs().max() < 5 * 0.5 / 100_000**0.5
    for lag in (0, 1, 2):
        together = bits[: len(bits) - lag].T @ bits[lag:] / len(bits)
        if lag == 0:
            together.fill_diagonal_(0)
        assert together.abs().max() < 5.5 * 0.25 / 100_000**0.5, lag
    near = torch.stack([(words(key, 0, 20_000) & 1).double() - 0.5 for key in range(64)])
    assert (near @ near.T / 20_000).fill_diagonal_(0).abs().max() < 5.5 * 0.25 / 20_000**0.5, "keys are as good"


def test_laws():
    torch.manual_seed(0)
    assert abs(float(signs((300, 300)).mean())) < 5 / 300
    drawn = uniform((200, 500))
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert (torch.histc(drawn, 20, 0, 1) - 5000).abs().max() < 5 * 5000**0.5
    normal = gaussians((100_000,), dtype=torch.float64)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs(float((normal**power).mean()) - moment) < 0.1
    assert gaussians((0, 3)).shape == uniform((0, 3)).shape == signs((0, 3)).shape == (0, 3)


def test_the_keys_come_from_the_default_generator():
    torch.manual_seed(3)
    first = draw_key()
    assert first != draw_key()
    torch.manual_seed(3)
    assert first == draw_key()


def test_a_gpu_draws_the_same_and_leaves_its_generator_alone():
    x = torch.ones(1000, 33)
    torch.manual_seed(4)
    here = [Dropout(0.3)(x), uniform((7, 5)), signs((9,)), gaussians((8, 3))]
    with pretend_cuda() as pretended:
        torch.manual_seed(4)
        there = [Dropout(0.3)(x.to("cuda")), *(draw("cuda") for draw in _draws())]
        assert all(drawn.is_cuda for drawn in there)
        there = [drawn.cpu() for drawn in there]
        assert pretended.hidden_draws == []
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other)


def _draws():
    return (lambda d: uniform((7, 5), d), lambda d: signs((9,), d), lambda d: gaussians((8, 3), d))
