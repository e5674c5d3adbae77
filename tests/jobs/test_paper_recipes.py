"""The papers' recipes on tiny sets in their publishers' own layout: each has the parameters that it says, and ingests, trains, scores."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch

from graphmill.jobs import ingest, train_graphs, train_nodes
from graphmill.jobs.config.config import RECIPES, RunConfig, config_tree, read_config, read_recipe
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.tasks.build_model import build_model
from graphmill.jobs.tasks.graph_task import set_inputs
from graphmill.jobs.tasks.link_task import graph_inputs
from graphmill.models.options.features import Features
from graphmill.storage.format.source import SourceInfo
from graphmill.storage.importers.public.data_sets import DATA_SETS
from graphmill.storage.molecules.smiles_features import ATOMS, BONDS
from tests.job_in_process import run_job
from tests.raw_layouts import ogb_nodes, pcqm4mv2, write_set

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
    "tokengt/pcqm4mv2_lap": 48_492_289,  # published as 48.5M
    "tokengt/pcqm4mv2_orf": 48_566_017,  # published as 48.6M
    "tokengt/pcqm4mv2_ablated": 48_466_177,  # published as 48.5M
    "tokengt/pcqm4mv2_performer": 48_492_289,
    "grit/pcqm4mv2": 11_832_321,
    "ppgt/pcqm4mv2": 17_634_817,  # published as 17.6M
    "ppgt/pcqm4mv2_base": 86_826_529,  # published as 86.8M
    "geco/pcqm4mv2": 7_184_525,
}
# Of one graph: the set, its features (those of chameleon and crocodile not checked on the file) and classes, which the tiny set has fewer of, and the parameters with them.
NODES = {
    "geco/arxiv": ("ogbn-arxiv", 128, 40, 1_746_920),
    "geco/flickr": ("flickr", 500, 7, 1_833_671),
    "geco/reddit": ("reddit", 602, 41, 1_868_521),
    "geco/yelp": ("yelp", 300, 100, 1_806_372),
    "ppgt/arxiv": ("ogbn-arxiv", 128, 40, 3_748_520),
    "primphormer/products": ("ogbn-products", 100, 47, 290_931),
    "tokengt/amazon_computers": ("amazon-computers", 767, 10, 1_420_298),
    "tokengt/amazon_photo": ("amazon-photo", 745, 8, 1_414_152),
    "tokengt/coauthor_cs": ("coauthor-cs", 6805, 15, 2_967_311),
    "tokengt/coauthor_physics": ("coauthor-physics", 8415, 5, 3_376_901),
    "tokengt/chameleon": ("chameleon", 128, 5, 1_255_429),
    "tokengt/crocodile": ("crocodile", 128, 5, 1_255_429),
}
# Where a published cosine ends (GRIT: the released code's default for every cosine; PPGT: its tables and released files).
LOWEST_RATES = {
    **{f"grit/{name}": 1e-6 for name in ("zinc", "zinc_full", "mnist", "cifar10", "pattern", "cluster")},
    **{f"grit/{name}": 1e-6 for name in ("peptides_func", "peptides_struct")},
    **{f"ppgt/{name}": 7e-5 for name in ("zinc", "zinc_full", "mnist")},
    **{f"ppgt/{name}": 1e-4 for name in ("cifar10", "pattern", "cluster", "pascalvoc_sp")},
    **{f"ppgt/{name}": 1e-4 for name in ("peptides_func", "peptides_struct")},
    "ppgt/pcqm4mv2_base": 1e-5,
    "ppgt/arxiv": 1e-6,
}
ALL_COUNTS = COUNTS | {recipe: count for recipe, (*_, count) in NODES.items()}


def _set_of(recipe: str) -> str:
    return "pcqm4mv2" if "/pcqm4mv2" in recipe else recipe.split("/")[1].replace("_", "-")


def _says(text: str, count: int) -> bool:
    return re.search(rf"(?<![\d,]){count:,} parameters", text) is not None


def test_every_recipe_of_a_set_is_here():
    there = {f"{path.parent.name}/{path.stem}" for path in RECIPES.rglob("*.yaml")}
    known = {*DATA_SETS, "pcqm4mv2", "arxiv", "products"}
    assert {each for each in there if _set_of(each) in known} - {
        "geco/amazon_computers",
        "geco/cora",
        "geco/minesweeper",
    } == {*ALL_COUNTS}


def test_the_guide_lists_them():
    rows = [line for line in (RECIPES.parent / "docs/guides/recipes.md").read_text().splitlines() if "/" in line[:20]]
    rows = [line for line in rows if line.startswith("| `") and not line.startswith("| `studies/")]
    told = {row.split("`")[1]: row for row in rows}
    assert told.keys() == ALL_COUNTS.keys()
    for recipe, count in ALL_COUNTS.items():
        assert _says(told[recipe], count), recipe


@pytest.mark.parametrize("recipe", ALL_COUNTS)
def test_its_head_says_its_parameters(recipe):
    lines = (RECIPES / f"{recipe}.yaml").read_text().splitlines()
    assert _says("\n".join(line for line in lines if line.startswith("#")), ALL_COUNTS[recipe])


@pytest.mark.parametrize("recipe", ALL_COUNTS)
def test_its_lowest_rate_is_the_published_one(recipe):
    kind = "nodes" if recipe in NODES else "graphs"
    config = read_config(config_tree(kind, read_recipe(f"{recipe}.yaml")))
    assert config.fit.min_learning_rate == LOWEST_RATES.get(recipe, 0.0)


@cache
def _source(name: str, root: Path):
    write_set(name, root)
    return DATA_SETS[name].read(root)


def _count(config: RunConfig, inputs: Inputs) -> int:
    with torch.device("meta"):
        model = build_model(config.model, config.kind, inputs)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("recipe", COUNTS)
def test_its_parameters(recipe, tmp_path_factory):
    config = read_config(config_tree("graphs", read_recipe(f"{recipe}.yaml")))
    if _set_of(recipe) == "pcqm4mv2":
        inputs = Inputs(node=Features(categories=ATOMS.categories), edge=Features(categories=BONDS.categories))
        assert _count(config, inputs) == COUNTS[recipe]
        return
    info = _source(_set_of(recipe), tmp_path_factory.getbasetemp() / "raw" / _set_of(recipe)).info
    out_dim = {"nodes": info.num_classes, "pairs": 1}.get(info.labelled, len(info.target_names))
    if config.task.name == "classes":
        out_dim = {"mnist": 10, "cifar10": 10, "malnet-tiny": 5}[_set_of(recipe)]
    if getattr(config.task.options, "one_logit", False):
        out_dim = 1
    assert _count(config, set_inputs(info, out_dim)) == COUNTS[recipe]


def test_the_parameters_of_a_recipe_of_ours_for_molecules():
    inputs = Inputs(node=Features(categories=ATOMS.categories), edge=Features(categories=BONDS.categories))
    count = _count(read_config(config_tree("graphs", read_recipe("primphormer/molhiv.yaml"))), inputs)
    assert _says((RECIPES / "primphormer/molhiv.yaml").read_text(), count)


@pytest.mark.parametrize("recipe", NODES)
def test_its_parameters_on_nodes(recipe):
    _, dim, num_classes, count = NODES[recipe]
    config = read_config(config_tree("nodes", read_recipe(f"{recipe}.yaml")))
    info = SourceInfo("its set", 1000, feature_dim=dim, has_label=True, num_classes=num_classes)
    assert _count(config, graph_inputs(info, config)) == count


def _run(job, *arguments):
    done = run_job(job.main, [*map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done


FEW = ["--fit.epochs", 1, "--fit.warmup_epochs", 0]
# Fewer and narrower layers, where the recipe's own take long.
SMALL = {
    "tokengt": ["--model.num_layers", 2, "--model.width", 64, "--model.num_heads", 4],
    "grit": ["--model.num_layers", 2, "--model.width", 32],
    "ppgt": ["--model.num_layers", 2, "--model.width", 32, "--model.num_heads", 4],
    "geco": ["--model.num_layers", 2, "--model.width", 32],
}


def _summary(recipe, tmp_path, *options):
    """Of a run of the recipe on its tiny set, ingested from its publisher's files."""
    stored, run = tmp_path / "stored", tmp_path / "run"
    name = NODES[recipe][0] if recipe in NODES else _set_of(recipe)
    more = ["--partitions", 1] if recipe in NODES else []
    if name.startswith("ogbn-"):
        pytest.importorskip("ogb")
        ogb_nodes(name, tmp_path)
        more += ["--ogb-root", tmp_path]
    elif name == "pcqm4mv2":
        pytest.importorskip("rdkit")
        pcqm4mv2(tmp_path)
        held_out = "--holdout 150000" in (RECIPES / f"{recipe}.yaml").read_text()
        more += ["--root", tmp_path, *(["--holdout", 8] if held_out else [])]
    else:
        write_set(name, tmp_path)
        more += ["--root", tmp_path]
    _run(ingest, name, stored, *more)
    job, few = (train_nodes, FEW) if recipe in NODES else (train_graphs, [*FEW, "--sampler.max_graphs", 12])
    _run(job, f"{recipe}.yaml", "--data", stored, *few, *options, "--run.dir", run)
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("geco/flickr", SMALL["geco"]),
        ("grit/pcqm4mv2", SMALL["grit"]),
        ("geco/pcqm_contact", SMALL["geco"]),
    ],
    ids=["nodes", "graphs", "pairs"],
)
def test_one_of_each_kind_trains_and_scores(recipe, options, tmp_path):
    assert set(_summary(recipe, tmp_path, *options)["scores"]) >= {"valid", "test"}


