"""Options of the fit, the workers, the partition servers and the Ray session."""

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

COLLECTIVE_TIMEOUT_S = 300  # longest wait inside one collective operation of the workers

Schedule = Literal["constant", "cosine", "linear", "poly"]
Optimizer = Literal["adamw", "adam"]
Precision = Literal["auto", "float32", "bfloat16"]
CALLBACKS = ("on_epoch_end", "on_validation", "on_checkpoint")  # methods of a user's callbacks
Setting = int | float | bool | str  # value of an optimizer's or scheduler's setting


def nearest_callback(own: object) -> tuple[str, str] | None:
    """(a method whose name is a misspelt CALLBACKS, the right name); None: the object has no such method."""
    methods = [name for name in dir(own) if name.startswith("on_") and name not in CALLBACKS]
    near = ((name, get_close_matches(name, CALLBACKS, 1, cutoff=0.75)) for name in methods)
    return next(((name, right[0]) for name, right in near if right and not hasattr(own, right[0])), None)


def is_own(word: str | None) -> bool:
    """Whether a word is an import path, package.module:Name, to a user's object or torch's."""
    return word is not None and ":" in word


def metric_name(metric: str) -> str:
    """A score's name; for an import path, the function's name without the number that a Python object from memory has."""
    name = metric.rpartition(":")[2]
    return re.sub(r"_[0-9a-f]{8}$", "", name) if is_own(metric) else name


def _known_or_own(options: Any, **kinds: Any) -> dict[str, tuple[bool, str]]:
    """Rows for `check_options`: each field is a word of its Literal, or an import path."""
    rows = {}
    for name, kind in kinds.items():
        known, value = get_args(kind), getattr(options, name)
        fine = value in known or is_own(value)
        rows[name] = fine, f"one of {', '.join(known)}, or package.module:Name of your own"
    return rows


@dataclass(frozen=True)
class TrainOptions:
    """The fit of a model."""

    FORMER: ClassVar = {"accumulate": "micro_batches, the batches of a step over all workers (workers × accumulate)"}
    epochs: Count = 100
    """Passes over the training split."""
    steps: Count | None = None
    """Train at least this many optimizer steps, in whole epochs, instead of a number of epochs."""
    learning_rate: Positive = 0.001
    """The peak rate, after the warm-up."""
    min_learning_rate: float = 0.0
    """The rate at the end of the schedule."""
    optimizer: Optimizer | str = "adamw"
    """adamw: decays matrices, separately from the gradient; adam: the decay is a squared penalty on all weights in the gradient, as in most GCNs. Or an
    import path, torch.optim:SGD, which is called with groups of parameters, lr and optimizer_options."""
    optimizer_options: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of an optimizer by import path: momentum=0.9 nesterov=yes."""
    weight_decay: Amount = 0.0
    """Strength of the weight decay; the optimizer decides which weights decay."""
    decay_all: bool = False
    """With adamw: biases, norms and scalars decay too, as in the released code of GRIT and TokenGT; adam always decays all."""
    schedule: Schedule | str = "constant"
    """The curve of the rate from its peak to min_learning_rate over the run; constant: it stays at the peak. Or an import path,
    torch.optim.lr_scheduler:StepLR, which is called with the optimizer and schedule_options; the warm-up is a factor on its rates."""
    schedule_options: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of a scheduler by import path: step_size=30 gamma=0.1."""
    schedule_each: Literal["epoch", "step"] = "epoch"
    """A scheduler by import path advances after each epoch, or after each optimizer step (OneCycleLR)."""
    power: Positive = 1.0
    """The exponent of the "poly" schedule."""
    warmup_epochs: Size = 0
    """Epochs in which the rate rises to its peak."""
    warmup_steps: Size | None = None
    """Optimizer steps in which the rate rises to its peak, instead of warmup_epochs."""
    micro_batches: Count | None = None
    """Batches of one optimizer step, dealt to the workers. Results depend on this number, not on the number of workers. none: the number of
    the run's first workers."""
    clip_norm: Positive | None = None
    """Gradients with a larger norm, over all weights, are scaled down to it; none: no clipping."""
    ema_decay: float | None = None
    """Decay of the moving average of the weights, which is then evaluated and kept; none: no average."""
    eval_every: Count = 1
    """Epochs between validations; the last epoch is always validated."""
    callbacks: tuple[str, ...] = ()
    """Import paths of objects or classes with on_epoch_end(epoch, record), on_validation(epoch, scores) or on_checkpoint(epoch, name), or of functions of
    (epoch, record). Returning True or "stop" ends the run after the epoch."""
    patience: Count | None = None
    """Validations in a row without a better score after which training ends early; none: it does not."""
    checkpoint_every: Count = 10
    """Epochs between checkpoints; the last epoch always ends with one."""
    checkpoint_minutes: Amount | None = None
    """Longest time between checkpoints, also within an epoch; None: no bound."""
    precision: Precision = "float32"
    """auto: bfloat16 on GPUs, float32 on CPUs."""
    seed: int = 0
    """Seed of the initial weights, the batches and dropout: the same seed gives the same run."""
    start_from: str | None = None
    """Fine-tuning: a finished run, a folder of jobs/convert_checkpoint.py, or a `.safetensors` file with the initial weights. The model's options must
    give the same parameters; none: random initial weights."""
    fresh_head: bool = False
    """With start_from: the head, or the decoder of links, begins at random, so the other run may have had another task."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained: patterns of their names, or of the ends of their names after a dot (`layers.0.*`). Running statistics still change."""
    rates: tuple[str, ...] = ()
    """Factors on the learning rate, as PATTERN=FACTOR (`head.*=10`), with patterns as in freeze; the first matching pattern counts."""

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
        """Optimizer steps until the rate reaches its peak."""
        return self.warmup_epochs * steps_per_epoch if self.warmup_steps is None else self.warmup_steps


