"""Sparse Adagrad and Adam: update only the rows that a step has touched, and the state of these rows.

The formulas are those of `torch.optim.Adagrad` on sparse gradients and of `torch.optim.SparseAdam`, elementwise in float32, with a row's gradient g, its
weights w and the step's rate r:

    Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011):  s ← s + g²;  w ← w - r · g / (√s + 1e-10)
    Adam, lazy (Kingma and Ba, arXiv:1412.6980):       m ← m + (1 - β₁)(g - m);  v ← v + (1 - β₂)(g² - v);
                                                       w ← w - r · √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + 1e-8)

with β₁ = 0.9, β₂ = 0.999. t counts all steps of the run from 1, including steps that did not touch the row. Every CPU rounds float32 additions, products,
quotients and square roots in the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

_BETA1, _BETA2 = 0.9, 0.999


@dataclass(frozen=True)
class SparseOptimizer:
    """A sparse optimizer. `update(step, rate, gradient, weight, *states)` changes weight and states in place; each is float32 [n, width]."""

    num_states: int
    """Number of state values per weight; each is initially 0."""
    update: Callable[..., None]


def _adagrad(step: int, rate: float, gradient: np.ndarray, weight: np.ndarray, squares: np.ndarray) -> None:
    squares += gradient * gradient
    weight -= rate * (gradient / (np.sqrt(squares) + 1e-10))


def _adam(
    step: int, rate: float, gradient: np.ndarray, weight: np.ndarray, mean: np.ndarray, square: np.ndarray
) -> None:
    count = step + 1
    mean += (1 - _BETA1) * (gradient - mean)
    square += (1 - _BETA2) * (gradient * gradient - square)
    weight -= rate * (1 - _BETA2**count) ** 0.5 / (1 - _BETA1**count) * (mean / (np.sqrt(square) + 1e-8))


SPARSE_OPTIMIZERS: Mapping[str, SparseOptimizer] = {
    "adagrad": SparseOptimizer(1, _adagrad),
    "adam": SparseOptimizer(2, _adam),
}
