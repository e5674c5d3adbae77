"""Checks that losses and weights depend neither on the number of workers nor on rows by plan.

Command: `python -m tests.netlab.worker_counts --out runs/worker-counts`. It takes about 25 minutes.

Products_geco runs on four emulated hosts. Each host has a partition on its disk; a step has four micro-batches. These
runs are made: with 1, 2, 3 and 4 workers; with a worker that is killed; with an interruption and a resume with another
number of workers; and with an elastic number of workers, while a host loses power and returns. Then come runs with rows
by plan and room for a fifth of all rows: with 1, 2 and 4 workers, with a worker that is killed, and with an
interruption within an epoch. The command prints a table and writes it to results.md under --out. It fails unless all
losses and final weights are equal, bit for bit, and the runs by plan receive fewer bytes.
"""

import argparse
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from graphmill.jobs.bench.results import keep, machine, table
from tests.disturbed_job import epochs, events
from tests.netlab.faults import STRIKES_AT, start_again, worker_on
from tests.netlab.hosts import Hosts, end_on_signals, why_not
from tests.netlab.lab import Lab, Running

MICRO_BATCHES = ("--fit.micro_batches", "4")
SHORT, LONG = ("--fit.epochs", "40"), ("--fit.epochs", "300")
STEPS = (*SHORT, "--sampler.batch_size", "4")  # seven steps in an epoch instead of two
PLANNED = ("--loader.cache_bytes", "125000")  # a fifth of 1,500 rows; a row of 100 float32 takes 417 bytes


def plain(workers: int, *options: str) -> Callable[[Lab], Running]:
    def run(lab: Lab) -> Running:
        name = "-".join(["plain", str(workers), *options[1::2]])
        job = lab.train(name, *MICRO_BATCHES, *options, "--workers", str(workers))
        assert job.end() == 0, job.text
        return job

    return run


def killed(*options: str) -> Callable[[Lab], Running]:
    def run(lab: Lab) -> Running:
        name = "-".join(["killed", *options[1::2]])
        job = lab.train(name, *MICRO_BATCHES, *SHORT, *options, "--workers", "4")
        job.wait_for_epochs(STRIKES_AT)
        os.kill(worker_on(lab, "h1"), signal.SIGKILL)
        assert job.end() == 0, job.text
        return job

    return run


def resumed(before: int, after: int) -> Callable[[Lab], Running]:
    def run(lab: Lab) -> Running:
        job = lab.train(f"resumed-{before}-{after}", *MICRO_BATCHES, *SHORT, "--workers", str(before))
        job.wait_for_epochs(STRIKES_AT)
        interrupt(job)
        again = lab.resume(job.path, "--workers", str(after))
        assert again.end() == 0, again.text
        return again

    return run


def resumed_within_an_epoch(before: int, after: int, *options: str) -> Callable[[Lab], Running]:
    """Interrupts and resumes a run until an interruption is within an epoch."""

    def run(lab: Lab) -> Running:
        job = lab.train(f"within-{before}-{after}", *MICRO_BATCHES, *STEPS, *options, "--workers", str(before))
        job.wait_for_epochs(STRIKES_AT)
        interrupt(job)
        while "-step-" not in newest(job.path).name:
            job = lab.resume(job.path)
            job.wait_for_epochs(len(epochs(job.path)) + 2)
            interrupt(job)
        again = lab.resume(job.path, "--workers", str(after))
        assert again.end() == 0, again.text
        return again

    return run


def interrupt(job: Running) -> None:
    job.interrupt()
    assert job.end() != 0, job.text


def elastic(lab: Lab) -> Running:
    """Runs with 4 workers, then 3 (after a host has lost power), then 4 again."""
    job = lab.train("elastic", *MICRO_BATCHES, *LONG, "--workers", "4", "--workers.min_workers", "3")
    job.wait_for_epochs(STRIKES_AT)
    lab.hosts.power_off("h3")
    deadline = time.monotonic() + 300
    while counts(job.path)[-1] == 4:
        assert time.monotonic() < deadline, job.text
        time.sleep(0.5)
    start_again(lab, "h3")
    assert job.end() == 0, job.text
    assert counts(job.path)[-1] == 4, f"it ended on {counts(job.path)} workers: {job.text}"
    return job


