"""Estimates the disk space, the written bytes and the memory that an ingestion needs. The estimate is a pure function of counts.

An external sort writes its records once and reads them once, unless they fit in memory, and writes the result. Features are also written to scratch
files, and so are the lists of partitions that are larger than half the budget.
"""

from dataclasses import dataclass

from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.source import SourceInfo
from graphmill.storage.ingestion.ingest import IngestOptions

_PROCESS_BYTES = 320 << 20  # memory of the interpreter with numpy, pyarrow and compiled loops


@dataclass(frozen=True)
class IngestCost:
    """Estimates in bytes. They assume partitions of equal size."""

    spilled: int
    """Edge records in buckets, in scratch files; 0 if they fit in memory."""
    spooled: int
    """Other bytes that are written to scratch files: features, twice, and sorted lists that do not fit into memory."""
    graph: int
    """The stored graph."""
    peak_disk: int
    """Peak of the bytes on disk, of scratch files and graph together."""
    memory: int
    """Resident memory of the process without pages of mapped files."""

    @property
    def written(self) -> int:
        return self.spilled + self.spooled + self.graph


def ingest_cost(info: SourceInfo, options: IngestOptions) -> IngestCost:
    """Returns the cost of ingesting a source, from the source's `info`. An unknown number of edges counts as 16 per node."""
    num_nodes, num_partitions = info.num_nodes, options.num_partitions
    add_reverse = info.undirected_once if options.undirected is None else options.undirected
    num_edges = (info.num_edges or 16 * num_nodes) * (2 if add_reverse else 1)
    with_out_edges = options.out_edges and not (add_reverse or info.symmetric)
    index_bytes = 4 if num_nodes < 2**31 else 8
    extra_bytes = 8 * options.edge_ids + 4 * info.has_edge_weight + 8 * (info.has_edge_time or info.has_node_time)
    feature_bytes = 4 * info.edge_feature_dim  # features are stored only with in-edges
    lists = 2 if with_out_edges else 1
    list_bytes = num_edges * (lists * (index_bytes + extra_bytes) + feature_bytes)
    records = [num_edges * (2 * index_bytes + extra_bytes + feature) for feature in (feature_bytes, 0)[:lists]]
    most_held = options.memory_budget_bytes // lists // 8  # fewer bytes are never written to scratch files
    spilled = sum(each for each in records if each >= most_held)

    one_sorted = num_edges // num_partitions * (index_bytes + extra_bytes + feature_bytes)
    sorted_on_disk = one_sorted > options.memory_budget_bytes // 2
    node_features = (
        num_nodes * FeatureRows(info.feature_dim, options.feature_dtype).row_bytes
    )  # the size before zeros are removed
    finds_groups = options.partitioner in ("ldg", "metis") and (num_partitions > 1 or options.groups is not None)
    label_bytes = info.label_bytes * info.has_label
    node_columns = 8 + 8 * info.has_node_time + label_bytes + info.num_split_sets + 4 * finds_groups
    graph = list_bytes + lists * 8 * (num_nodes + num_partitions) + num_nodes * node_columns + node_features

    # Spilled buckets are deleted while the partitions' files are written, so the peak is at the first or at the last partition.
    first = spilled + graph // num_partitions
    last = spilled // num_partitions + graph
    beside = node_features + max(one_sorted if sorted_on_disk else 0, node_features // num_partitions)
    return IngestCost(
        spilled=spilled,
        spooled=2 * node_features + (list_bytes if sorted_on_disk else 0),
        graph=graph,
        peak_disk=max(first, last) + beside,
        memory=num_nodes * (4 + 2 * index_bytes + node_columns - 8)
        + options.memory_budget_bytes
        + num_nodes // num_partitions * (16 + node_columns)
        + _PROCESS_BYTES,
    )
