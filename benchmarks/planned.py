"""Measures how many rows a rank need not fetch if its rows are planned: `python -m benchmarks planned`.

    python -m benchmarks planned                                     # 200,000 nodes, in this process, about 2 minutes
    python -m benchmarks planned --nodes 2000000 --batch_size 1024   # 100 M edges; prepared once in 4 minutes
    python -m benchmarks planned --partitioner ldg --root_order groups   # roots by locality groups
    python -m benchmarks planned --ray.address auto                  # over the links of a cluster, with partition servers; times count

Makes (once, under --data_dir) a synthetic graph of degree 50 in --partitions partitions. There are as many ranks as partitions. The benchmark loads
the batches of one rank (0) without a model. First it fetches every batch's rows (row "off"). Then it plans rows with each of --budgets, which are
shares of all nodes' rows. In this process the rank reads its own partition directly, and requests the other partitions as if they were on other
machines. Then bytes and requests are meaningful, but times are not. For comparison, two static caches are also computed for each budget: the rows
of the nodes with most in-edges, and the rows that the same batches need most often. You should see a table, which is also written to results.md and
results.json under --out. Every planned batch is compared with the unplanned batch.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from graphmill.cluster.options import SessionOptions
from graphmill.core.option_checks import Count, Positive, Size, check_fields, check_options
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.samplers.vocabulary.messages import Scheme
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.ingestion.ingest_options import Partitioner

if TYPE_CHECKING:
    from graphmill.samplers.access.router import Router
    from graphmill.samplers.vocabulary.options import NeighborOptions
    from graphmill.storage.graph import StoredGraph


@dataclass(frozen=True)
class PlannedConfig:
    """Count and time planned rows."""

    nodes: int = 200_000
    """Size of the synthetic graph; its mean degree is 50."""
    batch_size: Count = 102
    """Roots per batch. Use 1024 for 2,000,000 nodes."""
    fanouts: tuple[Count, ...] = (15, 10, 5)
    """Neighbors per hop."""
    scheme: Scheme = "uniform"
    """Scheme by which neighbors are drawn."""
    batch_dependency: int = 1
    """With scheme labor: number of steps that share random numbers."""
    layer_dependency: bool = False
    """With scheme labor: hops share random numbers."""
    partitions: int = 4
    """Partitions, and ranks."""
    rank: int = 0
    """The rank whose batches are loaded. In this process the rank owns the partition with the same index."""
    partitioner: Partitioner = "random"
    """Partitioner of the graph."""
    groups: Count | None = None
    """Number of locality groups of ldg and metis. none: ingestion chooses the number."""
    root_order: Literal["shuffled", "groups"] = "shuffled"
    """Order of the batches' roots."""
    feature_dtype: FeatureDtype = "float32"
    """Type of features in storage and in transfers."""
    budgets: tuple[Positive, ...] = (0.05, 0.1, 0.2, 0.4)
    """Limits of kept rows, as shares of all rows."""
    epochs: Count = 2
    """Number of epochs to load. All epochs are measured."""
    steps: Count | None = None
    """Batches of an epoch; none: all batches of the rank."""
    threads: Count = 1
    """Threads of the loader."""
    plan_bytes: Size = 1 << 30
    """Bytes of batches that are drawn ahead."""
    check: bool = True
    """Compare every batch with the unplanned batch. Use no if times are to be measured."""
    data_dir: Path = Path("data/bench")
    """Folder of the graph. On a cluster, all nodes must be able to read it."""
    out: Path = Path("runs/bench-planned")
    """Folder of the table."""
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self, partitions=2, nodes=47)
        check_options(self, {"rank": (0 <= self.rank < self.partitions, "a partition's number")})


class Row(NamedTuple):
    """One line of the table. Values are averages over batches."""

    what: str
    rows: float  # fetched rows, in thousands
    share: float  # fetched rows, as a share of the rows that are fetched without a plan
    megabytes: float  # size of the replies with rows
    requests: float  # number of requests of all kinds
    seconds: float | None = None
    peak: float | None = None  # peak of kept rows, in MB
    planner: float | None = None  # share of the loader's CPU time that planning takes, in %
    known: float | None = None  # most batches that were known in advance


