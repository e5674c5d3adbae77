"""Every recipe reads, equals its preset where there is one, and builds its model."""

from dataclasses import fields
from importlib import import_module

import pytest

from graphmill.jobs.config.config import RECIPES, config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import read_words
from graphmill.jobs.config.registry import PLACEHOLDERS, given_of
from graphmill.jobs.tasks.build_model import build_model

PATHS = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml") if path.parent.name != "studies")
WHOLE = [path for path in PATHS if path not in ("defaults/nodes.yaml", "defaults/graphs.yaml", "baselines/search.yaml")]
LARGE = ("tokengt/", "ppgt/pcqm4mv2_base", "grit/pcqm4mv2")


@pytest.mark.parametrize("path", WHOLE)
def test_it_reads_and_comes_back(path):
    config = read_config(config_tree("nodes", read_recipe(path)))
    assert read_config(config.tree()) == config


def _has_preset(path):
    if path.startswith(("defaults/nodes", "baselines/", "jobs/")) or path == "primphormer/molhiv.yaml":  # of ours
        return False
    return read_recipe(path).get("kind") == "graphs" or path.startswith(("ppgt/", "primphormer/"))


@pytest.mark.parametrize("path", [path for path in WHOLE if _has_preset(path)])
def test_it_is_the_preset_of_its_name(path):
    module, name = path.removesuffix(".yaml").split("/")
    if module == "defaults":
        module, name = name.removeprefix("graphs-"), "small"
    module = module.replace("geco", "geco_graphs")
    config = read_config(config_tree("nodes", read_recipe(path)))
    options = config.model.options
    preset = getattr(import_module(f"tests.models.presets.{module}"), name)()
    given = given_of(type(options), PLACEHOLDERS[config.kind])
    differing = [f.name for f in fields(options) if getattr(options, f.name) != getattr(preset, f.name)]
    assert set(differing) <= set(given)


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
        ("--model.local gcn", "gcn"),  # the group's first field, by the group's name
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
