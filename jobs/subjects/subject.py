"""What a run is about, as one protocol: data that is found, opened, resolved, checked, served, trained on, compared with baselines, planned and predicted.

`graphmill.jobs.config.registry.KINDS` names the class of each kind of run; a user's own kind names its own. A class that inherits from `Subject` has what
data needs that every process reads itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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

Members = Callable[[str], np.ndarray]  # the ids of a split's members by the split's name


@dataclass(frozen=True)
class Served:
    """Data as this process reaches it, and as its workers will."""

    data: TrainingData
    router: Any = None
    """Of this process; None: data that is not read through one."""
    traffic: Traffic | None = None
    """Of this router."""
    where: str = ""
    """The servers' hosts, for people."""
    renewed: Callable[[float, Callable[[str], None]], TrainingData] | None = None
    """As of `graphmill.cluster.training.ray_train.RayTrainLauncher`; so is `full_disks`."""
    full_disks: Callable[[], str] = lambda: ""


class Subject(Protocol):
    """A run's data, opened. What raises, raises ConfigError where the run and the data do not fit."""

    entry: ClassVar[str] = "graph"
    """Name of the data in a summary and in messages: graph, or graphs."""
    spreads: ClassVar[bool] = False
    """One batch may be all of the data, spread over the workers."""
    has_relations: ClassVar[bool] = False
    """Predictions may be asked for by relation."""

    stored: Any
    """It has `url`, `manifest` (`content_hash`, `snapshot`, `files`, `origin`) and, of one graph, `num_partitions` and `is_here`."""

    @classmethod
    def find(cls, config: RunConfig) -> Self | None:
        """The data where it is there; None where a run would make it first."""
        ...

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        """The data; made where it is not there yet."""
        found = cls.find(config)
        assert found is not None
        return found

    @classmethod
    def at(cls, url: str, snapshot: int | None, options: "PredictConfig") -> Self:
        """The data at a place, to be predicted."""
        ...

    @classmethod
    def plan_unmade(cls, plan: "Plan", resolved: ResolvedRun, resources: Resources | None) -> None:
        """Adds what is known before the data is made: here, that it is not there."""
        plan.add("data", "not there yet: the first run makes it")

    @property
    def url(self) -> str:
        return str(self.stored.url)

    @property
    def manifest(self) -> Any:
        return self.stored.manifest

    @property
    def num_bytes(self) -> int:
        """Of the data's files."""
        return sum(entry.num_bytes for entry in self.manifest.files.values())

    @property
    def num_partitions(self) -> int:
        """Partitions, each with a server where the workers are Ray's; 0: every process reads the data itself."""
        return getattr(self.stored, "num_partitions", 0)

    @property
    def is_here(self) -> bool:
        """Whether all files are on this machine."""
        return getattr(self.stored, "is_here", True)

    def unit(self, config: RunConfig) -> str:
        """What is predicted, in the plural."""
        ...

    @property
    def text(self) -> str:
        """The data in a line, after its name in messages."""
        ...

    def unread(self, resolved: ResolvedRun) -> str:
        """What is stored and not read, in a line; empty: nothing."""
        return ""

    def lacks(self, resolved: ResolvedRun) -> Sequence[str]:
        """What splits lack, each in a few words."""
        return ()

    def resolve(self, config: RunConfig, resources: Resources | None) -> ResolvedRun:
        """The run on this data."""
        ...

    def check(self, resolved: ResolvedRun) -> None:
        """Raises where the data has not what the run needs."""

    def completed(self, resolved: ResolvedRun) -> Self:
        """With what the run needs and can make: called after `check`."""
        return self

    def check_memory(self, resolved: ResolvedRun) -> None:
        """Raises where this machine, which has all workers, cannot hold what each keeps."""

    def check_served(self, served: Served, resolved: ResolvedRun) -> None:
        """As `check`, with data that was not here, or for workers that were not known then."""

    def task(self, resolved: ResolvedRun) -> Task:
        """With what it must know of the training targets."""
        ...

    def training(self, resolved: ResolvedRun) -> Any:
        """Options of the sampler of training batches."""
        return resolved.training

    def evaluation(self, resolved: ResolvedRun) -> Mapping[str, Any]:
        """Options of the samplers of each split that is scored."""
        return resolved.evaluation

    def data(self, resolved: ResolvedRun) -> TrainingData:
        """What each process reads itself."""
        ...

    def here(self, resolved: ResolvedRun) -> AbstractContextManager[Served]:
        """For this process alone."""
        return _read_by_each(self.data(resolved))

    def serving(self, resolved: ResolvedRun) -> AbstractContextManager[Served]:
        """For Ray's workers; its block needs a Ray session."""
        return _read_by_each(self.data(resolved))

    def shared(self, data: TrainingData, resolved: ResolvedRun) -> TrainingData:
        """Of a run whose one batch is all of it, each worker's share."""
        return data

    def table(self, resolved: ResolvedRun) -> "TableSpec | None":
        """The table of the embeddings that are trained; None: the run has none."""
        return None

    def rivals(self, config: RunConfig) -> str:
        """The baselines, in words."""
        ...

    def baselines(self, served: Served, resolved: ResolvedRun, task: Task) -> "Baselines":
        """Scores of simple models by name, and by split."""
        ...

    def described(self, resolved: ResolvedRun, task: Task) -> dict[str, Any]:
        """Further entries of the summary."""
        return {}

    def plan(self, plan: "Plan", resolved: ResolvedRun) -> None:
        """Adds splits, batches, memory and time."""
        ...

    def predict(self, run: "Run", options: "PredictConfig", trained: ResolvedRun) -> "Prediction":
        """What is predicted of this data by the finished run, `trained` as its directory holds it."""
        ...


