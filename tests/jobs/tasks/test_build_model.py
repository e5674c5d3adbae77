"""Tests plain modules as models. The forward of a module gets the tensors that its arguments name, and must return the rows that the task needs.

If that is impossible, one line says why.
"""

import sys
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN, GCNConv, HeteroConv, SAGEConv, global_add_pool, to_hetero

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.registry import OBJECTS, Component, Inputs, in_this_process, named, options_class
from graphmill.jobs.tasks.build_model import build_model, module_options
from graphmill.models.options.features import Features
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.relational.network import TypedGraphs
from graphmill.samplers.methods.registry import load

INPUTS = Inputs(node=Features(dim=3), out_dim=2, task="node")
RELATION = ("user", "buys", "item")
TYPED = replace(INPUTS, node_dims=(("user", 3), ("item", 2)), relations=(RELATION,))
torch.manual_seed(0)
GRAPHS = Graphs(
    torch.tensor([0, 3, 5]), torch.tensor([[0, 1, 3], [1, 2, 4]]), torch.rand(5, 3), root_index=torch.tensor([4, 1])
)
OF_TYPES = TypedGraphs(
    {"user": torch.arange(2), "item": torch.arange(3)},
    {"user": torch.rand(2, 3), "item": torch.rand(3, 2)},
    {RELATION: (torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1]))},
    "item",
    torch.tensor([2, 0]),
)


class Plain(nn.Module):
    """A plain module, as a user writes it."""

    def __init__(self, in_channels, out_channels, hidden: int = 8, names: list[str] | None = None, act=torch.relu):
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, hidden), GCNConv(hidden, out_channels)

    def forward(self, x, edge_index):
        return self.second(self.first(x).relu(), edge_index)


class Pooled(nn.Module):
    def forward(self, x, edge_index, batch):
        return global_add_pool(x, batch)[:, :2]


class Wide(nn.Module):
    def forward(self, x, edge_index, edge_weight=None):
        return x


class OfData(nn.Module):
    def forward(self, data):
        return data.x[:, :2] + data.batch[:, None]


class Dicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = HeteroConv({RELATION: SAGEConv((-1, -1), 2)})

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SAGEConv((-1, -1), 2)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Weighted(nn.Module):
    def forward(self, x, edge_index, edge_weight):
        return x


class WeightedDicts(nn.Module):
    def forward(self, x_dict, edge_index_dict, edge_weight_dict=None, edge_attr_dict=None, edge_time_dict=None):
        return x_dict["item"] + edge_weight_dict[RELATION].sum() + edge_attr_dict[RELATION].sum()


class InPlace(nn.Module):
    def forward(self, x, edge_index):
        x *= 2
        return x[:, :2]


class Odd(nn.Module):
    def forward(self, adjacency, x):
        return x


def build(own, inputs: Inputs = INPUTS, **options):
    return module_options(own)(**options).build(inputs)


def test_a_class_has_its_constructor_s_parameters_as_options() -> None:
    assert [each.name for each in fields(module_options(Plain))] == ["hidden"]
    assert module_options(Plain) is module_options(Plain)
    module = build(Plain, hidden=4)
    assert module.module.first.weight.shape == (4, 3)
    assert {"hidden_channels", "num_layers", "dropout"} <= {each.name for each in fields(module_options(GCN))}
    with pytest.raises(ConfigError, match=r"GCN\(.*hidden_channels='wide'"):
        build(GCN, hidden_channels="wide", num_layers=2)


def test_rows_are_those_of_roots_and_of_graphs() -> None:
    own = Plain(3, 2)
    module = build(own)
    assert torch.equal(module(GRAPHS), own(GRAPHS.x, GRAPHS.edge_index)[GRAPHS.root_index])
    assert module.module is not own
    assert torch.equal(
        build(OfData())(GRAPHS), (GRAPHS.x[:, :2] + torch.tensor([[0, 0, 0, 1, 1]]).T)[GRAPHS.root_index]
    )
    of_graphs = replace(GRAPHS, root_index=None)
    pooled = build(Pooled(), replace(INPUTS, task="graph"))(of_graphs)
    assert torch.equal(pooled, torch.stack([GRAPHS.x[:3].sum(0), GRAPHS.x[3:].sum(0)])[:, :2])


