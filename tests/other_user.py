"""What another user of this machine can do: commands run as nobody, where the tests run as root."""

import os
import shutil
import subprocess

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be another user"
)


def as_nobody(script: str, *arguments: object, group: int = NOBODY) -> bool:
    """Whether this shell script succeeds for another user; `$1` and on are the arguments."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={group}", "--clear-groups"]
    command = [*user, "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(command, cwd="/", capture_output=True, timeout=60).returncode == 0
