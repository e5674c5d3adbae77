"""Defines the options of the fit, the workers, the partition servers, the tasks and the Ray session."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Amount, Count, Positive, Share, Size, check_fields, check_options
from graphmill.storage.splits.split_options import SplitOptions

if TYPE_CHECKING:
    from graphmill.storage.replicas.copy_cache import CopyCache

COLLECTIVE_TIMEOUT_S = 300  # longest wait in one collective operation of the workers

Schedule = Literal["constant", "cosine", "linear", "poly"]
Optimizer = Literal["adamw", "adam"]
Precision = Literal["auto", "float32", "bfloat16"]
CALLBACKS = ("on_epoch_end", "on_validation", "on_checkpoint")  # names of the methods of a user's callbacks
Setting = int | float | bool | str  # value of an optimizer's or scheduler's setting


def nearest_callback(own: object) -> tuple[str, str] | None:
    """Looks for a method whose name is probably a misspelt name of CALLBACKS. Returns (the method's name, the right name), or None if there is no such method."""
    methods = [name for name in dir(own) if name.startswith("on_") and name not in CALLBACKS]
    near = ((name, get_close_matches(name, CALLBACKS, 1, cutoff=0.75)) for name in methods)
    return next(((name, right[0]) for name, right in near if right and not hasattr(own, right[0])), None)


def is_own(word: str | None) -> bool:
    """Returns whether a word is an import path, package.module:Name, of an object of the user or of torch."""
    return word is not None and ":" in word


def metric_name(metric: str) -> str:
    """Returns a score's name. For an import path this is the function's name. A function given in memory gets a hexadecimal suffix, which is removed."""
    name = metric.rpartition(":")[2]
    return re.sub(r"_[0-9a-f]{8}$", "", name) if is_own(metric) else name


def _known_or_own(options: Any, **kinds: Any) -> dict[str, tuple[bool, str]]:
    """Returns rows for `check_options`. They check that the value of each field is an import path or one of the words in `kinds`."""
    rows = {}
    for name, kind in kinds.items():
        known, value = get_args(kind), getattr(options, name)
        fine = value in known or is_own(value)
        rows[name] = fine, f"one of {', '.join(known)}, or package.module:Name of your own"
    return rows


@dataclass(frozen=True)
class TrainOptions:
    """Options of a model's training: optimizer, learning rate, validation, checkpoints."""

    FORMER: ClassVar = {"accumulate": "micro_batches, the batches of a step over all workers (workers × accumulate)"}
    epochs: Count = 100
    """Number of passes over the training split."""
    steps: Count | None = None
    """Train whole epochs until at least this many optimizer steps are made, instead of a number of epochs."""
    learning_rate: Positive = 0.001
    """The peak learning rate, reached after the warm-up."""
    min_learning_rate: float = 0.0
    """The learning rate at the end of the schedule."""
    optimizer: Optimizer | str = "adamw"
    """adamw: the weight decay is separate from the gradient and applies to matrices. adam: the decay is a squared penalty on all weights, added to the
    gradient, as in most GCNs. An import path, like torch.optim:SGD: this class is called with groups of parameters, lr and optimizer_options."""
    optimizer_options: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of an optimizer that is given by import path: momentum=0.9 nesterov=yes."""
    weight_decay: Amount = 0.0
    """Strength of the weight decay. The optimizer decides which weights decay."""
    decay_all: bool = False
    """With adamw: biases, norms and scalars decay too, as in the released code of GRIT and TokenGT. adam always decays all weights."""
    schedule: Schedule | str = "constant"
    """The curve of the learning rate from its peak to min_learning_rate over the run. constant: the rate stays at the peak. An import path, like
    torch.optim.lr_scheduler:StepLR: this class is called with the optimizer and schedule_options, and the warm-up is a factor on its rates."""
    schedule_options: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of a scheduler that is given by import path: step_size=30 gamma=0.1."""
    schedule_each: Literal["epoch", "step"] = "epoch"
    """Advance a scheduler that is given by import path after each epoch, or after each optimizer step (OneCycleLR)."""
    power: Positive = 1.0
    """The exponent of the "poly" schedule."""
    warmup_epochs: Size = 0
    """Epochs in which the learning rate rises to its peak."""
    warmup_steps: Size | None = None
    """Optimizer steps in which the learning rate rises to its peak, instead of warmup_epochs."""
    micro_batches: Count | None = None
    """Number of batches of one optimizer step, dealt to the workers. Results depend on this number, not on the number of workers. none: the number of
    workers with which the run begins."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient of all weights; a larger gradient is scaled down to this norm. none: no clipping."""
    ema_decay: float | None = None
    """Decay of the moving average of the weights. With an average, the averaged weights are evaluated and kept. none: no average."""
    eval_every: Count = 1
    """Epochs between validations. The last epoch is always validated."""
    callbacks: tuple[str, ...] = ()
    """Import paths of callbacks. A callback is a function of (epoch, record), or an object or class with on_epoch_end(epoch, record),
    on_validation(epoch, scores) or on_checkpoint(epoch, name). If a callback returns True or "stop", the run ends after the epoch."""
    patience: Count | None = None
    """Training ends early after this many validations in a row without a better score. none: no early end."""
    checkpoint_every: Count = 10
    """Epochs between checkpoints. The last epoch always ends with a checkpoint."""
    checkpoint_minutes: Amount | None = None
    """Longest time between checkpoints, in minutes; checkpoints are saved within an epoch too. None: no bound."""
    precision: Precision = "float32"
    """Precision of the forward pass. auto: bfloat16 on GPUs, float32 on CPUs."""
    seed: int = 0
    """Seed of the initial weights, the batches and dropout. The same seed gives the same run."""
    start_from: str | None = None
    """Source of the initial weights, for fine-tuning: a finished run, a folder of jobs/convert_checkpoint.py, or a `.safetensors` file. The model's options
    must give the same parameters. none: random initial weights."""
    fresh_head: bool = False
    """With start_from: the head, or the decoder of links, gets random initial weights. Therefore the earlier run may have had another task."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained. A pattern matches a whole name, or the rest of a name after a dot (`layers.0.*`). Running statistics still change."""
    rates: tuple[str, ...] = ()
    """Factors on the learning rate of parameters, as PATTERN=FACTOR (`head.*=10`). Patterns are as in freeze; the first pattern that matches counts."""

    def __post_init__(self) -> None:
        rate, least_rate = self.learning_rate, self.min_learning_rate
        check_fields(self)
        own = {name: is_own(getattr(self, name)) for name in ("optimizer", "schedule")}
        taken = [name for name in ("lr", "weight_decay") if name in self.optimizer_options]
        check_options(
            self,
            {
                **_known_or_own(self, optimizer=Optimizer, schedule=Schedule),
                "optimizer_options": (
                    not taken and (own["optimizer"] or not self.optimizer_options),
                    "settings of an optimizer by its import path, but lr and weight_decay, which are --fit.learning_rate and --fit.weight_decay",
                ),
                "schedule_options": (own["schedule"] or not self.schedule_options, "a scheduler by its import path"),
                "schedule_each": (
                    own["schedule"] or self.schedule_each == "epoch",
                    "epoch, or a scheduler by its import path",
                ),
                "power": (not own["schedule"] or self.power == 1.0, "no power of a scheduler by its import path"),
                "callbacks": (all(map(is_own, self.callbacks)), "import paths package.module:Name"),
                "min_learning_rate": (
                    0 <= least_rate <= rate and not (own["schedule"] and least_rate),
                    f"0 to the peak rate {rate}, and 0 of a scheduler by its import path",
                ),
                "ema_decay": (self.ema_decay is None or 0 < self.ema_decay < 1, "a value in (0, 1) or none"),
                "fresh_head": (not self.fresh_head or self.start_from is not None, "no, or --fit.start_from beside it"),
                "rates": (
                    all(re.fullmatch(r".+=(\d+\.?\d*|\.\d+)(e-?\d+)?", each) for each in self.rates),
                    "PATTERN=FACTOR each, the factors numbers of at least 0",
                ),
            },
        )

    def num_warmup_steps(self, steps_per_epoch: int) -> int:
        """Returns the number of optimizer steps until the learning rate reaches its peak."""
        return self.warmup_epochs * steps_per_epoch if self.warmup_steps is None else self.warmup_steps


def _are_labels(selector: tuple[str, ...]) -> tuple[bool, str]:
    """Returns a row for `check_options`: whether these words are a label selector."""
    return all(re.fullmatch(r"[^=\s]+=\S+", each) for each in selector), "KEY=VALUE each"


def _labels(selector: tuple[str, ...]) -> dict[str, str]:
    """Returns a label selector in Ray's form."""
    return dict(each.split("=", 1) for each in selector)


_CPU_WORKERS = 2  # default number of workers on CPUs


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a run's workers: their number and devices, failures, and the end of the run."""

    num_workers: int | None = None
    """Number of workers. None: one per usable GPU. Without GPUs, None means one if this process is enough (see launcher), else one per host with CPUs, at least
    two."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of the workers: "cpu", "gpu", or "auto" (GPUs if the cluster or machine has GPUs)."""
    failures_per_hour: Size = 3
    """Failures per hour after which all workers start again from the latest checkpoint. More failures within an hour end the run."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints that a run keeps."""
    grace_s: Positive = 20.0
    """Time after SIGTERM in which the run may save a checkpoint and end."""
    min_workers: int | None = None
    """Makes a run elastic. This is its smallest number of workers: it goes on with this number, and takes more, up to num_workers, when nodes join."""
    cpus_per_worker: Count = 1
    """CPUs that Ray reserves for each worker; also the number of torch's threads in the worker."""
    spread: bool = False
    """Put workers on different nodes if possible; otherwise on as few nodes as possible."""
    label_selector: tuple[str, ...] = ()
    """Labels of the nodes on which workers may run, as KEY=VALUE. A VALUE has Ray's syntax: `H100`, `!H100`, `in(H100,H200)`."""
    wait_s: Amount = 300.0
    """Longest wait for room in a cluster that is busy, grows, or has lost a node."""
    launcher: Literal["auto", "process", "ray"] = "auto"
    """process: this process is the only worker, without Ray. ray: Ray starts the workers. auto: process, if one worker is enough and there is no cluster
    to join; else ray."""

    def __post_init__(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(f"workers: expected at least 1, or auto, got {self.num_workers}; set --workers")
        most = "" if self.num_workers is None else f" to the {self.num_workers} workers"
        least = self.min_workers
        check_fields(self)
        check_options(
            self,
            {
                "min_workers": (least is None or 1 <= least <= (self.num_workers or least), f"1{most}"),
                "label_selector": _are_labels(self.label_selector),
                "launcher": (
                    self.launcher != "process" or (self.num_workers in (None, 1) and least is None),
                    f"auto or ray for {self.num_workers or 'elastic'} workers",
                ),
            },
        )

    @property
    def labels(self) -> dict[str, str]:
        """Returns the label selector in Ray's form."""
        return _labels(self.label_selector)

    @property
    def bundle(self) -> dict[str, float]:
        """Returns the resources that Ray reserves for each worker."""
        return {"CPU": self.cpus_per_worker, **({"GPU": 1} if self.device == "gpu" else {})}

    @property
    def fewest(self) -> int:
        """Returns the lower bound on the number of workers."""
        return self.min_workers or self.num_workers or 1

    @property
    def most(self) -> int:
        """Returns the upper bound on the number of workers, if no GPUs are known."""
        return self.num_workers or max(_CPU_WORKERS, self.fewest)


@dataclass(frozen=True)
class ServerOptions:
    """Options of the servers that hold the partitions of a graph."""

    label_selector: tuple[str, ...] = ()
    """Labels of the nodes that serve partitions, as KEY=VALUE in the syntax of --workers.label_selector. None: the nodes on which workers can run."""
    work_threads: Count | None = None
    """Requests that a host's server answers at the same time. None: as many as the host has cores, at least 2."""
    ports: tuple[int, ...] | None = None
    """First and last port of the servers, which a firewall between the nodes must let through. Each server takes the first free port. None: any free port."""
    tls: bool = False
    """Encrypt and authenticate the traffic between servers and workers: mutual TLS with the certificates that RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and
    RAY_TLS_CA_CERT name on each host."""
    timeout_s: Positive = 120.0
    """Longest wait for the next bytes of a reply, including restarts of the server. The default survives a pause of a minute and a slow link."""
    start_timeout_s: Positive = 120.0
    """Longest wait for a server to start. The time that checksums take on a slow disk is added."""
    verify: bool = True
    """Check all checksums when a server starts."""
    local_reads: bool = True
    """Read partitions directly, without a server, if their files are on this node."""
    disk_cache_dir: Path | None = None
    """Folder on each host for copies of the partitions of a graph on an object store. All processes and later runs share it. None: the server's memory."""
    disk_cache_bytes: Count = 100_000_000_000
    """Largest size of disk_cache_dir, for all graphs. The least recently used graphs are removed first."""
    service: Literal["auto", "always", "never"] = "auto"
    """Use of a graph service, which keeps the graph open for several jobs (graphmill serve-graph). auto: use it if one with the same server options runs in the
    cluster. always: refuse to run without it. never: start own servers."""
    range_reads: bool = False
    """Leave the features of a graph on its object store, and read only the rows that batches need, as byte ranges. All other files are copied. Use it if the
    features fit neither memory nor disk; otherwise whole copies are faster. Rows by plan (--loader.cache_bytes) are read once while they are kept."""

    def __post_init__(self) -> None:
        ports = self.ports
        check_fields(self)
        check_options(
            self,
            {
                "label_selector": _are_labels(self.label_selector),
                "ports": (
                    ports is None or (len(ports) == 2 and 1 <= ports[0] <= ports[1] <= 65535),
                    "the first and the last of 1 to 65535, or none",
                ),
                "disk_cache_dir": (
                    self.disk_cache_dir is None or self.disk_cache_dir.is_absolute(),
                    "an absolute path, which is the same on all hosts, or none",
                ),
                "range_reads": (
                    not self.range_reads or self.disk_cache_dir is None,
                    "no beside disk_cache_dir, where partitions are kept whole",
                ),
            },
        )

    @property
    def labels(self) -> dict[str, str]:
        """Returns the label selector in Ray's form."""
        return _labels(self.label_selector)

    @property
    def disk_cache(self) -> "CopyCache | None":
        # Imported here because it loads pyarrow, which --help does not need
        from graphmill.storage.replicas.copy_cache import CopyCache

        return None if self.disk_cache_dir is None else CopyCache(str(self.disk_cache_dir), self.disk_cache_bytes)


@dataclass(frozen=True)
class EmbeddingOptions:
    """Options of trainable rows of the nodes. A row is added to its node's features or replaces missing features."""

    width: Size = 0
    """Length of a node's row; 0: no trainable rows."""
    node_types: tuple[str, ...] = ()
    """In a typed graph: the types whose nodes have rows. Without names: all types."""
    optimizer: Literal["adagrad", "adam"] = "adagrad"
    """Optimizer of the rows that a step touches; other rows do not change."""
    learning_rate: Positive = 0.05
    """Learning rate of the rows. The schedule and the warm-up of --fit apply to this rate too."""
    mode: Literal["exact", "async"] = "exact"
    """exact: a step reads the rows after all earlier steps. Then a run is the same for any number of workers and owners, even if owners die. async: gradients
    are applied when they arrive."""
    owners: Count | None = None
    """Number of processes of a cluster that hold the rows, in even shares. None: one per host."""
    log_bytes: Count = 1 << 28
    """Largest size of the log of gradients that rank 0 keeps for owners that die. When half of this size is new, a checkpoint is saved, and the log before the
    previous checkpoint is removed. The logs of the other workers cover the same steps and are not counted."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.node_types and not self.width:
            raise ConfigError(
                f"node_types: expected a table, of rows of width 1 or more, got none for {' '.join(self.node_types)}; set --embeddings.width"
            )


MIN_OBJECT_STORE_GB = 80 / 1024  # Ray does not accept less than 75 MB


@dataclass(frozen=True)
class SessionOptions:
    """Options for the connection to Ray. The defaults start a small local Ray, unless the process runs inside a Ray job."""

    GIVEN: ClassVar = ("num_cpus", "num_gpus", "temp_dir")
    address: str | None = None
    """`host:port`: connect to this running cluster. `auto`: connect to the cluster on this machine. `local`: always start a new local Ray.
    The default is RAY_ADDRESS, which Ray sets inside `ray job submit`."""
    num_cpus: Count | None = None
    """Logical CPUs that a local Ray may assign to workers. The default is the number of cores."""
    num_gpus: Size | None = None
    """GPUs of a local Ray. The default is all GPUs that Ray finds."""
    object_store_gb: float = 1.0
    """Shared memory that a local Ray may use for objects."""
    dashboard: bool = False
    """Start the dashboard of a local Ray, on the loopback address."""
    dashboard_port: int | None = None
    """The dashboard's port. The default is the first free port from 8265 on."""
    temp_dir: Path | None = None
    """Folder for a local Ray's sockets and logs; it is kept after the run. It must have mode 0700 or not exist yet. The default is a new folder, which is
    removed after the run."""
    start_timeout_s: Positive = 30.0
    """Longest wait for a connection to the address."""
    stop_timeout_s: Positive = 10.0
    """Longest wait for a local Ray to stop before its processes are killed."""

    def __post_init__(self) -> None:
        port, address = self.dashboard_port, self.address
        check_fields(self)
        check_options(
            self,
            {
                "object_store_gb": (
                    MIN_OBJECT_STORE_GB <= self.object_store_gb < math.inf,
                    f"at least {MIN_OBJECT_STORE_GB}",
                ),
                "dashboard_port": (port is None or 1 <= port <= 65535, "1 to 65535"),
                "address": (
                    address is None or "://" not in address,
                    "a cluster's host:port, or auto; a URL is for `ray job submit --address URL`",
                ),
            },
        )


ClassMetric = Literal["accuracy", "rocauc", "weighted_accuracy", "macro_f1"]
BinaryMetric = Literal["rocauc", "ap", "micro_f1", "macro_f1"]


def _check_answers(options: Any, metrics: Any) -> None:
    """Raises ConfigError for an unknown loss or metric. Raises it also if weights of answers are given with a loss by import path, which would ignore the
    weights.
    """
    weighed = options.label_smoothing or options.class_weights != "none" or getattr(options, "weights", ())
    fine = options.loss is None or (is_own(options.loss) and not weighed)
    expected = "none, or package.module:Name without label_smoothing, class_weights and weights, which are of the cross-entropy"
    check_options(options, {**_known_or_own(options, metric=metrics), "loss": (fine, expected)})


@dataclass(frozen=True)
class AnswerOptions:
    """Options of tasks whose targets are answers. An answer is one of several classes, or yes or no."""

    METRICS: ClassVar[Any] = ClassMetric
    label_smoothing: Share = 0.0
    """Share of the target that is spread over all answers."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: each answer has the same total weight in the loss, however many nodes or graphs have it. none: each node or graph has the same weight."""
    loss: str | None = None
    """Import path of a function of (prediction, target) that returns the mean loss or a loss for each target, or of such a class of torch.nn.
    none: cross-entropy."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_answers(self, self.METRICS)


@dataclass(frozen=True)
class NodeAnswerOptions(AnswerOptions):
    """Options of tasks with answers about the nodes of one graph."""

    weights: tuple[float, ...] = ()
    """Weight of each class in the loss, instead of class_weights. If nodes have several labels: the weight of each label's positive answers."""
    node_type: str | None = None
    """In a typed graph: the predicted type of nodes; none: the only type with labels and splits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and self.class_weights != "none":
            raise ConfigError(
                f"weights: expected class_weights none beside them, got {self.class_weights!r}; leave one of the two out"
            )
        check_options(self, {"weights": (all(0 < weight < math.inf for weight in self.weights), "numbers above 0")})


@dataclass(frozen=True)
class NodeClassificationOptions(NodeAnswerOptions):
    """Task: predict the class of the nodes of one graph."""

    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines. weighted_accuracy: the mean recall over classes."""


@dataclass(frozen=True)
class NodeBinaryOptions(NodeAnswerOptions):
    """Task: predict several yes-or-no labels for each node of one graph. Unknown labels do not count."""

    METRICS: ClassVar[Any] = BinaryMetric
    metric: BinaryMetric | str = "micro_f1"
    """Score that selects the best epoch and is compared with the baselines. micro_f1: F1 over all labels together. macro_f1: mean of the labels' F1."""


@dataclass(frozen=True)
class NodesOptions:
    """Task: predict the class of the nodes of many graphs."""

    label_smoothing: Share = 0.0
    """Share of the target that is spread over all answers."""
    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines. weighted_accuracy: the mean recall over classes."""
    class_weights: Literal["none", "balanced", "batch"] = "none"
    """balanced: each class has the same total weight in the loss, however many nodes have it. batch: a node's weight is the share of nodes of other
    classes in its batch (as in the code of PATTERN and CLUSTER)."""
    one_logit: bool = False
    """With two classes: the model has a single output, the logit of the second class."""
    loss: str | None = None
    """Import path of a loss, as in the other tasks. none: cross-entropy."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_answers(self, ClassMetric)


@dataclass(frozen=True)
class PairsOptions:
    """Task: predict whether pairs of nodes within a graph belong together, for many graphs. A pair's score is the dot product of the states of its nodes."""

    metric: Literal["mrr"] = "mrr"
    """Score that selects the best epoch and is compared with the baselines. mrr: mean reciprocal rank of a true pair's second node. The other nodes of the
    graph are its rivals, ranked by their scores with the pair's first node. The mean is first over the pairs of a graph, then over graphs."""


NumberMetric = Literal["mae", "rmse", "r2"]
NumberLoss = Literal["l1", "mse", "huber"]


@dataclass(frozen=True)
class NumberOptions:
    """Options of tasks whose targets are real numbers. Unknown targets are NaN."""

    metric: NumberMetric | str = "mae"
    """Score that selects the best epoch and is compared with the baselines. With several targets it is the mean of their R², or of their errors; each error is
    divided by the deviation of its target in the training split."""
    loss: NumberLoss | str = "l1"
    """Loss of the standardised predictions, or an import path of a loss, as in the other tasks."""
    huber_delta: Positive = 1.0
    """Delta of the huber loss, in standard deviations of the target."""
    standardise: bool = True
    """yes: the model predicts (target - mean) / standard deviation, with the mean and the deviation of the training split. no: it predicts the targets
    themselves, as in the code of the papers."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(self, _known_or_own(self, metric=NumberMetric, loss=NumberLoss))


@dataclass(frozen=True)
class RegressionOptions(NumberOptions):
    """Task: predict one or several real numbers for each graph."""

    target: str | None = None
    """Name of the set's target to predict; none: all targets."""


@dataclass(frozen=True)
class NodeRegressionOptions(NumberOptions):
    """Task: predict one or several real numbers for each node of one graph."""

    node_type: str | None = None
    """In a typed graph: the predicted type of nodes; none: the only type with labels and splits."""


@dataclass(frozen=True)
class BinaryOptions(AnswerOptions):
    """Task: predict the answers to one or several yes-or-no questions about each graph. Unknown answers are NaN."""

    METRICS: ClassVar[Any] = BinaryMetric
    target: str | None = None
    """Name of the set's target to predict; none: all targets."""
    metric: BinaryMetric | str = "rocauc"
    """Score that selects the best epoch and is compared with the baselines."""


@dataclass(frozen=True)
class ClassesOptions(AnswerOptions):
    """Task: predict the class of each graph."""

    target: str | None = None
    """Name of the set's target that holds the classes, if there are several targets."""
    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines."""


@dataclass(frozen=True)
class MoleculeIngestOptions:
    """Options of the ingestion of molecules into shards."""

    workers: Count = 1
    """1: this process, without Ray. More: Ray tasks of one CPU each. A cluster with enough CPUs may run up to twice as many tasks."""
    chunk_rows: Count = 2000
    """Rows that one task featurises. An interruption loses at most this many rows of each running task."""
    shard_rows: int = 200_000
    """Rows of the source in one shard. A shard is joined in memory, which takes about 0.3 KB per row."""
    overwrite: bool = False
    """Publish a new snapshot of the set at the url. The old snapshots stay."""
    retries: Size = 3
    """How many times a chunk is given to another worker after its worker died."""
    deadline_s: Positive = 600.0
    """Longest wait for the next finished chunk."""
    scratch: str | None = None
    """Local directory for the shards before they are published. None: the set's folder, or the system's temporary folder if the url is remote."""
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(
            self,
            {"shard_rows": (self.shard_rows >= self.chunk_rows, f"at least chunk_rows = {self.chunk_rows}")},
        )
