"""Compares Polynormer and SGFormer with their formulas, one graph at a time in float64; checks equivariance, the two phases of Polynormer, and that all learns."""

from dataclasses import replace

import pytest
import torch

from graphmill.models.options.features import Features
from graphmill.models.polynormer.network import Polynormer
from graphmill.models.polynormer.options import PolynormerConfig
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.sgformer.network import SGFormer
from graphmill.models.sgformer.options import SGFormerConfig

SIZES = (5, 1, 8)
POLY = PolynormerConfig(
    node=Features(dim=3),
    out_dim=2,
    width=8,
    num_heads=2,
    num_layers=2,
    global_layers=2,
    local_epochs=1,
    dropout=0.0,
    global_dropout=0.0,
    input_dropout=0.0,
)
SG = SGFormerConfig(
    node=Features(dim=3),
    out_dim=2,
    width=6,
    num_layers=2,
    num_heads=2,
    attention_layers=2,
    graph_weight=0.7,
    dropout=0.0,
    attention_dropout=0.0,
)


def batch(sizes=SIZES):
    torch.manual_seed(0)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    edges = [torch.randint(0, size, (2, size)) + first for size, first in zip(sizes, ptr, strict=False)]
    edge_index = torch.cat(edges, dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return Graphs(
        ptr, torch.cat([edge_index, edge_index.flip(0)], dim=1), torch.randn(int(ptr[-1]), 3, dtype=torch.float64)
    )


def build(kind, config):
    torch.manual_seed(1)
    return kind(config).double().eval()


def pieces(graphs):
    """(features, dense adjacency, with the number of parallel edges) of each graph."""
    for b in range(graphs.num_graphs):
        low, high = int(graphs.node_ptr[b]), int(graphs.node_ptr[b + 1])
        own = (graphs.edge_index[0] >= low) & (graphs.edge_index[0] < high)
        adjacency = torch.zeros(high - low, high - low, dtype=torch.float64)
        for source, target in (graphs.edge_index[:, own] - low).t():
            adjacency[target, source] += 1
        yield graphs.x[low:high], adjacency


def gat(layer, x, adjacency):
    heads = layer.num_heads
    h = layer.linear(x).unflatten(1, (heads, -1))
    counts = adjacency + torch.eye(len(x), dtype=torch.float64)
    out = []
    for head in range(heads):
        score = (h[:, head] @ layer.destination[head])[:, None] + (h[:, head] @ layer.source[head])[None, :]
        weight = counts * torch.nn.functional.leaky_relu(score, 0.2).exp()
        out.append((weight / weight.sum(1, keepdim=True)) @ h[:, head])
    return torch.cat(out, 1)


def polynormer_reference(model, x, adjacency):
    x, total = model.encoder.linear(x), 0.0
    for layer in model.local_layers:
        beta = torch.sigmoid(layer.beta.raw_D)
        y = torch.relu(gat(layer.attention, x, adjacency) + layer.own(x))
        x = (1 - beta) * layer.norm(torch.relu(layer.gate(x)) * y) + beta * y
        total = total + x
    local, x = total, model.norm(total)
    for layer in model.global_layers:
        key, value = torch.sigmoid(layer.key(x)), layer.value(x)
        parts = []
        for head in range(2):
            c = slice(4 * head, 4 * head + 4)
            weight = key[:, c] @ key[:, c].T
            parts.append(weight / weight.sum(1, keepdim=True) @ value[:, c])
        x = torch.relu(model.out(layer.norm(torch.cat(parts, 1)) * (layer.gate(x) + torch.sigmoid(layer.beta.raw_D))))
    return model.heads[0](local), model.heads[1](x)


def test_polynormer_is_its_formula_in_both_phases():
    model, graphs = build(Polynormer, POLY), batch()
    for place in range(2):
        model.is_global.fill_(bool(place))
        expected = torch.cat([polynormer_reference(model, *piece)[place] for piece in pieces(graphs)])
        torch.testing.assert_close(model(graphs), expected, rtol=1e-9, atol=1e-11)


def test_the_phase_follows_the_epochs_of_training_and_is_stored():
    model, graphs = build(Polynormer, POLY), batch()
    model.train()
    model(graphs, epoch=0)
    assert not model.is_global
    model(graphs, epoch=1)
    assert model.is_global
    copy = build(Polynormer, POLY)
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy(graphs, epoch=0), model.eval()(graphs, epoch=0))
    without = build(Polynormer, replace(POLY, global_layers=0)).train()
    without(graphs, epoch=5).sum().backward()
    assert not without.is_global


