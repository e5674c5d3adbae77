"""The driver's side of training: starts Ray Train workers on a spec, follows their metrics, and returns the final scores."""

import time
from collections.abc import Callable, Mapping
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
from cluster.graceful_stop import GracefulStop
from cluster.metrics_hub import metrics_hub
from cluster.onlooker import onlooker
from cluster.options import WorkerOptions
from cluster.placement import place
from cluster.record_queue import Record
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


class _InterruptibleTrainer(TorchTrainer):
    """Ray's trainer without its SIGINT handler, which waits without bound and outlives `fit`; Python's own one raises."""

    def _register_sigint_handler(self, controller: Any) -> None:
        pass


def train(
    spec: TrainSpec, workers: WorkerOptions, run: RunDirectory, on_record: Callable[[Record], None]
) -> Mapping[str, Any]:
    """Trains (or continues, where the run has a checkpoint), records every epoch, and returns the final scores.

    Where workers fail, all start again from the latest checkpoint, as long as the failures stay within `workers.failures_per_hour`.
    `on_record` is shown the hub's records, from a thread. Raises what a worker raised on purpose; StageError for the rest;
    SystemExit(130 or 143) after Ctrl-C or SIGTERM, with a checkpoint of the step that was under way; after a second signal, or SIGTERM's
    grace time, KeyboardInterrupt or SystemExit(143) without one.
    """
    workers = place(workers)
    is_elastic = workers.min_workers is not None
    if is_elastic:  # a position within an epoch is of one number of workers
        spec = replace(spec, options=replace(spec.options, checkpoint_minutes=None))
    reached: float | None = None  # epochs, by the attempt under way; None until its workers have begun

    def consume(record: Record) -> None:
        nonlocal reached
        reached = _position(record, reached)
        if record["kind"] == "epoch":
            run.record({key: value for key, value in record.items() if key != "kind"})
        elif record["kind"] == "start":
            run.start(int(record["epoch"]), int(record["step"]), int(record["workers"]))
        elif record["kind"] in ("damage", "unused"):
            run.note(record["kind"], what=record["what"])
        elif record["kind"] == "traffic":
            run.note("traffic", **{key: value for key, value in record.items() if key != "kind"})
        tell(record)

    folder, log = run.path / "train", run.path / "failure.log"
    stop, failures = GracefulStop(workers.grace_s), list[Failure]()
    with (
        environment_defaults(_ELASTIC_ENVIRONMENT if is_elastic else {}),
        onlooker(on_record, stop.end_now) as tell,
        stop.on_signals(lambda: reached is not None, lambda signum: tell({"kind": "stopping", "signal": signum})),
        metrics_hub(consume, stop.asked, run.path.resolve().name, stop.end_now) as hub,
    ):
        while True:
            # Which checkpoint is the newest is read from the folder itself: Ray's own list of them is not written atomically.
            for name in _RAYS_LISTS:
                (folder / name).unlink(missing_ok=True)
            sweep(folder, workers.keep_checkpoints)
            try:
                result = _attempt({"spec": spec, "hub": hub, "elastic": is_elastic}, workers, run.path)
                break
            except (RayTrainingFailedError, RayActorError) as error:  # the workers', or what leads them has died
                with log.open("a") as stream:
                    stream.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {error}\n")
                failures.append(Failure(time.monotonic(), reached))
                cause, reached = _cause(error, log), None
                given_up = why_give_up(failures, workers.failures_per_hour)
                run.note("failure", error=str(cause), given_up=given_up)
                if given_up is not None:
                    raise type(cause)(f"{cause}; given up after {given_up}") from error
                if stop.asked.is_set():
                    raise SystemExit(stop.status) from error
                tell({"kind": "failure", "what": str(cause)})
    if "error" in result:
        raise result["error"]
    if "stopped" in result:
        run.note("saved", where=result["stopped"])
        raise SystemExit(stop.status)
    sweep(folder, workers.keep_checkpoints)
    newest = latest_checkpoint(run.path)
    if newest is not None:
        keep_best(newest, run.path / "best")
    return result


def _position(record: Record, reached: float | None) -> float | None:
    """How far an attempt has come by this record of it, in epochs; a record that does not say changes nothing."""
    if record["kind"] == "start":
        return float(record["epoch"])
    if reached is not None and record["kind"] == "step":
        return max(reached, record["epoch"] + record["step"] / record["num_steps"])
    if reached is not None and record["kind"] == "epoch":
        return float(record["epoch"] + 1)
    return reached


def _attempt(config: dict[str, Any], workers: WorkerOptions, path: Path) -> dict[str, Any]:
    """One start of the workers, which Ray Train does not repeat: what rank 0 returns."""
    is_elastic, use_gpu = workers.min_workers is not None, workers.device == "gpu"
    trainer: Any = _InterruptibleTrainer(
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
    result: Any = trainer.fit()
    assert isinstance(result.return_value, dict)
    return result.return_value


def _cause(error: Exception, log: Path) -> GraphmillError:
    """The error to show: what a worker raised on purpose where one did, else the first failure by name."""
    failures = dict(getattr(error, "worker_failures", {}) or {})
    for rank, failure in sorted(failures.items()):
        if isinstance(failure, GraphmillError):
            return type(failure)(f"{failure} (worker {rank})")
    controller = getattr(error, "controller_failure", None)
    first = next(iter(failures.values()), controller or error)
    lines = str(first).strip().splitlines()
    if isinstance(first, OutOfMemoryError):  # the figures come first, advice last
        return StageError(
            f"training failed: out of memory: {lines[0][:400]}; set fewer --workers or smaller batches, or stop what else uses the "
            f"node's memory (its largest users are in {log})"
        )
    text = lines[-1] if lines else repr(first)
    return StageError(f"training failed: {type(first).__name__}: {text[:400]}; the workers' tracebacks are in {log}")