class Asked:
    """Counts requests to owners on other machines, the rows and bytes of the replies, and the CPU time that this process needs for the replies."""

    def __init__(self, own: int | None) -> None:
        """`own`: this process reads all partitions, but counts every partition except `own` as remote. None: partitions of other machines are remote."""
        self._own = own
        self.requests = self.rows = self.row_bytes = 0
        self.answer_cpu_s = 0.0

    def watch(self, owner: Any, partition: int) -> Any:
        from graphmill.samplers.access.owners import LocalOwner

        is_near = isinstance(owner, LocalOwner) if self._own is None else partition == self._own
        return owner if is_near else _Far(owner, self)

    def counts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("requests", "rows", "row_bytes", "answer_cpu_s")}


class _Far:
    """A remote owner whose requests are counted."""

    def __init__(self, owner: Any, asked: Asked) -> None:
        self._owner, self._asked = owner, asked

    def submit(self, request: Any) -> Any:
        from graphmill.samplers.vocabulary.messages import FetchRows

        began = time.thread_time()
        pending = self._owner.submit(request)
        self._asked.answer_cpu_s += time.thread_time() - began
        self._asked.requests += 1
        return _Reply(pending, self._asked) if isinstance(request, FetchRows) else pending


class _Reply:
    def __init__(self, pending: Any, asked: Asked) -> None:
        self._pending, self._asked = pending, asked

    def result(self) -> Any:
        from graphmill.samplers.access.traffic import array_bytes

        reply = self._pending.result()
        self._asked.rows += len(reply.original_id)
        self._asked.row_bytes += array_bytes(reply)
        return reply


def load(config: PlannedConfig, router: "Router", asked: Asked, cache_bytes: int) -> tuple[Row, list[bytes]]:
    """Returns the averages over the batches, and a digest of each batch."""
    from itertools import islice

    from graphmill.samplers.loading.loader import Loader
    from graphmill.samplers.methods.neighbor import NeighborSampler
    from graphmill.samplers.vocabulary.options import LoaderOptions

    sampler = NeighborSampler(router, neighbors(config), config.partitions)
    options = LoaderOptions(
        threads=config.threads, prefetch=config.threads + 1, cache_bytes=cache_bytes, plan_bytes=config.plan_bytes
    )
    with Loader(sampler, options, rank=config.rank, num_ranks=config.partitions) as loader:
        for _ in islice(loader.epoch(10**6), 3):  # these batches compile the loops
            pass
    digests = []
    epochs = config.epochs if config.steps is None else 0
    with Loader(sampler, options, rank=config.rank, num_ranks=config.partitions, num_epochs=epochs) as loader:
        before, began, cpu = asked.counts(), time.perf_counter(), time.process_time() - time.thread_time()
        for epoch in range(config.epochs):
            for batch in islice(loader.epoch(epoch), config.steps):
                digests.append(digest(batch) if config.check else b"")
        count, planned = len(digests), loader.planned
        seconds = (time.perf_counter() - began) / count
        cpu = (time.process_time() - time.thread_time() - cpu) / count
        spent = {name: (value - before[name]) / count for name, value in asked.counts().items()}
    row = Row("off", spent["rows"] / 1e3, 1.0, spent["row_bytes"] / 1e6, spent["requests"], seconds)
    if planned is not None:
        stats = planned.stats
        share = 100 * stats.plan_cpu_s / count / (cpu - spent["answer_cpu_s"])
        row = row._replace(peak=stats.peak_bytes / 1e6, planner=share, known=stats.most_known)
    return row, digests


def neighbors(config: PlannedConfig) -> "NeighborOptions":
    from graphmill.samplers.vocabulary.options import NeighborOptions

    return NeighborOptions(
        fanouts=config.fanouts,
        batch_size=config.batch_size,
        root_order=config.root_order,
        scheme=config.scheme,
        batch_dependency=config.batch_dependency,
        layer_dependency=config.layer_dependency,
    )


def digest(batch: Any) -> bytes:
    """Returns the hash of all arrays of a batch."""
    import hashlib

    hashed = hashlib.blake2b()
    for value in vars(batch).values():
        if hasattr(value, "numpy"):
            hashed.update(value.numpy())
    return hashed.digest()


