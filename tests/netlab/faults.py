"""Causes faults of hosts, links and disks during training. Tries each fault several times, each time in a new run, and writes a table of the results.

    python -m tests.netlab.faults --times 5 --out runs/faults            # all of them, half a day on two cores
    python -m tests.netlab.faults --times 1 --out runs/faults --only head disk

Two emulated hosts train products_geco; see tests/netlab/lab.py. Every trial becomes a line of OUT/results.jsonl. Trials
in this file are not repeated, so an interrupted command can be started again. OUT/results.md is the table. After a
fault, a run must continue and have the losses of a run without faults. Or it must end in time with one line that names
the host and the command to resume; the resumed run must then have these losses.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.disturbed_job import epochs, events
from tests.netlab.hosts import DISK, Hosts, call, end_on_signals, why_not
from tests.netlab.lab import Lab, Running
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

STRIKES_AT = 15  # finished epochs before the fault
TOLD_S = 10.0
MOST_LINES = 400  # most lines of output that a run may print
DISK_BYTES = 400 * 2**20  # size of each host's disk
RUN_DISK_BYTES = 24 * 2**20  # size of the folder "small", which a run fills
REDIS_PORT = 6390
ANNOUNCED = 3  # announced losses of a trial


@dataclass(frozen=True)
class Fault:
    """A fault. `strike` causes it and, if the fault ends by itself, also ends it. `mend` repairs what is left before the run is resumed."""

    strike: Callable[[Lab, Running], None]
    told: str  # words that the user must see within `told_s` seconds
    told_s: float = TOLD_S
    options: tuple[str, ...] = ()
    ends: tuple[str, ...] | None = None  # words of the run's last line; None: the run continues, or was submitted
    within_s: float = 900.0  # time within which the run ends
    mend: Callable[[Lab], None] = lambda lab: None
    host: str = "h0"  # host of the driver
    folder: str = "."  # folder of the run, below the shared folder
    kind: str = "plain"  # kind of lab, see `lab`
    more: Callable[[Lab, Running], None] = lambda lab, run: (
        None
    )  # more checks, if it continued; for a submitted job, what continues it
    submitted: bool = False  # by `ray job submit` on h0, where the driver then runs


def cut(seconds: float) -> Callable[[Lab, Running], None]:
    def strike(lab: Lab, run: Running) -> None:
        lab.hosts.cut("h1")
        time.sleep(seconds)
        lab.hosts.heal("h1")

    return strike


def power_cut(lab: Lab, run: Running) -> None:
    lab.hosts.power_off("h1")
    time.sleep(40)
    start_again(lab, "h1")


def start_again(lab: Lab, host: str) -> None:
    lab.hosts.power_on(host)
    lab.cluster.start_node(host)


def kill_head(lab: Lab, run: Running) -> None:
    (pid,) = [pid for pid in lab.hosts.pids("h0") if "gcs_server" in command_of(pid)]
    os.kill(pid, signal.SIGKILL)


def cut_heads_power(lab: Lab, run: Running) -> None:
    """Takes the head's host its power for a quarter of a minute; a service then starts its Ray again."""
    lab.hosts.power_off("h0")
    time.sleep(15)
    start_again(lab, "h0")


def submit_again(lab: Lab, run: Running) -> None:
    """Gives the command of a submitted job again, until the new head's job server takes it. The job must continue the run to its end."""
    deadline = time.monotonic() + 300
    while (again := lab.submit(run.path.name)).end():
        assert "Failed to connect" in again.text or "Connection" in again.text, again.text[-3000:]
        assert time.monotonic() < deadline, again.text[-3000:]
        time.sleep(3)
    begun = [event for event in events(run.path) if event["kind"] == "begin"]
    assert len(begun) == 2, "the run was not continued by one job"


