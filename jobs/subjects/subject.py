"""The protocol of a run's subject. A subject finds, opens, checks and serves the run's data. It also gives the run its samplers, task, baselines, plan and
predictions.

`graphmill.jobs.config.registry.KINDS` maps each kind of run to its class; a user's own kind names its class. Methods with a body are the defaults for data
that every process reads itself.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import torch

from graphmill.cluster.checkpoints.checkpoint import parse_weights
from graphmill.cluster.data.training_data import TrainingData
from graphmill.cluster.embeddings.rows import SavedTable
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.tasks import BinaryClassification, Classification, PairClassification, Regression, Task
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.config.config import RunConfig, saved_tree
from graphmill.jobs.config.reader import UsageError
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.resolve.resolve import ResolvedRun, read_resolved
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.methods.registry import load
from graphmill.samplers.vocabulary.options import FullGraphOptions

if TYPE_CHECKING:
    from graphmill.cluster.embeddings.embeddings import TableSpec
    from graphmill.jobs.baselines.node_baselines import Baselines
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.plan.run_plan import Plan
    from graphmill.jobs.records.run_record import Run
    from graphmill.storage.graph import SourceIds

_TASKS: dict[str, type] = {
    "regression": Regression,
    "classification": Classification,
    "binary": BinaryClassification,
    "classes": Classification,
    "nodes": Classification,
    "pairs": PairClassification,
}

Members = Callable[[str], np.ndarray]  # split name -> ids of its members


@dataclass(frozen=True)
class Served:
    """Data that this process and its workers can read."""

    data: TrainingData
    router: Any = None
    """The router of this process; None: the data is not read through a router."""
    traffic: Traffic | None = None
    """Counts of the requests of `router`."""
    where: str = ""
    """The hosts of the servers, as text for people."""
    renewed: Callable[[float, Callable[[str], None]], TrainingData] | None = None
    """`renewed` and `full_disks`: see `graphmill.cluster.training.ray_train.RayTrainLauncher`."""
    full_disks: Callable[[], str] = lambda: ""
    nodes: Callable[[], Collection[str]] = tuple
    """Ids of the nodes that serve the data."""


class Subject(Protocol):
    """The opened data of a run. The methods raise ConfigError if the run and the data do not fit each other."""

    entry: ClassVar[str] = "graph"
    """Name of the data in a summary and in messages: "graph" or "graphs"."""
    spreads: ClassVar[bool] = False
    """True if runs may be graph-parallel."""
    has_relations: ClassVar[bool] = False
    """True if a prediction may name a relation."""

    stored: Any
    """An object with `url`, `manifest` (`content_hash`, `snapshot`, `files`, `origin`) and, for a single graph, `num_partitions` and `is_here`."""

    @classmethod
    def find(cls, config: RunConfig) -> Self | None:
        """Finds the stored data; None if a run would first have to make it."""
        ...

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        """Opens the data, and makes it first if it does not exist."""
        found = cls.find(config)
        assert found is not None
        return found

    @classmethod
    def at(cls, url: str, snapshot: int | None, options: "PredictConfig") -> Self:
        """Opens the data at a URL, for prediction."""
        ...

    @classmethod
    def plan_unmade(cls, plan: "Plan", resolved: ResolvedRun, resources: Resources | None) -> None:
        """Adds to the plan the facts that are known before the data exists."""
        plan.add("data", "not there yet: the first run makes it")

    @property
    def url(self) -> str:
        return str(self.stored.url)

    @property
    def manifest(self) -> Any:
        return self.stored.manifest

    @property
    def num_bytes(self) -> int:
        """Bytes of the data's files in total."""
        return sum(entry.num_bytes for entry in self.manifest.files.values())

    @property
    def num_partitions(self) -> int:
        """Number of partitions. Each partition has a server if the workers are Ray's. 0: every process reads the data itself."""
        return getattr(self.stored, "num_partitions", 0)

    @property
    def is_here(self) -> bool:
        """Whether all files are on this machine."""
        return getattr(self.stored, "is_here", True)

    def unit(self, config: RunConfig) -> str:
        """Plural noun for the predicted things: for example nodes."""
        ...

    @property
    def text(self) -> str:
        """One line that describes the data. Messages put `entry` before it."""
        ...

    def unread(self, resolved: ResolvedRun) -> str:
        """One line on the stored columns that the run does not read; empty if it reads all columns."""
        return ""

    def lacks(self, resolved: ResolvedRun) -> Sequence[str]:
        """Faults of the splits, each in a few words, for example classes without a node."""
        return ()

    def resolve(self, config: RunConfig, resources: Resources | None) -> ResolvedRun:
        """Resolves the run on this data."""
        ...

    def check(self, resolved: ResolvedRun) -> None:
        """Raises if something that the run needs is missing in the data."""

    def completed(self, resolved: ResolvedRun) -> Self:
        """The data with everything that the run can compute for it, for example an encoding. Called after `check`."""
        return self

    def check_memory(self, resolved: ResolvedRun) -> None:
        """Raises if all workers run on this machine and it has too little memory for them."""

    def check_served(self, served: Served, resolved: ResolvedRun) -> None:
        """Checks like `check`, but for data on other machines, and for a number of workers that is known only at this time."""

    def task(self, resolved: ResolvedRun) -> Task:
        """The run's task with the statistics of the training targets that the task needs."""
        ...

    def training(self, resolved: ResolvedRun) -> Any:
        """Options of the sampler for training batches."""
        return resolved.training

    def evaluation(self, resolved: ResolvedRun) -> Mapping[str, Any]:
        """Options of the sampler for each scored split."""
        return resolved.evaluation

    def data(self, resolved: ResolvedRun) -> TrainingData:
        """The data for a run in which each process reads it itself."""
        ...

    def here(self, resolved: ResolvedRun) -> AbstractContextManager[Served]:
        """Serves the data to this process only."""
        return _read_by_each(self.data(resolved))

    def serving(self, resolved: ResolvedRun) -> AbstractContextManager[Served]:
        """Serves the data to Ray's workers. The block needs a Ray session."""
        return _read_by_each(self.data(resolved))

    def shared(self, data: TrainingData, resolved: ResolvedRun) -> TrainingData:
        """`data` unchanged; for a graph-parallel run, a shard of `data` for each worker."""
        return data

    def table(self, resolved: ResolvedRun) -> "TableSpec | None":
        """The table of trained embeddings; None: the run trains no embeddings."""
        return None

    def rivals(self, config: RunConfig) -> str:
        """A text that names the baselines."""
        ...

    def baselines(self, served: Served, resolved: ResolvedRun, task: Task) -> "Baselines":
        """Scores of the baselines: name -> scores by split."""
        ...

    def described(self, resolved: ResolvedRun, task: Task) -> dict[str, Any]:
        """More entries for the summary."""
        return {}

    def plan(self, plan: "Plan", resolved: ResolvedRun) -> None:
        """Adds splits, batches, memory and time to the plan."""
        ...

    def predict(self, run: "Run", options: "PredictConfig", trained: ResolvedRun) -> "Prediction":
        """The prediction of this data by a finished run. `trained`: the run as stored in its directory."""
        ...


