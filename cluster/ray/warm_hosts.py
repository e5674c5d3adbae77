"""Starts a warm process on each host of a running cluster, for one job (docs/decisions/0113-a-clusters-hosts-have-warm-processes.md).

The raylets of a cluster are running already, so their Python cannot be replaced as in `warm_workers`. But Ray starts the workers of a job by the job's
`py_executable`. Here that is a shell expression that finds the raylet's Python and runs `main`. The first worker of a host starts the warm process; `warm_launcher`
asks it for all workers. The process ends with the raylet, or when it has had no worker for a minute. Only small modules are imported.
"""

import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from graphmill.cluster.ray.warm_launcher import launch, worker_of
from graphmill.core.errors import DeadlineError
from graphmill.core.files.file_lock import locked

_IDLE_S = 60.0  # Ray ends idle workers of a job after less
_LOCK_S = 10.0  # a worker holds the lock for some milliseconds
_PRIVATE = 0o700
# Parts of a job's runtime environment that leave the Python of the workers as it is.
_HARMLESS = {"config", "env_vars", "excludes", "py_modules", "working_dir"}
# Prints the Python by which the raylet starts its workers. In Ray's shell the raylet is the parent process.
_PYTHON = """"$(while IFS= read -rd '' w; do case "$w" in --python_worker_command=*) w="${w#*=}"; p="${w%% *}";; esac; done \
</proc/$PPID/cmdline; echo "${p:-python3}")\""""
_CODE = """
import os, sys
try:
    from graphmill.cluster.ray.warm_hosts import main
except ImportError:
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
main()
"""


def py_executable(modules: Sequence[str]) -> str | None:
    """Returns the `py_executable` of a job whose workers import `modules`. None without modules, or if the job's own environment decides about the Python."""
    if not modules or sys.platform != "linux" or os.environ.get("RAY_RUNTIME_ENV_HOOK"):
        return None
    with suppress(ValueError, AttributeError):
        job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")  # of `ray job submit`
        given = {name for name, value in (job.get("runtime_env") or {}).items() if value}
        if given <= _HARMLESS:
            return f"{_PYTHON} -c {shlex.quote(_CODE)} {','.join(modules)}"
    return None


def main() -> None:
    """Runs on a host, in place of Ray's Python. The words are the modules, and what Ray would run."""
    modules, words = sys.argv[1].split(","), sys.argv[2:]
    door = None
    if worker_of(words) is not None:
        with suppress(OSError, KeyError, ValueError, DeadlineError):  # without a door the worker is started as usual
            door = _door(modules)
    launch(words, door)


def _door(modules: Sequence[str]) -> str:
    """Returns the socket of this job's warm process on this host, and starts the process if there is none. Raises OSError, KeyError, ValueError or
    DeadlineError if it cannot."""
    raylet = int(os.environ["RAY_RAYLET_PID"])
    if os.getppid() != raylet:
        raise ValueError(f"expected the raylet {raylet} as parent, got {os.getppid()}")
    folder = os.path.join(tempfile.gettempdir(), f"graphmill-warm-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(folder, _PRIVATE)
    there = os.lstat(folder)
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or stat.S_IMODE(there.st_mode) != _PRIVATE:
        raise ValueError(f"expected a folder that only this user can enter, got {folder}")
    began = _start_time(raylet)
    path = f"{folder}/{os.environ['RAY_JOB_ID']}-{raylet}-{began}-{zlib.crc32(' '.join(modules).encode())}"
    with locked(Path(folder, "lock"), _LOCK_S):
        with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionRefusedError):
            probe.connect(path)
            return path
        _start(path, raylet, modules)
    return path


def _start_time(process: int) -> str:
    """Returns when the process began, in ticks since the machine's start: another process may get its id."""
    with open(f"/proc/{process}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[19]


def _start(path: str, raylet: int, modules: Sequence[str]) -> None:
    """Starts the warm process as a child of no worker. This process may become a worker, and Ray ends a worker's children with it, and so would end all
    workers of the host. If the start fails, nothing listens at `path`."""
    between = os.fork()
    if between == 0:
        try:
            _start_child(path, raylet, modules)
        finally:
            os._exit(0)
    with suppress(ChildProcessError):  # it has ended: the raylet ignores SIGCHLD, and its children inherit that
        os.waitpid(between, 0)


def _start_child(path: str, raylet: int, modules: Sequence[str]) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    keeper = os.pidfd_open(raylet)  # readable when the raylet has ended
    with socket.socket(socket.AF_UNIX) as listener, open(f"{path}.err", "w") as errors, open(keeper):
        listener.bind(path)
        listener.listen(256)
        name = "graphmill.cluster.ray.warm_process"
        words = [str(listener.fileno()), str(keeper), f"{_IDLE_S:g}", *modules]
        warm = subprocess.Popen(
            [sys.executable, "-P", "-m", name, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(listener.fileno(), keeper),
            env={"OMP_NUM_THREADS": "1", **os.environ},  # as Ray sets it in a worker of one CPU
            start_new_session=True,  # Ray ends a worker's process group with the worker
        )
        # Ray lets the kernel take memory from workers first. The warm process would take all workers of the host with it.
        with suppress(OSError), open(f"/proc/{warm.pid}/oom_score_adj", "w") as score:
            score.write("0")
