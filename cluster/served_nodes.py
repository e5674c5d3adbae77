"""One partitioned graph behind its servers, as data to train on; the servers themselves import no torch."""

from dataclasses import dataclass

from cluster.partition_server import PartitionServers, connect
from cluster.training_data import OpenNodes
from samplers.traffic import Traffic


@dataclass(frozen=True)
class ServedNodes:
    """Small, and safe to send to workers."""

    servers: PartitionServers

    def open(self) -> OpenNodes:
        stamps, traffic = self.servers.stamps.renewed(), Traffic(len(self.servers.handles))
        return OpenNodes(connect(self.servers, traffic.watch), stamps, traffic)
