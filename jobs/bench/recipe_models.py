"""The models that benchmarks run, from our recipes."""

from dataclasses import replace
from typing import Any

from graphmill.jobs.config.config import config_tree, read_config, read_recipe


def recipe_options(path: str, **changes: Any) -> Any:
    """The model's options in one of our recipes; `changes` are those that the data gives (node, edge, out_dim, task), or others."""
    return replace(read_config(config_tree("nodes", read_recipe(path))).model.options, **changes)
