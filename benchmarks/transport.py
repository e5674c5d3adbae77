"""Measures the time of a request for rows over each possible transport: `python -m benchmarks transport`.

    python -m benchmarks transport                                         # on this machine; starts a local Ray; about a minute
    python -m benchmarks transport --ray.address auto --server 10.0.0.2    # from this node of a cluster to 10.0.0.2

A server holds --table-rows rows of --columns float32 in memory, and answers `FetchRows` requests for --rows random rows. It answers over three
transports: a TCP connection that stays open, as in partition servers; the reply of an actor; Ray's object plane, where the reply is a reference.
(Decision 0069 also measured Arrow Flight.) The transports alternate in random order, ten requests at a time, until each has --rounds requests. Before
the first requests of a transport, --warmup unmeasured requests run. You should see a table of medians in ms, also written to results.md and
results.json under --out. Run nothing else at the same time.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.cluster.options import SessionOptions
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, Size, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.cluster.transport.connection import Endpoint
    from graphmill.samplers.vocabulary.messages import FetchRows, NodeRows

_TIMEOUT_S = 300.0
_TURN = 10  # requests that a transport makes before the next transport
Way = Callable[["FetchRows"], "NodeRows"]


@dataclass(frozen=True)
class TransportConfig:
    """Time requests for rows."""

    rows: tuple[Count, ...] = (10, 1000, 10_000, 50_000, 150_000)
    """Rows of one request."""
    columns: Count = 100
    """Number of float32 values in a row."""
    table_rows: Count = 200_000
    """Rows that the server holds."""
    rounds: Count = 20
    """Measured requests of each transport and size."""
    warmup: Size = 3
    """Unmeasured requests before the measured requests."""
    server: str | None = None
    """Address of the node that serves the rows. none: this node."""
    out: Path = Path("runs/bench-transport")
    """Folder of the table."""
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)


class RowServer:
    """The actor that serves one table over every transport."""

    def __init__(self, table_rows: int, columns: int) -> None:
        import numpy as np
        from ray.util import get_node_ip_address

        from graphmill.cluster.transport.message_server import MessageServer
        from graphmill.samplers.access.partition_owner import PartitionOwner
        from graphmill.storage.graph import Partition

        self._owner = PartitionOwner(
            Partition(
                index=0,
                start=0,
                stop=table_rows,
                indptr=np.zeros(table_rows + 1, np.int64),
                indices=np.empty(0, np.int64),
                original_id=np.arange(table_rows),
                feature=np.random.default_rng(0).random((table_rows, columns), np.float32),
            ),
            table_rows,
        )
        host = get_node_ip_address()
        self._server = MessageServer(self._owner.answer, host, None, 2)

    def endpoint(self) -> "Endpoint":
        return self._server.endpoint

    def reply(self, request: "FetchRows") -> "NodeRows":
        return self._owner.answer(request)  # type: ignore[return-value]

    def put(self, request: "FetchRows") -> list[Any]:
        import ray

        return [ray.put(self._owner.answer(request))]


def ways(server: Any) -> dict[str, Way]:
    """Returns, for each transport by name, a function that sends a request to this actor."""
    import ray

    from graphmill.cluster.transport.remote_owner import RemoteOwner

    endpoint = ray.get(server.endpoint.remote(), timeout=_TIMEOUT_S)
    owner = RemoteOwner(lambda _: endpoint, "the server", _TIMEOUT_S)

    def object_plane(request: "FetchRows") -> Any:
        (reference,) = ray.get(server.put.remote(request), timeout=_TIMEOUT_S)
        return ray.get(reference, timeout=_TIMEOUT_S)

    return {
        "open connection": lambda request: owner.submit(request).result(),
        "actor reply": lambda request: ray.get(server.reply.remote(request), timeout=_TIMEOUT_S),
        "object plane": object_plane,
    }


def measure(config: TransportConfig) -> dict[int, dict[str, list[float]]]:
    """Returns the seconds of every measured request, by number of rows and by transport. Requires a Ray session."""
    import numpy as np
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from graphmill.samplers.vocabulary.messages import FetchRows

    address = config.server or ray.util.get_node_ip_address()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == address]
    if not nodes:
        raise ConfigError(f"server: expected the address of a node of the cluster, got {address}; see `ray status`")
    on_node = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    actor: Any = ray.remote(RowServer)
    server = actor.options(num_cpus=0, scheduling_strategy=on_node).remote(config.table_rows, config.columns)
    all_ways, rng = ways(server), np.random.default_rng(1)
    seconds: dict[int, dict[str, list[float]]] = {}
    for num_rows in config.rows:
        seconds[num_rows] = {name: [] for name in all_ways}
        for begun in range(0, config.rounds, _TURN):
            for name in rng.permutation(list(all_ways)):
                warmup = 0 if begun else config.warmup
                for number in range(-warmup, min(_TURN, config.rounds - begun)):
                    request = FetchRows(rng.integers(0, config.table_rows, num_rows))
                    start = time.perf_counter()
                    rows = all_ways[name](request)
                    if number >= 0:
                        seconds[num_rows][name].append(time.perf_counter() - start)
                    assert rows.feature is not None and rows.feature.shape == (num_rows, config.columns)  # noqa: PT018
                    assert np.array_equal(rows.original_id, request.node)
    ray.kill(server)
    return seconds


def main() -> None:
    config = parse(TransportConfig, __doc__)
    check_results(config.out)
    from graphmill.cluster.ray.session import ray_session

    with ray_session(config.ray):
        seconds = measure(config)
    names = list(next(iter(seconds.values())))
    rows = [[count, *(1e3 * statistics.median(by_way[name]) for name in names)] for count, by_way in seconds.items()]
    columns = {"rows": ",", **{f"{name}, ms": ".2f" for name in names}}
    lines = table(columns, rows)
    print("\n".join(lines))
    keep(config.out, config, "\n".join([machine(), "", *lines]), machine=machine(), seconds=seconds)
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
