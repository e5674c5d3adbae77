"""Tests that options from Python mean the same as on the command line, or are refused.

A training leaves the program's state unchanged, and other trainings do not change its numbers.
"""

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphmill as gm
from graphmill.core.errors import ConfigError, ConflictError, GraphmillError, StageError, Terminated
from graphmill.jobs import train_nodes
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.reader import read_words, shown
from graphmill.jobs.reporting.plot import Plot
from graphmill.jobs.run.train import config, layered
from tests.job_in_process import one_thread, run_job

SMALL: dict[str, Any] = {
    "data": {"nodes": 300},
    "model": {"width": 8, "num_layers": 2},
    "sampler": {"num_chunks": 3},
    "workers": {"launcher": "process"},
}
TAKEN: dict[str, list[object]] = {
    "fit.epochs": [1, 7],
    "fit.steps": [9, None],
    "fit.learning_rate": [1e-3, np.float32(0.5)],
    "fit.patience": [None, 4],
    "fit.schedule": ["cosine", "constant"],
    "model": ["geco", "gcn"],
    "model.num_layers": [2, "auto"],
    "sampler": ["neighbor"],
    "sampler.fanouts": [[5, 5], (3, -1)],
    "servers.verify": [True, False],
    "data.path": ["graphs/of mine", Path("there")],
    "data.split_set": [1, np.int64(2)],
    "baseline.models": [[], ["gcn", "gat"]],
    "run.dir": ["runs/--one", None],
}
MISSPELT: dict[str, list[object]] = {
    "fit.epoch": [1],
    "modle": ["geco"],
    "fitt.seed": [3],
    "model.with": [8],
    "fit.seed": ["x"],
}


def typed(value: Any) -> list[str]:
    """The words that a user types for this value on a command line."""
    if isinstance(value, list | tuple):
        return [str(one) for one in value] or ["none"]
    return ["none" if value is None else "yes" if value is True else "no" if value is False else str(value)]


def outcome(say: Any) -> object:
    try:
        return say()
    except GraphmillError as error:
        return type(error), str(error)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_words_are_what_a_shell_makes_of_them_or_refused(data):
    pool = TAKEN | (MISSPELT if data.draw(st.booleans()) else {})
    said = [
        (
            path,
            data.draw(st.sampled_from(pool[path])),
            data.draw(st.sampled_from(["dotted", "mapping", "flag", "group"])),
        )
        for path in data.draw(st.lists(st.sampled_from(sorted(pool)), max_size=6, unique=True))
    ]
    recipe = data.draw(st.sampled_from([(), ("geco/cora.yaml",), ("nowhere.yaml",), ("data", "graphs/none")]))
    mappings, flags, groups, shell = [], [], {}, []
    for way in ("dotted", "mapping", "flag", "group"):
        for path, value, _ in (one for one in said if one[2] == way):
            group, _, option = path.partition(".")
            nested = {option or "name": value} if group in ("model", "sampler") or option else value
            if way == "dotted":
                mappings.append({f"--{path}": value})
            elif way == "mapping":
                mappings.append({group: nested})
            elif way == "flag":
                flags += [f"--{path.replace('_', '-')}", value]
            else:
                groups[group] = {**groups.get(group, {}), **nested} if isinstance(nested, dict) else nested
            shell += [f"--{path}", *typed(value)]
    here = outcome(lambda: config(*recipe, *mappings, *flags, **groups))
    there = outcome(lambda: layered("nodes", [], recipe, read_words(shell)[1]))
    assert here == there
    if isinstance(here, RunConfig):  # the words were accepted, so every value must have arrived
        values = here.options() | dict.fromkeys(here.open, "auto")
        assert {path: shown(values.get(path)) for path, *_ in said} == {path: " ".join(typed(v)) for path, v, _ in said}


@pytest.mark.parametrize(
    ("words", "groups", "told"),
    [
        (["data", "graphs/none"], {}, "expected one recipe, got 'data graphs/none'"),
        (["cora"], {}, "none; recipes/ has ours, such as geco/cora.yaml"),
        (["geco/cora.yaml"], {"recipe": "grit/brec.yaml"}, "expected one recipe"),
        ([], {"fit": {"epoch": 3}}, r"unknown option fit=\{\"epoch\": …\}; perhaps fit=\{\"epochs\": …\}"),
        ([], {"sampler": object()}, "^sampler=…: expected text, a number.*, got object"),
        (["--fit.epochs", {"fit": {}}], {}, r"^fit=\{\"epochs\": …\}: got a dict after other words"),
        (["--model"], {"recipe": "geco/cora.yaml"}, "expected one name, got nothing"),
    ],
)
def test_what_is_not_understood_is_named(words, groups, told):
    with pytest.raises(ConfigError, match=told):
        gm.config(*words, **groups)