def fill(folder: Path) -> None:
    """Fills this disk completely."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as stream:
        for size in (2**20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))


def free(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)


def fill_disk(lab: Lab, run: Running) -> None:
    fill(lab.hosts.disk("h1"))
    time.sleep(30)
    free(lab.hosts.disk("h1"))


def fill_disk_and_kill(lab: Lab, run: Running) -> None:
    """Fills the disk of a host and kills the worker there, so that a new worker must start on a full disk."""
    fill(lab.hosts.disk("h1"))
    time.sleep(5)
    os.kill(worker_on(lab, "h1"), signal.SIGKILL)


def fill_origins_copy(lab: Lab, run: Running) -> None:
    """Fills the disk of the host that survives, so that it has no room for the partition of the lost host."""
    fill(lab.hosts.disk("h0"))
    lab.hosts.power_off("h1")


def slow_down(lab: Lab, run: Running) -> None:
    """Limits the worker on h1 to a fifth of the CPU time, until a message appears or 90 s have passed."""
    worker, begun = psutil.Process(worker_on(lab, "h1")), time.monotonic()
    while time.monotonic() < begun + 90 and "is slow" not in run.text:
        worker.suspend()
        time.sleep(0.08)
        worker.resume()
        time.sleep(0.02)


DRAIN = """
import sys, time
import ray
from ray.core.generated import autoscaler_pb2
address, host, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
ray.init(address, log_to_driver=False, logging_level="ERROR")
(node,) = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerHostname"] == host]
reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
print(ray._raylet.GcsClient(address=address).drain_node(node, reason, "spot", int(1000 * (time.time() + seconds)))[0])
"""


def announce(lab: Lab, run: Running) -> None:
    """Announces the loss of a host with a worker, three times. The second time as a container's end does it: SIGTERM to `ray start --block`. The
    other times as a spot notice: the host loses its power 15 s later, and starts again."""
    for turn in range(ANNOUNCED):
        (host, *_) = [host for host in ("h1", "h2", "h3") if workers_on(lab, host)][turn % 2 :]
        seen = len(interruptions(run))
        if turn == 1:
            os.kill(
                next(
                    pid
                    for pid in lab.hosts.pids(host)
                    if " start " in command_of(pid) and "--block" in command_of(pid) and "sh -c" not in command_of(pid)
                ),
                signal.SIGTERM,
            )
        else:
            said = lab.cluster.run(
                "h0", [sys.executable, "-c", DRAIN, lab.cluster.address, host, "15"], capture_output=True, text=True
            )
            assert said.stdout.strip() == "True", said.stdout + said.stderr
            time.sleep(15)
            lab.hosts.power_off(host)
        wait_for(lambda: len(interruptions(run)) > seen)  # noqa: B023
        if turn != 1:
            start_again(lab, host)
        lab.cluster.wait_for_nodes(len(lab.hosts.names))
        reached = len(epochs(run.path))
        wait_for(lambda: len(epochs(run.path)) > reached + 2)  # noqa: B023


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def interruptions(run: Running) -> list[dict[str, Any]]:
    return [event for event in events(run.path) if event["kind"] == "interruption"]


def lost_nothing(lab: Lab, run: Running) -> None:
    """Checks that the announced losses cost no step, and were no failures."""
    assert [(each["announced"], each["steps"]) for each in interruptions(run)] == [(True, 0)] * ANNOUNCED
    assert not [event for event in events(run.path) if event["kind"] == "failure"]


def slow_link(lab: Lab, run: Running) -> None:
    lab.hosts.rate("h1", "1mbit")
    time.sleep(90)
    lab.hosts.rate("h1", None)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def workers_on(lab: Lab, host: str) -> list[int]:
    """The ids of the training workers' processes on a host."""
    return [pid for pid in lab.hosts.pids(host) if "RayTrainWorker" in command_of(pid)]


def worker_on(lab: Lab, host: str) -> int:
    """The id of the only training worker's process on a host."""
    (pid,) = workers_on(lab, host)
    return pid


def served_at_home(lab: Lab, run: Running) -> None:
    """Checks that, in the end, each worker again reads the partition on its own host locally."""
    last = [event for event in events(run.path) if event["kind"] == "traffic" and event["of"] == "epochs"][-1]
    assert all(last["local_requests"]), "a partition is remote to both workers"


