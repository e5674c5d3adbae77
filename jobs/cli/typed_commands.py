"""Our commands as a user types them here: `python jobs/predict.py …`, `graphmill predict …` or, in a program or a notebook, `gm.predict(…)`."""

import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

_JOBS = Path(__file__).resolve().parents[1]
GRAPHMILL = "graphmill "  # how argv[0] begins in a process that the console script started


def program_name() -> str:
    """The command that this process is: `train_nodes`; from Python, its script's name."""
    return Path(sys.argv[0].removeprefix(GRAPHMILL)).stem


def command_line(name: str, *words: str) -> str:
    """What runs `predict`, or trains with these flags, when it is typed here."""
    script = Path(sys.argv[0])
    if script.resolve().parent == _JOBS:
        return shlex.join([_here("python"), str(script.with_name(f"{name}.py")), *words])
    if sys.argv[0].startswith(GRAPHMILL) or not words:
        return shlex.join([_here("graphmill"), name, *words])
    if name == "predict":
        return f"gm.predict({', '.join(map(repr, words))})"
    said: dict[str, Any] = {}
    for flag, value in pairwise(words):
        if flag == "--run.resume":
            said["resume"] = value
        elif flag.startswith("--"):
            group, _, option = flag[2:].partition(".")
            said.setdefault(group, {})[option] = value
    return f"gm.train({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def _here(program: str) -> str:
    """A program of this environment, which need not be active in the shell."""
    known = shutil.which(program)
    ours = Path(sys.executable).with_name(program)
    if known is not None and Path(known).parent == ours.parent:
        return program
    return sys.executable if program == "python" else str(ours)
