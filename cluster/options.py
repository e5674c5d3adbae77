"""Options of the fit, the workers, the partition servers and the Ray session."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from samplers.messages import FeatureDtype
from storage.errors import ConfigError

Schedule = Literal["constant", "cosine", "linear", "poly"]
SCHEDULES: tuple[str, ...] = ("constant", "cosine", "linear", "poly")
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class TrainOptions:
    """How a model is fitted."""

    epochs: int = 100
    learning_rate: float = 0.001
    min_learning_rate: float = 0.0
    """Where the schedule ends."""
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    power: float = 1.0
    """Of the "poly" schedule."""
    warmup_epochs: int = 0
    warmup_steps: int | None = None
    """Optimizer steps, in place of epochs."""
    accumulate: int = 1
    """Batches of every rank in one optimizer step."""
    clip_norm: float | None = None
    ema_decay: float | None = None
    """Of the averaged weights, which are then what is evaluated and kept."""
    eval_every: int = 1
    """Epochs between validations; the last epoch is always validated."""
    checkpoint_every: int = 10
    """Epochs between checkpoints; the last epoch always ends with one."""
    checkpoint_minutes: float | None = None
    """The longest time without one, within an epoch too; None: no bound."""
    precision: Precision = "float32"
    """auto: bfloat16 on GPUs, float32 on CPUs."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "checkpoint_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}: expected at least 1, got {getattr(self, name)}; set --{name.replace('_', '-')}"
                )
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes >= 0:
            raise ConfigError(
                f"checkpoint_minutes: expected 0 or more, or none, got {self.checkpoint_minutes}; set --checkpoint-minutes"
            )
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate: expected a positive rate, got {self.learning_rate}; set --learning-rate")
        if not 0 <= self.min_learning_rate <= self.learning_rate:
            raise ConfigError(
                f"min_learning_rate: expected 0 to the peak rate {self.learning_rate}, got {self.min_learning_rate}; "
                "set --min-learning-rate"
            )
        if self.schedule not in SCHEDULES or not self.power > 0:
            raise ConfigError(
                f"schedule: expected one of {', '.join(SCHEDULES)} with a positive power, got {self.schedule!r} with "
                f"{self.power}; set --schedule"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm: expected a positive norm or none, got {self.clip_norm}; set --clip-norm")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"ema_decay: expected a value in (0, 1) or none, got {self.ema_decay}; set --ema-decay")
        for name in ("weight_decay", "warmup_epochs", "warmup_steps"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}; set {name}")


_CPU_WORKERS = 2  # where nobody says how many


@dataclass(frozen=True)
class WorkerOptions:
    """Where training runs, and how it ends."""

    num_workers: int | None = None
    """None: one for each GPU that may be used, or two on CPUs."""
    device: str = "auto"
    """"cpu", "gpu", or "auto": GPUs where there is any."""
    failures_per_hour: int = 3
    """Survived by starting all workers again from the latest checkpoint."""
    keep_checkpoints: int = 2
    grace_s: float = 20.0
    """After SIGTERM: time to save a checkpoint and end."""
    min_workers: int | None = None
    """elastic: go on with as few as this, and take more, up to num_workers, as nodes join."""

    def __post_init__(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(f"workers: expected at least 1, or auto, got {self.num_workers}; set --workers")
        if self.min_workers is not None and not 1 <= self.min_workers <= (self.num_workers or self.min_workers):
            most = "" if self.num_workers is None else f" to the {self.num_workers} workers"
            raise ConfigError(f"min_workers: expected 1{most}, got {self.min_workers}; set min_workers")
        if self.keep_checkpoints < 1:
            raise ConfigError(
                f"keep_checkpoints: expected at least 1, got {self.keep_checkpoints}; set keep_checkpoints"
            )
        if not self.grace_s > 0:
            raise ConfigError(f"grace_s: expected a positive number of seconds, got {self.grace_s}; set grace_s")
        if self.failures_per_hour < 0:
            raise ConfigError(
                f"failures_per_hour: expected 0 or more, got {self.failures_per_hour}; set failures_per_hour"
            )
        if self.device not in ("auto", "cpu", "gpu"):
            raise ConfigError(f"device: expected auto, cpu or gpu, got {self.device!r}; set device")

    @property
    def fewest(self) -> int:
        """How many workers there are at least, as far as is known."""
        return self.min_workers or self.num_workers or 1

    @property
    def most(self) -> int:
        """How many workers there are at most, where nothing but CPUs is known of."""
        return self.num_workers or max(_CPU_WORKERS, self.fewest)


@dataclass(frozen=True)
class ServerOptions:
    """How partitions are served."""

    work_threads: int = 2
    """Requests answered at once by one server."""
    timeout_s: float = 120.0
    """Longest wait for one reply, restarts included: a minute's pause is survived."""
    start_timeout_s: float = 120.0
    """And what the checksums take, at _VERIFY_BYTES_PER_S."""
    verify: bool = True
    """Check all checksums when a server starts."""
    local_reads: bool = True
    """Read partitions in process where their files lie on this node."""
    cache_bytes: int = 0
    """Of each process, for feature rows of partitions elsewhere; shared out by their nodes."""
    feature_dtype: FeatureDtype | None = None
    """Float16: halve what float32 features cost on the wire; batches then hold float16."""

    def __post_init__(self) -> None:
        if self.work_threads < 1:
            raise ConfigError(f"work_threads: expected at least 1, got {self.work_threads}; set work_threads")
        for name in ("timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected more than 0 seconds, got {getattr(self, name)}; set {name}")
        if self.cache_bytes < 0 or self.feature_dtype not in (None, "float16", "float32"):
            raise ConfigError(
                f"servers: expected cache_bytes >= 0 and feature_dtype float16, float32 or none, got {self}"
            )


MIN_OBJECT_STORE_GB = 80 / 1024  # Ray refuses less than 75 MB


@dataclass(frozen=True)
class SessionOptions:
    """How to reach Ray. The defaults start a small local Ray, unless the process runs inside a Ray job."""

    GIVEN: ClassVar = ("num_cpus", "num_gpus", "temp_dir")
    address: str | None = None
    """A running cluster's `host:port`, or `auto` for the one on this machine, or `local` to start our own in any case.
    Without it, RAY_ADDRESS decides, which Ray sets inside `ray job submit`."""
    num_cpus: int | None = None
    """Logical CPUs of a local Ray: what its scheduler may hand out. The default is the number of cores."""
    num_gpus: int | None = None
    """GPUs of a local Ray; the default is those that Ray finds."""
    object_store_gb: float = 1.0
    """Shared memory that a local Ray may use for objects."""
    dashboard: bool = False
    """Start the dashboard of a local Ray, on the loopback address."""
    dashboard_port: int | None = None
    """The dashboard's port; the default is a free one from 8265 on."""
    temp_dir: Path | None = None
    """Where a local Ray keeps its sockets and logs; kept afterwards. The default is a new directory that is removed."""
    start_timeout_s: float = 30.0
    """How long to try to reach a given address."""
    stop_timeout_s: float = 10.0
    """How long a local Ray may take to stop before its processes are killed."""

    def __post_init__(self) -> None:
        for name, least in (("num_cpus", 1), ("num_gpus", 0), ("object_store_gb", MIN_OBJECT_STORE_GB)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}; set {name}")
        if self.dashboard_port is not None and not 1 <= self.dashboard_port <= 65535:
            raise ConfigError(
                f"dashboard_port must be within 1 and 65535, got {self.dashboard_port}; set dashboard_port"
            )
        if self.address is not None and "://" in self.address:
            raise ConfigError(
                f"address: expected a cluster's host:port, or auto, got {self.address}; a URL is for `ray job submit --address {self.address}`"
            )
        for name in ("start_timeout_s", "stop_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {getattr(self, name)}; set {name}")


@dataclass(frozen=True)
class NodeClassificationOptions:
    """Nodes of one graph, each of one class."""

    metric: Literal["accuracy", "rocauc"] = "accuracy"
    """What selects the best epoch and is compared with the baselines."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: classes count equally in the loss, however many nodes they have."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)


@dataclass(frozen=True)
class RegressionOptions:
    """Numbers of graphs; unknown ones are NaN."""

    target: str | None = None
    """Which of the set's targets, by name; none: all of them."""
    metric: Literal["mae", "rmse"] = "mae"
    """What selects the best epoch and is compared with the baselines."""
    loss: Literal["l1", "mse", "huber"] = "l1"
    """On targets standardised by the training split."""
    huber_delta: float = 1.0
    """Of the huber loss, in standard deviations."""

    def __post_init__(self) -> None:
        if not self.huber_delta > 0:
            raise ConfigError(f"huber_delta: expected more than 0, got {self.huber_delta}; set huber_delta")


@dataclass(frozen=True)
class BinaryOptions:
    """Yes-or-no questions about graphs, several at once; unknown ones are NaN."""

    target: str | None = None
    """Which of the set's targets, by name; none: all of them."""
    metric: Literal["rocauc", "ap"] = "rocauc"
    """What selects the best epoch and is compared with the baselines."""
    label_smoothing: float = 0.0
    """Share of the answer that is spread over both."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: yes and no count equally in the loss, however many graphs they have."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)


@dataclass(frozen=True)
class ClassesOptions:
    """Graphs, each of one class."""

    target: str | None = None
    """Which of the set's targets holds the classes, where there are several."""
    metric: Literal["accuracy", "rocauc"] = "accuracy"
    """What selects the best epoch and is compared with the baselines."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: classes count equally in the loss, however many graphs they have."""

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)


def check_smoothing(share: float) -> None:
    """Raises ConfigError for a share of the target that cannot be spread."""
    if not 0 <= share < 1:
        raise ConfigError(f"label_smoothing: expected 0 or more and less than 1, got {share}; set label_smoothing")


@dataclass(frozen=True)
class MoleculeIngestOptions:
    """How a source becomes shards."""

    workers: int = 1
    """1: in this process, without Ray. More: Ray tasks of one CPU; a cluster that has the CPUs may run up to twice as many."""
    chunk_rows: int = 2000
    """Rows that one task featurises, and that an interruption costs."""
    shard_rows: int = 200_000
    """Rows of the source in one shard; joined in memory, about 0.3 KB each."""
    overwrite: bool = False
    """Publish a new snapshot of the set at the url; the old ones stay."""
    retries: int = 3
    """How often a chunk is given to another worker when its worker dies."""
    deadline_s: float = 600.0
    """Longest wait for the next finished chunk."""
    scratch: str | None = None
    """Local directory for the shards before they are published; None: in the set's folder, or the system's where the url is remote."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("chunk_rows", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{name}: expected at least {least}, got {getattr(self, name)}; set --{name.replace('_', '-')}"
                )
        if self.shard_rows < self.chunk_rows:
            raise ConfigError(
                f"shard_rows: expected at least chunk_rows = {self.chunk_rows}, got {self.shard_rows}; set --shard-rows"
            )
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s: expected more than 0 seconds, got {self.deadline_s}; set --deadline-s")
