"""Kills a whole node, with a worker and a partition server, while a job trains on it. Then another node joins."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.disturbed_job import NUM_EPOCHS, STORE, Job, Outcome, epochs, start, starts
from tests.ray_head import RayHead, start_ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

RECOVERY_S = 60.0


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with start_ray_head(num_cpus=1) as running:
        yield running


class Node:
    """An additional node with one CPU."""

    def __init__(self, head: RayHead, log: Path) -> None:
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", f"--address={head.address}", "--block"),
            *("--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"),
            *("--num-cpus=1", "--num-gpus=0", f"--object-store-memory={100 * 2**20}"),
        ]
        with log.open("ab") as sink:
            self.popen = subprocess.Popen(
                command,
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
                env=head.environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills all of the node's processes without warning, like a loss of power."""
        tree = []
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.popen.pid)
            tree = [process, *process.children(recursive=True)]
        for each in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.popen.wait(timeout=20)


@pytest.fixture
def nodes(head: RayHead, tmp_path: Path) -> Iterator[list[Node]]:
    """The head and one more node. Tests add others; all end with the test."""
    running = [Node(head, tmp_path / "nodes.log")]
    yield running
    for node in running:
        node.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    start(run).end()
    return run


def start_on(head: RayHead, undisturbed: Path, run: Path, *flags: str) -> Job:
    shutil.copytree(undisturbed.parent / STORE, run.parent / STORE)
    os.environ.update(head.environment)
    return start(run, "--ray.address", head.address, *flags)


def test_a_node_is_lost_and_another_comes(head, nodes, undisturbed, tmp_path, strike):
    job = start_on(head, undisturbed, tmp_path / "run")
    job.wait_for_epochs(3)
    lost = time.monotonic()
    nodes[0].kill()
    nodes.append(Node(head, tmp_path / "nodes.log"))
    done = len(epochs(job.run))
    if done < NUM_EPOCHS - 1:
        job.wait_for_epochs(done + 1)
        assert time.monotonic() - lost < 2 * RECOVERY_S  # starting a node takes at least half a minute
    job.end()
    assert Outcome.of(job.run) == Outcome.of(undisturbed)


FILLER = """
import os, sys, time
import numpy as np, ray
ray.init(address=sys.argv[1], log_to_driver=False)
held = []
while not os.path.exists(sys.argv[3]):
    if len(held) < 100:  # 1 GB into a store of 200 MB: what does not fit goes to disk, all the time
        held.append(ray.put(np.zeros(10 << 20, np.uint8)))
        open(sys.argv[2], "w").write(str(len(held)))
    else:
        for reference in held:
            ray.get(reference, timeout=600).sum()
"""


def test_a_full_object_store_changes_nothing(head, nodes, undisturbed, tmp_path, strike):
    """Another user of the cluster puts objects of five times the capacity into the object store, and reads them repeatedly."""
    job = start_on(head, undisturbed, tmp_path / "run")
    job.wait_for_epochs(3)
    count, ended = tmp_path / "count", tmp_path / "ended"
    command = [sys.executable, "-c", FILLER, head.address, str(count), str(ended)]
    filler = subprocess.Popen(command, env=head.environment, stderr=subprocess.PIPE, text=True)
    try:
        job.end(timeout_s=600)
        assert filler.poll() is None, filler.communicate()
        assert int(count.read_text()) > 20, "the store was never full"
    finally:
        ended.touch()
        filler.communicate(timeout=120)
    assert Outcome.of(job.run) == Outcome.of(undisturbed)


def test_workers_come_and_go_with_the_nodes(head, nodes, undisturbed, tmp_path, strike):
    job = start_on(
        head,
        undisturbed,
        tmp_path / "run",
        "--workers.min_workers",
        "1",
        "--fit.checkpoint_every",
        "1",
        "--fit.epochs",
        "400",
    )
    job.wait_for_epochs(3)
    nodes[0].kill()
    job.wait_for_starts(2, timeout_s=RECOVERY_S)
    job.wait_for_epochs(len(epochs(job.run)) + 2)
    nodes.append(Node(head, tmp_path / "nodes.log"))
    job.wait_for_starts(3)
    job.wait_for_epochs(len(epochs(job.run)) + 2)
    job.popen.terminate()
    status, _ = job.end()
    assert status == 143
    found = epochs(job.run)
    assert [record["epoch"] for record in found] == list(range(len(found)))
    assert {record["roots"] for record in found} == {record["roots"] for record in epochs(undisturbed)}
    assert [event["workers"] for event in starts(job.run)][:3] == [2, 1, 2]
