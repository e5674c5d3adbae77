"""Predicts the cost of a training step on a cluster from formulas: bytes, rounds, cache misses, seconds. The points of a sweep check the predictions.

    python -m graphmill.jobs.plan.cost_model                                              predictions with the default rates
    python -m graphmill.jobs.plan.cost_model --points runs/scaling/points.jsonl           rates fitted to points with one worker; error at every point

All functions are pure; nothing here needs Ray. docs/cost-model.md has the formulas, the measured errors and the limits of the model. Bytes count the arrays
of messages (`graphmill.samplers.vocabulary.messages`) in the types in which they travel. K hops take K + 1 rounds; the last round fetches rows.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.reporting.page import print_markdown
from graphmill.jobs.reporting.record_lines import Record, read_records
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.feature_rows import FeatureRows

_GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Degrees:
    """The degrees of a graph: `count[i]` nodes have degree `degree[i]`. A draw takes a node with a probability in proportion to its degree."""

    degree: np.ndarray  # float64 [b]
    count: np.ndarray  # float64 [b]

    @property
    def num_nodes(self) -> float:
        return float(self.count.sum())

    @property
    def num_edges(self) -> float:
        return float((self.degree * self.count).sum())

    @staticmethod
    def power_law(num_nodes: float, num_edges: float, bins: int = 64) -> "Degrees":
        """Degrees with density d^-3 above half their mean, like the tail of `graphmill.storage.synthetic.products_like`. All bins have the same number of
        nodes."""
        mean = num_edges / num_nodes
        edge = np.linspace(0.0, 1.0, bins + 1)
        # d = mean / 2 · u^(-1/2) for uniform u. The integral of d over a bin is mean · (u_1^(1/2) - u_0^(1/2)).
        return Degrees(mean * np.diff(np.sqrt(edge)) * bins, np.full(bins, num_nodes / bins))

    @staticmethod
    def of(degree: np.ndarray, bins_per_octave: int = 4) -> "Degrees":
        """The degrees of a graph, in bins. Degrees in one bin differ by at most a fifth."""
        place = np.where(degree > 0, 1 + np.floor(bins_per_octave * np.log2(np.maximum(degree, 1))), 0).astype(np.int64)
        count = np.bincount(place)
        total = np.bincount(place, weights=degree)
        used = count > 0
        return Degrees(total[used] / count[used], count[used].astype(np.float64))


@dataclass(frozen=True)
class BatchShape:
    """Counts of a batch for each hop: counts of a real batch, or expected counts."""

    asked: tuple[float, ...]  # number of nodes for which neighbors are drawn
    drawn: tuple[float, ...]  # number of drawn neighbors
    nodes: float  # number of distinct nodes in the batch

    @property
    def edges(self) -> float:
        return sum(self.drawn)


def expected_batch(degrees: Degrees, roots: float, fanouts: Sequence[int]) -> tuple[BatchShape, np.ndarray]:
    """The expected batch around uniformly drawn roots, and the expected share of each bin's nodes that the batch holds.

    Mean-field assumption: a drawn edge ends in a node with a probability in proportion to the node's degree, whatever node it was drawn for. If the batch holds
    a share s of a bin with degree d, the batch holds 1 - (1 - s) exp(-e d / E) of the bin after e more draws.
    """
    if not 0 < roots <= degrees.num_nodes:
        raise ConfigError(f"roots: expected 1 to the graph's {degrees.num_nodes:,.0f} nodes, got {roots}")
    share = np.full(len(degrees.degree), roots / degrees.num_nodes)
    fresh = share
    asked, drawn = [], []
    for fanout in fanouts:
        frontier = fresh * degrees.count
        draws = frontier * (degrees.degree if fanout < 0 else np.minimum(degrees.degree, fanout))
        asked.append(float(frontier.sum()))
        drawn.append(float(draws.sum()))
        after = 1 - (1 - share) * np.exp(-drawn[-1] * degrees.degree / max(degrees.num_edges, 1.0))
        fresh, share = after - share, after
    return BatchShape(tuple(asked), tuple(drawn), float((share * degrees.count).sum())), share


@dataclass(frozen=True)
class Widths:
    """Bytes of the entries of a message. Integers travel in the narrowest type that holds them (`graphmill.samplers.access.narrow_ints`)."""

    feature: int  # the features of a node, as stored
    index: int = 4  # the id of a node, stored or permanent
    label: int = 1
    count: int = 1  # the length of a list

    @property
    def row(self) -> int:
        """Bytes of a node's columns: permanent id, label, split and features."""
        return self.index + self.label + 1 + self.feature


