"""Simulates the workers and owners of an embedding table in one thread. Messages are lost, repeated or late, and owners die.
All random events are a function of a seed.

Workers are generators; where a real worker would wait, a generator yields. If a reply is lost, the network delivers the message
a second time. The network may also keep a copy of a message and deliver it later, and may kill the owner before or after
a delivery.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from graphmill.cluster.embeddings.client import Exchange, SavedAt, TableClient
from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import SparseRows, TableConfig, TableShard, add_rows
from graphmill.cluster.reduction.position_tree import Seat, fold, leaf
from graphmill.cluster.transport.embedding_messages import KEEP_BEST, SAVE, BeginTable, TableReply, TableRequest
from graphmill.core.errors import StageError

_STALLED = 5000  # so many moves without progress are a deadlock


@dataclass(frozen=True)
class Course:
    """The data of a run, such as ids and gradients, as a function of a seed."""

    config: TableConfig
    num_steps: int
    seed: int

    @cache  # noqa: B019 - a course lives as long as its example
    def gradient(self, step: int, position: int) -> SparseRows:
        rng = np.random.default_rng((self.seed, step, position))
        count = int(rng.integers(0, self.config.num_nodes))
        ids = np.sort(rng.choice(self.config.num_nodes, count, replace=False)).astype(np.int64)
        scale = 10.0 ** rng.integers(-4, 4, (count, 1))
        return SparseRows(ids, (rng.normal(size=(count, self.config.width)) * scale).astype(np.float32))

    def is_best(self, step: int) -> bool:
        return np.random.default_rng((self.seed, step, 99)).random() < 0.3

    def is_saved(self, step: int) -> bool:
        return np.random.default_rng((self.seed, step, 98)).random() < 0.4

    @property
    def all_ids(self) -> np.ndarray:
        return np.arange(self.config.num_nodes)

    def reference(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The expected (rows, best rows) after each step. They come from one shard that receives all messages in order."""
        shard, tables = TableShard(self.config), []
        for step in range(self.num_steps + 1):
            if self.is_best(step):
                shard.keep_best()
            tables.append(tuple(shard.read(self.all_ids, best=best) for best in (False, True)))
            leaves = [leaf(p, self.gradient(step, p)) for p in range(self.config.num_positions)]
            (total,) = fold(leaves, self.config.num_positions, add_rows)
            shard.update(step, rate(step), total.value)
        return tables  # type: ignore[return-value]


def rate(step: int) -> float:
    return 0.1 / (1 + step)


@dataclass(frozen=True)
class _Delivered:
    reply: TableReply

    def result(self) -> TableReply:
        return self.reply


class Network:
    """Simulates the network between all workers and one owner."""

    def __init__(self, course: Course, number: int, num_owners: int, luck: random.Random, faults: float) -> None:
        self._course, self._place, self._luck, self._faults = course, (number, num_owners), luck, faults
        self._late: list[TableRequest] = []
        self.deaths, self._lives = -1, 0
        self._spared_to = 0
        # Counts how often an owner loaded a later checkpoint of the same attempt and kept the gradients that it had received.
        self.kept = 0
        self.kill()

    def strike(self) -> None:
        """Kills the owner, or spares it.

        After about half of the deaths, the owner is spared until it makes progress. Otherwise another death could hide that
        the previous death lost something.
        """
        step = self._owner._step
        if step >= self._spared_to:
            self.kill()
            self._spared_to = self._luck.choice([0, min(step + 1, self._course.num_steps)])

    @property
    def step(self) -> int:
        return self._owner._step

    def kill(self) -> None:
        self._lives += 1
        self._owner = TableOwner(self._course.config, *self._place, life=self._lives)
        self.deaths += 1

    def submit(self, request: TableRequest) -> _Delivered:
        luck, faults = self._luck, self._faults
        if luck.random() < faults:
            self._late.append(request)
        if self._late and luck.random() < faults:
            self._deliver_late()
        if luck.random() < faults / 10:
            self.strike()
        reply = self._handle(request)
        while luck.random() < faults:  # the reply was lost, so the request is sent again
            if luck.random() < 0.1:
                self.strike()
            reply = self._handle(request)
        if luck.random() < faults / 10:
            self.strike()
        return _Delivered(reply)

    def _deliver_late(self) -> None:
        late = self._late.pop(self._luck.randrange(len(self._late)))
        with suppress(StageError):  # the message is out of date; nobody waits for the reply
            self._handle(late)

    def _handle(self, request: TableRequest) -> TableReply:
        owner = self._owner
        if isinstance(request, BeginTable) and request.attempt == owner._attempt and request.step > owner._step:
            self.kept += any(step >= request.step for step in owner._pushed)
        return owner.handle(request)


