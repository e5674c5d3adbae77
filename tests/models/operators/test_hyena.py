"""Compares two operators with loops in float64: Hyena over a graph's nodes, and Hyena's short convolution in GECO."""

import math
from dataclasses import replace

import pytest
import torch

from graphmill.models.geco.graphs import GECOGraphs, GECOOperator, graph_order
from graphmill.models.geco.hyena import HyenaBlock, ShortConvolution
from graphmill.models.geco.network import GECO
from graphmill.models.geco.options import GECOConfig, GECOGraphsConfig
from graphmill.models.gps.options import GPSOptions
from graphmill.models.options.features import Features
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.node_order import Order


def slow_short(short: ShortConvolution, x_ND: torch.Tensor) -> torch.Tensor:
    # The last coefficient multiplies the node itself.
    weight, bias = short.convolution.weight[:, 0], short.convolution.bias
    rows = []
    for t in range(len(x_ND)):
        rows.append(bias + sum(weight[:, short.size - 1 - j] * x_ND[t - j] for j in range(min(t + 1, short.size))))
    return torch.stack(rows)


def slow_hyena(block: HyenaBlock, h_ND: torch.Tensor) -> torch.Tensor:
    num, width = h_ND.shape
    rows = slow_short(block.short, block.projection(h_ND))
    first, second, value = rows.split(width, 1)
    u = second * value
    filters = block.filter(num)[0]
    y = []
    for t in range(num):
        total = block.skip_KD[0] * u[t]
        for s in range(t + 1):
            slow, fast = -math.log(1e-2) / 1.5, -math.log(1e-2) / 0.3
            decay = torch.tensor([slow + (fast - slow) * c / (width - 1) for c in range(width)], dtype=h_ND.dtype)
            window = torch.exp(-decay * ((t - s) / (num - 1))) + 0.05
            total = total + filters[:, t - s] * window * u[s]
        y.append(first[t] * total)
    return block.out(torch.stack(y))


@pytest.mark.parametrize("ordered", [False, True])
def test_hyena_is_its_formula(ordered):
    torch.manual_seed(0)
    block = HyenaBlock(6, FilterConfig(inner_width=8)).double()
    torch.nn.init.normal_(block.skip_KD)
    h = torch.randn(11, 6, dtype=torch.float64)
    order = torch.randperm(11) if ordered else torch.arange(11)
    expected = torch.empty_like(h)
    expected[order] = slow_hyena(block, h[order])
    # Errors are those of float32, because the window is a float32 buffer.
    torch.testing.assert_close(block(h, Order.of(order) if ordered else None), expected, rtol=1e-5, atol=1e-7)


def test_a_later_node_does_not_reach_an_earlier_one():
    torch.manual_seed(0)
    block = HyenaBlock(4, FilterConfig(inner_width=8)).double()
    h = torch.randn(9, 4, dtype=torch.float64)
    changed = torch.cat([h[:6], torch.randn(3, 4, dtype=torch.float64)])
    torch.testing.assert_close(block(h, None)[:6], block(changed, None)[:6])
    assert not torch.allclose(block(h, None)[6:], block(changed, None)[6:])


def test_a_network_of_it_sees_no_edge_and_trains():
    torch.manual_seed(0)
    model = GECO(GECOConfig(in_dim=3, out_dim=2, width=8, num_layers=2, block="hyena"))
    x, edges = torch.randn(7, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    graphs = [Graphs(torch.tensor([0, 7]), each, node_id=torch.arange(7)) for each in (edges, edges[:, :0])]
    out = [model.eval()(x, each.adjacency) for each in graphs]
    assert torch.equal(*out)
    model.train()(x, graphs[0].adjacency).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    for num in (0, 1):
        assert model.eval()(
            x[:num], Graphs(torch.tensor([0, num]), edges[:, :0], node_id=torch.arange(num)).adjacency
        ).shape == (num, 2)


def test_hyena_takes_no_local_block():
    with pytest.raises(ValueError, match="hyena has no local block"):
        GECOConfig(block="hyena", local=LocalOptions(residual="linear"))
    assert GECOConfig(block="hyena").sharding is None
    assert GECOConfig().sharding == "rows"


@pytest.mark.parametrize("size", [1, 3, 10])
def test_short_convolution_in_place_of_neighbors(size):
    """The short convolution runs over the nodes of each graph, in the given order. After it comes GECO's usual global block."""
    torch.manual_seed(0)
    sizes = [4, 1, 7]
    config = GECOGraphsConfig(width=6, short_convolution=size, layer=GPSOptions(local="none"))
    operator = GECOOperator(config).double()
    graphs = Graphs(torch.tensor([0, 4, 5, 12]), torch.zeros(2, 0, dtype=torch.long), node_id=torch.arange(12) * 7)
    x, order = torch.randn(12, 6, dtype=torch.float64), graph_order(graphs, 3)
    got = operator._in_order(operator.short, x, graphs, order)
    place = order.sort(torch.arange(12, dtype=torch.float64).unsqueeze(1))[:, 0].long()
    expected = torch.empty_like(x)
    for part in place.split(sizes):
        expected[part] = slow_short(operator.short, x[part])
    torch.testing.assert_close(got, expected)


def test_a_network_with_short_convolutions_keeps_graphs_apart_and_trains():
    torch.manual_seed(0)
    node = Features(categories=(4,))
    model = GECOGraphs(
        GECOGraphsConfig(node=node, width=8, num_layers=2, short_convolution=5, layer=GPSOptions(local="gcn"))
    )
    edges = torch.tensor([[0, 1, 4, 5], [1, 0, 5, 4]])
    graphs = Graphs(torch.tensor([0, 4, 9]), edges, x=torch.randint(4, (9, 1)), node_id=torch.arange(9))
    second = Graphs(torch.tensor([0, 5]), edges[:, 2:] - 4, x=graphs.x[4:], node_id=graphs.node_id[4:])
    model.eval()
    torch.testing.assert_close(model(second)[0], model(graphs)[1], rtol=1e-4, atol=1e-5)
    model.train()(graphs).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model(replace(graphs, node_ptr=torch.tensor([0, 9, 9]))).shape == (2, 1)
