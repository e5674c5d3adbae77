"""Runs small versions of the five models on unusual graphs. The result is correct and finite, with finite gradients, or there is one clear error."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import graphmill.models.geco.graphs as geco_graphs
import graphmill.models.grit.network as grit
import graphmill.models.ppgt.network as ppgt
import graphmill.models.primphormer.network as primphormer
import graphmill.models.tokengt.network as tokengt
from graphmill.models.grit.network import GRIT
from graphmill.models.options.features import Features
from graphmill.models.ppgt.network import PPGT
from graphmill.models.primitives.graphs import Graphs
from tests.recipe_options import MOLECULES, options_of

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tokengt": (tokengt.TokenGT, {}),
    "tokengt, orf": (tokengt.TokenGT, {"identifier": "orf"}),
    "grit": (grit.GRIT, {}),
    "ppgt": (ppgt.PPGT, {}),
    "geco": (geco_graphs.GECOGraphs, {}),
    "primphormer": (primphormer.Primphormer, {}),
}
ONE = (1, [])
PATH = (7, [(i, i + 1) for i in range(6)])
# More nodes than the small models have identifiers, steps of walks and eigenvectors (16, 21 and 13).
LONG = (40, [(i, i + 1) for i in range(39)] + [(0, 5), (3, 17), (11, 30)])
TWO_SQUARES = (8, [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)])
CASES: dict[str, list[tuple[int, list[tuple[int, int]]]]] = {
    "no edges": [(4, [])],
    "one node": [ONE],
    "single nodes": [ONE, ONE],
    "isolated nodes": [(5, [(0, 1), (1, 2)])],
    "many nodes": [LONG],
    "empty batch": [],
    "an empty graph": [PATH, (0, []), ONE],
    "mixed sizes": [ONE, LONG, PATH, (2, [(0, 1)])],
    "disconnected": [TWO_SQUARES, PATH],
}
each_model = pytest.mark.parametrize("name", MODELS)


def make_graphs(case: list[tuple[int, list[tuple[int, int]]]]) -> Graphs:
    """Graphs with features like those of molecules. A node's features depend only on its position in its graph. Every edge exists in both directions."""
    starts = torch.tensor([0, *(size for size, _ in case)]).cumsum(0)
    ends = [(a + start, b + start) for (_, edges), start in zip(case, starts.tolist()) for a, b in edges]
    index = torch.tensor([*ends, *((b, a) for a, b in ends)], dtype=torch.long).view(-1, 2).t()
    place = torch.cat([torch.zeros(0, dtype=torch.long), *(torch.arange(size) for size, _ in case)])
    x = torch.zeros(place.numel(), 9, dtype=torch.long)
    x[:, 0], x[:, 3] = place % 5, place % 3
    return Graphs(
        starts, index, x=x, edge_attr=torch.ones(index.shape[1], 3, dtype=torch.long), node_id=torch.arange(len(x))
    )


def small(name: str, **changes: Any) -> Any:
    recipe = name.partition(",")[0]
    return options_of(f"defaults/graphs-{recipe}", **MOLECULES, **MODELS[name][1], **changes)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    built = MODELS[name][0](small(name, num_layers=2)).double()
    with torch.no_grad():  # changes the running statistics
        built(make_graphs([PATH, TWO_SQUARES]))
    return built


@each_model
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_awkward_graphs_give_finite_results_and_gradients(name, case):
    model, graphs = build(name), make_graphs(case)
    for training in (True, False):
        model.train(training).zero_grad()
        out = model(graphs)
        assert out.shape == (len(case), 1)
        assert out.isfinite().all()
        out.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        assert all(b.isfinite().all() for b in model.buffers())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tokengt, orf"])  # "orf" draws once per batch
def test_mixed_sizes_get_what_each_graph_gets_alone(name):
    model = build(name).eval()
    case = CASES["mixed sizes"]
    graphs, alone = make_graphs(case), []
    for k, graph in enumerate(case):
        start = int(graphs.node_ptr[k])
        # GECO orders nodes by their permanent ids, so each single graph keeps its ids.
        alone.append(model(replace(make_graphs([graph]), node_id=torch.arange(start, start + graph[0]))))
    torch.testing.assert_close(model(graphs), torch.cat(alone), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("recipe", ["ppgt/peptides_func", "ppgt/zinc", "grit/peptides_struct"])
def test_a_training_batch_of_one_graph(recipe):
    features = {"node": Features(categories=(5,)), "edge": Features(categories=(5,))}
    model = (PPGT if recipe.startswith("ppgt") else GRIT)(
        options_of(recipe, **features, out_dim=2, num_layers=1)
    ).train()
    graphs = Graphs(
        torch.tensor([0, 3]),
        torch.tensor([[0, 1], [1, 0]]),
        x=torch.zeros(3, 1, dtype=torch.int64),
        edge_attr=torch.zeros(2, 1, dtype=torch.int64),
    )
    out = model(graphs)
    assert out.shape == (1, 2)
    assert out.isfinite().all()


@each_model
@pytest.mark.parametrize("rows", ["x", "edge_attr"])
@pytest.mark.parametrize("value", [-1, 500])
def test_an_id_outside_the_vocabulary_is_named(name, rows, value):
    graphs = make_graphs([PATH])
    changed = getattr(graphs, rows).clone()
    changed[2, 1] = value
    with pytest.raises(ValueError, match=rf"feature column 1 must be in \[0, \d+\), got {value} in row 2"):
        build(name)(replace(graphs, **{rows: changed}))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "geco"])  # GECO has no heads
def test_heads_must_divide_the_width(name):
    with pytest.raises(ValueError, match=r"set num_heads"):
        small(name, width=30, num_heads=4)
