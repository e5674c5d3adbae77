"""Reads and checks a run's directory once: settings, epochs, summary, events, environment, and the best weights.

The run may still be going, or may have been killed. If the last line of a file is cut short, it is left out. The value for a file that does not exist is None.
Numbers that are not finite are left out, so plots need not check for them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.cluster.checkpoints.checkpoint import TrainState, load_state, verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import BEST
from graphmill.cluster.runs.run_directory import flat, load_config
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import FormatError, GraphmillError, quoted
from graphmill.core.files.json_object import parse_object
from graphmill.samplers.access.traffic import COLUMNS as TRAFFIC
from graphmill.samplers.methods.registry import load
from graphmill.storage.filesystem.filesystem_errors import one_line

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Partition:
    """One partition of a run's graph, as stored."""

    nodes: int
    num_bytes: int


@dataclass(frozen=True)
class PartitionTraffic:
    """Requests of the workers to one partition, in training, validation, final scores and baselines."""

    remote_requests: int
    remote_bytes: int
    local_requests: int  # requests that the worker's process answered itself, from mapped files
    local_bytes: int  # bytes that the local requests would take on the network


@dataclass(frozen=True)
class RankSeconds:
    """Seconds of one rank in training and validation, by part."""

    rank: int
    host: str
    seconds: Mapping[str, float]  # name in an epoch's record -> seconds


@dataclass(frozen=True)
class Restart:
    """One start of the workers after a fault."""

    time: str
    epoch: int  # the epoch from which the run continued
    repeated: int  # number of recorded epochs that were trained again


