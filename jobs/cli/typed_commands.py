"""Writes Graphmill's commands as the user types them in this environment: `python jobs/predict.py …`, `graphmill predict …` or, in a program or a notebook,
`gm.predict(…)`."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

_JOBS = Path(__file__).resolve().parents[1]
GRAPHMILL = "graphmill "  # prefix of argv[0] if the console script started this process


def program_name() -> str:
    """The name of this process's command, such as `train_nodes`. In a Python program: the name of the script."""
    return Path(sys.argv[0].removeprefix(GRAPHMILL)).stem


def is_command() -> bool:
    """Whether this process is a command of Graphmill, not a program or notebook that imports Graphmill."""
    return sys.argv[0].startswith(GRAPHMILL) or Path(sys.argv[0]).resolve().parent == _JOBS


def command_line(name: str, *words: str) -> str:
    """The text of the prediction command, or of the training command with these flags. In Python: the text of the call."""
    script = Path(sys.argv[0])
    if not is_command() and words:
        call, options = ("predict", map(python_text, words)) if name == "predict" else ("train", _python_options(words))
        return f"gm.{call}({', '.join(options)})"
    if script.resolve().parent == _JOBS:
        return shlex.join([_here("python"), str(script.with_name(f"{name}.py")), *words])
    return shlex.join([_here("graphmill"), name, *words])


def python_option(flag: str, value: Any) -> str:
    """An option as a Python argument: `fit={"epochs": 3}`, `resume="runs/a"`, `split=…`. The value `...` stands for a value that is not known."""
    if flag == "run.resume" and value != "auto":
        return f"resume={python_text(value)}"
    first, *others = flag.split(".")
    for name in reversed(others):
        value = {name: value}
    return f"{first}={python_text(value)}"


def python_text(value: Any) -> str:
    """A value in Python syntax, strings in double quotes. `...` becomes `…`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python_text(name)}: {python_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "…" if value is ... else repr(value)


def _python_options(words: Sequence[str]) -> list[str]:
    groups: dict[str, dict[str, Any]] = {}
    for flag, word in pairwise(words):
        if flag.startswith("--"):
            group, _, option = flag[2:].partition(".")
            groups.setdefault(group, {})[option] = word if group == "run" else _plain(word)
    resume = groups.pop("run", {}).get("resume")
    return [*([] if resume is None else [python_option("run.resume", resume)]), *starmap(python_option, groups.items())]


def _plain(word: str) -> Any:
    """The value of a command-line word: a number, None or text."""
    for made in (int, float):
        with suppress(ValueError):
            return made(word)
    return None if word == "none" else word


def _here(program: str) -> str:
    """The command that starts a program of this Python environment. The environment need not be active in the shell."""
    known = shutil.which(program)
    ours = Path(sys.executable).with_name(program)
    if known is not None and Path(known).parent == ours.parent:
        return program
    return sys.executable if program == "python" else str(ours)