@dataclass(frozen=True)
class Traffic:
    """Traffic of a batch between its sampler and the owners of partitions."""

    sent: float  # bytes of requests
    received: float  # bytes of replies
    requests: float
    rounds: float  # rounds follow each other; the requests of one round are sent together

    @property
    def total(self) -> float:
        return self.sent + self.received

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.sent + other.sent,
            self.received + other.received,
            self.requests + other.requests,
            self.rounds + other.rounds,
        )


def draw_traffic(shape: BatchShape, widths: Widths, owners: int) -> Traffic:
    """Traffic of the draws of `NeighborSampler`: one `SampleNeighbors` per hop and owner."""
    hops = len(shape.asked)
    received = widths.count * sum(shape.asked) + widths.index * shape.edges
    return Traffic(widths.index * sum(shape.asked), received, hops * owners, hops)


def row_traffic(rows: float, index_bytes: float, row_bytes: float, owners: int) -> Traffic:
    """Traffic of fetching rows: one `FetchRows` per owner."""
    return Traffic(index_bytes * rows, row_bytes * rows, owners, 1)


def neighbor_traffic(shape: BatchShape, widths: Widths, owners: int) -> Traffic:
    """Traffic of a batch of `NeighborSampler`."""
    return draw_traffic(shape, widths, owners) + row_traffic(shape.nodes, widths.index, widths.row, owners)


def chunk_traffic(nodes: float, edges: float, widths: Widths, owners: int) -> Traffic:
    """Traffic of a batch of `RandomPartitionSampler`: `ListChunk`, `InducedEdges` (every owner gets all members) and `FetchRows`."""
    sent = widths.index * nodes * (owners + 1)
    received = (2 * widths.index + widths.count + widths.row) * nodes + widths.index * edges
    return Traffic(sent, received, 3 * owners, 3)


def remote_traffic(traffic: Traffic, near_share: float, near_owners: float, owners: int) -> Traffic:
    """The part of `traffic` that leaves the process. The process reads `near_owners` of the owners itself; they own a share `near_share` of the nodes."""
    far = owners - near_owners
    share = 1.0 - near_share if far else 0.0
    requests = traffic.requests * far / owners
    return Traffic(traffic.sent * share, traffic.received * share, requests, traffic.rounds if requests else 0)


# Bytes for each node of a batch that is drawn ahead: the node's id, and its share of counts, sources and the plan.
DRAWN_BYTES = 12
JOINED = 16  # number of batches whose draws share requests (`graphmill.samplers.loading.scheduled_rows`)
_EARLY = 1 / 16  # share of the room for rows that arrive early, together with the rows of an earlier batch


