"""Compares the head for pairs of nodes with a loop over pairs: the logits, and each pair's rank within its graph."""

import pytest
import torch

from graphmill.models.ends.pair_head import PairHead
from graphmill.models.primitives.graphs import Graphs


@pytest.mark.parametrize("ties", [False, True])
def test_logits_and_ranks_are_those_of_a_loop(ties):
    torch.manual_seed(0)
    sizes = [4, 1, 7]
    node_ptr = torch.tensor([0, 4, 5, 12])
    graphs = Graphs(node_ptr=node_ptr, edge_index=torch.zeros(2, 0, dtype=torch.long), x=torch.zeros(12, 1))
    x_nD = torch.randn(12, 6)
    if ties:
        x_nD = torch.randint(-1, 2, (12, 6)).float()  # products of small integers are exact
    pair_2P = torch.tensor([[0, 1, 3, 4, 5, 8, 11], [2, 1, 0, 4, 9, 7, 6]])
    head = PairHead(6)
    if ties:
        torch.nn.init.eye_(head.linear.weight)
        torch.nn.init.zeros_(head.linear.bias)
    z_nD = head.linear(x_nD)
    expected = []
    for u, v in pair_2P.T.tolist():
        first = next(start for start, size in zip(node_ptr.tolist(), sizes, strict=False) if start <= u < start + size)
        of_graph = range(first, first + sizes[node_ptr.tolist().index(first)])
        score = [float(z_nD[u] @ z_nD[w]) for w in of_graph if w != v]
        own = float(z_nD[u] @ z_nD[v])
        close = [abs(value - own) < 1e-6 for value in score]
        higher = sum(value > own and not same for value, same in zip(score, close, strict=True))
        expected.append([own, higher, sum(close)])
    trained = head.train()(x_nD, graphs, pair_2P)
    assert trained.shape == (7, 1)
    scores = head.eval()(x_nD, graphs, pair_2P)
    torch.testing.assert_close(scores, torch.tensor(expected))
    torch.testing.assert_close(trained[:, 0], scores[:, 0])


def test_no_pairs():
    graphs = Graphs(node_ptr=torch.tensor([0, 3]), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert PairHead(4).eval()(torch.randn(3, 4), graphs, torch.zeros(2, 0, dtype=torch.long)).shape == (0, 3)
