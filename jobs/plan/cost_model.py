"""What a step of training costs on a cluster, from formulas: bytes, rounds, cache misses, seconds. Checked against a sweep's points.

    python -m graphmill.jobs.plan.cost_model                                              predictions with the rates below
    python -m graphmill.jobs.plan.cost_model --points runs/scaling/points.jsonl           rates fitted to one worker's points, error at every point

Pure functions; nothing here needs Ray. The formulas, the measured errors and where the model breaks: docs/cost-model.md. Bytes are those of
the arrays in messages (`graphmill.samplers.vocabulary.messages`) as they travel; K hops are K + 1 rounds, the last one for rows.
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
    """A graph's degrees: `count[i]` nodes of degree `degree[i]`, which draw and are drawn in proportion to it."""

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
        """Degrees of density d^-3 above half their mean, as `graphmill.storage.synthetic.products_like` has them in the tail; equal shares of nodes per bin."""
        mean = num_edges / num_nodes
        edge = np.linspace(0.0, 1.0, bins + 1)
        # d = mean / 2 · u^(-1/2) for uniform u; its integral over a bin is mean · (u_1^(1/2) - u_0^(1/2)).
        return Degrees(mean * np.diff(np.sqrt(edge)) * bins, np.full(bins, num_nodes / bins))

    @staticmethod
    def of(degree: np.ndarray, bins_per_octave: int = 4) -> "Degrees":
        """A graph's own, in bins whose degrees differ by at most a fifth."""
        place = np.where(degree > 0, 1 + np.floor(bins_per_octave * np.log2(np.maximum(degree, 1))), 0).astype(np.int64)
        count = np.bincount(place)
        total = np.bincount(place, weights=degree)
        used = count > 0
        return Degrees(total[used] / count[used], count[used].astype(np.float64))


@dataclass(frozen=True)
class BatchShape:
    """What a batch holds, hop after hop; of a real batch, or expected."""

    asked: tuple[float, ...]  # nodes whose neighbors are drawn
    drawn: tuple[float, ...]  # neighbors drawn
    nodes: float  # distinct nodes of the batch

    @property
    def edges(self) -> float:
        return sum(self.drawn)


def expected_batch(degrees: Degrees, roots: float, fanouts: Sequence[int]) -> tuple[BatchShape, np.ndarray]:
    """The batch around uniform roots, and the share of each bin's nodes that are in it.

    Mean field: each drawn edge ends in a node with a probability in proportion to its degree, whoever drew it. Of a bin with degree d a
    share 1 - (1 - s) exp(-e d / E) is in the batch after e draws, where s was before.
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
    """Bytes of what messages hold; integers travel in the narrowest type that holds them (`graphmill.samplers.access.narrow_ints`)."""

    feature: int  # of a node's row of features, as stored
    index: int = 4  # of a node's id, stored or permanent
    label: int = 1
    count: int = 1  # of a list's length

    @property
    def row(self) -> int:
        """Of a node's columns: permanent id, label, split and features."""
        return self.index + self.label + 1 + self.feature


@dataclass(frozen=True)
class Traffic:
    """What a batch moves between a sampler and owners."""

    sent: float  # bytes of requests
    received: float  # bytes of replies
    requests: float
    rounds: float  # one after the other; requests of a round go out together

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
    """Of the draws of `NeighborSampler`: a `SampleNeighbors` per hop and owner."""
    hops = len(shape.asked)
    received = widths.count * sum(shape.asked) + widths.index * shape.edges
    return Traffic(widths.index * sum(shape.asked), received, hops * owners, hops)


def row_traffic(rows: float, index_bytes: float, row_bytes: float, owners: int) -> Traffic:
    """Of so many rows: a `FetchRows` per owner."""
    return Traffic(index_bytes * rows, row_bytes * rows, owners, 1)


def neighbor_traffic(shape: BatchShape, widths: Widths, owners: int) -> Traffic:
    """Of a batch of `NeighborSampler`."""
    return draw_traffic(shape, widths, owners) + row_traffic(shape.nodes, widths.index, widths.row, owners)


def chunk_traffic(nodes: float, edges: float, widths: Widths, owners: int) -> Traffic:
    """Of a batch of `RandomPartitionSampler`: `ListChunk`, `InducedEdges` (every owner gets all members) and `FetchRows`."""
    sent = widths.index * nodes * (owners + 1)
    received = (2 * widths.index + widths.count + widths.row) * nodes + widths.index * edges
    return Traffic(sent, received, 3 * owners, 3)


def remote_traffic(traffic: Traffic, near_share: float, near_owners: float, owners: int) -> Traffic:
    """What of it leaves the process, where `near_owners` of the owners, with `near_share` of the nodes, are read in process."""
    far = owners - near_owners
    share = 1.0 - near_share if far else 0.0
    requests = traffic.requests * far / owners
    return Traffic(traffic.sent * share, traffic.received * share, requests, traffic.rounds if requests else 0)


