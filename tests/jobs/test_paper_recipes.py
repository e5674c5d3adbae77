"""The papers' recipes on tiny sets in their publishers' own layout: each has the parameters that it says, and ingests, trains, scores."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from jobs import ingest, train_graphs, train_nodes
from jobs.run.config import RECIPES, config_tree, read_config, read_recipe
from jobs.run.graph_task import set_inputs
from jobs.run.registry import build_model
from storage.importers.data_sets import DATA_SETS
from tests.job_in_process import run_job
from tests.raw_layouts import write_set

# Parameters with the set's own features, as the recipe's head says them. Published: the paper prints this number.
COUNTS = {
    "grit/zinc": 473_473,  # published
    "grit/zinc_full": 473_921,
    "grit/mnist": 102_138,  # published
    "grit/cifar10": 99_486,  # published
    "grit/pattern": 477_953,  # published
    "grit/cluster": 431_670,
    "grit/peptides_func": 443_434,
    "grit/peptides_struct": 440_267,
    "ppgt/zinc": 487_425,  # published as 487K
    "ppgt/zinc_full": 487_873,
    "ppgt/mnist": 102_138,  # published as 102K
    "ppgt/cifar10": 108_218,  # published as 108K
    "ppgt/pattern": 493_346,
    "ppgt/cluster": 495_678,  # published as 496K
    "ppgt/pascalvoc_sp": 462_741,
    "ppgt/peptides_func": 509_442,  # published as 509K
    "ppgt/peptides_struct": 488_219,  # published as 488K
    "primphormer/pascalvoc_sp": 508_305,  # published
    "primphormer/coco_sp": 285_513,
    "primphormer/pcqm_contact": 386_526,  # published
    "primphormer/cifar10": 112_957,  # published
    "primphormer/mnist": 101_714,  # published
    "primphormer/malnet_tiny": 519_353,
    "primphormer/pattern": 208_387,  # published
    "primphormer/cluster": 499_386,  # published
    "primphormer/peptides_func": 475_886,
    "primphormer/peptides_struct": 489_711,
    "geco/pascalvoc_sp": 618_229,
    "geco/coco_sp": 624_049,
    "geco/pcqm_contact": 620_560,
    "geco/peptides_func": 630_842,
    "geco/peptides_struct": 630_939,
}
NODES = {
    **{f"tokengt/{name.replace('-', '_')}": name for name, row in DATA_SETS.items() if row.per_class},
    "geco/flickr": "flickr",
    "geco/reddit": "reddit",
    "geco/yelp": "yelp",
}


def _set_of(recipe: str) -> str:
    return recipe.split("/")[1].replace("_", "-")


def test_every_recipe_of_a_set_is_here():
    there = {str(path.relative_to(RECIPES)).removesuffix(".yaml") for path in RECIPES.rglob("*.yaml")}
    of_sets = {
        recipe for recipe in there if _set_of(recipe) in DATA_SETS and recipe not in ("geco/cora", "geco/minesweeper")
    }
    assert of_sets == {*COUNTS, *NODES}


def test_the_guide_lists_them():
    page = (RECIPES.parent / "docs/guides/recipes.md").read_text()
    for recipe in (*COUNTS, *NODES):
        assert f"| `{recipe}` |" in page
    for recipe, count in COUNTS.items():
        assert f"{count:,} parameters" in next(line for line in page.splitlines() if line.startswith(f"| `{recipe}` |"))


@cache
def _source(name: str, root: Path):
    write_set(name, root)
    return DATA_SETS[name].read(root)


@pytest.mark.parametrize("recipe", COUNTS)
def test_its_parameters(recipe, tmp_path_factory):
    info = _source(_set_of(recipe), tmp_path_factory.getbasetemp() / "raw" / _set_of(recipe)).info
    config = read_config(config_tree("graphs", read_recipe(f"{recipe}.yaml")))
    out_dim = {"nodes": info.num_classes, "pairs": 1}.get(info.labelled, len(info.target_names))
    if config.task.name == "classes":
        out_dim = {"mnist": 10, "cifar10": 10, "malnet-tiny": 5}[_set_of(recipe)]
    if getattr(config.task.options, "one_logit", False):
        out_dim = 1
    with torch.device("meta"):
        model = build_model(config.model, "graphs", set_inputs(info, out_dim))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == COUNTS[recipe]
    said = (RECIPES / f"{recipe}.yaml").read_text()
    assert f"{count:,} parameters" in said


def _run(job, *arguments):
    done = run_job(job.main, [*map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done


FEW = ["--fit.epochs", 1, "--fit.warmup_epochs", 0]


@pytest.mark.long
@pytest.mark.parametrize("recipe", COUNTS)
def test_it_ingests_trains_and_scores(recipe, tmp_path):
    name = _set_of(recipe)
    write_set(name, tmp_path)
    _run(ingest, name, tmp_path / "stored", "--root", tmp_path)
    few = [*FEW, "--sampler.max_graphs", 12]
    _run(train_graphs, f"{recipe}.yaml", "--data", tmp_path / "stored", *few, "--run.dir", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["num_parameters"] == COUNTS[recipe]
    assert set(summary["scores"]) == {"valid", "test"}


@pytest.mark.long
@pytest.mark.parametrize("recipe", NODES)
def test_it_ingests_trains_and_scores_nodes(recipe, tmp_path):
    name = NODES[recipe]
    write_set(name, tmp_path)
    _run(ingest, name, tmp_path / "stored", "--root", tmp_path, "--partitions", 1)
    _run(train_nodes, f"{recipe}.yaml", "--data", tmp_path / "stored", *FEW, "--run.dir", tmp_path / "run")
    assert set(json.loads((tmp_path / "run" / "summary.json").read_text())["scores"]) >= {"valid", "test"}


@pytest.mark.parametrize("job", [train_nodes, train_graphs])
@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("cora", "python jobs/train_nodes.py --data graphs/cora"),
        ("yelp", "python jobs/train_nodes.py --data graphs/yelp --task binary --task.metric micro_f1"),
        ("mnist", "python jobs/train_graphs.py --data graphs/mnist --task classes"),
    ],
)
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_set_that_is_not_ingested_yet_is_told_how(job, name, then, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_job(job.main, ["--data", name, *plan])
    assert done.returncode == 1
    assert f"graphmill ingest {name} graphs/{name}, then {then}" in done.stderr.strip().splitlines()[-1]