def counts(run: Path) -> list[int]:
    """The number of workers after each start of the run."""
    return [event["workers"] for event in events(run) if event["kind"] == "start"]


def newest(run: Path) -> Path:
    """The folder of a run's newest checkpoint."""
    found = max(run.rglob("model.safetensors"), key=lambda path: (path.parent.name != "best", path.stat().st_mtime))
    return found.parent


def weights(run: Path) -> str:
    """A digest of the final weights, which are read from the newest checkpoint."""
    return hashlib.blake2b((newest(run) / "model.safetensors").read_bytes(), digest_size=8).hexdigest()


def received(run: Path) -> float:
    """The size of all replies that the workers received, in MB."""
    return sum(sum(event["received_bytes"]) for event in events(run) if event["kind"] == "traffic") / 1e6


CELLS: dict[str, tuple[Callable[[Lab], Running], str]] = {
    **{f"{workers} workers": (plain(workers, *SHORT), "short") for workers in (1, 2, 3, 4)},
    "4 workers, one killed": (killed(), "short"),
    "4 workers, interrupted, resumed on 2": (resumed(4, 2), "short"),
    "2 workers, interrupted, resumed on 3": (resumed(2, 3), "short"),
    "4 workers, longer": (plain(4, *LONG), "long"),
    "elastic, 4 to 3 to 4": (elastic, "long"),
    **{f"{workers} workers, by plan": (plain(workers, *SHORT, *PLANNED), "short") for workers in (1, 2, 4)},
    "4 workers, by plan, one killed": (killed(*PLANNED), "short"),
    "2 workers, small batches": (plain(2, *STEPS), "steps"),
    "4 workers, small batches, by plan": (plain(4, *STEPS, *PLANNED), "steps"),
    "4 workers, small batches, by plan, interrupted within an epoch, resumed on 2": (
        resumed_within_an_epoch(4, 2, *PLANNED),
        "steps",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/worker-counts"))
    parser.add_argument("--only", nargs="+", choices=list(CELLS), default=list(CELLS))
    said = parser.parse_args()
    end_on_signals()
    if why := why_not():
        sys.exit(why)
    shared = (said.out / f"files-{time.time_ns()}").resolve()
    shared.mkdir(parents=True)
    rows, seen, megabytes = [], dict[str, set[str]](), dict[str, float]()
    with Hosts(4, shared=[shared]) as hosts:
        lab = Lab(hosts, shared)
        for name in said.only:
            run, kind = CELLS[name]
            begun = time.monotonic()
            job = run(lab)
            digest = weights(job.path)
            seen.setdefault(kind, set()).add(f"{job.losses} {digest}")
            megabytes[name] = received(job.path)
            what = (len(job.losses), str(counts(job.path)), job.losses[-1], digest, megabytes[name])
            rows.append((name, *what, time.monotonic() - begun))
            print(rows[-1], flush=True)
    unequal = [kind for kind, each in seen.items() if len(each) > 1]
    columns = {"run": "", "epochs": "", "workers": "", "last loss": "", "weights": "", "MB received": ".1f", "s": ".0f"}
    said_so = f"differ: {', '.join(unequal)}" if unequal else "all losses and final weights are equal, bit for bit"
    for name in megabytes.keys() & {f"{planned}, by plan" for planned in megabytes}:
        without = megabytes[name.removesuffix(", by plan")]
        assert megabytes[name] < without, f"{name}: {megabytes[name]} MB received, {without} without a plan"
    text = [machine(), "", *table(columns, rows), "", said_so]
    keep(said.out, vars(said), "\n".join(text), rows=rows)
    print("\n".join(text))
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
