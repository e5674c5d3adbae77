"""Runs each owner of an embedding table in a Ray actor. The actor returns the endpoint of its server. If the actor dies, Ray restarts it, on another host if
necessary.

Rows are in memory only. The workers send the missing requests to a restarted owner (`graphmill.cluster.embeddings.client`).
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

_MAPPED_BYTES = 1 << 17  # freed arrays of at least this size go back to the system; smaller arrays are reused
# Largest number of requests at the same time. It is high, because a waiting request must not block the gradients for which it waits
_AT_ONCE = 1 << 12


class TableServer:
    """The Ray actor that holds one owner and its server."""

    def __init__(self, config: TableConfig, number: int, num_owners: int, options: ServerOptions) -> None:
        return_freed_blocks(_MAPPED_BYTES)
        share_heap()
        self._owner, self._options = TableOwner(config, number, num_owners), options
        self._server: MessageServer | None = None

    def pid(self) -> int:
        """Returns the process id of the owner's process."""
        return os.getpid()

    def endpoint(self) -> Endpoint:
        """Returns the server's endpoint. The first call starts the server."""
        if self._server is None:
            host, options = get_node_ip_address(), self._options
            self._server = MessageServer(
                self._owner.answer, host, options.ports, _AT_ONCE, ArrayPool(0), tls=options.tls
            )
        return self._server.endpoint


@dataclass(frozen=True)
class ServedOwners:
    """Handles of all owners. The object is small and can be sent to workers."""

    handles: tuple[Any, ...]
    timeout_s: float
    may_die_alone = True

    def open(self, config: TableConfig) -> Sequence[AsksOwner]:
        return [remote_owner(handle, _name(number), self.timeout_s) for number, handle in enumerate(self.handles)]


def _name(number: int) -> str:
    return f"owner {number} of the embeddings"


@contextmanager
def served_owners(spec: TableSpec, num_positions: int, servers: ServerOptions) -> Iterator[ServedOwners]:
    """Starts the owners of a table, spread over the live hosts, and ends them after the block. Raises DeadlineError if an owner does not start in time."""
    hosts, config = live_hosts(), spec.config(num_positions)
    num_owners = spec.options.owners or len(hosts)
    # The actor reserves no CPU but one byte of memory, like a partition server, because Ray puts an actor that reserves nothing on a random host.
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
