"""Tests sums per group, and spreading a group's value to its members. Values equal a loop, gradients agree; groups may be empty, and results are
deterministic."""

import pytest
import torch

from graphmill.models.primitives import segments
from graphmill.models.primitives.segments import Grouping

GROUP = torch.tensor([3, 0, 3, 1, 3, 0])


@pytest.mark.parametrize("trailing", [(2,), (2, 3), ()])
def test_sum_mean_and_spread_match_a_loop(trailing: tuple[int, ...]) -> None:
    grouping = Grouping(GROUP, 5)
    rows = torch.randn(6, *trailing, dtype=torch.float64)
    members = [rows[group == GROUP] for group in range(5)]
    torch.testing.assert_close(grouping.sum(rows), torch.stack([m.sum(0) for m in members]))
    torch.testing.assert_close(grouping.mean(rows), torch.stack([m.sum(0) / max(len(m), 1) for m in members]))
    values = torch.randn(5, *trailing, dtype=torch.float64)
    torch.testing.assert_close(grouping.spread(values), values[GROUP])


@pytest.mark.parametrize("grouping", [Grouping(GROUP, 5), Grouping(torch.zeros(6, dtype=torch.long), 1)])
def test_gradients_of_first_and_second_order(grouping: Grouping) -> None:
    rows = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(grouping.num_groups, 2, dtype=torch.float64, requires_grad=True)
    for function, argument in ((grouping.sum, rows), (grouping.spread, values)):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x).square(), argument)
        assert torch.autograd.gradgradcheck(lambda x, f=function: f(x).square(), argument)


def test_sorted_groups_take_their_bounds_as_given() -> None:
    group = torch.tensor([0, 0, 2, 2, 2])
    rows = torch.randn(5, 3)
    bounded = Grouping(group, 4, ptr=torch.tensor([0, 2, 2, 5, 5]))
    torch.testing.assert_close(bounded.sum(rows), Grouping(group, 4).sum(rows))
    assert bounded.size_S.tolist() == [2, 0, 3, 0]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_carrying_is_a_weighted_sum_of_what_is_spread(is_sorted: bool, monkeypatch) -> None:
    monkeypatch.setattr(segments, "_BLOCK", 4)  # so the gradient of weights needs several blocks
    group = torch.tensor([0, 0, 2, 2, 2, 3])
    to = Grouping(group, 5, ptr=torch.tensor([0, 2, 2, 5, 6, 6])) if is_sorted else Grouping(group.flip(0), 5)
    source = Grouping(GROUP, 5)
    values = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        source.carry(values, weight, to), to.sum(weight.unsqueeze(2) * source.spread(values)), rtol=1e-12, atol=1e-12
    )
    assert torch.autograd.gradcheck(lambda x, w: source.carry(x, w, to).square(), (values, weight))


def test_carrying_in_half_precision_adds_in_single() -> None:
    source, to = Grouping(torch.zeros(4096, dtype=torch.long), 1), Grouping(torch.arange(4096) % 2, 2)
    values = torch.ones(1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    total = source.carry(values, torch.ones(4096, 1, dtype=torch.bfloat16), to)
    assert total.dtype == torch.bfloat16
    assert total.flatten().tolist() == [2048.0, 2048.0]
    total.sum().backward()
    assert values.grad.item() == 4096
    wide = source.carry(values, torch.ones(4096, 1), to)  # float32 weights, as under autocast
    assert wide.dtype == torch.float32


def test_weights_of_other_entries_are_refused() -> None:
    to = Grouping(GROUP, 5)
    with pytest.raises(ValueError, match="one weight per entry of both groupings, got 7 weights, 6 and 6 entries"):
        to.carry(torch.zeros(5, 1, 2), torch.zeros(7, 1), to)
    with pytest.raises(ValueError, match="got 6 weights, 6 and 5 entries"):
        to.carry(torch.zeros(5, 1, 2), torch.zeros(6, 1), Grouping(GROUP[:5], 5))


def test_nothing_to_carry() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert Grouping(none, 3).carry(torch.ones(3, 2, 4), torch.ones(0, 2), Grouping(none, 5)).shape == (5, 2, 4)


def test_nothing_to_sum_and_no_group() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    assert Grouping(empty, 3).sum(torch.zeros(0, 2)).tolist() == [[0, 0]] * 3
    assert Grouping(empty, 0).sum(torch.zeros(0, 2)).shape == (0, 2)
    assert Grouping(empty, 3).spread(torch.ones(3, 2)).shape == (0, 2)


def test_half_precision_adds_in_single() -> None:
    rows = torch.full((4096, 1), 1.0, dtype=torch.bfloat16)
    grouping = Grouping(torch.arange(4096) % 2, 2)
    assert grouping.sum(rows).tolist() == [[2048.0], [2048.0]]  # a running bfloat16 sum of ones would stop at 256


def test_a_group_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"groups must lie in \[0, 3\), got 0 to 3"):
        Grouping(GROUP, 3)
    with pytest.raises(ValueError, match="one row per entry"):
        Grouping(GROUP, 5).sum(torch.zeros(5, 2))