@contextmanager
def _read_by_each(data: TrainingData) -> Iterator[Served]:
    yield Served(data)


def subject_class(config: RunConfig) -> type[Subject]:
    """The class that opens the data of runs with this kind and task."""
    kind, row = find_kind(config.kind), config.task.row("task", config.kind)
    return load(kind.subject if row is None or not row.subject else row.subject)


@dataclass(frozen=True)
class Prediction:
    """A finished run, the data that it predicts, and the functions that read this data."""

    subject: Subject
    trained: ResolvedRun
    """The run, with server options that fit this data."""
    samplers: Mapping[str, Any]  # options by split; the nodes or graphs without a split come last
    build_model: Callable[[], torch.nn.Module]
    task: Task
    members: Callable[[Served], Members]
    data: TrainingData | None = None  # data that every process reads itself; None: `subject` serves the data
    target_names: tuple[str, ...] = ()
    has_targets: bool = False
    shared: Callable[[TrainingData], TrainingData] = lambda data: data
    check_look: Callable[[], None] = lambda: None  # raises ConfigError if no batch can be drawn on this machine yet
    # Graph-parallel only: number of workers -> bytes of one worker. Raises ConfigError if this machine cannot hold them.
    shard_bytes: Callable[[int], int] | None = None
    estimate: str | None = None  # why predictions and scores leave out a part of the graph; None: nothing is left out
    places: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None  # ids -> columns that locate the ids
    table: Callable[[], SavedTable] | None = None  # opens the embeddings of the run's nodes; None: no embeddings
    source_ids: "SourceIds | None" = None  # string ids of nodes, or stored ids of graphs
    end_ids: "SourceIds | None" = None  # the same for the nodes where links end

    @property
    def content_hash(self) -> str:
        """Content hash of the predicted data."""
        return str(self.subject.manifest.content_hash)

    @property
    def text(self) -> str:
        """One line that describes the prediction, for people."""
        return f"{self.subject.entry} {self.subject.text}"

    @property
    def is_sharded(self) -> bool:
        """Whether the prediction is graph-parallel."""
        return any(isinstance(options, FullGraphOptions) for options in self.samplers.values())

    @property
    def is_of_ray(self) -> bool:
        """Whether the run's workers were Ray's."""
        return self.trained.workers.launcher == "ray"

    def look(self) -> Served:
        """Opens the data for drawing batches in this process. Starts and writes nothing. Raises ConfigError if that is impossible."""
        if self.data is not None:
            return Served(self.data)
        self.check_look()
        unverified = replace(self.trained.config.servers, verify=False)
        data = self.subject.data(replace(self.trained, config=replace(self.trained.config, servers=unverified)))
        return Served(data, getattr(data.open(), "router", None))

    def here(self) -> AbstractContextManager[Served]:
        """Serves the data to this process."""
        if self.data is not None:
            return _read_by_each(self.data)
        return self.subject.completed(self.trained).here(self.trained)

    def serve(self) -> AbstractContextManager[Served]:
        """Serves the data to actors. The block needs a Ray session."""
        if self.data is not None:
            return _read_by_each(self.data)
        return self.subject.completed(self.trained).serving(self.trained)


