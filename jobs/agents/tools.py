"""The tools of `graphmill mcp`, in one table. Each tool checks its paths and options, runs a command of Graphmill as a child process, and returns its output."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from graphmill.core.errors import ConfigError
from graphmill.jobs.agents.child_command import Answer, bounded, run_command, start_command
from graphmill.jobs.agents.root_folder import RootFolder, Value, option_words

_START_S = 60.0  # processor time of a start, validation and scores beside the planned steps
_LAST_LINES = 3
_TASKS = {"nodes": "train_nodes", "graphs": "train_graphs", "links": "train_links"}


@dataclass
class Session:
    """The state of one server: its folder, its limits, the trainings that it started."""

    folder: RootFolder
    cpu_s: float  # processor time that all trainings and predictions of the session may use
    wait_s: float  # longest wait for a command
    spent_s: float = 0.0  # limits given to trainings and predictions so far
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)  # by run directory

    def ask(self, *words: str, cpu_s: float | None = None) -> str:
        """The output of a command, after its exit status if that is not 0."""
        answer = self._run(words, cpu_s)
        return answer.text if not answer.status else f"exit status {answer.status}\n{answer.text}"

    def _run(self, words: tuple[str, ...], cpu_s: float | None = None) -> Answer:
        return run_command(words, self.folder.root, cpu_s=cpu_s or max(self.cpu_s, 600.0), wait_s=self.wait_s)

    def take(self, cpu_s: float, what: str) -> None:
        """Counts this much of the session's processor time. Raises ConfigError if less is left."""
        left = self.cpu_s - self.spent_s
        if cpu_s > left:
            raise ConfigError(
                f"{what}: expected at most {left:.0f} CPU seconds, which are left of the session's {self.cpu_s:.0f}, got a plan of {cpu_s:.0f}; "
                "train fewer epochs or a smaller model, or start the server with a larger --max-cpu-seconds"
            )
        self.spent_s += cpu_s

    # Read-only tools

    def inspect(self, graph: str) -> str:
        """Describes a stored graph or set of graphs: counts, degrees, features, splits, classes, snapshots. `graph`: a path below the server's folder."""
        return self.ask("inspect_graph", self.folder.there(graph, "graph"))

    def plan(self, data: str, predicts: str = "nodes", options: dict[str, Value] | None = None) -> str:
        """Computes counts, memory, time and cost of a training without starting it. `data`: a stored graph or set. `predicts`: nodes, graphs or links.
        `options`: for example {"model": "geco", "fit.epochs": 5}; options that are left out are chosen for the data, with a reason each."""
        return self.ask(*self._training(data, predicts, options or {}), "--plan")

    def status(self, run: str) -> str:
        """Tells how far a run is: its status, its last epochs, its scores with the hashes of its data, or why it failed. `run`: a run directory."""
        place = self.folder.there(run, "run")
        path = Path(place)
        lines = [self.ask("runs", str(path.parent), "--where", f"run={path.name}")]
        child = self.started.get(place)
        if child is not None:
            code = child.poll()
            lines.append("the process is running" if code is None else f"the process ended with status {code}")
        for name in ("metrics.jsonl", "failure.log", "summary.json"):
            if text := self._tail(place, name):
                lines.append(f"{name}:\n{text}")
        if not self._tail(place, "config.json") and (log := self._tail(f"{place}.log", None)):
            lines.append(f"output:\n{log}")
        return bounded("\n".join(lines))

    def compare(self, run: str, other: str) -> str:
        """Compares two runs: scores and costs side by side, then each option and version that differs."""
        return self.ask("compare", self.folder.there(run, "run"), self.folder.there(other, "other"))

    def audit(self, target: str) -> str:
        """Looks for leaks in a graph, a set of graphs or a run: test links among message edges, edges from the future, copies across splits, features that tell the
        label, the id or the split, classes that training lacks, statistics learnt on more than the training rows. Exit status 1: there is a leak."""
        return self.ask("audit", self.folder.there(target, "target"))

    def verify(self, run: str, steps: int = 5) -> str:
        """Replays steps of a run and tells whether they are equal to its record."""
        return self.ask("verify", self.folder.there(run, "run"), "--steps", str(steps), cpu_s=self.cpu_s)

    # Tools that write

    def train(self, data: str, run: str, predicts: str = "nodes", options: dict[str, Value] | None = None) -> str:
        """Starts a training and returns at once; `status` tells how far it is. First plans it: a training whose plan is above what is left of the session's
        processor time is refused. `run`: a new run directory below the server's folder. One training runs at a time, on CPUs. The others as in `plan`."""
        running = [place for place, child in self.started.items() if child.poll() is None]
        if running:
            raise ConfigError(f"train: expected no other training of this server, {running[0]} is running; wait for it")
        place = self.folder.free(run, "run")
        words = self._training(data, predicts, options or {})
        planned = self._run((*words, "--plan"))
        cost = re.search(r"^ *cost +about ([0-9.e+]+) CPU seconds", planned.text, re.MULTILINE)
        if planned.status or cost is None:
            return f"refused by the plan, nothing was started\n{planned.text}"
        limit_s = 2 * float(cost[1]) + _START_S
        self.take(limit_s, "train")
        (self.folder.root / place).parent.mkdir(parents=True, exist_ok=True)
        log = self.folder.root / f"{place}.log"
        self.started[place] = start_command([*words, "--run.dir", place], self.folder.root, log, cpu_s=limit_s)
        return (
            f"started: {place}, planned {float(cost[1]):.4g} CPU seconds in steps, ended by the system at {limit_s:.0f}; "
            f"{self.cpu_s - self.spent_s:.0f} of the session are left\noutput: {place}.log\n{planned.text}"
        )

    def predict(self, run: str, out: str) -> str:
        """Writes the predictions of a finished run for all nodes or graphs into a new folder below the server's folder, and prints the scores."""
        place, target = self.folder.there(run, "run"), self.folder.free(out, "out")
        limit_s = min(self.cpu_s - self.spent_s, self.wait_s)
        self.take(max(limit_s, 1.0), "predict")
        return self.ask("predict", place, target, cpu_s=limit_s)

    def _training(self, data: str, predicts: str, options: Mapping[str, Value]) -> list[str]:
        if predicts not in _TASKS:
            raise ConfigError(f"predicts: expected one of {', '.join(_TASKS)}, got {predicts!r}; correct it")
        here = ("--workers", "1", "--workers.launcher", "process", "--workers.device", "cpu")
        return [_TASKS[predicts], "--data", self.folder.there(data, "data"), *option_words(options), *here]

    def _tail(self, place: str, name: str | None) -> str:
        """The last lines of a file, or a whole small JSON object."""
        path = self.folder.root / self.folder.inside(place if name is None else f"{place}/{name}", "run")
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 8000))
            text = stream.read().decode(errors="replace")
        if name == "summary.json":
            return _short_summary(path)
        return "\n".join(text.splitlines()[-_LAST_LINES:])


