"""Measures the speed of neighbor sampling on this machine, against the machine's limit and against peers: `graphmill bench sampling`.

    graphmill bench sampling --nodes 50000 --batches 5          # a quick look, about a minute
    graphmill bench sampling --dgl-python ~/dgl/bin/python      # size of ogbn-products: 3 minutes once, then about 5

Makes a synthetic graph of the size of ogbn-products under --data-dir if it does not exist, in one partition and in --partitions partitions. All measurements
use the same batches of roots:

- Graphmill's sampler with edge ids, relabelling and fresh arrays
- a loop that does the same dependent reads as the sampler and nothing else
- the gather of feature rows
- DGL 1.1.3, if --dgl-python names an interpreter that has it
- PyG, if --pyg-python names an interpreter that has torch-sparse
- Graphmill's sampler over partition servers, in process and with every answer from a server

The sampler, the loop, the gather and the peers take turns: each of --rounds rounds measures all of them. Every figure is the best of its rounds, and a share
is the median. Prints a table and writes it to results.md and results.json under --out. Run nothing else at the same time; if other work runs, compare
the CPU times of a batch.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, Size, check_fields
from graphmill.jobs.bench import peer_process
from graphmill.jobs.bench.peer_process import check_peer_options
from graphmill.jobs.bench.peers import Rates, Row
from graphmill.jobs.bench.results import check_arrays, check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.jobs.bench.sampling_measures import Effort
    from graphmill.samplers.vocabulary.options import NeighborOptions
    from graphmill.storage.graph import StoredGraph

_SIZE_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class BenchConfig:
    """Time neighbor sampling."""

    nodes: int = 2_449_029
    """Nodes of the synthetic graph. The mean degree is 50, as in ogbn-products."""
    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbors to draw per hop."""
    batch_size: Count = 1024
    """Number of roots per batch."""
    threads: tuple[Count, ...] = (1, 2)
    """Thread counts to time."""
    batches: Count = 20
    """Number of batches per round."""
    warmup: Size = 3
    """Number of warm-up batches before the first round."""
    rounds: Count = 3
    """Number of rounds; the best round counts."""
    partitions: Count = 4
    """Number of partitions for the measurements with partition servers."""
    wait_steps: Size = 5
    """Number of training steps in which waiting for batches is measured; 0 skips this measurement."""
    remote: bool = True
    """Also time partition servers (starts a local Ray)."""
    dgl_python: str | None = None
    """Python interpreter that has dgl 1.1.3."""
    pyg_python: str | None = None
    """Python interpreter that has torch-geometric and torch-sparse."""
    sizes: tuple[int, ...] = ()
    """More graph sizes, to measure how the cost of a batch grows."""
    data_dir: Path = Path("data/bench")
    """Directory in which the graphs are kept."""
    out: Path = Path("runs/bench-sampling")
    """Directory of the table."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_peer_options(self)
        if min((self.nodes, *self.sizes)) < 47:
            raise ConfigError(
                f"bench: expected at least 47 nodes, got {(self.nodes, *self.sizes)}; set --nodes or --sizes"
            )


def prepare(config: BenchConfig, nodes: int, partitions: int) -> "StoredGraph":
    """The synthetic graph in `partitions` partitions. Makes the graph if it does not exist."""
    from graphmill.jobs.config.config import NodeDataOptions
    from graphmill.jobs.data.prepare_graph import prepare_graph
    from graphmill.storage.graph import StoredGraph

    cut: Literal["random", "range"] = "random" if partitions > 1 else "range"
    folder = str(config.data_dir)
    options = NodeDataOptions(nodes=nodes, partitions=partitions, partitioner=cut, folder=folder)
    return prepare_graph(options, kind=StoredGraph)


def best_rows(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """Merges the rows of several rounds, which have the same names: the row with the highest value, or the median of shares."""
    merged = []
    for same in zip(*rounds, strict=True):
        best = max(same, key=lambda row: row.value or 0)
        is_share = best.unit == "%" and best.value is not None
        merged.append(best._replace(value=statistics.median(row.value or 0 for row in same)) if is_share else best)
    return merged


def our_rows(config: BenchConfig, graph: "StoredGraph", effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Measures Graphmill's sampler, the loop of the same reads, and Node2Subgraph."""
    from graphmill.jobs.bench.sampling_measures import batch_roots, time_reads, time_sampler, time_subgraphs
    from graphmill.samplers.access.router import local_router
    from graphmill.samplers.vocabulary.options import Node2SubgraphOptions

    router, roots = local_router(graph), batch_roots(graph, options, config.batches)
    for threads in config.threads:
        rate = time_sampler(router, replace(options, edge_columns=("id",)), threads, effort)
        note = f"{rate.edges_per_batch:,.0f} edges and {rate.nodes_per_batch:,.0f} nodes a batch"
        yield Row(f"ours: sampling, edge ids, relabelling; {threads} threads", rate.sampling / 1e6, "M edges/s", note)
        what = f"ours: the same and rows of ids, labels, splits; {threads} threads"
        yield Row(what, rate.whole / 1e6, "M edges/s", f"{rate.cpu_ms:.1f} ms CPU a batch")
        limit = time_reads(graph, roots, config.fanouts, threads, effort.rounds)
        yield Row(f"limit: the same reads alone; {threads} threads", limit / 1e6, "M edges/s")
        yield Row(f"share of the limit; {threads} threads", 100 * rate.sampling / limit, "%", "target 50")
    subgraphs = Node2SubgraphOptions(max_hops=10, max_nodes=100, batch_size=config.batch_size)
    for threads in config.threads:
        per_s, nodes, edges = time_subgraphs(router, subgraphs, threads, effort)
        note = f"{nodes:.1f} nodes and {edges:.0f} induced edges each, rows of ids, labels, splits"
        yield Row(f"ours: Node2Subgraph K=10, M=100; {threads} threads", per_s, "subgraphs/s", note)


