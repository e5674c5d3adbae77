"""Runs commands of Graphmill as child processes, with a limit of processor time, of waiting and of output. A child's output never reaches the server's own
standard output, which carries the protocol."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from graphmill.core.errors import ConfigError

MOST_CHARACTERS = 20_000
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
# Before it becomes the command, the child asks the kernel to kill it with the server (1: PR_SET_PDEATHSIG), and ends if the server has gone already.
_WITH_SERVER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class EndedError(ConfigError):
    """A command reached a limit. `used_s`: the processor time that it used."""

    def __init__(self, message: str, used_s: float) -> None:
        super().__init__(message)
        self.used_s = used_s


@dataclass(frozen=True)
class Answer:
    """What a command printed, and the processor time that it used."""

    status: int
    text: str
    used_s: float


def run_command(words: Sequence[str], root: Path, *, cpu_s: float, wait_s: float) -> Answer:
    """Runs `graphmill WORDS…` in the folder `root` and returns its output, cut in the middle. The command ends if this process does. Raises EndedError if it uses
    more than `cpu_s` of processor time or takes longer than `wait_s`."""
    child = _start(words, root, subprocess.PIPE, with_server=True)
    limit(child.pid, cpu_s)
    measured_s = [0.0]

    def stop() -> None:
        """Measures and ends all processes of the command. The system's own count lacks children whose parent did not wait for them."""
        measured_s.append(sum(_running_s(child.pid)))
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    late = threading.Timer(wait_s, stop)
    late.start()
    assert child.stdout is not None
    with child.stdout:
        output = child.stdout.read()  # ends when the child ends, at the latest when the timer kills it
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    late.cancel()
    late.join()
    stop()
    status, used_s = _reaped(child, 0) or (-signal.SIGKILL, cpu_s)
    used_s = max(used_s, *measured_s)
    if status == -signal.SIGKILL:
        raise EndedError(f"{words[0]}: expected an answer within {wait_s:g} s, got none; ask for less", used_s)
    if status == -signal.SIGXCPU:
        raise EndedError(f"{words[0]}: expected at most {cpu_s:g} CPU seconds, got more; ask for less", used_s)
    return Answer(status, bounded(output.decode(errors="replace")), used_s)


def _running_s(session: int) -> Iterator[float]:
    """The processor time of each process of a session, with the children that it has waited for."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            yield sum(map(int, fields[11:15])) * _TICKS_S


def start_command(words: Sequence[str], root: Path, log: Path, *, cpu_s: float) -> "subprocess.Popen[bytes]":
    """Starts `graphmill WORDS…` in a session of its own: it goes on if the server ends. Its output goes to `log`; its processor time is limited."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        sink = log.open("xb")
    except OSError as error:
        raise ConfigError(f"{log.relative_to(root)}: cannot be made ({error.strerror}); choose another name") from None
    with sink:
        child = _start(words, root, sink, with_server=False)
    limit(child.pid, cpu_s)
    return child


def _start(
    words: Sequence[str], root: Path, sink: "int | IO[bytes]", *, with_server: bool
) -> "subprocess.Popen[bytes]":
    first = [sys.executable, "-I", "-S", "-c", _WITH_SERVER, str(os.getpid())] if with_server else []
    return subprocess.Popen(
        [*first, sys.executable, "-m", "graphmill", *words],
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
