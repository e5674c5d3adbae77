"""One Ray actor per owner of an embedding table: it says where its server is, and Ray restarts it, on another host where its own is gone.

All that it holds is in its memory: a restarted one is sent by the workers what it lacks (`graphmill.cluster.embeddings.client`).
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

_MAPPED_BYTES = 1 << 17  # arrays of gradients and rows; what is smaller is used again
_AT_ONCE = 1 << 12  # requests: those that wait for others' gradients must not hold these up


class TableServer:
    """The actor."""

    def __init__(self, config: TableConfig, number: int, num_owners: int, options: ServerOptions) -> None:
        return_freed_blocks(_MAPPED_BYTES)
        share_heap()
        self._owner, self._options = TableOwner(config, number, num_owners), options
        self._server: MessageServer | None = None

    def pid(self) -> int:
        """Of the owner's process."""
        return os.getpid()

    def endpoint(self) -> Endpoint:
        """Where to ask."""
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
    """The owners of a table, spread over the hosts of now; they end with the block. Raises DeadlineError where one does not start in time."""
    hosts, config = live_hosts(), spec.config(num_positions)
    num_owners = spec.options.owners or len(hosts)
    # As partition servers: no CPU, and a byte, since Ray places an actor that reserves nothing at random.
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
