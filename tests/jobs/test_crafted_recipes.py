"""Tests that malicious or mistaken recipes are refused at once, with one line of bounded length."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from graphmill.jobs.config.config import RECIPES, read_recipe
from graphmill.jobs.run.train import train_main
from tests.job_in_process import run_job

_NINE = ",".join(["*a{}"] * 9)
_LEVELS = [f"a{level}: &a{level} [{_NINE.replace('{}', str(level - 1))}]\n" for level in range(1, 12)]

# Name → (recipe, expected part of the message).
CRAFTED: dict[str, tuple[str | bytes, str]] = {
    "6 levels of aliases": ("a0: &a0 [x]\n" + "".join(_LEVELS[:5]) + "model: *a5\n", "without anchors"),
    "12 levels of aliases": ("a0: &a0 [x]\n" + "".join(_LEVELS) + "model: *a11\n", "without anchors"),
    "an alias of itself": ("model: &m {name: *m}", "without anchors"),
    "a tag": ("fit: {epochs: !!int ''}", "without anchors"),
    "an object's tag": ("fit: !!python/object/apply:os.system [ls]", "without anchors"),
    "deep lists": ("fit: " + "[" * 50_000, "at most 20 levels"),
    "deep names": ("{" + "a: {" * 50_000, "at most 20 levels"),
    "a list as a name": ("? [fit]\n: 1", "a name before the colon"),
    "two documents": ("fit: {}\n---\nfit: {}", "single document"),
    "a number of 5,000 digits": ("fit: {epochs: " + "9" * 5000 + "}", "cannot be read as YAML"),
    "a 13th month": ("fit: {epochs: 2024-13-01}", "month must be in 1..12"),
    "2 MiB": ("# " + "x" * 2**21, "at most 1048576 bytes"),
    "other bytes": (b"\xff\xfe\x00fit", "cannot be read as YAML"),
    "a list": ("[1, 2]", "names and values, got list"),
    "a number as a name": ("fit: {1: 2}", "unknown option --fit.1"),
    "a switch as a name": ("fit: {on: 2}", "unknown option --fit.on"),
    "a model that is a list": ("model: [geco, gcn]", "expected a name, got ['geco', 'gcn']"),
    "a model that is a number": ("model: 3", "expected a name, got 3"),
    "a model's name that is a mapping": ("model: {name: {a: b}}", "expected a name, got {'a': 'b'}"),
    "a model of 300 letters": (f"model: {'m' * 300}", "model: expected one of geco"),
    "a long list": (f"fit: {{epochs: [{'7, ' * 100_000}]}}", "--fit.epochs: expected an integer, got [7, 7,"),
    "a long text": (f"fit: {{epochs: {'x' * 500_000}}}", "--fit.epochs: expected an integer"),
    "a long option": (f"fit: {{{'x' * 1000}: 1}}", "unknown option --fit.xxx"),
    "a zero byte in a path": (
        'data: {path: "a\\0b"}',
        "--data.path: expected at most 4096 characters, none of them zero",
    ),
    "a huge number": ("fit: {epochs: 1.0e+300}", "--fit.epochs: expected an integer, got 1e+300"),
    "a number for a mapping": (
        "sampler: {name: typed-neighbor, relation_fanouts: 3}",
        "--sampler.relation_fanouts: expected NAME=1,2 for each name, got 3",
    ),
    "mappings in a list": (
        "sampler: {name: typed-neighbor, relation_fanouts: [{a: 1}]}",
        "--sampler.relation_fanouts: expected NAME=1,2 for each name, got [{'a': 1}]",
    ),
    "a base that is itself": ("base: recipe.yaml\nfit: {epochs: 1}", "base: expected another recipe's path"),
    "a base that is a list": ("base: [a]\nfit: {epochs: 1}", "base: expected another recipe's path, got ['a']"),
    "a base of 300 letters": (f"base: {'m' * 300}", "cannot be read as YAML"),
    "a base with a zero byte": ('base: "a\\0b"', "cannot be read as YAML"),
}


def _refused(folder: Path) -> str:
    began = time.process_time()
    done = run_job(partial(train_main, "A run."), ["recipe.yaml", "--plan"], folder)
    assert done.returncode != 0
    assert done.stderr.startswith("error: "), done.stderr[:1000]
    assert done.stderr.count("\n") == 1, done.stderr[:1000]
    assert len(done.stderr) < 2200, done.stderr[:1000]
    assert time.process_time() - began < 5
    return done.stderr


@pytest.mark.parametrize("name", CRAFTED)
def test_one_line(name, tmp_path):
    text, says = CRAFTED[name]
    (tmp_path / "recipe.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert says in _refused(tmp_path)


@pytest.mark.parametrize("made", ["a pipe", "a device", "a folder"])
def test_what_is_no_file_is_not_waited_for(made, tmp_path):
    place = tmp_path / "recipe.yaml"
    {"a pipe": os.mkfifo, "a folder": os.mkdir, "a device": lambda path: os.symlink("/dev/zero", path)}[made](place)
    says = (
        "got a folder; name a stored" if made == "a folder" else "expected a file, found a folder, a pipe or a device"
    )
    assert says in _refused(tmp_path)


def test_bases_lie_over_each_other_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("model: {name: gcn, width: 8}\nfit: {epochs: 1, seed: 1, steps: 5}")
    Path("b.yaml").write_text("base: a.yaml\nmodel: sage\nfit: {seed: 2, learning_rate: 0.1}")
    Path("c.yaml").write_text("base: b.yaml\nmodel: {name: gcn, dropout: 0.1}\nfit: {epochs: 3}")
    # If a recipe sets epochs, the steps of its base are dropped.
    fit = {"seed": 2, "learning_rate": 0.1, "epochs": 3}
    assert read_recipe("c.yaml") == {"model": {"name": "gcn", "dropout": 0.1}, "fit": fit}


def test_our_recipes_name_no_other_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the recipes of Graphmill lie outside of this folder
    paths = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml"))
    assert len(paths) > 60
    for path in set(paths) - {"baselines/search.yaml"}:  # search.yaml is a list of values to try, not a recipe
        read_recipe(path)
