"""Measures, with each partitioner, the ingestion of a synthetic graph that is larger than memory: `python -m benchmarks ingest`.

    python -m benchmarks ingest                                                          # 1M nodes, 16M edges, under a minute
    python -m benchmarks ingest --nodes 2000000 --edges 32000000 --partitioners random range ldg metis --partitions 8
    python -m benchmarks ingest --nodes 100000000 --edges 1600000000 --reserve-gib 8     # 14 GB of disk, see docs/performance.md

Each row of the table is measured in a new process. The process generates the graph's topology while it reads it (ldg reads it twice), writes the
partitions under --work and syncs them. Before each row, one file is written sequentially and synced, which measures the disk's own rate. The
graph is removed at the end of the row.

You should see a table: edges/s, peak resident memory, bytes written, and the write rate as a share of the disk's own rate, for all bytes written
and for the stored graph alone. The target is a share of at least 40 % with at most 4 GB of memory. random cuts the share 1 - 1/partitions of the
edges; ldg and metis cut fewer. results.md and results.json are written to --out. If a row fails, its name is printed, the other rows continue,
and the exit code is 1. A size that does not fit the disk is refused at once.
"""

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphmill.core.errors import ConfigError, GraphmillError
from graphmill.core.option_checks import Amount, Count, Positive, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from benchmarks.ingest_cost import IngestCost
    from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
    from graphmill.storage.ingestion.ingest import IngestOptions

Partitioner = Literal["random", "range", "ldg", "metis"]

_METIS_BYTES_PER_EDGE = 100  # estimate for the edge lists, and for the adjacency in scipy's and in METIS's form
_PROBE_BLOCK_BYTES = 16 << 20
_SOURCE_EDGES = 50_000_000  # enough to measure the source's rate


@dataclass(frozen=True)
class BenchIngestConfig:
    """Ingest a synthetic graph with each partitioner and compare the write rate to the disk's own."""

    nodes: Count = 1_000_000
    """Nodes of the graph."""
    edges: Count = 16_000_000
    """Number of directed edges; both directions of a pair count. The generated number differs from it by a few per cent."""
    partitioners: tuple[Partitioner, ...] = ("random", "range", "ldg")
    """Partitioners to measure, one row each, in this order."""
    partitions: Count = 16
    """Partitions of each row."""
    memory_mib: int = 1024
    """Memory budget of ingestion for chunks and buckets."""
    seed: int = 0
    """Seed of the graph and of the partitioner."""
    work: Path | None = None
    """Folder on the disk to measure; graphs are written and removed there. Default: --out."""
    reserve_gib: Amount = 2.0
    """Space that must stay free on the measured disk."""
    probe_mib: Count = 2048
    """Largest size of the file that is written to measure the disk. For a smaller graph, the file has the graph's size."""
    timeout_s: Positive = 7200.0
    """Time limit of a row."""
    out: Path = Path("runs/bench-ingest")
    """Folder of the table."""

    def __post_init__(self) -> None:
        if not self.partitioners:
            raise ConfigError("partitioners: expected at least one, got none; set --partitioners")
        check_fields(self, memory_mib=16)

    @property
    def folder(self) -> Path:
        return self.work or self.out

    def options(self, partitioner: Partitioner) -> "IngestOptions":
        from graphmill.storage.ingestion.ingest import IngestOptions

        return IngestOptions(
            num_partitions=self.partitions,
            partitioner=partitioner,
            seed=self.seed,
            memory_budget_bytes=self.memory_mib << 20,
        )


class BareGraph:
    """The synthetic graph, but its nodes have no features, labels or splits."""

    def __init__(self, config: BenchIngestConfig) -> None:
        from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

        classes = min(47, config.nodes)
        try:
            options = SyntheticOptions(
                config.nodes, config.edges / config.nodes, num_classes=classes, feature_dim=1, seed=config.seed
            )
        except ConfigError as error:
            raise ConfigError(f"{error}; set --edges or --nodes") from None
        self._graph = SyntheticGraph(options)

    @property
    def info(self) -> "SourceInfo":
        from graphmill.storage.format.source import SourceInfo

        full = self._graph.info
        return SourceInfo(full.name, full.num_nodes, full.num_edges, symmetric=True, provenance=full.provenance)

    def edges(self, chunk_edges: int) -> "Iterator[EdgeChunk]":
        return self._graph.edges(chunk_edges)

    def nodes(self, chunk_nodes: int) -> "Iterator[NodeChunk]":
        from graphmill.storage.format.source import NodeChunk

        return iter([NodeChunk()])