def planned_share(
    count: np.ndarray, share: np.ndarray, rows: float, known: float = math.inf, batches: float = math.inf
) -> float:
    """Expected share of a batch's rows that must be fetched, if rows are kept by plan (`graphmill.samplers.loading.row_schedule`).

    `rows`: number of rows that the room holds. `known`: number of batches drawn ahead. `batches`: number of batches of the run. A batch holds each of `count`
    nodes with the probability p in `share`, independently of other batches. The gaps between two uses of a node are therefore geometric.

    To keep the rows that are needed soonest, the plan keeps a row over all gaps of at most g batches, and over a part of the gaps of g + 1 batches. A row is
    then kept after a share 1 - (1 - p)^g (1 + p g) of all batches; g is the largest value that fits the room. A row is fetched for its first use and after
    each longer gap. Gaps longer than `known` are not seen. If a batch fetches less than a sixteenth of the room, rows fetched early fill that sixteenth.
    """
    needed = float((share * count).sum())
    first = (1 - (1 - share) ** batches) / batches if batches < math.inf else 0 * share

    def kept(gap: int) -> float:
        return float((count * (1 - (1 - share) ** gap * (1 + share * gap))).sum())

    def fetched(gap: int) -> float:
        return float((count * (first + (share - first) * (1 - share) ** gap)).sum()) / needed

    def left(room: float) -> float:
        longest = int(min(known, 1e9))
        if kept(longest) <= room:
            return fetched(longest)
        gap = bisect_right(range(longest), room, key=kept) - 1
        of_longer = (room - kept(gap)) / (kept(gap + 1) - kept(gap))
        return fetched(gap) + of_longer * (fetched(gap + 1) - fetched(gap))

    if not needed:
        return 0.0
    whole = left(rows)
    return left(rows - _EARLY * rows) if whole * needed < _EARLY * rows else whole


def early_batches(rows: float, fetched: float) -> int:
    """Number of later batches whose rows arrive together with the rows of one batch. A batch fetches `fetched` rows; the room holds `rows` rows."""
    return min(int(_EARLY * rows / max(fetched, 1e-9)), JOINED)


def planned_traffic(draws: Traffic, rows: Traffic, fetched: float, joined: float, early: int) -> Traffic:
    """Remote traffic of a neighbor batch whose rows are kept by plan.

    `fetched`: share of the rows that must still be sent. `joined`: requests for draws per batch. `early`: number of later batches whose rows arrive early.
    """
    return Traffic(
        draws.sent + rows.sent * fetched,
        draws.received + rows.received * fetched,
        draws.requests * joined + rows.requests / (1 + early),
        draws.rounds * joined + rows.rounds / (1 + early),
    )


def all_reduce_bytes(num_parameters: float, workers: int) -> float:
    """Bytes that each worker sends (and receives) to sum float32 gradients by a ring all-reduce."""
    return 2 * (workers - 1) / workers * _GRADIENT_BYTES * num_parameters


def random_halo(degrees: Degrees, workers: int) -> float:
    """Number of rows that a worker of a graph-parallel run needs from other workers: the rows of all remote nodes that have a neighbor on this worker. Nodes
    are spread over the workers at random."""
    needed = 1 - (1 - 1 / workers) ** degrees.degree
    return float((degrees.count * needed).sum()) * (1 - 1 / workers)


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of work on one core. `fit_rates` fits the rates to the points of a sweep.

    The defaults come from docs/performance.md. Sampling: `graphmill bench sampling`, 584,319 nodes a batch with their rows in 0.19 s in process. Messages:
    `python -m benchmarks transport` between two hosts, 10 to 150,000 rows over an open connection, work of the owners included. Training: GECO 3 x 128.
    """

    train_step_s: float = 0.0  # forward, backward and optimizer: constant part per step
    train_node_s: float = 200e-6  # forward, backward and optimizer: per node of the batch, with the node's edges
    load_step_s: float = 0.0  # work of the worker's other threads: constant part per step
    load_node_s: float = 0.33e-6  # sampling and collating
    load_request_s: float = 0.21e-3  # a request and its reply
    load_byte_s: float = 0.57e-9
    serve_request_s: float = 0.0  # work of a partition's owner, if the rates above do not include it
    serve_byte_s: float = 0.0


@dataclass(frozen=True)
class Link:
    """The network connection of a host, with the same speed in both directions."""

    gigabits: float
    latency_s: float = 100e-6  # time of one round of requests, or of one hop in a ring; 50 µs in each direction
    share: float = 0.8  # share of its nominal rate that the link reaches

    @property
    def bytes_per_s(self) -> float:
        return self.gigabits * 1e9 / 8 * self.share


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step of one worker, for each part of the step."""

    train_s: float
    load_s: float  # seconds of the loader's thread, including its waits for the network
    reduce_s: float
    link_s: float  # time in which the host's link is busy
    cpu_s: float  # CPU time of all processes that work for this worker, including servers
    step_s: float

    @property
    def bound(self) -> str:
        """Name of the bottleneck: cores, training, loader or link."""
        train = self.train_s + self.reduce_s
        if self.step_s > max(train, self.load_s, self.link_s) * 1.001:
            return "cores"
        return max((train, "training"), (self.load_s, "loader"), (self.link_s, "link"))[1]


