"""Writes a graph as Arrow partitions: `python jobs/ingest.py <source> <url> --partitions 4 --partitioner ldg`.

    python jobs/ingest.py synthetic runs/synthetic                            # 20,000 nodes, about 3 s
    python jobs/ingest.py synthetic runs/big --synthetic.num-nodes 2000000
    python jobs/ingest.py ogbn-products s3://bucket/products --partitioner ldg
    python jobs/ingest.py minesweeper.npz runs/minesweeper
    python jobs/ingest.py edges.parquet runs/mine --edge-list.features x.npy --edge-list.labels y.csv

You should see a progress bar, then what was written. Exit code 1 and one line where the source is not a valid graph; nothing is
then left at the url. PyG and DGL objects are ingested from Python: `ingest(pyg_graph(data), url)`.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from jobs.run.exit_codes import run
from jobs.run.reader import parse
from storage.importers.edge_list_options import EDGE_ENDINGS, EdgeListOptions
from storage.synthetic import SyntheticOptions

if TYPE_CHECKING:
    from storage.source import GraphSource


@dataclass(frozen=True)
class IngestConfig:
    """Write a graph as Arrow partitions that lie at an fsspec URL."""

    source: str
    """`synthetic`, an OGB node set (`ogbn-products`, `ogbn-arxiv`), a `.npz` file, or an edge list (.parquet, .csv, .tsv, .txt, .mtx, also .gz)."""
    url: str
    """Where to write: a path, or file://, s3://, gs://. Must be absent or empty, or with --overwrite a graph; never a folder of other files."""
    partitions: int = 4
    """Number of partitions."""
    partitioner: Literal["random", "range", "ldg", "metis"] = "random"
    """random and range: equal shares, edges unseen; ldg: streaming greedy, fewer cut edges; metis: fewest, in memory."""
    seed: int = 0
    """Of the partitioner; --synthetic.seed makes another graph."""
    reverse_edges: Literal["auto", "add", "keep"] = "auto"
    """add: store every edge's reverse too and one of equal edges, their weights and features summed; keep: the edges as they are; auto: add
    for sources that give undirected edges once and for OGB's citation graphs."""
    drop_duplicates: bool = False
    """Keep the first of several equal edges, with its own weight and features."""
    drop_self_loops: bool = False
    """Leave out edges from a node to itself."""
    edge_ids: bool = False
    """Store each edge's position in the source."""
    out_edges: bool = False
    """Store lists of out-edges too, where they differ from the in-edges."""
    feature_dtype: Literal["float16", "float32"] = "float32"
    """How features are stored."""
    allow_nonfinite: bool = False
    """Take NaN and infinite features instead of refusing them."""
    num_classes: int | None = None
    """Number of classes; labels outside are refused. Default: what the source says, else one more than the largest label."""
    overwrite: bool = False
    """Publish a new snapshot of the graph at the url. The old ones stay, open graphs too, until jobs/prune.py removes them."""
    memory_mib: int = 1024
    """Budget for chunks and buckets, besides about 20 bytes per node."""
    threads: int | None = None
    """Threads that group and sort edges, as far as the budget allows. Default: one per core."""
    scratch: str | None = None
    """Local directory for temporary files; default: in the graph's folder, or the system's where the url is remote."""
    ogb_root: str = "data/ogb"
    """Where OGB sets lie: ogbn-products in <ogb-root>/ogbn_products."""
    download: bool = True
    """Download an OGB set that is not there (ogbn-products: 1.4 GB)."""
    synthetic: SyntheticOptions = field(default_factory=SyntheticOptions)
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)


def build_source(config: IngestConfig, progress) -> "GraphSource":
    """The source that `config.source` names. ConfigError for a name of no known kind, DataError for unusable data."""
    from storage.errors import ConfigError

    name = config.source
    if name == "synthetic":
        from storage.synthetic import SyntheticGraph

        return SyntheticGraph(config.synthetic)
    if name.startswith("ogbn-"):
        from storage.importers.ogb_nodes import ogb_graph

        return ogb_graph(name, config.ogb_root, download=config.download, progress=progress)
    if name.endswith(".npz"):
        from storage.importers.npz_file import npz_graph

        return npz_graph(name)
    if name.endswith(EDGE_ENDINGS):
        from storage.importers.edge_list import EdgeListGraph

        return EdgeListGraph(name, config.edge_list)
    raise ConfigError(
        f"unknown source {name!r}: expected synthetic, ogbn-<name>, or a file ending in .npz, {', '.join(EDGE_ENDINGS)}"
    )


def add_reverse(config: IngestConfig) -> bool | None:
    """What `reverse_edges` means for this source, as `IngestOptions.undirected`."""
    if config.reverse_edges != "auto":
        return config.reverse_edges == "add"
    if config.source.startswith("ogbn-"):
        from storage.importers.ogb_nodes import is_directed

        return True if is_directed(config.source) else None
    return None


def refuse_memory(url: str) -> None:
    """ConfigError for a url whose graph would be gone with this process."""
    from fsspec.implementations.memory import MemoryFileSystem

    from storage.arrow_files import split_url
    from storage.errors import ConfigError

    if isinstance(split_url(url)[0], MemoryFileSystem):
        raise ConfigError(
            f"{url}: memory:// ends with this process, and the graph with it; choose a path, s3:// or gs://"
        )


def main() -> int | None:
    config = parse(IngestConfig, __doc__, ("source", "url"))
    from jobs.run.progress import progress
    from storage.errors import ConfigError
    from storage.ingest import IngestOptions, ingest

    if config.memory_mib < 16:
        raise ConfigError(f"memory_mib: expected at least 16, got {config.memory_mib}; set --memory-mib")
    refuse_memory(config.url)
    options = IngestOptions(
        num_partitions=config.partitions,
        partitioner=config.partitioner,
        seed=config.seed,
        undirected=add_reverse(config),
        drop_duplicates=config.drop_duplicates,
        drop_self_loops=config.drop_self_loops,
        edge_ids=config.edge_ids,
        out_edges=config.out_edges,
        feature_dtype=config.feature_dtype,
        allow_nonfinite=config.allow_nonfinite,
        num_classes=config.num_classes,
        overwrite=config.overwrite,
        memory_budget_bytes=config.memory_mib * 2**20,
        num_threads=config.threads,
        scratch=config.scratch,
    )
    start_s = time.perf_counter()
    with progress(f"ingesting {config.source}") as bar:

        def report(stage: str, done: int, total: int | None) -> None:
            # A total is a hint: some sources know only about how many edges they have.
            bar.update(done, None if total is None else max(done, total), stage)

        manifest = ingest(build_source(config, report), config.url, options, report)
    elapsed_s = time.perf_counter() - start_s
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    print(
        f"{manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges in {manifest.num_partitions} partitions "
        f"({config.partitioner})\n{num_bytes / 2**20:,.1f} MiB at {config.url} in {elapsed_s:.1f} s "
        f"({manifest.num_edges / elapsed_s:,.0f} edges/s)\nlook at it: python jobs/inspect_graph.py {config.url} --verify"
    )
    return None


if __name__ == "__main__":
    run(main)
