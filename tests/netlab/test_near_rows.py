"""Rows that workers find on their own hosts: counted with one router, and by readers on emulated hosts with pretended GPUs."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.samplers.access.router import local_router
from graphmill.storage.graph import open_graph
from tests.netlab.hosts import why_not
from tests.netlab.near_rows import measure, near_share, partition_of_node, shares_here, write_graph

HOSTS = 8


@pytest.mark.parametrize("num_partitions", [8, 64])
def test_most_rows_are_near_with_locality_groups_and_roots_by_group(tmp_path: Path, num_partitions: int) -> None:
    pytest.importorskip("pymetis")
    write_graph(tmp_path / "graph", num_partitions)
    url = str(tmp_path / "graph")
    shares = shares_here(url, HOSTS)
    assert np.mean(shares) >= 0.85, shares
    partition = partition_of_node(url)
    far = near_share(local_router(open_graph(url)), partition, partition_hosts(num_partitions) == 0, 1, HOSTS)
    assert far < 0.1, "the rows are near wherever they lie"


def partition_hosts(num_partitions: int) -> np.ndarray:
    return np.arange(num_partitions) * HOSTS // num_partitions


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_partitions_lie_on_the_hosts_with_gpus_and_their_readers_find_most_rows_there(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    for count, seen in zip((3, 12), measure(3, (3, 12), tmp_path), strict=True):
        assert seen.partitions == {"h0": 0, "h1": count // 3, "h2": count // 3, "h3": count // 3}
        assert np.mean(list(seen.shares.values())) >= 0.85, seen
