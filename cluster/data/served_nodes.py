"""Makes one partitioned graph, which servers hold, the training data of a run. The servers themselves do not import torch."""

from dataclasses import dataclass

import torch.distributed as dist

from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.serving.partition_server import PartitionServers, ServedFiles, connect_any
from graphmill.samplers.access.traffic import Traffic


class _RanksFiles:
    """Chooses the files that this rank checks: the files that it reads, and every `world_size`-th of the remaining files."""

    def __init__(self, servers: PartitionServers) -> None:
        self._files = ServedFiles(servers)

    def check_untouched(self) -> None:
        grouped = dist.is_initialized()
        self._files.check(dist.get_rank() if grouped else 0, dist.get_world_size() if grouped else 1)


@dataclass(frozen=True)
class ServedNodes:
    """Handles of a graph's servers. The object is small and can be sent to workers."""

    servers: PartitionServers

    def open(self) -> OpenNodes:
        files, traffic = _RanksFiles(self.servers), Traffic(self.servers.num_partitions)
        return OpenNodes(connect_any(self.servers, traffic.watch), files, traffic)
