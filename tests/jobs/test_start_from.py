"""Fine-tuning: a run begins with another run's weights, or a converted checkpoint's, and what does not fit is one line."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from graphmill.jobs import train_graphs
from graphmill.jobs.config.config import config_tree, read_config
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.convert_checkpoint import save_converted
from graphmill.jobs.tasks.build_model import build_model
from graphmill.models.options.features import Features
from tests.job_in_process import output_of, run_job

SIZES = ["--model.width", "16", "--model.num_layers", "1", "--model.num_heads", "2"]
SMALL = ["--data.molecules", "60", "--model", "tokengt", *SIZES, "--fit.epochs", "1", "--fit.warmup_epochs", "0"]
STILL = ["--fit.learning_rate", "1e-30", "--fit.weight_decay", "0"]


def _train(folder, run, *words):
    return run_job(train_graphs.main, [*SMALL, "--data.folder", str(folder), "--run.dir", str(run), *map(str, words)])


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("molecules")
    done = _train(folder, folder / "first")
    assert done.returncode == 0, done.stderr
    return folder


def _weights(run):
    return load_file(run / "best" / "model.safetensors")


@pytest.mark.long
def test_performer_begins_with_softmaxs_weights(first, tmp_path):
    """TokenGT's fine-tune: the projections that softmax has not are drawn anew, all else is the first run's."""
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
    # The run's own features, in the checkpoint's plain names.
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--fit.start_from", "{first}", "--model.width", "32"],
            "expected model.* of shape .*give the run the options of that model",
        ),
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
