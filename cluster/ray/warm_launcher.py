"""Starts a process of Ray in place of Python; `graphmill.cluster.ray.warm_workers` says why. A local Ray calls this file itself, a cluster `warm_hosts`.

For a worker it asks the warm process to fork one, and stays as the raylet's child until the forked worker ends. Every other process, and a worker that the warm
process refuses, is started by Python as usual. Only the standard library is imported, without site packages, because a start takes as long as its imports.
"""

import array
import json
import os
import signal
import socket
import sys

_WAIT_S = 40.0  # Ray gives a worker 60 s to register


_CONTEXT = "--serialized-runtime-env-context="


def _added(context: str) -> dict[str, str] | None:
    """Returns the environment variables of a runtime environment. None if it has more parts, which Ray's own start has to set up."""
    try:
        parts = json.loads(context)
        variables: dict[str, str] = parts.pop("env_vars")
        parts.pop("py_executable")  # the Python of Ray's agent, which is this one
        return None if any(parts.values()) or "$" in "".join(variables.values()) else variables
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def worker_of(words: list[str]) -> tuple[list[str], dict[str, str]] | None:
    """Returns the words that start a worker for a run's code, and its additional environment variables. None if the words start another process."""
    added: dict[str, str] | None = {}
    if words and words[0].endswith("/setup_worker.py"):
        context = next((word.removeprefix(_CONTEXT) for word in words if word.startswith(_CONTEXT)), "")
        added = _added(context) if "--language=PYTHON" in words else None
        words = [word for word in words[1:] if not word.startswith((_CONTEXT, "--language="))]
    types = {word for word in words if word.startswith("--worker-type=")}
    if added is None or not words or not words[0].endswith("/default_worker.py") or types - {"--worker-type=WORKER"}:
        return None
    return words, added


def _ask(path: str, words: list[str], added: dict[str, str]) -> tuple[int, socket.socket] | None:
    """Returns the process id of the forked worker and the connection that ends with it. None if the warm process refuses or is gone."""
    warm = socket.socket(socket.AF_UNIX)
    try:
        warm.settimeout(_WAIT_S)
        warm.connect(path)
        where = {"environment": dict(os.environ), "added": added, "folder": os.getcwd(), "launcher": os.getpid()}
        data = json.dumps({"words": words, **where}).encode()
        descriptors = array.array("i", [0, 1, 2])
        warm.sendmsg([len(data).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        warm.sendall(data)
        if warm.recv(1) != b"?":
            return None
        warm.sendall(b"!")
    except OSError:
        return None
    number = warm.recv(4)  # this process has agreed: from here on it must not start the worker a second time
    if len(number) < 4:
        sys.exit(1)
    return int.from_bytes(number), warm


def launch(words: list[str], door: str | None) -> None:
    """Runs the words of Python's command line in a forked worker, and ends with it. Becomes Python if they start another process, or without a warm process at `door`."""
    worker = worker_of(words)
    forked = None if worker is None or door is None else _ask(door, *worker)
    if forked is None:
        os.execv(sys.executable, [sys.executable, *words])
    process, ended = forked
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(process, received))
    ended.settimeout(None)  # a worker lives as long as its run; the raylet ends both
    status = ended.recv(1)
    sys.exit(status[0] if status else 1)


if __name__ == "__main__":
    launch(sys.argv[1:], os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm"))