SILENT = "h1 (10.77.0.2) has not answered"
GOES_ON = "--run.resume"
FAULTS: dict[str, Fault] = {
    "cut-20s": Fault(cut(20), SILENT, more=served_at_home),
    "cut-3min": Fault(cut(180), SILENT, more=served_at_home),
    "power-40s": Fault(power_cut, SILENT, more=served_at_home),
    "lost": Fault(
        lambda lab, run: lab.hosts.power_off("h1"),
        SILENT,
        options=("--workers.wait_s", "20"),
        ends=("h1 (10.77.0.2) has not answered for", "expected room for 2 workers", GOES_ON),
        mend=lambda lab: start_again(lab, "h1"),
    ),
    "lost-elastic": Fault(
        lambda lab, run: lab.hosts.power_off("h1"),
        SILENT,
        options=("--workers.min_workers", "1"),
        mend=lambda lab: start_again(lab, "h1"),
    ),
    "head": Fault(
        kill_head, "h0 (10.77.0.1), port 6379: the head of the Ray cluster is lost", ends=("h0", GOES_ON), within_s=20
    ),
    "head-power": Fault(
        lambda lab, run: lab.hosts.power_off("h0"),
        "h0 (10.77.0.1): the head has not answered",
        ends=("h0 (10.77.0.1), port 6379: the head of the Ray cluster is lost", GOES_ON),
        within_s=70,
        mend=lambda lab: start_again(lab, "h0"),
        host="h1",
    ),
    "head-redis": Fault(kill_head, "h0 (10.77.0.1): the head has not answered", host="h1", kind="redis"),
    "head-redis-power": Fault(cut_heads_power, "h0 (10.77.0.1): the head has not answered", host="h1", kind="redis"),
    "job-redis-power": Fault(cut_heads_power, "", kind="jobs", submitted=True, more=submit_again),
    "announced": Fault(
        announce,
        "is announced to be lost",
        options=("--workers.failures_per_hour", "0"),
        kind="spare",
        more=lost_nothing,
    ),
    "disk": Fault(fill_disk, "", more=served_at_home),
    "disk-restart": Fault(
        fill_disk_and_kill,
        "",
        ends=(f"h1: the disk of {DISK}/ray/session", "is full", GOES_ON),
        within_s=400,
        mend=lambda lab: free(lab.hosts.disk("h1")),
    ),
    "disk-copy": Fault(
        fill_origins_copy,
        SILENT,
        options=("--workers.min_workers", "1", "--workers.wait_s", "60"),
        ends=("h0: the disk of", DISK, "is full", GOES_ON),
        mend=lambda lab: (free(lab.hosts.disk("h0")), start_again(lab, "h1"))[0],
    ),
    "disk-run": Fault(
        lambda lab, run: fill(lab.shared / "small"),
        "",
        ends=("h0: the disk of", "small", "is full", GOES_ON),
        within_s=120,
        mend=lambda lab: free(lab.shared / "small"),
        folder="small",
    ),
    "slow-host": Fault(slow_down, "rank", told_s=90.0),
    "slow-link": Fault(slow_link, "MB/s arrive at each rank", told_s=90.0),
}