def test_what_is_said_last_counts_and_differences_are_told():
    assert gm.config("--fit.epochs", 3, "--fit", 5, "--fit.epochs", 4).fit.epochs == 4
    assert gm.config("--model.name", "gcn", "--model", "geco").model.name == "geco"
    cora = gm.config("geco/cora.yaml")
    assert gm.config(cora) is cora
    more = gm.config(cora, fit={"epochs": 3}, kind="nodes")
    assert cora.diff(more) == {"fit.epochs": (300, 3)}
    assert gm.config().diff(gm.config(fit={"epochs": 3})) == {"fit.epochs": ("auto", 3)}
    assert cora.diff(gm.config(cora, model="tokengt"))["model.block"][1] is None


def made(run: Path) -> tuple[list[tuple[float, float]], bytes]:
    """(the losses of all epochs, the best weights) of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["train_loss"]) for line in lines], (run / "best" / "model.safetensors").read_bytes()


def train(run: str, **said: Any) -> tuple[list[tuple[float, float]], bytes]:
    with one_thread():
        gm.train(SMALL, fit={"epochs": 3, "patience": None} | said, run={"dir": run})
    return made(Path(run))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plot, "svg", lambda _: None)  # drawing plots takes a third of the time of a small run
    return tmp_path


def when_an_epoch_is_told(run: str, do: Any) -> threading.Thread:
    def wait() -> None:
        deadline = time.monotonic() + 120
        while not (Path(run) / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("signum", "error"),
    [(signal.SIGINT, KeyboardInterrupt), pytest.param(signal.SIGTERM, Terminated, marks=pytest.mark.long)],
)
def test_an_interrupt_stays_one_and_changes_no_other_training(folder, capsys, signum, error):
    alone = train("alone")
    thread = when_an_epoch_is_told("cut", lambda: os.kill(os.getpid(), signum))
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    with pytest.raises(error) as raised:
        train("cut", epochs=2000)
    thread.join()
    assert raised.type is error
    assert gm.read_run("cut").status == "stopped"
    again = train("again")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert [random.getstate(), np.random.get_state()[1].tolist()] == states[1:]
    assert again == alone
    done = len((folder / "cut" / "metrics.jsonl").read_text().splitlines())
    (command,) = re.findall(r"^gm\.train\(resume=\"cut\"\)$", capsys.readouterr().err, re.MULTILINE)
    run = eval(command.replace(")", f", fit={{'epochs': {done + 2}}})"), {"gm": gm})
    assert [epoch["epoch"] for epoch in run.epochs] == list(range(done + 2))


def test_a_second_training_in_a_thread_is_refused_at_once(folder):
    alone, second = train("alone"), []
    first = threading.Thread(target=lambda: second.append(train("first")))
    with pytest.MonkeyPatch.context() as patch:
        begins, goes_on = threading.Event(), threading.Event()
        patch.setattr("graphmill.jobs.run.train.choose_run_dir", lambda job, run: (begins.set(), goes_on.wait(60)))
        first.start()
        begins.wait(60)
        with pytest.raises(ConflictError, match="expected no other training or prediction in this process"):
            train("refused")
        goes_on.set()
        first.join()
    assert second == [alone]
    assert not (folder / "refused").exists()


def test_a_resume_from_python_is_the_shells(folder):
    train("shell", schedule="cosine")
    shutil.copytree("shell", "python")
    with one_thread():
        done = run_job(train_nodes.main, ["--run.resume", "shell", "--fit.epochs", "6"])
        assert done.returncode == 0, done.stderr
        gm.train(resume="python", fit={"epochs": 6})
    configs = [json.loads((folder / run / "config.json").read_text()) for run in ("shell", "python")]
    assert configs[1]["fit"]["schedule"] == "cosine"
    for each in configs:
        each["run"].update(resume=None)
    assert configs[0] == configs[1]
    assert made(folder / "python") == made(folder / "shell")


def test_baselines_that_are_required_are_beaten_or_it_is_an_error(folder):
    with pytest.raises(StageError, match=r"does not beat .* \(run=\{\"require_baselines\": True\}\)$"):
        gm.train(SMALL, fit={"epochs": 1, "learning_rate": 1e-9}, run={"dir": "weak", "require_baselines": True})
    assert gm.read_run("weak").status == "finished"


def test_a_prediction_is_told_its_unknown_options(folder):
    with pytest.raises(ConfigError, match='unknown option splt="test"; perhaps split=…'):
        gm.predict("run", splt="test")
