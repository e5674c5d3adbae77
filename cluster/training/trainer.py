"""Runs a training from the driver: starts the workers with a spec, records their metrics, and returns the final scores."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of, keep_best_of, run_disk_full
from graphmill.cluster.process.failure_budget import Failure, why_give_up
from graphmill.cluster.process.graceful_stop import GracefulStop
from graphmill.cluster.process.interruption import TrainClock
from graphmill.cluster.process.outcome import Failed, Stopped
from graphmill.cluster.runs.progress_thread import progress_thread
from graphmill.cluster.runs.record_follower import followed
from graphmill.cluster.runs.records import AttemptRecords, Record, RecordReader
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.training.train_session import Launcher
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.summaries import counted


def train(
    spec: TrainSpec, launcher: Launcher, run: RunDirectory, on_record: Callable[[Record], None]
) -> Mapping[str, Any]:
    """Trains from the latest checkpoint, or from the beginning if there is no checkpoint. Records every epoch and returns the final scores.

    After a failure all workers start again from the latest checkpoint, unless there were more failures than `workers.failures_per_hour`. If the loss of a host
    is announced, or a worker is asked to leave, all ranks save at the next step and start again without that host; that is no failure. `on_record`
    gets the workers' records, from a thread. Raises the error that a worker raised on purpose, StageError for other failures, KeyboardInterrupt after
    Ctrl-C, Terminated after SIGTERM. After a signal the current step is saved as a checkpoint, but not after a second signal or SIGTERM's grace time.
    """
    workers = launcher.workers
    reached: float | None = None  # epochs that the current attempt has reached; None until its workers have begun
    unread = AttemptRecords.left(run.place)

    clock, announced = TrainClock(), list[str]()

    def consume(record: Record) -> None:
        nonlocal reached
        is_first, reached = reached is None, _position(record, reached)
        cost = clock.update(record, time.monotonic())
        run.take(record)
        if cost is not None:
            run.note("interruption", **cost)
            tell({"kind": "hosts", "what": _cost_line(record, cost)})
        while record["kind"] == "start" and unread:
            reports = unread.pop(0)
            run.make_up(RecordReader(reports).records(), int(record["epoch"]))
            run.settle()
            reports.remove()
        launcher.watch(record)
        if record["kind"] == "start" and is_first:
            for node in [each for each in announced if not launcher.uses(each)]:
                announced.remove(node)  # announced between two attempts: this one was placed without the node
        tell(record)

    def say(message: str) -> None:
        run.note("hosts", what=message)
        tell({"kind": "hosts", "what": message})

    def leave(node: str, host: str) -> None:
        say(f"{host} is announced to be lost: all ranks save at the next step, and go on without it")
        announced.append(node)

    def is_stopping() -> bool:
        """Before an attempt's start record it is not known whether the attempt has workers on an announced node."""
        return stop.asked.is_set() or (reached is not None and bool(announced))

    checkpoints = checkpoints_of(run.place)
    stop, failures = GracefulStop(workers.grace_s), list[Failure]()
    with (
        progress_thread(on_record, stop.end_now) as tell,
        stop.on_signals(
            lambda: reached is not None and not run.is_lost, lambda signum: tell({"kind": "stopping", "signal": signum})
        ),
        launcher.watching(say, stop.end_now, leave) as lost_hosts,
    ):
        while True:
            checkpoints.sweep(workers.keep_checkpoints)
            reports = AttemptRecords.create(run.place)
            with followed(reports, consume, is_stopping, stop.end_now, run.settle):
                outcome = launcher.attempt(spec, reports)
            gone = [announced.pop() for _ in range(len(announced))]  # the watch's thread may append another one
            if isinstance(outcome, Stopped) and not stop.asked.is_set():
                clock.arrive((outcome.epoch, outcome.step), time.monotonic())
                clock.interrupt(announced=True)
                if not gone:
                    say(
                        f"a worker on {', '.join(outcome.leaving)} was asked to leave: all ranks saved at {outcome.where}"
                    )
                reached = None
                continue
            if not isinstance(outcome, Failed) or outcome.is_final:
                break
            clock.interrupt(announced=bool(gone))
            if run_disk_full(run.place) is not None:  # another attempt could not save anything
                raise outcome.error()
            if (
                not gone
            ):  # an announced loss is no failure of the run, also if the host was gone before the ranks had saved
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


def _cost_line(record: Record, cost: Mapping[str, Any]) -> str:
    """Returns the line about the end of an interruption. `record`: the start record."""
    at = f"epoch {record['epoch']}" + (f", step {record['step']}" if record["step"] else "")
    how = "announced" if cost["announced"] else "unannounced"
    return f"goes on at {at}: {counted(cost['steps'], 'step')} lost by the {how} interruption; it stood for {cost['stood_s']:.1f} s"


def _position(record: Record, reached: float | None) -> float | None:
    """Returns the progress of an attempt in epochs after this record. Only records of a start, a step or an epoch change the progress."""
    if record["kind"] == "start":
        return float(record["epoch"])
    if reached is not None and record["kind"] == "step":
        return max(reached, record["epoch"] + record["step"] / record["num_steps"])
    if reached is not None and record["kind"] == "epoch":
        return float(record["epoch"] + 1)
    return reached