@pytest.mark.long
@pytest.mark.parametrize("recipe", [recipe for recipe in COUNTS if _set_of(recipe) != "pcqm4mv2"])
def test_it_ingests_trains_and_scores(recipe, tmp_path):
    summary = _summary(recipe, tmp_path)
    assert summary["num_parameters"] == COUNTS[recipe]
    assert set(summary["scores"]) == {"valid", "test"}


@pytest.mark.long
@pytest.mark.parametrize("recipe", [recipe for recipe in COUNTS if _set_of(recipe) == "pcqm4mv2"])
def test_it_ingests_trains_and_scores_molecules(recipe, tmp_path):
    summary = _summary(recipe, tmp_path, *SMALL[recipe.split("/")[0]])
    held_out = recipe.startswith(("grit/", "ppgt/"))  # the official test parts have no targets
    assert set(summary["scores"]) == ({"valid", "test"} if held_out else {"valid"})


@pytest.mark.long
@pytest.mark.parametrize("recipe", NODES)
def test_it_ingests_trains_and_scores_nodes(recipe, tmp_path):
    options = [*SMALL["ppgt"], "--sampler.max_nodes", 16] if recipe == "ppgt/arxiv" else []
    assert set(_summary(recipe, tmp_path, *options)["scores"]) >= {"valid", "test"}


@pytest.mark.parametrize("job", [train_nodes, train_graphs])
@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("cora", "graphmill train_nodes --data graphs/cora"),
        ("yelp", "graphmill train_nodes --data graphs/yelp --task binary --task.metric micro_f1"),
        ("mnist", "graphmill train_graphs --data graphs/mnist --task classes"),
    ],
)
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_set_that_is_not_ingested_yet_is_told_how(job, name, then, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_job(job.main, ["--data", name, *plan])
    assert done.returncode == 1
    assert f"graphmill ingest {name} graphs/{name}, then {then}" in done.stderr.strip().splitlines()[-1]
