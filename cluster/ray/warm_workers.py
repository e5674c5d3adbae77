"""Starts the warm process of a local Ray, from which its workers are forked (docs/decisions/0109-workers-are-forked-from-a-warm-process.md).

Each of nine processes would import torch, Ray Train and pandas. Ray starts every process by `sys.executable`. While Ray starts, that is a launcher, which asks
the warm process for a worker. If the warm process has ended or refuses, the launcher starts the worker as usual.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_SHEBANG_BYTES = 127  # older kernels cut a longer line
_TRIAL_S = 60.0  # longest time in which Python starts on a busy machine


class WarmWorkers:
    """The warm process, as its driver sees it."""

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        """Starts a process that imports `modules`, the first time that Ray starts a worker. `folder`: a private folder. Raises OSError or SubprocessError if
        the launcher cannot run."""
        self._launcher, door = folder / "python", folder / "warm"
        self._launcher.write_text(f"{_first_line()}\n{Path(__file__).with_name('warm_launcher.py').read_text()}")
        self._launcher.chmod(0o700)
        # Fails here, and not in Ray, if the folder's file system lets no program run.
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([self._launcher, "-c", "pass"], check=True, timeout=_TRIAL_S, **quiet)  # type: ignore[call-overload]
        door.unlink(missing_ok=True)
        # The process ends when this end of the pipe is closed, also if this process is killed.
        reading, self._keeper = os.pipe()
        with (
            self._ended_on_error(),
            open(reading),
            socket.socket(socket.AF_UNIX) as listener,
            open(folder / "warm.err", "w") as errors,
        ):
            listener.bind(str(door))
            listener.listen(256)
            name = "graphmill.cluster.ray.warm_process"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", name, str(listener.fileno()), str(reading), "0", *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(listener.fileno(), reading),
                env={"OMP_NUM_THREADS": "1", **os.environ},  # as Ray sets it in a worker of one CPU
                start_new_session=True,  # a Ctrl-C reaches the driver alone
            )

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.end()
            raise

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Ray that starts in this block starts its processes by the launcher."""
        before, sys.executable = sys.executable, str(self._launcher)
        try:
            yield
        finally:
            sys.executable = before

    def end(self) -> None:
        """Lets the process end after the workers that it has forked, within some seconds."""
        if self._keeper >= 0:
            os.close(self._keeper)
            self._keeper = -1


def warm_workers(folder: Path, modules: Sequence[str]) -> WarmWorkers | None:
    """Returns None without modules, or if this machine cannot run the launcher. Ray then starts its workers as usual."""
    if not modules or not can_fork_workers():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        return WarmWorkers(folder, modules)
    return None


def can_fork_workers() -> bool:
    """Returns whether a script can name this Python in its first line, and the kernel ends forked workers with their parent."""
    return sys.platform == "linux" and " " not in sys.executable and len(os.fsencode(_first_line())) <= _SHEBANG_BYTES


def _first_line() -> str:
    return f"#!{sys.executable} -IS"
