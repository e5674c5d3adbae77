"""Starts a real head node by `ray start --head`, for tests. It has a separate folder, ports and token, and is removed completely at the end.

It does not affect another Ray on the machine, because it does not use fixed ports, the shared folder `/tmp/ray` or `ray stop`.
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
STARTS = 3  # attempts, because Ray gives up after 30 s, which can be too short on a busy machine
STOP_TIMEOUT_S = 10.0
SLOW_IMPORT_S = 2.5  # longest acceptable time to import Ray


@dataclass(frozen=True)
class RayHead:
    address: str
    """`host:port`, for `ray.init(address=…)`."""

    dashboard_url: str | None
    """The address for `ray job submit --address …`. None if the head has no dashboard."""

    environment: dict[str, str]
    """The environment for commands that use this head: the token, and a PATH with the `ray` and `python` of this environment."""

    process: psutil.Process
    """The process of `ray start --block`, which is the ancestor of all processes of this Ray."""

    temp_dir: Path


@cache
def why_too_slow_for_ray() -> str | None:
    """Returns a text that says how slow this machine is, or None if it is fast enough for Ray. Ray's code gives its processes 30 s to start,
    and a request to an actor also has a deadline. On machines that took 3 to 16 s to import Ray, starts and requests missed these deadlines
    in any test."""
    took_s = []
    for _ in range(3):  # the first import writes bytecode
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
    """Starts a head node. Yields it when it runs and, with `dashboard`, the dashboard answers. `RAY_AUTH_TOKEN_PATH` must name the token file.

    Raises:
        RuntimeError: in each of STARTS attempts, the head ended or did not answer within START_TIMEOUT_S. The message has
        the end of its output.
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
    """A lock that all test processes share.

    If several heads start at the same time, each takes so long that Ray gives up. With the lock, loops are also compiled
    only once.
    """
    with open(Path(tempfile.gettempdir(), f"graphmill-ray-start-{os.getuid()}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _one_start(num_cpus: int, object_store_bytes: int, dashboard: bool) -> Iterator[RayHead]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    # By default, Ray's workers have a lower priority than other processes, so on a busy machine tests would wait for
    # minutes.
    environment["RAY_worker_niceness"] = "0"
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    if environment.get("RAY_AUTH_MODE") != "token" or not environment.get("RAY_AUTH_TOKEN_PATH"):
        raise RuntimeError("start_ray_head needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH; see tests/conftest.py")
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
        "0"  # so that clients may use the loopback address, the only one that this head has
    )
    # Sockets are below this folder. Their paths may have at most 107 bytes, and pytest's tmp_path is too long for this.
    folder = Path(tempfile.mkdtemp(prefix="gm-head-", dir="/tmp"))
    temp_dir = folder / "r"  # Ray makes it accessible to all users
    head_port, dashboard_port, agent_port, client_port = _free_ports(4)
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--port={head_port}"),
        # Starts only the processes that tests need. The others would take as long to start, and use CPU time all the time.
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
        # In a new process session, Ray does not get a Ctrl-C of the terminal. Only pytest gets it, and then stops Ray.
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
    """`count` different ports that are free now. All sockets are open at the same time, so that the ports differ."""
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
    """Asks `ray start --block` to stop its children. Then kills the processes that were its children and still run."""
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