def gather_rows(config: BenchConfig, graph: "StoredGraph") -> Iterator[Row]:
    """Measures the gather of feature rows from the mapped file in memory, as float32 and float16."""
    import numpy as np
    import torch

    from graphmill.jobs.bench.sampling_measures import time_gather

    feature = next(iter(graph.partitions())).feature
    assert feature is not None
    node = np.random.default_rng(1).permutation(len(feature))[: min(300_000, len(feature))]
    half = config.data_dir / f"half-{len(feature)}.npy"
    if not half.exists():
        np.save(half, feature.astype(np.float16))
    for name, mapped in (("float32", feature), ("float16", np.load(half, mmap_mode="r"))):
        mapped.sum(dtype=np.float64)  # reads the mapped pages into memory
        rate = time_gather(mapped, torch.from_numpy(np.array(mapped)), node, config.rounds)
        note = (
            f"into arrays of the pool, as a batch's; into fresh memory {rate['fresh']:.2f}; torch.index_select(out=) from "
            f"memory {rate['torch_out']:.2f}"
        )
        yield Row(f"feature rows, {name}, 1 thread", rate["pooled"], "GB/s", note)
        yield Row(f"feature rows, {name}: share of torch", 100 * rate["pooled"] / rate["torch_out"], "%", "target 90")


def peer_rows(config: BenchConfig, graph: "StoredGraph", options: "NeighborOptions") -> Iterator[Row]:
    """Measures DGL and PyG on the same topology and batches, each in its interpreter. Raises ConfigError with a peer's last line of output if it fails."""
    import numpy as np

    from graphmill.jobs.bench.sampling_measures import batch_roots

    folder = config.data_dir / f"csc-{config.nodes}"

    def write_inputs() -> dict[str, object]:
        check_arrays(folder)
        folder.mkdir(parents=True, exist_ok=True)
        roots = batch_roots(graph, options, config.warmup + config.batches)
        np.save(folder / "roots.npy", np.stack([roots_of_batch[: min(map(len, roots))] for roots_of_batch in roots]))
        if not (folder / "indices.npy").exists():
            partition = next(iter(graph.partitions()))
            np.save(folder / "indptr.npy", partition.indptr)
            np.save(folder / "indices.npy", partition.indices.astype(np.int64))
        return {"folder": str(folder)}

    for what, value, unit, note in peer_process.peer_rows(config, "--nodes", write_inputs):
        if isinstance(value, Rates):
            # Worker processes have CPU time of their own, which this figure does not have.
            cpu = "" if "worker processes" in what else f"; {value.cpu_ms:.1f} ms CPU a batch"
            yield Row(what, value.edges_per_s, unit, note + cpu)
        else:
            yield Row(what, value, unit, note)


