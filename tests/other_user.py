"""The permissions of another user on this machine: commands run as nobody if the tests run as root."""

import os
import shutil
import subprocess

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be another user"
)


def as_nobody(script: str, *arguments: object, group: int = NOBODY) -> bool:
    """True if this shell script succeeds for another user. Its arguments are `$1` and so on."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups"]
    command = [*user, "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(command, cwd="/", capture_output=True, timeout=60).returncode == 0
