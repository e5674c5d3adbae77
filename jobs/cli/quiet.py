"""`--quiet`: of a command that works for long only what it has done is printed, without progress and remarks; errors and warnings are printed as ever."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from graphmill.jobs.cli.typed_commands import program_name

QUIET = "--quiet"
# The commands that print more than what they were called for.
_LONG = (
    "train",
    "train_nodes",
    "train_graphs",
    "train_links",
    "products_geco",
    "pcqm4m_tokengt",
    "ingest",
    "encode",
    "predict",
    "sweep",
)
_shown: list[TextIO] = []  # where results go while all else is silent


@contextmanager
def quiet_where_asked() -> Iterator[None]:
    """Takes `--quiet` out of the command line; within the block all output but that of `results` is then dropped."""
    asked = QUIET in sys.argv[1:]
    sys.argv = [word for word in sys.argv if word != QUIET]
    if not asked or program_name() not in _LONG or {"--help", "-h", "--plan"} & set(sys.argv):  # all is result
        yield
        return
    _shown.append(sys.stdout)
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            yield
    finally:
        _shown.pop()


@contextmanager
def results() -> Iterator[None]:
    """What is printed in the block is what the command was called for."""
    with redirect_stdout(_shown[-1] if _shown else sys.stdout):
        yield
