"""Runs training jobs on emulated hosts that have the partitions of a graph. Records the output of jobs with times."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.disturbed_job import epochs
from tests.netlab.hosts import DISK, Hosts
from tests.netlab.ray_hosts import RayHosts

EPOCHS = 200
SMALL = (
    *("--model.width", "16", "--model.num_layers", "2", "--sampler", "neighbor", "--sampler.fanouts", "4", "3"),
    *(
        "--sampler.batch_size",
        "16",
        "--fit.epochs",
        str(EPOCHS),
        "--fit.eval_every",
        "20",
        "--fit.checkpoint_every",
        "5",
    ),
)
ENDS_S = 900.0
DASHBOARD = "http://127.0.0.1:8265"


class Lab:
    """A cluster on these hosts. The partitions of a graph are on the hosts' disks. Runs are in a folder to which all hosts can write."""

    def __init__(
        self, hosts: Hosts, shared: Path, cluster: RayHosts | None = None, num_workers: int | None = None
    ) -> None:
        """`num_workers`: workers of a run; None: one for each host."""
        self.hosts, self.shared, self.num_workers = hosts, shared, num_workers or len(hosts.names)
        self.cluster = cluster or RayHosts(hosts)
        if not (shared / "origin").exists():
            graph = SyntheticGraph(SyntheticOptions(num_nodes=1500))
            ingest(graph, str(shared / "origin"), IngestOptions(num_partitions=len(hosts.names)))
        self.cluster.start()
        self.do("ingest", str(shared / "origin"), f"{DISK}/graph", "--place", "hosts")

    def do(self, *words: str) -> None:
        done = self.cluster.run("h0", self.cluster.job(*words), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def train(self, name: str, *options: str, host: str = "h0") -> "Running":
        words = ("--data", f"{DISK}/graph", "--run.dir", str(self.shared / name), *SMALL)
        workers = ("--workers", str(self.num_workers))
        return Running(self, self.shared / name, (*words, *workers, *options), host)

    def submit(self, name: str, *options: str) -> "Running":
        """Submits a training job by `ray job submit` on h0, whose job server must run. The job continues the run if there is one."""
        words = ("--data", f"{DISK}/graph", "--run.dir", str(self.shared / name), *SMALL, "--run.resume", "auto")
        return Running(
            self, self.shared / name, (*words, "--workers", str(self.num_workers), *options), "h0", submitted=True
        )

    def resume(self, run: Path, *options: str, host: str = "h0") -> "Running":
        return Running(self, run, ("--run.resume", str(run), *options), host)


class Running:
    """A training job on a host, with the time of each line that it has printed."""

    def __init__(self, lab: Lab, run: Path, words: tuple[str, ...], host: str, *, submitted: bool = False) -> None:
        self.path, self.lines = run, list[tuple[float, str]]()
        self._command = lab.cluster.job("products_geco", *words)
        if submitted:
            self._command = ["ray", "job", "submit", "--address", DASHBOARD, "--", *self._command]
        self._popen = lab.cluster.popen(
            host, self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        self._pids = lambda: lab.hosts.pids(host)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for_epochs(self, count: int) -> None:
        deadline = time.monotonic() + ENDS_S
        while len(epochs(self.path)) < count:
            assert self._popen.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    def interrupt(self) -> None:
        """Sends SIGTERM to the job, as a scheduler does. SIGINT would not work, because a shell makes background processes ignore it."""
        for pid in self._pids():
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] == [word.encode() for word in self._command]:
                os.kill(pid, signal.SIGTERM)

    def end(self, within_s: float = ENDS_S) -> int:
        """Waits for the end of the job and returns its exit status."""
        try:
            status = self._popen.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            raise AssertionError(f"no end within {within_s:g} s: {self.text}") from None
        self._reader.join(timeout=10)
        return status

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def said_after(self, begun: float, what: str) -> float:
        """Seconds from `begun` to the first later line with these words. Infinite if there is no such line."""
        return next((when - begun for when, line in self.lines if when >= begun and what in line), float("inf"))

    @property
    def losses(self) -> list[float]:
        return [epoch["train_loss"] for epoch in epochs(self.path)]
