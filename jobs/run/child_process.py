"""Processes that a sweep starts, one per point or trial: they end with everything that they started, and say in one line why they failed.

A process gets a session of its own, so that Ctrl-C comes to the sweep first, which then ends it in order; and a tag in its environment, which
all that it starts inherits, so that what a killed process left behind is found.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_TAG = "GRAPHMILL_SWEEP_POINT"  # in the environment of all that a child starts
_STOP_TIMEOUT_S = 45.0  # for a point to stop its Ray, before what is left is killed
_LEAVE_TIMEOUT_S = 5.0  # for processes that the child itself has told to end, or that were killed


def new_tag() -> str:
    return secrets.token_hex(8)


def start(
    command: Sequence[str],
    log: Path,
    tag: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Starts a command whose output is appended to `log`. Environment and working folder are this process's, where none is given."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            cwd=folder,
            start_new_session=True,
            env={**(os.environ if environment is None else environment), _TAG: tag},
        )


def run_process(command: Sequence[str], log: Path, timeout_s: float) -> str | None:
    """Runs a point's process; None where it ended well, else the cause of its failure in one line.

    It is ended, with everything it has started, where it takes too long or this process is interrupted.
    """
    tag = new_tag()
    log.unlink(missing_ok=True)
    process = start(command, log, tag)
    try:
        status = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"no result within {timeout_s:g} s; see {log} (raise --point-timeout-s if it is only slow)"
    finally:
        if process.poll() is None:
            end(process)
        if process.returncode != 0:
            kill_tagged(tag)
    return None if status == 0 else cause_of(log, status)


def cause_of(log: Path, status: int) -> str:
    """What a process that failed said last, in one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = said[-1] if said else (lines[-1] if lines else "no output")
    return f"{last[:500]} (exit status {status})" if status != 1 or not said else last[:500]


def end(process: "subprocess.Popen[bytes]", timeout_s: float = _STOP_TIMEOUT_S) -> None:
    """Asks a process to stop its Ray and itself; then kills what is left of its processes as they were before."""
    import psutil

    tree = [psutil.Process(process.pid)]
    tree += tree[0].children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=timeout_s)
    _, left = psutil.wait_procs(tree, timeout=_LEAVE_TIMEOUT_S)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=_LEAVE_TIMEOUT_S)
    process.wait(timeout=_LEAVE_TIMEOUT_S)


def end_tagged(tag: str, timeout_s: float) -> None:
    """Asks the processes that were started with this tag to end, though others are their parents; then kills what is left of them."""
    import psutil

    tagged = _tagged(tag)
    ids = {one.pid for one in tagged}
    for one in tagged:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if one.ppid() not in ids:  # the others are told by it
                one.terminate()
    try:
        psutil.wait_procs(tagged, timeout=timeout_s)
    finally:  # also where a second Ctrl-C ends the wait
        kill_tagged(tag)


def kill_tagged(tag: str) -> None:
    """Kills what a child left behind that could not end its own: raylets, say, whose sessions are not the child's."""
    import psutil

    left = _tagged(tag)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            one.kill()
    psutil.wait_procs(left, timeout=_LEAVE_TIMEOUT_S)


def _tagged(tag: str) -> list["psutil.Process"]:
    import psutil

    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if one.environ().get(_TAG) == tag and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found
