"""How fast neighbor sampling is here, against the machine's limit and against peers: `python -m jobs.bench sampling`.

    python -m jobs.bench sampling --nodes 50000 --batches 5          # a look, about a minute
    python -m jobs.bench sampling --dgl-python ~/dgl/bin/python      # products' size: prepared once in 3 minutes, then about 5

Makes (once, under --data-dir) a synthetic graph of ogbn-products' size in one and in --partitions partitions, and times on the same
batches of roots: our sampler with edge ids, relabelling and fresh arrays; a loop that does only the same dependent reads; the gather of
feature rows; DGL 1.1.3 where --dgl-python names an interpreter that has it; PyG where torch-sparse or pyg-lib is installed; and our
sampler over partition servers, in process, and with every answer through an actor. You should see a table, kept as results.md and
results.json under --out. Every figure is the best of --rounds rounds. Nothing else should run meanwhile.
"""

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.run.exit_codes import run
from jobs.run.option_checks import all_at_least_1, at_least, check_writable
from jobs.run.reader import parse
from storage.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from jobs.bench.sampling_measures import Effort
    from samplers.options import NeighborOptions
    from storage.graph import StoredGraph


_SIZE_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class BenchConfig:
    """Time neighbor sampling."""

    nodes: int = 2_449_029
    """Size of the synthetic graph; its mean degree is 50, as ogbn-products has it."""
    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbors per hop."""
    batch_size: int = 1024
    """Roots per batch."""
    threads: tuple[int, ...] = (1, 2)
    """Thread counts to time."""
    batches: int = 20
    """Batches per round."""
    warmup: int = 3
    """Batches before the first round."""
    rounds: int = 3
    """Rounds; the best counts."""
    partitions: int = 4
    """Partitions of the remote measures."""
    wait_steps: int = 5
    """Training steps in which waiting for batches is counted; 0: none."""
    remote: bool = True
    """Time partition servers too (starts a local Ray)."""
    dgl_python: str | None = None
    """An interpreter with dgl 1.1.3."""
    pyg_python: str | None = None
    """An interpreter with torch-geometric and torch-sparse."""
    sizes: tuple[int, ...] = ()
    """More graph sizes, to see how a batch's cost grows."""
    data_dir: str = "data/bench"
    """Where graphs are kept."""
    out: str = "runs/bench-sampling"
    """Where the table goes."""

    def __post_init__(self) -> None:
        for name, least in (
            ("batches", 1),
            ("rounds", 1),
            ("partitions", 1),
            ("batch_size", 1),
            ("warmup", 0),
            ("wait_steps", 0),
        ):
            at_least(self, name, least)
        all_at_least_1(self, "threads")
        if not all(fanout > 0 or fanout == -1 for fanout in self.fanouts):
            raise ConfigError(f"fanouts: expected at least 1 per hop, or -1 for all, got {self.fanouts}; set --fanouts")
        if not self.fanouts or min((self.nodes, *self.sizes)) < 47:
            raise ConfigError(
                f"bench: expected a fan-out and at least 47 nodes, got {self.fanouts} and {(self.nodes, *self.sizes)}; set --fanouts, "
                "--nodes or --sizes"
            )
        for python in (self.dgl_python, self.pyg_python):
            if python is not None and shutil.which(python) is None:
                raise ConfigError(f"{python}: expected an interpreter, found none; set --dgl-python or --pyg-python")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: float
    unit: str
    note: str = ""


def prepare(config: BenchConfig, nodes: int, partitions: int) -> "StoredGraph":
    """The synthetic graph in so many partitions, made if it is not there."""
    from jobs.run.progress import progress
    from storage.graph import open_graph
    from storage.ingest import IngestOptions, ingest
    from storage.snapshots import has_graph
    from storage.synthetic import SyntheticGraph, SyntheticOptions

    url = Path(config.data_dir) / f"synthetic-{nodes}-{partitions}"
    if not has_graph(str(url)):
        with progress(f"preparing {nodes:,} nodes in {partitions}") as bar:
            ingest(
                SyntheticGraph(SyntheticOptions(num_nodes=nodes)),
                str(url),
                IngestOptions(
                    num_partitions=partitions,
                    partitioner="random" if partitions > 1 else "range",
                    edge_ids=partitions > 1,
                ),
                lambda stage, done, total: bar.update(done, total, stage),
            )
    return open_graph(str(url))


