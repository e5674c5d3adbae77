"""Compares the speed of typed neighbor sampling in Graphmill, PyG and DGL, on one graph and the same roots: `python -m benchmarks typed`.

    python -m benchmarks typed --scale 0.01 --batches 5                 # a quick trial, seconds
    python -m benchmarks typed --dgl-python <…> --pyg-python <…>        # ogbn-mag's size: a minute or two for the graph, once; then about five minutes

Makes (once, under --data-dir) a synthetic graph like ogbn-mag: 1.94M papers, authors, institutions and fields, 21M edges of four relations,
the reverse edges that PyG's example adds (`ToUndirected`), and 128 float32 features for every node. Times batches of --batch-size papers with
--fanouts neighbors of every relation (10 and 10, as in PyG's example of ogbn-mag). Sampling is timed alone, and with the feature rows of all nodes.
Graphmill reads memory maps, and also returns permanent ids, labels and splits. DGL 1.1.3 runs if --dgl-python is given; PyG with torch-sparse or
pyg-lib runs if --pyg-python is given. Each of the two runs in its own interpreter and reads the same files into memory. You should see a table, also
written to results.md and results.json under --out. All take turns: each of --rounds rounds measures Graphmill and the others. Every figure is the best
of its rounds. Run nothing else at the same time; if other work runs, compare the CPU times of a batch.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphmill.core.option_checks import Count, Positive, Size, check_fields
from graphmill.jobs.bench import peer_process
from graphmill.jobs.bench.peer_process import check_peer_options
from graphmill.jobs.bench.peers import Rates
from graphmill.jobs.bench.results import check_arrays, check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.samplers.methods.neighbor import NeighborSampler
    from graphmill.storage.graph import TypedGraph


@dataclass(frozen=True)
class BenchConfig:
    """Time typed neighbor sampling."""

    scale: Positive = 1.0
    """Size of the graph, as a share of ogbn-mag's."""
    fanouts: tuple[int, ...] = (10, 10)
    """Neighbors per relation and hop."""
    batch_size: Count = 1024
    """Roots per batch."""
    threads: tuple[Count, ...] = (1, 2)
    """Thread counts to time."""
    batches: int = 20
    """Batches per round."""
    warmup: Size = 3
    """Batches before the first round."""
    rounds: Count = 3
    """Number of rounds; the best round counts."""
    dgl_python: str | None = None
    """Path of a Python interpreter with dgl 1.1.3."""
    pyg_python: str | None = None
    """Path of a Python interpreter with torch-geometric, and torch-sparse or pyg-lib."""
    data_dir: Path = Path("data/bench")
    """Folder of the graph."""
    out: Path = Path("runs/bench-typed")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self, batches=2)
        check_peer_options(self)


class Row(NamedTuple):
    """One line of the table. A missing value was not measured."""

    what: str
    batches_per_s: float | None
    edges_per_s: float | None = None  # in millions
    cpu_ms: float | None = None  # CPU time of a batch; None: it is not measured in other processes
    note: str = ""


def prepare(config: BenchConfig) -> "TypedGraph":
    """Returns the synthetic graph in one partition. Makes the graph if it does not exist."""
    from graphmill.jobs.cli.progress import progress
    from graphmill.storage.graph import open_graph
    from graphmill.storage.ingestion.ingest import ingest
    from graphmill.storage.ingestion.ingest_options import IngestOptions
    from graphmill.storage.snapshots.snapshots import has_graph
    from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag

    url = str(config.data_dir / f"mag-{config.scale:g}")
    if not has_graph(url):
        source = synthetic_mag(SyntheticMagOptions(scale=config.scale, features="all"))
        with progress("preparing the graph") as bar:
            ingest(
                source, url, IngestOptions(undirected=True), lambda stage, done, total: bar.update(done, total, stage)
            )
    return open_graph(url)


def our_samplers(config: BenchConfig, graph: "TypedGraph") -> "list[NeighborSampler]":
    """Returns two samplers over the mapped files: one without feature rows, and one with feature rows."""
    from graphmill.samplers.access.typed_router import typed_router
    from graphmill.samplers.methods.neighbor import NeighborSampler
    from graphmill.samplers.vocabulary.options import TypedNeighborOptions

    router, options = typed_router(graph), TypedNeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size)
    return [NeighborSampler(router, replace(options, features=features)) for features in (False, True)]


def batch_numbers(config: BenchConfig, num_batches: int) -> list[int]:
    """Returns the indices of the batches for warm-up, and then the indices of each round's batches."""
    return [i % num_batches for i in range(config.warmup + config.batches)]


