"""Writes one run's directory. Only the driver writes these files:

config.json        the resolved configuration
environment.json   versions and machine of the latest start or resume of the run
metrics.jsonl      one line per epoch
receipt.jsonl      chain of digests of options, data, batches, gradients and weights (cluster/receipts/chain.py)
events.jsonl       one line with UTC time per event: begin, start of the workers (again after a failure), failure, traffic of an epoch, end
tensorboard/       the metrics as TensorBoard events
train/             Ray Train's own state and checkpoints
attempts/          records of the workers of an attempt in progress (cluster/runs/records.py)
best/              the best weights (model.safetensors), the model's configuration (config.json), state.json
summary.json       final scores, baselines, throughput
report.html        the configuration, metrics and scores as a page
baselines/         runs of classic models, if the options request them; they are trained before this run
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.cluster.receipts.receipt_file import ReceiptFile
from graphmill.cluster.runs.run_lease import HOLDERS, RunLease
from graphmill.cluster.runs.run_store import BASELINES, CONFIG, FILES, GRAPH, RunStore
from graphmill.cluster.runs.tensorboard_file import EventFile
from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.files.json_object import parse_object
from graphmill.storage.filesystem.fsync import write_durably
from graphmill.storage.filesystem.outputs import check_output, names_there

if TYPE_CHECKING:
    import fsspec

# The name in TensorBoard of each value of an epoch. Validation scores are named "valid/…".
_SCALARS = {
    "train_loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "roots_per_s": "speed/roots_per_s",
    "nodes_per_s": "speed/nodes_per_s",
    "edges_per_s": "speed/edges_per_s",
    "train_s": "time/train_s",
    "wait_s": "time/wait_s",
    "eval_s": "time/eval_s",
}


def write_atomic(path: Path, text: str) -> None:
    """Replaces a file's text. Readers see the old text or the new text, never a mixture."""
    # A message may quote a file name that is not UTF-8. Such a name has lone surrogates, which UTF-8 cannot encode.
    write_durably(path, text.encode("utf-8", errors="backslashreplace"))


def check_free(run: Path | RunStore) -> None:
    """Raises ConfigError if the directory is not free for a new run. Baselines, a graph from memory and a lease are allowed, because they come before a run."""
    place = RunStore.of(run)
    if place.holds_run:
        raise ConfigError(
            f"{place}: expected no run here, found one; pass --run.resume {place} to continue it, or another --run.dir"
        )
    check_output(place.folder if place.is_local else place.url, "a run", _strangers, advice="choose another --run.dir")


def _strangers(filesystem: "fsspec.AbstractFileSystem", path: str) -> list[str]:
    return [name for name in names_there(filesystem, path) if name not in (BASELINES, GRAPH, HOLDERS)]


def log_failure(run: RunStore, text: str) -> Path:
    """Adds the text to the run's failure.log and returns the path of the log. A full disk is ignored here, because the driver reports it."""
    log = run.folder / "failure.log"
    with suppress(OSError), log.open("a") as stream:
        stream.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")
    return log


def make_folder(place: RunStore) -> None:
    """Makes the run's folder. Raises ConfigError if that fails."""
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{place.folder}: cannot make the run directory ({error.strerror}); choose another --run.dir"
        ) from None


