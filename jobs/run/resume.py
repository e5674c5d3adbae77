"""The command that continues a run."""

import shlex
import shutil
import sys
from pathlib import Path


def resume_command(run: str) -> str:
    """What continues a run of this program when it is typed here."""
    found = shutil.which("python")
    # The environment of this process need not be active in the shell.
    python = "python" if found is not None and Path(found).parent == Path(sys.executable).parent else sys.executable
    return shlex.join([python, sys.argv[0], "--run.resume", run])
