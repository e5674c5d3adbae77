"""What happens to hosts while a job trains on partitions of their own disks: the same losses after it, or one line in time.

`--fault-times 5` strikes each fault five times.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.ingest import IngestOptions, ingest
from storage.synthetic import SyntheticGraph, SyntheticOptions
from tests.disturbed_job import epochs, events
from tests.netlab.hosts import DISK, Hosts, why_not
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
EPOCHS = 400
SMALL = (
    *("--model.width", "16", "--model.num_layers", "2", "--sampler", "neighbor", "--sampler.fanouts", "4", "3"),
    *(
        "--sampler.batch_size",
        "16",
        "--fit.epochs",
        str(EPOCHS),
        "--fit.eval_every",
        "20",
        "--fit.checkpoint_every",
        "5",
    ),
    *("--workers", "2"),
)
TOLD_S = 10.0
ENDS_S = 900.0


class Lab:
    """Two hosts with a placed graph."""

    def __init__(self, hosts: Hosts, shared: Path) -> None:
        self.hosts, self.shared, self.cluster = hosts, shared, RayHosts(hosts)
        ingest(
            SyntheticGraph(SyntheticOptions(num_nodes=1500)), str(shared / "origin"), IngestOptions(num_partitions=2)
        )
        self.cluster.start()
        self.do("ingest", str(shared / "origin"), f"{DISK}/graph", "--place", "hosts")

    def do(self, *words: str) -> None:
        done = self.cluster.run("h0", self.cluster.job(*words), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def train(self, name: str, *options: str) -> "Running":
        return Running(self, self.shared / name, options)


class Running:
    """A training job on h0, and when it said what."""

    def __init__(self, lab: Lab, run: Path, options: tuple[str, ...]) -> None:
        self.path, self.lines = run, list[tuple[float, str]]()
        words = ("products_geco", "--data", f"{DISK}/graph", "--run.dir", str(run), *SMALL, *options)
        command = lab.cluster.job(*words)
        self._popen = lab.cluster.popen(
            "h0", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for_epochs(self, count: int) -> None:
        deadline = time.monotonic() + ENDS_S
        while len(epochs(self.path)) < count:
            assert self._popen.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    def end(self) -> int:
        status = self._popen.wait(timeout=ENDS_S)
        self._reader.join(timeout=10)
        return status

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def said_after(self, begun: float, what: str) -> float:
        """Seconds until a line with these words."""
        return next((when - begun for when, line in self.lines if when >= begun and what in line), float("inf"))

    @property
    def losses(self) -> list[float]:
        return [epoch["train_loss"] for epoch in epochs(self.path)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    shared = tmp_path_factory.mktemp("shared")
    with Hosts(2, shared=[shared, REPOSITORY]) as hosts:
        yield Lab(hosts, shared)


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> list[float]:
    run = lab.train("undisturbed")
    assert run.end() == 0, run.text
    return run.losses


def cut(seconds: float) -> Callable[[Lab], None]:
    def strike(lab: Lab) -> None:
        lab.hosts.cut("h1")
        time.sleep(seconds)
        lab.hosts.heal("h1")

    return strike


def power_cut(lab: Lab) -> None:
    lab.hosts.power_off("h1")
    time.sleep(40)
    lab.hosts.power_on("h1")
    lab.cluster.start_node("h1")


@pytest.mark.parametrize("fault", [cut(20), cut(180), power_cut], ids=["cut for 20 s", "cut for 3 minutes", "power"])
def test_a_host_that_comes_back_costs_time_alone(
    lab: Lab, undisturbed: list[float], fault, strike: int, request
) -> None:
    run = lab.train(f"{request.node.callspec.indices['fault']}-{strike}")
    run.wait_for_epochs(20)
    begun = time.monotonic()
    fault(lab)
    assert run.end() == 0, run.text
    assert run.losses == undisturbed
    assert run.said_after(begun, "h1 (10.77.0.2) has not answered") < TOLD_S
    assert "h1 (10.77.0.2) answers again" in run.text
    assert len(run.text.splitlines()) < 300, "a flood"
    last = [event for event in events(run.path) if event["kind"] == "traffic" and event["of"] == "epochs"][-1]
    assert all(last["local_requests"]), "a partition is remote to both workers"
    lab.cluster.wait_for_nodes(2)


def test_a_host_that_is_lost_for_good_ends_the_run_with_the_command_that_goes_on(
    lab: Lab, undisturbed: list[float]
) -> None:
    run = lab.train("lost", "--workers.wait_s", "20")
    run.wait_for_epochs(20)
    lab.hosts.power_off("h1")
    try:
        assert run.end() == 1, run.text
        error = run.text.splitlines()[-1]
        assert error.startswith("error: expected room for 2 workers of 1 CPU, the cluster has 1 CPU")
        assert "h1 (10.77.0.2) has not answered for" in error
        assert f"--run.resume {run.path}" in error
    finally:
        lab.hosts.power_on("h1")
        lab.cluster.start_node("h1")
        lab.cluster.wait_for_nodes(2)
    lab.do("products_geco", "--run.resume", str(run.path))
    assert run.losses == undisturbed


def test_without_its_host_for_good_a_partition_comes_from_the_origin(lab: Lab) -> None:
    """One worker is enough; the survivor copies the other's partition."""
    run = lab.train("survivor", "--workers.min_workers", "1", "--fit.checkpoint_every", "1")
    run.wait_for_epochs(20)
    lab.hosts.power_off("h1")
    try:
        assert run.end() == 0, run.text
        assert len(run.losses) == EPOCHS
        assert {path.parent.name for path in lab.hosts.disk("h0").rglob("*.arrow")} == {"part-00000", "part-00001"}
    finally:
        lab.hosts.power_on("h1")
        lab.cluster.start_node("h1")
        lab.cluster.wait_for_nodes(2)