def step_cost(
    shape: BatchShape,
    remote: Traffic,
    num_parameters: float,
    workers: int,
    rates: Rates,
    link: Link | None = None,
    cores_per_worker: float = float("inf"),
    train_s: float | None = None,
    loader_threads: int = 1,
) -> StepCost:
    """Cost of a step of one worker. Its host serves as many requests as it sends. `link` None: one machine, without a network.

    The loader works ahead: training and loading overlap, and the slower of the two sets the time. Summing the gradients does not overlap. All processes of the
    worker share `cores_per_worker` cores. `train_s`: training time on an accelerator, which replaces the CPU's. All loader threads make batches in parallel.
    """
    train = rates.train_step_s + rates.train_node_s * shape.nodes if train_s is None else train_s
    load_cpu = load_cpu_s(shape, remote, rates)
    serve_cpu = rates.serve_request_s * remote.requests + rates.serve_byte_s * remote.total
    reduce_bytes = all_reduce_bytes(num_parameters, workers)
    if link is None:
        wire = reduce = busy = 0.0
    else:
        wire = remote.rounds * link.latency_s + max(remote.sent, remote.received) / link.bytes_per_s
        reduce = reduce_bytes / link.bytes_per_s + 2 * (workers - 1) * link.latency_s
        busy = (remote.total + reduce_bytes) / link.bytes_per_s  # the same amount in each direction
    # Servers answer while the loader waits. The servers of one round work in parallel.
    load = (load_cpu + serve_cpu / max(1.0, remote.requests / max(remote.rounds, 1)) + wire) / loader_threads
    cpu = (0.0 if train_s is not None else train) + load_cpu + serve_cpu
    step = max(train + reduce, load, busy, cpu / cores_per_worker)
    return StepCost(train, load, reduce, busy, cpu, step)


def load_cpu_s(shape: BatchShape, remote: Traffic, rates: Rates) -> float:
    """CPU time that a worker spends on a batch outside its training thread."""
    messages = rates.load_request_s * remote.requests + rates.load_byte_s * remote.total
    return rates.load_step_s + rates.load_node_s * shape.nodes + messages


@dataclass(frozen=True)
class Check:
    """Compares one measured point with the model. Values are per batch; each pair is (value of the model, measured value)."""

    name: str
    nodes: tuple[float, float]
    remote_bytes: tuple[float, float]
    requests: tuple[float, float]
    cpu_s: tuple[float, float]  # CPU seconds of a worker
    step_s: tuple[float, float]
    fitted: bool  # whether the rates were fitted to this point


Point = Mapping[str, Any]


def load_points(path: Path) -> list[Record]:
    """The points of the trials that ended well. Raises FormatError if there are none."""
    points = read_records(path, lambda point: point["status"], "a point of jobs/sweep.py --workers …")
    points = [point for point in points if point["status"] == "ok"]
    if not points:
        raise FormatError(f"{path}: expected points of jobs/sweep.py --workers …, found none that went well")
    return points


