"""The workers of a host share rows. Weights are bit for bit the same as without sharing, fewer rows are fetched, and the shared memory has no file name."""

import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.serving.shared_rows import HostMates, most_needed
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_session import TrainSession
from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.options import LoaderOptions
from tests.cluster.test_root_groups import OfOneHost, a_spec, write_graph
from tests.cluster.training.test_train_loop import CPU, Records
from tests.forked_ranks import run_ranks
from tests.waiting import wait_until

RANKS = 4  # two hosts; each has two workers and two partitions
ROOM = 30_000
SHARING = {"alone": 0, "sharing": ROOM}


@dataclass(frozen=True)
class OnTwoHosts:
    url: str

    def open(self) -> OfOneHost:
        host = dist.get_rank() // 2
        return OfOneHost.of(self.url, (2 * host, 2 * host + 1))


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    for name, shared_bytes in SHARING.items():
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{name}", rank=rank, world_size=RANKS)
        spec = a_spec("", ROOM)
        loader = LoaderOptions(cache_bytes=ROOM, shared_bytes=shared_bytes)
        reporter = Records()
        checkpoints = checkpoints_of(RunStore(folder))
        session = TrainSession(rank, RANKS, CPU, f"host {rank // 2}", checkpoints, reporter, lambda *_: None)
        shared = replace(spec, data=OnTwoHosts(f"{folder}/graph"), loader=loader)
        worker = Worker(shared, reporter, rank, RANKS, CPU, session=session)
        worker.run()
        found: dict[str, Any] = {
            "records": reporter.epochs,
            "weights": dict(worker.model.state_dict()),
            "asked": sum(owner.rows_asked for owner in worker.data.far),
        }
        torch.save(found, f"{folder}/{name}-{rank}.pt")
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    write_graph(folder)
    run_ranks(run_rank, (str(folder),), RANKS)
    return folder


@pytest.mark.slow
def test_shared_rows_change_no_bit_and_are_asked_for_once_a_host(folder):
    found = {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(RANKS)] for name in SHARING
    }
    for rank in range(RANKS):
        ours, theirs = found["sharing"][rank], found["alone"][rank]
        assert ours["records"] == theirs["records"]
        assert all(torch.equal(ours["weights"][name], tensor) for name, tensor in theirs["weights"].items())
    asked = {name: sum(each["asked"] for each in ranks) for name, ranks in found.items()}
    assert asked["sharing"] < 0.9 * asked["alone"]


def test_room_is_full_where_workers_need_the_same_rows() -> None:
    """Row i of `node` has the nodes that worker i needs, and row i of `times` says how often. A node with count 0 is padding."""
    node, times = np.array([[7, 5, 3], [7, 5, 2], [7, 1, 0]]), np.array([[4, 3, 1], [4, 2, 2], [1, 3, 0]])

    def chosen(room: int, first_of: list[int], row_bytes: list[int]) -> list[list[int]]:
        found = most_needed(node.ravel(), times.ravel(), room, np.array(first_of), row_bytes)
        return [of_type.tolist() for of_type in found]

    assert chosen(38, [0, 8], [10]) == [[1, 5, 7]]
    assert chosen(90, [0, 8], [10]) == [[1, 2, 3, 5, 7]]
    # There are two types of nodes; ids of the second type begin at 3. The most needed nodes are kept as long as their bytes fit.
    assert chosen(42, [0, 3, 8], [10, 16]) == [[1], [2, 4]]


def hold_until_killed(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    memory = HostMates.of(rank, "one").memory(1 << 26)
    memory[rank] = 7
    dist.barrier()
    assert memory[:2].tolist() == [7, 7]
    dist.barrier()
    memory[:] = 1  # writes to all of the memory
    Path(folder, f"ready-{rank}").write_text(str(os.getpid()))
    signal.pause()


@pytest.mark.slow
@pytest.mark.long
def test_memory_is_free_again_after_a_kill(tmp_path):
    start = multiprocessing.get_context("spawn")
    processes = [start.Process(target=hold_until_killed, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()

    def ready() -> bool:
        assert all(process.is_alive() for process in processes)
        return all((tmp_path / f"ready-{rank}").exists() for rank in range(2))

    wait_until(ready, 120)
    inodes = [mapped_memory(process.pid) for process in processes]
    assert len(inodes[0]) == 1
    assert inodes[0] == inodes[1]  # both processes map the same memory
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
    assert not any(mapped_memory(int(pid)) & inodes[0] for pid in os.listdir("/proc") if pid.isdigit())


def mapped_memory(pid: int) -> set[str]:
    """The inodes of Graphmill's anonymous memory files that this process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # The process has just ended, or belongs to another user.
        return set()
    return {line.split()[4] for line in lines if "memfd:graphmill-rows" in line}


def test_sharing_needs_rows_by_plan():
    with pytest.raises(ConfigError, match=r"^shared_bytes: expected 0 without --loader.cache_bytes, got 5"):
        LoaderOptions(shared_bytes=5)
