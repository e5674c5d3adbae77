"""Runs commands of Graphmill as child processes, with a limit of processor time, of waiting and of output. A child's output never reaches the server's own
standard output, which carries the protocol."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmill.core.errors import ConfigError

MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Answer:
    """What a command printed."""

    status: int
    text: str


def run_command(words: Sequence[str], root: Path, *, cpu_s: float, wait_s: float) -> Answer:
    """Runs `graphmill WORDS…` in the folder `root` and returns its output, cut in the middle. Raises ConfigError if it uses more than `cpu_s` of processor time
    or takes longer than `wait_s`."""
    child = subprocess.Popen(
        [sys.executable, "-m", "graphmill", *words],
        cwd=root,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    limit(child.pid, cpu_s)
    try:
        output, _ = child.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate(timeout=10)
        raise ConfigError(f"{words[0]}: expected an answer within {wait_s:g} s, got none; ask for less") from None
    if child.returncode < 0:
        raise ConfigError(
            f"{words[0]}: ended by signal {-child.returncode}, which a command gets that uses more than {cpu_s:g} CPU seconds; ask for less"
        )
    return Answer(child.returncode, bounded(output.decode(errors="replace")))


def start_command(words: Sequence[str], root: Path, log: Path, *, cpu_s: float) -> "subprocess.Popen[bytes]":
    """Starts `graphmill WORDS…` in a session of its own: it goes on if the server ends. Its output goes to `log`; its processor time is limited."""
    with log.open("xb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "graphmill", *words],
            cwd=root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    limit(child.pid, cpu_s)
    return child


def limit(process: int, cpu_s: float) -> None:
    """Limits the processor time of a process and of each of its children. The kernel ends a process that reaches it."""
    seconds = max(1, int(cpu_s))
    resource.prlimit(process, resource.RLIMIT_CPU, (seconds, seconds + 5))


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """At most about `most` characters: the beginning and the end."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}\n… {left_out:,} characters left out …\n{text[-(most // 2) :]}"


def _environment() -> dict[str, str]:
    # A GPU's time would not count as processor time, so children see none.
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
