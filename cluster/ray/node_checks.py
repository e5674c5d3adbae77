"""Checks every node of a Ray cluster: versions that must agree, clock, memory, access to a path. Also finds open sockets.

Each node runs one task, with one deadline for all nodes. If a node does not answer, its report has an error.
"""

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address, ip_address
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from graphmill.core.errors import GraphmillError

# Their versions must be equal on all nodes, because the nodes exchange weights, batches and messages.
SHARED_PACKAGES = ("torch", "ray", "numpy", "pyarrow")


@dataclass(frozen=True)
class NodeReport:
    """The answer of one node, or the `error` if it did not answer."""

    address: str
    versions: dict[str, str]
    clock_s: float = 0.0  # seconds by which the clock is ahead of the driver's clock; exact to half a round trip
    round_trip_s: float = 0.0
    free_memory_bytes: int = 0
    path_problem: str | None = None  # the reason why the node cannot read the path
    error: str | None = None


def ask_nodes(path: str | None, deadline_s: float) -> list[NodeReport]:
    """Returns a report of every live node, in order of addresses. Needs a Ray session. `path`: a stored graph that each node must be able to read."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    ask = ray.remote(num_cpus=0, max_retries=0)(_describe_node)
    until = time.monotonic() + deadline_s
    asked = {
        node["NodeManagerAddress"] + f":{node['NodeManagerPort']}": ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        )
        for node in nodes
    }
    # The first call on a node starts its worker process; the second call reads the clock.
    first = {address: task.remote(path) for address, task in asked.items()}
    reports = []
    for address, reference in sorted(first.items()):
        try:
            answer = ray.get(reference, timeout=max(0.1, until - time.monotonic()))
            began = time.time()
            later = ray.get(asked[address].remote(None), timeout=max(0.1, until - time.monotonic()))
            ended = time.time()
        except (RayError, TimeoutError) as error:
            reason = str(error).strip().splitlines()
            reports.append(NodeReport(address, {}, error=reason[0] if reason else type(error).__name__))
            continue
        reports.append(
            NodeReport(
                address,
                answer["versions"],
                clock_s=later["time"] - (began + ended) / 2,
                round_trip_s=ended - began,
                free_memory_bytes=answer["free"],
                path_problem=answer["path_problem"],
            )
        )
    return reports


def local_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that must be equal on all nodes."""
    versions = {"python": platform.python_version()}
    for name in SHARED_PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    return versions


def open_beyond_loopback(process: psutil.Process) -> list[str]:
    """Returns the TCP sockets of a process and its descendants to which other machines can connect, as `0.0.0.0:8080 (process name)`."""
    listed = set()
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            name, sockets = each.name(), each.net_connections("tcp")
            listening = [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
            listed |= {f"{ip}:{port} ({name})" for ip, port in listening if not _is_loopback(ip)}
    return sorted(listed)


def _is_loopback(address: str) -> bool:
    ip = ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def _describe_node(path: str | None) -> dict[str, Any]:
    return {
        "time": time.time(),
        "versions": local_versions(),
        "free": psutil.virtual_memory().available,
        "path_problem": None if path is None else _path_problem(path),
    }


def _path_problem(url: str) -> str | None:
    from graphmill.storage.snapshots.snapshots import has_graph

    try:
        is_stored = has_graph(url)
    except GraphmillError as error:
        return str(error)
    return None if is_stored else f"{url}: no stored graph there"
