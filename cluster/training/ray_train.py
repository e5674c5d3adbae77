"""Starts a run's workers by Ray Train, with their CPUs or GPUs, and gives each worker a session."""

import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow.fs
import ray.train
import torch
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import CheckpointUploadMode
from ray.train import TrainingFailedError as RayTrainingFailedError
from ray.train.torch import TorchTrainer, get_device
from ray.util import get_node_ip_address

from graphmill.cluster.checkpoints.checkpoint_store import TRAIN, Checkpoints, checkpoints_of
from graphmill.cluster.data.training_data import TrainingData
from graphmill.cluster.metrics.prometheus import LiveMetrics
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.process.leave_notice import is_leaving
from graphmill.cluster.process.outcome import Failed, Outcome
from graphmill.cluster.ray.host_watch import watched_hosts
from graphmill.cluster.ray.placement import place, wait_for_room
from graphmill.cluster.ray.process_group import MeetingConfig
from graphmill.cluster.ray.session import environment_defaults
from graphmill.cluster.runs.records import AttemptRecords, Record, Recorder
from graphmill.cluster.runs.run_directory import log_failure
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.train_loop import train_worker
from graphmill.cluster.training.train_session import TrainSession
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import GraphmillError, StageError

_RAYS_LISTS = ("checkpoint_manager_snapshot.json",)  # file with Ray's list of the checkpoints of an earlier driver
_RESIZE_S = 10.0  # time between two checks for nodes that have joined, if the number of workers may change

# After the loss of a node, Ray Train first requests as many workers as before. It waits this long (60 s by default) before it takes fewer workers.
_ELASTIC_ENVIRONMENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20"}
_STARTS_PER_LOSS = 3
_POLLS_PER_S = 500.0  # polls of single workers; one poll takes the controller a few tenths of a millisecond
_SHORTEST_POLL_S = 0.1

WARM = (
    "torch",
    "pandas",  # Ray Train imports it
    "graphmill.samplers.loading.loader",
    __name__,
    "graphmill.cluster.serving.partition_server",
)
"""Modules that a run's workers and servers import."""

# The names in Ray Train depend on its V2 switch at import time, which type checkers cannot follow.
_ray_train: Any = ray.train


def register(
    checkpoints: Checkpoints, keep_checkpoints: int, epoch: int, name: str, write: Callable[[], None] | None
) -> None:
    """Implements a session's `register`. A collective call that does not wait for `write`: a thread of Ray calls `write`, then registers the checkpoint."""
    options: dict[str, Any] = {"checkpoint_upload_mode": CheckpointUploadMode.ASYNC}
    if write is not None:

        def upload(checkpoint: ray.train.Checkpoint, _: str) -> ray.train.Checkpoint:
            write()
            checkpoints.sweep(keep_checkpoints)
            return checkpoint

        storage = ray.train.get_context().get_storage()
        options |= {
            "checkpoint": ray.train.Checkpoint(f"{storage.experiment_fs_path}/{name}", storage.storage_filesystem),
            "checkpoint_upload_fn": upload,
            "delete_local_checkpoint_after_upload": False,
        }
    ray.train.report({"epoch": epoch}, checkpoint_dir_name=name, **options)


def _worker(config: dict[str, Any]) -> Outcome:
    """Runs a Ray Train worker. `config` holds the TrainSpec, the run's URL and the attempt's records."""
    context = ray.train.get_context()
    torch.set_num_threads(config["threads"])
    checkpoints, reporter = checkpoints_of(RunStore(config["run"])), Recorder(config["reports"])
    session = TrainSession(
        context.get_world_rank(),
        context.get_world_size(),
        get_device(),
        f"{socket.gethostname()} ({get_node_ip_address()})",
        checkpoints,
        reporter,
        partial(register, checkpoints, config["keep_checkpoints"]),
        is_leaving,
        ray.get_runtime_context().get_node_id(),
    )
    try:
        return train_worker(config["spec"], session)
    finally:
        reporter.close()


