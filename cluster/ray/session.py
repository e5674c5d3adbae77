"""Connects a job to Ray: to the cluster that this process belongs to, or to a local Ray that is started and stopped again.

Invariants: a Ray that we did not start is never stopped. No process of a Ray that we started outlives the `with` block, however the block ends
(normally, by an exception, Ctrl-C or SIGTERM). Other users cannot reach a Ray that we start: its files lie in a folder that only this user can
enter, it has its own token, and it listens on the loopback address alone.

Ray is imported inside the functions, so that a job parses its options and answers `--help` without that slow import.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S, SessionOptions
from graphmill.cluster.ray.upload import warn_of_large_upload
from graphmill.cluster.ray.warm_hosts import py_executable
from graphmill.cluster.ray.warm_workers import WarmWorkers, warm_workers
from graphmill.core.errors import ClusterLostError, ConfigError, Terminated
from graphmill.core.files.private import check_private, check_unreplaceable
from graphmill.storage.filesystem.temporary_folder import owned, remove_orphans

# Ray reads these settings only from the environment of the process that calls `ray.init` and `TorchTrainer.fit`. Values that the user has set are kept.
RAY_ENVIRONMENT: Mapping[str, str] = {
    # The barrier inside `ray.train.report` has no deadline by default.
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_S),
    # Otherwise Ray Train's workers change into a session folder, and the job's relative paths are wrong there.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Otherwise, under `uv run`, Ray starts each worker through uv again.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The driver sees announced losses itself (cluster/ray/host_watch.py). Ray Train's watcher is a process more for each attempt.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}

# Additional settings for a local Ray that this process starts.
LOCAL_RAY_ENVIRONMENT: Mapping[str, str] = {
    # By default Ray's GCS keeps the latest 100,000 tasks, 3 KB each. Ray Train polls its workers by tasks, so this is up to 300 MB.
    "RAY_task_events_max_num_task_in_gcs": "5000",
    # Otherwise Ray starts a process for each CPU before it knows the job. The run's actors need other processes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}

# These settings replace the user's values. Without the first, Ray replaces a loopback address by the machine's address, also in processes that connect.
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LOOPBACK_ENVIRONMENT: Mapping[str, str] = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": _LOOPBACK,
}

_started_here = False
# Number of tries: Ray gives its processes 30 s to start, and a loaded machine may need longer to read their files from its disk.
_STARTS = 3
_TOO_LATE = "timed out during startup"
_TEMP_PREFIX = "graphmill-"
_RAYS = "r"  # Ray's folder inside the private folder; Ray lets all users enter it
# The longest path that Ray appends to the private folder (process ids have up to seven digits).
_SOCKET_SUFFIX_BYTES = len(f"/{_RAYS}/session_2026-11-21_07-22-02_299228_1234567/sockets/plasma_store")
_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107


@dataclass(frozen=True)
class Session:
    """A live connection to Ray."""

    address: str
    """The cluster's `host:port`."""

    is_ours: bool
    """Whether this process started this Ray and will stop it."""

    dashboard_url: str | None


def joins_a_cluster(options: SessionOptions) -> bool:
    """Returns whether `ray_session` with these options would use a running Ray."""
    ray = sys.modules.get("ray")
    return (ray is not None and ray.is_initialized()) or _address(options) is not None


def may_grow() -> bool:
    """Returns whether nodes may still join the connected Ray. False if `ray_session` started this Ray."""
    return not _started_here


@contextlib.contextmanager
def ray_session(options: SessionOptions | None = None, warm: Sequence[str] = ()) -> Iterator[Session]:
    """Connects to a Ray, or starts a local Ray, for the length of a `with` block.

    If this process is already connected to a Ray, that Ray is used. Otherwise the session connects to the cluster at `options.address`, or else at
    RAY_ADDRESS. If neither is set, a local Ray starts. `warm`: modules that most of the workers import; they are imported once on each host, in a process that
    forks the workers.

    Ray installs a handler of SIGTERM, and Ray Train a handler of SIGINT. Inside the block the signals raise Terminated and KeyboardInterrupt
    nevertheless, and the previous handlers are restored afterwards.

    Raises:
        ConfigError: the address cannot be reached or used, the token does not fit, the port is taken, or another user could read the token
            or replace Ray's folder.
    """
    options = options or SessionOptions()
    with _termination() as handle_termination, environment_defaults(RAY_ENVIRONMENT):
        import ray

        if ray.is_initialized():
            yield Session(ray.get_runtime_context().gcs_address, is_ours=False, dashboard_url=None)
        elif (address := _address(options)) is not None:
            with _connected(address, options, warm) as session:
                handle_termination()
                yield session
        else:
            with _started(options, warm) as session:
                handle_termination()
                yield session


def _address(options: SessionOptions) -> str | None:
    """Returns the address of the cluster to connect to. None: start a local Ray."""
    address = options.address or os.environ.get("RAY_ADDRESS") or None
    if address is None or address == "local":
        return None
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS must be a cluster's host:port, got {address}; a URL is for `ray job submit --address {address}`, "
            "which runs the job on the cluster itself"
        )
    return address


