"""More Ray nodes on this machine: each a raylet of its own with its own object store and CPUs, beside a local Ray.

To Ray they are nodes like any others: actors are spread over them, objects are copied between their stores, and what is asked across
them goes through sockets. But it is one machine: they share its cores and its memory, and no byte crosses a real network.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.options import MIN_OBJECT_STORE_GB
from cluster.session import Session
from storage.errors import ConfigError, DeadlineError, StageError

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0


@contextlib.contextmanager
def local_raylets(
    session: Session,
    count: int,
    log: Path,
    *,
    num_cpus: int = 1,
    object_store_gb: float = MIN_OBJECT_STORE_GB,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[None]:
    """Adds `count` nodes with `num_cpus` logical CPUs each to a Ray that this process started, and stops them at the end.

    The environment's Ray token is theirs too. What `ray start` prints goes to the file `log`.

    Raises:
        ConfigError: the session is not ours: somebody else's cluster is not to grow.
        StageError: a raylet ended while it started.
        DeadlineError: not all were alive within `start_timeout_s`.
    """
    if count and not session.is_ours:
        raise ConfigError(f"raylets on one machine need a Ray of their own, got the cluster at {session.address}")
    command = [
        *(_ray_command(), "start", f"--address={session.address}", "--block", "--disable-usage-stats"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--num-cpus={num_cpus}", "--num-gpus=0"),
        f"--object-store-memory={int(object_store_gb * 2**30)}",
    ]
    raylets: list[subprocess.Popen[bytes]] = []
    try:
        deadline = time.monotonic() + start_timeout_s
        with log.open("ab") as sink:
            for _ in range(count):
                # A session of its own: Ctrl-C in the terminal reaches this process, which then ends them in order.
                raylets.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
                    )
                )
                # One after another: two that start at once may choose the same names for their sockets, and one of them dies.
                _wait_for(raylets, len(raylets) + 1, log, deadline)
        yield
    finally:
        _stop(raylets)


def _ray_command() -> str:
    beside = Path(sys.executable).with_name("ray")
    return str(beside) if beside.exists() else shutil.which("ray") or "ray"


def _wait_for(raylets: list[subprocess.Popen[bytes]], num_nodes: int, log: Path, deadline: float) -> None:
    import ray

    while (alive := sum(node["Alive"] for node in ray.nodes())) < num_nodes:
        for raylet in raylets:
            if raylet.poll() is not None:
                raise StageError(f"a raylet ended with status {raylet.returncode} while it started; see {log}")
        if time.monotonic() > deadline:
            raise DeadlineError(f"expected {num_nodes} Ray nodes, {alive} are up in time; see {log}")
        time.sleep(0.1)


def _stop(raylets: list[subprocess.Popen[bytes]]) -> None:
    """Asks all to stop, then kills what is left of their trees as they were before."""
    import psutil

    trees: list[Any] = []
    for raylet in raylets:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(raylet.pid)
            trees += [process, *process.children(recursive=True)]
    for raylet in raylets:
        with contextlib.suppress(ProcessLookupError):
            raylet.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(trees, timeout=STOP_TIMEOUT_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)
    for raylet in raylets:
        raylet.wait(timeout=STOP_TIMEOUT_S)
