"""The driver's side of training: starts Ray Train workers on a spec, follows their metrics, and returns the final scores."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import ray
import ray.train
from ray.exceptions import OutOfMemoryError
from ray.train import TrainingFailedError as RayTrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from cluster.checkpoint import keep_best, latest_checkpoint, sweep
from cluster.graceful_stop import TERMINATED, stopping_on_sigterm
from cluster.metrics_hub import metrics_hub
from cluster.onlooker import onlooker
from cluster.record_queue import Record
from cluster.run_directory import RunDirectory
from cluster.session import COLLECTIVE_TIMEOUT_S, environment_defaults, may_grow
from cluster.train_loop import train_worker
from cluster.train_spec import TrainSpec
from storage.errors import ConfigError, GraphmillError, StageError

_RAYS_LISTS = ("checkpoint_manager_snapshot.json",)  # of the checkpoints that an earlier driver reported
_JOIN_S = 60.0  # for the nodes of a cluster that has just been started
_RESIZE_S = 10.0  # between two looks for nodes that have joined, where the number of workers may change

# After a node is lost, Ray Train first asks for as many workers as before, of nodes that it has not yet seen go, and waits this long
# (60 s by default) before it takes fewer.
_ELASTIC_ENVIRONMENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20"}
_STARTS_PER_LOSS = 3

# Ray Train's names depend on its V2 switch at import time, which type checkers do not follow.
_ray_train: Any = ray.train


@dataclass(frozen=True)
class WorkerOptions:
    """Where training runs."""

    num_workers: int = 2
    device: str = "auto"  # "cpu", "gpu", or "auto": GPUs where the cluster has one per worker
    max_failures: int = 3  # worker-group failures survived by restarting from the latest checkpoint
    keep_checkpoints: int = 2
    grace_s: float = 20.0  # after SIGTERM: time to save a checkpoint and end
    min_workers: int | None = (
        None  # elastic: go on with as few as this, and take more, up to num_workers, as nodes join
    )

    def __post_init__(self) -> None:
        if self.min_workers is not None and not 1 <= self.min_workers <= self.num_workers:
            raise ConfigError(
                f"min_workers: expected 1 to the {self.num_workers} workers, got {self.min_workers}; set --min-workers"
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(
                f"keep_checkpoints: expected at least 1, got {self.keep_checkpoints}; set --keep-checkpoints"
            )
        if not self.grace_s > 0:
            raise ConfigError(f"grace_s: expected a positive number of seconds, got {self.grace_s}; set --grace-s")
        if self.max_failures < 0:
            raise ConfigError(f"max_failures: expected 0 or more, got {self.max_failures}; set --max-failures")
        if self.num_workers < 1:
            raise ConfigError(f"workers: expected at least 1, got {self.num_workers}; set --workers")
        if self.device not in ("auto", "cpu", "gpu"):
            raise ConfigError(f"device: expected auto, cpu or gpu, got {self.device!r}; set --device")


class _InterruptibleTrainer(TorchTrainer):
    """Ray's trainer without its SIGINT handler, which waits without bound and outlives `fit`; Python's own one raises."""

    def _register_sigint_handler(self, controller: Any) -> None:
        pass


def _resources() -> tuple[int, int]:
    """(CPUs, GPUs) of the cluster."""
    resources = ray.cluster_resources()
    return int(resources.get("CPU", 0)), int(resources.get("GPU", 0))


def choose_device(options: WorkerOptions) -> str:
    """ "gpu" or "cpu". Waits a minute for nodes that are joining, where CPUs are too few, or GPUs that were asked for by name.

    Raises ConfigError where the cluster lacks what was asked for then, too.
    """
    needed = options.num_workers if options.min_workers is None else options.min_workers
    cpus, gpus = _resources()

    def are_too_few() -> bool:
        return cpus < needed or (options.device == "gpu" and gpus < needed)

    if are_too_few() and may_grow():
        print(f"the cluster has {cpus} CPUs and {gpus} GPUs: waiting up to {_JOIN_S:g} s for more", flush=True)
        deadline = time.monotonic() + _JOIN_S
        while are_too_few() and time.monotonic() < deadline:
            time.sleep(0.5)
            cpus, gpus = _resources()
    if options.device == "gpu" and gpus < needed:
        raise ConfigError(f"expected {needed} GPUs, the cluster has {gpus}; lower --workers or pass --device cpu")
    if cpus < needed:
        raise ConfigError(f"expected a CPU per worker ({needed}), the cluster has {cpus}; lower --workers")
    return "gpu" if options.device == "gpu" or (options.device == "auto" and gpus >= needed) else "cpu"


def train(
    spec: TrainSpec, workers: WorkerOptions, run: RunDirectory, on_record: Callable[[Record], None]
) -> Mapping[str, Any]:
    """Trains (or continues, where the run has a checkpoint), records every epoch, and returns the final scores.

    `on_record` is shown the hub's records, from a thread. Raises what a worker raised on purpose; StageError for the rest;
    SystemExit(143) where SIGTERM came: with a checkpoint of the step that was under way, if the grace time was enough for one.
    """
    use_gpu = choose_device(workers) == "gpu"
    is_elastic = workers.min_workers is not None
    num_kept = workers.keep_checkpoints
    if is_elastic:  # a position within an epoch is of one number of workers
        spec = replace(spec, options=replace(spec.options, checkpoint_minutes=None))
        num_kept = max(2, num_kept)  # SIGTERM saves such a position, beside the epoch's end that others can start from

    def consume(record: Record) -> None:
        if record["kind"] == "epoch":
            run.record({key: value for key, value in record.items() if key != "kind"})
        elif record["kind"] == "start":
            run.start(int(record["epoch"]), int(record["step"]), int(record["workers"]))
        elif record["kind"] in ("damage", "unused"):
            run.note(record["kind"], what=record["what"])
        elif record["kind"] == "traffic":
            run.note("traffic", **{key: value for key, value in record.items() if key != "kind"})
        tell(record)

    # Which checkpoint is the newest is read from the folder itself: Ray's own list of them is not written atomically.
    folder = run.path / "train"
    for name in _RAYS_LISTS:
        (folder / name).unlink(missing_ok=True)
    sweep(folder, workers.keep_checkpoints)

    with (
        environment_defaults(_ELASTIC_ENVIRONMENT if is_elastic else {}),
        stopping_on_sigterm(workers.grace_s) as stopping,
        onlooker(on_record) as tell,
        metrics_hub(consume, stopping, run.path.resolve().name) as hub,
    ):
        trainer: Any = _InterruptibleTrainer(
            cast(Any, train_worker),
            train_loop_config={"spec": spec, "hub": hub, "elastic": is_elastic},
            torch_config=TorchConfig(timeout_s=COLLECTIVE_TIMEOUT_S),
            scaling_config=_ray_train.ScalingConfig(
                num_workers=(
                    workers.num_workers if workers.min_workers is None else (workers.min_workers, workers.num_workers)
                ),
                elastic_resize_monitor_interval_s=_RESIZE_S,
                use_gpu=use_gpu,
                resources_per_worker={"CPU": 1, "GPU": 1} if use_gpu else {"CPU": 1},
            ),
            run_config=_ray_train.RunConfig(
                name="train",
                storage_path=str(run.path.resolve()),
                failure_config=_ray_train.FailureConfig(
                    max_failures=workers.max_failures,
                    # A start with nodes that are gone is the controller's failure, and one lost node may cost several.
                    controller_failure_limit=workers.max_failures * (_STARTS_PER_LOSS if is_elastic else 1),
                    max_preemption_failures=workers.max_failures,
                ),
                checkpoint_config=_ray_train.CheckpointConfig(num_to_keep=num_kept),
                logging_config=_ray_train.LoggingConfig(log_level="ERROR"),
            ),
        )
        try:
            result: Any = trainer.fit()
        except RayTrainingFailedError as error:
            failure = run.path / "failure.log"
            failure.write_text(str(error) + "\n")
            raise _cause(error, failure) from error
    assert isinstance(result.return_value, dict)
    if "error" in result.return_value:
        raise result.return_value["error"]
    if "stopped" in result.return_value:
        run.note("saved", where=result.return_value["stopped"])
        on_record({"kind": "saved", "where": result.return_value["stopped"], "run": str(run.path)})
        raise SystemExit(TERMINATED)
    sweep(folder, workers.keep_checkpoints)
    newest = latest_checkpoint(run.path)
    if newest is not None:
        keep_best(newest, run.path / "best")
    return result.return_value


def _cause(error: RayTrainingFailedError, log: Path) -> GraphmillError:
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
