"""Two real processes form a group through a store that listens on only one address, as on a cluster."""

import socket
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from graphmill.cluster.ray import process_group
from graphmill.cluster.ray.process_group import meet, meeting_point
from tests.forked_ranks import run_ranks
from tests.waiting import wait_until


def own_address() -> str:
    """An address of this machine other than loopback."""
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address but loopback")


def at_a_store(rank: int, host: str, folder: Path) -> None:
    process_group.get_node_ip_address = lambda: host
    if rank == 0:
        point = meeting_point()
        listening = [
            each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN
        ]
        assert listening == [point]
        (folder / "made").write_text(str(point[1]))
        (folder / "made").rename(folder / "point")
    else:
        wait_until((folder / "point").exists)
        point = host, int((folder / "point").read_text())
    meet(point, rank, 2, "gloo")
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number == 2
    dist.destroy_process_group()


def test_a_cluster_s_workers_meet_on_one_address(tmp_path: Path) -> None:
    run_ranks(at_a_store, (own_address(), tmp_path), 2)
