"""Tests the transport benchmark. Every transport must return the requested rows. If a transport cannot be measured, one line says so."""

import numpy as np
import pytest

from benchmarks.transport import TransportConfig, measure
from graphmill.core.errors import ConfigError

pytestmark = pytest.mark.ray


def test_all_ways_are_measured(shared_ray: None) -> None:
    took = measure(TransportConfig(rows=(1, 40), columns=3, table_rows=50, rounds=2, warmup=1))
    assert list(took) == [1, 40]
    for some in took.values():
        assert list(some) == ["open connection", "actor reply", "object plane"]
        assert all(len(seconds) == 2 and np.min(seconds) > 0 for seconds in some.values())


def test_a_node_that_is_not_there(shared_ray: None) -> None:
    with pytest.raises(ConfigError, match=r"server: expected the address of a node of the cluster, got 192\.0\.2\.99"):
        measure(TransportConfig(server="192.0.2.99"))


@pytest.mark.parametrize("options", [{"rows": (0,)}, {"columns": 0}, {"rounds": 0}, {"warmup": -1}])
def test_options_that_cannot_work(options: dict) -> None:
    with pytest.raises(ConfigError, match="expected at least"):
        TransportConfig(**options)