def static_rows(config: PlannedConfig, graph: "StoredGraph") -> dict[str, list[float]]:
    """Returns, for each static cache and budget, how many thousand rows per batch are not in the cache. Caches are filled before the first batch."""
    import numpy as np

    from graphmill.samplers.access.router import local_router
    from graphmill.samplers.methods.neighbor import NeighborSampler

    sampler = NeighborSampler(local_router(graph), neighbors(config), config.partitions)
    steps = min(sampler.num_batches // config.partitions, config.steps or sampler.num_batches)
    needed, degree = np.zeros(graph.manifest.num_nodes), np.concatenate([np.diff(p.indptr) for p in graph.partitions()])
    for epoch in range(config.epochs):
        for step in range(steps):
            needed[sampler.draw(epoch, [step * config.partitions + config.rank])[0].node] += 1
    far = np.ones(len(needed), bool)
    far[slice(*graph.offsets[config.rank : config.rank + 2])] = False
    budgets = [int(share * graph.manifest.num_nodes) for share in config.budgets]
    missing = {}
    for name, rank_by in (("most in-edges", degree), ("most needed", needed)):
        left = needed[far][np.argsort(-rank_by[far], kind="stable")]
        missing[f"static, {name}"] = [left[count:].sum() / (1e3 * config.epochs * steps) for count in budgets]
    return missing


def measure(config: PlannedConfig, graph: "StoredGraph", router: "Router", asked: Asked) -> Iterator[Row]:
    """Returns the row of the table for loading without a plan, and then the rows for every budget."""
    off, expected = load(config, router, asked, 0)
    yield off
    static = static_rows(config, graph)
    row_bytes = 1e3 * off.megabytes / off.rows
    room = router.empty_rows(1, feature=True, split_set=0, encodings=(), stored=True)
    kept_bytes = sum(column.nbytes for column in vars(room).values() if column is not None)
    for index, budget in enumerate(config.budgets):
        for what, rows in static.items():
            share = rows[index] / off.rows
            yield Row(f"{budget:.0%}, {what}", rows[index], share, rows[index] * row_bytes / 1e3, off.requests)
        row, digests = load(config, router, asked, int(budget * graph.manifest.num_nodes * kept_bytes))
        assert digests == expected, "a planned batch is another one"
        yield row._replace(what=f"{budget:.0%}, planned", share=row.rows / off.rows)


def main() -> None:
    config = parse(PlannedConfig, __doc__)
    import torch

    from graphmill.samplers.access.router import local_router
    from graphmill.storage.graph import open_graph
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest
    from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

    torch.set_num_threads(1)
    check_results(config.out)
    groups = "" if config.groups is None else f"-{config.groups}"
    name = f"planned-{config.nodes}-{config.partitions}-{config.partitioner}{groups}-{config.feature_dtype}"
    url = config.data_dir / name
    if not url.exists():
        ingest(
            SyntheticGraph(SyntheticOptions(num_nodes=config.nodes)),
            str(url),
            IngestOptions(
                num_partitions=config.partitions,
                partitioner=config.partitioner,
                groups=config.groups,
                feature_dtype=config.feature_dtype,
            ),
        )
    graph = open_graph(str(url))
    on = machine()  # describes the machine, with its load before the measurement
    columns = dict(zip(Row._fields, ("", ".1f", ".2f", ".1f", ".2f", ".3f", ".1f", ".1f", ""), strict=True))
    with ExitStack() as stack:
        if config.ray.address is None:
            asked = Asked(config.rank)
            router = local_router(graph, watch=asked.watch)
        else:
            from graphmill.cluster.options import ServerOptions
            from graphmill.cluster.ray.session import ray_session
            from graphmill.cluster.serving.partition_server import connect, partition_servers

            asked = Asked(None)
            stack.enter_context(ray_session(config.ray))
            servers = stack.enter_context(partition_servers(graph, ServerOptions(verify=False)))
            router = connect(servers, asked.watch)
        rows = []
        for row in measure(config, graph, router, asked):
            rows.append(row)
            print("\n".join(table(columns, [row])[0 if len(rows) == 1 else 2 :]), flush=True)
    text = "\n".join([on, "", *table(columns, rows)])
    keep(config.out, config, text, machine=on, rows=[row._asdict() for row in rows])
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
