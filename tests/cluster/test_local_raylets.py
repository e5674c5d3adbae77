"""Raylets on this machine beside a local Ray count as nodes, are gone at the end, and their partitions are remote to each other."""

from pathlib import Path

import psutil
import pytest

from cluster.local_raylets import local_raylets
from cluster.options import SessionOptions
from cluster.session import Session, ray_session
from storage.errors import ConfigError


@pytest.mark.ray
@pytest.mark.long
def test_raylets_are_nodes_of_their_own_and_leave_nothing_behind(tmp_path: Path) -> None:
    with ray_session(SessionOptions(address="local", num_cpus=1, object_store_gb=80 / 1024)) as session:
        import ray

        before = {child.pid for child in psutil.Process().children(recursive=True)}
        with local_raylets(session, 3, tmp_path / "raylets.log", num_cpus=3):
            assert sorted(node["Resources"]["CPU"] for node in ray.nodes()) == [1.0, 3.0, 3.0, 3.0]
            added = {child.pid for child in psutil.Process().children(recursive=True)} - before
            assert added
        assert not [pid for pid in added if psutil.pid_exists(pid)]


def test_a_cluster_that_is_not_ours_gets_no_raylets(tmp_path: Path) -> None:
    others = Session("127.0.0.1:1", is_ours=False, dashboard_url=None)
    with pytest.raises(ConfigError, match="Ray of their own"), local_raylets(others, 1, tmp_path / "log"):
        pass
