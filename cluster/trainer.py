"""The driver's side of training: starts Ray Train workers on a spec, follows their metrics, and returns the final scores."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import ray.train
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import TrainingFailedError as RayTrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from cluster.checkpoint import keep_best, latest_checkpoint, sweep
from cluster.failure_budget import Failure, why_give_up
from cluster.follow import followed
from cluster.graceful_stop import GracefulStop
from cluster.live_metrics import LiveMetrics
from cluster.options import WorkerOptions
from cluster.outcome import Failed, Outcome, Stopped
from cluster.placement import place
from cluster.progress_thread import progress_thread
from cluster.reporter import AttemptFiles, Record, RecordReader
from cluster.run_directory import RunDirectory
from cluster.session import COLLECTIVE_TIMEOUT_S, environment_defaults
from cluster.train_loop import train_worker
from cluster.train_spec import TrainSpec
from storage.errors import GraphmillError, StageError

_RAYS_LISTS = ("checkpoint_manager_snapshot.json",)  # of the checkpoints that an earlier driver reported
_RESIZE_S = 10.0  # between two looks for nodes that have joined, where the number of workers may change

# After a node is lost, Ray Train first asks for as many workers as before, of nodes that it has not yet seen go, and waits this long
# (60 s by default) before it takes fewer.
_ELASTIC_ENVIRONMENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20"}
_STARTS_PER_LOSS = 3

# Ray Train's names depend on its V2 switch at import time, which type checkers do not follow.
_ray_train: Any = ray.train


def train(
    spec: TrainSpec, workers: WorkerOptions, run: RunDirectory, on_record: Callable[[Record], None]
) -> Mapping[str, Any]:
    """Trains (or continues, where the run has a checkpoint), records every epoch, and returns the final scores.

    Where workers fail, all start again from the latest checkpoint, as long as the failures stay within `workers.failures_per_hour`.
    `on_record` is shown what the workers report, from a thread. Raises what a worker raised on purpose; StageError for the rest;
    SystemExit(130 or 143) after Ctrl-C or SIGTERM, with a checkpoint of the step that was under way; after a second signal, or SIGTERM's
    grace time, KeyboardInterrupt or SystemExit(143) without one.
    """
    workers = place(workers)
    is_elastic = workers.min_workers is not None
    if is_elastic:  # a position within an epoch is of one number of workers
        spec = replace(spec, options=replace(spec.options, checkpoint_minutes=None))
    reached: float | None = None  # epochs, by the attempt under way; None until its workers have begun
    live, unread = LiveMetrics(run.path.resolve().name), AttemptFiles.left(run.path)

    def consume(record: Record) -> None:
        nonlocal reached
        reached = _position(record, reached)
        run.take(record)
        while record["kind"] == "start" and unread:
            files = unread.pop(0)
            run.make_up(RecordReader(files).records(), int(record["epoch"]))
            files.remove()
        live.update(record)
        tell(record)

    folder, log = run.path / "train", run.path / "failure.log"
    stop, failures = GracefulStop(workers.grace_s), list[Failure]()
    with (
        environment_defaults(_ELASTIC_ENVIRONMENT if is_elastic else {}),
        progress_thread(on_record, stop.end_now) as tell,
        stop.on_signals(lambda: reached is not None, lambda signum: tell({"kind": "stopping", "signal": signum})),
    ):
        while True:
            # Which checkpoint is the newest is read from the folder itself: Ray's own list of them is not written atomically.
            for name in _RAYS_LISTS:
                (folder / name).unlink(missing_ok=True)
            sweep(folder, workers.keep_checkpoints)
            files = AttemptFiles.create(run.path)
            with followed(files, consume, stop.asked, stop.end_now):
                outcome = _attempt({"spec": spec, "files": files, "elastic": is_elastic}, workers, run.path, log)
            if not isinstance(outcome, Failed) or outcome.is_final:
                break
            failures.append(Failure(time.monotonic(), reached))
            reached = None
            given_up, line = why_give_up(failures, workers.failures_per_hour), str(outcome.error())
            run.note("failure", error=line, given_up=given_up)
            if given_up is not None:
                raise outcome.error(given_up)
            if stop.asked.is_set():
                raise SystemExit(stop.status)
            tell({"kind": "failure", "what": line})
    if isinstance(outcome, Failed):
        raise outcome.error()
    if isinstance(outcome, Stopped):
        run.note("saved", where=outcome.where)
        raise SystemExit(stop.status)
    sweep(folder, workers.keep_checkpoints)
    newest = latest_checkpoint(run.path)
    if newest is not None:
        keep_best(newest, run.path / "best")
    return outcome.summary


def _position(record: Record, reached: float | None) -> float | None:
    """How far an attempt has come by this record of it, in epochs; a record that does not say changes nothing."""
    if record["kind"] == "start":
        return float(record["epoch"])
    if reached is not None and record["kind"] == "step":
        return max(reached, record["epoch"] + record["step"] / record["num_steps"])
    if reached is not None and record["kind"] == "epoch":
        return float(record["epoch"] + 1)
    return reached


def _attempt(config: dict[str, Any], workers: WorkerOptions, path: Path, log: Path) -> Outcome:
    """One start of the workers, which Ray Train does not repeat: what rank 0 returns, or what Ray says of its failure."""
    is_elastic, use_gpu = workers.min_workers is not None, workers.device == "gpu"
    trainer: Any = TorchTrainer(
        cast(Any, train_worker),
        train_loop_config=config,
        torch_config=TorchConfig(timeout_s=COLLECTIVE_TIMEOUT_S),
        scaling_config=_ray_train.ScalingConfig(
            num_workers=(workers.min_workers, workers.num_workers) if is_elastic else workers.num_workers,
            elastic_resize_monitor_interval_s=_RESIZE_S,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": 1, "GPU": 1} if use_gpu else {"CPU": 1},
        ),
        run_config=_ray_train.RunConfig(
            name="train",
            storage_path=str(path.resolve()),
            failure_config=_ray_train.FailureConfig(
                max_failures=0,
                # A start with nodes that are gone is the controller's failure, and one lost node may cost several.
                controller_failure_limit=_STARTS_PER_LOSS,
                max_preemption_failures=0,
            ),
            # SIGTERM saves within an epoch, beside the epoch's end that another number of workers can start from.
            checkpoint_config=_ray_train.CheckpointConfig(
                num_to_keep=max(2, workers.keep_checkpoints) if is_elastic else workers.keep_checkpoints
            ),
            logging_config=_ray_train.LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        return _fit(trainer).return_value
    except (RayTrainingFailedError, RayActorError) as error:  # the workers', or what leads them has died
        with log.open("a") as stream:
            stream.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {error}\n")
        return _failure(error, log)


def _fit(trainer: TorchTrainer) -> Any:
    """`trainer.fit()`, in a thread: in the main thread Ray would replace the handler of Ctrl-C by one that waits without bound."""
    result: Future[Any] = Future()

    def fit() -> None:
        try:
            result.set_result(trainer.fit())
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised in the main thread
            result.set_exception(error)

    threading.Thread(target=fit, name="graphmill-fit", daemon=True).start()
    return result.result()


def _failure(error: Exception, log: Path) -> Failed:
    """What to say of Ray's error: what a worker raised on purpose where one did, else the first failure by name."""
    failures = dict(getattr(error, "worker_failures", {}) or {})
    for rank, failure in sorted(failures.items()):
        if isinstance(failure, GraphmillError):
            return Failed(failure.stage or "training", failure.owner or f"rank {rank}", failure, is_final=False)
    controller = getattr(error, "controller_failure", None)
    rank, first = next(iter(sorted(failures.items())), (None, controller or error))
    lines = str(first).strip().splitlines()
    if isinstance(first, OutOfMemoryError):  # the figures come first, advice last
        text = (
            f"out of memory: {lines[0][:400]}; set fewer --workers or smaller batches, or stop what else uses the node's memory "
            f"(its largest users are in {log})"
        )
    else:
        last = lines[-1] if lines else repr(first)
        text = f"{type(first).__name__}: {last[:400]}; the workers' tracebacks are in {log}"
    owner = "Ray Train's controller" if rank is None else f"rank {rank}"
    return Failed("training", owner, StageError(text), is_final=False)
