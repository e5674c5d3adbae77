"""Reads which nodes of the cluster are announced to be lost. Ray marks a node as draining for a spot notice, for `ray drain-node`, and when its
`ray start --block` gets SIGTERM. Ray then schedules nothing on the node."""

from collections.abc import Mapping
from typing import Any

import ray


def draining_nodes() -> Mapping[str, int]:
    """Returns the ids of the draining nodes of the connected cluster, each with its deadline (UNIX time in milliseconds; 0: none)."""
    state: Any = ray._private.state.state  # Ray Train reads the drains from the same place; there is no public call
    drains: dict[str, int] = state.get_draining_nodes()
    return drains
