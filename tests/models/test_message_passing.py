"""Compares GraphSAGE, GCN and GAT with loops over nodes, in float64. Cases: residuals, root terms, isolated nodes, no edges."""

from dataclasses import replace

import pytest
import torch

from graphmill.models.message_passing.network import MessagePassing
from graphmill.models.message_passing.options import GATConfig, GCNConfig, MessagePassingConfig, SAGEConfig
from graphmill.models.primitives.graphs import Graphs
from tests.models.slow_local_blocks import EDGES, graphs_of, slow_local

CONFIGS: dict[str, MessagePassingConfig] = {
    "sage": SAGEConfig(3, 2, width=4),
    "gcn": GCNConfig(3, 2, width=4),
    "gat": GATConfig(3, 2, width=4, num_heads=2),
}


NAMES = list(CONFIGS)


@pytest.mark.parametrize("residual", ["none", "identity", "linear"])
@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_its_formula(name: str, residual: str) -> None:
    torch.manual_seed(0)
    model = MessagePassing(replace(CONFIGS[name], residual=residual, norm="layer")).double().eval()
    x = torch.randn(5, 3).double()
    h = x
    for index, layer in enumerate(model.layers):
        assert (layer.residual is not None) == (residual == "linear" or (residual == "identity" and index > 0))
        h = slow_local(layer, name, h)
    torch.testing.assert_close(model(graphs_of(x)), model.head(h), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
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
    out = layer(x, graphs_of(x).adjacency)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()


def test_other_features_are_refused() -> None:
    for x in (torch.randn(5, 2), None):
        with pytest.raises(ValueError, match="in_dim"):
            MessagePassing(CONFIGS["sage"])(Graphs(torch.tensor([0, 5]), EDGES, x=x))
