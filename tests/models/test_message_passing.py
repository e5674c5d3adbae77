"""GraphSAGE, GCN and GAT against loops over nodes in float64; residuals, roots, isolated nodes, no edges."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.graphs import Graphs
from models.message_passing import GATConvolution, GCNConvolution, MessagePassing, SAGEConvolution
from models.options.message_passing import GATConfig, GCNConfig, MessagePassingConfig, SAGEConfig

# Directed, with parallel edges 0 → 1, a self-loop at 2 and an isolated node 4; unsorted.
EDGES = torch.tensor([[0, 3, 0, 2, 1, 2], [1, 0, 1, 2, 3, 0]])
CONFIGS: dict[str, MessagePassingConfig] = {
    "sage": SAGEConfig(3, 2, width=4),
    "gcn": GCNConfig(3, 2, width=4),
    "gat": GATConfig(3, 2, width=4, num_heads=2),
}


def graphs_of(x: Tensor, edges: Tensor = EDGES) -> Graphs:
    return Graphs(torch.tensor([0, len(x)]), edges, x=x)


def sources(node: int) -> Tensor:
    return EDGES[0][EDGES[1] == node]


def slow_sage(layer: SAGEConvolution, x: Tensor) -> Tensor:
    rows = []
    for node in range(len(x)):
        near = x[sources(node)]
        mean = near.mean(0) if len(near) else torch.zeros_like(x[0])
        rows.append(layer.own(x[node]) + layer.neighbors(mean))
    return torch.stack(rows)


def slow_gcn(layer: GCNConvolution, x: Tensor) -> Tensor:
    degree = torch.tensor([len(sources(node)) + 1.0 for node in range(len(x))]).double()
    rows = []
    for node in range(len(x)):
        total = x[node] / degree[node]
        for source in sources(node):
            total = total + x[source] / (degree[node] * degree[source]).sqrt()
        rows.append(layer.gcn.linear(total) + layer.gcn.bias)
    return torch.stack(rows)


def slow_gat(layer: GATConvolution, x: Tensor) -> Tensor:
    h = layer.linear(x).unflatten(1, (layer.num_heads, -1))
    rows = []
    for node in range(len(x)):
        near = torch.cat([sources(node), torch.tensor([node])])
        heads = []
        for head in range(layer.num_heads):
            logit = h[near, head] @ layer.source[head] + h[node, head] @ layer.destination[head]
            heads.append(nn.functional.leaky_relu(logit, 0.2).softmax(0) @ h[near, head])
        rows.append(torch.cat(heads) + layer.bias)
    return torch.stack(rows)


SLOW = {"sage": slow_sage, "gcn": slow_gcn, "gat": slow_gat}


@pytest.mark.parametrize("name", SLOW)
def test_a_convolution_is_the_loop_over_nodes(name: str) -> None:
    torch.manual_seed(0)
    layer = MessagePassing(CONFIGS[name]).double().layers[0].convolution
    for parameter in layer.parameters():  # biases begin at 0
        nn.init.normal_(parameter)
    x = torch.randn(5, 3).double()
    torch.testing.assert_close(layer(x, graphs_of(x)), SLOW[name](layer, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("residual", ["none", "identity", "linear"])
@pytest.mark.parametrize("name", SLOW)
def test_the_network_is_its_formula(name: str, residual: str) -> None:
    torch.manual_seed(0)
    model = MessagePassing(replace(CONFIGS[name], residual=residual, norm="layer")).double().eval()
    x = torch.randn(5, 3).double()
    h = x
    for index, layer in enumerate(model.layers):
        after = SLOW[name](layer.convolution, h)
        if residual == "linear":
            after = after + layer.residual(h)
        elif residual == "identity" and index > 0:
            after = after + h
        h = torch.relu(layer.norm(after))
    torch.testing.assert_close(model(graphs_of(x)), model.head(h), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SLOW)
def test_gradients(name: str) -> None:
    torch.manual_seed(0)
    model = MessagePassing(CONFIGS[name]).double().eval()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model(graphs_of(x)), (x,))


@pytest.mark.parametrize("name", SLOW)
def test_no_edges_and_roots(name: str) -> None:
    model = MessagePassing(CONFIGS[name]).eval()
    x = torch.randn(4, 3)
    graphs = graphs_of(x, torch.zeros(2, 0, dtype=torch.long))
    out = model(graphs)
    assert torch.isfinite(out).all()
    roots = torch.tensor([3, 1])
    assert torch.equal(model(replace(graphs, root_index=roots)), out[roots])


def test_attention_of_any_size_stays_finite() -> None:
    torch.manual_seed(0)
    layer = MessagePassing(CONFIGS["gat"]).layers[0].convolution
    x = (torch.randn(5, 3) * 1e4).requires_grad_()
    out = layer(x, graphs_of(x))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()


def test_other_features_are_refused() -> None:
    for x in (torch.randn(5, 2), None):
        with pytest.raises(ValueError, match="in_dim"):
            MessagePassing(CONFIGS["sage"])(Graphs(torch.tensor([0, 5]), EDGES, x=x))