class RayTrainLauncher:
    """Starts a run's workers in the connected cluster."""

    def __init__(
        self,
        workers: WorkerOptions,
        run: Path | RunStore,
        renewed: Callable[[float, Callable[[str], None]], TrainingData] | None = None,
        full_disks: Callable[[], str] = lambda: "",
        serving: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`renewed(wait_s, say)` returns the data for the cluster's current hosts; it is called before each attempt. `full_disks` returns a message about full
        disks of the hosts; it is called after a failure. `serving` returns the ids of the nodes that serve partitions.

        Raises ConfigError if the cluster does not have the requested resources.
        """
        self.workers, self._renewed, self._full_disks = place(workers), renewed, full_disks
        self._say: Callable[[str], None] = lambda _: None
        self._lost: Callable[[], str] = lambda: ""
        self._run = RunStore.of(run)
        self._live = LiveMetrics(self._run.name)
        self._serving, self._nodes, self._announced = serving, frozenset[str](), set[str]()

    @contextmanager
    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None], leave: Callable[[str, str], None]
    ) -> Iterator[Callable[[], str]]:
        own_node = ray.get_runtime_context().get_node_id()

        def see_drains(hosts: Mapping[str, str]) -> None:
            used = {own_node, *self._nodes, *self._serving()} & hosts.keys() - self._announced
            self._announced |= used
            if own_node in used:  # this process dies with its host: another one has to go on
                say(f"{hosts[own_node]}, the host of this command, is announced to be lost: the run is saved and ends")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            for node in sorted(used):
                leave(node, hosts[node])

        with watched_hosts(say, end_now, see_drains) as watch:
            self._say, self._lost = say, watch.lost
            yield watch.lost

    def watch(self, record: Record) -> None:
        if record["kind"] == "start":
            self._nodes = frozenset(record.get("nodes", ()))
        self._live.update(record)

    def uses(self, node: str) -> bool:
        return node in self._nodes or node in self._serving()

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """Starts the workers once and returns rank 0's outcome, or the failure that Ray reports. Ray Train does not repeat the start.

        Waits for room in the cluster, and for hosts with the data. Raises DeadlineError if there is no room in time, FormatError if no host has the data.
        """
        # The attempt runs in a thread, because a wait for a lost head inside Ray does not react to signals. Also, in the main thread Ray would replace the
        # handler of Ctrl-C by a handler that waits without bound.
        return begin(lambda: self._attempt(spec, reports), "attempt").result()

    def _attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        # Ray's list of checkpoints is not needed and is not written atomically: the newest checkpoint is found in the folder itself.
        self._run.remove([f"{TRAIN}/{name}" for name in _RAYS_LISTS])
        self._nodes = frozenset()  # not known until the workers have begun
        wait_for_room(self.workers, self._say, self._lost)
        if self._renewed is not None:
            spec = replace(spec, data=self._renewed(self.workers.wait_s, self._say))
        is_elastic, threads = self.workers.min_workers is not None, self.workers.cpus_per_worker
        config = {
            "spec": spec,
            "run": self._run.absolute,
            "reports": reports,
            "threads": threads,
            "keep_checkpoints": self.workers.keep_checkpoints,
        }
        trainer = _trainer(config, self.workers, self._run)
        try:
            polled = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": f"{poll_interval_s(self.workers.most):g}"}
            with environment_defaults(polled | (_ELASTIC_ENVIRONMENT if is_elastic else {})):
                return cast(Outcome, trainer.fit().return_value)
        except (RayTrainingFailedError, RayActorError) as error:  # a worker failed, or the controller died
            failed, full = _failure(error, log_failure(self._run, str(error))), self._full_disks()
            return replace(failed, cause=type(failed.cause)(f"{full}; {failed.cause}")) if full else failed


def poll_interval_s(workers: int) -> float:
    """Returns the seconds between the polls of Ray Train's controller, as short as the number of workers allows.

    `ray.train.report`, which ends a checkpoint, waits for the next poll. Ray's default interval is 2 s.
    """
    return max(_SHORTEST_POLL_S, workers / _POLLS_PER_S)


def _trainer(config: dict[str, Any], workers: WorkerOptions, run: RunStore) -> Any:
    storage: dict[str, Any] = {"storage_path": run.absolute}
    if not run.is_local:  # Ray Train uses the store through fsspec, with fsspec's options and credentials
        through = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(run.filesystem))
        storage = {"storage_path": run.path, "storage_filesystem": through}
    is_elastic, use_gpu = workers.min_workers is not None, workers.device == "gpu"
    return TorchTrainer(
        cast(Any, _worker),
        train_loop_config=config,
        torch_config=MeetingConfig(grace_s=workers.grace_s),
        scaling_config=_ray_train.ScalingConfig(
            num_workers=(workers.min_workers, workers.num_workers) if is_elastic else workers.num_workers,
            elastic_resize_monitor_interval_s=_RESIZE_S,
            use_gpu=use_gpu,
            resources_per_worker=workers.bundle,
            placement_strategy="SPREAD" if workers.spread else "PACK",
            label_selector=workers.labels or None,
        ),
        run_config=_ray_train.RunConfig(
            name=TRAIN,
            **storage,
            failure_config=_ray_train.FailureConfig(
                max_failures=0,
                # A start on lost nodes counts as a failure of the controller, and one lost node may cause several such starts.
                controller_failure_limit=_STARTS_PER_LOSS,
                max_preemption_failures=0,
            ),
            checkpoint_config=_ray_train.CheckpointConfig(),  # rank 0 removes old checkpoints itself
            logging_config=_ray_train.LoggingConfig(log_level="ERROR"),
        ),
    )


def _failure(error: Exception, log: Path) -> Failed:
    """Returns the failure in Ray's error: the error that a worker raised on purpose, or else the failure of the lowest rank."""
    failures = dict(getattr(error, "worker_failures", {}) or {})
    for rank, failure in sorted(failures.items()):
        if isinstance(failure, GraphmillError):
            return Failed.of(failure, f"rank {rank}")
    controller = getattr(error, "controller_failure", None)
    rank, first = next(iter(sorted(failures.items())), (None, controller or error))
    lines = str(first).strip().splitlines()
    if isinstance(first, OutOfMemoryError):  # the first line of the error has the figures, the last line has advice
        text = (
            f"out of memory: {lines[0][:400]}; set fewer --workers or smaller batches, or stop what else uses the node's memory "
            f"(its largest users are in {log})"
        )
    else:
        last = lines[-1] if lines else repr(first)
        text = f"{type(first).__name__}: {last[:400]}; the workers' tracebacks are in {log}"
    owner = "Ray Train's controller" if rank is None else f"rank {rank}"
    return Failed("training", owner, StageError(text), is_final=False)