_CPU_WORKERS = 2  # default number of workers on CPUs


@dataclass(frozen=True)
class WorkerOptions:
    """The workers of a run, and how it ends."""

    num_workers: int | None = None
    """None: one per usable GPU; without GPUs one if this process is enough (see launcher), otherwise one per host with CPUs, at least two."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """"cpu", "gpu", or "auto": GPUs if there are any."""
    failures_per_hour: Size = 3
    """Failures after which all workers start again from the latest checkpoint; more within an hour end the run."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints that a run keeps."""
    grace_s: Positive = 20.0
    """Time after SIGTERM to save a checkpoint and end."""
    min_workers: int | None = None
    """elastic: go on with as few workers as this, and take more, up to num_workers, as nodes join."""
    cpus_per_worker: Count = 1
    """CPUs that Ray reserves for each worker, and torch's threads there."""
    spread: bool = False
    """Put workers on different nodes if possible; otherwise on as few nodes as possible."""
    label_selector: tuple[str, ...] = ()
    """Labels of the nodes that workers may run on, as KEY=VALUE; a VALUE as Ray takes it: `H100`, `!H100`, `in(H100,H200)`."""
    wait_s: Amount = 300.0
    """Longest wait for room in a cluster that is busy, grows, or has lost a node."""
    launcher: Literal["auto", "process", "ray"] = "auto"
    """process: this process is the only worker, without Ray; ray: Ray starts the workers; auto: process for one worker if there is no cluster to join."""

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
                "label_selector": (
                    all(re.fullmatch(r"[^=\s]+=\S+", each) for each in self.label_selector),
                    "KEY=VALUE each",
                ),
                "launcher": (
                    self.launcher != "process" or (self.num_workers in (None, 1) and least is None),
                    f"auto or ray for {self.num_workers or 'elastic'} workers",
                ),
            },
        )

    @property
    def labels(self) -> dict[str, str]:
        """The label selector as Ray takes it."""
        return dict(each.split("=", 1) for each in self.label_selector)

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that Ray reserves for each worker."""
        return {"CPU": self.cpus_per_worker, **({"GPU": 1} if self.device == "gpu" else {})}

    @property
    def fewest(self) -> int:
        """Lower bound on the number of workers."""
        return self.min_workers or self.num_workers or 1

    @property
    def most(self) -> int:
        """Upper bound on the number of workers, if no GPUs are known."""
        return self.num_workers or max(_CPU_WORKERS, self.fewest)


@dataclass(frozen=True)
class ServerOptions:
    """The servers of partitions."""

    work_threads: Count = 2
    """Requests that one server answers at once."""
    ports: tuple[int, ...] | None = None
    """First and last port of the servers, for a firewall between the nodes; a server takes the first free one. None: any free port."""
    tls: bool = False
    """Encrypt and authenticate the traffic between servers and workers: mutual TLS with the certificates that RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and
    RAY_TLS_CA_CERT name on each host."""
    timeout_s: Positive = 120.0
    """Longest wait for the next bytes of a reply, restarts included: a pause of a minute and a slow link are survived."""
    start_timeout_s: Positive = 120.0
    """Longest wait for a server to start; time for its checksums on a slow disk is added."""
    verify: bool = True
    """Check all checksums when a server starts."""
    local_reads: bool = True
    """Read partitions in process if their files lie on this node."""
    disk_cache_dir: Path | None = None
    """Folder on each host for partitions of a graph on an object store, shared by all processes and later runs. None: the server's memory."""
    disk_cache_bytes: Count = 100_000_000_000
    """Size of disk_cache_dir, for all graphs; the least recently used ones make room."""
    range_reads: bool = False
    """Leave the features of a graph on an object store there, and read only the rows that batches need, as byte ranges; the rest is copied. For graphs whose
    features fit neither memory nor disk: otherwise whole copies are faster. Rows by plan (--loader.cache_bytes) are read once while they are kept."""

    def __post_init__(self) -> None:
        ports = self.ports
        check_fields(self)
        check_options(
            self,
            {
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
    def disk_cache(self) -> "CopyCache | None":
        from graphmill.storage.replicas.copy_cache import CopyCache  # loads pyarrow, which --help does not need

        return None if self.disk_cache_dir is None else CopyCache(str(self.disk_cache_dir), self.disk_cache_bytes)


@dataclass(frozen=True)
class EmbeddingOptions:
    """A trainable row for each node, in addition to its features or instead of them."""

    width: Size = 0
    """Numbers per row; 0: no table."""
    node_types: tuple[str, ...] = ()
    """In a typed graph: the types whose nodes have rows; none named: all types."""
    optimizer: Literal["adagrad", "adam"] = "adagrad"
    """Optimizer of the rows that a step touches; other rows do not change."""
    learning_rate: Positive = 0.05
    """Learning rate of the rows; the schedule and warm-up of --fit apply to it too."""
    mode: Literal["exact", "async"] = "exact"
    """exact: a step reads the rows after all earlier steps, so a run is the same for any number of workers and owners, even if some die; async: gradients are
    applied on arrival."""
    owners: Count | None = None
    """Processes of a cluster that hold the rows, in even shares. None: one per host."""
    log_bytes: Count = 1 << 28
    """Size of the log of gradients that rank 0 keeps for owners that die. After half of it a checkpoint is saved, and the log before the previous checkpoint is
    dropped. The other workers log the same steps, which is not counted."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.node_types and not self.width:
            raise ConfigError(
                f"node_types: expected a table, of rows of width 1 or more, got none for {' '.join(self.node_types)}; set --embeddings.width"
            )


MIN_OBJECT_STORE_GB = 80 / 1024  # Ray refuses less than 75 MB


@dataclass(frozen=True)
class SessionOptions:
    """Access to Ray. The defaults start a small local Ray, unless the process runs inside a Ray job."""

    GIVEN: ClassVar = ("num_cpus", "num_gpus", "temp_dir")
    address: str | None = None
    """A running cluster's `host:port`, or `auto` for the cluster on this machine, or `local` to always start our own.
    The default is RAY_ADDRESS, which Ray sets inside `ray job submit`."""
    num_cpus: Count | None = None
    """Logical CPUs that the scheduler of a local Ray may assign. The default is the number of cores."""
    num_gpus: Size | None = None
    """GPUs of a local Ray; by default the GPUs that Ray finds."""
    object_store_gb: float = 1.0
    """Shared memory that a local Ray may use for objects."""
    dashboard: bool = False
    """Start the dashboard of a local Ray, on the loopback address."""
    dashboard_port: int | None = None
    """The dashboard's port; the default is a free one from 8265 on."""
    temp_dir: Path | None = None
    """Folder for a local Ray's sockets and logs, kept afterwards: of mode 0700, or new. The default is a new folder that is removed."""
    start_timeout_s: Positive = 30.0
    """Longest wait to reach a given address."""
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
    """Raises ConfigError for an unknown loss or metric, and for a loss by import path together with weights of answers, which it would ignore."""
    weighed = options.label_smoothing or options.class_weights != "none" or getattr(options, "weights", ())
    fine = options.loss is None or (is_own(options.loss) and not weighed)
    expected = "none, or package.module:Name without label_smoothing, class_weights and weights, which are of the cross-entropy"
    check_options(options, {**_known_or_own(options, metric=metrics), "loss": (fine, expected)})


@dataclass(frozen=True)
class AnswerOptions:
    """Tasks whose targets are answers: one of several classes, or yes or no."""

    METRICS: ClassVar[Any] = ClassMetric
    label_smoothing: Share = 0.0
    """Share of the target that is spread over all answers."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: answers count equally in the loss, however many nodes or graphs have them."""
    loss: str | None = None
    """Import path of a function (prediction, target) that returns the mean or a number for each target, or of such a class of torch.nn; none: cross-entropy."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_answers(self, self.METRICS)


@dataclass(frozen=True)
class NodeAnswerOptions(AnswerOptions):
    """Answers about the nodes of one graph."""

    weights: tuple[float, ...] = ()
    """Weight of each class in the loss, or, if nodes have several labels, of each label's positives; instead of class_weights."""
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
    """Nodes of one graph, each of one class."""

    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines. weighted_accuracy: the mean recall over classes."""


@dataclass(frozen=True)
class NodeBinaryOptions(NodeAnswerOptions):
    """Nodes of one graph, each with several yes-or-no labels; unknown labels do not count."""

    METRICS: ClassVar[Any] = BinaryMetric
    metric: BinaryMetric | str = "micro_f1"
    """Score that selects the best epoch and is compared with the baselines. F1 over all labels together (micro), or its mean over labels (macro)."""


@dataclass(frozen=True)
class NodesOptions:
    """Nodes of many graphs, each of one class."""

    label_smoothing: Share = 0.0
    """Share of the target that is spread over all answers."""
    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines. weighted_accuracy: the mean recall over classes."""
    class_weights: Literal["none", "balanced", "batch"] = "none"
    """balanced: classes count equally in the loss, however many nodes have them; batch: a node's weight is the share of its batch's nodes of other
    classes (PATTERN's and CLUSTER's code)."""
    one_logit: bool = False
    """With two classes: the model has one output, the logit of the second."""
    loss: str | None = None
    """Import path, as in the other tasks; none: cross-entropy."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_answers(self, ClassMetric)


@dataclass(frozen=True)
class PairsOptions:
    """Pairs of nodes within many graphs, which belong together or not; the score is the dot product of the two nodes' states."""

    metric: Literal["mrr"] = "mrr"
    """Score that selects the best epoch and is compared with the baselines: the mean reciprocal rank of a true pair's second node among all nodes of the
    graph but itself, by their scores with the first; first over the pairs of a graph, then over graphs."""


NumberMetric = Literal["mae", "rmse", "r2"]
NumberLoss = Literal["l1", "mse", "huber"]


@dataclass(frozen=True)
class NumberOptions:
    """Tasks whose targets are real numbers; unknown ones are NaN."""

    metric: NumberMetric | str = "mae"
    """Score that selects the best epoch and is compared with the baselines; with several targets the mean of their R², or of their errors, each in units of
    its deviation in the training split."""
    loss: NumberLoss | str = "l1"
    """Loss of the standardised predictions; or an import path, as in the other tasks."""
    huber_delta: Positive = 1.0
    """Delta of the huber loss, in standard deviations."""
    standardise: bool = True
    """The model predicts (target - mean) / standard deviation, both of the training split; no: the targets themselves, as the papers' code."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(self, _known_or_own(self, metric=NumberMetric, loss=NumberLoss))


@dataclass(frozen=True)
class RegressionOptions(NumberOptions):
    """Numbers of graphs."""

    target: str | None = None
    """Name of the set's target to predict; none: all targets."""


@dataclass(frozen=True)
class NodeRegressionOptions(NumberOptions):
    """Nodes of one graph, each with one or several real numbers."""

    node_type: str | None = None
    """In a typed graph: the predicted type of nodes; none: the only type with labels and splits."""


@dataclass(frozen=True)
class BinaryOptions(AnswerOptions):
    """Yes-or-no questions about graphs, several at once; unknown ones are NaN."""

    METRICS: ClassVar[Any] = BinaryMetric
    target: str | None = None
    """Name of the set's target to predict; none: all targets."""
    metric: BinaryMetric | str = "rocauc"
    """Score that selects the best epoch and is compared with the baselines."""


@dataclass(frozen=True)
class ClassesOptions(AnswerOptions):
    """Graphs, each of one class."""

    target: str | None = None
    """Name of the set's target that holds the classes, if there are several targets."""
    metric: ClassMetric | str = "accuracy"
    """Score that selects the best epoch and is compared with the baselines."""


@dataclass(frozen=True)
class MoleculeIngestOptions:
    """The ingestion of molecules into shards."""

    workers: Count = 1
    """1: this process, without Ray. More: Ray tasks of one CPU each; a cluster with enough CPUs may run up to twice as many."""
    chunk_rows: Count = 2000
    """Rows that one task featurises; an interruption loses at most this many."""
    shard_rows: int = 200_000
    """Rows of the source in one shard; joined in memory, about 0.3 KB each."""
    overwrite: bool = False
    """Publish a new snapshot of the set at the url; the old ones stay."""
    retries: Size = 3
    """How often a chunk is given to another worker after its worker died."""
    deadline_s: Positive = 600.0
    """Longest wait for the next finished chunk."""
    scratch: str | None = None
    """Local directory for the shards before they are published; None: the set's folder, or the system's temporary folder if the url is remote."""
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(
            self,
            {"shard_rows": (self.shard_rows >= self.chunk_rows, f"at least chunk_rows = {self.chunk_rows}")},
        )
