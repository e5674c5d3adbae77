"""Compares GatedGCN, with its distance gate, with loops over edges. Graphs are directed or have isolated nodes or no edges."""

import pytest
import torch
from torch import Tensor

from graphmill.models.gps.gated_gcn import GatedGCN
from graphmill.models.primitives.graphs import Graphs

# A directed graph with unsorted edges. It has parallel edges 0 → 1, a self-loop at node 2, and an isolated node 4.
EDGES = torch.tensor([[0, 3, 0, 2, 1, 2], [1, 0, 1, 2, 3, 0]])


def graphs_of(edges: Tensor = EDGES, n: int = 5) -> Graphs:
    return Graphs(torch.tensor([0, n]), edges, node_id=torch.arange(n))


def slow_gated(layer: GatedGCN, x: Tensor, e: Tensor, graphs: Graphs, p: Tensor | None) -> tuple[Tensor, Tensor]:
    a, d, b, s = (layer.node(x)).chunk(4, dim=1)
    source, destination = graphs.edge_index
    gate = layer.edge(e) + d[destination] + s[source]
    update = []
    for node in range(len(x)):
        top, bottom = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        for k in (destination == node).nonzero()[:, 0]:
            sigma = torch.sigmoid(gate[k])
            if layer.distance is not None:
                sigma = sigma * layer.distance((p[source[k]] - p[destination[k]]).square().sum().view(1, 1))[0]
            top, bottom = top + sigma * b[source[k]], bottom + sigma
        update.append(a[node] + top / (bottom + 1e-6))
    return torch.relu(layer.norm_x(torch.stack(update))), e + torch.relu(layer.norm_e(gate))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_gated_gcn_is_the_loop_over_edges(training: bool, gate: bool) -> None:
    torch.manual_seed(0)
    layer = GatedGCN(6, distance_gate=gate).double().train(training)
    graphs, x, e = graphs_of(), torch.randn(5, 6).double(), torch.randn(6, 6).double()
    p = torch.randn(5, 3).double() if gate else None
    expected = slow_gated(layer, x, e, graphs, p)
    for got, want in zip(layer(x, e, graphs, p), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_the_order_of_the_edges_does_not_matter_and_that_of_the_nodes_is_followed() -> None:
    torch.manual_seed(0)
    layer = GatedGCN(4).double()
    x, e = torch.randn(5, 4).double(), torch.randn(6, 4).double()
    out = layer(x, e, graphs_of())[0]
    shuffle = torch.randperm(6)
    torch.testing.assert_close(layer(x, e[shuffle], graphs_of(EDGES[:, shuffle]))[0], out)
    order = torch.randperm(5)
    place = torch.argsort(order)
    torch.testing.assert_close(layer(x[order], e, graphs_of(place[EDGES]))[0], out[order])


def test_gradients() -> None:
    torch.manual_seed(0)
    layer = GatedGCN(2).double().eval()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    e = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, e: layer(x, e, graphs_of()), (x, e))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_no_edges(n: int, training: bool) -> None:
    graphs = graphs_of(torch.zeros(2, 0, dtype=torch.long), n)
    x, e = GatedGCN(4).train(training)(torch.randn(n, 4), torch.zeros(0, 4), graphs)
    assert x.shape == (n, 4)
    assert torch.isfinite(x).all()
    assert e.shape == (0, 4)
    assert torch.isfinite(GatedGCN(4).norm_e.running_mean).all()


def test_edges_outside_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="renumber the edges"):
        GatedGCN(4)(torch.randn(3, 4), torch.randn(2, 4), graphs_of(EDGES[:, 4:], 3))
