"""What a run's directory says, read once and checked: settings, epochs, summary, events, environment, and its best weights.

A run may still be going, or have been killed: a last line that is cut short is left out, and what was never written is None. Numbers that
are not finite are left out: plots need no check of their own.
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
    """One part of a run's graph, as stored."""

    nodes: int
    num_bytes: int


@dataclass(frozen=True)
class PartitionTraffic:
    """What the workers asked of one partition: in training and validation, for the final scores, and for the baselines."""

    remote_requests: int
    remote_bytes: int
    local_requests: int  # answered in the worker's process, from files that it has mapped
    local_bytes: int  # what these would have been on a wire


@dataclass(frozen=True)
class RankSeconds:
    """Where the time of one rank went, in training and validation."""

    rank: int
    host: str  # that it ran on
    seconds: Mapping[str, float]  # by the names of an epoch's record


@dataclass(frozen=True)
class Restart:
    """The workers' start after a fault."""

    time: str
    epoch: int  # from which the run went on
    repeated: int  # epochs recorded before, and trained again


@dataclass(frozen=True)
class Run:
    """A run's directory, whose files are read once. Read one with `read_run`."""

    place: RunStore

    def __repr__(self) -> str:
        scores = ", ".join(f"{split} {score:.4f}" for split, score in self.scores.items())
        kind = "estimated " if self.estimate else ""
        epochs = len(self.epochs) or self.summary.get("epochs", 0)  # a saved model has the summary alone
        return f"Run({self.path}: {self.status}, {kind}{self.metric} {scores}; {epochs} epochs)"

    def _repr_html_(self) -> str | None:
        """The run's report as a notebook shows it, in a frame; None where it has none."""
        page = _read(self.place, "report.html")
        return page and f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 42em; border: 0"></iframe>'

    @property
    def path(self) -> str:
        """The run's directory: a path or a URL."""
        return self.place.url

    @property
    def name(self) -> str:
        """Of its directory."""
        return self.place.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return load_config(self.place, "name one that a job has made")

    @cached_property
    def epochs(self) -> tuple[Mapping[str, float], ...]:
        """Each with "epoch", ascending."""
        return tuple(sorted(_epochs(self.place), key=lambda epoch: epoch["epoch"]))

    @cached_property
    def events(self) -> tuple[Mapping[str, Any], ...]:
        """But for attempts to continue a finished run that came to no start: it is finished still."""
        events = tuple(_events(self.place))
        ends = [number for number, event in enumerate(events) if event["kind"] == "finish"]
        after = events[ends[-1] + 1 :] if ends else events
        return events[: len(events) - len(after)] if ends and not any(e["kind"] == "start" for e in after) else events

    @cached_property
    def last_summary(self) -> dict[str, Any] | None:
        """Of the run, or of an earlier part of it; None where none was written."""
        return _optional_object(self.place, "summary.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final scores, baselines, throughput; empty where there are none yet, or where they are of an earlier part of the run."""
        summary, continued = self.last_summary or {}, bool(self.events) and self.events[-1]["kind"] != "finish"
        if not self.events and self.epochs:  # of 0.1
            continued = summary.get("epochs") not in (None, len(self.epochs))
        return {} if continued else summary

    @cached_property
    def environment(self) -> Mapping[str, Any] | None:
        return _optional_object(self.place, "environment.json")

    @cached_property
    def failure_log(self) -> str | None:
        """Its last line."""
        lines = (_read(self.place, "failure.log") or "").strip().splitlines()
        return lines[-1][:500] if lines else None

    @cached_property
    def state(self) -> TrainState:
        """Of the best weights. Raises FormatError where they are missing, or not as they were saved."""
        with self.place.at_hand(*self.best_files) as run:
            verify_checkpoint(run / self.best)
            return load_state(run / self.best)

    @cached_property
    def best(self) -> str:
        """The folder of the best weights below the run's; empty: a saved model, in which they lie beside the rest."""
        return BEST if self.place.read("state.json") is None else ""

    @property
    def best_files(self) -> list[str]:
        """The names in the run's directory of what holds the best weights."""
        return [self.best] if self.best else self.place.names()

    @property
    def best_folder(self) -> Path:
        """Of a run in a folder: where its best weights lie, and the rows of its embeddings."""
        return self.place.folder.resolve() / self.best

    @property
    def weights_path(self) -> str:
        return self.place.below(*filter(None, (self.best, _WEIGHTS)))

    @cached_property
    def weights(self) -> bytes:
        """The file of the best weights. Raises FormatError where it cannot be read."""
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
        """Whether it was trained on many graphs."""
        return "graphs" in self.summary

    @property
    def data_url(self) -> str:
        """The graph, or the set, that it was trained on: of a relative path where the run was started or, where there is none, from here."""
        url = str(self.summary["graphs" if self.is_graph_set else "graph"])
        there = Path(self.summary.get("started_in", ""), url)
        return str(there) if "://" not in url and there.exists() else url

    @property
    def data_hash(self) -> str:
        return str(self.summary["graphs_hash" if self.is_graph_set else "graph_hash"])

    @property
    def snapshot(self) -> int:
        """Of the graph, or the set, that it was trained on."""
        return int(self.summary["snapshot"])

    @property
    def num_ranks(self) -> int:
        """Micro-batches of a step, by which its splits were scored; a run of version 0.2 had one for each worker."""
        return int(self.summary.get("micro_batches", self.summary["workers"]))

    @property
    def metric(self) -> str | None:
        """The metric that the run is judged by; None where nothing says."""
        named = self.summary.get("metric") or _section(self.config, "task").get("metric")
        if isinstance(named, str) and named != "auto":
            return named
        names = (
            key.removeprefix("valid_").removeprefix("estimate_") for key in self.epoch_names if key.startswith("valid_")
        )
        return next((name for name in names if name != "loss"), None)

    @property
    def epoch_names(self) -> tuple[str, ...]:
        """What any epoch recorded."""
        return tuple(dict.fromkeys(name for epoch in self.epochs for name in epoch))

    @property
    def is_estimate(self) -> bool:
        """Whether its scores leave a part of the graph out."""
        return self.estimate is not None or any(name.startswith("valid_estimate_") for name in self.epoch_names)

    @property
    def estimate(self) -> str | None:
        """Why its final scores are estimates; None where they are exact, or not there yet."""
        why = self.summary.get("estimate")
        return why if isinstance(why, str) else None

    @property
    def scores(self) -> dict[str, Any]:
        """The final scores by split, in the run's own metric, estimates where it has no others; empty where there are none."""
        scores = self.summary.get("scores" if "scores" in self.summary else "estimates")
        return dict(scores) if isinstance(scores, Mapping) else {}

    def valid(self, name: str) -> str:
        """What the validation's figure `name` is recorded as."""
        return f"valid_estimate_{name}" if self.is_estimate else f"valid_{name}"

    @property
    def planned_epochs(self) -> int | None:
        """What the report's page divides the epochs by."""
        planned = _section(self.config, "fit").get("epochs")
        return planned if isinstance(planned, int) else None

    @property
    def stopped_early(self) -> tuple[int, str] | None:
        """The last epoch, and why it was the last, where that was before the planned one."""
        early = _section(self.summary, "stopped_early")
        return (_whole(early["epoch"]), str(early["why"])) if {"epoch", "why"} <= early.keys() else None

    @property
    def failure(self) -> str | None:
        """Why the run's latest part ended before its time, where that is known."""
        if self.events:
            last = self.events[-1]
            return str(last.get("error", "no cause recorded")) if last["kind"] == "fail" else None
        return None if self.summary else self.failure_log

    @property
    def status(self) -> str:
        """finished, failed, stopped (by Ctrl-C or SIGTERM), or "not finished" (going, or killed: its files do not tell)."""
        if self.failure is not None:
            return "stopped" if self.failure.startswith("interrupted (") else "failed"
        return "finished" if self.summary else "not finished"

    @property
    def restarts(self) -> tuple[Restart, ...] | None:
        """Starts of the workers after a fault; None where the run recorded no events."""
        if not self.events:
            return None
        restarts, started = [], False
        for event in self.events:
            if event["kind"] == "begin":
                started = False
            elif event["kind"] == "start":
                if started:
                    restarts.append(
                        Restart(str(event.get("time", "")), _whole(event.get("epoch")), _whole(event.get("repeated")))
                    )
                started = True
        return tuple(restarts)

    def told(self, kind: str) -> list[Mapping[str, Any]]:
        """The events of a kind: "begin" of the run or a part of it, "damage" of a checkpoint, "saved" because it was asked to end."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def traffic(self) -> tuple[PartitionTraffic, ...]:
        """By partition, over all epochs that tell it, those trained again included; empty where none does."""
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
        """Each rank on each of its hosts, over all epochs that tell it, those trained again included; empty where none does."""
        sums: dict[tuple[int, str], dict[str, float]] = {}
        for event in self.told("ranks"):
            hosts = event.get("hosts")
            for rank, host in enumerate(hosts if isinstance(hosts, list) else ()):
                of_rank = sums.setdefault((rank, str(host)), {})
                for name, column in event.items():
                    if (
                        name.endswith("_s")
                        and isinstance(column, list)
                        and rank < len(column)
                        and is_number(column[rank])
                    ):
                        of_rank[name] = of_rank.get(name, 0.0) + column[rank]
        return tuple(RankSeconds(rank, host, sums[rank, host]) for rank, host in sorted(sums))

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that a rank has taken, of its GPU or else of its process; None where none is told."""
        columns = [event.get("peak_bytes") for event in self.told("memory")]
        told = [peak for column in columns if isinstance(column, list) for peak in column if is_number(peak)]
        return max(told, default=None)

    @property
    def parts(self) -> int | None:
        """How often a driver began or resumed the run."""
        return len(self.told("begin")) or None

    def model(self, *, allow_import: bool = False) -> Any:
        """Its best weights, to be called on one's own tensors and graphs: `graphmill.jobs.run.trained_model.TrainedModel`."""
        return load("graphmill.jobs.run.trained_model:trained_model")(self, allow_import=allow_import)

    def embeddings(self, nodes: Sequence[Any] | None = None) -> "Tensor":
        """The rows [n, D] that the model's head reads of these nodes, or graphs, of the run's own data, by their ids; None: of all, ids ascending."""
        return load("graphmill.jobs.predict:embeddings")(self, nodes)

    def attention(self, *graph: Any, **columns: Any) -> "list[Tensor]":
        """`TrainedModel.attention` of a small graph: tensors, PyG's `Data`, a batch, or a stored one; of nothing, of the run's own data."""
        return self.model().attention(*(graph or (self.data_url,)), **columns)

    def save_model(self, path: str | Path) -> None:
        """Writes the model with its card, weights and scores: a folder, or `hf://owner/name`; `load_model` reads it."""
        load("graphmill.jobs.run.saved_model:save_model")(self, path)

    def series(self, name: str) -> list[tuple[float, float]]:
        """(epoch counted from 1, value) of every epoch that has the value."""
        return [(epoch["epoch"] + 1, epoch[name]) for epoch in self.epochs if name in epoch]

    def total(self, name: str) -> float | None:
        values = [epoch[name] for epoch in self.epochs if name in epoch]
        return sum(values) if values else None

    def mean_rate(self, name: str) -> float | None:
        """A rate averaged over the training time."""
        known = [(epoch[name], epoch["train_s"]) for epoch in self.epochs if name in epoch and "train_s" in epoch]
        seconds = sum(s for _, s in known)
        return sum(rate * s for rate, s in known) / seconds if seconds > 0 else None


def read_run(run: str | Path | RunStore, *, finished: bool = False) -> Run:
    """The run in this directory. Raises FormatError naming the file where there is none, or where one is damaged.

    `finished`: where it has not finished, or was continued and has not again, or its best weights are damaged, too; other files are then
    read when they are asked for.
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
        there = "one that has not finished; continue it with its job's --run.resume" if run.place.holds_run else "none"
        raise FormatError(f"{run.path}: expected a finished run's directory (summary.json), found {there}")
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
    """The parts of the run's graph; None where the run has none, or the graph is not on this machine or is another by now."""
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
    """Settings by dotted name, as text."""
    return {name: setting_text(value) for name, value in flat(values).items()}


def setting_text(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(one) for one in value) or "none"
    # A page is for showing around: the name and password of a URL stay out of it.
    return re.sub(r"(\w://)[^/@\s]*@", r"\1…@", str(value))


def is_number(value: Any) -> bool:
    """A finite number that a page can show: sums of some are finite too."""
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
    """The lines of metrics.jsonl, of which the last may be cut short."""
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
    """The lines of events.jsonl that are whole: a kill may have cut one that others follow."""
    for line in (_read(run, "events.jsonl") or "").split("\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            yield event
