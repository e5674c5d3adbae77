"""Tests GECO over batches of graphs. Each graph has a separate, exact circular convolution. Also tests the order of nodes, the interface, and learning."""

from dataclasses import replace

import pytest
import torch

from graphmill.models.geco.graphs import Convolutions, GECOGraphs, graph_order
from graphmill.models.geco.network import GlobalBlock, param_groups
from graphmill.models.geco.options import GECOGraphsConfig
from graphmill.models.gps.options import GPSOptions, PositionOptions
from graphmill.models.operators.filters import ImplicitFilter, circular_convolve
from graphmill.models.options.features import Features
from graphmill.models.options.filters import FilterConfig
from graphmill.models.primitives.node_order import Order
from tests.packed_graphs import alone, rings
from tests.recipe_options import MOLECULES, options_of

BATCHES = pytest.mark.parametrize("sizes", [(4, 1, 7), (3, 3, 3, 2, 2, 1, 3), (5,), (0, 6, 0), (6, 0)])


def random_filter(scale: str = "none") -> ImplicitFilter:
    torch.manual_seed(0)
    return ImplicitFilter(FilterConfig(inner_width=8, scale=scale), 2, 3).double()


@pytest.mark.parametrize("scale", ["none", "length", "sqrt_length"])
def test_filter_rows_are_the_filters_of_each_length(scale: str) -> None:
    filters = random_filter(scale)
    for length in (1, 2, 7):
        rows = filters.at(torch.arange(length), torch.full((length,), length))
        torch.testing.assert_close(rows.t().view(2, 3, length), filters(length), rtol=1e-12, atol=1e-13)


@BATCHES
def test_each_graph_is_convolved_circularly_over_its_own_length(sizes: tuple[int, ...]) -> None:
    filters, graphs = random_filter(), rings(sizes)
    convolutions, signal = Convolutions(graphs), torch.randn(sum(sizes), 3, dtype=torch.float64)
    out = convolutions.collect(
        convolutions.convolve_one(convolutions.filters(filters)[1], convolutions.spread(signal, (3,)))
    )
    expected = [circular_convolve(filters(len(u))[1], u.t()).t() for u in signal.split(sizes)]
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-12, atol=1e-13)


@BATCHES
@pytest.mark.parametrize("skip", [True, False])
def test_the_block_is_the_single_graph_block_graph_by_graph(sizes: tuple[int, ...], skip: bool) -> None:
    torch.manual_seed(0)
    block = GlobalBlock(6, 4, 2, FilterConfig(inner_width=8), skip).double()
    graphs = rings(sizes)
    h = torch.randn(sum(sizes), 6, dtype=torch.float64, requires_grad=True)
    order = graph_order(graphs, 3)
    out = block(h, order, Convolutions(graphs))
    expected, start = [], 0
    for rows in h.split(sizes):
        local = order.order_N[start : start + len(rows)] - start
        expected.append(block(rows, Order.of(local)))
        start += len(rows)
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-11, atol=1e-12)
    weight = torch.randn_like(out)
    names = [name for name, _ in block.named_parameters()]
    one_grads = torch.autograd.grad((torch.cat(expected) * weight).sum(), [h, *block.parameters()])
    many_grads = torch.autograd.grad((out * weight).sum(), [h, *block.parameters()])
    for name, got, want in zip(["h", *names], many_grads, one_grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11, msg=name)


def test_orders() -> None:
    graphs = rings((6, 6, 0, 9))
    order = graph_order(graphs, 1)
    assert torch.equal(order.order_N[order.inverse_N], torch.arange(21))
    assert torch.equal(graphs.graph_of_node[order.order_N], graphs.graph_of_node)
    assert torch.equal(order.order_N[:6], order.order_N[6:12] - 6)  # graphs of the same size have the same order
    assert torch.equal(order.order_N[12:] - 12, graph_order(rings((9,)), 1).order_N)
    assert not torch.equal(order.order_N[12:].argsort().argsort()[:6], order.order_N[:6].argsort().argsort())
    assert not torch.equal(graph_order(graphs, 2).order_N, order.order_N)
    assert not torch.equal(graph_order(graphs, 1, epoch=1).order_N, order.order_N)


def test_permanent_ids_fix_the_order_however_the_nodes_are_packed() -> None:
    ids, shuffle = torch.arange(100, 109), torch.randperm(9)
    order = graph_order(replace(rings((9,)), node_id=ids), 1).order_N
    shuffled = graph_order(replace(rings((9,)), node_id=ids[shuffle]), 1).order_N
    assert torch.equal(ids[order], ids[shuffle][shuffled])


