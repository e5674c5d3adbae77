"""The warm process and its launcher, with a script in Ray's place and with a real Ray."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from graphmill.cluster.options import SessionOptions
from graphmill.cluster.ray.session import ray_session
from graphmill.cluster.ray.warm_hosts import py_executable
from graphmill.cluster.ray.warm_launcher import worker_of
from graphmill.cluster.ray.warm_workers import WarmWorkers, can_fork_workers, warm_workers
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not can_fork_workers(), reason="workers are forked on Linux alone")
WAIT_S = 120.0
# Stands for Ray's script of that name. It says what it has got, and then what stdin says.
WORKER = """
    import json, os, sys
    from ray import ObjectID
    ids = ObjectID.from_random().hex()
    told = dict(pid=os.getpid(), parent=os.getppid(), words=sys.argv[1:], folder=os.getcwd(), ids=ids, nice=os.nice(0),
        is_warm="colorsys" in sys.modules, score=open("/proc/self/oom_score_adj").read(), environment=dict(os.environ))
    print(json.dumps(told), flush=True)
    sys.exit(int(sys.stdin.readline() or 0))
"""


class Host:
    """A warm process, and the launchers that this process starts as Ray's raylet would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder, folder / "default_worker.py"
        self.script.write_text(textwrap.dedent(WORKER))
        self.workers = WarmWorkers(folder, ["colorsys"])
        self.warm = psutil.Process(self.workers._process.pid)
        self.environment = dict(os.environ)
        self.launched: list[subprocess.Popen[str]] = []

    def launch(self, *words: str, **variables: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Starts a worker, and returns its launcher and what the worker says."""
        with self.workers.starting():
            command = [sys.executable, *(words or (str(self.script), "--a", "b c"))]
        pipe = subprocess.PIPE
        environment = self.environment | variables
        launcher = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=self.folder)
        self.launched.append(launcher)
        assert launcher.stdout is not None
        return launcher, json.loads(launcher.stdout.readline())

    def end(self) -> None:
        for launcher in self.launched:
            launcher.kill()
            launcher.wait(WAIT_S)
        self.workers.end()
        self.workers._process.wait(WAIT_S)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    started = Host(tmp_path)
    yield started
    started.end()


def context(**parts: Any) -> str:
    nothing = {"command_prefix": [], "env_vars": {}, "override_worker_entrypoint": None, "java_jars": []}
    return f"--serialized-runtime-env-context={json.dumps(nothing | {'py_executable': sys.executable} | parts)}"


def test_a_forked_worker_is_what_the_launcher_was_asked_for(host: Host) -> None:
    before = sys.executable
    assert psutil.Process().pid == host.warm.ppid()
    launcher, told = host.launch()
    assert sys.executable == before
    assert told["is_warm"]
    assert told["parent"] == host.warm.pid
    assert (told["words"], told["folder"]) == (["--a", "b c"], str(host.folder))
    assert told["environment"] == host.environment
    _, other = host.launch()
    assert other["is_warm"]
    assert other["ids"] != told["ids"]
    assert launcher.stdin is not None
    launcher.stdin.write("7\n")
    launcher.stdin.flush()
    assert launcher.wait(WAIT_S) == 7


def test_a_runtime_environment_of_ray_train_is_forked_and_any_other_is_started(host: Host) -> None:
    setup = "/ray/setup_worker.py"
    words = (setup, str(host.script), "--a", "--language=PYTHON", context(env_vars={"RAY_TRAIN_X": "1"}))
    _, told = host.launch(*words)
    assert told["is_warm"]
    assert (told["words"], told["environment"]["RAY_TRAIN_X"]) == (["--a"], "1")
    _, told = host.launch(ANOTHER="1")
    assert not told["is_warm"]
    assert told["environment"]["ANOTHER"] == "1"


def test_workers_end_with_their_launcher_and_with_the_warm_process(host: Host) -> None:
    first, told = host.launch()
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S) == 256 - signal.SIGTERM
    assert not psutil.pid_exists(told["pid"])
    second, told = host.launch()
    second.kill()
    wait_until(lambda: not psutil.pid_exists(told["pid"]), WAIT_S)
    third, told = host.launch()
    host.warm.kill()
    assert third.wait(WAIT_S) == 1
    wait_until(lambda: not psutil.pid_exists(told["pid"]), WAIT_S)
    _, told = host.launch()
    assert not told["is_warm"]


@pytest.mark.parametrize(
    "damaged", [b"", b"\0\0\0\5ab", b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\2[]", b"\0\0\0\1x"]
)
def test_a_damaged_request_ends_no_other(host: Host, damaged: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection, open(os.devnull) as nothing:
        connection.connect(str(host.folder / "warm"))
        if damaged:
            socket.send_fds(connection, [damaged], [nothing.fileno()] * 3)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(host.folder / "warm"))
        connection.sendall(damaged)
    assert host.launch()[1]["is_warm"]


def test_a_folder_where_no_program_runs_leaves_ray_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("graphmill.cluster.ray.warm_workers.subprocess.run", refuse)
    assert warm_workers(tmp_path, ["graphmill.core.errors"]) is None
    assert warm_workers(tmp_path, []) is None


def test_a_process_whose_forks_would_draw_equal_ids_is_found_out() -> None:
    asked = "from graphmill.cluster.ray.warm_process import forks_differ\n{}\nprint(forks_differ())"
    drawn = "from ray import ObjectID; ObjectID.from_random()"
    said = [subprocess.check_output([sys.executable, "-c", asked.format(line)], text=True) for line in ("", drawn)]
    assert [each.split()[-1] for each in said] == ["True", "False"]


def test_only_workers_that_run_a_runs_code_are_forked() -> None:
    worker, setup = "/x/default_worker.py", "/x/setup_worker.py"
    python = "--language=PYTHON"
    assert worker_of([worker, "--a"]) == ([worker, "--a"], {})
    added = context(env_vars={"A": "1"})
    assert worker_of([setup, worker, "--a", python, added]) == ([worker, "--a"], {"A": "1"})
    for words in (
        [],
        ["-u", "/x/dashboard.py"],
        [worker, "--worker-type=SPILL_WORKER"],
        [setup, worker, python],
        [setup, worker, "--language=JAVA", context()],
        [setup, worker, python, context(env_vars={"A": "${B}"})],
        [setup, worker, python, context(command_prefix=["cd", "x"])],
        [setup, worker, python, "--serialized-runtime-env-context={"],
    ):
        assert worker_of(words) is None, words


# Stands for the raylet of a cluster: it starts each worker by a shell, as Ray's script does.
RAYLET = """
    import json, os, subprocess, sys
    os.environ |= dict(RAY_RAYLET_PID=str(os.getpid()), RAY_JOB_ID="01000000")
    for line in sys.stdin:
        subprocess.run(["bash", "-c", json.loads(line)], stdin=subprocess.DEVNULL)
"""


class Cluster:
    """The raylet's stand-in. Its Python is not on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder, folder / "default_worker.py"
        self.script.write_text(textwrap.dedent(WORKER))
        words = [sys.executable, "-c", textwrap.dedent(RAYLET), f"--python_worker_command={sys.executable} setup.py"]
        environment = {**os.environ, "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
        pipe = subprocess.PIPE
        self.raylet = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder)

    def launch(self, module: str = "colorsys", *variables: str) -> dict[str, Any]:
        """Starts a worker as a job with this module, and returns what the worker says."""
        command = " ".join([*variables, "exec", py_executable([module]) or "", str(self.script), "--a"])
        assert self.raylet.stdin is not None
        assert self.raylet.stdout is not None
        self.raylet.stdin.write(json.dumps(command) + "\n")
        self.raylet.stdin.flush()
        return json.loads(self.raylet.stdout.readline())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        started = Cluster(Path(folder))
        yield started
        started.raylet.kill()
        started.raylet.wait(WAIT_S)


def test_the_workers_of_a_clusters_host_are_forked_and_the_warm_process_ends_with_the_raylet(cluster: Cluster) -> None:
    told = cluster.launch()
    assert told["is_warm"]
    assert (told["words"], told["folder"]) == (["--a"], str(cluster.folder))
    warm = psutil.Process(told["parent"])
    (score,) = Path(f"/proc/{warm.pid}/oom_score_adj").read_text().split()
    assert score == "0"
    again = cluster.launch("colorsys", "RAY_TRAIN_X=1")
    assert (again["parent"], again["environment"]["RAY_TRAIN_X"]) == (warm.pid, "1")
    assert not cluster.launch("colorsys", "ANOTHER=1")["is_warm"]
    other = psutil.Process(cluster.launch("this")["parent"])
    assert other != warm
    cluster.raylet.kill()
    psutil.wait_procs([warm, other], WAIT_S)
    assert [file.name for file in (cluster.folder / f"graphmill-warm-{os.getuid()}").iterdir()] == ["lock"]


STARTER = """
    import os, psutil, signal, sys
    from graphmill.cluster.ray.warm_hosts import _start
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Ray's raylet does, and its children inherit it
    _start(sys.argv[1], os.getpid(), ["colorsys"])
    print(psutil.Process().children(recursive=True), flush=True)
    sys.stdin.readline()
"""


def test_a_clusters_warm_process_is_no_child_of_the_worker_that_started_it(cluster: Cluster) -> None:
    """Ray ends the children of a worker with it."""
    path, pipe = str(cluster.folder / "door"), subprocess.PIPE
    words = [sys.executable, "-c", textwrap.dedent(STARTER), path]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as starter, socket.socket(socket.AF_UNIX) as door:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "[]\n"
        door.connect(path)  # it is there
        starter.kill()
    wait_until(lambda: not os.path.exists(path), WAIT_S)  # it has ended with its raylet, here the starter


def test_a_hosts_worker_starts_as_usual_without_a_private_folder_and_without_graphmill(cluster: Cluster) -> None:
    (cluster.folder / f"graphmill-warm-{os.getuid()}").mkdir(mode=0o777)
    (cluster.folder / f"graphmill-warm-{os.getuid()}").chmod(0o755)
    assert not cluster.launch()["is_warm"]
    (cluster.folder / "graphmill.py").write_text("raise ImportError")
    assert not cluster.launch()["is_warm"]


@pytest.mark.parametrize("part", ["pip", "uv", "conda", "image_uri", "py_executable", "nsight"])
def test_a_job_that_decides_about_its_python_keeps_it(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert py_executable([]) is None
    harmless = {"working_dir": "gcs://x", "env_vars": {"A": "1"}, "pip": None}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": harmless}))
    assert py_executable(["graphmill"]) is not None
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": harmless | {part: ["x"]}}))
    assert py_executable(["graphmill"]) is None


@pytest.mark.ray
def test_rays_actors_are_forked_and_restarted_and_end_with_the_session() -> None:
    import ray

    class Actor:
        def told(self) -> tuple[int, bool, int, int]:
            score = int(Path("/proc/self/oom_score_adj").read_text())
            return os.getpid(), "graphmill.cluster.serving.partition_server" in sys.modules, os.nice(0), score

    before = set(psutil.Process().children(recursive=True))
    modules = ("graphmill.cluster.serving.partition_server",)
    with ray_session(SessionOptions(address="local", num_cpus=2, object_store_gb=0.1), modules):
        remote = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Actor)
        forked, plain = remote.remote(), remote.options(runtime_env={"env_vars": {"OTHER": "1"}}).remote()
        (first, is_warm, *limits), (_, is_plain_warm, *plain_limits) = ray.get(
            [forked.told.remote(), plain.told.remote()], timeout=WAIT_S
        )
        assert is_warm
        assert not is_plain_warm
        assert limits == plain_limits
        os.kill(first, signal.SIGKILL)
        again, is_warm, *_ = ray.get(forked.told.remote(), timeout=WAIT_S)
        assert again != first
        assert is_warm
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    assert not psutil.pid_exists(again)