def _short_summary(path: Path) -> str:
    """The scores, and what they are about: the hashes of the data, the snapshot, the audit."""
    kept = ("metric", "scores", "estimates", "estimate", "baselines", "beats_baselines", "graph", "graphs", "graph_hash", "graphs_hash", "snapshot", "epochs", "audit", "lacks")  # fmt: skip
    try:
        summary = json.loads(path.read_text())
    except ValueError:
        return ""
    return json.dumps({name: summary[name] for name in kept if name in summary}, indent=1)


class ToolRow(NamedTuple):
    """A row of the table of tools."""

    call: Callable[..., Any]
    command: str  # the command that must exist for the tool to be offered
    writes: bool = False  # offered only if --allow names it


TOOLS = {
    "inspect": ToolRow(Session.inspect, "inspect_graph"),
    "plan": ToolRow(Session.plan, "train"),
    "status": ToolRow(Session.status, "runs"),
    "compare": ToolRow(Session.compare, "compare"),
    "audit": ToolRow(Session.audit, "audit"),
    "verify": ToolRow(Session.verify, "verify"),
    "train": ToolRow(Session.train, "train", writes=True),
    "predict": ToolRow(Session.predict, "predict", writes=True),
}
WRITING = tuple(name for name, row in TOOLS.items() if row.writes)


def offered(commands: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, ToolRow]:
    """The tools of a server: those whose command exists and that read, and those that `allowed` names."""
    return {name: row for name, row in TOOLS.items() if row.command in commands and (not row.writes or name in allowed)}