def config(local: str = "gated_gcn", **options) -> GECOGraphsConfig:
    defaults = {
        "node": Features(categories=(4, 4)),
        "edge": Features(categories=(3,)) if local == "gated_gcn" else Features(),
        "out_dim": 3,
        "width": 12,
        "num_layers": 2,
        "filter": FilterConfig(inner_width=8),
        "layer": GPSOptions(local=local),
    }
    return GECOGraphsConfig(**defaults | options)


def model_of(settings: GECOGraphsConfig) -> GECOGraphs:
    torch.manual_seed(0)
    model = GECOGraphs(settings).double()
    with torch.no_grad():
        model(rings((6, 5, 9)))
    return model.eval()


LOCAL = pytest.mark.parametrize("local", ["gated_gcn", "gcn", "none"])


@LOCAL
@pytest.mark.parametrize("permutation", ["static", "dynamic", "none"])
def test_a_graph_does_not_see_its_batch_mates(local: str, permutation: str) -> None:
    graphs = rings((4, 1, 0, 9, 4))
    model = model_of(config(local, permutation=permutation, position=PositionOptions("random_walk", 4)))
    out = model(graphs, epoch=2)
    for b in range(5):
        torch.testing.assert_close(model(alone(graphs, b), epoch=2)[0], out[b], rtol=1e-9, atol=1e-10)


@LOCAL
def test_nodes_with_ids_may_come_in_any_order_and_without_may_not(local: str) -> None:
    graphs, shuffle = replace(rings((9,)), node_id=torch.arange(50, 59)), torch.randperm(9)
    place = torch.argsort(shuffle)
    moved = replace(graphs, x=graphs.x[shuffle], node_id=graphs.node_id[shuffle], edge_index=place[graphs.edge_index])
    model = model_of(config(local, head_layers=1))  # in a deeper head, all units may be inactive
    torch.testing.assert_close(model(moved), model(graphs), rtol=1e-10, atol=1e-11)
    bare = model(replace(graphs, node_id=None))
    assert not torch.allclose(model(replace(moved, node_id=None)), bare, rtol=1e-6, atol=1e-6)


def test_the_epoch_matters_to_the_dynamic_order_only() -> None:
    graphs = rings((9, 7))
    for permutation in ("static", "dynamic"):
        model = model_of(config(permutation=permutation))
        assert torch.equal(model(graphs, epoch=0), model(graphs, epoch=1)) == (permutation == "static")


@LOCAL
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", [(), (0,), (0, 0), (1,), (1, 1), (0, 3)])
def test_small_and_empty_batches(local: str, training: bool, sizes: tuple[int, ...]) -> None:
    model = model_of(config(local)).train(training)
    out = model(rings(sizes))
    assert out.shape == (len(sizes), 3)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_tasks() -> None:
    graphs = replace(rings((5, 8)), root_index=torch.tensor([7, 0]))
    nodes = model_of(config(task="node"))
    torch.testing.assert_close(nodes(graphs), nodes(replace(graphs, root_index=None))[[7, 0]])
    assert model_of(config(task="link"))(graphs).shape == (13, 12)


def test_bfloat16_autocast() -> None:
    model, graphs = model_of(config()).float(), rings((5, 8, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(graphs)
    torch.testing.assert_close(out.float(), model(graphs), rtol=0.1, atol=0.1)


def test_its_filters_have_a_group_of_their_own() -> None:
    model = GECOGraphs(options_of("defaults/graphs-geco", **MOLECULES))
    groups = {group["name"]: group for group in param_groups(model, 1e-3, 0.1, filter_lr=1e-2)}
    assert len(groups["filters"]["params"]) == sum("glob.filter" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("local", ["gated_gcn", pytest.param("none", marks=pytest.mark.long)])
def test_it_fits_a_few_graphs(local: str) -> None:
    torch.manual_seed(0)
    graphs, target = rings(tuple(range(4, 20))), torch.randn(16, 1)
    options = {"position": PositionOptions("random_walk", 8), "filter": FilterConfig(inner_width=16, scale="length")}
    model = GECOGraphs(config(local, out_dim=1, width=32, layer=GPSOptions(local=local, mlp="residual"), **options))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        loss = (model(graphs) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