def our_rows(config: BenchConfig, samplers: "list[NeighborSampler]") -> Iterator[Row]:
    from graphmill.jobs.bench.sampling_measures import rounds_of

    for sampler in samplers:
        numbers = batch_numbers(config, sampler.num_batches)

        def sample(number: int, sampler: "NeighborSampler" = sampler) -> tuple[int, int, float]:
            start = time.thread_time()
            batch = sampler.sample(0, number)
            return batch.num_edges, batch.num_nodes, time.thread_time() - start

        what = "ours: sampling, rows of ids, labels, splits" + (", features" if sampler.options.features else "")
        for threads in config.threads:
            first = numbers[: max(config.warmup, threads)]
            rounds = rounds_of(sample, numbers[config.warmup :], first, threads, config.rounds)
            seconds, done = min(rounds)
            edges, nodes, _ = (sum(column) for column in zip(*done, strict=True))
            cpu = min(sum(each for _, _, each in done) for _, done in rounds)
            note = f"{edges / config.batches:,.0f} edges and {nodes / config.batches:,.0f} nodes a batch"
            rates = config.batches / seconds, edges / seconds / 1e6, 1e3 * cpu / config.batches
            yield Row(f"{what}; {threads} threads", *rates, note)


def peer_rows(config: BenchConfig, graph: "TypedGraph", sampler: "NeighborSampler") -> Iterator[Row]:
    """Measures DGL and PyG on the same graph and roots, each in its interpreter. If one fails, raises ConfigError with the last line of its output."""
    import numpy as np

    folder = config.data_dir / f"mag-{config.scale:g}-csc"

    def write_inputs() -> dict[str, object]:
        check_arrays(folder)
        folder.mkdir(parents=True, exist_ok=True)
        roots = [sampler.roots_of(0, number) for number in batch_numbers(config, sampler.num_batches)]
        np.save(folder / "roots.npy", np.stack([some[: min(map(len, roots))] for some in roots]))
        if not (folder / "complete").exists():
            for node_type in graph.node_types:
                feature = graph.nodes(node_type).partition(0).feature_numbers()
                assert feature is not None
                np.save(folder / f"{node_type}.npy", feature)
            for relation in graph.relations:
                lists = graph.relation(relation).partition(0)
                np.save(folder / f"{relation}.indptr.npy", lists.indptr)
                np.save(folder / f"{relation}.indices.npy", lists.indices)
            (folder / "complete").touch()
        return {
            "folder": str(folder),
            "num_nodes": {node_type: graph.nodes(node_type).num_nodes for node_type in graph.node_types},
            "relations": [list(relation) for relation in graph.relations],
            "features": list(graph.node_types),
            "root_type": "paper",
        }

    for what, rates, _, note in peer_process.peer_rows(config, "--scale", write_inputs):
        if isinstance(rates, Rates):
            own_cpu_ms = None if "worker processes" in what else rates.cpu_ms
            yield Row(what, rates.batches_per_s, rates.edges_per_s, own_cpu_ms, note)
        else:
            yield Row(what, None, note=note)


def measure(config: BenchConfig) -> Iterator[Row]:
    """Measures all rows of the table, by turns."""
    graph, one_round = prepare(config), replace(config, rounds=1)
    samplers = our_samplers(config, graph)
    rounds = [[*our_rows(one_round, samplers), *peer_rows(one_round, graph, samplers[0])] for _ in range(config.rounds)]
    for same in zip(*rounds, strict=True):
        best = max(same, key=lambda row: row.batches_per_s or 0)
        cpu_ms = [row.cpu_ms for row in same if row.cpu_ms is not None]
        yield best._replace(cpu_ms=min(cpu_ms, default=None))


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
        rates = (
            "" if row.batches_per_s is None else f"{row.batches_per_s:8.2f} batches/s {row.edges_per_s:7.2f} M edges/s"
        )
        cpu = "" if row.cpu_ms is None else f"{row.cpu_ms:8.1f} ms CPU a batch"
        print(f"{row.what:<72}{rates:<38}{cpu:<24}{row.note}", flush=True)
    columns = {"measure": "", "batches/s": ".2f", "M edges/s": ".2f", "CPU ms a batch": ".1f", "note": ""}
    text = "\n".join([on, "", *table(columns, rows)])
    keep(config.out, asdict(config), text, machine=on, rows=[row._asdict() for row in rows])
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
