"""Embedding owners behind real connections. Workers are threads. An owner may end at any moment and restart without its data."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from graphmill.cluster.embeddings.client import AsksOwner, SavedAt, TableClient, next_attempt
from graphmill.cluster.embeddings.embeddings import TableSpec
from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import TableConfig, add_rows
from graphmill.cluster.embeddings.server import served_owners
from graphmill.cluster.options import EmbeddingOptions, ServerOptions
from graphmill.cluster.reduction.position_tree import Seat, leaf
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.daemon_threads import beside
from tests.cluster.table_simulation import Course, rate
from tests.waiting import wait_until

CONFIG = TableConfig(width=3, optimizer="adagrad", seed=5, num_nodes=20, is_exact=True, num_positions=3)
NUM_STEPS, NUM_RANKS = 30, 2


class Served:
    """The server of an embedding owner. A test can replace it with a new server."""

    def __init__(self, number: int, num_owners: int) -> None:
        self._place = number, num_owners
        self.begin()
        self.asked = RemoteOwner(lambda _: self.server.endpoint, f"owner {number}", 30.0)

    def begin(self) -> None:
        self.server = MessageServer(TableOwner(CONFIG, *self._place).answer, "127.0.0.1", None, 64)

    def replace(self) -> None:
        old = self.server
        self.begin()
        old.stop()


def train(course: Course, open_owners: Callable[[], list[AsksOwner]], on_step: Callable[[int], None]) -> list[Any]:
    """Trains, and returns for each worker the tables that it read before each step. The first worker calls `on_step` before it reads."""
    attempt, seen = next_attempt(open_owners()), [[], []]
    errors: list[Exception] = []
    barrier = threading.Barrier(NUM_RANKS, timeout=60)

    def work(rank: int) -> None:
        client = TableClient(open_owners(), course.config, attempt, SavedAt(0, ""), 60.0, keeps_log=True)
        seat, ending = Seat(rank, NUM_RANKS, course.config.num_positions), ExitStack()
        ending.enter_context(beside(client.watch, "table", end_s=0))
        try:
            for step in range(course.num_steps):
                if course.is_best(step):
                    client.keep_best()
                if rank == 0:
                    on_step(step)
                seen[rank].append(tuple(client.read(course.all_ids, best=best) for best in (False, True)))
                # As in a collective call, a worker waits here for the others; another worker may still wait for an owner.
                barrier.wait()
                nodes = seat.fold([leaf(p, course.gradient(step, p)) for p in seat.positions], add_rows)
                client.push(rate(step), nodes)
        except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
            errors.append(error)
            barrier.abort()
        finally:
            ending.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NUM_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not errors, errors
    return seen


def check(course: Course, seen: list[Any]) -> None:
    for of_rank in seen:
        for step, (tables, expected) in enumerate(zip(of_rank, course.reference(), strict=False)):
            assert all(map(np.array_equal, tables, expected)), step


def test_owners_that_end_and_come_again_change_nothing():
    course = Course(CONFIG, NUM_STEPS, 3)
    served = [Served(number, 2) for number in range(2)]

    def strike(step: int) -> None:
        if step % 6 == 3:
            served[step % 4 // 2].replace()

    check(course, train(course, lambda: [one.asked for one in served], strike))
    for one in served:
        one.server.stop()


@pytest.mark.long
@pytest.mark.ray
def test_an_actor_that_is_killed_ten_times_changes_nothing(shared_ray, tmp_path: Path):
    course = Course(CONFIG, 25, 4)
    spec = TableSpec(EmbeddingOptions(width=3, owners=2), CONFIG.num_nodes, CONFIG.seed)
    patient = ServerOptions(start_timeout_s=400.0, timeout_s=300.0)
    with served_owners(spec, CONFIG.num_positions, patient) as owners:
        killed = []

        def strike(step: int) -> None:
            if step % 2 == 1 and len(killed) < 10:
                handle = owners.handles[step // 2 % 2]
                pid = ray.get(handle.pid.remote(), timeout=300)
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60)

        check(course, train(course, lambda: [*owners.open(CONFIG)], strike))
    assert len(set(killed)) == 10
