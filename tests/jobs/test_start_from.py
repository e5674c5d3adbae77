"""Tests fine-tuning: a run begins with the weights of another run or of a converted checkpoint.

Weights that do not fit are refused in one line.
"""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import graphmill as gm
from graphmill.jobs import train_graphs, train_links, train_nodes
from graphmill.jobs.config.config import config_tree, read_config
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.convert_checkpoint import save_converted
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.tasks.build_model import build_model
from graphmill.models.options.features import Features
from graphmill.storage.graph_sets.graph_set import open_graphs
from tests.job_in_process import output_of, run_job
from tests.jobs.test_column_scales import write_set
from tests.jobs.test_predict_unseen import shops

SIZES = ["--model.width", "16", "--model.num_layers", "1", "--model.num_heads", "2"]
SMALL = ["--data.molecules", "60", "--model", "tokengt", *SIZES, "--fit.epochs", "1", "--fit.warmup_epochs", "0"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
STILL = ["--fit.learning_rate", "1e-30", "--fit.weight_decay", "0"]


def _train(folder, run, *words):
    return run_job(train_graphs.main, [*SMALL, "--data.folder", str(folder), "--run.dir", str(run), *map(str, words)])


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("molecules")
    done = _train(folder, folder / "first")
    assert done.returncode == 0, done.stderr
    return folder


def read_tensors(url):
    """Tensors of all graphs with a given class and split, from a stored set."""
    stored = open_graphs(url)
    for number in range(len(stored)):
        one = stored.fetch(np.array([number]))
        yield SimpleNamespace(
            x=one.node_feature,
            edge_attr=one.edge_feature,
            edge_index=one.edge_index,
            num_nodes=len(one.node_feature),
            y=np.array([number % 3]),
            part=("train", "valid", "test")[number % 3 if number % 2 else 0],
        )


def _weights(run):
    return load_file(run / "best" / "model.safetensors")


@pytest.mark.long
def test_performer_begins_with_softmaxs_weights(first, tmp_path):
    """TokenGT with Performer is fine-tuned from a run with softmax. The projections, which softmax does not have, are drawn; all other weights come from the
    first run."""
    start = ["--fit.start_from", first / "first", "--model.attention", "performer"]
    done = _train(first, tmp_path / "run", *start, *STILL)
    assert done.returncode == 0, done.stderr
    assert f"beginning with the weights of {first / 'first'}" in done.stdout
    before, after = _weights(first / "first"), _weights(tmp_path / "run")
    assert {name.rpartition(".")[2] for name in after.keys() - before.keys()} == {"projection_RD", "num_calls"}
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.long
def test_a_resumed_run_needs_the_first_one_no_more(first, tmp_path):
    copy = tmp_path / "weights.safetensors"
    copy.write_bytes((first / "first" / "best" / "model.safetensors").read_bytes())
    assert _train(first, tmp_path / "run", "--fit.start_from", copy).returncode == 0
    copy.unlink()
    output_of(train_graphs.main, "--run.resume", str(tmp_path / "run"), "--fit.epochs", "2")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epochs"] == 2


def test_a_converted_checkpoint(first, tmp_path):
    config = json.loads((first / "first" / "config.json").read_text())
    tree = {name: config[name] for name in ("kind", "model")}
    inputs = replace(PLACEHOLDERS["graphs"], edge=Features(categories=(2,)))
    made = build_model(read_config(config_tree("graphs", tree)).model, "graphs", inputs)
    # The weights of the run, under the names that a converted checkpoint has.
    weights = {name.removeprefix("model."): tensor for name, tensor in _weights(first / "first").items()}
    network = made.model
    for name, tensor in weights.items():
        owner, _, leaf = name.rpartition(".")
        getattr(network.get_submodule(owner), leaf).data = tensor
    save_converted(network, "tokengt", tmp_path / "converted")
    done = _train(first, tmp_path / "run", "--fit.start_from", tmp_path / "converted", *STILL)
    assert done.returncode == 0, done.stderr
    after = _weights(tmp_path / "run")
    for name, tensor in weights.items():
        torch.testing.assert_close(after[f"model.{name}"], tensor, rtol=1e-6, atol=1e-9)


def test_another_task_begins_with_a_fresh_head(tmp_path):
    """The model is pre-trained on one set and fine-tuned on another set with another task.

    The body keeps its weights; the new head has a higher learning rate.
    """
    sets = {name: write_set(tmp_path, name, training) for name, training in (("plain", 40), ("all", 30))}
    target = read_tensors(sets["all"])
    small = ["--model", "grit", *SIZES, *STILL, "--fit.epochs", "1", "--sampler.max_graphs", "8"]
    output_of(train_graphs.main, *small, "--data", sets["plain"], "--run.dir", tmp_path / "first")
    gm.ingest_graphs(target, str(tmp_path / "classes"), split="part")
    words = [*small, "--data", tmp_path / "classes", "--task", "classes", "--data.standardise", "no"]
    words += ["--fit.start_from", tmp_path / "first"]
    refused = run_job(train_graphs.main, [*map(str, words), "--run.dir", str(tmp_path / "refused")])
    last = refused.stderr.strip().splitlines()[-1]
    assert re.search(
        r"2 tensors differ: expected model\.head\S+ of shape .* begin its head anew with --fit.fresh_head$", last
    )
    words += ["--fit.fresh_head", "yes", "--fit.freeze", "model.layers.*", "--fit.rates", "head.*=1e28"]
    output_of(train_graphs.main, *words, "--run.dir", tmp_path / "second")
    before, after = _weights(tmp_path / "first"), _weights(tmp_path / "second")
    for name, tensor in before.items():
        if name.startswith("model.layers"):  # frozen, also their running statistics
            assert torch.equal(after[name], tensor), name
        elif not name.startswith("model.head") and not name.endswith(STATISTICS):
            torch.testing.assert_close(after[name], tensor, rtol=1e-6, atol=1e-9)
    # The learning rate is 1e-30, so only parameters with the factor 1e28 change.
    resolved = read_run(tmp_path / "second").model().trained
    torch.manual_seed(resolved.fit.seed)
    began = resolved.build_model().state_dict()
    moved = {name for name in after if name.startswith("model.head") and not torch.allclose(after[name], began[name])}
    assert moved == {name for name in after if name.startswith("model.head")}


def test_a_model_of_links_becomes_one_of_nodes(tmp_path):
    shops(tmp_path, "graph", 8, ["--links.valid", 0.3, "--links.test", 0.3], rows=range(24))
    data = [
        "--data",
        tmp_path / "graph",
        "--model",
        *("sage", "--model.norm", "layer"),
        *SIZES[:4],
        "--fit.epochs",
        "1",
        "--fit.warmup_epochs",
        "0",
    ]
    output_of(train_links.main, *data, "--sampler.fanouts", 5, "--run.dir", tmp_path / "links")
    start = ["--fit.start_from", tmp_path / "links", "--fit.fresh_head", "yes", *STILL]
    output_of(train_nodes.main, *data, *start, "--run.dir", tmp_path / "nodes")
    before, after = _weights(tmp_path / "links"), _weights(tmp_path / "nodes")
    body = [name for name in after if name.startswith("model.layers") and not name.endswith(STATISTICS)]
    assert body
    for name in body:
        torch.testing.assert_close(after[name], before[f"encoder.{name}"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--fit.start_from", "{first}", "--model.width", "32"],
            "tensors differ: expected model.* of shape .*, found .*; give the run the options of that model: --model.width 16$",
        ),
        (["--task", "binary", "--fit.fresh_head", "yes"], "fresh_head: expected no, or --fit.start_from beside it"),
        (
            ["--fit.freeze", "layer.*"],
            r"freeze: expected a pattern of parameters of model\.embedding.*, got 'layer\.\*'",
        ),
        (["--fit.freeze", "*"], "freeze: expected parameters that are left to train"),
        (["--fit.rates", "head.*"], "rates: expected PATTERN=FACTOR each"),
        (["--fit.rates", "body.*=2"], "rates: expected a pattern of parameters"),
        (["--fit.start_from", "{nowhere}"], "expected a finished run, a folder with model.safetensors, or such a file"),
        (["--fit.start_from", "{damaged}"], "expected a safetensors file, found damage"),
    ],
)
def test_what_does_not_fit_is_one_line(first, tmp_path, words, message):
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    places = {"first": first / "first", "nowhere": tmp_path / "no", "damaged": tmp_path / "damaged.safetensors"}
    done = _train(first, tmp_path / "run", *(word.format(**places) for word in words))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(message, last), last