def open_prediction(run: "Run", options: "PredictConfig") -> Prediction:
    """Raises ConfigError if the run's model does not fit the data, or if the data differs from the run's data and `options` do not allow that."""
    advice = "give a finished run's directory"
    try:
        trained = read_resolved(saved_tree(str(run.path), advice, allow_import=options.allow_import))
    except UsageError as error:
        raise FormatError(f"{run.path}/config.json: {error}") from None
    place, snapshot = options.graph or run.data_url, None if options.graph else run.snapshot
    subject = subject_class(trained.config).at(place, snapshot, options)
    about = subject.unit(trained.config)
    if options.parallel == "graph" and not subject.spreads:
        raise ConfigError(f"--parallel graph: expected a run on one graph's nodes, got one on {about}; leave it out")
    if options.relation is not None and not subject.has_relations:
        raise ConfigError(f"--relation: expected a run on links of a knowledge graph, got one on {about}; leave it out")
    content_hash = subject.manifest.content_hash
    if content_hash != run.data_hash and not options.other_graph:
        raise ConfigError(
            f"{subject.url}: expected what the run was trained on (content {run.data_hash[:12]}), found another ({content_hash[:12]}); pass "
            "--other-graph to predict it all the same"
        )
    return subject.predict(run, options, trained)


def checked(run: "Run", url: str, build: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    """Calls `build` once and returns it. Raises ConfigError if the run's weights do not fit the model that `build` creates for this data."""
    try:
        parse_weights(run.weights, run.weights_path, build())
    except (FormatError, ValueError) as error:
        raise ConfigError(f"{url}: the run's model does not fit this data: {error}") from None
    return build


def trained_task(run: "Run", trained: ResolvedRun, before: Mapping[str, Any] | None = None) -> Task:
    """The run's task with its statistics of the training targets. `before`: the value for an entry that summaries of older versions do not have."""
    from pydantic import TypeAdapter, ValidationError

    component = trained.config.task
    if component.name not in _TASKS:
        return component.options.build(trained.inputs)
    try:
        return TypeAdapter(_TASKS[component.name]).validate_python(run.summary.get("task", before))
    except ValidationError as error:
        first = error.errors()[0]
        raise FormatError(f"{run.path}/summary.json: task: {first['loc']}: {first['msg']}") from None


def check_names(url: str, given_names: tuple[str, ...], task: Task) -> None:
    """Raises ConfigError if the predicted data names its classes or labels in another way than the run."""
    names: tuple[str, ...] = getattr(task, "class_names", ()) or getattr(task, "names", ())
    for number, (name, given_name) in enumerate(zip(names, given_names, strict=False)):
        if name != given_name:
            raise ConfigError(
                f"{url}: label {number} is {given_name!r}, the run's is {name!r}; ingest it without labels"
            )
