"""Tests sessions on a real Ray. A session stops the processes that it started, does not touch other Rays, and refuses bad options with one line."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S, SessionOptions
from graphmill.cluster.ray.node_checks import open_beyond_loopback
from graphmill.cluster.ray.process_group import MeetingConfig
from graphmill.cluster.ray.session import RAY_ENVIRONMENT, _private_folder, ray_session
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import ConfigError
from graphmill.core.files.private import check_private
from tests.other_user import as_nobody
from tests.ray_head import RayHead
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
SMALL = {"num_cpus": 2, "object_store_gb": 100 / 1024}


def ray_children(before: set[psutil.Process]) -> list[psutil.Process]:
    """Child processes of this process that belong to Ray and are alive. Processes in `before` are left out, such as the head node of other tests."""
    new = set(psutil.Process().children(recursive=True)) - before
    return [child for child in new if child.status() != psutil.STATUS_ZOMBIE and "ray" in " ".join(child.cmdline())]


@pytest.fixture
def before() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def a_child_of_ours() -> Iterator[psutil.Process]:
    popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield psutil.Process(popen.pid)
    popen.kill()
    popen.wait(timeout=10)


def test_a_ray_that_never_comes_up_is_started_three_times_and_its_limit_is_named(monkeypatch) -> None:
    import ray

    starts = []

    def too_late(**options: Any) -> None:
        starts.append(options)
        raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(ray, "init", too_late)
    limit = "gives its processes 30 s to come up, a limit of its own, and 3 starts did not"
    with pytest.raises(ConfigError, match=limit), ray_session(SessionOptions(**SMALL)):
        raise AssertionError
    assert len(starts) == 3


ORPHAN = """
import os, signal, tempfile
from pathlib import Path
from graphmill.storage.filesystem.temporary_folder import owned
made = tempfile.mkdtemp(prefix="graphmill-")
with owned(Path(made)):
    print(made, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.ray
def test_a_local_ray_is_as_asked_and_leaves_nothing(
    before: set[psutil.Process], a_child_of_ours: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    killed = subprocess.run(
        [sys.executable, "-c", ORPHAN], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=600
    )
    orphan = Path(killed.stdout.strip())
    assert orphan.is_dir()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    start, late = ray.init, []

    def start_late_once(**options: Any) -> Any:
        """The first start fails, as if Ray's processes were not ready within 30 s. One sleeping process plays the role of these processes."""
        if late:
            return start(**options)
        late.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(ray, "init", start_late_once)
    with ray_session(SessionOptions(**SMALL, stop_timeout_s=3.0)) as session:
        assert late[0].poll() is not None, "the first start's processes have ended"
        assert session.is_ours
        assert session.dashboard_url is None
        resources = ray.cluster_resources()
        assert resources["CPU"] == 2
        assert resources["object_store_memory"] <= SMALL["object_store_gb"] * 2**30
        assert ray._private.authentication.authentication_utils.is_token_auth_enabled()
        temp_dir = Path(ray._private.worker._global_node.get_temp_dir_path())

        @ray.remote
        def longest_barrier() -> str:
            return os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"]

        @ray.remote(max_retries=0)
        def fail() -> None:
            raise ConfigError("from a worker")

        assert ray.get(longest_barrier.remote(), timeout=600) == str(COLLECTIVE_TIMEOUT_S)
        with pytest.raises(ConfigError, match="from a worker"):
            ray.get(fail.remote(), timeout=600)
        with ray_session() as inner:  # inside a job, another session may be opened
            assert inner.address == session.address
            assert not inner.is_ours
        assert ray.is_initialized()
        assert ray_children(before)
        assert not orphan.exists(), "what a killed driver left goes with the next start"
        assert temp_dir.exists()
        during = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert not ray.is_initialized()
    assert not ray_children(before)
    assert not temp_dir.exists()
    assert a_child_of_ours.is_running()
    assert during.poll() is None, "a process that the job started in the block is not Ray's"
    during.kill()
    during.wait(timeout=10)
    assert {each: signal.getsignal(each) for each in handlers} == handlers
    assert not [name for name in RAY_ENVIRONMENT if name in os.environ and name != "RAY_USAGE_STATS_ENABLED"]


def sum_ranks(config: dict[str, Any]) -> None:
    """What each worker does: one collective operation, then a wait until the test has checked the processes."""
    import torch
    import torch.distributed as dist

    number = torch.ones(1)
    dist.all_reduce(number)
    Path(config["folder"], f"summed-{dist.get_rank()}").write_text(str(number.item()))
    wait_until(Path(config["folder"], "looked").exists, 300)


@pytest.fixture
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets a new home folder without a token, and removes Ray's variables. TMPDIR is a folder that all users can enter."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.ray
def test_a_local_ray_is_out_of_others_reach(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While two workers train, checks file modes, sockets, the token, and what another user can access."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def settings() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(("RAY_", "GLOO_", "NCCL_"))}

    before = settings()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gm-") as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        session = stack.enter_context(ray_session(SessionOptions(num_cpus=3, object_store_gb=100 / 1024)))
        rays = Path(ray._private.worker._global_node.get_session_dir_path())
        (folder,) = Path(name).glob("graphmill-*")
        (token,) = folder.glob("token-*")
        assert rays.is_relative_to(folder / "r")
        check_private(folder)
        check_private(token)
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)
        assert session.address.startswith("127.0.0.1:")

        trainer = TorchTrainer(
            sum_ranks,
            train_loop_config={"folder": str(fresh_home)},
            torch_config=MeetingConfig(),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(fresh_home / "runs")),
        )
        training = begin(trainer.fit, "training")
        try:
            written = lambda: [path for path in fresh_home.glob("summed-*") if path.read_text()]  # noqa: E731
            wait_until(lambda: training.done() or len(written()) == 2, 300)
            assert {path.read_text() for path in fresh_home.glob("summed-*")} == {"2.0"}
            names = " ".join(each.name() for each in ray_children(set()))
            assert names.count("RayTrainWorker") == 2
            assert open_beyond_loopback(psutil.Process()) == []
            assert not (fresh_home / ".ray").exists(), "no token is left in the home directory"
            others = [path for path in Path(name).iterdir() if path.stat().st_mode & 0o077]
            assert not others
            if os.geteuid() == 0:
                assert as_nobody("test -d /proc/self")
                for attempt in ("cat", "ls"):
                    assert not as_nobody(f'{attempt} "$1"', token)
                for target in (folder, folder / "r", rays, rays / "logs", rays / "sockets", rays / "runtime_resources"):
                    assert not as_nobody('ls "$1" || ls "$1"/* || echo planted > "$1"/planted', target)
                    assert not as_nobody('mv "$1" "$1"-away', target)
        finally:
            Path(fresh_home, "looked").touch()
            training.result(300)
            stack.close()
        assert not list(Path(name).glob("graphmill-*"))
    assert settings() == before


def test_a_token_that_others_read_is_refused_before_it_is_sent(fresh_home: Path) -> None:
    (fresh_home / ".ray").mkdir()
    token = fresh_home / ".ray" / "auth_token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    message = f"other users can reach {token}: {token} has mode 0644; run: chmod go-rwx {token}"
    with pytest.raises(ConfigError, match=message), ray_session(SessionOptions(address="127.0.0.1:1")):
        pass
    token.chmod(0o600)
    with pytest.raises(ConfigError, match="no Ray cluster"), ray_session(SessionOptions(address="127.0.0.1:1")):
        pass


def test_a_folder_that_others_reach_is_refused_before_ray_starts(
    before: set[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            pytest.raises(ConfigError, match=f"{name} has mode 0755; run: chmod go-rwx"),
            ray_session(SessionOptions(temp_dir=folder)),
        ):
            pass
        folder.chmod(0o777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        with _private_folder(SessionOptions()) as private:  # uses a parent folder that no other user can change
            assert private.parent == Path("/tmp").resolve()
        with (
            pytest.raises(ConfigError, match=f"{name} has mode 0777; run: chmod go-w"),
            ray_session(SessionOptions(temp_dir=folder / "new")),
        ):
            pass
        assert not list(folder.iterdir())
        folder.chmod(0o700)
        old_mask = os.umask(0o002)
        try:
            with _private_folder(SessionOptions(temp_dir=folder / "new" / "one")) as private:
                assert (private.stat().st_mode | private.parent.stat().st_mode) & 0o777 == 0o700
        finally:
            os.umask(old_mask)
    assert not ray_children(before)


def start(script: str) -> subprocess.Popen[str]:
    """Starts a job in a new process session, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


HANGING = """
    import time
    import psutil
    from graphmill.cluster.ray.session import SessionOptions, ray_session
    began, daemons = 0.0, []
    try:
        with ray_session(SessionOptions(num_cpus=1, object_store_gb=100 / 1024, stop_timeout_s=2.0)):
            daemons = psutil.Process().children(recursive=True)
            for process in daemons:
                process.suspend()
            began = time.monotonic()
            raise ZeroDivisionError
    except ZeroDivisionError:
        left = [each for each in daemons if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        print("ENDED", time.monotonic() - began, len(daemons), len(left), flush=True)
"""


@pytest.mark.ray
def test_a_ray_that_hangs_is_killed_in_time_and_the_error_travels_on() -> None:
    # Runs in a separate process: Ray kills a driver that cannot reach Ray for a minute, and otherwise the driver would
    # be the test process.
    job = start(HANGING)
    try:
        out, errors = job.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, errors
    word, seconds, started, left = out.split()
    assert word == "ENDED"
    assert float(seconds) < 20.0
    assert int(started) >= 2
    assert int(left) == 0


INTERRUPTED = """
    import time
    import psutil
    from graphmill.cluster.ray.session import SessionOptions, ray_session
    from graphmill.core.errors import Terminated
    try:
        with ray_session(SessionOptions(num_cpus=1, object_store_gb=100 / 1024)):
            import ray
            @ray.remote
            def sleep():
                time.sleep(600)
            pids = [child.pid for child in psutil.Process().children(recursive=True)]
            print("READY", *pids, flush=True)
            ray.get(sleep.remote(), timeout=600)
    except KeyboardInterrupt as end:
        print("INTERRUPTED", flush=True)
        raise SystemExit(143 if isinstance(end, Terminated) else 130)
"""


@pytest.mark.ray
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_job_and_its_ray(signum: signal.Signals, status: int) -> None:
    job = start(INTERRUPTED)
    watchdog = threading.Timer(300, job.kill)
    watchdog.start()
    try:
        assert job.stdout is not None
        word, *pids = job.stdout.readline().split() or ["nothing"]
        assert word == "READY"
        assert len(pids) >= 2
        if signum == signal.SIGINT:
            os.killpg(job.pid, signum)  # like Ctrl-C in a terminal: Ray's processes get it too
        else:
            job.send_signal(signum)
        _, errors = job.communicate(timeout=60)
    finally:
        watchdog.cancel()
        job.kill()
        job.wait(timeout=10)
    assert job.returncode == status, errors
    assert "Traceback" not in errors
    assert not [pid for pid in map(int, pids) if psutil.pid_exists(pid)]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("by", ["option", "RAY_ADDRESS"])
def test_a_cluster_that_is_not_ours_is_left_running(
    ray_head: RayHead, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    if by == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", ray_head.address)
    processes = {each.pid for each in ray_head.process.children()}
    with ray_session(SessionOptions(address=ray_head.address if by == "option" else None)) as session:
        assert session.address == ray_head.address
        assert not session.is_ours
        assert ray.cluster_resources()["CPU"] == 4
    assert not ray.is_initialized()
    assert {each.pid for each in ray_head.process.children()} == processes


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_a_wrong_token_is_one_line(ray_head: RayHead, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("0" * 64)
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from graphmill.cluster.ray.session import *\n"
            "from graphmill.core.errors import ConfigError\n"
            f"try:\n  with ray_session(SessionOptions(address={ray_head.address!r})): pass\n"
            "except ConfigError as error: sys.exit(str(error))\n",
        ],
        cwd=REPOSITORY,
        env=os.environ | {"RAY_AUTH_TOKEN_PATH": str(token)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 1
    assert f"cannot connect to the Ray cluster at {ray_head.address}: the token is missing or not" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"object_store_gb": 0.01}, "object_store_gb: expected at least"),
        ({"object_store_gb": float("nan")}, "object_store_gb: expected at least .* got nan"),
        ({"object_store_gb": float("inf")}, "object_store_gb: expected at least .* got inf"),
        ({"dashboard_port": 70000}, "dashboard_port: expected 1 to 65535"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s: expected more than 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":6379", "127.0.0.1:1"])
def test_an_address_without_a_ray_is_refused_at_once(address: str) -> None:
    began = time.monotonic()
    refusal = pytest.raises(ConfigError, match=r"address must be host:port|no Ray cluster answers at 127\.0")
    with refusal, ray_session(SessionOptions(address=address)):
        pass
    assert time.monotonic() - began < 5.0


def test_a_job_servers_url_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS must be .*ray job submit --address http://127"), ray_session():
        pass


def test_a_port_in_use_is_refused_before_anything_starts(before: set[psutil.Process]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"dashboard_port {port} cannot be used"),
            ray_session(SessionOptions(dashboard_port=port)),
        ):
            pass
    assert not ray_children(before)


def test_a_directory_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="temp_dir holds Unix sockets"),
        ray_session(SessionOptions(temp_dir=tmp_path / ("x" * 80))),
    ):
        pass
