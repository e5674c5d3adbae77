"""Compares the parts that PPGT's ablations exchange with their formulas, in float64 and node by node."""

import math

import pytest
import torch

from graphmill.models.options.features import Features
from graphmill.models.ppgt.ablations import DegreeScaler, NodeBatchNorm, PerceptronAttention, normalise_places
from graphmill.models.ppgt.attention import Sl2Attention, sl2_attention, sl2_urpe_attention
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.graphs import Graphs
from tests.models.operators.test_sl2_attention import B, D, H, inputs

SIZES = (4, 1, 6)


def batch(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    ptr = torch.tensor([0, *SIZES]).cumsum(0)
    edges = [torch.randint(0, size, (2, 2 * size)) + first for size, first in zip(SIZES, ptr, strict=False)]
    edge_index = torch.cat(edges, dim=1)
    return Graphs(ptr, torch.cat([edge_index, edge_index.flip(0)], dim=1), torch.randn(int(ptr[-1]), 3, dtype=dtype))


def test_dot_products_have_no_squares_of_keys():
    (q, k, v, p, weight, bias), mask = inputs(requires_grad=False)
    theta = (p @ weight.T + bias)[..., :H].permute(0, 3, 1, 2)
    gate = (p @ weight.T + bias)[..., H:].permute(0, 3, 1, 2)
    score = (q @ k.transpose(-1, -2) / math.sqrt(D) + theta).masked_fill(~mask[:, None, None], -math.inf)
    plain = sl2_attention(q, k, v, theta, mask, squared_keys=False)
    torch.testing.assert_close(plain, score.softmax(-1) @ v, rtol=1e-12, atol=1e-13)
    urpe = sl2_urpe_attention(q, k, v, p, weight, bias, mask, squared_keys=False)
    torch.testing.assert_close(urpe, (score.softmax(-1) * gate) @ v, rtol=1e-12, atol=1e-13)
    assert (sl2_attention(q, k, v, theta, mask) - plain).abs().max() > 1e-2
    assert len(mask) == B


def test_the_option_reaches_the_attention():
    assert Sl2Attention(PPGTConfig()).squared_keys
    assert not Sl2Attention(PPGTConfig(attention="dot")).squared_keys


def test_batch_norm_covers_the_nodes_and_no_padding():
    graphs, norm = batch(), NodeBatchNorm(5).double()
    x_nD = torch.randn(graphs.num_nodes, 5, dtype=torch.float64)
    got = normalise_places(norm, graphs.padding.pad(x_nD, fill=1e6), graphs)
    expected = (x_nD - x_nD.mean(0)) / (x_nD.var(0, unbiased=False) + norm.eps).sqrt()
    torch.testing.assert_close(graphs.padding.unpad(got), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(norm.running_mean, 0.1 * x_nD.mean(0))


def test_conditional_attention_is_grits_formula():
    torch.manual_seed(1)
    graphs, width, heads = batch(), 8, 2
    config = PPGTConfig(width=width, num_heads=heads, edge_width=width, attention="conditional", urpe="none")
    layer = PerceptronAttention(config).double()
    x_nD = torch.randn(graphs.num_nodes, width, dtype=torch.float64)
    p_BNNE = torch.randn(len(SIZES), max(SIZES), max(SIZES), width, dtype=torch.float64)
    got = graphs.padding.unpad(layer(graphs.padding.pad(x_nD), p_BNNE, graphs))
    own, channels = layer.attention, width // heads
    q, k, v = own.query(x_nD), own.key(x_nD), own.value(x_nD)
    expected = torch.zeros_like(x_nD)
    for graph, size in enumerate(SIZES):
        first = int(graphs.node_ptr[graph])
        for i in range(size):
            for head in range(heads):
                c = slice(head * channels, (head + 1) * channels)
                maps = own.edge(p_BNNE[graph, i, :size]).view(size, heads, 2, channels)[:, head]
                t = (q[first + i, c] + k[first : first + size, c]) * maps[:, 0]
                hat = torch.relu(t.sign() * t.abs().sqrt() + maps[:, 1])
                alpha = (hat @ own.score[:, head, 0]).softmax(0)
                value = v[first : first + size, c] + hat @ own.edge_value[:, head]
                expected[first + i, c] = alpha @ value
    torch.testing.assert_close(got, layer.out(expected), rtol=1e-10, atol=1e-12)


def test_the_degree_scaler_is_grits_formula():
    graphs, scaler = batch(), DegreeScaler(PPGTConfig(width=8)).double()
    h_nD = torch.randn(graphs.num_nodes, 8, dtype=torch.float64)
    degree_n = torch.bincount(graphs.edge_index[0], minlength=graphs.num_nodes)
    one, two = scaler.scale_1D2[0].unbind(1)
    expected = torch.stack([h * one + math.log(1 + int(d)) * h * two for h, d in zip(h_nD, degree_n, strict=True)])
    got = graphs.padding.unpad(scaler(graphs.padding.pad(h_nD), graphs))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


ARMS = [
    {"attention": "dot"},
    {"norm": "batch"},
    {"attention": "dot", "norm": "batch", "urpe": "none"},
    {"attention": "conditional", "urpe": "none", "degree_scaler": True, "edge_width": 16, "norm": "batch"},
]


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_an_arm_follows_a_renumbering_and_trains_all_parameters(arm):
    torch.manual_seed(2)
    config = PPGTConfig(node=Features(dim=3), task="node", num_layers=2, width=16, num_heads=4, stem_layers=1, **arm)
    model = PPGT(config).double()
    graphs = batch()
    model(graphs).square().sum().backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
    model.eval()
    order = torch.cat([torch.randperm(size) + first for size, first in zip(SIZES, graphs.node_ptr, strict=False)])
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    moved = Graphs(graphs.node_ptr, place[graphs.edge_index], graphs.x[order])
    torch.testing.assert_close(model(moved), model(graphs)[order], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "conditional"}, "conditional attention has neither"),
        ({"attention": "conditional", "urpe": "none", "edge_width": 32}, "pairs as wide as the nodes"),
        ({"norm": "batch", "readout": "class_attention"}, "no batch of tokens"),
    ],
)
def test_arms_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PPGTConfig(**options)
