"""One partitioned graph behind its servers, as data to train on; the servers themselves import no torch."""

from dataclasses import dataclass

import torch.distributed as dist

from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.serving.partition_server import PartitionServers, ServedFiles, connect_any
from graphmill.samplers.access.traffic import Traffic


class _RanksFiles:
    """This rank's share of the files to look at: those that it reads, and of the others every so many-th."""

    def __init__(self, servers: PartitionServers) -> None:
        self._files = ServedFiles(servers)

    def check_untouched(self) -> None:
        grouped = dist.is_initialized()
        self._files.check(dist.get_rank() if grouped else 0, dist.get_world_size() if grouped else 1)


@dataclass(frozen=True)
class ServedNodes:
    """Small, and safe to send to workers."""

    servers: PartitionServers

    def open(self) -> OpenNodes:
        files, traffic = _RanksFiles(self.servers), Traffic(len(self.servers.handles))
        return OpenNodes(connect_any(self.servers, traffic.watch), files, traffic)