@contextlib.contextmanager
def _connected(address: str, options: SessionOptions, warm: Sequence[str]) -> Iterator[Session]:
    import ray

    if (token := token_file()) is not None:
        check_private(token)
    if address != "auto":
        _check_reachable(address, options.start_timeout_s)
    _read_token_anew()
    with _one_line_errors(f"connect to the Ray cluster at {address}"), _addresses_as_given():
        launcher = py_executable(warm)
        context = ray.init(
            address=address,
            runtime_env=None if launcher is None else {"py_executable": launcher},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        warn_of_large_upload(ray.get_runtime_context().runtime_env.get("working_dir"))
        yield _describe(context, is_ours=False)
    except ClusterLostError:  # a lost head: disconnecting would wait for it
        raise
    except BaseException:
        ray.shutdown()
        raise
    ray.shutdown()  # disconnects only


@contextlib.contextmanager
def _started(options: SessionOptions, warm: Sequence[str]) -> Iterator[Session]:
    global _started_here
    import psutil
    import ray

    if options.dashboard_port is not None:
        _check_port_free("127.0.0.1", options.dashboard_port)
    this_process = psutil.Process()
    before = set(this_process.children())
    daemons: list[psutil.Process] = []
    workers: WarmWorkers | None = None
    with environment_defaults(LOCAL_RAY_ENVIRONMENT), _private_folder(options) as folder, _own_token(folder):
        try:
            for further in reversed(range(_STARTS)):
                try:
                    workers = warm_workers(folder, warm)
                    launched = contextlib.nullcontext() if workers is None else workers.starting()
                    with _one_line_errors("start a local Ray"), _addresses_as_given(), launched:
                        context = ray.init(
                            address="local",
                            num_cpus=options.num_cpus,
                            num_gpus=options.num_gpus,
                            object_store_memory=int(options.object_store_gb * 2**30),
                            include_dashboard=options.dashboard or options.dashboard_port is not None,
                            dashboard_host="127.0.0.1",
                            dashboard_port=options.dashboard_port,
                            log_to_driver=False,
                            logging_level=logging.ERROR,
                            _temp_dir=str(folder / _RAYS),
                        )
                    break
                except ConfigError as error:
                    if _TOO_LATE not in str(error):
                        raise
                    if not further:
                        raise ConfigError(
                            f"Ray gives its processes 30 s to come up, a limit of its own, and {_STARTS} starts did not; free this machine's "
                            f"cores and try again ({error})"
                        ) from error
                finally:
                    # Also after a Ctrl-C during the start. Children that this process starts later are not Ray's, and are not stopped.
                    daemons = [child for child in this_process.children() if child not in before]
                _stop(daemons, workers, options.stop_timeout_s)
            check_private(folder)  # checked again, because Ray changes the modes of folders
            _started_here = True
            yield _describe(context, is_ours=True)
        finally:
            _started_here = False
            _stop(daemons, workers, options.stop_timeout_s)


def _describe(context: Any, is_ours: bool) -> Session:
    url = context.dashboard_url
    return Session(context.address_info["gcs_address"], is_ours, dashboard_url=f"http://{url}" if url else None)


def _stop(daemons: list[Any], workers: WarmWorkers | None, timeout_s: float) -> None:
    """Stops a local Ray within `timeout_s` plus one second: first by a shutdown, then by killing its remaining processes."""
    import psutil
    import ray

    deadline = time.monotonic() + timeout_s
    processes = list(daemons)
    for daemon in daemons:
        with contextlib.suppress(psutil.NoSuchProcess):
            # The workers are children of the raylet and of the warm process.
            processes += daemon.children(recursive=True)
    if workers is not None:
        workers.end()
    # A shutdown that hangs waits for one of these processes. Killing the processes ends the shutdown.
    watchdog = threading.Timer(timeout_s, _kill, args=(processes,))
    watchdog.daemon = True
    watchdog.start()
    try:
        ray.shutdown()
        psutil.wait_procs(processes, timeout=max(0.0, deadline - time.monotonic()))
    finally:  # runs also if a second Ctrl-C ends the wait
        watchdog.cancel()
        _kill(processes)


def _kill(processes: list[Any]) -> None:
    import psutil

    for process in processes:
        # psutil compares start times, so a new process with a reused process id is not killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=1.0)


@contextlib.contextmanager
def _private_folder(options: SessionOptions) -> Iterator[Path]:
    """Yields a folder that only this user can enter. Ray's folder is made inside it."""
    longest = _SOCKET_PATH_BYTES - _SOCKET_SUFFIX_BYTES
    if options.temp_dir is not None:
        folder = options.temp_dir.resolve()
        if len(os.fsencode(folder)) > longest:
            raise ConfigError(f"temp_dir holds Unix sockets, so its path has at most {longest} bytes, got {folder}")
        try:
            check_unreplaceable(next(each for each in (folder, *folder.parents) if each.exists()))
            for each in (*reversed(folder.parents), folder):
                if not each.exists():
                    each.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"temp_dir {folder} cannot be made: {error.strerror}") from error
        check_private(folder)
        yield folder
        return
    refused = ConfigError(
        f"a local Ray needs a folder with a short path (at most {longest} bytes) in /tmp or TMPDIR; set temp_dir"
    )
    for parent in (Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()):
        if len(os.fsencode(parent)) + len(f"/{_TEMP_PREFIX}12345678") <= longest and os.access(parent, os.W_OK):
            try:
                check_unreplaceable(parent)
                break
            except ConfigError as error:
                refused = error
    else:
        raise refused
    remove_orphans(parent, _TEMP_PREFIX)  # folders of killed processes
    folder = Path(tempfile.mkdtemp(prefix=_TEMP_PREFIX, dir=parent))
    try:
        check_private(folder)
        with owned(folder):
            yield folder
    finally:
        # A worker that dies late may still write a log line into the folder during its removal.
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_token(folder: Path) -> Iterator[None]:
    """Makes a token for this Ray only. The environment names the token to Ray's processes and to processes that the block starts; it is restored afterwards."""
    number, name = tempfile.mkstemp(prefix="token-", dir=folder)  # mode 0600
    try:
        with open(number, "w") as stream:
            stream.write(secrets.token_hex(32))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": name, "RAY_AUTH_TOKEN": None}
        with _environment({**_LOOPBACK_ENVIRONMENT, **own}):
            _read_token_anew()
            yield
    finally:
        _read_token_anew()
        Path(name).unlink(missing_ok=True)


