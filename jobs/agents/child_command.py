"""Runs commands of Graphmill as child processes, with a limit of processor time, of waiting and of output. A child's output never reaches the server's own
standard output, which carries the protocol."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from graphmill.core.errors import ConfigError

MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Answer:
    """What a command printed, and the processor time that it used."""

    status: int
    text: str
    used_s: float


def run_command(words: Sequence[str], root: Path, *, cpu_s: float, wait_s: float) -> Answer:
    """Runs `graphmill WORDS…` in the folder `root` and returns its output, cut in the middle. Raises ConfigError if it uses more than `cpu_s` of processor time
    or takes longer than `wait_s`."""
    child = _start(words, root, subprocess.PIPE)
    limit(child.pid, cpu_s)
    late = threading.Timer(wait_s, os.killpg, (child.pid, signal.SIGKILL))
    late.start()
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()  # ends when the child ends, at the latest when the timer kills it
    late.cancel()
    status, used_s = _reaped(child, 0) or (-signal.SIGKILL, cpu_s)
    if status == -signal.SIGKILL:
        raise ConfigError(f"{words[0]}: expected an answer within {wait_s:g} s, got none; ask for less")
    if status == -signal.SIGXCPU:
        raise ConfigError(f"{words[0]}: expected at most {cpu_s:g} CPU seconds, got more; ask for less")
    return Answer(status, bounded(output.decode(errors="replace")), used_s)


def start_command(words: Sequence[str], root: Path, log: Path, *, cpu_s: float) -> "subprocess.Popen[bytes]":
    """Starts `graphmill WORDS…` in a session of its own: it goes on if the server ends. Its output goes to `log`; its processor time is limited."""
    with log.open("xb") as sink:
        child = _start(words, root, sink)
    limit(child.pid, cpu_s)
    return child


def _start(words: Sequence[str], root: Path, sink: "int | IO[bytes]") -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "graphmill", *words],
        cwd=root,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def ended(child: "subprocess.Popen[bytes]") -> tuple[int, float] | None:
    """(exit status, or the signal's number below 0; processor time in seconds) if the child has just ended. None: it runs, or its end was told before."""
    return None if child.returncode is not None else _reaped(child, os.WNOHANG)


def _reaped(child: "subprocess.Popen[bytes]", how: int) -> tuple[int, float] | None:
    process, status, usage = os.wait4(child.pid, how)
    if not process:
        return None
    child.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it again
    return child.returncode, usage.ru_utime + usage.ru_stime


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