DRAWN_BYTES = (
    12  # of a node of a batch that is drawn ahead: its id, and its share of counts, sources and the plan's own
)
JOINED = 16  # batches whose draws share their requests (`graphmill.samplers.loading.scheduled_rows`)
_EARLY = 1 / 16  # of the room, that rows which come before their batch's turn may fill


def planned_share(
    count: np.ndarray, share: np.ndarray, rows: float, known: float = math.inf, batches: float = math.inf
) -> float:
    """Of a batch's rows, the share that is fetched by plan (`graphmill.samplers.loading.row_schedule`) with room for `rows`, where `known` batches are drawn ahead, over so many batches.

    Batches hold a node independently of each other, `count` nodes with the probability p in `share` each, so the gaps between its uses are geometric. To keep what
    is needed soonest is to keep a row over its gaps of at most g batches, and over some of the next longer ones. It is then kept after a share
    1 - (1 - p)^g (1 + p g) of all batches, which g fills the room with, and fetched for each use after a longer gap, and for the first use. No gap is known that is
    longer than the batches drawn ahead. Where what is fetched of a batch is less than a sixteenth of the room, other rows come early and fill that.
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
    """How many batches' rows come with those of a batch that fetches, where each fetches so many, and there is room for `rows`."""
    return min(int(_EARLY * rows / max(fetched, 1e-9)), JOINED)


def planned_traffic(draws: Traffic, rows: Traffic, fetched: float, joined: float, early: int) -> Traffic:
    """Remote traffic of a neighbor batch whose rows are planned, and `fetched` is the share of them that still travels.

    `joined`: questions of draws for each batch; `early`: batches whose rows come with another's.
    """
    return Traffic(
        draws.sent + rows.sent * fetched,
        draws.received + rows.received * fetched,
        draws.requests * joined + rows.requests / (1 + early),
        draws.rounds * joined + rows.rounds / (1 + early),
    )


def all_reduce_bytes(num_parameters: float, workers: int) -> float:
    """Bytes that each worker sends, and receives, for the sum of float32 gradients in a ring."""
    return 2 * (workers - 1) / workers * _GRADIENT_BYTES * num_parameters


def random_halo(degrees: Degrees, workers: int) -> float:
    """Rows that a worker of a graph-parallel run needs from others, where nodes lie at random: those with a neighbor here."""
    needed = 1 - (1 - 1 / workers) ** degrees.degree
    return float((degrees.count * needed).sum()) * (1 - 1 / workers)


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of work, of one core. `fit_rates` finds CPU times in a sweep's points.

    The defaults come from docs/performance.md. `graphmill bench sampling`: 584,319 nodes a batch sampled with their rows in 0.19 s in process. `python -m benchmarks transport`
    between two hosts: requests of 10 to 150,000 rows over an open connection, the owners' answering included. Training: GECO 3 x 128.
    """

    train_step_s: float = 0.0  # forward, backward and optimizer, whatever the batch
    train_node_s: float = 200e-6  # the same for each node of the batch, its edges included
    load_step_s: float = 0.0  # the worker's other threads, whatever the batch
    load_node_s: float = 0.33e-6  # sampling and collating
    load_request_s: float = 0.21e-3  # a request and its reply
    load_byte_s: float = 0.57e-9
    serve_request_s: float = 0.0  # the answering side, where it is not in the above
    serve_byte_s: float = 0.0


@dataclass(frozen=True)
class Link:
    """A node's connection: the same in both directions."""

    gigabits: float
    latency_s: float = 100e-6  # of a round of requests, or of a hop in a ring; 50 µs each way
    share: float = 0.8  # of the nominal rate that is reached

    @property
    def bytes_per_s(self) -> float:
        return self.gigabits * 1e9 / 8 * self.share


@dataclass(frozen=True)
class StepCost:
    """Where a step's seconds go, for one worker."""

    train_s: float
    load_s: float  # of the loader's thread, its waits for the network included
    reduce_s: float
    link_s: float  # that its node's link is busy
    cpu_s: float  # of all processes that work for this worker, servers included
    step_s: float

    @property
    def bound(self) -> str:
        """What decides the step's time."""
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
    """A step of one worker, on whose node as much is asked as is served. `link` None: no network between nodes, as on one machine.

    The loader works ahead, so training and loading overlap, and the slower decides; the ring of gradients does not overlap. All that the
    processes compute needs `cores_per_worker` cores. `train_s`: of an accelerator, in place of the CPU's. Several loader threads make
    several batches at a time.
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
        busy = (remote.total + reduce_bytes) / link.bytes_per_s  # this node asks, and is asked as much: each way once
    # Servers answer while the loader waits for them; on average they are as quick as they are busy.
    load = (load_cpu + serve_cpu / max(1.0, remote.requests / max(remote.rounds, 1)) + wire) / loader_threads
    cpu = (0.0 if train_s is not None else train) + load_cpu + serve_cpu
    step = max(train + reduce, load, busy, cpu / cores_per_worker)
    return StepCost(train, load, reduce, busy, cpu, step)


def load_cpu_s(shape: BatchShape, remote: Traffic, rates: Rates) -> float:
    """CPU time of a worker's loader for a batch, and of its other threads besides the one that trains."""
    messages = rates.load_request_s * remote.requests + rates.load_byte_s * remote.total
    return rates.load_step_s + rates.load_node_s * shape.nodes + messages