def point_batch(point: Point) -> tuple[BatchShape, Traffic]:
    """The expected batch of a point and its remote traffic. Raises ConfigError if the cost model does not cover the sampler."""
    s = point["settings"]
    degrees, widths = Degrees(*map(np.array, point["degrees"])), Widths(point["feature_bytes"], point["index_bytes"])
    if s["sampler"] == "neighbor":
        shape, _ = expected_batch(degrees, point["roots_per_batch"], s["fanouts"])
        traffic = neighbor_traffic(shape, widths, s["partitions"])
    elif s["sampler"] == "random-partition":
        chunks = s["chunks"] * (s["workers"] if s["scaling"] == "strong" else 1)
        nodes, edges = degrees.num_nodes / chunks, degrees.num_edges / chunks**2
        shape = BatchShape((), (edges,), nodes)
        traffic = chunk_traffic(nodes, edges, widths, s["partitions"])
    else:
        raise ConfigError(f"sampler: expected neighbor or random-partition, got {s['sampler']}")
    near = s["partitions"] if s["local_reads"] else 0  # the processes of one machine map all partitions
    remote = remote_traffic(traffic, near / s["partitions"], near, s["partitions"])
    return shape, replace(remote, requests=remote.requests / s["partitions"])  # the machine's server has all partitions


def fit_rates(points: Sequence[Point]) -> Rates:
    """Fits the rates by non-negative least squares on the relative errors of the points."""
    from scipy.optimize import nnls

    train, load, serve = [], [], []
    for point in points:
        shape, _ = point_batch(point)
        requests = point["remote_requests_per_batch"]
        moved = point["sent_bytes_per_batch"] + point["received_bytes_per_batch"]
        train_s = point["train_cpu_s_per_batch"]
        load_s = point["worker_cpu_s_per_step"] / point["settings"]["workers"] - train_s
        train.append(([1.0, shape.nodes], train_s))
        load.append(([1.0, shape.nodes, requests, moved], load_s))
        if point.get("server_cores") is not None and requests:
            batch_s = point["step_s"] / point["settings"]["workers"]
            serve.append(([requests, moved], point["server_cores"] * batch_s))

    def solve(rows: list[tuple[list[float], float]]) -> list[float]:
        if not rows:
            return [0.0, 0.0]
        # Relative errors: each row is divided by its measured value.
        matrix = np.array([row for row, _ in rows]) / np.array([[max(y, 1e-9)] for _, y in rows])
        scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
        return list(nnls(matrix / scale, np.ones(len(rows)))[0] / scale)

    return Rates(*solve(train), *solve(load), *solve(serve))


def free_cores(point: Point, others: Sequence[Point]) -> float:
    """Cores that are free for the workers and servers of a point: all cores, minus the cores of Ray's own processes (measured on the points `others`), minus
    the cores that the hypervisor stole. Infinite for a point from a cluster, because such a point does not record the cores of the hosts."""
    if point["settings"].get("address") is not None:
        return float("inf")
    known = [other for other in others if other.get("own_cores") is not None and other.get("server_cores") is not None]
    ray = [o["own_cores"] - o["server_cores"] - o["worker_cpu_s_per_step"] / o["step_s"] for o in known]
    taken = max(0.0, float(np.median(ray)) if ray else 0.0) + (point.get("stolen_cores") or 0.0)
    return max(0.1, point["cores"] - taken)


def check_points(points: Sequence[Point], rates: Rates, fitted: Sequence[Point] = ()) -> list[Check]:
    """Compares every point with the model. `fitted`: the points to which `rates` were fitted."""
    checks = []
    for point in points:
        s = point["settings"]
        shape, remote = point_batch(point)
        cores = free_cores(point, fitted) / s["workers"]
        cost = step_cost(shape, remote, point["num_parameters"], s["workers"], rates, None, cores)
        checks.append(
            Check(
                f"{s['sampler']} {s['scaling']}, batch {s['batch_size']}, {s['workers']} workers",
                (shape.nodes, point["nodes_per_batch"]),
                (remote.total, point["sent_bytes_per_batch"] + point["received_bytes_per_batch"]),
                (remote.requests, point["remote_requests_per_batch"]),
                (cost.train_s + load_cpu_s(shape, remote, rates), point["worker_cpu_s_per_step"] / s["workers"]),
                (cost.step_s, point["step_s"]),
                any(point is one for one in fitted),
            )
        )
    return checks


