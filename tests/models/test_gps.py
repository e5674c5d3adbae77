"""Tests the hybrid layer: its formula, options and heads, and batch normalisation over too few rows."""

from dataclasses import replace

import pytest
import torch

import graphmill.models.geco.graphs as geco_graphs
import graphmill.models.primphormer.network as primphormer
from graphmill.models.gps.ends import Readout
from graphmill.models.gps.layer import GPSLayer
from graphmill.models.gps.options import GPSOptions
from graphmill.models.options.features import Features
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.options import PrimphormerConfig

GRAPHS = Graphs(torch.tensor([0, 4]), torch.tensor([[0, 1, 2], [1, 2, 0]]), node_id=torch.arange(4))


@pytest.mark.parametrize("mlp", ["plain", "residual"])
@pytest.mark.parametrize("local", ["gated_gcn", "gcn", "none"])
@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_the_layer_is_its_formula(local: str, mlp: str, norm: str) -> None:
    torch.manual_seed(0)
    layer = GPSLayer(6, GPSOptions(local=local, mlp=mlp, norm=norm)).double()
    x, e = torch.randn(4, 6).double(), torch.randn(3, 6).double()
    hidden = layer.norm_global(x.cumsum(0) + x)
    if local != "none":
        update, expected_e = (
            layer.local(x, e, GRAPHS) if local == "gated_gcn" else (layer.local(x, GRAPHS.adjacency), e)
        )
        hidden = layer.norm_local(update + x) + hidden
    expected = layer.mlp[3](torch.relu(layer.mlp[0](hidden)))
    if mlp == "residual":
        expected = layer.norm_mlp(expected + hidden)
    out, out_e = layer(x, e, GRAPHS, x.cumsum(0))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(out_e, expected_e if local == "gated_gcn" else e)


def test_dropout_acts_in_training_only() -> None:
    layer = GPSLayer(6, GPSOptions(dropout=0.5, norm="none"))
    x, e = torch.randn(4, 6), torch.randn(3, 6)
    assert not torch.equal(layer(x, e, GRAPHS, x.cumsum(0))[0], layer(x, e, GRAPHS, x.cumsum(0))[0])
    layer.eval()
    assert torch.equal(layer(x, e, GRAPHS, x.cumsum(0))[0], layer(x, e, GRAPHS, x.cumsum(0))[0])


@pytest.mark.parametrize("rows", [0, 1])
def test_batch_norm_of_too_few_rows_uses_and_keeps_the_running_statistics(rows: int) -> None:
    norm = RowBatchNorm(3)
    norm(torch.randn(10, 3))
    before, x = norm.running_mean.clone(), torch.randn(rows, 3)
    trained = norm(x)
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(trained, norm.eval()(x))


def test_graphgym_readout() -> None:
    """The `default` head of GraphGPS. Hidden layers have the full width. Each computes ReLU(W h + b) and scales the result to length 1."""
    readout = Readout(PrimphormerConfig(width=6, num_heads=2, out_dim=2, head_layers=2, head="graphgym")).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    pooled = torch.stack([x[a:b].mean(0) for a, b in GRAPHS.node_ptr.unfold(0, 2, 1).tolist()])
    first, last = (module for module in readout.head if isinstance(module, torch.nn.Linear))
    hidden = (pooled @ first.weight.T + first.bias).clamp(min=0)
    hidden = hidden / hidden.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
    torch.testing.assert_close(readout(x, GRAPHS), hidden @ last.weight.T + last.bias, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("head", ["halving", "graphgym"])
@pytest.mark.parametrize("name", ["Primphormer", "GECOGraphs"])
def test_heads_of_both_models(head: str, name: str) -> None:
    module = primphormer if name == "Primphormer" else geco_graphs
    chosen = getattr(module, f"{name}Config")(node=Features(dim=3), out_dim=2, head=head)
    assert getattr(module, name)(chosen)(Graphs(GRAPHS.node_ptr, GRAPHS.edge_index, x=torch.randn(4, 3))).shape == (
        1,
        2,
    )
    with pytest.raises(ValueError, match="head: expected one of halving, graphgym, got 'deep'"):
        replace(chosen, head="deep")
