"""The warm process of a host: it has imported what the workers of a run import, and forks a worker for each request of `warm_launcher`.

It has one thread, no Ray client and no CUDA context. Ray's library reads the job's id and the raylet's process id from the environment when it is imported. So the
process imports Ray when the first request has come, with the environment of that request. It refuses a request with another environment.
"""

import array
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_WITH_RAY = ("graphmill.cluster.", "ray")  # modules that import Ray
_READ_LATE = ("RAY_TRAIN_", "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC")  # Ray reads them when it uses them
_LONGEST_BYTES = 1 << 20
_ANSWER_S = 5.0  # longest wait for the rest of a request
_END_S = 8.0  # after the driver's end, time for the workers to end by themselves
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Request:
    """What a launcher was asked to run."""

    words: list[str]
    environment: dict[str, str]
    added: dict[str, str]
    """Further environment variables, of the worker's runtime environment."""
    folder: str
    launcher: int
    """The launcher's process id."""
    descriptors: list[int] = field(default_factory=list)
    """stdin, stdout and stderr."""


def read_request(connection: socket.socket) -> Request:
    """Raises ValueError or OSError if the request is damaged or late."""
    connection.settimeout(_ANSWER_S)
    descriptors = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_LEN(3 * descriptors.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    try:
        size, parts = int.from_bytes(head), bytearray()
        if len(descriptors) != 3 or size > _LONGEST_BYTES:
            raise ValueError(
                f"expected 3 descriptors and at most {_LONGEST_BYTES} bytes, got {len(descriptors)}, {size}"
            )
        while len(parts) < size:
            part = connection.recv(size - len(parts))
            if not part:
                raise ValueError(f"expected {size} bytes, got {len(parts)}")
            parts += part
        request = Request(**json.loads(parts), descriptors=list(descriptors))
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return request


class WarmProcess:
    """Forks workers until `keeper` is readable: the driver has closed its end of this pipe, or the raylet of this descriptor has ended."""

    def __init__(self, listener: socket.socket, keeper: int, idle_s: float, modules: list[str]) -> None:
        """`idle_s`: ends after this time without a worker; 0: never."""
        self._listener, self._keeper, self._modules = listener, keeper, modules
        self._idle_s = idle_s
        self._environment: dict[str, str] | None = None  # of the first request
        self._is_fit = False
        self._workers: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> Request | None:
        """Returns a request in the process that was forked for it, and None in this process at the end."""
        poll = select.poll()
        for descriptor in (self._listener.fileno(), self._keeper, self._woken):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = poll.poll(self._idle_s * 1000 if self._idle_s and not self._workers else None)
            if not ready:
                return None
            for descriptor, _ in ready:
                if descriptor == self._keeper:
                    self._end()
                    return None
                if descriptor == self._woken:
                    with suppress(BlockingIOError):
                        os.read(self._woken, 1024)
                elif descriptor == self._listener.fileno():
                    with suppress(OSError, ValueError, TypeError):
                        worker, request = self._answer(self._listener.accept()[0])
                        if worker == 0:
                            return request
                        poll.register(self._workers[worker], select.POLLIN)
                else:  # the launcher was killed: Ray has given up the worker
                    for worker, connection in self._workers.items():
                        if connection.fileno() == descriptor:
                            os.kill(worker, signal.SIGKILL)
                            poll.unregister(connection)
            for connection in self._reap():
                with suppress(KeyError):
                    poll.unregister(connection)
                connection.close()

    def _answer(self, connection: socket.socket) -> tuple[int, Request]:
        request = read_request(connection)
        try:
            if not self._fits(request):
                raise ValueError("expected the environment of the first request, got another one")
            connection.sendall(b"?")
            if connection.recv(1) != b"!":
                raise ValueError("the launcher has ended")
            own, worker = os.getpid(), os.fork()
            if worker == 0:
                # The kernel kills the worker with this process: nobody else knows it.
                ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
                try:
                    if os.getppid() != own:
                        os._exit(1)
                    self._become(request, connection)
                except (OSError, ValueError):
                    os._exit(1)  # the launcher has gone; this process must not go on as a second warm process
            else:
                self._workers[worker] = connection
                with suppress(
                    OSError
                ):  # the launcher has gone: its end of the connection says so, and the worker is killed
                    connection.sendall(worker.to_bytes(4))
            return worker, request
        finally:
            for descriptor in request.descriptors:
                os.close(descriptor)

    def _become(self, request: Request, connection: socket.socket) -> None:
        """Leaves nothing of the warm process in the forked one, and takes the launcher's place."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listener, connection, *self._workers.values()):
            each.close()
        for descriptor in (self._keeper, self._woken, self._wake):
            os.close(descriptor)
        os.setpgid(0, 0)  # Ray ends a worker's process group with the worker
        for number, descriptor in enumerate(request.descriptors):
            os.dup2(descriptor, number)
        # Ray has set these for the launcher: the machine's other processes have priority, and memory is taken from workers first.
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, request.launcher))
        score = Path(f"/proc/{request.launcher}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)

    def _fits(self, request: Request) -> bool:
        """Returns whether a forked process equals a started one. A library may have read every variable except `_READ_LATE`, when it was imported."""
        environment = _read_early(request.environment | request.added)
        if self._environment is None:
            self._environment = _read_early(request.environment)
            os.environ.update(request.environment)
            with _ids_of_classes_from_the_system():
                for module in self._modules:
                    importlib.import_module(module)
            self._is_fit = forks_differ()
            gc.collect()
            gc.freeze()  # a collection in a worker does not copy these pages
        return self._is_fit and environment == self._environment

    def _reap(self) -> list[socket.socket]:
        """Tells the launchers of ended workers the exit status. Returns their connections."""
        ended = []
        while self._workers:
            worker, status = os.waitpid(-1, os.WNOHANG)
            if worker == 0:
                break
            connection = self._workers.pop(worker, None)
            if connection is None:  # a child that an imported module started
                continue
            ended.append(connection)
            with suppress(OSError):
                ended[-1].sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        return ended

    def _end(self) -> None:
        """Waits for the workers, which end with the raylet. The kernel kills the others when this process ends."""
        self._listener.close()
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, _END_S)
        while self._workers:
            self._workers.pop(os.wait()[0], None)


def _read_early(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}


def _ids_of_classes_from_the_system() -> Any:
    """Ray draws an id for each actor class of an imported module. Its generator is seeded at the first draw, and all forked processes would draw the same ids."""
    from unittest.mock import patch

    import ray.actor
    from ray import ActorClassID

    drawn = SimpleNamespace(from_random=lambda: ActorClassID(os.urandom(ActorClassID.size())))
    return patch.object(ray.actor, "ActorClassID", drawn)


def forks_differ() -> bool:
    """Returns whether two forked processes draw different ids for Ray's objects. Equal ids would mix up the workers' objects."""
    from ray import ObjectID

    drawn = []
    for _ in range(2):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, ObjectID.from_random().binary())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as stream:
            drawn.append(stream.read())
        os.wait()
    return drawn[0] != drawn[1] and all(drawn)


def main() -> None:
    listener, keeper = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    modules = sys.argv[4:]
    for module in modules:
        if not module.startswith(_WITH_RAY):
            importlib.import_module(module)
    path = listener.getsockname()
    request = WarmProcess(listener, keeper, float(sys.argv[3]), modules).serve()
    if request is None:
        for file in (path, f"{path}.err"):
            with suppress(OSError):
                os.unlink(file)
        return
    os.environ.clear()
    os.environ.update(request.environment | request.added)
    os.chdir(request.folder)
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    sys.argv = request.words
    sys.path.insert(0, os.path.dirname(request.words[0]))
    runpy.run_path(request.words[0], run_name="__main__")


if __name__ == "__main__":
    main()