def _read_token_anew() -> None:
    """Makes Ray forget the authentication mode that it read at its import, and the token that it read first."""
    from ray import _raylet

    raylet: Any = _raylet  # a compiled module
    raylet.Config.initialize("")
    # A thread of a Ray that is ending may still read the token, and Ray aborts the process if there is no token.
    if (
        os.environ.get("RAY_AUTH_MODE", "").lower() != "token"
        or os.environ.get("RAY_AUTH_TOKEN")
        or token_file() is not None
    ):
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def token_file() -> Path | None:
    """Returns the file with the token of the cluster that this user's sessions and `ray` commands would join. None if there is no such file."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return None
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    return Path(file) if os.path.exists(file) else None


@contextlib.contextmanager
def _addresses_as_given() -> Iterator[None]:
    """Makes Ray keep a loopback address inside the block, as on macOS. Otherwise Ray replaces a loopback address by the machine's address."""
    from ray._private import ray_constants

    constants: Any = ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _check_port_free(host: str, port: int) -> None:
    """Raises ConfigError if the port is taken. Without this check Ray would silently take another port, or end with the log of a dead process."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"dashboard_port {port} cannot be used on {host} ({error.strerror}); choose another or leave it out"
            ) from error


def _check_reachable(address: str, timeout_s: float) -> None:
    """Raises ConfigError if nothing answers at the address. Without this check Ray would try for a minute, and its log says only that a node timed out."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ConfigError(f"address must be host:port, auto or local, got {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            pass
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); is `ray start --head` running there?"
        ) from error


@contextlib.contextmanager
def _one_line_errors(action: str) -> Iterator[None]:
    """Turns errors of Ray's start into a ConfigError of one line. An error in the call itself (TypeError …) is not caught."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except (OSError, ValueError, RuntimeError, AuthenticationError) as error:  # OSError includes ConnectionError
        reason = _first_line(error)
        # The reason for "failed to connect" is in the text of the error's cause: Ray tries for 20 s and then gives up.
        if isinstance(error, AuthenticationError) or "AuthenticationError" in str(error.__cause__):
            reason = (
                "the token is missing or not the cluster's; give it by RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH "
                f"(or ~/.ray/auth_token), as docs/guides/platform.md shows; Ray says: {reason}"
            )
        raise ConfigError(f"cannot {action}: {reason}") from error
    except Exception as error:
        # Ray raises an error of the class Exception itself if a node does not start in time. A subclass has another reason.
        if type(error) is not Exception:
            raise
        raise ConfigError(f"cannot {action}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@contextlib.contextmanager
def environment_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Sets these environment variables, except variables that are already set. Removes the new variables afterwards."""
    with _environment({name: value for name, value in defaults.items() if name not in os.environ}):
        yield


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Sets these environment variables, or removes them (None), and restores them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _termination() -> Iterator[Callable[[], None]]:
    """Makes SIGTERM raise Terminated inside the block, and restores the handlers of SIGINT and SIGTERM afterwards.

    Yields a function that installs the handler again, because `ray.init` replaces it by a handler that prints a C++ stack first. Python allows handlers
    only in the main thread; in other threads nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    is_terminated = False

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        raise Terminated

    def install() -> None:
        signal.signal(signal.SIGTERM, terminate)

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    install()
    try:
        yield install
    except KeyboardInterrupt:
        if is_terminated:  # `ray.get` may have replaced the exception
            raise Terminated from None
        raise
    finally:
        for signum, handler in before.items():
            # None: the handler was not installed from Python, so Python cannot restore it.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
