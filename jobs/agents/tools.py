"""The tools of `graphmill mcp`, in one table. Each tool checks its paths and options, runs a command of Graphmill as a child process, and returns its output."""

import builtins
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from graphmill.core.errors import ConfigError
from graphmill.jobs.agents.child_command import Answer, EndedError, bounded, ended, run_command, start_command
from graphmill.jobs.agents.root_folder import RootFolder, Value, option_words

_READING_S = 600.0  # processor time of a tool that only reads
_MOST_TAIL = 8000
# Entries of a summary that `status` tells.
_TOLD = (
    *("metric", "scores", "estimates", "estimate", "baselines", "beats_baselines", "graph", "graphs", "graph_hash"),
    *("graphs_hash", "snapshot", "epochs", "audit", "lacks"),
)
_START_S = 60.0  # processor time of a start, validation and scores beside the planned steps
_LAST_LINES = 3
_TASKS = {"nodes": "train_nodes", "graphs": "train_graphs", "links": "train_links"}


@dataclass
class Session:
    """The state of one server: its folder, its limits, the training that it started last."""

    folder: RootFolder
    cpu_s: float  # processor time that all trainings, predictions and verifications of the session may use
    wait_s: float  # longest wait for a command
    spent_s: float = 0.0  # processor time used by trainings, predictions and verifications that ended
    training: "Training | None" = None
    lock: threading.Lock = field(
        default_factory=threading.Lock
    )  # held while a tool of CHARGED works; calls run in threads

    def ask(self, *words: str) -> str:
        """The output of a command, after its exit status if that is not 0."""
        return _told(run_command(words, self.folder.root, cpu_s=max(self.cpu_s, _READING_S), wait_s=self.wait_s))

    def charge(self, words: Sequence[str], cpu_s: float) -> Answer:
        """Runs a command and adds what it used to what the session has spent, also if the command reaches a limit. Only within `working`."""
        used_s = 0.0
        try:
            answer = run_command(words, self.folder.root, cpu_s=cpu_s, wait_s=self.wait_s)
            used_s = answer.used_s
        except EndedError as error:
            used_s = error.used_s
            raise
        finally:
            self.spent_s += used_s
        return answer

    @property
    def left_s(self) -> float:
        """Processor time that trainings, predictions and verifications may still use."""
        running = 0.0 if self.training is None or self.training.status is not None else self.training.limit_s
        return self.cpu_s - self.spent_s - running

    def look(self) -> None:
        """Notes the end of the training, and what it used."""
        if self.training is not None and (end := ended(self.training.child)) is not None:
            self.training.status, used_s = end
            self.spent_s += used_s

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Lets one tool work at a time that trains or predicts. Raises ConfigError if another works, a training is running, or no processor time is left."""
        if not self.lock.acquire(blocking=False):
            raise ConfigError(
                f"{what}: expected one call of {', '.join(CHARGED)} at a time, another is at work; wait for its answer"
            )
        try:
            self.look()
            if self.training is not None and self.training.status is None:
                raise ConfigError(
                    f"{what}: expected no training of this server, {self.training.place} is running; wait for it"
                )
            if self.left_s < 1:
                raise ConfigError(
                    f"{what}: expected some of the session's {self.cpu_s:.0f} CPU seconds left, got none; raise --max-cpu-seconds"
                )
            yield
        finally:
            self.lock.release()

    # Read-only tools

    def list(self, folder: str = "") -> str:
        """Lists a folder below the server's folder (default: that folder itself): graphs, sets, runs, other folders and files."""
        place = self.folder.root / self.folder.there(folder, "folder") if folder else self.folder.root
        if not place.is_dir():
            raise ConfigError(f"folder: expected a folder, got the file {folder!r}; name a folder")
        lines = [f"{_kind(entry):<14}{entry.name}" for entry in sorted(place.iterdir())]
        return bounded("\n".join(lines) or "empty")

    def inspect(self, graph: str) -> str:
        """Describes a stored graph or set of graphs: counts, degrees, features, splits, classes, snapshots. `graph`: a path below the server's folder."""
        return self.ask("inspect_graph", self.folder.closed(graph, "graph"))

    def plan(self, data: str, predicts: str = "nodes", options: dict[str, Value] | None = None) -> str:
        """Computes counts, memory, time and cost of a training without starting it. `data`: a stored graph or set. `predicts`: nodes, graphs or links.
        `options`: for example {"model": "geco", "fit.epochs": 5}; options that are left out are chosen for the data, with a reason each."""
        return self.ask(*self._training(data, predicts, options or {}), "--plan")

    def status(self, run: str) -> str:
        """Tells how far a run is: its last events and epochs, its scores with the hash of its data, or why it failed. `run`: a run directory. Reads files alone."""
        place = self.folder.inside(run, "run")
        self.look()
        own = self.training if self.training is not None and self.training.place == place else None
        if own is None:
            self.folder.there(run, "run")
        if (self.folder.root / place).exists():
            self.folder.closed(run, "run")
        lines = (
            []
            if own is None
            else [f"the process {'is running' if own.status is None else f'ended with status {own.status}'}"]
        )
        if not self._tail(f"{place}/config.json") and (log := self._tail(f"{place}.log")):
            lines.append(f"output:\n{log}")
        for name in ("events.jsonl", "metrics.jsonl", "failure.log"):
            if text := self._tail(f"{place}/{name}"):
                lines.append(f"the last lines of {name}:\n{text}")
        if text := _short_summary(self.folder.root / self.folder.inside(f"{place}/summary.json", "run")):
            lines.append(f"summary.json:\n{text}")
        return bounded("\n".join(lines))

    def compare(self, run: str, other: str) -> str:
        """Compares two runs: scores and costs side by side, then each option and version that differs."""
        return self.ask("compare", self.folder.closed(run, "run"), self.folder.closed(other, "other"))

    def audit(self, target: str) -> str:
        """Looks for leaks in a graph, a set of graphs or a run: test links among message edges, edges from the future, copies across splits, features that tell the
        label, the id or the split, classes that training lacks, statistics learnt on more than the training rows. Exit status 1: there is a leak."""
        return self.ask("audit", self.folder.closed(target, "target"))

    def verify(self, run: str, steps: int = 5) -> str:
        """Replays steps of a run and tells whether they are equal to its record. The replay counts as processor time of the session."""
        place = self.folder.closed(run, "run")
        if not (self.folder.root / place).is_dir():  # an exported receipt names its data in its own way
            raise ConfigError(f"run: expected a run's directory, got the file {run!r}; name the run")
        with self.working("verify"):
            return _told(self.charge(["verify", place, "--steps", str(steps)], self.left_s))

    # Tools that write

    def train(self, data: str, run: str, predicts: str = "nodes", options: dict[str, Value] | None = None) -> str:
        """Starts a training and returns at once; `status` tells how far it is. First plans it: a training whose plan is above what is left of the session's
        processor time is refused. `run`: a new run directory below the server's folder. One training runs at a time, on CPUs. The others as in `plan`."""
        place = self.folder.free(run, "run")
        self.folder.free(f"{place}.log", "run")  # its output
        words = self._training(data, predicts, options or {})
        with self.working("train"):
            planned = self.charge([*words, "--plan"], self.left_s)
            cost = re.search(r"^ *CPU time +about ([0-9.e+]+) CPU seconds", planned.text, re.MULTILINE)
            if planned.status or cost is None:
                return f"refused by the plan, nothing was started\n{_told(planned)}"
            steps_s = float(cost[1])
            limit_s = 2 * steps_s + _START_S
            if limit_s > self.left_s:
                raise ConfigError(
                    f"train: expected at most {self.left_s:.0f} CPU seconds, which are left of the session's {self.cpu_s:.0f}, got a plan of "
                    f"{steps_s:.0f}, with a limit of {limit_s:.0f}; train fewer epochs or a smaller model, or raise --max-cpu-seconds"
                )
            log = self.folder.root / f"{place}.log"
            child = start_command([*words, "--run.dir", place], self.folder.root, log, cpu_s=limit_s)
            self.training = Training(place, child, limit_s)
        return (
            f"started: {place}, planned {steps_s:.4g} CPU seconds in steps, ended by the system at {limit_s:.0f}; "
            f"{self.left_s:.0f} of the session are left\noutput: {place}.log\n{planned.text}"
        )

    def predict(self, run: str, out: str) -> str:
        """Writes the predictions of a finished run for all nodes or graphs into a new folder below the server's folder, and prints the scores."""
        place, target = self.folder.closed(run, "run"), self.folder.free(out, "out")
        with self.working("predict"):
            return _told(self.charge(["predict", place, target, "--launcher", "process"], self.left_s))

    def _training(self, data: str, predicts: str, options: Mapping[str, Value]) -> builtins.list[str]:
        if predicts not in _TASKS:
            raise ConfigError(f"predicts: expected one of {', '.join(_TASKS)}, got {predicts!r}; correct it")
        here = ("--workers", "1", "--workers.launcher", "process", "--workers.device", "cpu")
        return [_TASKS[predicts], "--data", self.folder.closed(data, "data"), *option_words(options), *here]

    def _tail(self, name: str) -> str:
        """The last lines of a file; empty if there is none."""
        path = self.folder.root / self.folder.inside(name, "run")
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _MOST_TAIL))
            return "\n".join(stream.read().decode(errors="replace").splitlines()[-_LAST_LINES:])


