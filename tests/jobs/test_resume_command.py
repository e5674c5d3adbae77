"""The command that a stopped run prints is one that a shell can run as it stands."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.run.resume import resume_command


@pytest.mark.parametrize("is_active", [True, False])
def test_it_starts_this_python_whatever_the_shell_has(is_active, tmp_path, monkeypatch):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho another python\n")
    other.chmod(0o755)
    folders = [Path(sys.executable).parent, tmp_path] if is_active else [tmp_path, Path(sys.executable).parent]
    monkeypatch.setenv("PATH", ":".join(map(str, folders)))
    monkeypatch.setattr(sys, "argv", ["jobs/a job.py", "--fit.epochs", "3"])
    command = resume_command("runs/it's mine")
    program, *arguments = shlex.split(command)
    assert arguments == ["jobs/a job.py", "--run.resume", "runs/it's mine"]
    assert (program == "python") == is_active
    said = subprocess.run(
        [program, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == sys.prefix
