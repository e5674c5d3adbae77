"""Compares degrees and order numbers with networkx."""

import torch

from graphmill.models.encodings.degree import degrees, inverse_degrees, inverse_orders, log_degrees, log_orders
from tests.packed_graphs import MIXED, packed


def test_degrees():
    graphs = packed(*MIXED)
    out_degree = [g.out_degree(v) if g.is_directed() else g.degree(v) for g in MIXED for v in range(len(g))]
    assert degrees(graphs).tolist() == out_degree
    torch.testing.assert_close(log_degrees(graphs)[:, 0], torch.tensor(out_degree).float().log1p())
    assert inverse_degrees(graphs).tolist() == torch.tensor([1 / d if d else 0 for d in out_degree]).tolist()


def test_orders():
    graphs = packed(*MIXED)
    orders = torch.tensor([len(g) for g in MIXED for _ in range(len(g))]).double()
    torch.testing.assert_close(log_orders(graphs, torch.float64)[:, 0], orders.log1p())
    assert inverse_orders(graphs).tolist() == torch.tensor([1 / len(g) if len(g) else 0 for g in MIXED]).tolist()
