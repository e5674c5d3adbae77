"""Measures what many workers cost the driver and the controller: `python -m benchmarks controller`.

    python -m benchmarks controller --workers 2 200 1000    # starts a local Ray; about two minutes

The workers are simulated. The processes that lead them are real:

- The driver runs the usual training (`graphmill.cluster.training.trainer.train`). Its launcher starts one process, which sends the reports that
  rank 0 of --workers workers would send, for --epochs epochs of --epoch_s seconds.
- Ray Train's controller polls its workers with its own code; two actors answer for all workers.
- The host watch connects to --workers open ports.

You should see a table of the leading process's CPU time and memory by the number of workers. It is written to results.md and results.json
under --out.
"""

import multiprocessing
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graphmill.cluster.options import SessionOptions, WorkerOptions
from graphmill.cluster.process.outcome import Finished, Outcome
from graphmill.core.errors import DeadlineError, StageError
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.cluster.runs.records import AttemptRecords, Record
    from graphmill.cluster.training.train_spec import TrainSpec


_START_S = 120.0  # most seconds that a process may take to start on a busy machine


@dataclass(frozen=True)
class ControllerConfig:
    """Measure the processes that lead many workers."""

    workers: tuple[Count, ...] = (2, 50, 200, 1000)
    """Numbers of workers to measure. There are as many partitions and hosts as workers."""
    epochs: Count = 100
    """Epochs of the driver's run."""
    epoch_s: Positive = 0.1
    """Seconds of an epoch."""
    polls: Count = 10
    """Number of polls of the controller and of checks of the host watch."""
    out: Path = Path("runs/bench-controller")
    """Folder of the table."""
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)


def rank_0(reports: "AttemptRecords", workers: int, epochs: int, epoch_s: float) -> None:
    """Sends the reports that rank 0 would send if there were this many workers."""
    from graphmill.cluster.runs.records import Recorder, is_recorded
    from graphmill.cluster.training.train_loop import RANK_SECONDS
    from graphmill.samplers.access.traffic import COLUMNS

    reporter = Recorder(reports)
    reporter.push({"kind": "start", "epoch": 0, "step": 0, "workers": workers})
    seconds = {name: [round(1234.567 + rank, 3) for rank in range(workers)] for name in RANK_SECONDS}
    hosts = [f"worker-{rank:04d} (10.0.{rank // 250}.{rank % 250})" for rank in range(workers)]
    rates = {"roots_per_s": 1e5, "nodes_per_s": 1e6, "edges_per_s": 1e7}
    reported = -1
    for epoch in range(epochs):
        for step in (1, 2):
            time.sleep(epoch_s / 2)
            reporter.push({"kind": "step", "epoch": epoch, "step": step, "num_steps": 2})
        times = dict.fromkeys(RANK_SECONDS, 1 / 3)
        reporter.push({"kind": "epoch", "epoch": epoch, "train_loss": 1 / 3, "valid_accuracy": 2 / 3, **times, **rates})
        if is_recorded(epoch):
            covered = {"epoch": epoch, "epochs": epoch - reported}
            columns = {name: [10**9 + partition for partition in range(workers)] for name in COLUMNS}
            reporter.push({"kind": "traffic", "of": "epochs", **covered, **columns})
            reporter.push({"kind": "ranks", **covered, "hosts": hosts, **seconds})
            reported = epoch


class StandInLauncher:
    """A `graphmill.cluster.training.train_session.Launcher` that starts one process in place of all workers."""

    def __init__(self, workers: int, config: ControllerConfig) -> None:
        self.workers, self._config = WorkerOptions(num_workers=workers), config

    @contextmanager
    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None], leave: Callable[[str, str], None]
    ) -> Iterator[Callable[[], str]]:
        yield lambda: ""

    def watch(self, record: "Record") -> None: ...

    def uses(self, node: str) -> bool:
        return False

    def attempt(self, spec: "TrainSpec", reports: "AttemptRecords") -> Outcome:
        config = self._config
        many = cast(int, self.workers.num_workers)
        arguments = (reports, many, config.epochs, config.epoch_s)
        process = multiprocessing.get_context("spawn").Process(target=rank_0, args=arguments)
        process.start()
        process.join(_START_S + 10 * config.epochs * config.epoch_s)
        if process.exitcode is None:
            process.kill()
            raise DeadlineError("the stand-in of rank 0 is ten times as slow as --epoch_s says; stop what else runs")
        if process.exitcode:
            raise StageError(f"the stand-in of rank 0 ended with status {process.exitcode}")
        return Finished({})