@dataclass(frozen=True)
class Workload:
    """A graph and the options of a training run on it."""

    name: str
    num_nodes: float
    num_edges: float
    feature_bytes: int
    roots: int = 1024
    fanouts: tuple[int, ...] = (15, 10, 5)
    num_parameters: float = 500e3

    @property
    def degrees(self) -> Degrees:
        return Degrees.power_law(self.num_nodes, self.num_edges)

    @property
    def widths(self) -> Widths:
        return Widths(self.feature_bytes, 4 if self.num_nodes < 2**31 else 8)

    @property
    def stored_bytes(self) -> float:
        """Bytes of topology, rows and ids on disk. If all of them are mapped, they need the same number of bytes in memory."""
        return 8 * self.num_nodes + self.widths.index * self.num_edges + self.widths.row * self.num_nodes


WORKLOADS = (
    Workload("products", 2.449e6, 123.7e6, 400),
    Workload("papers100M", 111.06e6, 1.616e9, 512),
    Workload("1B nodes, degree 30", 1e9, 30e9, 512),
)


def predict(
    workload: Workload,
    nodes: int,
    link: Link,
    rates: Rates,
    cache_share: float = 0.0,
    train_s: float | None = None,
    loader_threads: int = 1,
) -> tuple[Traffic, StepCost]:
    """Traffic and cost of a step, with one worker per host and partitions spread at random. `cache_share`: share of all rows that a host keeps by plan."""
    degrees, widths = workload.degrees, workload.widths
    shape, share = expected_batch(degrees, workload.roots, workload.fanouts)
    draws, rows = (
        remote_traffic(whole, 1 / nodes, 1, nodes)
        for whole in (
            draw_traffic(shape, widths, nodes),
            row_traffic(shape.nodes, widths.index, widths.row, nodes),
        )
    )
    remote = draws + rows
    if cache_share and nodes > 1:
        known, room = LoaderOptions().plan_bytes / (DRAWN_BYTES * shape.nodes), cache_share * workload.num_nodes
        fetched = planned_share((1 - 1 / nodes) * degrees.count, share, room, known)
        early = early_batches(room, fetched * (1 - 1 / nodes) * shape.nodes)
        remote = planned_traffic(draws, rows, fetched, 1 / JOINED, early)
    return remote, step_cost(
        shape, remote, workload.num_parameters, nodes, rates, link, train_s=train_s, loader_threads=loader_threads
    )