def sgformer_reference(model, x, adjacency):
    g, width, count = model.config.graph_weight, model.config.width, len(x)
    h = torch.relu(model.layer_norms[0](model.attention_encoder.linear(x)))
    for attention, norm in zip(model.attentions, model.layer_norms[1:], strict=True):
        q, k, v = attention.query(h), attention.key(h), attention.value(h)
        q, k, mixed = q / q.norm(), k / k.norm(), torch.zeros_like(h)
        for head in range(2):
            c = slice(head * width, (head + 1) * width)
            weight = count * torch.eye(count, dtype=torch.float64) + q[:, c] @ k[:, c].T
            mixed = mixed + (weight / weight.sum(1, keepdim=True)) @ v[:, c] / 2
        h = norm((mixed + h) / 2)
    matrix = adjacency + torch.eye(count, dtype=torch.float64)
    scale = matrix.sum(1).rsqrt()
    matrix = scale[:, None] * matrix * scale[None, :]
    first = z = torch.relu(model.batch_norms[0](model.graph_encoder.linear(x)))
    for linear, norm in zip(model.linears, model.batch_norms[1:], strict=True):
        z = matrix @ z
        z = torch.relu(norm(linear(torch.cat([z, first], 1) if model.config.initial else z))) + first
    return model.head(g * z + (1 - g) * h)


@pytest.mark.parametrize("initial", [False, True])
def test_sgformer_is_its_formula(initial):
    model, graphs = build(SGFormer, replace(SG, initial=initial)), batch()
    expected = torch.cat([sgformer_reference(model, *piece) for piece in pieces(graphs)])
    torch.testing.assert_close(model(graphs), expected, rtol=1e-9, atol=1e-11)


MODELS = [(Polynormer, POLY), (SGFormer, SG)]


@pytest.mark.parametrize(("kind", "config"), MODELS)
def test_renumbering_the_nodes_renumbers_the_outputs(kind, config):
    model, graphs = build(kind, config), batch()
    order = torch.cat([torch.randperm(size) + first for size, first in zip(SIZES, graphs.node_ptr, strict=False)])
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    moved = Graphs(graphs.node_ptr, place[graphs.edge_index], graphs.x[order])
    torch.testing.assert_close(model(moved), model(graphs)[order], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kind", "config"), MODELS)
@pytest.mark.parametrize("task", ["node", "graph", "link"])
def test_tasks_and_roots(kind, config, task):
    model, graphs = build(kind, replace(config, task=task)), batch()
    shape = {"node": (14, 2), "graph": (3, 2), "link": (14, config.width)}[task]
    assert model(graphs).shape == shape
    rooted = graphs.with_rows(root_index=torch.tensor([3, 0]))
    if task == "node":
        torch.testing.assert_close(model(rooted), model(graphs)[[3, 0]])


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_parameter_of_sgformer_has_a_gradient_in_every_epoch(epoch):
    model = build(SGFormer, SG).train()
    model(batch(), epoch=epoch).square().sum().backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)


@pytest.mark.parametrize("task", ["node", "link"])
@pytest.mark.parametrize("global_layers", [0, 2])
@pytest.mark.parametrize("epoch", [0, 1])
def test_only_the_prediction_that_counts_has_gradients(task, global_layers, epoch):
    model = build(Polynormer, replace(POLY, task=task, global_layers=global_layers)).train()
    model(batch(), epoch=epoch).square().sum().backward()
    without = {id(each) for each in model.parameters_without_gradient(epoch)}
    assert {id(each) for each in model.parameters() if each.requires_grad and each.grad is None} == {
        id(each) for each in model.parameters() if each.requires_grad and id(each) in without
    }
    parts = {name.partition(".")[0] for name, each in model.named_parameters() if id(each) in without}
    if global_layers and epoch == 0:
        assert parts - {"heads"} == {"norm", "out", "global_layers"}


def test_released_sizes():
    """The released Polynormer of Amazon-Photo: 64 channels and 8 heads, 7 local and 2 global layers, 745 features, 8 classes."""
    width, features, classes, local, layers = 512, 745, 8, 7, 2
    per_local = 3 * width * width + 2 * width + 2 * width + 2 * width + width  # GAT, two maps, its two vectors, LN, β
    per_global = 3 * (width * width + width) + 2 * width + width
    count = (
        (features + 1) * width
        + local * per_local
        + layers * per_global
        + 2 * width
        + width * width
        + width
        + 2 * (width + 1) * classes
    )
    config = PolynormerConfig(
        node=Features(dim=features), out_dim=classes, width=width, num_layers=local, global_layers=layers
    )
    assert sum(each.numel() for each in Polynormer(config).parameters()) == count
