"""Tests that every recipe can be read and builds its model."""

from dataclasses import replace

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import RECIPES, config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import read_words
from graphmill.jobs.config.registry import PLACEHOLDERS, Inputs
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.jobs.tasks.build_model import build_model
from graphmill.models.options.features import Features
from tests.runs import config_of

PATHS = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml") if path.parent.name != "studies")
WHOLE = [path for path in PATHS if path not in ("defaults/nodes.yaml", "defaults/graphs.yaml", "baselines/search.yaml")]
LARGE = ("tokengt/", "ppgt/pcqm4mv2_base", "grit/pcqm4mv2")


@pytest.mark.parametrize("path", WHOLE)
def test_it_reads_and_comes_back(path):
    config = read_config(config_tree("nodes", read_recipe(path)))
    assert read_config(config.tree()) == config


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.long if path.startswith(LARGE) else ()) for path in WHOLE]
)
def test_its_model_is_built(path):
    config = read_config(config_tree("nodes", read_recipe(path)))
    model = build_model(config.model, config.kind, PLACEHOLDERS[config.kind])
    assert sum(parameter.numel() for parameter in model.parameters()) > 1000


@pytest.mark.parametrize(
    ("words", "block"),
    [
        ("--model.local gcn", "gcn"),  # a flag with the group's name sets the first field of the group
        ("--model.local.block gcn", "gcn"),
        ("--model.local sage --model.local.block gcn", "gcn"),
        ("--model.local.block sage --model.local gcn", "gcn"),
        ("--model.local.dropout 0.1", "appnp"),
    ],
)
def test_a_flag_stands_in_place_of_what_the_recipe_says(words, block):
    _, flags = read_words(words.split())
    tree = config_tree("nodes", read_recipe("geco/cora.yaml"), flags)
    assert read_config(tree).model.options.local.block == block


def test_attention_alone_is_refused_where_edges_have_features_and_only_there():
    config = config_of("--model", "primphormer", "--model.layer.local", "none", kind="graphs")
    inputs = Inputs(node=Features(categories=(3,)))
    assert resolve(config, Facts(inputs, {}, None)).model_config.layer.local == "none"
    with pytest.raises(ConfigError, match=r"edge features need layer.local gated_gcn"):
        resolve(config, Facts(replace(inputs, edge=Features(categories=(2,))), {}, None))