def graph_parallel_bytes(workload: Workload, workers: int) -> dict[str, int]:
    """Bytes that a worker sends in a full-graph step of GECO, by kind (`graphmill.models.parallel_cost`). Nodes are spread at random."""
    from graphmill.models.geco.options import GECOConfig
    from graphmill.models.parallel.shards import Shards
    from graphmill.models.parallel_cost import sent_bytes

    config = GECOConfig(in_dim=workload.feature_bytes // 4, out_dim=47, width=128, num_layers=3)
    halo = round(random_halo(workload.degrees, workers))
    return sent_bytes(config, Shards.even(round(workload.num_nodes), workers), 0, halo, halo, symmetric=True)


@dataclass(frozen=True)
class Config:
    """Print predictions of the cost model."""

    points: str | None = None
    """points.jsonl of a sweep: fit the rates to its points with one worker, and print the error at every point."""
    nodes: tuple[Count, ...] = (8, 16, 32, 64)
    """Host counts of the predicted clusters; each host has one worker."""
    gigabits: tuple[Positive, ...] = (10.0, 25.0, 100.0)
    """Speeds of the hosts' network links in Gb/s."""
    train_ms: Positive = 100.0
    """Training time of a step on an accelerator, for the second table. The first table trains on the fitted CPU."""
    loader_threads: Count = 4
    """Number of sampling threads of a worker, each on a separate core."""
    cache_share: float = 0.0
    """Share of all rows that each host keeps by plan (--loader.cache_bytes)."""
    feature_dtype: FeatureDtype = "float32"
    """Stored type of the graphs' features."""

    def __post_init__(self) -> None:
        check_fields(self)


def print_checks(checks: Sequence[Check]) -> None:
    """Prints a row for each point, with the ratios model / measured."""

    def cells(check: Check) -> Iterator[str]:
        yield check.name
        for name, scale in (("nodes", 1), ("remote_bytes", 1e-3), ("requests", 1), ("cpu_s", 1e3), ("step_s", 1e3)):
            model, measured = getattr(check, name)
            yield f"{model * scale:,.0f} / {measured * scale:,.0f}"
            if name.endswith("_s"):
                yield f"{model / measured - 1:+.0%}"
        yield "fitted" if check.fitted else ""

    columns = "point", "nodes a batch, model / measured", "remote kB", "requests", "CPU ms a batch", "its error"
    print_markdown([*columns, "ms a step", "its error", ""], [list(cells(check)) for check in checks])


def print_predictions(config: Config, rates: Rates, train_s: float | None) -> None:
    """Prints a row for each workload and cluster."""
    rows = []
    stored = [
        replace(of, feature_bytes=FeatureRows(of.feature_bytes // 4, config.feature_dtype).row_bytes)
        for of in WORKLOADS
    ]
    for workload, nodes in itertools.product(stored, config.nodes):
        cells = []
        for link in map(Link, config.gigabits):
            remote, cost = predict(workload, nodes, link, rates, config.cache_share, train_s, config.loader_threads)
            _, alone = predict(workload, 1, link, rates, 0.0, train_s, config.loader_threads)
            cells.append(f"{1e3 * cost.step_s:,.0f}, {alone.step_s / cost.step_s:.0%}, {cost.bound}")
        sizes = f"{workload.stored_bytes / nodes / 1e9:,.1f}", f"{remote.total / 1e6:,.1f}"
        rows.append([workload.name, str(nodes), *sizes, f"{remote.rounds:.3g} × {nodes - 1}", *cells])
    columns = ["graph", "nodes", "GB a node", "MB a batch", "rounds × owners"]
    print_markdown(columns + [f"{g:g} Gb/s: ms a step, efficiency, bound" for g in config.gigabits], rows)


def print_graph_parallel(config: Config) -> None:
    """Prints a row for each workload and number of workers, for steps that take the whole graph as one batch."""
    rows = []
    for workload, workers in itertools.product(WORKLOADS, config.nodes):
        sent = graph_parallel_bytes(workload, workers)
        seconds = [f"{sum(sent.values()) / Link(g).bytes_per_s:,.1f}" for g in config.gigabits]
        each = f"{sent['sequences'] / 1e9:,.1f}, {sent['halo'] / 1e9:,.1f}"
        rows.append([workload.name, str(workers), each, *seconds])
    columns = ["graph", "workers", "GB sent by a worker: all-to-alls, halo"]
    print_markdown(columns + [f"s at {g:g} Gb/s" for g in config.gigabits], rows)


def main() -> int | None:
    config = parse(Config, __doc__)
    rates = Rates()
    if config.points is not None:
        points = load_points(Path(config.points))
        known = [point for point in points if point["settings"]["sampler"] in ("neighbor", "random-partition")]
        if not known:
            raise ConfigError(
                f"{config.points}: expected points of neighbor or random-partition sampling, found others only"
            )
        fitted = [point for point in known if point["settings"]["workers"] == 1] or known
        rates = fit_rates(fitted)
        print_checks(check_points(known, rates, fitted))
        print()
    print("rates: " + ", ".join(f"{name} {value:.3g}" for name, value in vars(rates).items()) + "\n")
    print("Trained on the CPU of the rates:\n")
    print_predictions(config, rates, None)
    print(f"\nTrained on accelerators, {config.train_ms:g} ms a step:\n")
    print_predictions(config, rates, config.train_ms / 1e3)
    print("\nThe whole graph as one batch, GECO 3 x 128, bytes of a step:\n")
    print_graph_parallel(config)
    return None


if __name__ == "__main__":
    run(main)
