"""Checks before a run whether this machine, or this cluster, is fit for it.

    python jobs/doctor.py                                          this machine, and whether a local Ray starts and answers
    python jobs/doctor.py --graph graphs/products                  also every checksum of a stored graph or set of graphs
    python jobs/doctor.py --ray.address auto --graph s3://b/g      also all nodes of a cluster: versions, clocks, the graph
    python jobs/doctor.py --store s3://bucket/runs                 also whether this URL can be written
    python jobs/doctor.py --compile --ray.check no                 also compiles the loops of usual graphs, for an image's build
    python jobs/doctor.py --health                                 only memory, and whether the Ray node of this container answers: a health check

Prints one line per check: ok, warn (a run works, but slower or at a risk) or fail, and what to do. Exit status 0 unless a check fails. Duration: the start of
Ray plus one read of the graph (--quick skips the read). Changes nothing and leaves
no files, except the compiled loops of --compile in the user's cache.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphmill.cluster.options import MIN_OBJECT_STORE_GB, SessionOptions
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Positive, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.jobs.plan.machine_checks import Finding

_CLOCK_S = 1.0


@dataclass(frozen=True)
class RayCheckOptions:
    """The Ray session that a job would use."""

    check: bool = True
    """Start Ray, or connect to a running Ray."""
    address: str | None = None
    """A running Ray cluster (host:port or auto). The default starts a local Ray and stops it again."""
    object_store_gb: float = SessionOptions.object_store_gb
    """Size of the object store of a local Ray, as for a job."""

    def __post_init__(self) -> None:
        SessionOptions(self.address, object_store_gb=self.object_store_gb)  # checks them


@dataclass(frozen=True)
class DoctorConfig:
    """Check a machine or a cluster before a run."""

    graph: str | None = None
    """A stored graph or set of graphs to open; every checksum is verified."""
    quick: bool = False
    """Open the graph, but do not read all of it."""
    store: str | None = None
    """A URL or folder to check for write access, such as the folder of predictions."""
    compile: bool = False
    """Compile the loops of usual graphs ahead and keep them in this user's cache, for the build of an image or a first job that starts at once."""
    health: bool = False
    """Check only what a container's health check asks: memory, shared memory, and whether the Ray node of this container, if there is one, answers."""
    run_dir: Path = Path("runs")
    """Folder of runs."""
    timeout_s: Positive = 60.0
    """Maximum wait for the answers of all nodes of the cluster."""
    ray: RayCheckOptions = field(default_factory=RayCheckOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.health:
            alone = DoctorConfig(ray=RayCheckOptions(object_store_gb=self.ray.object_store_gb))
            if replace(self, health=False) != alone:
                raise ConfigError(
                    "health: expected no option but --ray.object_store_gb, got others; leave them or --health out"
                )


def check_all(config: DoctorConfig) -> "Iterator[Finding]":
    """Yields each finding as soon as it is known."""
    from graphmill.jobs.plan import machine_checks as machine

    if config.health:
        yield from machine.check_memory(int(config.ray.object_store_gb * 2**30))
        yield from machine.check_ray_node()
        return
    yield from machine.check_versions()
    yield from machine.check_cores()
    yield from machine.check_memory(int(config.ray.object_store_gb * 2**30))
    yield from machine.check_folder("run directory", config.run_dir)
    yield from machine.check_open_files()
    yield from machine.check_loopback()
    yield from check_token()
    yield from machine.check_gpu()
    if config.store is not None:
        yield from machine.check_store(config.store)
    if config.graph is not None:
        yield from machine.check_graph(config.graph, config.quick)
    if config.compile:
        yield from machine.make_loops()
    if config.ray.check:
        yield from check_ray(config)


def check_token() -> "Iterator[Finding]":
    """Checks that no other user can read or replace the token with which this user joins clusters. A local Ray makes its own token."""
    from graphmill.cluster.ray.session import token_file
    from graphmill.core.files.private import check_private
    from graphmill.jobs.plan.machine_checks import Finding

    if (token := token_file()) is None:
        yield Finding("token", "ok", "no file with a cluster's token; a local Ray makes one for itself")
        return
    try:
        check_private(token)
    except ConfigError as error:
        yield Finding("token", "fail", f"{error}; who has read the token can run commands as you: make a new one")
        return
    yield Finding("token", "ok", f"{token} is yours alone")


def check_ray(config: DoctorConfig) -> "Iterator[Finding]":
    """Checks that Ray starts or answers, and reports each of its nodes."""
    import time

    import psutil

    from graphmill.cluster.ray.node_checks import ask_nodes, local_versions, open_beyond_loopback
    from graphmill.cluster.ray.session import ray_session
    from graphmill.jobs.plan.machine_checks import Finding
    from graphmill.storage.filesystem.urls import absolute_url

    began = time.perf_counter()
    # A small object store is enough for this check; the size of a job's store was checked before.
    options = SessionOptions(config.ray.address, object_store_gb=MIN_OBJECT_STORE_GB)
    try:
        with ray_session(options) as session:
            started = time.perf_counter() - began
            # A local Ray sees the same path as this process, which was checked before.
            path = None if session.is_ours or config.graph is None else absolute_url(config.graph)
            reports = ask_nodes(path, config.timeout_s)
            seconds = time.perf_counter() - began
            elsewhere = open_beyond_loopback(psutil.Process()) if session.is_ours else []
    except ConfigError as error:
        yield Finding("ray", "fail", str(error))
        return
    reached = "started" if session.is_ours else f"cluster at {session.address} reached"
    yield Finding(
        "ray", "ok", f"{reached} in {started:.1f} s, {len(reports)} of its nodes answered after {seconds:.1f} s"
    )
    if elsewhere:
        yield Finding(
            "ports", "warn", f"other machines can connect to {', '.join(elsewhere)}; close these by a firewall"
        )
    elif session.is_ours:
        yield Finding("ports", "ok", "all sockets of a local Ray listen on the loopback address")
    here = local_versions()
    for report in reports:
        problems = [] if report.error is None else [f"no answer: {report.error}"]
        if report.error is None:
            problems += [
                f"{name} {report.versions.get(name)}, here {mine}: install the same"
                for name, mine in here.items()
                if report.versions.get(name) != mine
            ]
            problems += [report.path_problem] if report.path_problem else []
        if problems:
            yield Finding("node", "fail", f"{report.address}: {'; '.join(problems)}")
            continue
        clock = f"{report.clock_s:+.3f} s ± {report.round_trip_s / 2:.3f}"
        described = f"{report.address}: {report.free_memory_bytes / 2**30:.1f} GiB free, clock {clock}"
        late = abs(report.clock_s) > max(_CLOCK_S, report.round_trip_s)
        yield Finding("node", "warn" if late else "ok", described + ("; synchronise its clock (NTP)" if late else ""))


def main() -> int:
    config = parse(DoctorConfig, __doc__)
    counts = {"ok": 0, "warn": 0, "fail": 0}
    for finding in check_all(config):
        counts[finding.verdict] += 1
        # One line for each finding, even if a message has several lines.
        print(f"{finding.verdict:<4}  {finding.name:<13}  {' '.join(finding.message.split())}", flush=True)
    print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed", file=sys.stderr)
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    run(main)
