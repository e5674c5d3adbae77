"""A real `ray start --head` for tests, with a separate directory, ports and token. Nothing of it remains at the end.

It does not affect another Ray on the machine: it uses no fixed port, no shared `/tmp/ray` and no `ray stop`.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

START_TIMEOUT_S = 120.0
STARTS = 3  # Ray itself stops waiting after 30 s, which can be too short on a loaded machine.
STOP_TIMEOUT_S = 10.0
SLOW_IMPORT_S = 2.5  # of Ray, in a fresh process


@dataclass(frozen=True)
class RayHead:
    address: str
    """`host:port`, for `ray.init(address=…)`."""

    dashboard_url: str | None
    """For `ray job submit --address …`; None without a dashboard."""

    environment: dict[str, str]
    """For commands that talk to this head: the token, and a PATH on which `ray` and `python` are this test's own."""

    process: psutil.Process
    """`ray start --block`: the ancestor of every process of this Ray."""

    temp_dir: Path


@cache
def why_too_slow_for_ray() -> str | None:
    """Ray gives its processes 30 s to come up, a constant in its code, and a request to an actor has its own deadline. Where this was
    written, 3 to 16 s for an import went with starts and requests that missed them, whatever was tested. Says how slow this machine is, or
    None where it will do."""
    took_s = []
    for _ in range(3):  # the first writes bytecode
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import ray"], check=True, timeout=600)
        took_s.append(time.perf_counter() - began)
    if (slowest_s := max(took_s[1:])) < SLOW_IMPORT_S:
        return None
    return f"this machine takes {slowest_s:.1f} s to import ray, over {SLOW_IMPORT_S:g}: Ray's own 30 s for a start are too short here"


@contextlib.contextmanager
def start_ray_head(
    num_cpus: int = 2, object_store_bytes: int = 200 * 2**20, dashboard: bool = False
) -> Iterator[RayHead]:
    """Starts a head node and yields once it is up, and its dashboard answers; `RAY_AUTH_TOKEN_PATH` must name the token to use.

    Raises:
        RuntimeError: STARTS times it ended or did not answer within START_TIMEOUT_S; the message has the end of its
        output.
    """
    for further in reversed(range(STARTS)):
        with contextlib.ExitStack() as stack:
            try:
                with one_at_a_time():
                    head = stack.enter_context(_one_start(num_cpus, object_store_bytes, dashboard))
            except RuntimeError as error:
                if not further:
                    raise RuntimeError(
                        f"Ray gives its processes 30 s to come up, a limit of its own, and {STARTS} starts did not: {error}"
                    ) from None
                continue
            yield head
            return


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A lock of all test processes.

    If heads start at the same time, each takes so long that Ray gives up; also loops are compiled only once.
    """
    with open(Path(tempfile.gettempdir(), f"graphmill-ray-start-{os.getuid()}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _one_start(num_cpus: int, object_store_bytes: int, dashboard: bool) -> Iterator[RayHead]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    # By default Ray's workers have a lower priority than all other processes. On a busy machine tests would wait for
    # minutes.
    environment["RAY_worker_niceness"] = "0"
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    if environment.get("RAY_AUTH_MODE") != "token" or not environment.get("RAY_AUTH_TOKEN_PATH"):
        raise RuntimeError("start_ray_head needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH; see tests/conftest.py")
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
        "0"  # It listens only on the loopback address, and clients may name this address.
    )
    # Sockets lie below it, and their paths have at most 107 bytes: pytest's tmp_path is too long.
    folder = Path(tempfile.mkdtemp(prefix="gm-head-", dir="/tmp"))
    temp_dir = folder / "r"  # which Ray opens to all users
    head_port, dashboard_port, agent_port, client_port = _free_ports(4)
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--port={head_port}"),
        # Only the processes that tests use: the other ones take as long to start, and use a share of each second.
        *("--no-monitor", "--include-log-monitor=false"),
        *(
            f"--include-dashboard={str(dashboard).lower()}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={dashboard_port}",
        ),
        *(f"--dashboard-agent-listen-port={agent_port}", f"--ray-client-server-port={client_port}"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--num-cpus={num_cpus}", "--num-gpus=0", f"--object-store-memory={object_store_bytes}"),
        f"--temp-dir={temp_dir}",
    ]
    output = folder / "ray-start.log"
    with output.open("wb") as sink:
        # A separate session: Ctrl-C in the terminal reaches only pytest, which then ends Ray in order.
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment, start_new_session=True
        )
    process = psutil.Process(popen.pid)
    try:
        _wait_for(popen, ("127.0.0.1", dashboard_port if dashboard else head_port), output)
        url = f"http://127.0.0.1:{dashboard_port}" if dashboard else None
        yield RayHead(f"127.0.0.1:{head_port}", url, environment, process, temp_dir)
    finally:
        _end(popen, process)
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Ports that are free now. All sockets are open at the same time, so that the ports differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for(popen: subprocess.Popen[bytes], address: tuple[str, int], output: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while b"Ray runtime started" not in output.read_bytes() or not _answers(address):
        if popen.poll() is not None or time.monotonic() > deadline:
            said = output.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"ray start --head did not come up (exit status {popen.poll()}):\n{said}")
        time.sleep(0.1)


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def _end(popen: subprocess.Popen[bytes], process: psutil.Process) -> None:
    """Asks `ray start --block` to stop its children, then kills the processes of the earlier tree that still run."""
    tree = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        tree += process.children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        popen.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(tree, timeout=STOP_TIMEOUT_S)
    for each in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)
    popen.wait(timeout=STOP_TIMEOUT_S)