class Simulation:
    """A run with several attempts. `faults`: for each kind of fault, its probability at each message."""

    def __init__(self, course: Course, folder: Path, num_owners: int, luck: random.Random, faults: float) -> None:
        self._course, self._folder, self._luck, self._faults = course, folder, luck, faults
        self.networks = [Network(course, number, num_owners, luck, faults) for number in range(num_owners)]
        self._published = SavedAt(0, "")
        self.reads: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # for each step, the tables that the workers read
        self.attempts = 0
        self._moved: list[Path] = []  # folders whose files are now in checkpoints

    def run(self, num_ranks: Sequence[int]) -> None:
        """Attempt i has `num_ranks[i]` workers. The last attempt runs to the end of the run; the other attempts stop after some moves."""
        for attempt, ranks in enumerate(num_ranks):
            is_last = attempt + 1 == len(num_ranks)
            self._attempt(ranks, None if is_last else self._luck.randrange(1, 400))
        assert not [folder for folder in self._moved if folder.exists()], "an owner wrote its files again"

    def _attempt(self, num_ranks: int, moves: int | None) -> None:
        self.attempts += 1
        base = self._published
        clients = [
            TableClient(self.networks, self._course.config, self.attempts, base, 0.0, keeps_log=True)
            for _ in range(num_ranks)
        ]
        workers = [self._worker(rank, clients[rank], num_ranks) for rank in range(num_ranks)]
        self._waiting: list[int] = [0] * num_ranks
        running, idle, before = dict(enumerate(workers)), 0, 0
        while running and moves != 0:
            rank = self._luck.choice(sorted(running))
            if next(running[rank], "ended") == "ended":
                del running[rank]
            if self._luck.random() < 0.3:
                self._luck.choice(clients).look()
            moves = None if moves is None else moves - 1
            now = sum(client.step for client in clients) + sum(network.step for network in self.networks)
            idle, before = (idle + 1 if now == before else 0), now
            assert idle < _STALLED, "workers and owners wait for one another"

    def _worker(self, rank: int, client: TableClient, num_ranks: int) -> Iterator[None]:
        course = self._course
        seat = Seat(rank, num_ranks, course.config.num_positions)
        for step in range(client.step, course.num_steps + 1):
            if course.is_best(step):
                yield from _finished(client.marking(KEEP_BEST))
            if course.is_saved(step) and step > client._newest.step:
                yield from self._save(rank, client, num_ranks)
            yield from self._look_at(client)
            if step == course.num_steps:
                return
            # A step sums over all ranks, so every worker waits here for all others.
            yield from self._meet(rank)
            nodes = seat.fold([leaf(p, course.gradient(step, p)) for p in seat.positions], add_rows)
            yield from _finished(client.pushing(rate(step), nodes))

    def _save(self, rank: int, client: TableClient, num_ranks: int) -> Iterator[None]:
        step = client.step
        staged, published = (self._folder / f"{kind}-{self.attempts}-{step}" for kind in ("staged", "published"))
        yield from _finished(client.marking(SAVE, str(staged)))
        client.written()
        yield from self._meet(rank)
        # In this state, some workers' logs begin at one checkpoint and other workers' logs at the checkpoint before it. If an
        # owner dies now, it receives both kinds of logs.
        for _ in range(self._luck.randrange(10)):
            yield
        client.saved(str(published))
        if self._luck.random() < 2 * self._faults:
            self._luck.choice(self.networks).strike()
        if rank == 0:  # some moves later, as in a thread
            for _ in range(self._luck.randrange(20)):
                yield
            staged.rename(published)
            self._moved.append(staged)
            self._published = SavedAt(step, str(published))

    def _meet(self, rank: int) -> Iterator[None]:
        self._waiting[rank] += 1
        while min(self._waiting) < self._waiting[rank]:
            yield

    def _look_at(self, client: TableClient) -> Iterator[None]:
        tables = []
        for best in (False, True):
            exchange, at = client.reading(self._course.all_ids, best=best)
            yield from _finished(exchange)
            tables.append(client.joined(exchange, at, self._course.config.num_nodes))
        rows, best_rows = tables
        seen = self.reads.setdefault(client.step, (rows, best_rows))
        assert all(map(np.array_equal, seen, (rows, best_rows)))


def _finished(exchange: Exchange) -> Iterator[None]:
    while not exchange.poll():
        yield
