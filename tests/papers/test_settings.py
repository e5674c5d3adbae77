"""The recipes against the papers' settings, which a second reader wrote from the papers and the released files without opening a recipe.

settings.csv: recipe, option, value, source. differences.csv: recipe (a pattern), option, and the reason why the recipe has another value.
"""

import csv
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphmill.jobs.config.config import RECIPES, RunConfig, config_tree, read_config, read_recipe

HERE = Path(__file__).parent
# Facts about a paper that no option of a recipe holds.
FACTS = ("parameters", "seeds", "runs", "table", "arms", "data", "fit.optimizer_options", "ingest")
ONE_GRAPH = {
    "geco/arxiv",
    "geco/flickr",
    "geco/reddit",
    "geco/yelp",
    "ppgt/arxiv",
    "ppgt/arxiv_released",
    "primphormer/products",
}


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _is_option(row: dict[str, str]) -> bool:
    """Whether a row states the value of an option. A suffix such as `(contradicts)` or `(range)` marks a remark about another row."""
    is_fact = row["option"].split(" ")[0].startswith(FACTS) or row["recipe"].startswith("studies/")
    return " " not in row["option"] and not is_fact


SETTINGS = [row for row in _read("settings.csv") if _is_option(row)]
DIFFERENCES = _read("differences.csv")


@cache
def _recipe(name: str) -> RunConfig:
    is_one = name in ONE_GRAPH or (name.startswith("tokengt/") and "pcqm4mv2" not in name)
    return read_config(config_tree("nodes" if is_one else "graphs", read_recipe(f"{name}.yaml")))


def value_of(config: RunConfig, option: str) -> Any:
    """The recipe's value. Batch sizes count the graphs or roots of a step."""
    part, *names = option.split(".")
    value = getattr(config, part)
    if part in ("model", "sampler", "task") and names != ["name"]:
        value = value.options
    for name in names:
        if value is None or (name == "position" and not hasattr(value, name)):  # GECO of one graph has no positions
            return None
        value = getattr(value, name)
    return value * (config.fit.micro_batches or 1) if option in ("sampler.max_graphs", "sampler.batch_size") else value


def are_equal(ours: Any, published: Any) -> bool:
    if published in ("none", None, 0):
        return ours in ("none", None, 0)
    if isinstance(ours, tuple):
        return list(ours) == published
    return bool(ours == published) or str(ours) == str(published)


def different(settings: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The rows whose value the recipe does not have."""
    for row in settings:
        if not are_equal(value_of(_recipe(row["recipe"]), row["option"]), yaml.safe_load(row["value"])):
            yield row


def is_explained(row: dict[str, str]) -> bool:
    return any(
        fnmatch(row["recipe"], each["recipe"]) and fnmatch(row["option"], each["option"]) for each in DIFFERENCES
    )


def test_each_setting_is_the_papers_or_explained():
    unexplained = [
        f"{row['recipe']}: {row['option']} {row['value']} ({row['source']})"
        for row in different(SETTINGS)
        if not is_explained(row)
    ]
    assert not unexplained, "\n".join(unexplained)


def test_each_explanation_is_needed():
    rows = list(different(SETTINGS))
    unused = [
        each
        for each in DIFFERENCES
        if not any(fnmatch(row["recipe"], each["recipe"]) and fnmatch(row["option"], each["option"]) for row in rows)
    ]
    assert not unused


@pytest.mark.parametrize(
    ("recipe", "option", "wrong"),
    [
        ("grit/zinc", "fit.learning_rate", "0.002"),
        ("ppgt/cifar10", "model.num_layers", "9"),
        ("geco/coco_sp", "task.class_weights", "none"),
    ],
)
def test_a_wrong_value_is_found(recipe, option, wrong):
    row = next(row for row in SETTINGS if (row["recipe"], row["option"]) == (recipe, option))
    assert not list(different([row]))
    assert list(different([row | {"value": wrong}]))
    assert not is_explained(row)


def test_the_second_reader_read_each_model():
    assert {row["recipe"].split("/")[0] for row in SETTINGS} == {"geco", "grit", "ppgt", "primphormer", "tokengt"}
    assert {row["recipe"] for row in SETTINGS} <= {
        f"{path.parent.name}/{path.stem}" for path in RECIPES.rglob("*.yaml")
    }