@dataclass
class Training:
    """A training that the server started."""

    place: str  # the run directory, relative to the server's folder
    child: "subprocess.Popen[bytes]"
    limit_s: float
    status: int | None = None  # the exit status; None: it is running


def _told(answer: Answer) -> str:
    return answer.text if not answer.status else f"exit status {answer.status}\n{answer.text}"


def _kind(path: Path) -> str:
    if (path / "manifests").is_dir():
        return "graph or set"
    return "run" if (path / "config.json").exists() else "folder" if path.is_dir() else "file"


def _short_summary(path: Path) -> str:
    """The scores, and what they are about: the hashes of the data, the snapshot, the audit. Empty if there is no summary yet."""
    if not path.is_file():
        return ""
    try:
        summary = json.loads(path.read_text())
    except ValueError:  # it is being written
        return ""
    return json.dumps({name: summary[name] for name in _TOLD if name in summary}, indent=1)


class ToolRow(NamedTuple):
    """A row of the table of tools."""

    call: Callable[..., Any]
    writes: bool = False  # offered only if --allow names it


TOOLS = {
    "list": ToolRow(Session.list),
    "inspect": ToolRow(Session.inspect),
    "plan": ToolRow(Session.plan),
    "status": ToolRow(Session.status),
    "compare": ToolRow(Session.compare),
    "audit": ToolRow(Session.audit),
    "verify": ToolRow(Session.verify),
    "train": ToolRow(Session.train, writes=True),
    "predict": ToolRow(Session.predict, writes=True),
}
CHARGED = ("train", "predict", "verify")
WRITING = tuple(name for name, row in TOOLS.items() if row.writes)


def offered(allowed: tuple[str, ...]) -> dict[str, ToolRow]:
    """The tools of a server: those that read, and those that `allowed` names."""
    return {name: row for name, row in TOOLS.items() if not row.writes or name in allowed}
