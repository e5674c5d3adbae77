"""One Ray actor per owner of an embedding table: it gives its server's endpoint, and Ray restarts it, on another host if its own is gone.

Rows are in memory only: workers send a restarted owner what it lacks (`graphmill.cluster.embeddings.client`).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import get_node_ip_address

from graphmill.cluster.embeddings.client import AsksOwner
from graphmill.cluster.embeddings.embeddings import TableSpec
from graphmill.cluster.embeddings.owner import TableOwner
from graphmill.cluster.embeddings.rows import TableConfig
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.process.answers import answer
from graphmill.cluster.process.malloc_trim import return_freed_blocks, share_heap
from graphmill.cluster.serving.partition_server import remote_owner
from graphmill.cluster.serving.server_placement import live_hosts, on_host
from graphmill.cluster.transport.connection import Endpoint
from graphmill.cluster.transport.message_server import MessageServer
from graphmill.samplers.access.array_pool import ArrayPool

_MAPPED_BYTES = 1 << 17  # freed arrays from this size on go back to the system; smaller ones are reused
_AT_ONCE = 1 << 12  # requests: waiting ones must not hold up the gradients that they wait for


class TableServer:
    """The actor."""

    def __init__(self, config: TableConfig, number: int, num_owners: int, options: ServerOptions) -> None:
        return_freed_blocks(_MAPPED_BYTES)
        share_heap()
        self._owner, self._options = TableOwner(config, number, num_owners), options
        self._server: MessageServer | None = None

    def pid(self) -> int:
        """The pid of the owner's process."""
        return os.getpid()

    def endpoint(self) -> Endpoint:
        """The server's endpoint; the first call starts the server."""
        if self._server is None:
            host, options = get_node_ip_address(), self._options
            self._server = MessageServer(
                self._owner.answer, host, options.ports, _AT_ONCE, ArrayPool(0), tls=options.tls
            )
        return self._server.endpoint


@dataclass(frozen=True)
class ServedOwners:
    """Handles of all owners; small, and safe to send to workers."""

    handles: tuple[Any, ...]
    timeout_s: float
    may_die_alone = True

    def open(self, config: TableConfig) -> Sequence[AsksOwner]:
        return [remote_owner(handle, _name(number), self.timeout_s) for number, handle in enumerate(self.handles)]


def _name(number: int) -> str:
    return f"owner {number} of the embeddings"


@contextmanager
def served_owners(spec: TableSpec, num_positions: int, servers: ServerOptions) -> Iterator[ServedOwners]:
    """The owners of a table, spread over the live hosts; they end with the block. Raises DeadlineError if one does not start in time."""
    hosts, config = live_hosts(), spec.config(num_positions)
    num_owners = spec.options.owners or len(hosts)
    # Like partition servers: no CPU, and a byte of memory, since Ray places an actor that reserves nothing at random.
    actor: Any = ray.remote(num_cpus=0, memory=1, max_restarts=-1, max_task_retries=-1)(TableServer)
    handles: list[Any] = []
    try:
        for number in range(num_owners):
            where = on_host(hosts[number % len(hosts)], or_elsewhere=True)
            handles.append(actor.options(scheduling_strategy=where).remote(config, number, num_owners, servers))
        started = [handle.endpoint.remote() for handle in handles]
        for number, reference in enumerate(started):
            answer(reference, _name(number), servers.start_timeout_s, "raise --servers.start_timeout_s")
        yield ServedOwners(tuple(handles), servers.timeout_s)
    finally:
        for handle in handles:
            ray.kill(handle, no_restart=True)
