"""Tests what another user of this machine may do. If the tests run as root, commands run as the user nobody."""

import os
import shutil
import subprocess

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be another user"
)


def as_nobody(script: str, *arguments: object, group: int = NOBODY) -> bool:
    """Runs a shell script as another user. `arguments` are `$1`, `$2` and so on. Returns True if the script succeeds."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups"]
    command = [*user, "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(command, cwd="/", capture_output=True, timeout=60).returncode == 0
