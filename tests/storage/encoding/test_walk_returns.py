"""Compares return probabilities of random walks with powers of the dense matrix."""

import numpy as np
import pytest

import graphmill.storage.encoding.walk_returns
from graphmill.core.errors import ConfigError
from graphmill.storage.encoding.walk_returns import return_probabilities


@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_diagonals_of_powers(steps):
    rng = np.random.default_rng(0)
    # with parallel edges, self-loops and nodes without edges
    source, destination = rng.integers(0, 35, 150), rng.integers(0, 40, 150)
    adjacency = np.zeros((40, 40))
    adjacency[source, destination] = 1
    walk = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)
    expected = np.stack([np.diag(np.linalg.matrix_power(walk, step + 1)) for step in range(steps)], axis=1)
    found = return_probabilities(source, destination, 40, steps)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_refusals(monkeypatch):
    monkeypatch.setattr(graphmill.storage.encoding.walk_returns, "MAX_WORK", 10)
    with pytest.raises(ConfigError, match="at most 1e\\+01"):
        return_probabilities(np.zeros(2, np.int64), np.zeros(2, np.int64), 3, 2)
