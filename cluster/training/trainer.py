"""Runs a training from the driver: starts the workers with a spec, records their metrics, and returns the final scores."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of, keep_best_of, run_disk_full
from graphmill.cluster.process.failure_budget import Failure, why_give_up
from graphmill.cluster.process.graceful_stop import GracefulStop
from graphmill.cluster.process.outcome import Failed, Stopped
from graphmill.cluster.runs.progress_thread import progress_thread
from graphmill.cluster.runs.record_follower import followed
from graphmill.cluster.runs.records import AttemptRecords, Record, RecordReader
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.training.train_session import Launcher
from graphmill.cluster.training.train_spec import TrainSpec


def train(
    spec: TrainSpec, launcher: Launcher, run: RunDirectory, on_record: Callable[[Record], None]
) -> Mapping[str, Any]:
    """Trains from the latest checkpoint, or from the beginning if there is no checkpoint. Records every epoch and returns the final scores.

    After a failure all workers start again from the latest checkpoint, unless there were more failures than `workers.failures_per_hour`. `on_record`
    gets the workers' records, from a thread. Raises the error that a worker raised on purpose, StageError for other failures, KeyboardInterrupt after
    Ctrl-C, Terminated after SIGTERM. After a signal the current step is saved as a checkpoint, but not after a second signal or SIGTERM's grace time.
    """
    workers = launcher.workers
    reached: float | None = None  # epochs that the current attempt has reached; None until its workers have begun
    unread = AttemptRecords.left(run.place)

    def consume(record: Record) -> None:
        nonlocal reached
        reached = _position(record, reached)
        run.take(record)
        while record["kind"] == "start" and unread:
            reports = unread.pop(0)
            run.make_up(RecordReader(reports).records(), int(record["epoch"]))
            run.settle()
            reports.remove()
        launcher.watch(record)
        tell(record)

    def say(message: str) -> None:
        run.note("hosts", what=message)
        tell({"kind": "hosts", "what": message})

    checkpoints = checkpoints_of(run.place)
    stop, failures = GracefulStop(workers.grace_s), list[Failure]()
    with (
        progress_thread(on_record, stop.end_now) as tell,
        stop.on_signals(
            lambda: reached is not None and not run.is_lost, lambda signum: tell({"kind": "stopping", "signal": signum})
        ),
        launcher.watching(say, stop.end_now) as lost_hosts,
    ):
        while True:
            checkpoints.sweep(workers.keep_checkpoints)
            reports = AttemptRecords.create(run.place)
            with followed(reports, consume, stop.asked, stop.end_now, run.settle):
                outcome = launcher.attempt(spec, reports)
            if not isinstance(outcome, Failed) or outcome.is_final:
                break
            if run_disk_full(run.place) is not None:  # another attempt could not save anything
                raise outcome.error()
            failures.append(Failure(time.monotonic(), reached))
            reached = None
            given_up, line = why_give_up(failures, workers.failures_per_hour), str(outcome.error())
            if lost := lost_hosts():  # the workers' error is a consequence of the lost hosts
                line = f"{lost}; {line}"
            run.note("failure", error=line, given_up=given_up)
            if given_up is not None:
                raise outcome.error(given_up)
            if stop.asked.is_set():
                raise stop.error
            tell({"kind": "failure", "what": line})
    if isinstance(outcome, Failed):
        raise outcome.error()
    if isinstance(outcome, Stopped):
        run.note("saved", where=outcome.where)
        raise stop.error
    checkpoints.sweep(workers.keep_checkpoints)
    if newest := checkpoints.names():
        with checkpoints.opened(newest[0]) as folder:
            keep_best_of(folder, run.place)
    return outcome.summary


def _position(record: Record, reached: float | None) -> float | None:
    """Returns the progress of an attempt in epochs after this record. Only records of a start, a step or an epoch change the progress."""
    if record["kind"] == "start":
        return float(record["epoch"])
    if reached is not None and record["kind"] == "step":
        return max(reached, record["epoch"] + record["step"] / record["num_steps"])
    if reached is not None and record["kind"] == "epoch":
        return float(record["epoch"] + 1)
    return reached
