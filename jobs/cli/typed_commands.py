"""Our commands as a user types them in this shell: `python jobs/predict.py …` or `graphmill predict …`."""

import shlex
import shutil
import sys
from pathlib import Path

_JOBS = Path(__file__).resolve().parents[1]
GRAPHMILL = "graphmill "  # how argv[0] begins in a process that the console script started


def program_name() -> str:
    """The command that this process is: `train_nodes`; from Python, its script's name."""
    return Path(sys.argv[0].removeprefix(GRAPHMILL)).stem


def command_line(name: str, *words: str) -> str:
    """What runs one of our commands when it is typed here."""
    script = Path(sys.argv[0])
    if script.resolve().parent == _JOBS:
        return shlex.join([_here("python"), str(script.with_name(f"{name}.py")), *words])
    return shlex.join([_here("graphmill"), name, *words])  # the console script, or a program of the user's own


def _here(program: str) -> str:
    """A program of this environment, which need not be active in the shell."""
    known = shutil.which(program)
    ours = Path(sys.executable).with_name(program)
    if known is not None and Path(known).parent == ours.parent:
        return program
    return sys.executable if program == "python" else str(ours)
