"""The model options of a recipe, for features and targets that a test chooses."""

from dataclasses import replace
from typing import Any

from graphmill.jobs.config.config import config_tree, read_config, read_recipe
from graphmill.models.options.features import atoms, bonds

MOLECULES = {"node": atoms(), "edge": bonds()}


def options_of(recipe: str, **changes: Any) -> Any:
    """The model options of `recipes/RECIPE.yaml`, with these fields replaced."""
    return replace(read_config(config_tree("nodes", read_recipe(f"{recipe}.yaml"))).model.options, **changes)
