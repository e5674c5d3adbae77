"""Makes the meeting point at which the processes of a torch process group find each other.

torch's own store listens on all interfaces and answers everybody. Here the processes of a local Ray meet at a file that no other user can reach. The
processes of a cluster meet at a store that listens only on the address of rank 0's node.
"""

import socket
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
from ray.train.backend import BackendConfig
from ray.train.torch import TorchConfig
from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend
from ray.util import get_node_ip_address

from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S
from graphmill.cluster.process.leave_notice import take_notice

Point = str | tuple[str, int]
"""A file, or a store's host and port."""

_TIMEOUT = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
_opened: dict[Point, dist.Store] = {}  # stores that rank 0 has opened, until it meets the other ranks there


def meeting_point() -> Point:
    """Makes a new meeting point. Called by the process that will be rank 0."""
    host = get_node_ip_address()
    if ip_address(host).is_loopback:  # a loopback address means that all nodes of this Ray are on one machine
        return str(Path(tempfile.mkdtemp(prefix="meet-", dir=ray.get_runtime_context().get_temp_dir()), "store"))
    door = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    point = host, door.getsockname()[1]
    _opened[point] = dist.TCPStore(
        *point, is_master=True, wait_for_workers=False, timeout=_TIMEOUT, master_listen_fd=door.detach()
    )
    return point


def meet(point: Point, rank: int, num_ranks: int, backend: str) -> None:
    """Joins the process group at this point. A collective call."""
    store: dist.Store
    if isinstance(point, str):
        store = dist.FileStore(point, num_ranks)
    else:
        store = _opened[point] if point in _opened else dist.TCPStore(*point, is_master=False, timeout=_TIMEOUT)
        _opened.clear()  # a process that is not rank 0 may have made a meeting point too
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=_TIMEOUT)


@dataclass
class MeetingConfig(TorchConfig):
    """Lets Ray Train's workers meet at these meeting points, and take notice when they are asked to leave."""

    grace_s: float = 20.0

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _MeetingBackend


class _MeetingBackend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        backend = "nccl" if worker_group.get_resources_per_worker().get("GPU", 0) else "gloo"
        point, size = worker_group.execute_single(0, meeting_point), len(worker_group)
        worker_group.execute(_set_torch_distributed_env_vars)  # sets RANK, WORLD_SIZE …, for users' components
        joined = [worker_group.execute_single_async(rank, meet, point, rank, size, backend) for rank in range(size)]
        ray.get(joined, timeout=2 * COLLECTIVE_TIMEOUT_S)
        assert isinstance(backend_config, MeetingConfig)
        worker_group.execute(take_notice, backend_config.grace_s)