def measure_driver(workers: int, config: ControllerConfig) -> tuple[float, float]:
    """Returns the driver's CPU seconds per epoch, and the growth of its memory in MiB."""
    from graphmill.cluster.runs.run_directory import RunDirectory
    from graphmill.cluster.training.trainer import train

    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory.create(Path(folder, "run"), {})
        before_kib, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        train(cast(Any, None), StandInLauncher(workers, config), directory, lambda record: None)
        spent = time.process_time() - begun
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return spent / config.epochs, grown_kib / 1024 if sys.platform == "linux" else float("nan")


class StandInWorker:
    """Answers the polls of Ray Train's controller."""

    def poll_status(self) -> Any:
        from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus

        return WorkerStatus(running=True, error=None)


def measure_polls(workers: int, config: ControllerConfig) -> tuple[float, float]:
    """Returns the CPU seconds and the wall seconds that the controller needs to poll this many workers. Requires a Ray session."""
    from types import SimpleNamespace

    import ray
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    actor: Any = ray.remote(StandInWorker)
    actors = [actor.options(num_cpus=0).remote() for _ in range(2)]
    ray.get([each.poll_status.remote() for each in actors], timeout=120)
    group: Any = object.__new__(WorkerGroup)  # this group only polls workers and starts none
    group._world_rank_to_ongoing_poll, group._worker_health_check_timeout_s = {}, 600.0
    group.get_workers = lambda: [SimpleNamespace(actor=actors[rank % 2]) for rank in range(workers)]
    group._poll_workers_and_collect_errors(timeout=60)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(config.polls):
        assert len(group._poll_workers_and_collect_errors(timeout=60)) == workers
    spent = (time.process_time() - cpu) / config.polls, (time.perf_counter() - wall) / config.polls
    for each in actors:
        ray.kill(each)
    return spent


def measure_watch(hosts: int, config: ControllerConfig) -> float:
    """Returns the CPU seconds of one check of this many hosts by the host watch."""
    from graphmill.cluster.ray.host_watch import HostStates, knock

    with ExitStack() as stack:
        doors = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(min(hosts, 500))]
        ports = [door.getsockname() for door in doors]
        names = {f"10.0.{number // 250}.{number % 250}": f"worker-{number}" for number in range(hosts)}
        states, begun = HostStates(), time.process_time()
        for turn in range(config.polls):
            for start in range(0, hosts, len(ports)):  # the ports are used several times, until every host has one
                assert len(knock(ports[: hosts - start], 2.0)) == min(len(ports), hosts - start)
            states.update(2.0 * turn, names, names)
            for door in doors:
                door.setblocking(False)
                _take_all(door)
    return (time.process_time() - begun) / config.polls


def _take_all(door: socket.socket) -> None:
    """Accepts the connections that wait at a port. Otherwise the port's queue would become full."""
    while True:
        try:
            door.accept()[0].close()
        except BlockingIOError:
            return


def main() -> None:
    config = parse(ControllerConfig, __doc__)
    check_results(config.out)
    from graphmill.cluster.ray.session import ray_session
    from graphmill.cluster.training.ray_train import poll_interval_s

    rows: list[list[float]] = []
    drivers = {workers: measure_driver(workers, config) for workers in config.workers}
    with ray_session(config.ray):
        for workers in config.workers:
            epoch_s, grown = drivers[workers]
            (poll_s, wall_s), look_s = measure_polls(workers, config), measure_watch(workers, config)
            every_s = poll_interval_s(workers)
            rows.append(
                [workers, 1e3 * epoch_s, grown, 1e3 * poll_s, 1e3 * wall_s, every_s, poll_s / every_s, 1e3 * look_s]
            )
    columns = {
        "workers": ",",
        "driver, CPU ms an epoch": ".1f",
        "driver, MiB more": ".0f",
        "controller, CPU ms a poll": ".1f",
        "ms a poll": ".1f",
        "polled every, s": ".1f",
        "controller, cores": ".2f",
        "host watch, CPU ms a look": ".1f",
    }
    lines = table(columns, rows)
    print("\n".join(lines))
    keep(config.out, config, "\n".join([machine(), "", *lines]), machine=machine(), rows=rows)
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
