"""A small training job on real processes, for tests of faults. Tests start it, watch it, and check the results that no fault may change."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from graphmill.cluster.ray.session import LOCAL_RAY_ENVIRONMENT
from tests.ray_head import RayHead

REPOSITORY = Path(__file__).resolve().parents[1]
JOB = REPOSITORY / "jobs" / "products_geco.py"
# For many faults in one run, set more epochs, such as 160 for ten faults.
NUM_EPOCHS = int(os.environ.get("DISTURBED_EPOCHS", "40"))
FLAGS = {
    "--data.nodes": "1500",
    "--model.width": "16",
    "--model.num_layers": "2",
    "--sampler.num_chunks": "8",
    "--fit.epochs": str(NUM_EPOCHS),
    "--fit.checkpoint_every": "8",
    "--fit.eval_every": "1",
    "--fit.checkpoint_minutes": "0.02",
    "--servers.local_reads": "no",
}
STORE = Path("data", "synthetic-1500-seed0-ldg2")  # relative to the job's working folder


class Job:
    """One run of the job (or of another `command`) in a new process session. `output`: the file for its output; use it if the output is long.

    `flags`: names and values that override FLAGS. `head`: the Ray on which the job runs. If it is None, the job starts a
    Ray itself.
    """

    def __init__(
        self,
        run: Path,
        *flags: str,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        head: RayHead | None = None,
    ) -> None:
        self.run, self.head = run, head
        said = FLAGS | dict(zip(flags[::2], flags[1::2], strict=True))
        command = command or [sys.executable, str(JOB), *(word for pair in said.items() for word in pair)]
        with contextlib.ExitStack() as stack:
            out = subprocess.PIPE if output is None else stack.enter_context(open(output, "w"))
            self.popen = subprocess.Popen(
                command,
                cwd=run.parent,
                stdout=out,
                stderr=subprocess.PIPE if output is None else subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env=os.environ | dict(environment or {}) | self._ray_environment(),
            )

    def end(self, timeout_s: float = 600) -> tuple[int, str]:
        """Waits for the end of the job. Returns (exit status, stderr)."""
        out, err = self.popen.communicate(timeout=timeout_s)
        assert "Traceback" not in out + err, out + err
        return self.popen.returncode, err

    def wait_for_epochs(self, count: int, timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while len(epochs(self.run)) < count:
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline, f"no {count} epochs: {epochs(self.run)}"
            time.sleep(0.02)

    def wait_for_starts(self, count: int, timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while len(starts(self.run)) < count:
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline, f"no {count} starts: {starts(self.run)}"
            time.sleep(0.05)

    def _ray_environment(self) -> dict[str, str]:
        return {**LOCAL_RAY_ENVIRONMENT, "RAY_ADDRESS": self.head.address} if self.head else {}

    def family(self) -> list[psutil.Process]:
        """Ray's processes, also the workers that a warm process has forked: that process is a child of no process of Ray's."""
        ray = self.head.process if self.head else psutil.Process(self.popen.pid)
        found = {process.pid: process for process in ray.children(recursive=True)}
        raylets = {*map(str, found)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.pid not in found and process.environ().get("RAY_RAYLET_PID") in raylets:
                    found[process.pid] = process
        return list(found.values())

    def ray_logs(self) -> list[Path]:
        """The log files of the Ray that the job uses. Call it while the job runs."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                for argument in process.cmdline():
                    if argument.startswith("--session_dir=") or argument.startswith("--session-dir="):
                        return list(Path(argument.partition("=")[2], "logs").iterdir())
        return []

    def actors(self, name: str) -> list[psutil.Process]:
        """The processes of running actors of this kind."""
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def start(
    run: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    head: RayHead | None = None,
) -> Job:
    return Job(run, "--run.dir", str(run), *flags, environment=environment, head=head)


def epochs(run: Path) -> list[dict]:
    """The record of each epoch of the run, without times."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [{name: value for name, value in record.items() if not name.endswith("_s")} for record in records]


@dataclass(frozen=True)
class Outcome:
    """The results of a run that must not depend on any fault."""

    epochs: list[dict]
    weights: bytes
    scores: dict

    @classmethod
    def of(cls, run: Path) -> "Outcome":
        summary = json.loads((run / "summary.json").read_text())
        scores = {
            name: value for name, value in summary.items() if name in ("accuracy", "best_epoch", "counts", "epochs")
        }
        assert scores
        return cls(epochs(run), (run / "best" / "model.safetensors").read_bytes(), scores)


def events(run: Path) -> list[dict]:
    """The events that the driver has recorded."""
    file = run / "events.jsonl"
    return [json.loads(line) for line in (file.read_text().splitlines() if file.exists() else [])]


def starts(run: Path) -> list[dict]:
    """Each start of the workers: the position where it began, and the number of epochs that it repeated."""
    return [event for event in events(run) if event["kind"] == "start"]


def all_gone(family: list[psutil.Process], timeout_s: float) -> None:
    _, alive = psutil.wait_procs(family, timeout=timeout_s)
    assert not alive, alive
