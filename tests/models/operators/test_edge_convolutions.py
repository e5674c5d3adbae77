"""Compares GINE, GNN+'s GCN and GNN+'s layer with their formulas, edge by edge in float64."""

import pytest
import torch

from graphmill.models.gps.layer import GPSLayer
from graphmill.models.gps.options import GPSOptions
from graphmill.models.operators.edge_convolutions import GCNE, GINE
from graphmill.models.options.features import Features
from graphmill.models.options.local import LocalOptions
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.network import Primphormer
from graphmill.models.primphormer.options import PrimphormerConfig

N, E, D = 6, 11, 4


def inputs(weighted=False):
    torch.manual_seed(0)
    weight = torch.rand(E, dtype=torch.float64) if weighted else None
    graphs = Graphs(torch.tensor([0, N]), torch.randint(0, N, (2, E)), edge_coefficient=weight)
    return torch.randn(N, D, dtype=torch.float64), torch.randn(E, D, dtype=torch.float64), graphs


def sums(x, e, graphs):
    out = torch.zeros_like(x)
    for edge, (source, target) in enumerate(graphs.edge_index.t().tolist()):
        factor = 1.0 if graphs.edge_coefficient is None else graphs.edge_coefficient[edge]
        out[target] = out[target] + factor * torch.relu(x[source] + e[edge])
    return out


@pytest.mark.parametrize("weighted", [False, True])
def test_both_are_their_formulas(weighted):
    x, e, graphs = inputs(weighted)
    gine, gcne = GINE(D).double(), GCNE(D).double()
    torch.testing.assert_close(gine(x, e, graphs), gine.mlp(x + sums(x, e, graphs)), rtol=1e-12, atol=1e-13)
    expected = sums(x @ gcne.linear.weight.T, e, graphs) + gcne.bias
    torch.testing.assert_close(gcne(x, e, graphs), expected, rtol=1e-12, atol=1e-13)


def normed(norm, x):
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("local", ["gine", "gcne", "gated_gcn"])
def test_without_attention_the_layer_is_that_of_gnn_plus(local):
    x, e, graphs = inputs()
    torch.manual_seed(1)
    layer = GPSLayer(
        D, GPSOptions(local=local, mlp="residual", activated=local != "gated_gcn"), has_global=False
    ).double()
    got, edges = layer(x, e, graphs, None)
    if local == "gated_gcn":
        update, next_edges = layer.local(x, e, graphs)
        torch.testing.assert_close(edges, next_edges)
    elif local == "gine":
        update = torch.relu(layer.local(x, e, graphs))
    else:
        update = torch.relu(normed(layer.norm_inner, layer.local(x, e, graphs)))
    h = normed(layer.norm_local, x + update)
    expected = normed(layer.norm_mlp, h + layer.mlp[3](torch.relu(layer.mlp[0](h))))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    if local != "gated_gcn":
        assert edges is e


def test_an_activation_without_message_passing_is_refused():
    with pytest.raises(ValueError, match="the activation follows gine, gcne or gcn, got gated_gcn"):
        GPSOptions(activated=True)


def test_a_virtual_node_reads_and_feeds_every_node():
    config = PrimphormerConfig(
        node=Features(dim=3),
        width=D,
        num_heads=1,
        num_layers=3,
        virtual_node=True,
        layer=GPSOptions(local="none"),
        local=LocalOptions("gin", "top", norm="none", top_layers=0),
    )
    torch.manual_seed(2)
    model = Primphormer(config).double().eval()
    graphs = Graphs(
        torch.tensor([0, 4, N]), torch.tensor([[0, 1, 4], [1, 2, 5]]), torch.randn(N, 3, dtype=torch.float64)
    )
    with torch.no_grad():
        model.virtual.first_D.copy_(torch.randn(D))
    expected = model.stem(graphs)[0]
    state = model.virtual.first_D.expand(2, -1)
    for index, layer in enumerate(model.local.layers):
        expected = expected + state[graphs.graph_of_node]
        sums = torch.stack([expected[:4].sum(0), expected[4:].sum(0)])
        expected = layer(expected, graphs.adjacency)
        if index < 2:
            state = model.virtual.mlps[index](state + sums)
    torch.testing.assert_close(model(graphs), model.readout(expected, graphs), rtol=1e-12, atol=1e-13)


def test_a_virtual_node_needs_local_layers_in_front():
    with pytest.raises(ValueError, match=r"set local\.join to top"):
        PrimphormerConfig(virtual_node=True)
