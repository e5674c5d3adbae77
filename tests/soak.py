"""Trains for an hour and kills a process about every 30 s. At the end, every loss, score and weight must equal those of a run without kills.

    python -m tests.soak --folder runs/soak --epochs 2400 --every-s 30

Two runs of the job of tests/disturbed_job.py train at the same time. In one of them a random partition server or worker
is killed at random times. Every ten seconds it measures the memory of each kind of process. Only private memory that
the process has written counts. (Shared memory, such as program text, would begin to count when the other processes
end.) At the end it prints three checks, and exits with 1 if one fails: results are equal; memory has not grown beyond
its noise; no process, shared-memory segment or temporary file is left. FOLDER/soak.json has the figures. The tests do
not run it, because it takes an hour.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil

from tests.disturbed_job import Job, Outcome, epochs, starts

VICTIMS = ("PartitionServer", "RayTrainWorker")
# The watched kinds of processes; each is recognised by a part of its command line. A new process replaces a killed one,
# so the measured memory begins again each time.
KINDS = {
    "driver": "products_geco.py",
    "controller": "TrainController",
    "gcs": "gcs_server",
    "raylet": "raylet/raylet",
    "servers": "PartitionServer",
    "workers": "RayTrainWorker",
}
PERIOD_S = 10.0


def unique_bytes(job: Job) -> dict[str, int]:
    """For each kind of process, the total memory of its processes."""
    found: dict[str, int] = defaultdict(int)
    for process in [psutil.Process(job.popen.pid), *job.family()]:
        try:
            line = " ".join(process.cmdline())
            kind = next((kind for kind, piece in KINDS.items() if piece in line), None)
            if kind is not None:
                found[kind] += private_dirty(process.pid)
        except (psutil.Error, ProcessLookupError, FileNotFoundError):
            continue  # the process has just ended
    return found


def private_dirty(pid: int) -> int:
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(fields[fields.index("Private_Dirty:") + 1]) * 1024


def slope(minutes: np.ndarray, megabytes: np.ndarray) -> tuple[float, float]:
    """Fits a line to the second half of the measurements. Returns (slope in MB per hour, its standard error).

    The fit uses means of batches of values, because consecutive values are not independent.
    """
    half = len(minutes) // 2
    batches = [np.array_split(series[half:], 12) for series in (minutes, megabytes)]
    x, y = (np.array([part.mean() for part in parts]) for parts in batches)
    (rate, _), covariance = np.polyfit(x, y, 1, cov=True)
    return 60 * float(rate), 60 * float(covariance[0, 0] ** 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="new; runs, log and figures go there")
    parser.add_argument("--epochs", type=int, default=2400, help="of either run")
    parser.add_argument("--every-s", type=float, default=30.0, help="mean time between two kills")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of kills; the run then goes on to its end in peace"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    options = parser.parse_args()
    flags = (
        "--fit.epochs",
        str(options.epochs),
        "--workers.failures_per_hour",
        "100000",
        "--fit.checkpoint_every",
        "100000",
    )
    names, temporary = set(os.listdir("/dev/shm")), our_temporary()
    jobs = {}
    for name in ("undisturbed", "disturbed"):
        folder = options.folder / name
        folder.mkdir(parents=True)
        jobs[name] = Job(folder / "run", "--run.dir", str(folder / "run"), *flags, output=folder / "log")
    job, choose = jobs["disturbed"], random.Random(options.seed)
    job.wait_for_epochs(2)
    began = time.monotonic()
    kills: dict[str, int] = defaultdict(int)
    series: list[dict[str, float]] = []
    at_kill = 0  # number of epochs when a worker was last killed
    next_kill, next_look = began + choose.expovariate(1 / options.every_s), began
    while job.popen.poll() is None:
        now = time.monotonic()
        if now >= next_look:
            memory = {kind: value / 2**20 for kind, value in unique_bytes(job).items()}
            series.append({"minutes": (now - began) / 60, "epochs": len(epochs(job.run)), **memory})
            next_look += PERIOD_S
        if now >= next_kill and now < began + 60 * options.minutes:
            kind, done = choose.choice(VICTIMS), len(epochs(job.run))
            # Without progress between kills, the run would take them for a crash that repeats, and give up.
            if (victims := job.actors(kind)) and (kind != "RayTrainWorker" or done > at_kill):
                choose.choice(victims).kill()
                kills[kind] += 1
                at_kill = done if kind == "RayTrainWorker" else at_kill
            next_kill = now + choose.expovariate(1 / options.every_s)
        time.sleep(0.2)
    minutes = (time.monotonic() - began) / 60
    codes = {name: each.popen.wait(timeout=7200) for name, each in jobs.items()}
    figures = {
        "minutes": minutes,
        "epochs": options.epochs,
        "kills": kills,
        "starts": len(starts(job.run)),
        "codes": codes,
        "series": series,
    }
    (options.folder / "soak.json").write_text(json.dumps(figures) + "\n")
    held = report(options.folder, figures)
    deadline = time.monotonic() + 90  # Ray's agents take a while to notice the end of their raylet
    while (processes := ours(options.folder)) and time.monotonic() < deadline:
        time.sleep(1)
    left = {
        "processes": processes,
        "shared memory": sorted(set(os.listdir("/dev/shm")) - names),
        "temporary files": sorted(our_temporary() - temporary),
    }
    for what, items in left.items():
        print(f"{what} left: {items or 'none'}")
        held &= not items
    return 0 if held else 1


def report(folder: Path, figures: dict) -> bool:
    """Prints the results. Returns True if all checks pass."""
    kills = ", ".join(f"{count} {kind}" for kind, count in figures["kills"].items())
    print(
        f"{figures['minutes']:.1f} minutes, {figures['epochs']} epochs; killed: {kills}; workers started {figures['starts']} times"
    )
    codes = set(figures["codes"].values())
    # Status 1 is allowed, because such a small model may be worse than its baselines.
    held = len(codes) == 1 and codes <= {0, 1}
    print(f"exit statuses: {figures['codes']}")
    if held:
        same = Outcome.of(folder / "disturbed" / "run") == Outcome.of(folder / "undisturbed" / "run")
        print(f"epochs, scores and best weights equal the undisturbed run's: {same}")
        held = same
    series = figures["series"]
    print("\n| process | median MB | MB/hour, second half | ± |\n|---|---|---|---|")
    for kind in KINDS:
        points = [(point["minutes"], point[kind]) for point in series if kind in point]
        if len(points) < 48:
            print(f"| {kind} | {len(points)} looks: too few | | |")
            continue
        minutes, megabytes = np.array(points).T
        rate, error = slope(minutes, megabytes)
        flat = rate <= 2.5 * error  # one-sided test with 12 batches: p is about 0.01
        held &= flat
        print(f"| {kind} | {np.median(megabytes):.1f} | {rate:+.2f}{'' if flat else ' GROWS'} | {error:.2f} |")
    return held


def our_temporary() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if re.match(r"graphmill|tmp.*graphmill", name)}


def ours(folder: Path) -> list[int]:
    """The processes, except this one, whose command line contains the folder."""
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if p.pid != os.getpid() and str(folder) in " ".join(p.info["cmdline"] or [])]


if __name__ == "__main__":
    sys.exit(main())
