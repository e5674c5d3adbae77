"""`import graphmill as gm` is fast, every public name can be loaded, and `graphmill COMMAND` runs the command COMMAND."""

import ast
import pydoc
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import graphmill as gm


def test_the_import_loads_nothing_heavy():
    probe = "import sys, graphmill; print({'torch', 'ray', 'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "set()"


def test_every_name_loads():
    for space in (gm, gm.samplers, gm.models):
        for name in dir(space):
            assert getattr(space, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'GECKO'; perhaps GECO"):
        gm.models.GECKO  # noqa: B018
    with pytest.raises(AttributeError, match="perhaps NeighborSampler"):
        gm.samplers.NeighbourSampler  # noqa: B018
    with pytest.raises(AttributeError, match="perhaps train"):
        gm.trian  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        gm.zzz  # noqa: B018


def test_editors_are_told_the_same_names():
    stub = ast.parse(Path(gm.__file__).with_suffix(".pyi").read_text())
    imported = [(node.module, name) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names]
    told = {name.asname: f"{module}:{name.name}" for module, name in imported if module}
    assert told == gm._NAMES
    assert {name.name for module, name in imported if not module} == set(gm._PACKAGES)


def test_help_shows_the_functions(capsys):
    pydoc.doc(gm, output=sys.stdout)
    said = capsys.readouterr().out
    for name in ("train", "open_graph", "ingest", "predict"):
        assert re.search(rf"^    {name}\(", said, re.MULTILINE), name


@pytest.mark.parametrize("command", gm.COMMANDS)
def test_every_command_has_help(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", command, "--help"])
    with pytest.raises(SystemExit) as end:
        gm.main()
    said = capsys.readouterr()
    assert end.value.code == (2 if command == "bench" else 0)
    assert "usage" in said.out + said.err


@pytest.mark.parametrize("words", [(), ("help",), ("--help",)])
def test_the_help_has_a_line_for_each_command(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", *words])
    gm.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(gm.COMMANDS)
    assert all(len(line.split()) > 3 for line in lines)


def test_the_version_is_that_of_the_project(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", "--version"])
    gm.main()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"graphmill {project['version']}"
    assert [line.split()[0] for line in lines[2:]] == list(gm._VERSIONS)
    assert f"torch {torch.__version__}" in lines
    assert gm.__version__ == project["version"]


def test_a_wrong_command_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", "tarin"])
    with pytest.raises(SystemExit) as end:
        gm.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("unknown command tarin, perhaps train; usage: graphmill COMMAND")
