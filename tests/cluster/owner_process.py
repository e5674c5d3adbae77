"""Runs an owner of an embedding table in a separate process, without Ray. The process reports its memory.

The process (`python -m tests.cluster.owner_process WORDS`) prints its endpoint. Then it answers each line that it reads with one line.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphmill.cluster.embeddings.rows import TableConfig
from graphmill.cluster.transport.connection import Endpoint
from graphmill.cluster.transport.remote_owner import RemoteOwner

ROOT = Path(__file__).resolve().parents[2]


class OwnerProcess:
    """The test's connection to the process of an owner."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        host, port, token = self._line()
        self._endpoint = Endpoint(host, port, bytes.fromhex(token))

    def open(self) -> RemoteOwner:
        """Returns a client of the owner for one worker, with connections of this worker only."""
        return RemoteOwner(lambda _: self._endpoint, "the owner", 60.0)

    def peak_bytes(self) -> int:
        """The largest growth of the process's resident memory since it began to answer requests."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def owner_process(config: TableConfig, number: int, num_owners: int) -> Iterator[OwnerProcess]:
    """Starts owner `number` of a table. At the end of the `with` block its process ends."""
    words = json.dumps([asdict(config), number, num_owners])
    command = [sys.executable, "-m", "tests.cluster.owner_process", words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(600, process.kill)  # also ends a blocked read of its output
        watchdog.start()
        try:
            yield OwnerProcess(process)
        finally:
            watchdog.cancel()
            process.kill()


def main() -> None:
    from graphmill.cluster.embeddings.server import TableServer
    from graphmill.cluster.options import ServerOptions
    from graphmill.core.process_memory import own_bytes
    from graphmill.jobs.machine.memory_check import reset_peak

    config, number, num_owners = json.loads(sys.argv[1])
    endpoint = TableServer(TableConfig(**config), number, num_owners, ServerOptions()).endpoint()
    reset_peak()
    before = own_bytes("VmRSS")
    print(json.dumps([endpoint.host, endpoint.port, endpoint.token.hex()]), flush=True)
    for _ in sys.stdin:
        print(own_bytes("VmHWM") - before, flush=True)


if __name__ == "__main__":
    main()
