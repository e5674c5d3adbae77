"""Prints what a stored graph holds: `python jobs/inspect_graph.py <url> [--verify] [--snapshot 3]`.

You should see which snapshots are there, counts, the balance of the partitions, the share of edges that cross them, degrees, splits
and classes, after one pass over the topology (about a second per 100 million edges on a local disk). `--verify` first reads every
file and checks its checksum, ids and order; a damaged file is named in one line, and the exit code is 1.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import tyro

from jobs.command_line import parse
from jobs.exit_codes import run

if TYPE_CHECKING:
    import numpy as np

    from storage.graph import StoredGraph

_SNAPSHOTS_SHOWN = 10


@dataclass(frozen=True)
class InspectConfig:
    """Print what a stored graph holds."""

    url: Annotated[str, tyro.conf.Positional]
    """A graph's directory: a path or an fsspec URL."""
    snapshot: int | None = None
    """Which snapshot; None: the newest."""
    verify: bool = False
    """Check every file's checksum and content first."""


@dataclass(frozen=True)
class GraphStatistics:
    """What one pass over the partitions shows."""

    nodes_per_partition: list[int]
    edges_per_partition: list[int]
    num_cut_edges: int  # source and destination in different partitions
    num_self_loops: int
    in_degree: "np.ndarray"  # int64 [num_nodes]
    class_count: "np.ndarray | None"  # int64 [num_classes]
    num_unlabelled: int
    split_count: "np.ndarray"  # int64 [num_split_sets, 4], by SPLIT_* code


def measure(graph: "StoredGraph") -> GraphStatistics:
    """Reads every partition once; memory: the partition at hand and 8 bytes per node."""
    import numpy as np

    from storage.source import SPLIT_NAMES

    manifest = graph.manifest
    in_degree = np.zeros(manifest.num_nodes, np.int64)
    class_count = np.zeros(manifest.num_classes, np.int64) if manifest.num_classes else None
    split_count = np.zeros((manifest.num_split_sets, len(SPLIT_NAMES)), np.int64)
    edges_per_partition, num_cut, num_loops, num_unlabelled = [], 0, 0, 0
    step = 1 << 22
    for partition in graph.partitions():
        degree = np.diff(partition.indptr)
        in_degree[partition.start : partition.stop] = degree
        edges_per_partition.append(partition.num_edges)
        for begin in range(0, partition.num_edges, step):
            source = partition.indices[begin : begin + step]
            num_cut += int(np.count_nonzero((source < partition.start) | (source >= partition.stop)))
            position = np.arange(begin, begin + len(source))
            owner = partition.start + np.searchsorted(partition.indptr, position, side="right") - 1
            num_loops += int(np.count_nonzero(source == owner))
        if partition.label is not None:
            known = partition.label >= 0 if class_count is not None else ~np.isnan(partition.label)
            num_unlabelled += int(np.count_nonzero(~known))
            if class_count is not None:
                class_count += np.bincount(partition.label[known], minlength=len(class_count))
        if partition.split is not None:
            for split_set, codes in enumerate(partition.split):
                split_count[split_set] += np.bincount(codes, minlength=len(SPLIT_NAMES))
    nodes = [int(count) for count in np.diff(graph.offsets)]
    return GraphStatistics(
        nodes, edges_per_partition, num_cut, num_loops, in_degree, class_count, num_unlabelled, split_count
    )


def list_snapshots(graph: "StoredGraph") -> str:
    """Numbers and dates (UTC) of the snapshots that are there, newest first; which of them is open."""
    from storage.errors import FormatError
    from storage.manifest import parse_head
    from storage.snapshots import read_manifest, snapshot_numbers

    numbers = snapshot_numbers(graph.filesystem, graph.path)[::-1]
    lines = []
    for number in numbers[:_SNAPSHOTS_SHOWN]:
        try:
            head = parse_head(*read_manifest(graph.filesystem, graph.path, graph.url, number, ""))
            made = f"of {datetime.fromtimestamp(head.created, UTC):%Y-%m-%d %H:%M:%S}"
        except FormatError:  # pruned meanwhile, or damaged
            made = "that cannot be read"
        lines.append(f"{number} {made}{' (open)' if number == graph.manifest.snapshot else ''}")
    more = len(numbers) - len(lines)
    return ", ".join([*lines, *([f"and {more:,} older"] if more else [])])


def describe(graph: "StoredGraph", found: GraphStatistics) -> list[tuple[str, str]]:
    """(name, value) lines for people."""
    import numpy as np

    from storage.source import SPLIT_NAMES

    manifest = graph.manifest
    dtype = f" {manifest.feature_dtype}" if manifest.feature_dim else ""
    lines = [
        ("graph", f"{manifest.name} at {graph.url}"),
        ("snapshots", list_snapshots(graph)),
        ("nodes", f"{manifest.num_nodes:,}"),
        ("edges", f"{manifest.num_edges:,} ({found.num_self_loops:,} self-loops)"),
        ("features", f"{manifest.feature_dim} per node{dtype}, {manifest.edge_feature_dim} per edge"),
        ("partitions", f"{manifest.num_partitions} ({manifest.provenance.get('partitioner', 'unknown')})"),
        ("balance", f"nodes {_balance(found.nodes_per_partition)}; edges {_balance(found.edges_per_partition)}"),
        ("edge cut", f"{found.num_cut_edges:,} edges, {_share(found.num_cut_edges, manifest.num_edges)}"),
    ]
    degree = found.in_degree
    quantiles = np.percentile(degree, [0, 50, 99, 100])
    values = ", ".join(
        f"{name} {value:,.0f}" for name, value in zip(("min", "median", "p99", "max"), quantiles, strict=True)
    )
    isolated = int(np.count_nonzero(degree == 0))
    lines.append(("in-degree", f"mean {degree.mean():.2f}, {values}; {isolated:,} nodes without"))
    distinct: dict[str, int] = {}  # published sets of splits mostly have one size
    for counts in found.split_count:
        named = ", ".join(f"{name} {count:,}" for name, count in zip(SPLIT_NAMES, counts, strict=True) if count)
        distinct[named] = distinct.get(named, 0) + 1
    lines += [("split", f"{times} sets, each {named}" if times > 1 else named) for named, times in distinct.items()]
    if found.class_count is not None:
        largest = int(found.class_count.max())
        labelled = int(found.class_count.sum())
        lines.append(
            (
                "classes",
                f"{manifest.num_classes}, largest {_share(largest, labelled)}, smallest {int(found.class_count.min()):,} nodes; "
                f"{found.num_unlabelled:,} nodes without a label",
            )
        )
    elif manifest.label_kind is not None:
        lines.append(("targets", f"real numbers; {found.num_unlabelled:,} nodes without"))
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    lines.append(("stored", f"{num_bytes / 2**20:,.1f} MiB in {len(manifest.files)} files"))
    lines.append(("from", ", ".join(f"{key} {value}" for key, value in sorted(manifest.provenance.items()))))
    return lines


def _balance(counts: list[int]) -> str:
    mean = sum(counts) / len(counts)
    return f"{min(counts):,} to {max(counts):,} (max/mean {max(counts) / mean if mean else 1:.3f})"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none"


def main() -> int | None:
    config = parse(InspectConfig, description=__doc__)
    from storage.graph import open_graph

    graph = open_graph(config.url, config.snapshot)
    if config.verify:
        graph.verify()
    lines = describe(graph, measure(graph))
    if config.verify:
        lines.append(("verified", f"{len(graph.manifest.files)} files, every checksum matches"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:>{width}}  {value}")
    return None


if __name__ == "__main__":
    run(main)