def remote_rows(config: BenchConfig, effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Measures several partitions: in process, through servers whose partitions are read locally, and with every answer from a server."""
    from graphmill.cluster.options import ServerOptions, SessionOptions
    from graphmill.cluster.ray.session import ray_session
    from graphmill.cluster.serving.partition_server import connect, partition_servers
    from graphmill.jobs.bench.sampling_measures import batch_traffic, time_sampler
    from graphmill.samplers.access.router import local_router
    from graphmill.samplers.access.traffic import Traffic

    graph = prepare(config, config.nodes, config.partitions)
    where = f"{config.partitions} partitions, 1 thread"
    for name, row_options in (("topology", options), ("with features", replace(options, features=True))):
        local = time_sampler(local_router(graph), row_options, 1, effort).whole
        yield Row(f"{where}, in process, {name}", local / 1e6, "M edges/s")
        with ray_session(SessionOptions(num_cpus=2)), partition_servers(graph, ServerOptions(verify=False)) as servers:
            near = time_sampler(connect(servers), row_options, 1, effort).whole
            note = f"{100 * near / local:.0f} % of in process; target 70"
            yield Row(f"{where}, servers with local reads, {name}", near / 1e6, "M edges/s", note)
            traffic = Traffic(config.partitions)
            elsewhere = replace(servers, options=replace(servers.options, local_reads=False))
            router = connect(elsewhere, traffic.watch)
            far = time_sampler(router, row_options, 1, effort).whole
            moved = batch_traffic(router, traffic, row_options)
            note = (
                f"{100 * far / local:.0f} % of in process, target 30; {moved['remote_requests']} requests a batch; "
                f"{moved['sent_bytes'] / 1e6:.2f} MB out, {moved['received_bytes'] / 1e6:.2f} MB in"
            )
            yield Row(f"{where}, every answer from a server, {name}", far / 1e6, "M edges/s", note)


def size_rows(config: BenchConfig, effort: "Effort", options: "NeighborOptions") -> Iterator[Row]:
    """Measures Graphmill's sampler on other sizes at the same degree. Each size runs in a separate process, to measure its memory."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from graphmill.jobs.bench.sampling_measures import measure_size

    for nodes in config.sizes:
        url = prepare(config, nodes, 1).url
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            cost = pool.submit(measure_size, url, options, effort).result(timeout=_SIZE_TIMEOUT_S)
        rate = cost.rate
        note = (
            f"{1e3 * rate.edges_per_batch / rate.sampling:.1f} ms and {rate.nodes_per_batch:,.0f} nodes a batch; "
            f"{100 * rate.sampling / cost.limit:.0f} % of the limit loop's {cost.limit / 1e6:.1f}; private memory "
            f"{cost.before / 1e6:,.0f} MB, {cost.grown / 1e6:+.0f} MB over {effort.rounds * effort.batches} batches; a thread's map is "
            f"{4 * nodes / 1e6:.0f} MB"
        )
        yield Row(f"{nodes:,} nodes, 1 thread", rate.sampling / 1e6, "M edges/s", note)


def wait_rows(config: BenchConfig, graph: "StoredGraph") -> Iterator[Row]:
    """Measures the share of the training time spent waiting for batches."""
    from graphmill.jobs.bench.waits import Setting, measure_waits

    for wait in measure_waits(graph, Setting(config.wait_steps, config.fanouts)) if config.wait_steps else ():
        note = f"{1e3 * wait.total_s / wait.num_steps:,.0f} ms a step, {wait.parameters:,} parameters; target at most 5"
        yield Row(f"compute wait: {wait.name}", 100 * wait.share, "%", note)


def measure(config: BenchConfig) -> Iterator[Row]:
    """Runs all measurements, one at a time."""
    from graphmill.jobs.bench.sampling_measures import Effort
    from graphmill.samplers.vocabulary.options import NeighborOptions

    effort = Effort(config.batches, config.warmup, config.rounds)
    options = NeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size, features=False)
    graph = prepare(config, config.nodes, 1)
    yield Row("graph", graph.manifest.num_edges / 1e6, "M edges", f"{graph.manifest.num_nodes:,} nodes")
    one_round, of_one = replace(config, rounds=1), replace(effort, rounds=1)
    rounds = [
        [
            *our_rows(one_round, graph, of_one, options),
            *gather_rows(one_round, graph),
            *peer_rows(one_round, graph, options),
        ]
        for _ in range(config.rounds)
    ]
    yield from best_rows(rounds)
    yield from size_rows(config, effort, options)
    yield from wait_rows(config, graph)
    if config.remote:
        yield from remote_rows(config, effort, options)


def main() -> None:
    config = parse(BenchConfig, __doc__)
    import torch

    from graphmill.storage.filesystem.outputs import check_writable

    torch.set_num_threads(1)
    check_results(config.out)
    check_writable(config.data_dir, "choose another --data-dir")
    on, rows = machine(), []
    for row in measure(config):
        rows.append(row)
        value = "" if row.value is None else f"{row.value:10.2f} {row.unit}"
        print(f"{row.what:<72}{value:<22}{row.note}", flush=True)
    columns = {"measure": "", "value": ".2f", "unit": "", "note": ""}
    text = "\n".join([on, "", *table(columns, rows)])
    keep(config.out, config, text, machine=on, rows=[row._asdict() for row in rows])
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
