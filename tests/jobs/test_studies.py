"""Tests the papers' studies. Every arm can be read and built. On a tiny set in the real layout, every arm trains a step and is scored."""

import json
import shutil

import pytest
import torch

from graphmill.core.errors import ConfigError
from graphmill.jobs import ingest, sweep, train_graphs, train_nodes
from graphmill.jobs.config.config import RECIPES
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.sweeps.design import ARM, SweepOptions, design_sweep
from graphmill.jobs.tasks.build_model import build_model
from graphmill.storage.importers.public.data_sets import DATA_SETS
from tests.job_in_process import output_of, run_job
from tests.raw_layouts import ogb_nodes, write_set

STUDIES = sorted(str(path.relative_to(RECIPES)) for path in (RECIPES / "studies").glob("*.yaml"))
# Pairs (study, recipe). The comment at the top of the study also names this recipe.
OTHERS = [
    ("studies/primphormer_virtual_nodes.yaml", "primphormer/peptides_func.yaml"),
    ("studies/primphormer_attention.yaml", "primphormer/malnet_tiny.yaml"),
    ("studies/primphormer_attention.yaml", "primphormer/products.yaml"),
    ("studies/geco_local_block.yaml", "geco/peptides_struct.yaml"),
    ("studies/geco_hyena.yaml", "geco/yelp.yaml"),
    ("studies/tokengt_nodes.yaml", "tokengt/chameleon.yaml"),
]


def _plan(study, recipe=None, words=()):
    return design_sweep(SweepOptions(study=study, recipe=recipe), words)


@pytest.mark.parametrize(("study", "recipe"), [(study, None) for study in STUDIES] + OTHERS)
def test_its_arms_are_runs_that_differ(study, recipe):
    plan = _plan(study, recipe, ("--data", "graphs/some"))
    configs = [plan.config(slot.values, slot.seed) for slot in plan.slots()]
    assert [slot.values[ARM] for slot in plan.slots()] == list(plan.arms)
    assert len({json.dumps(config.tree(), sort_keys=True) for config in configs}) == len(configs) > 1
    for config in configs:
        with torch.device("meta"):
            model = build_model(config.model, config.kind, PLACEHOLDERS[config.kind])
        assert sum(parameter.numel() for parameter in model.parameters()) > 1000


@pytest.mark.parametrize("study", STUDIES)
def test_its_head_says_the_papers_figures_and_how_to_run_it(study):
    head = [line for line in (RECIPES / study).read_text().splitlines() if line.startswith("#")]
    told = " ".join(head)
    assert "in the paper" in told
    assert "Ours: " in told
    assert any(f"jobs/sweep.py --study {study}" in line for line in head)
    assert f"| `{study.removesuffix('.yaml')}` |" in (RECIPES.parent / "docs/guides/recipes.md").read_text()


def test_an_arm_with_the_recipes_own_value_is_the_recipe():
    plan = _plan("studies/grit_walk_lengths.yaml")
    assert plan.config({ARM: "K=21"}, None).model.options.rrwp_steps == 21
    assert plan.config({ARM: "K=7"}, None).model.options.rrwp_steps == 7


def _stored(recipe, tmp_path):
    name = recipe.split("/")[1].removesuffix(".yaml").replace("_", "-")
    stored, root = tmp_path / "stored", "--root"
    if name in DATA_SETS:
        write_set(name, tmp_path)
    else:
        pytest.importorskip("ogb")
        name, root = f"ogbn-{name}", "--ogb-root"
        ogb_nodes(name, tmp_path)
    output_of(ingest.main, name, str(stored), root, str(tmp_path))
    return stored


@pytest.mark.long
@pytest.mark.parametrize(("study", "recipe"), [(study, None) for study in STUDIES] + OTHERS)
def test_every_arm_trains_and_scores(study, recipe, tmp_path):
    import yaml

    recipe = recipe or yaml.safe_load((RECIPES / study).read_text())["recipe"]
    stored, plan = _stored(recipe, tmp_path), _plan(study, recipe, ("--data", "graphs/some"))
    few = ["--fit.epochs", "1", "--fit.warmup_epochs", "0"]
    for name, arm in plan.arms.items():
        words = [word for path, value in arm.items() for word in (f"--{path}", *value.split())]
        kind = plan.config({ARM: name}, None).kind
        job = train_graphs if kind == "graphs" else train_nodes
        few_graphs = ["--sampler.max_graphs", "12"] if kind == "graphs" else []
        run = tmp_path / "run"
        done = run_job(job.main, [recipe, "--data", str(stored), *few, *few_graphs, *words, "--run.dir", str(run)])
        assert done.returncode == 0, (name, done.stderr)
        assert json.loads((run / "summary.json").read_text())["scores"], name
        shutil.rmtree(run)


@pytest.mark.long
def test_a_study_is_swept(tmp_path):
    stored = _stored("grit/zinc.yaml", tmp_path)
    small = ["--model.width", "16", "--model.num_layers", "2", "--fit.epochs", "1", "--fit.warmup_epochs", "0"]
    study = tmp_path / "two.yaml"
    study.write_text("recipe: grit/zinc.yaml\narms:\n  paper: {}\n  sparse attention: {model.sparse: yes}\n")
    own = ["--study", str(study), "--out", str(tmp_path / "out"), "--at_once", "1"]
    said = output_of(sweep.main, *own, "--", "--data", str(stored), *small, "--sampler.max_graphs", "12")
    assert "arm=sparse attention" in said
    configs = [json.loads((tmp_path / "out" / f"trial-00{i}" / "config.json").read_text()) for i in range(2)]
    assert [config["model"]["sparse"] for config in configs] == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: grit/zinc.yaml\n", "expected a study: recipe, the name of one, and arms"),
        ("recipe: grit/zinc.yaml\narms: {one: 3}\n", "expected a study"),
        ("recipe: grit/zinc.yaml\narms: {one: {model.nothing: 3}}\n", "trial with arm=one: .*nothing"),
    ],
)
def test_a_file_that_is_no_study_is_one_line(tmp_path, text, message):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        _plan(str(tmp_path / "study.yaml"))
    assert "\n" not in str(caught.value)


def test_some_arms_of_a_study():
    plan = design_sweep(SweepOptions(study="studies/grit_ablations.yaml", arms=("rwse", "paper")), ())
    assert list(plan.arms) == ["paper", "rwse"]
    assert len(list(plan.slots())) == 2
    with pytest.raises(
        ConfigError, match=r"--arms: expected some of studies/grit_ablations\.yaml's paper, .*, got rws"
    ):
        design_sweep(SweepOptions(study="studies/grit_ablations.yaml", arms=("rws",)), ())
    with pytest.raises(ConfigError, match="arms rwse: expected a study"):
        SweepOptions(arms=("rwse",))


def test_what_an_arm_says_is_not_said_after_the_dashes():
    with pytest.raises(ConfigError, match=r"--model\.sparse is tried, and stands after --"):
        _plan("studies/grit_ablations.yaml", words=("--model.sparse", "yes"))
