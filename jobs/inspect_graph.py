"""Prints the content of a stored graph: `python jobs/inspect_graph.py <url> [--verify] [--snapshot 3]`.

You should see the graph's snapshots, counts, balance of the partitions, share of edges between partitions, degrees, splits and classes. The command reads the
topology once (about a second per 100 million edges on a local disk). `--verify` first reads every file and checks its checksum, ids and order; if a file is
damaged, the command names it in one line and exits with 1. A typed graph is described by node type and by relation. A set of many graphs is described by the
sizes of its graphs, their parts and their targets.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from graphmill.core.summaries import counted
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.storage.format.source import SPLIT_NAMES

if TYPE_CHECKING:
    import numpy as np

    from graphmill.storage.format.graph_set_manifest import GraphSetManifest, RowSchema
    from graphmill.storage.format.manifest import Manifest
    from graphmill.storage.format.statistics import CountStatistics, FeatureStatistics, GraphStatistics
    from graphmill.storage.graph import StoredGraph, TypedGraph
    from graphmill.storage.graph_sets.graph_set import StoredGraphs

_SNAPSHOTS_SHOWN = 10
_RELATIONS_SHOWN = 8
_IDS_SHOWN = 3


@dataclass(frozen=True)
class InspectConfig:
    """Print the content of a stored graph."""

    url: str
    """The directory of a graph, or of a set of graphs: a path or an fsspec URL."""
    snapshot: int | None = None
    """Snapshot of the graph; None: the newest."""
    verify: bool = False
    """First verify the checksum and content of every file."""


@dataclass(frozen=True)
class Balance:
    """Sizes that depend on the partitioning."""

    nodes_per_partition: list[int]
    edges_per_partition: list[int]
    num_cut_edges: int  # source and destination in different partitions


def measure(graph: "StoredGraph", source_offsets: "np.ndarray | None" = None) -> Balance:
    """Reads the topology of every partition once, with one partition in memory at a time. `source_offsets`: offsets of the node type where edges start, if it
    is not the type where edges end."""
    import numpy as np

    offsets = graph.offsets if source_offsets is None else source_offsets
    edges_per_partition, num_cut = [], 0
    step = 1 << 22
    for partition in graph.partitions():
        edges_per_partition.append(partition.num_edges)
        for begin in range(0, partition.num_edges, step):
            source = partition.indices[begin : begin + step]
            start, stop = offsets[partition.index : partition.index + 2]
            num_cut += int(np.count_nonzero((source < start) | (source >= stop)))
    return Balance([int(count) for count in np.diff(graph.offsets)], edges_per_partition, num_cut)


def list_snapshots(graph: "StoredGraph | TypedGraph | StoredGraphs") -> str:
    """Numbers and dates (UTC) of the snapshots, newest first. The open snapshot is marked."""
    from graphmill.core.errors import FormatError
    from graphmill.storage.filesystem.urls import split_url
    from graphmill.storage.format.manifest import parse_head
    from graphmill.storage.snapshots.snapshots import read_manifest, snapshot_numbers

    filesystem, path = split_url(graph.url)
    numbers = snapshot_numbers(filesystem, path)[::-1]
    lines = []
    for number in numbers[:_SNAPSHOTS_SHOWN]:
        try:
            head = parse_head(*read_manifest(filesystem, path, graph.url, number, ""))
            made = f"of {datetime.fromtimestamp(head.created, UTC):%Y-%m-%d %H:%M:%S}"
        except FormatError:  # damaged, or pruned in the meantime
            made = "that cannot be read"
        lines.append(f"{number} {made}{' (open)' if number == graph.manifest.snapshot else ''}")
    more = len(numbers) - len(lines)
    return ", ".join([*lines, *([f"and {more:,} older"] if more else [])])


def describe(graph: "StoredGraph", balance: Balance) -> list[tuple[str, str]]:
    """(name, value) lines to print for a plain graph."""
    manifest, measured = graph.manifest, graph.manifest.measured
    edges = (
        f"{manifest.num_edges:,} ({measured.num_self_loops:,} self-loops, {measured.num_duplicate_edges:,} duplicates)"
    )
    lines = [
        ("graph", f"{manifest.name} at {graph.url}"),
        ("snapshots", list_snapshots(graph)),
        ("nodes", f"{manifest.num_nodes:,}"),
        ("ids", _ids(graph)),
        ("edges", f"{edges}, {_symmetry(measured)}"),
        ("in-degree", _spread(measured.in_degree)),
        ("out-degree", f"{_spread(measured.out_degree)}; {measured.num_isolated:,} nodes without any edge"),
        ("features", f"{_features(manifest)}, {manifest.edge_feature_dim} per edge"),
        ("weights", "" if measured.least_weight is None else f"of edges, the least {measured.least_weight:g}"),
        ("relations", _relations(manifest)),
        ("values", _values(measured.feature)),
        ("partitions", _partitions(manifest, manifest.num_groups)),
        ("balance", f"nodes {_balance(balance.nodes_per_partition)}; edges {_balance(balance.edges_per_partition)}"),
        ("edge cut", f"{balance.num_cut_edges:,} edges, {_share(balance.num_cut_edges, manifest.num_edges)}"),
        *_split_lines(measured),
        ("links", _links(manifest)),
        _label_line(manifest),
        ("not read", _not_read(manifest)),
        *_stored(manifest),
    ]
    return [(name, value) for name, value in lines if value]


def _partitions(manifest: "Manifest", num_groups: int) -> str:
    groups = f", of {num_groups:,} locality groups" if num_groups else ""
    return f"{manifest.num_partitions} ({manifest.provenance.get('partitioner', 'unknown')}{groups})"


def describe_typed(graph: "TypedGraph") -> list[tuple[str, str]]:
    """(name, value) lines to print, from one pass over the topology."""
    import numpy as np

    manifest = graph.manifest
    lines = [
        ("typed graph", f"{manifest.name} at {graph.url}"),
        ("snapshots", list_snapshots(graph)),
        ("nodes", f"{manifest.num_nodes:,} of {counted(len(manifest.node_types), 'type')}"),
        ("edges", f"{manifest.num_edges:,} of {counted(len(manifest.edge_types), 'relation')}"),
        ("partitions", _partitions(manifest, max(row.num_groups for row in manifest.node_types.values()))),
    ]
    for name, row in manifest.node_types.items():
        measured = row.measured
        sizes = [int(count) for count in np.diff(graph.nodes(name).offsets)]
        lines += [
            (name, f"{row.num_nodes:,} nodes, {_balance(sizes)} in a partition"),
            ("ids", _ids(graph.nodes(name))),
            ("features", _features(row) if row.feature_dim else "none"),
            ("values", _values(measured.feature)),
            *_split_lines(measured),
            _label_line(row),
            ("not read", _not_read(row)),
        ]
    for relation in graph.relations:
        part = graph.relation(relation)
        row, measured, balance = (
            part.manifest,
            part.manifest.measured,
            measure(part, graph.nodes(relation.source).offsets),
        )
        columns = [
            name for name, is_stored in (("ids", row.has_edge_id), ("weights", row.has_edge_weight)) if is_stored
        ]
        columns += [f"{row.edge_feature_dim} features"] if row.edge_feature_dim else []
        of_one_type = (
            f", {_symmetry(measured)}, {measured.num_self_loops:,} self-loops"
            if relation.source == relation.target
            else ""
        )
        lines += [
            (str(relation), f"{row.num_edges:,} edges ({measured.num_duplicate_edges:,} duplicates){of_one_type}"),
            ("columns", ", ".join(columns)),
            ("links", _links(row)),
            ("not read", _not_read(row)),
            ("in-degree", f"of {relation.target}: {_spread(measured.in_degree)}"),
            ("out-degree", f"of {relation.source}: {_spread(measured.out_degree)}"),
            ("balance", f"edges {_balance(balance.edges_per_partition)}"),
            ("edge cut", f"{balance.num_cut_edges:,} edges, {_share(balance.num_cut_edges, row.num_edges)}"),
        ]
    return [(name, value) for name, value in (*lines, *_stored(manifest)) if value]


def describe_set(graphs: "StoredGraphs") -> list[tuple[str, str]]:
    """(name, value) lines to print for a set of many graphs."""
    manifest, measured = graphs.manifest, graphs.manifest.measured
    ids = [each.as_py() for shard in graphs.shards if shard.ids is not None for each in shard.ids[:_IDS_SHOWN]]
    parts = zip(("none", *manifest.split_names), measured.parts, strict=True)
    sizes = {name: part.num_graphs for name, part in parts}
    labelled = "" if manifest.labelled is None else f"of {manifest.labelled}"
    lines = [
        ("graphs", f"{manifest.num_graphs:,} of {manifest.name} at {graphs.url}"),
        ("snapshots", list_snapshots(graphs)),
        ("ids", f"{', '.join(map(repr, ids[:_IDS_SHOWN]))} …" if ids else ""),
        ("nodes", f"{manifest.num_nodes:,}; of a graph: {_spread(measured.nodes)}"),
        ("edges", f"{manifest.num_edges:,} directed; of a graph: {_spread(measured.edges)}"),
        ("features", f"{_columns(manifest.node)} per node, {_columns(manifest.edge)} per edge"),
        ("split", ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)),
        ("labels", f"{labelled}, {manifest.num_classes} classes" if manifest.num_classes else labelled),
        ("targets", ", ".join(manifest.target_names)),
    ]
    for column, name in enumerate(manifest.target_names):
        known = sum(part.targets[column].num_labelled for part in measured.parts)
        text = f"{manifest.num_graphs - known:,} graphs without"
        training = dict(zip(manifest.split_names, measured.parts[1:], strict=True)).get("train")
        if training is not None and training.targets[column].mean is not None:
            target = training.targets[column]
            text += f"; training: mean {target.mean:.6g}, standard deviation {target.std:.6g}"
        lines.append((name, text))
    rejected = f"{manifest.num_rejected:,} rows of the source" if manifest.num_rejected else ""
    lines += [("rejected", rejected), *_stored(manifest, f", {counted(manifest.num_shards, 'shard')}")]
    return [(name, value) for name, value in lines if value]


def _stored(manifest: "Manifest | GraphSetManifest", more: str = "") -> list[tuple[str, str]]:
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    return [
        ("stored", f"{num_bytes / 2**20:,.1f} MiB in {len(manifest.files)} files{more}"),
        ("from", ", ".join(f"{key} {value}" for key, value in sorted(manifest.provenance.items()))),
    ]


def _columns(rows: "RowSchema") -> str:
    if rows.dtype is None:
        return "0"
    return f"{rows.dim} {'categories' if rows.categories else rows.dtype}"


def _ids(graph: "StoredGraph") -> str:
    """The first few ids if ids are strings; otherwise empty."""
    if graph.manifest.id_kind != "string":
        return ""
    first = next(ids for index in range(graph.num_partitions) if len(ids := graph.string_ids(index)))
    return f"strings: {', '.join(repr(each.as_py()) for each in first[:_IDS_SHOWN])} …"


def _features(manifest: "Manifest") -> str:
    rows = manifest.feature_rows
    dtype = "" if rows is None else f" {rows.dtype} ({rows.layout}, {rows.row_bytes:,} bytes a row)"
    columns = ", ".join(column.name for column in manifest.feature_columns)
    return f"{manifest.feature_dim} per node{dtype}{f', of the columns {columns[:100]}' if columns else ''}"


def _not_read(manifest: "Manifest") -> str:
    """Columns that a run reads only if its options ask for them. Empty: the graph has no such columns."""
    from graphmill.jobs.config.stored_columns import unread_columns

    names = unread_columns(manifest, () if manifest.measured.least_weight is None else ("weight",))
    return f"unless a run asks for them: {', '.join(names)}" if names else ""


def _relations(manifest: "Manifest") -> str:
    """The first few relations of a knowledge graph; otherwise empty."""
    if not manifest.relations:
        return ""
    first = ", ".join(manifest.relations[:_RELATIONS_SHOWN])
    return f"{len(manifest.relations)}: {first}{' …' if len(manifest.relations) > _RELATIONS_SHOWN else ''}"


def _links(manifest: "Manifest") -> str:
    """Counts of held-out links and of their negatives. Empty: no links are held out."""
    links = manifest.links
    if links is None:
        return ""
    parts = []
    for code, name in enumerate(SPLIT_NAMES):
        counts = {
            "": links.positives[code],
            " pairs that are none": links.negatives[code],
            " negatives of their own": links.listed[code],
        }
        texts = [f"{count:,}{kind}" for kind, count in counts.items() if count]
        parts += [f"{name} {', '.join(texts)}"] if texts else []
    return f"held out: {'; '.join(parts) or 'none'}"


def _label_line(manifest: "Manifest") -> tuple[str, str]:
    measured = manifest.measured
    unlabelled = f"{manifest.num_nodes - measured.num_labelled:,} nodes without"
    named = (
        f"{manifest.num_classes}: {', '.join(manifest.class_names)[:100]};"
        if manifest.class_names
        else f"{manifest.num_classes},"
    )
    if measured.class_counts is not None:
        largest = _share(max(measured.class_counts), measured.num_labelled)
        smallest = f"{min(measured.class_counts):,} nodes"
        if manifest.label_kind == "answers":
            mean = sum(measured.class_counts) / max(1, measured.num_labelled)
            return (
                "labels",
                f"{named[:-1]} yes or no, {mean:.1f} yes a node, most often {largest}, least {smallest}; {unlabelled} any",
            )
        return "classes", f"{named} largest {largest}, smallest {smallest}; {unlabelled} a label"
    kinds = {"value": "a real number each", "values": f"{manifest.num_classes} real numbers each"}
    kind = kinds.get(str(manifest.label_kind), f"{manifest.num_classes} classes")
    return "targets", "" if manifest.label_kind is None else f"{kind}; {unlabelled}"


def _symmetry(measured: "GraphStatistics") -> str:
    if measured.symmetric:
        return "symmetric"
    return "symmetric but for weights or features" if measured.symmetric_edges else "directed"


def _spread(counts: "CountStatistics") -> str:
    """Mean, minimum and maximum, and the range (powers of two) that contains the median and the 99 % quantile."""
    quantiles = ", ".join(f"{name} {_bin(counts, share)}" for name, share in (("median", 0.5), ("p99", 0.99)))
    return f"mean {counts.mean:.2f}, min {counts.minimum:,}, {quantiles}, max {counts.maximum:,}"


def _bin(counts: "CountStatistics", share: float) -> str:
    """The range of the histogram bin that contains this quantile."""
    reached = 0
    for width, count in enumerate(counts.histogram):
        reached += count
        if reached >= share * counts.num:
            low, high = (1 << width) >> 1, max((1 << width) - 1, 0)
            return f"{low:,}" if low == high else f"{low:,} to {min(high, counts.maximum):,}"
    return f"{counts.maximum:,}"


def _values(feature: "FeatureStatistics | None") -> str:
    if feature is None:
        return ""
    text = "none" if feature.num_values == feature.num_nonfinite else f"{feature.minimum:g} to {feature.maximum:g}"
    if feature.zero_or_one:
        text = "0 or 1"
    text += f", {feature.sparsity:.1%} zeros"
    if feature.mean_norm is not None:
        text += f"; norm of a row: mean {feature.mean_norm:.4g}, max {feature.max_norm:.4g}"
    return text + (f"; {feature.num_nonfinite:,} not finite" if feature.num_nonfinite else "")


def _split_lines(measured: "GraphStatistics") -> list[tuple[str, str]]:
    texts = [
        ", ".join(f"{name} {count:,}" for name, count in zip(SPLIT_NAMES, split.num_nodes, strict=True) if count)
        for split in measured.splits
    ]
    # The splits of a published set mostly have the same sizes, and are then printed once.
    lines = [("split", f"{times} sets, each {text}" if times > 1 else text) for text, times in Counter(texts).items()]
    for weighted, name in (("", "homophily"), ("weight of the ", "weighted_homophily")):
        known = [share for split in measured.splits if (share := getattr(split, name)) is not None]
        if known:
            shares = f"{min(known):.1%}" if len(known) == 1 else f"{min(known):.1%} to {max(known):.1%}"
            lines.append(("homophily", f"{shares} of the {weighted}edges between training nodes join equal classes"))
    for target in (split.training_target for split in measured.splits):
        if target and target.mean is not None:
            lines.append(("training", f"mean {target.mean:.6g}, standard deviation {target.std:.6g}"))
    return lines


def _balance(counts: list[int]) -> str:
    mean = sum(counts) / len(counts)
    return f"{min(counts):,} to {max(counts):,} (max/mean {max(counts) / mean if mean else 1:.3f})"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none"


def main() -> None:
    config = parse(InspectConfig, __doc__, ("url",))
    from graphmill.storage.graph import StoredGraph, TypedGraph, open_graph

    graph = open_graph(config.url, config.snapshot)
    if config.verify:
        graph.verify()
    if isinstance(graph, StoredGraph):
        lines = describe(graph, measure(graph))
    else:
        lines = describe_typed(graph) if isinstance(graph, TypedGraph) else describe_set(graph)
    if config.verify:
        lines.append(("verified", f"{len(graph.manifest.files)} files, every checksum matches"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:>{width}}  {value}")


if __name__ == "__main__":
    run(main)
