"""Whether losses and weights depend on the number of workers: `python -m tests.netlab.worker_counts --out runs/worker-counts`, about 15 minutes.

Products_geco on four emulated hosts, a partition on each host's own disk, four micro-batches a step: on 1, 2, 3 and 4 workers; with a worker killed; interrupted
and resumed on other numbers of workers; and elastic, with a host that loses power and returns. Prints a table, kept as results.md under --out, and fails
unless all losses and final weights are equal, bit for bit.
"""

import argparse
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobs.bench.results import keep, machine, table
from tests.disturbed_job import events
from tests.netlab.faults import STRIKES_AT, start_again, worker_on
from tests.netlab.hosts import Hosts, end_on_signals, why_not
from tests.netlab.lab import Lab, Running

MICRO_BATCHES = ("--fit.micro_batches", "4")
SHORT, LONG = ("--fit.epochs", "40"), ("--fit.epochs", "300")


def plain(workers: int, *epochs: str) -> Callable[[Lab], Running]:
    def run(lab: Lab) -> Running:
        job = lab.train(f"plain-{workers}-{epochs[-1]}", *MICRO_BATCHES, *epochs, "--workers", str(workers))
        assert job.end() == 0, job.text
        return job

    return run


def killed(lab: Lab) -> Running:
    job = lab.train("killed", *MICRO_BATCHES, *SHORT, "--workers", "4")
    job.wait_for_epochs(STRIKES_AT)
    os.kill(worker_on(lab, "h1"), signal.SIGKILL)
    assert job.end() == 0, job.text
    return job


def resumed(before: int, after: int) -> Callable[[Lab], Running]:
    def run(lab: Lab) -> Running:
        job = lab.train(f"resumed-{before}-{after}", *MICRO_BATCHES, *SHORT, "--workers", str(before))
        job.wait_for_epochs(STRIKES_AT)
        job.interrupt()
        assert job.end() != 0, job.text
        again = lab.resume(job.path, "--workers", str(after))
        assert again.end() == 0, again.text
        return again

    return run


def elastic(lab: Lab) -> Running:
    """4, then 3, then 4 workers."""
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
    """The numbers of workers that its parts had."""
    return [event["workers"] for event in events(run) if event["kind"] == "start"]


def weights(run: Path) -> str:
    """A digest of the final ones, which are those of the newest checkpoint."""
    newest = max(run.rglob("model.safetensors"), key=lambda path: (path.parent.name != "best", path.stat().st_mtime))
    return hashlib.blake2b(newest.read_bytes(), digest_size=8).hexdigest()


CELLS: dict[str, tuple[Callable[[Lab], Running], str]] = {
    **{f"{workers} workers": (plain(workers, *SHORT), "short") for workers in (1, 2, 3, 4)},
    "4 workers, one killed": (killed, "short"),
    "4 workers, interrupted, resumed on 2": (resumed(4, 2), "short"),
    "2 workers, interrupted, resumed on 3": (resumed(2, 3), "short"),
    "4 workers, longer": (plain(4, *LONG), "long"),
    "elastic, 4 to 3 to 4": (elastic, "long"),
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
    rows, seen = [], dict[str, set[str]]()
    with Hosts(4, shared=[shared]) as hosts:
        lab = Lab(hosts, shared)
        for name in said.only:
            run, kind = CELLS[name]
            begun = time.monotonic()
            job = run(lab)
            digest = weights(job.path)
            seen.setdefault(kind, set()).add(f"{job.losses} {digest}")
            rows.append(
                (name, len(job.losses), str(counts(job.path)), job.losses[-1], digest, time.monotonic() - begun)
            )
            print(rows[-1], flush=True)
    unequal = [kind for kind, each in seen.items() if len(each) > 1]
    columns = {"run": "", "epochs": "", "workers": "", "last loss": "", "weights": "", "s": ".0f"}
    said_so = f"differ: {', '.join(unequal)}" if unequal else "all losses and final weights are equal, bit for bit"
    text = [machine(), "", *table(columns, rows), "", said_so]
    keep(said.out, vars(said), "\n".join(text), rows=rows)
    print("\n".join(text))
    return int(bool(unequal))


if __name__ == "__main__":
    sys.exit(main())