def test_types_come_as_mappings_and_lazy_layers_get_their_sizes() -> None:
    edges = torch.tensor([[0, 1], [0, 2]])
    for own in (Dicts(), to_hetero(Sage(), (["user", "item"], [RELATION]))):
        module = build(own, TYPED)
        out = module.module(OF_TYPES.x, {RELATION: edges})["item"]
        assert torch.equal(module(OF_TYPES), out[OF_TYPES.root_index])
        assert module_options(own).takes_types
    kind = module_options(Plain)
    made = build_model(Component("plain", kind(hidden=4)), "nodes", replace(TYPED, node=Features(dim=8)))
    # The input width is 8, the width of the relational layers before the module.
    assert made.model.model.module.first.weight.shape == (4, 8)


@pytest.mark.parametrize(
    ("own", "inputs", "said"),
    [
        (Odd(), INPUTS, "expected x, edge_index .* got adjacency, x"),
        (Weighted(), INPUTS, "edge_weight: expected weights of edges"),
        (Plain(3, 2), replace(INPUTS, task="graph"), "expected the argument batch"),
        (Dicts(), INPUTS, "expected a graph of several types of nodes, got one of one type"),
        (Dicts(), replace(TYPED, node_dims=(("user", 3), ("item", 0))), "item has none"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_trained(own, inputs: Inputs, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(own, inputs)


def test_weights_and_features_of_typed_edges_come_as_mappings_and_what_is_never_filled_is_told(capsys) -> None:
    edges = {"weight": {RELATION: torch.tensor([2.0, 3.0])}, "edge_attr": {RELATION: torch.ones(2, 4)}}
    graphs = replace(OF_TYPES, **edges)
    module = build(WeightedDicts(), replace(TYPED, edge_dims=(4,), edge_weight=True))
    torch.testing.assert_close(module(graphs), (OF_TYPES.x["item"] + 13.0)[OF_TYPES.root_index])
    assert capsys.readouterr().err == (
        "warning: WeightedDicts.forward: edge_time_dict: always the default; what is filled: x_dict, edge_index_dict, edge_weight_dict, edge_attr_dict\n"
    )
    options = module_options(WeightedDicts)
    assert options.reads_weights
    assert options.reads_edges


def test_inputs_are_not_changed_in_place() -> None:
    with pytest.raises(ConfigError, match=r"^InPlace.forward changes x in place.*write x = x \* 2"):
        build(InPlace())(replace(GRAPHS, x=GRAPHS.x.clone()))


def test_another_shape_is_told() -> None:
    with pytest.raises(ConfigError, match=r"Wide.forward: expected a tensor \[5, 2\], .* got \[5, 3\]"):
        build(Wide())(GRAPHS)


def test_objects_have_names_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "here", SimpleNamespace(Plain=Plain))
    own = Plain(3, 2)
    tree = named({"model": own, "fit": {"callbacks": [len], "epochs": 3}})
    path = tree["model"]
    assert path.startswith(f"{OBJECTS}:Plain_")
    assert in_this_process(path)
    assert tree["fit"] == {"callbacks": ["builtins:len"], "epochs": 3}
    assert load(path) is own
    assert options_class("model", "nodes", path) is module_options(own)
    again = named({"model": Plain(3, 2)}, {"model": {"name": path}})
    assert again == {"model": path}
    assert load(path) is not own
    with pytest.raises(ConfigError, match=r"^Plain: an object of the Python process that began the run.*give it again"):
        load(f"{OBJECTS}:Plain_00000000")
