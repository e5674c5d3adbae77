"""Runs the trials of a sweep as child processes, ends all processes that a trial started, and reports in one line why a trial failed.

Each child process gets its own session. Ctrl-C therefore reaches only the sweep, which ends its children in order. Each child also gets a tag in its
environment, which its own children inherit: the tag identifies processes that a killed child left behind.
"""

import contextlib
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_TAG = "GRAPHMILL_SWEEP"  # environment variable of a child process and its descendants
_LEAVE_TIMEOUT_S = 5.0  # wait for processes whose parent has ended or was killed


def new_tag() -> str:
    return secrets.token_hex(8)


def start(command: Sequence[str], log: Path, tag: str, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts a command whose output is appended to `log`."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            env={**environment, _TAG: tag},
        )


def cause_of(log: Path, status: int) -> str:
    """The reason why a process failed, in one line: its last error, or its last line of output."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = said[-1] if said else (lines[-1] if lines else "no output")
    return f"{last[:500]} (exit status {status})" if status != 1 or not said else last[:500]


def end_tagged(tag: str, timeout_s: float) -> None:
    """Ends all processes whose tag begins with this tag, also processes whose parent has ended.

    Sends SIGTERM first: a run then saves, stops its Ray and ends. Then kills the processes that are still alive.
    """
    import psutil

    tagged = _tagged(tag)
    ids, ended = {process.pid for process in tagged}, []
    for process in tagged:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.ppid() not in ids:  # a process ends its child processes itself
                process.terminate()
                ended.append(process)
    try:
        psutil.wait_procs(ended, timeout=timeout_s)
        psutil.wait_procs(tagged, timeout=_LEAVE_TIMEOUT_S)
    finally:  # also if a second Ctrl-C interrupts the wait
        kill_tagged(tag)


def kill_tagged(tag: str) -> None:
    """Kills processes that a killed child left behind, such as raylets, which have their own sessions."""
    import psutil

    left = _tagged(tag)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
    psutil.wait_procs(left, timeout=_LEAVE_TIMEOUT_S)


def _tagged(tag: str) -> list["psutil.Process"]:
    import psutil

    tagged = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(_TAG, "").startswith(tag) and process.status() != psutil.STATUS_ZOMBIE:
                tagged.append(process)
    return tagged