@dataclass(frozen=True)
class Run:
    """The directory of a run. Each file is read once. `read_run` creates the object."""

    place: RunStore

    def __repr__(self) -> str:
        scores = ", ".join(f"{split} {score:.4f}" for split, score in self.scores.items())
        kind = "estimated " if self.estimate else ""
        epochs = len(self.epochs) or self.summary.get("epochs", 0)  # a saved model has a summary but no epochs
        return f"Run({self.path}: {self.status}, {kind}{self.metric} {scores}; {epochs} epochs)"

    def _repr_html_(self) -> str | None:
        """The run's report in an HTML frame, for notebooks; None if the run has no report."""
        page = _read(self.place, "report.html")
        return page and f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 42em; border: 0"></iframe>'

    @property
    def path(self) -> str:
        """The location of the run's directory: a path or a URL."""
        return self.place.url

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return self.place.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return load_config(self.place, "name one that a job has made")

    @cached_property
    def epochs(self) -> tuple[Mapping[str, float], ...]:
        """Records of the epochs, in ascending order of "epoch"."""
        return tuple(sorted(_epochs(self.place), key=lambda epoch: epoch["epoch"]))

    @cached_property
    def events(self) -> tuple[Mapping[str, Any], ...]:
        """All events of the run, except attempts to continue the finished run that ended before they started: after such an attempt the run is still
        finished."""
        events = tuple(_events(self.place))
        ends = [number for number, event in enumerate(events) if event["kind"] == "finish"]
        after = events[ends[-1] + 1 :] if ends else events
        return events[: len(events) - len(after)] if ends and not any(e["kind"] == "start" for e in after) else events

    @cached_property
    def last_summary(self) -> dict[str, Any] | None:
        """The summary of the run or of an earlier part of the run; None if no summary was written."""
        return _optional_object(self.place, "summary.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final scores, baselines, throughput; empty if the run has no final scores yet, or was continued after they were written."""
        summary, continued = self.last_summary or {}, bool(self.events) and self.events[-1]["kind"] != "finish"
        if not self.events and self.epochs:  # a run of version 0.1
            continued = summary.get("epochs") not in (None, len(self.epochs))
        return {} if continued else summary

    @cached_property
    def environment(self) -> Mapping[str, Any] | None:
        return _optional_object(self.place, "environment.json")

    @cached_property
    def failure_log(self) -> str | None:
        """The last line of failure.log."""
        lines = (_read(self.place, "failure.log") or "").strip().splitlines()
        return lines[-1][:500] if lines else None

    @cached_property
    def state(self) -> TrainState:
        """State in the checkpoint of the best weights. Raises FormatError if the checkpoint is missing or damaged."""
        with self.place.at_hand(*self.best_files) as run:
            verify_checkpoint(run / self.best)
            return load_state(run / self.best)

    @cached_property
    def best(self) -> str:
        """Folder of the best weights in the run's directory. Empty for a saved model, whose directory holds the weights directly."""
        return BEST if self.place.read("state.json") is None else ""

    @property
    def best_files(self) -> list[str]:
        """Names of the entries in the run's directory that hold the best weights."""
        return [self.best] if self.best else self.place.names()

    @property
    def best_folder(self) -> Path:
        """Local folder of the best weights and of the rows of the run's embeddings."""
        return self.place.folder.resolve() / self.best

    @property
    def weights_path(self) -> str:
        return self.place.below(*filter(None, (self.best, _WEIGHTS)))

    @cached_property
    def weights(self) -> bytes:
        """Content of the file of the best weights. Raises FormatError if it cannot be read."""
        try:
            weights = self.place.read("/".join(filter(None, (self.best, _WEIGHTS))))
        except OSError as error:
            raise FormatError(f"{self.weights_path}: cannot read the run's best weights ({error.strerror})") from None
        if weights is None:
            raise FormatError(f"{self.weights_path}: cannot read the run's best weights (there is no such file)")
        return weights

    @property
    def weights_hash(self) -> str:
        return hashlib.sha256(self.weights).hexdigest()

    @property
    def job(self) -> str:
        return str(self.summary["job"])

    @property
    def is_graph_set(self) -> bool:
        """Whether the run was trained on many graphs."""
        return "graphs" in self.summary

    @property
    def data_url(self) -> str:
        """The graph or set that the run was trained on. A relative path counts from the folder where the run was started if it exists there, else from here."""
        url = str(self.summary["graphs" if self.is_graph_set else "graph"])
        there = Path(self.summary.get("started_in", ""), url)
        return str(there) if "://" not in url and there.exists() else url

    @property
    def data_hash(self) -> str:
        return str(self.summary["graphs_hash" if self.is_graph_set else "graph_hash"])

    @property
    def snapshot(self) -> int:
        """Snapshot number of the graph or set that the run was trained on."""
        return int(self.summary["snapshot"])

    @property
    def num_ranks(self) -> int:
        """Number of micro-batches of a step, among which the scored splits were divided. A run of version 0.2 had one micro-batch for each worker."""
        return int(self.summary.get("micro_batches", self.summary["workers"]))

    @property
    def metric(self) -> str | None:
        """The metric by which the run is judged; None if no file names a metric."""
        named = self.summary.get("metric") or _section(self.config, "task").get("metric")
        if isinstance(named, str) and named != "auto":
            return named
        names = (
            key.removeprefix("valid_").removeprefix("estimate_") for key in self.epoch_names if key.startswith("valid_")
        )
        return next((name for name in names if name != "loss"), None)

    @property
    def epoch_names(self) -> tuple[str, ...]:
        """Names of all recorded values."""
        return tuple(dict.fromkeys(name for epoch in self.epochs for name in epoch))

    @property
    def is_estimate(self) -> bool:
        """Whether the run's scores leave out a part of the graph."""
        return self.estimate is not None or any(name.startswith("valid_estimate_") for name in self.epoch_names)

    @property
    def estimate(self) -> str | None:
        """Why the run's final scores are estimates; None: the scores are exact, or not computed yet."""
        why = self.summary.get("estimate")
        return why if isinstance(why, str) else None

    @property
    def scores(self) -> dict[str, Any]:
        """The final scores (or estimates) by split, in the run's metric; empty if the run has no final scores yet."""
        scores = self.summary.get("scores" if "scores" in self.summary else "estimates")
        return dict(scores) if isinstance(scores, Mapping) else {}

    def valid(self, name: str) -> str:
        """The name under which an epoch records the validation value `name`."""
        return f"valid_estimate_{name}" if self.is_estimate else f"valid_{name}"

    @property
    def planned_epochs(self) -> int | None:
        """`--fit.epochs`; None if the stored configuration has no such entry."""
        planned = _section(self.config, "fit").get("epochs")
        return planned if isinstance(planned, int) else None

    @property
    def stopped_early(self) -> tuple[int, str] | None:
        """(last epoch, reason) if the run stopped before its planned last epoch."""
        early = _section(self.summary, "stopped_early")
        return (_whole(early["epoch"]), str(early["why"])) if {"epoch", "why"} <= early.keys() else None

    @property
    def failure(self) -> str | None:
        """Why the latest part of the run failed; None if it did not fail, or if no file says so."""
        if self.events:
            last = self.events[-1]
            return str(last.get("error", "no cause recorded")) if last["kind"] == "fail" else None
        return None if self.summary else self.failure_log

    @property
    def status(self) -> str:
        """Status of the run: finished, failed, stopped (by Ctrl-C or SIGTERM), or "not finished" (still going or killed: the files do not tell which)."""
        if self.failure is not None:
            return "stopped" if self.failure.startswith("interrupted (") else "failed"
        return "finished" if self.summary else "not finished"

    @property
    def restarts(self) -> tuple[Restart, ...] | None:
        """Starts of the workers after faults; None if the run recorded no events."""
        if not self.events:
            return None
        restarts, started = [], False
        for event in self.events:
            if event["kind"] == "begin":
                started = False
            elif event["kind"] == "start":
                if started:
                    epoch, repeated = _whole(event.get("epoch")), _whole(event.get("repeated"))
                    restarts.append(Restart(str(event.get("time", "")), epoch, repeated))
                started = True
        return tuple(restarts)

    def told(self, kind: str) -> list[Mapping[str, Any]]:
        """The events of a kind, for example "begin" of the run or of a part of the run, "damage" of a checkpoint, "saved" after a request to end."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def traffic(self) -> tuple[PartitionTraffic, ...]:
        """Traffic of each partition, summed over all epochs, including repeated epochs; empty if no epoch recorded traffic."""
        rows: list[list[int]] = []
        for event in self.told("traffic"):
            columns = [event.get(name) for name in TRAFFIC]
            if not all(isinstance(column, list) for column in columns):
                continue
            here = [[_whole(value) for value in row] for row in zip(*columns, strict=False)]
            rows = rows or [[0] * len(TRAFFIC) for _ in here]
            rows = [[a + b for a, b in zip(row, more, strict=True)] for row, more in zip(rows, here, strict=False)]
        return tuple(PartitionTraffic(asked, sent + got, near, local) for asked, sent, got, near, local in rows)

    @property
    def ranks(self) -> tuple[RankSeconds, ...]:
        """Seconds of each rank on each of the rank's hosts, summed over all epochs, including repeated epochs; empty if no epoch recorded seconds."""
        sums: dict[tuple[int, str], dict[str, float]] = {}
        for event in self.told("ranks"):
            hosts = event.get("hosts")
            for rank, host in enumerate(hosts if isinstance(hosts, list) else ()):
                of_rank = sums.setdefault((rank, str(host)), {})
                for name, column in event.items():
                    is_time = name.endswith("_s") and isinstance(column, list)
                    if is_time and rank < len(column) and is_number(column[rank]):
                        of_rank[name] = of_rank.get(name, 0.0) + column[rank]
        return tuple(RankSeconds(rank, host, sums[rank, host]) for rank, host in sorted(sums))

    @property
    def peak_bytes(self) -> int | None:
        """Most memory that a rank has used: GPU memory or, without a GPU, memory of its process. None if not recorded."""
        columns = [event.get("peak_bytes") for event in self.told("memory")]
        peaks = [peak for column in columns if isinstance(column, list) for peak in column if is_number(peak)]
        return max(peaks, default=None)

    @property
    def parts(self) -> int | None:
        """Number of times that a driver began or resumed the run; None if not recorded."""
        return len(self.told("begin")) or None

    def model(self, *, allow_import: bool = False) -> Any:
        """Loads the model with the run's best weights, to call on your own tensors and graphs: `graphmill.jobs.run.trained_model.TrainedModel`."""
        return load("graphmill.jobs.run.trained_model:trained_model")(self, allow_import=allow_import)

    def embeddings(self, nodes: Sequence[Any] | None = None) -> "Tensor":
        """[n, D]: the states that the model's head reads, for the nodes or graphs of the run's data with the given ids. None: all, in ascending order of id."""
        return load("graphmill.jobs.predict:embeddings")(self, nodes)

    def attention(self, *graph: Any, **columns: Any) -> "list[Tensor]":
        """Calls `TrainedModel.attention` on a small graph, given as tensors, PyG's `Data`, a batch or a stored graph. Without arguments: on the run's data."""
        return self.model().attention(*(graph or (self.data_url,)), **columns)

    def save_model(self, path: str | Path) -> None:
        """Writes the model with its card, weights and scores to a folder or to `hf://owner/name`. `load_model` reads it."""
        load("graphmill.jobs.run.saved_model:save_model")(self, path)

    def series(self, name: str) -> list[tuple[float, float]]:
        """(epoch counted from 1, value) for every epoch that recorded the value."""
        return [(epoch["epoch"] + 1, epoch[name]) for epoch in self.epochs if name in epoch]

    def total(self, name: str) -> float | None:
        values = [epoch[name] for epoch in self.epochs if name in epoch]
        return sum(values) if values else None

    def mean_rate(self, name: str) -> float | None:
        """Mean of a rate, weighted by the training time."""
        known = [(epoch[name], epoch["train_s"]) for epoch in self.epochs if name in epoch and "train_s" in epoch]
        seconds = sum(s for _, s in known)
        return sum(rate * s for rate, s in known) / seconds if seconds > 0 else None


def read_run(run: str | Path | RunStore, *, finished: bool = False) -> Run:
    """The run in this directory. Raises FormatError, naming the file, if the directory has no run or a file is damaged.

    `finished`: also raises FormatError if the run has not finished, was continued and has not finished again, or has damaged best weights. With `finished`, all
    other files are read on first use.
    """
    read = Run(RunStore.of(run))
    if finished:
        _check_finished(read)
    else:
        _ = read.config, read.epochs, read.events, read.summary, read.environment, read.failure_log
    return read


def _check_finished(run: Run) -> None:
    summary, file = run.last_summary, run.place.below("summary.json")
    if summary is None:
        state = "one that has not finished; continue it with its job's --run.resume" if run.place.holds_run else "none"
        raise FormatError(f"{run.path}: expected a finished run's directory (summary.json), found {state}")
    kind = "graphs" if "graphs" in summary else "graph"
    scores = "estimates" if "estimates" in summary else "scores"
    needed = ("job", "workers", "device", scores, "snapshot", kind, f"{kind}_hash")
    lacking = [name for name in needed if name not in summary]
    if lacking:
        raise FormatError(f"{file}: expected a training run's summary, found none of {', '.join(lacking)}")
    if type(summary["snapshot"]) is not int:
        raise FormatError(f"{file}: field 'snapshot': expected a snapshot's number, got {quoted(summary['snapshot'])}")
    if not run.summary:
        raise FormatError(
            f"{run.path}: expected a finished run's directory, found one that was continued and has not finished again; continue it with "
            "its job's --run.resume"
        )
    _ = run.state


def stored_partitions(run: Run) -> tuple[Partition, ...] | None:
    """The partitions of the run's graph; None if the run has no graph, or if the graph is not on this machine or has changed."""
    summary = run.summary
    options = _section(run.config, "data")
    url, snapshot = summary.get("graph") or options.get("path"), summary.get("snapshot", options.get("snapshot"))
    if type(snapshot) not in (int, type(None)):
        return None
    if not isinstance(url, str) or "://" in url or not (Path(url) / "manifests").is_dir():
        return None
    from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph

    try:
        manifest = open_graph(url, snapshot, kind=PLAIN_OR_TYPED).manifest
    except GraphmillError:
        return None
    if summary.get("graph_hash", manifest.content_hash) != manifest.content_hash:
        return None
    sizes = [0] * manifest.num_partitions
    for name, entry in manifest.files.items():
        sizes[int(name[len("part-") :].partition("/")[0])] += entry.num_bytes
    counts = [stop - start for start, stop in pairwise(manifest.partition_offsets)]
    return tuple(Partition(count, size) for count, size in zip(counts, sizes, strict=True))


def flat_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings as text, by dotted name."""
    return {name: setting_text(value) for name, value in flat(values).items()}


def setting_text(value: Any) -> str:
    """Formats a setting as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(one) for one in value) or "none"
    # People share pages: leave out the user and password of a URL.
    return re.sub(r"(\w://)[^/@\s]*@", r"\1…@", str(value))


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number that a page can show. The bound keeps sums of such numbers finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _whole(value: Any) -> int:
    return int(value) if is_number(value) else 0