def check_disk(cost: "IngestCost", free_bytes: int, reserve_gib: float, folder: Path) -> None:
    """Raises ConfigError if the largest row does not fit `free_bytes` of disk."""
    left = free_bytes - int(reserve_gib * 2**30)
    if cost.peak_disk > left:
        raise ConfigError(
            f"{folder}: the ingestion needs about {cost.peak_disk / 2**30:.1f} GiB of disk at once, {max(0, left) / 2**30:.1f} GiB are "
            f"there beyond the reserve of {reserve_gib:g} GiB; lower --edges or --nodes, or name another disk with --work"
        )


def check_memory(partitioner: str, cost: "IngestCost", num_edges: int, available_bytes: int) -> None:
    """Raises ConfigError if a row's estimate exceeds the free memory."""
    needed = cost.memory + (num_edges * _METIS_BYTES_PER_EDGE if partitioner == "metis" else 0)
    if needed > 0.9 * available_bytes:
        advice = "choose ldg, or lower --edges" if partitioner == "metis" else "lower --memory-mib or --nodes"
        raise ConfigError(
            f"{partitioner} needs about {needed / 2**30:.1f} GiB of memory, {available_bytes / 2**30:.1f} GiB are free; {advice}"
        )


def disk_rate(folder: Path, num_bytes: int) -> float:
    """Writes one file sequentially and fsyncs it. Returns the bytes per second."""
    block = os.urandom(min(num_bytes, _PROBE_BLOCK_BYTES))
    blocks = -(-num_bytes // len(block))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-", buffering=0) as file:
        start_s = time.perf_counter()
        for _ in range(blocks):
            file.write(block)
        os.fsync(file.fileno())
        return blocks * len(block) / (time.perf_counter() - start_s)


def source_rate(config: BenchIngestConfig) -> float:
    """Returns the edges per second that the generator alone makes."""
    count, start_s = 0, 0.0
    for chunk in BareGraph(config).edges(1 << 20):
        if start_s:  # the first chunk is left out, because it includes compilation
            count += len(chunk.src)
        start_s = start_s or time.perf_counter()
        if count >= _SOURCE_EDGES:
            break
    return count / (time.perf_counter() - start_s) if count else float("nan")


def written_bytes() -> int:
    """Returns the bytes that this process wrote to disks. Files that were removed before they reached a disk do not count."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def ingest_row(partitioner: Partitioner, config: BenchIngestConfig, folder: Path) -> dict[str, Any]:
    """Measures one row of the table. Runs in a separate process."""
    from benchmarks.ingest_cost import ingest_cost
    from graphmill.jobs.machine.memory_check import available_bytes
    from graphmill.storage.ingestion.ingest import ingest

    source, options = BareGraph(config), config.options(partitioner)
    check_memory(partitioner, ingest_cost(source.info, options), config.edges, available_bytes())
    small = replace(config, nodes=1000, edges=16_000, partitions=min(8, config.partitions))
    # ingests a small graph first, which compiles the loops
    ingest(BareGraph(small), str(folder / "small"), small.options(partitioner))
    return timed_ingestion(partitioner, source, folder / "graph", options)


def timed_ingestion(
    partitioner: Partitioner, source: "BareGraph", graph: Path, options: "IngestOptions"
) -> dict[str, Any]:
    """Ingests to the disk. Returns the seconds of each stage, the bytes, the memory, and the graph's `quality`."""
    from graphmill.core.process_memory import own_bytes
    from graphmill.jobs.cli.progress import progress
    from graphmill.storage.ingestion.ingest import ingest

    stages: dict[str, float] = {}
    with progress(partitioner) as bar:
        current, since_s = "nodes", time.perf_counter()
        start_s, written, cpu_s = since_s, written_bytes(), time.process_time()

        def report(stage: str, done: int, total: int | None) -> None:
            nonlocal current, since_s
            now_s = time.perf_counter()
            ended = current if done == 0 else stage  # a stage reports 0 when it starts, and then its progress
            stages[ended] = stages.get(ended, 0.0) + now_s - since_s
            current, since_s = stage, now_s
            bar.update(done, None if total is None else max(done, total), stage)

        manifest = ingest(source, str(graph), options, report)
        report("sync", 0, None)
        for path in graph.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        report("", 0, None)
    return {
        "edges": manifest.num_edges,
        "seconds": since_s - start_s,
        "cpu_seconds": time.process_time() - cpu_s,
        "stages": stages,
        "written_bytes": written_bytes() - written,
        "graph_bytes": sum(entry.num_bytes for entry in manifest.files.values()),
        "peak_bytes": own_bytes("VmHWM"),
        **quality(str(graph)),
    }


def quality(url: str) -> dict[str, float]:
    """Returns the share of edges between partitions, and the largest partition's nodes and edges, divided by the mean over partitions."""
    from graphmill.jobs.inspect_graph import measure as measure_balance
    from graphmill.storage.graph import open_graph

    balance = measure_balance(open_graph(url))
    nodes, edges = balance.nodes_per_partition, balance.edges_per_partition
    return {
        "cut": balance.num_cut_edges / max(1, sum(edges)),
        "node_balance": max(nodes) / statistics.mean(nodes),
        "edge_balance": max(edges) / max(1, statistics.mean(edges)),
    }


def measure(partitioner: Partitioner, config: BenchIngestConfig, probe_bytes: int) -> dict[str, Any]:
    """Measures the disk's rate, and then one row. The row of a failed measurement contains the reason."""
    with (
        tempfile.TemporaryDirectory(prefix=".bench-ingest-", dir=config.folder) as folder,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        rate = disk_rate(Path(folder), probe_bytes)
        try:
            row = pool.submit(ingest_row, partitioner, config, Path(folder)).result(config.timeout_s)
        except TimeoutError:
            row = {"error": f"not done after {config.timeout_s:g} s; raise --timeout-s"}
        except BrokenProcessPool:
            row = {"error": "the process ended without a result: killed, as for lack of memory"}
        except (GraphmillError, OSError, MemoryError) as error:
            row = {"error": " ".join(str(error).split()) or type(error).__name__}
        finally:
            # The child process is stopped also after a signal, because the folder cannot be removed while the child writes into it.
            for child in multiprocessing.active_children():
                child.kill()
    return {"partitioner": partitioner, "disk_bytes_per_s": rate} | row


def describe(rows: list[dict[str, Any]], source: float, config: BenchIngestConfig) -> str:
    """Returns the table as Markdown."""
    disk = statistics.median(row["disk_bytes_per_s"] for row in rows)
    done = []
    for row in rows:
        if "error" in row:
            continue
        figures = {"edges/s": row["edges"] / row["seconds"]}
        figures |= {f"{kind}, GB": row[f"{kind}_bytes"] / 1e9 for kind in ("peak", "written", "graph")}
        rates = {kind: row[f"{kind}_bytes"] / row["seconds"] for kind in ("written", "graph")}
        done.append(row | figures | {f"{kind}, of the disk's rate": rate / disk for kind, rate in rates.items()})
    columns = {"partitioner": "", "edges": ",", "seconds": ".1f", "cpu_seconds": ".1f", "edges/s": ",.0f"}
    columns |= {"peak, GB": ".2f", "written, GB": ".1f", "written, of the disk's rate": ".0%"}
    columns |= {"graph, GB": ".1f", "graph, of the disk's rate": ".0%"}
    columns |= {"cut": ".1%", "node_balance": ".3f", "edge_balance": ".3f"}
    lines = [
        f"{config.nodes:,} nodes in {config.partitions} partitions, budget {config.memory_mib} MiB; {machine()}. The disk writes "
        f"{disk / 1e6:,.0f} MB/s (median of {len(rows)}), the generator alone makes {source / 1e6:.1f} M edges/s.",
        "",
        *table(columns, done),
        *(f"\n{row['partitioner']} failed: {row['error']}" for row in rows if "error" in row),
    ]
    return "\n".join(lines)


def main() -> int:
    config = parse(BenchIngestConfig, __doc__)
    from benchmarks.ingest_cost import ingest_cost
    from graphmill.storage.filesystem.outputs import check_writable, existing_part

    cost = ingest_cost(BareGraph(config).info, config.options(config.partitioners[0]))
    check_results(config.out)
    check_writable(config.folder, "choose another --work")
    check_disk(cost, shutil.disk_usage(existing_part(config.folder)).free, config.reserve_gib, config.folder)
    config.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{config.nodes:,} nodes, {config.edges:,} edges: {cost.peak_disk / 1e9:.1f} GB of disk at once, {cost.written / 1e9:.1f} GB to write, "
        f"{cost.memory / 1e9:.1f} GB of memory",
        flush=True,
    )
    source = source_rate(config)
    rows: list[dict[str, Any]] = []
    for partitioner in config.partitioners:
        rows.append(measure(partitioner, config, min(config.probe_mib << 20, max(1, cost.graph))))
        text = describe(rows, source, config)
        # The results are written after each row, so that an interrupted run keeps its rows.
        keep(config.out, config, text, source_edges_per_s=source, cost=cost, rows=rows)
    print(text)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    run(main)
