"""`import graphmill as gm` is instant, every public name loads, and `graphmill COMMAND` is the command of that name."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import graphmill as gm


def test_the_import_loads_nothing_heavy():
    probe = "import sys, graphmill; print({'torch', 'ray', 'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "set()"


def test_every_name_loads():
    for space in (gm, gm.samplers, gm.models):
        for name in dir(space):
            assert getattr(space, name) is not None
    with pytest.raises(AttributeError, match="GECO"):
        gm.models.GECKO  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute"):
        gm.nothing  # noqa: B018


@pytest.mark.parametrize("command", gm.COMMANDS)
def test_every_command_has_help(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", command, "--help"])
    with pytest.raises(SystemExit) as end:
        gm.main()
    said = capsys.readouterr()
    assert end.value.code == (2 if command == "bench" else 0)
    assert "usage" in said.out + said.err


def test_the_help_has_a_line_for_each_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", "--help"])
    gm.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(gm.COMMANDS)
    assert all(len(line.split()) > 3 for line in lines)


def test_the_version_is_that_of_the_project(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", "--version"])
    gm.main()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"graphmill {project['version']}\n"
    assert gm.__version__ == project["version"]


def test_a_wrong_command_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["graphmill", "tarin"])
    with pytest.raises(SystemExit) as end:
        gm.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("unknown command tarin; usage: graphmill COMMAND")
