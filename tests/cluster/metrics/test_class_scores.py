"""Compares scores of classes with references that do not use scikit-learn, and tests the shape of the learning-rate schedule."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.metrics.class_scores import SplitScores, roc_auc
from graphmill.cluster.training.schedule import rate_factor


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_roc_auc_is_the_share_of_ordered_pairs(rows):
    score = torch.tensor([float(s) for s, _ in rows])
    positive = torch.tensor([p for _, p in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a, p in rows if p for b, q in rows if not q]
    result = roc_auc(score, positive)
    if pairs:
        assert result == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    else:
        assert math.isnan(result)


def test_split_scores_ignore_unlabelled_roots_and_add_up_over_batches():
    scores = SplitScores(torch.device("cpu"), binary=True)
    scores.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    scores.update(torch.tensor([[0.0, 3.0], [5.0, 0.0]]), torch.tensor([1, -1]))
    scores.update(torch.empty(0, 2), torch.empty(0, dtype=torch.int64))
    result = scores.compute()
    assert result["count"] == 3
    assert result["accuracy"] == pytest.approx(2 / 3)
    assert result["rocauc"] == 1.0
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(1)), math.log1p(math.exp(-3))]
    assert result["loss"] == pytest.approx(sum(expected) / 3)


def test_scores_that_the_roots_do_not_define_are_left_out():
    def scores(*labels: int) -> set[str]:
        found = SplitScores(torch.device("cpu"), binary=True)
        found.update(torch.zeros(len(labels), 2), torch.tensor(labels))
        return set(found.compute())

    assert scores(0, 1) == {"count", "accuracy", "loss", "rocauc"}
    assert scores(1, 1) == {"count", "accuracy", "loss"}
    assert scores(-1) == {"count"}


def test_rate_factor_warms_up_then_falls_to_its_floor():
    factors = [rate_factor(step, 100, 10, "cosine") for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == 1.0
    assert factors[10] == 1.0
    assert all(a >= b for a, b in pairwise(factors[10:]))
    assert rate_factor(100, 100, 10, "cosine") == pytest.approx(0.0)
    assert rate_factor(55, 100, 10, "linear") == pytest.approx(0.5)
    assert rate_factor(99, 100, 0, "constant") == 1.0
    assert rate_factor(100, 100, 10, "linear", floor=0.1) == pytest.approx(0.1)
    assert rate_factor(25, 100, 0, "poly", power=2.0) == pytest.approx(0.75**2)
    assert rate_factor(25, 100, 0, "poly", power=1.0) == rate_factor(25, 100, 0, "linear")
    assert rate_factor(100, 100, 0, "poly", floor=0.1, power=3.0) == pytest.approx(0.1)
