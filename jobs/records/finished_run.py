"""A finished run's directory, read back: what it was, its scores, and its best weights."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from graphmill.cluster.checkpoints.checkpoint import TrainState, load_state, verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import BEST
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import FormatError, quoted
from graphmill.core.files.json_object import parse_object
from graphmill.core.files.small_files import read_small
from graphmill.jobs.records.run_record import settled_events

_WEIGHTS = (BEST, "model.safetensors")


@dataclass(frozen=True)
class FinishedRun:
    """Read one with `read_run`."""

    place: RunStore
    summary: dict[str, Any]
    state: TrainState  # of the best weights

    @property
    def path(self) -> str:
        """The run's directory: a path or a URL."""
        return self.place.url

    def __repr__(self) -> str:
        scores = ", ".join(f"{split} {score:.4f}" for split, score in self.scores.items())
        kind = "estimated " if self.estimate else ""
        return f"FinishedRun({self.path}: {kind}{self.summary['metric']} {scores}; {self.summary['epochs']} epochs)"

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
    def scores(self) -> dict[str, float]:
        """By split, in the run's own metric; estimates, where the run has no others."""
        return dict(self.summary["scores" if "scores" in self.summary else "estimates"])

    @property
    def estimate(self) -> str | None:
        """Why its scores are estimates; None: they are exact."""
        return self.summary.get("estimate")

    @property
    def weights_path(self) -> str:
        return self.place.below(*_WEIGHTS)

    @cached_property
    def weights(self) -> bytes:
        """The file of the best weights. Raises FormatError where it cannot be read."""
        try:
            weights = self.place.read("/".join(_WEIGHTS))
        except OSError as error:
            raise FormatError(f"{self.weights_path}: cannot read the run's best weights ({error.strerror})") from None
        if weights is None:
            raise FormatError(f"{self.weights_path}: cannot read the run's best weights (there is no such file)")
        return weights

    @property
    def weights_hash(self) -> str:
        return hashlib.sha256(self.weights).hexdigest()


def read_run(path: str) -> FinishedRun:
    """The run in this directory. Raises FormatError where there is none, or one that has not finished, or was continued and has not again."""
    place = RunStore(path)
    with place.at_hand("config.json", "summary.json", "events.jsonl", BEST) as run:
        return _read(place, run)


def _read(place: RunStore, run: Path) -> FinishedRun:
    path, file = place.url, run / "summary.json"
    try:
        summary = parse_object(read_small(file), str(file))
    except (FileNotFoundError, NotADirectoryError):
        begun = (run / "config.json").exists()
        there = "one that has not finished; continue it with its job's --run.resume" if begun else "none"
        raise FormatError(f"{path}: expected a finished run's directory (summary.json), found {there}") from None
    kind = "graphs" if "graphs" in summary else "graph"
    scores = "estimates" if "estimates" in summary else "scores"
    needed = ("job", "workers", "device", scores, "snapshot", kind, f"{kind}_hash")
    lacking = [name for name in needed if name not in summary]
    if lacking:
        raise FormatError(f"{file}: expected a training run's summary, found none of {', '.join(lacking)}")
    if type(summary["snapshot"]) is not int:
        raise FormatError(f"{file}: field 'snapshot': expected a snapshot's number, got {quoted(summary['snapshot'])}")
    events = settled_events(run)
    if events and events[-1]["kind"] != "finish":
        raise FormatError(
            f"{path}: expected a finished run's directory, found one that was continued and has not finished again; continue it with "
            "its job's --run.resume"
        )
    verify_checkpoint(run / BEST)
    return FinishedRun(place, summary, load_state(run / BEST))
