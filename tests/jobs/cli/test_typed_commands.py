"""Tests that a shell can run, unchanged, the commands that a run prints."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill.jobs.cli.typed_commands import command_line, program_name

JOBS = Path(__file__).parents[3] / "jobs"


@pytest.mark.parametrize("is_active", [True, False])
def test_it_starts_this_python_whatever_the_shell_has(is_active, tmp_path, monkeypatch):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho another python\n")
    other.chmod(0o755)
    folders = [Path(sys.executable).parent, tmp_path] if is_active else [tmp_path, Path(sys.executable).parent]
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    monkeypatch.setattr(sys, "argv", [str(JOBS / "products_geco.py"), "--fit.epochs", "3"])
    assert program_name() == "products_geco"
    program, *arguments = shlex.split(command_line("predict", "runs/it's mine"))
    assert arguments == [str(JOBS / "predict.py"), "runs/it's mine"]
    assert (program == "python") == is_active
    said = subprocess.run(
        [program, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True, timeout=600
    )
    assert said.stdout.strip() == sys.prefix


def test_the_console_script_names_itself(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["graphmill train_nodes"])
    script, *words = shlex.split(command_line("predict", "runs/a"))
    assert words == ["predict", "runs/a"]
    assert script in ("graphmill", str(Path(sys.executable).with_name("graphmill")))
    assert program_name() == "train_nodes"


@pytest.mark.parametrize("program", ["a notebook.py", "elsewhere/jobs/train_nodes.py", ""])
def test_in_a_program_it_is_python(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    assert command_line("predict", "it's", "there") == 'gm.predict("it\'s", "there")'
    again = command_line("train_nodes", "--run.resume", "runs/a", "--fit.epochs", "40", "--fit.patience", "none")
    assert again == 'gm.train(resume="runs/a", fit={"epochs": 40, "patience": None})'