def _read(run: RunStore, name: str) -> str | None:
    try:
        content = run.read(name)
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{run.below(name)}: expected text, got other bytes; repair the file or remove it") from None
    except GraphmillError:
        raise
    except OSError as error:
        raise FormatError(f"{run.below(name)}: cannot read it ({one_line(error)})") from None


def _optional_object(run: RunStore, name: str) -> dict[str, Any] | None:
    text = _read(run, name)
    return None if text is None else parse_object(text, run.below(name))


def _epochs(run: RunStore) -> Iterable[dict[str, float]]:
    """Records of metrics.jsonl, without a last line that was cut short."""
    lines = (_read(run, "metrics.jsonl") or "").split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{run.below('metrics.jsonl')}, line {number}"
        if not line.strip():
            continue
        try:
            epoch = parse_object(line, where)
        except FormatError:
            if number < len(lines):
                raise
            return
        values = {name: value for name, value in epoch.items() if is_number(value)}
        if "epoch" not in values:
            raise FormatError(f"{where}: expected a number of an epoch, got {quoted(epoch.get('epoch'))}")
        yield values


def _events(run: RunStore) -> Iterable[dict[str, Any]]:
    """Records of events.jsonl, without lines that a kill cut short. Complete lines may follow such a line."""
    for line in (_read(run, "events.jsonl") or "").split("\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            yield event