def our_rows(config: BenchConfig, graph: "StoredGraph", effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Our sampler, and the loop of the same reads."""
    from dataclasses import replace

    from jobs.bench.sampling_measures import time_reads, time_sampler
    from samplers.router import local_router

    router = local_router(graph)
    roots = batch_roots(graph, config)
    for threads in config.threads:
        rate = time_sampler(router, replace(options, edge_columns=("id",)), threads, effort)
        note = f"{rate.edges_per_batch:,.0f} edges and {rate.nodes_per_batch:,.0f} nodes a batch"
        yield Row(
            f"ours: sampling, edge ids, relabelling; {threads} threads", rate.sampling.best / 1e6, "M edges/s", note
        )
        yield Row(
            f"ours: the same and rows of ids, labels, splits; {threads} threads", rate.whole.best / 1e6, "M edges/s"
        )
        limit = time_reads(next(iter(graph.partitions())), roots, config.fanouts, threads, effort)
        yield Row(f"limit: the same reads alone; {threads} threads", limit.best / 1e6, "M edges/s")
        yield Row(f"share of the limit; {threads} threads", 100 * rate.sampling.best / limit.best, "%", "target 50")


def batch_roots(graph: "StoredGraph", config: BenchConfig) -> "list[np.ndarray]":
    """Stored ids of the roots of our batches of epoch 0, in their order: what every peer samples around."""
    from samplers.neighbor import NeighborSampler
    from samplers.options import NeighborOptions
    from samplers.router import local_router

    options = NeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size, features=False)
    router = local_router(graph)
    sampler = NeighborSampler(router, options)
    return [
        router.find_nodes(sampler.roots_of(0, i % sampler.num_batches)) for i in range(config.warmup + config.batches)
    ]


def gather_rows(config: BenchConfig, graph: "StoredGraph") -> Iterator[Row]:
    """Feature rows from the warm map, as float32 and float16."""
    import numpy as np
    import torch

    from jobs.bench.sampling_measures import time_gather

    feature = next(iter(graph.partitions())).feature
    assert feature is not None
    node = np.random.default_rng(1).permutation(len(feature))[: min(300_000, len(feature))]
    half = Path(config.data_dir) / f"half-{len(feature)}.npy"
    if not half.exists():
        np.save(half, feature.astype(np.float16))
    for name, mapped in (("float32", feature), ("float16", np.load(half, mmap_mode="r"))):
        mapped.sum(dtype=np.float64)  # warm
        rate = time_gather(mapped, torch.from_numpy(np.array(mapped)), node, config.rounds)
        yield Row(
            f"feature rows, {name}, 1 thread",
            rate["pooled"],
            "GB/s",
            f"into arrays of the pool, as a batch's; into fresh memory {rate['fresh']:.2f}; torch.index_select(out=) from "
            f"memory {rate['torch_out']:.2f}",
        )
        yield Row(f"feature rows, {name}: share of torch", 100 * rate["pooled"] / rate["torch_out"], "%", "target 90")


def dgl_rows(config: BenchConfig, graph: "StoredGraph", effort: "Effort") -> Iterator[Row]:
    """DGL on the same topology and batches, in its own interpreter."""
    from jobs.bench.sampling_peers import run_peer, write_csc

    if config.dgl_python is None:
        yield Row("DGL 1.1.3 NeighborSampler", float("nan"), "", "not measured; pass --dgl-python")
        return
    folder = Path(config.data_dir) / f"csc-{config.nodes}"
    write_csc(folder, graph, batch_roots(graph, config))
    found = run_peer("dgl_peer.py", config.dgl_python, folder, config.fanouts, config.threads, effort)
    for result in found["results"]:
        rates = [edges / seconds for seconds, edges in result["rounds"]]
        per_batch = result["rounds"][0][1] / config.batches
        yield Row(
            f"DGL {found['version']} NeighborSampler; {result['threads']} threads",
            max(rates) / 1e6,
            "M edges/s",
            f"edge ids and blocks; samples every node again per layer: {per_batch:,.0f} edges a batch",
        )


def subgraph_rows(config: BenchConfig, graph: "StoredGraph", effort: "Effort") -> Iterator[Row]:
    """Node2Subgraph, one thread and two."""
    from jobs.bench.sampling_measures import time_subgraphs
    from samplers.options import Node2SubgraphOptions
    from samplers.router import local_router

    options = Node2SubgraphOptions(max_hops=10, max_nodes=100, batch_size=config.batch_size)
    for threads in config.threads:
        rate = time_subgraphs(local_router(graph), options, threads, effort)
        yield Row(
            f"ours: Node2Subgraph K=10, M=100; {threads} threads",
            rate.per_s.best,
            "subgraphs/s",
            f"{rate.nodes:.1f} nodes and {rate.edges:.0f} induced edges each, rows of ids, labels, splits",
        )


def pyg_rows(config: BenchConfig, graph: "StoredGraph", effort: "Effort") -> Iterator[Row]:
    """PyG on the same topology and batches, in its own interpreter."""
    from jobs.bench.sampling_peers import run_peer, write_csc

    if config.pyg_python is None:
        yield Row("PyG NeighborLoader", float("nan"), "", "not measured; pass --pyg-python (needs torch-sparse)")
        return
    folder = Path(config.data_dir) / f"csc-{config.nodes}"
    write_csc(folder, graph, batch_roots(graph, config))
    found = run_peer("pyg_peer.py", config.pyg_python, folder, config.fanouts, config.threads, effort)
    name = f"PyG {found['version']}"
    for result in found["loaders"]:
        rates = [edges / seconds for seconds, edges in result["rounds"]]
        where = f"{result['workers']} worker processes" if result["workers"] else "in process"
        yield Row(
            f"{name} NeighborLoader, torch-sparse; {where}", max(rates) / 1e6, "M edges/s", "edge ids and relabelling"
        )
    seconds, count, nodes, edges = min(found["shadow"])
    yield Row(
        f"{name} ShaDowKHopSampler, depth 2, 10 neighbors",
        count / seconds,
        "subgraphs/s",
        f"{nodes / count:.1f} nodes and {edges / count:.0f} induced edges each",
    )
    seconds, count, nodes = min(found["k_hop"])
    yield Row(f"{name} k_hop_subgraph, 2 hops", count / seconds, "subgraphs/s", f"{nodes:,} nodes in the fastest")


def remote_rows(config: BenchConfig, effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Several partitions: in process, through servers that read locally, and with every answer through an actor."""
    from dataclasses import replace

    from cluster.options import ServerOptions, SessionOptions
    from cluster.partition_server import RemoteOwner, connect, partition_servers
    from cluster.session import ray_session
    from jobs.bench.sampling_measures import CountingOwner, time_remote, time_sampler
    from samplers.router import Router, local_router

    graph = prepare(config, config.nodes, config.partitions)
    where = f"{config.partitions} partitions, 1 thread"
    for name, some in (("topology", options), ("with features", replace(options, features=True))):
        local = time_sampler(local_router(graph), some, 1, effort)
        yield Row(f"{where}, in process, {name}", local.whole.best / 1e6, "M edges/s")
        with ray_session(SessionOptions(num_cpus=2)), partition_servers(graph, ServerOptions(verify=False)) as servers:
            near = time_sampler(connect(servers), some, 1, effort)
            yield Row(
                f"{where}, servers with local reads, {name}",
                near.whole.best / 1e6,
                "M edges/s",
                f"{100 * near.whole.best / local.whole.best:.0f} % of in process; target 70",
            )
            owners = [
                CountingOwner(RemoteOwner(handle, index, servers.options.timeout_s))
                for index, handle in enumerate(servers.handles)
            ]
            cost = time_remote(Router(graph.manifest, owners), owners, some, effort)
            calls = ", ".join(f"{count:g} {kind}" for kind, count in cost.calls_per_batch.items())
            yield Row(
                f"{where}, every answer through an actor, {name}",
                cost.rate.whole.best / 1e6,
                "M edges/s",
                f"{100 * cost.rate.whole.best / local.whole.best:.0f} % of in process, target 30; {calls} a batch; "
                f"{cost.sent_bytes_per_batch / 1e6:.2f} MB out, {cost.received_bytes_per_batch / 1e6:.2f} MB in",
            )


def size_rows(config: BenchConfig, effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Our sampler on other sizes at the same degree, each in a process of its own, so that memory is that size's alone."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from jobs.bench.sampling_measures import measure_size

    for nodes in config.sizes:
        url = prepare(config, nodes, 1).url
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found = pool.submit(measure_size, url, options, effort).result(timeout=_SIZE_TIMEOUT_S)
        yield Row(
            f"{nodes:,} nodes, 1 thread",
            found.edges_per_s / 1e6,
            "M edges/s",
            f"{found.milliseconds:.1f} ms and {found.nodes_per_batch:,.0f} nodes a batch; {100 * found.edges_per_s / found.limit:.0f} % of the "
            f"limit loop's {found.limit / 1e6:.1f}; private memory {found.before / 1e6:,.0f} MB, {found.grown / 1e6:+.0f} MB over "
            f"{effort.rounds * effort.batches} batches; a thread's map is {4 * nodes / 1e6:.0f} MB",
        )


def wait_rows(config: BenchConfig, graph: "StoredGraph") -> Iterator[Row]:
    """How long training waits for batches."""
    from jobs.plan.compute_waits import measure_waits

    for wait in measure_waits(graph, config.fanouts, config.wait_steps) if config.wait_steps else ():
        yield Row(
            f"compute wait: {wait.name}",
            100 * wait.share,
            "%",
            f"{1e3 * wait.total_s / wait.num_steps:,.0f} ms a step, {wait.parameters:,} parameters; target at most 5",
        )


@contextmanager
def _single_threaded_torch() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(config: BenchConfig) -> Iterator[Row]:
    """All rows, one after the other."""
    from jobs.bench.sampling_measures import Effort
    from samplers.options import NeighborOptions

    effort = Effort(config.batches, config.warmup, config.rounds)
    options = NeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size, features=False)
    graph = prepare(config, config.nodes, 1)
    manifest = graph.manifest
    yield Row("graph", manifest.num_edges / 1e6, "M edges", f"{manifest.num_nodes:,} nodes")
    with _single_threaded_torch():
        yield from our_rows(config, graph, effort, options)
        yield from gather_rows(config, graph)
        yield from subgraph_rows(config, graph, effort)
        yield from dgl_rows(config, graph, effort)
        yield from pyg_rows(config, graph, effort)
        yield from size_rows(config, effort, options)
        yield from wait_rows(config, graph)
        if config.remote:
            yield from remote_rows(config, effort, options)


def as_markdown(rows: list[Row], machine: dict[str, Any]) -> str:
    lines = [
        ", ".join(f"{name}: {value}" for name, value in machine.items()),
        "",
        "| measure | value | | note |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {'–' if row.value != row.value else f'{row.value:.2f}'} | {row.unit} | {row.note} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def describe_machine() -> dict[str, Any]:
    import numba
    import numpy as np
    import torch

    cpu = next(
        (x.split(":")[1].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")), platform.machine()
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> int | None:
    config = parse(BenchConfig, __doc__)
    check_writable(Path(config.out), "--out")
    check_writable(Path(config.data_dir), "--data-dir")
    machine = describe_machine()
    rows = []
    for row in measure(config):
        rows.append(row)
        value = "" if row.value != row.value else f"{row.value:10.2f} {row.unit}"
        print(f"{row.what:<72}{value:<22}{row.note}", flush=True)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    body = {"machine": machine, "config": asdict(config), "rows": [asdict(row) for row in rows], "argv": sys.argv[1:]}
    (out / "results.json").write_text(json.dumps(body, indent=1) + "\n")
    (out / "results.md").write_text(as_markdown(rows, machine))
    print(f"kept in {out}/results.md and results.json")
    return None


if __name__ == "__main__":
    run(main)