@dataclass(frozen=True)
class Check:
    """One measured point beside the model."""

    name: str
    nodes: tuple[float, float]  # of a batch: (model, measured)
    remote_bytes: tuple[float, float]
    requests: tuple[float, float]
    cpu_s: tuple[float, float]  # of a worker, a batch
    step_s: tuple[float, float]
    fitted: bool  # whether the rates come from it, too


Point = Mapping[str, Any]


def load_points(path: Path) -> list[Record]:
    """The points of a sweep that went well. Raises FormatError where there is none."""
    points = read_records(path, lambda point: point["status"], "a point of jobs/sweep.py --workers …")
    points = [point for point in points if point["status"] == "ok"]
    if not points:
        raise FormatError(f"{path}: expected points of jobs/sweep.py --workers …, found none that went well")
    return points


def point_batch(point: Point) -> tuple[BatchShape, Traffic]:
    """The model's batch of a point and its remote traffic. Raises ConfigError for samplers that the model does not know."""
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
    near = s["partitions"] if s["local_reads"] else 0  # one machine's processes map all partitions
    return shape, remote_traffic(traffic, near / s["partitions"], near, s["partitions"])


def fit_rates(points: Sequence[Point]) -> Rates:
    """Rates by non-negative least squares over points that ran undisturbed enough to tell: each point weighs the same."""
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
        # Relative errors count: a row is divided by what was measured.
        matrix = np.array([row for row, _ in rows]) / np.array([[max(y, 1e-9)] for _, y in rows])
        scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
        return list(nnls(matrix / scale, np.ones(len(rows)))[0] / scale)

    return Rates(*solve(train), *solve(load), *solve(serve))


def free_cores(point: Point, others: Sequence[Point]) -> float:
    """The cores that a point's workers and servers have among them: without what Ray's own processes took in the points of `others`, and
    what the machine's host took meanwhile. Without bound where the point's nodes are machines, whose cores it does not say."""
    if point["settings"].get("address") is not None:
        return float("inf")
    known = [other for other in others if other.get("own_cores") is not None and other.get("server_cores") is not None]
    ray = [o["own_cores"] - o["server_cores"] - o["worker_cpu_s_per_step"] / o["step_s"] for o in known]
    taken = max(0.0, float(np.median(ray)) if ray else 0.0) + (point.get("stolen_cores") or 0.0)
    return max(0.1, point["cores"] - taken)


def check_points(points: Sequence[Point], rates: Rates, fitted: Sequence[Point] = ()) -> list[Check]:
    """The model beside every point it knows; `fitted` are those whose rates these are."""
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
    """A graph and a way to train on it."""

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
        """Of topology, rows and ids on disk, or in memory where they are all mapped."""
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
    """A worker per node, partitions spread at random over the nodes; with room for `cache_share` of all rows these are planned."""
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
    """Bytes that a worker sends in a full-graph step of GECO, with nodes spread at random; by kind (`graphmill.models.parallel_cost`)."""
    from graphmill.models.geco.options import GECOConfig
    from graphmill.models.parallel.shards import Shards
    from graphmill.models.parallel_cost import sent_bytes

    config = GECOConfig(in_dim=workload.feature_bytes // 4, out_dim=47, width=128, num_layers=3)
    halo = round(random_halo(workload.degrees, workers))
    return sent_bytes(config, Shards.even(round(workload.num_nodes), workers), 0, halo, halo, symmetric=True)


@dataclass(frozen=True)
class Config:
    """What to print."""

    points: str | None = None
    """points.jsonl of a sweep: fits the rates to its points of one worker, and shows the error at every point."""
    nodes: tuple[Count, ...] = (8, 16, 32, 64)
    """Nodes of the predicted clusters, a worker on each."""
    gigabits: tuple[Positive, ...] = (10.0, 25.0, 100.0)
    """Speeds of their links."""
    train_ms: Positive = 100.0
    """A step's training time on an accelerator, for a second table; the first one trains on the fitted CPU."""
    loader_threads: Count = 4
    """Sampling threads of a worker, each with a core."""
    cache_share: float = 0.0
    """Share of all rows that each node has room for, by plan (--loader.cache_bytes)."""
    feature_dtype: FeatureDtype = "float32"
    """What the graphs' features are stored as."""

    def __post_init__(self) -> None:
        check_fields(self)


def print_checks(checks: Sequence[Check]) -> None:
    """The model beside what was measured, a row for each point."""

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
    """Steps of every workload on every cluster."""
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
    """Steps over the whole graph as one batch."""
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
