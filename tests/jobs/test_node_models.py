"""Tests Primphormer, TokenGT, GRIT, PPGT and GraphSAGE on nodes, end to end on a tiny graph. Wrong options give one line."""

import json

import pytest
from safetensors.torch import load_file

from graphmill.jobs import train_nodes
from graphmill.jobs.config.registry import Inputs
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.models.options.features import Features
from tests.job_in_process import run_job
from tests.recipe_options import options_of
from tests.runs import config_of

TINY = "--data.nodes 600 --data.partitions 1 --workers 1 --fit.epochs 2 --fit.warmup_epochs 0 --fit.checkpoint_every 1 --run.dir run"
MODELS = {
    "primphormer": "--model.width 32 --model.position.kind laplacian_linear --model.position.steps 4 --sampler.num_chunks 2",
    "tokengt": "--model.width 16 --model.num_layers 1 --model.identifier laplacian --model.identifier_dim 4 --sampler.num_chunks 2",
    "polynormer": "--model.width 16 --model.num_heads 2 --model.num_layers 2 --model.local_epochs 1 --sampler.num_chunks 2",
    "sgformer": "--model.width 16 --sampler.num_chunks 2",
    "sage": "--model.width 16 --sampler neighbor --sampler.fanouts 5 5 5 --sampler.batch_size 64",
    "grit": "--model.width 16 --model.num_layers 1 --model.num_heads 2 --sampler.max_nodes 8",
    "ppgt": "--model.width 16 --model.num_layers 1 --sampler.max_nodes 8",
}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["grit", "ppgt", "polynormer"])
def test_the_job_trains_and_reports(model, tmp_path):
    trains_and_reports(model, "process", tmp_path)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_job_trains_and_reports_through_ray(model, shared_ray, tmp_path):
    trains_and_reports(model, "ray", tmp_path)


def trains_and_reports(model, launcher, tmp_path):
    words = f"--model {model} {TINY} {MODELS[model]} --workers.launcher {launcher}"
    done = run_job(train_nodes.main, words.split(), tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert done.returncode == 0
    assert sum(summary["counts"].values()) == 600
    assert summary["epochs"] == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["train_loss"] < lines[0]["train_loss"]
    assert (tmp_path / "run" / "best" / "config.json").exists()


@pytest.mark.slow
def test_the_part_of_polynormer_that_is_not_trained_yet_keeps_its_weights(tmp_path):
    """Adam's coupled weight decay would move a parameter whose gradient is 0."""
    own = MODELS["polynormer"].replace("local_epochs 1", "local_epochs 9")
    words = f"--model polynormer {TINY} {own} --fit.optimizer adam --fit.weight_decay 0.1 --workers.launcher process"
    done = run_job(train_nodes.main, words.split(), tmp_path)
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "run" / "best" / "model.safetensors")
    norms = {name: each for name, each in weights.items() if name.endswith("norm.weight")}
    untrained = [each for name, each in norms.items() if "global_layers" in name or name.endswith("model.norm.weight")]
    assert len(untrained) == 2
    assert all((each == 1).all() for each in untrained)
    assert not any((each == 1).all() for name, each in norms.items() if "local_layers" in name)


def test_tokengts_default_recipe_with_what_the_graph_and_the_run_decide():
    facts = Facts(Inputs(node=Features(dim=9), out_dim=5, task="node"), {}, None)
    resolved = resolve(config_of("--model", "tokengt", "--run.defaults", "recipe", "--fit.seed", 3), facts)
    assert resolved.encoding is not None
    given = {"node": Features(dim=9), "out_dim": 5, "encoding": resolved.encoding.name, "seed": 3}
    assert resolved.model_config == options_of("defaults/nodes-tokengt", **given)