@contextlib.contextmanager
def lab(kind: str, folder: Path) -> Iterator[Lab]:
    """Starts a lab. In the kinds "redis" and "jobs", the head has no worker and keeps its state in a Redis on h1; "jobs" also has a job server. In the kind "spare", the head has no worker either, and
    one of three other hosts is a spare for two workers."""
    (folder / "small").mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", f"size={RUN_DISK_BYTES}", "tmpfs", str(folder / "small"))
    try:
        with Hosts(4 if kind == "spare" else 2, shared=[folder, REPOSITORY], disk_bytes=DISK_BYTES) as hosts:
            head, other, environment = f"--temp-dir={DISK}/ray", "", list[str]()
            if kind in ("redis", "jobs"):
                redis = ["redis-server", "--port", str(REDIS_PORT), "--bind", "0.0.0.0", "--protected-mode", "no"]
                hosts.popen("h1", [*redis, "--dir", DISK], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                environment = [f"RAY_REDIS_ADDRESS={hosts.address('h1')}:{REDIS_PORT}"]
                head, other = f"{head} --num-cpus=0", "--num-cpus=2"
            resources, workers = [head, other], None
            if kind == "spare":
                resources, workers = [f"{head} --num-cpus=0", "", "", ""], 2
            yield Lab(
                hosts,
                folder,
                RayHosts(hosts, resources=resources, environment=environment, takes_jobs=kind == "jobs"),
                workers,
            )
    finally:
        call("umount", str(folder / "small"), check=False)


class Labs:
    """Runs one lab at a time and stores the losses of a run without faults. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder.resolve(), contextlib.ExitStack()
        self._kind: str | None = None
        self._lab: Lab | None = None

    def __enter__(self) -> "Labs":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the lab, so that the next trial begins with a new one."""
        self._kind = self._lab = None
        self._stack.close()

    def of(self, kind: str) -> tuple[Lab, list[float]]:
        folder = self._folder / kind
        if self._kind != kind:
            self.end()
            self._lab, self._kind = self._stack.enter_context(lab(kind, folder)), kind
        assert self._lab is not None
        basis = folder / "undisturbed.json"
        if not basis.exists():
            run = self._lab.train(f"undisturbed-{time.time_ns()}", host="h1" if kind in ("redis", "jobs") else "h0")
            assert run.end() == 0, run.text
            basis.write_text(json.dumps(run.losses))
        return self._lab, json.loads(basis.read_text())

    def try_one(self, name: str, turn: int) -> dict[str, Any]:
        """Tries one fault. Raises AssertionError if the result is not as promised."""
        try:
            return try_one(name, turn, *self.of(FAULTS[name].kind))
        except BaseException:
            self.end()
            raise


def try_one(name: str, turn: int, where: Lab, undisturbed: Sequence[float]) -> dict[str, Any]:
    """Tries one fault and returns the result. Raises AssertionError if the result is not as promised."""
    fault = FAULTS[name]
    run_name = f"{fault.folder}/{name}-{turn}-{time.time_ns() % 10**6}"
    run = (
        where.submit(Path(run_name).name) if fault.submitted else where.train(run_name, *fault.options, host=fault.host)
    )
    run.wait_for_epochs(STRIKES_AT)
    reached, begun = len(epochs(run.path)), time.monotonic()
    striking = threading.Thread(target=fault.strike, args=(where, run), daemon=True)
    striking.start()
    result: dict[str, Any] = {"fault": name, "turn": turn, "at_epoch": reached, "host": fault.host}
    status = run.end(fault.within_s)
    result["ends_s"] = round(time.monotonic() - begun, 1)
    striking.join(timeout=300)
    result["told_s"] = round(run.said_after(begun, fault.told), 1) if fault.told else None
    result["lines"], result["last"] = len(run.lines), run.lines[-1][1][:1000]
    result["told"] = [
        line[:300] for _, line in run.lines if " (10.77.0." in line or "MB/s" in line or "start again" in line
    ][:20]
    (where.shared / f"{name}-{turn}.log").write_text(
        "\n".join(f"{when - begun:9.1f} {line}" for when, line in run.lines)
    )
    fault.mend(where)
    if fault.submitted:
        assert status != 0, "the host of the driver had no loss"
        where.cluster.wait_for_nodes(len(where.hosts.names))
        fault.more(where, run)
    elif fault.ends is None:
        assert status == 0, run.text[-3000:]
        fault.more(where, run)
    else:
        assert status == 1, f"status {status}: {run.text[-3000:]}"
        assert run.lines[-1][1].startswith("error: "), run.text[-3000:]
        assert all(word in run.lines[-1][1] for word in fault.ends), run.lines[-1][1]
        where.cluster.wait_for_nodes(len(where.hosts.names))
        again = where.resume(run.path, host=fault.host)
        assert again.end() == 0, again.text[-3000:]
    assert run.losses == list(undisturbed), "other losses"
    if fault.told:
        assert result["told_s"] <= fault.told_s, f"told after {result['told_s']} s"
    assert len(run.lines) < MOST_LINES, f"a flood of {len(run.lines)} lines"
    where.cluster.wait_for_nodes(len(where.hosts.names))
    shutil.rmtree(run.path, ignore_errors=True)
    return result | {"ok": True}


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Makes the table. It has a row for each fault: in how many trials the result was as promised, and medians."""
    lines = ["| fault | as promised | told after, s | ends after, s | what the run does |", "|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        mine = [result for result in results if result["fault"] == name]
        good = [result for result in mine if result.get("ok")]
        if not mine:
            continue

        def middle(key: str, of: Sequence[dict[str, Any]] = good) -> str:
            values = [result[key] for result in of if result.get(key) is not None]
            return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "–"

        if fault.submitted:
            does = "ends with the driver's host, submitted again to equal losses"
        elif fault.ends is None:
            does = "goes on to equal losses"
        else:
            does = "ends with one line, resumed to equal losses"
        lines.append(f"| {name} | {len(good)} of {len(mine)} | {middle('told_s')} | {middle('ends_s')} | {does} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--again", action="store_true", help="also strikes that failed before")
    said = parser.parse_args()
    if why := why_not():
        sys.exit(why)
    end_on_signals()
    said.out.mkdir(parents=True, exist_ok=True)
    file = said.out / "results.jsonl"

    def kept() -> list[dict[str, Any]]:
        lines = file.read_text().splitlines() if file.exists() else []
        return list({(each["fault"], each["turn"]): each for each in map(json.loads, lines)}.values())

    def keep(result: dict[str, Any]) -> None:
        with file.open("a") as stream:
            stream.write(json.dumps(result) + "\n")
        (said.out / "results.md").write_text("\n".join(table(kept())) + "\n")

    done = {(each["fault"], each["turn"]) for each in kept() if each["ok"] or not said.again}
    by_kind = sorted(said.only, key=lambda name: FAULTS[name].kind)
    with Labs(said.out) as labs:
        for name, turn in ((name, turn) for turn in range(said.times) for name in by_kind if (name, turn) not in done):
            begun = time.monotonic()
            try:
                result = labs.try_one(name, turn)
            except (AssertionError, RuntimeError, ValueError) as error:
                result = {"fault": name, "turn": turn, "ok": False, "why": str(error)[-4000:]}
            keep(result)
            why = result.get("why", "as promised")[-1500:]
            print(f"{name} {turn}: {why} ({time.monotonic() - begun:.0f} s)", flush=True)
    print("\n".join(table(kept())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