@contextmanager
def _read_by_each(data: TrainingData) -> Iterator[Served]:
    yield Served(data)


def subject_class(config: RunConfig) -> type[Subject]:
    """What opens the data of such runs."""
    kind, row = find_kind(config.kind), config.task.row("task", config.kind)
    return load(kind.subject if row is None or not row.subject else row.subject)


@dataclass(frozen=True)
class Prediction:
    """What is predicted, and by what."""

    subject: Subject
    trained: ResolvedRun
    """Of servers that fit this data, where it has some."""
    samplers: Mapping[str, Any]  # options by split, the unsplit last
    build_model: Callable[[], torch.nn.Module]
    task: Task
    members: Callable[[Served], Members]
    data: TrainingData | None = None  # what every process reads itself; None: what `subject` serves
    target_names: tuple[str, ...] = ()
    has_targets: bool = False
    shared: Callable[[TrainingData], TrainingData] = lambda data: data
    check_look: Callable[[], None] = lambda: (
        None
    )  # raises ConfigError where nothing can be drawn here before something is made
    # Of a graph-parallel run: the bytes of one of so many workers; ConfigError where they do not fit here.
    shard_bytes: Callable[[int], int] | None = None
    estimate: str | None = None  # why predictions and scores leave a part of the graph out; None: they do not
    places: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None  # what ids mean that are not the source's own
    table: Callable[[], SavedTable] | None = None  # opens the embeddings of the run's nodes, where it has some
    source_ids: "SourceIds | None" = None  # of nodes whose ids are strings, of graphs that have some
    end_ids: "SourceIds | None" = None  # of nodes where links end, the same

    @property
    def content_hash(self) -> str:
        """Of the data."""
        return str(self.subject.manifest.content_hash)

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.subject.entry} {self.subject.text}"

    @property
    def is_sharded(self) -> bool:
        """Whether the batch is the whole graph, spread over the workers."""
        return any(isinstance(options, FullGraphOptions) for options in self.samplers.values())

    @property
    def is_of_ray(self) -> bool:
        """Whether the run's workers were Ray's."""
        return self.trained.workers.launcher == "ray"

    def look(self) -> Served:
        """In this process, nothing started or written; ConfigError where it cannot be."""
        if self.data is not None:
            return Served(self.data)
        self.check_look()
        unverified = replace(self.trained.config.servers, verify=False)
        data = self.subject.data(replace(self.trained, config=replace(self.trained.config, servers=unverified)))
        return Served(data, getattr(data.open(), "router", None))

    def here(self) -> AbstractContextManager[Served]:
        """For this process."""
        if self.data is not None:
            return _read_by_each(self.data)
        return self.subject.completed(self.trained).here(self.trained)

    def serve(self) -> AbstractContextManager[Served]:
        """For actors; its block needs a Ray session."""
        if self.data is not None:
            return _read_by_each(self.data)
        return self.subject.completed(self.trained).serving(self.trained)


def open_prediction(run: "Run", options: "PredictConfig") -> Prediction:
    """Raises ConfigError where the run's model does not fit the data, or that is another one than the run's."""
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
    found = subject.manifest.content_hash
    if found != run.data_hash and not options.other_graph:
        raise ConfigError(
            f"{subject.url}: expected what the run was trained on (content {run.data_hash[:12]}), found another ({found[:12]}); pass "
            "--other-graph to predict it all the same"
        )
    return subject.predict(run, options, trained)


def checked(run: "Run", url: str, build: Callable[[], torch.nn.Module]) -> Callable[[], torch.nn.Module]:
    """`build`, tried once. Raises ConfigError where the run's weights do not fit what it makes for this data."""
    try:
        parse_weights(run.weights, run.weights_path, build())
    except (FormatError, ValueError) as error:
        raise ConfigError(f"{url}: the run's model does not fit this data: {error}") from None
    return build


def trained_task(run: "Run", trained: ResolvedRun, before: Mapping[str, Any] | None = None) -> Task:
    """The run's task, with what it knew of the training targets; `before`: where its summary does not tell."""
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
    """Raises ConfigError where classes, or labels, of the data that is predicted have other names than the run's."""
    names: tuple[str, ...] = getattr(task, "class_names", ()) or getattr(task, "names", ())
    for number, (own, other) in enumerate(zip(names, given_names, strict=False)):
        if own != other:
            raise ConfigError(f"{url}: label {number} is {other!r}, the run's is {own!r}; ingest it without labels")
