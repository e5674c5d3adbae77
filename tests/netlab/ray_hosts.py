"""Runs Ray on emulated hosts: a head on h0, and a node on each other host. A node that ends is started again, as a service would do."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.netlab.hosts import Hosts

REPOSITORY = Path(__file__).resolve().parents[2]
HEAD_PORT = 6379
START_S = 400.0
OBJECT_STORE_BYTES = 100 * 2**20
# One process polls until all nodes have joined or the head does not answer. A new process per poll would take seconds to start.
COUNT_NODES = """
import sys, time
import ray
address, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address, log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + seconds
while (alive := sum(node["Alive"] for node in ray.nodes())) != count and time.monotonic() < deadline:
    time.sleep(0.2)
print(alive)
"""


class RayHosts:
    """A Ray cluster with one CPU on each host. `cpus` gives other numbers."""

    def __init__(
        self,
        hosts: Hosts,
        cpus: int = 1,
        resources: Sequence[str] = (),
        environment: Sequence[str] = (),
        *,
        takes_jobs: bool = False,
    ) -> None:
        """`resources`: additional arguments of `ray start`, one for each host.

        `environment`: variables NAME=VALUE for all nodes and jobs. `takes_jobs`: make `ray job submit` work on h0.
        """
        self._more_environment = environment
        self.hosts, self.address = hosts, f"{hosts.address('h0')}:{HEAD_PORT}"
        self._dashboard = "true" if takes_jobs else "false"
        self._cpus, self._more = cpus, list(resources)
        self._ray = str(Path(sys.executable).with_name("ray"))
        self._token = "emulated-hosts-have-a-token-of-32-bytes-or-more"

    def start(self) -> None:
        """Starts all nodes and waits until they have joined."""
        for host in self.hosts.names:
            self.start_node(host)
        self.wait_for_nodes(len(self.hosts.names))

    def start_node(self, host: str) -> None:
        what = (
            ["--head", f"--port={HEAD_PORT}", f"--include-dashboard={self._dashboard}"]
            if host == "h0"
            else [f"--address={self.address}"]
        )
        more = self._more[self.hosts.names.index(host)].split() if self._more else []
        node = [
            *(
                self._ray,
                "start",
                *what,
                "--block",
                "--disable-usage-stats",
                f"--num-cpus={self._cpus}",
                "--num-gpus=0",
            ),
            *(f"--node-ip-address={self.hosts.address(host)}", f"--object-store-memory={OBJECT_STORE_BYTES}", *more),
        ]
        # If the cluster has given up a node, the node ends itself. The host's service must start it again.
        again = f"while :; do {shlex.join(node)}; sleep 1; done"
        log = self.hosts.disk(host) / "ray.log"
        with log.open("ab") as sink:
            self.hosts.popen(
                host,
                ["env", *self.environment(), "sh", "-c", again],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    def wait_for_nodes(self, count: int, timeout_s: float = START_S) -> None:
        deadline, said = time.monotonic() + timeout_s, ""
        while said.strip() != str(count):
            left_s = deadline - time.monotonic()
            if left_s < 0:
                raise RuntimeError(f"expected {count} nodes within {timeout_s:g} s, found {said or 'none'}")
            look = [sys.executable, "-c", COUNT_NODES, self.address, str(count), str(left_s)]
            said = self.run("h0", look, capture_output=True, text=True).stdout

    def environment(self) -> list[str]:
        """The environment variables of all nodes and jobs, as NAME=VALUE."""
        return [
            *(
                "RAY_AUTH_MODE=token",
                f"RAY_AUTH_TOKEN={self._token}",
                "RAY_USAGE_STATS_ENABLED=0",
                "RAY_worker_niceness=0",
            ),
            *(
                f"PYTHONPATH={REPOSITORY}",
                f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
                "OMP_NUM_THREADS=1",
            ),
            *self._more_environment,
        ]

    def run(self, host: str, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Like subprocess.run, but on a host and with the token of this Ray."""
        return self.hosts.run(host, ["env", *self.environment(), *command], **options)

    def popen(self, host: str, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Like subprocess.Popen, but on a host and with the token of this Ray."""
        return self.hosts.popen(host, ["env", *self.environment(), *command], **options)

    def job(self, *words: str) -> list[str]:
        """The command line that runs one of our jobs on this cluster."""
        name, *options = words
        return [sys.executable, str(REPOSITORY / "jobs" / f"{name}.py"), *options, "--ray.address", self.address]