class RunDirectory:
    """Writes a run's files. Use `create` or `resume` to make an object."""

    def __init__(self, run: Path | RunStore) -> None:
        self.place = RunStore.of(run)
        self.path = self.place.folder
        self.settle: Callable[[], None] = lambda: None  # a function that waits until the store has all written files
        self.hold: RunLease | None = None  # the driver's lease, if the run is on a store
        self.has_report = False  # whether this training has written report.html
        self._metrics = self.path / "metrics.jsonl"
        self._next_epoch: int | None = None  # of the last start
        self._events: EventFile | None = None  # since the first epoch that was recorded after the start
        self.receipt = ReceiptFile(self.path, write_atomic)
        # The new configuration, until the workers of a continued run accept it
        self._new_config: Mapping[str, Any] | None = None
        # Called with every epoch's record after it is written
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []

    @property
    def is_lost(self) -> bool:
        """Returns whether another driver has taken the run over."""
        return self.hold is not None and self.hold.is_lost

    @classmethod
    def create(cls, run: Path | RunStore, config: Mapping[str, Any]) -> "RunDirectory":
        """Creates a new run. Raises ConfigError if the directory is not free (`check_free`)."""
        place = RunStore.of(run)
        check_free(place)
        make_folder(place)
        write_atomic(place.folder / CONFIG, json.dumps(config, indent=1) + "\n")
        return cls(place)

    @classmethod
    def resume(cls, run: Path | RunStore, config: Mapping[str, Any]) -> "RunDirectory":
        """Continues an earlier run. `config` replaces the run's configuration when the workers start. If the workers refuse it, the old one stays."""
        place = RunStore.of(run)
        load_config(place)
        if not place.is_local:
            place.fetch(place.folder, FILES)
        continued = cls(place)
        continued._new_config = config
        return continued

    def start(self, next_epoch: int, step: int = 0, workers: int | None = None) -> None:
        """Begins recording at this epoch and step. Earlier records of epochs from `next_epoch` on are removed."""
        if self._new_config is not None:
            write_atomic(self.path / "config.json", json.dumps(self._new_config, indent=1) + "\n")
            self._new_config = None
        recorded = self._complete_lines()
        lines = [line for line in recorded if json.loads(line)["epoch"] < next_epoch]
        if self._metrics.exists():
            write_atomic(self._metrics, "".join(lines))
        self.receipt.cut((next_epoch, step), lines)
        self.note("start", epoch=next_epoch, step=step, workers=workers, repeated=len(recorded) - len(lines))
        self._next_epoch, self._events = next_epoch, None

    def make_up(self, reports: Iterable[Mapping[str, Any]], next_epoch: int) -> None:
        """Records the epochs before `next_epoch` that workers reported but a killed driver did not record."""
        recorded = {epoch["epoch"] for epoch in self.metrics()}
        for report in reports:
            if report["kind"].startswith("receipt"):
                self.receipt.make_up(report)
            if report["kind"] == "epoch" and report["epoch"] < next_epoch and report["epoch"] not in recorded:
                self.take(report)

    def take(self, report: Mapping[str, Any]) -> None:
        """Records a report of rank 0: a start of the workers, the planned steps, an epoch, traffic, a damaged checkpoint. A report of a step is ignored."""
        values = {name: value for name, value in report.items() if name != "kind"}
        if report["kind"] == "epoch":
            self.record(values)
        elif report["kind"] == "start":
            self.start(int(report["epoch"]), int(report["step"]), int(report["workers"]))
        elif report["kind"].startswith("receipt"):
            self.receipt.take(report, (self.path / CONFIG).read_bytes)
        elif report["kind"] != "step":
            self.note(report["kind"], **values)

    def note(self, kind: str, **values: Any) -> None:
        """Appends an event to events.jsonl: "begin", "start", "damage" of a checkpoint, "planned" steps, "traffic" of an epoch, "failure" of the
        workers, "saved", "finish" or "fail"."""
        event = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind, **values}
        with open(self.path / "events.jsonl", "ab+") as stream:
            cut = False  # true: a killed process has left an incomplete line; a line end is added, so only that line is lost
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                cut = stream.read(1) != b"\n"
            stream.write((b"\n" if cut else b"") + json.dumps(event).encode() + b"\n")

    def record(self, epoch_record: Mapping[str, Any]) -> None:
        """Appends one epoch's metrics to metrics.jsonl and TensorBoard."""
        if self._next_epoch is None:
            self.start(int(epoch_record["epoch"]))
        line = json.dumps(dict(epoch_record), allow_nan=False) + "\n"
        self.receipt.add_metrics(line)
        with open(self._metrics, "a") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())  # after a loss of power, an epoch with a checkpoint must have its record
        scalars = {
            _SCALARS.get(name) or name.replace("_", "/", 1): value
            for name, value in epoch_record.items()
            if name in _SCALARS or name.startswith("valid_")
        }
        if self._events is None:  # now, because TensorBoard's imports would delay the first step
            self._events = self._new_events()
        self._events.write(int(epoch_record["epoch"]), scalars)
        for listen in self.listeners:
            listen(epoch_record)

    def _new_events(self) -> EventFile:
        assert self._next_epoch is not None
        events = EventFile(self.path / "tensorboard", purge_step=self._next_epoch)
        config = parse_object((self.path / "config.json").read_bytes(), "config.json")
        events.write_options(self.path.name, flat(config))
        return events

    def _complete_lines(self) -> list[str]:
        """Returns the complete lines of metrics.jsonl. An interruption may have cut the last line short."""
        if not self._metrics.exists():
            return []
        return [line for line in self._metrics.read_text().splitlines(keepends=True) if line.endswith("}\n")]

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics of all recorded epochs."""
        return [json.loads(line) for line in self._complete_lines()]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        text = json.dumps(dict(summary), indent=1, allow_nan=False) + "\n"
        state = self.place.read("best/state.json")
        best = None if state is None else json.loads(state)["sha256"].get("model.safetensors")
        self.receipt.end(text.encode(), best)
        write_atomic(self.path / "summary.json", text)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested names: {"fit": {"epochs": 3}} → {"fit.epochs": 3}"""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            options |= flat(value, f"{prefix}{name}.")
        else:
            options[prefix + name] = value
    return options


def load_config(run: Path | RunStore, advice: str = "start one without --run.resume") -> dict[str, Any]:
    """Reads the configuration of a run. Raises FormatError if there is no configuration."""
    place = RunStore.of(run)
    content = place.read(CONFIG)
    if content is None:
        raise FormatError(f"{place}: expected a run directory (config.json), found none; {advice}")
    return parse_object(content, place.below(CONFIG))
